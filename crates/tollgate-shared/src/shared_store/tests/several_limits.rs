//! Several limits, several stores: all or nothing.

use super::*;

#[tokio::test]
async fn a_refusal_gives_back_what_other_stores_were_charged() {
    let second = StandInStore::default();
    let (shared, first) = shared(vec![StandInStore::default(), second.clone()]);
    let [wide, narrow] = [("wide", 100), ("narrow", 2)]
        .map(|(name, n)| Limit::per_hour(n).name(name).build().unwrap());
    let of_second = Terms { store: 1, ..Terms::default() };
    let checks = [Check::new(&wide, "a").cost(3), Check::new(&narrow, "a").terms(of_second)];
    for allowed in [true, true, false] {
        let decision = decide(&shared, &checks, NOW).await;
        assert_eq!(decision.allowed(), allowed);
        assert_eq!(decision.binding(), 1);
    }
    until(|| first.used(&checks[0], NOW) == 6).await;
    let copy = shared.local().balance(&wide, "a".into(), NOW);
    assert_eq!(copy, 94, "the copy here is right as well");
    assert_eq!((second.used(&checks[1], NOW), second.used(&checks[0], NOW)), (2, 0));
    // Now it is known who refuses: nobody is asked.
    for store in [&first, &second] {
        store.calls();
    }
    let mut outcomes = [Outcome::default(); 2];
    let Ok(decision) = shared.decide_each(&checks, NOW.into(), &mut outcomes).await;
    assert_eq!((decision.allowed(), first.calls(), second.calls()), (false, 0, 0));
    assert_eq!((outcomes[0].allowed, outcomes[1].allowed), (true, false));
}

#[tokio::test]
async fn a_limit_that_counts_refused_requests_is_charged_whoever_refuses() {
    let second = StandInStore::default();
    let (shared, first) = shared(vec![StandInStore::default(), second.clone()]);
    let limits = ["a", "b", "c"].map(|name| Limit::per_hour(100).name(name).build().unwrap());
    let of_second = Terms { store: 1, ..Terms::default() };
    let none = Limit::per_hour(1).name("none").build().unwrap();
    let before = Check::new(&limits[0], "k").count_denied();
    let after = Check::new(&limits[1], "k").count_denied().terms(of_second);
    let plain = Check::new(&limits[2], "k");
    // The first store refuses, then the second.
    for (refusing, times) in
        [(Check::new(&none, "k"), 3), (Check::new(&none, "k").terms(of_second), 3)]
    {
        assert!(decide(&shared, &[refusing], NOW).await.allowed());
        for _ in 0..times {
            assert!(!decide(&shared, &[before, plain, after, refusing], NOW).await.allowed());
        }
    }
    until(|| second.used(&after, NOW) == 6 && first.used(&before, NOW) == 6).await;
    until(|| first.used(&plain, NOW) == 0).await;
}

#[tokio::test]
async fn what_counts_refused_requests_is_charged_when_its_store_is_back_or_counted() {
    let second = StandInStore::default();
    let (shared, first) = shared(vec![StandInStore::default(), second.clone()]);
    let of_second = Terms { store: 1, ..Terms::default() };
    let limits = [("none", 1), ("wide", 100)];
    let [none, wide] = limits.map(|(name, n)| Limit::per_hour(n).name(name).build().unwrap());
    let counting = Check::new(&wide, "k").count_denied().terms(of_second);
    let checks = [Check::new(&none, "k"), counting];
    assert!(decide(&shared, &checks[..1], NOW).await.allowed());
    // how the second store fails, charges that wait, charges that are lost
    for (class, owed, lost) in [(StandInError::OutOfMemory, 1, 0), (StandInError::Timeout, 0, 1)] {
        second.fail_as(Some(class));
        assert!(!decide(&shared, &checks, NOW).await.allowed());
        until(|| (shared.stats().pending_changes, shared.stats().charges_lost) == (owed, lost))
            .await;
        second.fail(false);
        until(|| shared.stats().pending_changes == 0).await;
    }
    until(|| second.used(&counting, NOW) == 2).await;
    assert_eq!(first.used(&checks[0], NOW), 1);
}

#[tokio::test]
async fn one_store_without_an_answer_leaves_the_other_right() {
    let second = StandInStore::default();
    let (shared, first) = shared(vec![StandInStore::default(), second.clone()]);
    let limits = ["a", "b"].map(|name| Limit::per_hour(5).name(name).build().unwrap());
    let closed = Terms { store: 1, ..failing(OnFailure::Closed) };
    let checks = [Check::new(&limits[0], "k"), Check::new(&limits[1], "k").terms(closed)];
    second.fail(true);
    for _ in 0..9 {
        let decision = decide(&shared, &checks, NOW).await;
        assert_eq!((decision.allowed(), decision.decided_by()), (false, DecidedBy::Closed));
        until(|| first.used(&checks[0], NOW) == 0).await;
    }
    let local = Terms { store: 1, ..Terms::default() };
    let checks = [checks[0], checks[1].terms(local)];
    for allowed in [true, true, true, true, true, false] {
        let decision = decide(&shared, &checks, NOW).await;
        assert_eq!(decision.allowed(), allowed);
        let decided_by = if allowed { DecidedBy::Local } else { DecidedBy::Redis };
        assert_eq!(decision.decided_by(), decided_by, "who refuses first is not asked about more");
    }
}

#[tokio::test]
async fn of_several_stores_up_to_grants_what_the_least_does() {
    let second = StandInStore::default();
    let (shared, first) = shared(vec![StandInStore::default(), second.clone()]);
    second.fail(true);
    let limits =
        [("a", 10), ("b", 4)].map(|(name, n)| Limit::per_hour(n).name(name).build().unwrap());
    let of_second = Terms { store: 1, ..Terms::default() };
    // The stand-in does not know "up to": the first is taken whole, the second by the table here.
    let checks = [
        Check::new(&limits[0], "k").cost(10).act(Act::UpTo),
        Check::new(&limits[1], "k").cost(10).act(Act::UpTo).terms(of_second),
    ];
    let mut outcomes = [Outcome::default(); 2];
    let Ok(decision) = shared.decide_each(&checks, NOW.into(), &mut outcomes).await;
    assert!(decision.allowed());
    assert_eq!((outcomes[0].charged, outcomes[1].charged), (4, 4));
    until(|| first.used(&checks[0], NOW) == 4).await;
}

#[tokio::test]
async fn the_same_limit_twice_is_the_stores_to_judge() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("1/hour burst 2");
    let check = Check::new(&limit, "a");
    assert!(decide(&shared, &[check.cost(2)], NOW).await.allowed());
    for _ in 0..3 {
        assert!(!decide(&shared, &[check, check], NOW).await.allowed());
    }
    assert_eq!(store.calls(), 4);
}
