//! Budget borrowed ahead.

use super::*;

/// 1 % of the capacity may be out.
const ONE_PERCENT: Consistency = Consistency::Leased { millionths: 10_000 };

/// Asks one by one until budget is borrowed; how often that was.
async fn ask_until_lent(shared: &SharedStore<StandInStore>, check: &Check<'_>, now: Micros) -> u64 {
    for asked in 1..1_000 {
        let decision = decide(shared, &[*check], now).await;
        assert!(decision.allowed());
        if decision.decided_by() == DecidedBy::Lease {
            return asked;
        }
        // What happens in the background gets its turn.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }
    panic!("nothing is lent to a busy key");
}

#[tokio::test]
async fn a_busy_key_is_decided_by_what_it_borrowed() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("100000/day burst 100000");
    let check = Check::new(&limit, "a").terms(terms(ONE_PERCENT));
    let mut asked = ask_until_lent(&shared, &check, NOW).await;
    assert!((32..40).contains(&asked), "{asked}");
    store.calls();
    for _ in 0..20_000 {
        let decision = decide(&shared, &[check], NOW).await;
        assert!(decision.allowed());
        asked += 1;
        if decision.decided_by() == DecidedBy::Lease {
            assert_eq!(decision.granted(), 1);
        }
        tokio::task::yield_now().await;
    }
    let (calls, stats) = (store.calls(), shared.stats());
    assert!(calls < 2_000, "90 % of the calls are saved: {calls} of {asked}");
    assert!((1..=10_000).contains(&stats.outstanding_max_millionths), "{stats:?}");
    // Everything is charged, before it is spent.
    let used = store.used(&check, NOW) as u64;
    assert!((asked..=asked + 1_000).contains(&used), "{used} of {asked}");
    shared.drain().await;
    assert_eq!(store.used(&check, NOW) as u64, asked, "what was not spent is given back");
    let stats = shared.stats();
    assert_eq!((stats.leases, stats.units_unused), (0, 0));
}

#[tokio::test]
async fn all_instances_together_hold_no_more_than_the_rule_allows() {
    let store = StandInStore::default();
    let limit = limit("100000/day burst 100000");
    let check = Check::new(&limit, "a").terms(terms(ONE_PERCENT));
    // They do not know of each other: each wants all that may be lent.
    let instances: Vec<_> = (0..3).map(|_| shared(vec![store.clone()]).0).collect();
    let mut asked = 0;
    for _ in 0..5_000 {
        for shared in &instances {
            assert!(decide(shared, &[check], NOW).await.allowed());
            asked += 1;
            tokio::task::yield_now().await;
        }
        let ahead = store.used(&check, NOW) - asked;
        assert!((0..=1_000).contains(&ahead), "{ahead} of 1,000 are out");
    }
    let lent = instances.iter().filter(|shared| shared.stats().units_lent > 0).count();
    assert!(lent >= 1);
}

#[tokio::test]
async fn the_last_of_a_limit_is_not_lent() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("1/hour burst 10000");
    let check = Check::new(&limit, "a").terms(terms(ONE_PERCENT));
    let mut admitted = 0;
    loop {
        let decision = decide(&shared, &[check], NOW).await;
        if !decision.allowed() {
            break;
        }
        admitted += 1;
        if admitted > 9_910 {
            assert_ne!(decision.decided_by(), DecidedBy::Lease, "after {admitted}");
        }
        tokio::task::yield_now().await;
    }
    assert_eq!((admitted, store.used(&check, NOW)), (10_000, 10_000));
}

#[tokio::test]
async fn nothing_is_lent_where_it_would_not_help_or_not_hold() {
    let queue = || {
        let queue = Limit::per_second(100_000).algorithm(tollgate::Algorithm::LeakyBucket);
        queue.queue().build().unwrap()
    };
    for (limit, part) in [
        (limit("700/second burst 700"), 10_000),
        (limit("100000/day burst 100000"), 0),
        (limit("100000/10ms burst 100000"), 10_000),
        (queue(), 10_000),
    ] {
        let (shared, store) = shared(vec![StandInStore::default()]);
        let leased = Consistency::Leased { millionths: part };
        let check = Check::new(&limit, "a").terms(terms(leased));
        for _ in 0..200 {
            assert_eq!(decide(&shared, &[check], NOW).await.decided_by(), DecidedBy::Redis);
            tokio::task::yield_now().await;
        }
        assert_eq!((store.calls(), shared.stats().units_lent), (200, 0), "{limit}");
    }
}

#[tokio::test]
async fn what_is_left_when_a_lease_ends_is_given_back() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    // Refills within 40 ms: a lease lasts 20 ms.
    let limit = limit("2500000/second burst 100000");
    let check = Check::new(&limit, "a").terms(terms(ONE_PERCENT));
    ask_until_lent(&shared, &check, NOW).await;
    assert!(shared.stats().leases > 0);
    let late = decide(&shared, &[check], at(1_000_000)).await;
    assert_eq!(late.decided_by(), DecidedBy::Redis, "a lease that has ended buys nothing");
    until(|| shared.stats().units_returned > 0 && shared.stats().leases == 0).await;
    assert_eq!(store.used(&check, at(2_000_000)), 0);
}

#[tokio::test]
async fn of_several_limits_a_lease_is_given_back_when_another_refuses() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("100000/day burst 100000");
    let check = Check::new(&limit, "a").terms(terms(ONE_PERCENT));
    let spent = ask_until_lent(&shared, &check, NOW).await;
    let other = Limit::per_hour(3).name("other").build().unwrap();
    let both = [check, Check::new(&other, "a")];
    for allowed in [true, true, true, false, false] {
        assert_eq!(decide(&shared, &both, NOW).await.allowed(), allowed);
    }
    shared.drain().await;
    assert_eq!(store.used(&check, NOW) as u64, spent + 3);
    assert_eq!(store.used(&both[1], NOW), 3);
}

#[tokio::test]
async fn a_store_that_fails_leaves_what_is_borrowed_to_spend() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("100000/day burst 100000");
    let check = Check::new(&limit, "a").terms(terms(ONE_PERCENT));
    let asked = ask_until_lent(&shared, &check, NOW).await + 1;
    store.fail(true);
    assert_eq!(decide(&shared, &[check], NOW).await.decided_by(), DecidedBy::Lease);
    shared.drain().await;
    let stats = shared.stats();
    assert_eq!((stats.units_unused, stats.refunds_lost, stats.leases), (0, 0, 0), "{stats:?}");
    assert_eq!(decide(&shared, &[check], NOW).await.decided_by(), DecidedBy::Local);
    store.fail(false);
    until(|| store.used(&check, NOW) as u64 == asked).await;
}

#[tokio::test]
async fn what_a_store_may_have_taken_back_is_not_given_back_twice() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("100000/day burst 100000");
    let check = Check::new(&limit, "a").terms(terms(ONE_PERCENT));
    let asked = ask_until_lent(&shared, &check, NOW).await;
    store.fail_as(Some(StandInError::Timeout));
    shared.drain().await;
    store.fail(false);
    shared.drain().await;
    let stats = shared.stats();
    assert!(stats.units_unused > 0, "{stats:?}");
    assert_eq!((store.used(&check, NOW) as u64, stats.refunds_lost), (asked, 1));
}
