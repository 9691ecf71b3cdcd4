//! Many requests of several checks each.

use super::*;
use tollgate::RequestList;

/// Would catch: a request that waits for the answer to the one before it.
#[tokio::test]
async fn all_requests_are_sent_before_the_first_answer_and_have_one_deadline() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limits = ["a", "b"].map(|name| Limit::per_hour(10).name(name).build().unwrap());
    let checks: Vec<Check<'_>> = (0..20).map(|nth| Check::new(&limits[nth % 2], "k")).collect();
    let ends: Vec<usize> = (1..=10).map(|nth| 2 * nth).collect();
    let (list, mut decisions) = (RequestList::new(&checks, &ends), Vec::new());
    let mut outcomes = vec![Outcome::default(); checks.len()];
    let asked = shared.decide_requests(list, NOW.into(), &mut outcomes, &mut decisions);
    begin_and_go(&store, asked).await;
    assert_eq!(store.calls(), 10);
    let deadlines = std::mem::take(&mut *store.0.deadlines.lock().unwrap());
    assert_eq!(deadlines.len(), 10);
    assert!(deadlines.iter().all(|deadline| *deadline == deadlines[0]), "{deadlines:?}");
}

/// Would catch: a failure policy that is applied to other requests of the list.
#[tokio::test]
async fn each_request_falls_back_by_its_own_terms() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    store.fail(true);
    let limit = limit("1/hour burst 5");
    let policies = [OnFailure::Closed, OnFailure::Open, OnFailure::Local];
    let checks = policies.map(|policy| Check::new(&limit, "k").terms(failing(policy)));
    let (list, mut decisions) = (RequestList::new(&checks, &[1, 2, 3]), Vec::new());
    let outcomes = &mut [Outcome::default(); 3];
    let Ok(()) = shared.decide_requests(list, NOW.into(), outcomes, &mut decisions).await;
    let by: Vec<DecidedBy> = decisions.iter().map(Decision::decided_by).collect();
    assert_eq!(by, [DecidedBy::Closed, DecidedBy::Open, DecidedBy::Local]);
}

/// Would catch: lists of 16 outcomes or states by value in a future that waits for a store.
#[tokio::test]
async fn the_future_of_a_request_is_small() {
    let (shared, _) = shared(vec![StandInStore::default()]);
    let limit = limit("1/hour burst 5");
    let (checks, outcomes) = ([Check::new(&limit, "k")], &mut [Outcome::default()]);
    let bytes = size_of_val(&shared.inner.decide(&checks, NOW.into(), outcomes));
    println!("a request: {bytes} bytes");
    assert!(bytes <= 2_048, "{bytes} bytes");
}
