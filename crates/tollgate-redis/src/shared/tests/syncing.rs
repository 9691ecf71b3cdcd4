//! Decided here, told afterwards.

use super::*;

const HOUR: Consistency = Consistency::LocalSync { interval_ms: 3_600_000 };

#[tokio::test]
async fn after_its_first_question_a_key_is_decided_here() {
    let (shared, store) = shared(vec![StandIn::default()]);
    let limit = limit("1/hour burst 10");
    let check = Check::new(&limit, "a").terms(terms(HOUR));
    let first = decide(&shared, &[check], NOW).await;
    assert_eq!(first.decided_by(), DecidedBy::Redis);
    store.calls();
    for left in (0..9).rev() {
        let decision = decide(&shared, &[check], NOW).await;
        assert_eq!((decision.allowed(), decision.remaining()), (true, left));
        assert_eq!(decision.decided_by(), DecidedBy::Memory);
    }
    assert!(!decide(&shared, &[check], NOW).await.allowed());
    assert_eq!((store.calls(), store.used(&check, NOW)), (0, 1));
    assert_eq!(shared.stats().sync_units_untold, 9);
    shared.settle().await;
    assert_eq!((store.calls(), store.used(&check, NOW)), (1, 10));
    assert_eq!(shared.stats().sync_units_untold, 0);
}

#[tokio::test]
async fn instances_learn_of_each_other_once_an_interval() {
    let store = StandIn::default();
    let limit = limit("1/hour burst 100");
    let check = Check::new(&limit, "a").terms(terms(HOUR));
    let instances: Vec<_> = (0..3).map(|_| shared(vec![store.clone()]).0).collect();
    let mut admitted = 0;
    for shared in &instances {
        admitted += u32::from(decide(shared, &[check], NOW).await.allowed());
    }
    // Everybody asks for more than there is, within one interval.
    for _ in 0..150 {
        for shared in &instances {
            admitted += u32::from(decide(shared, &[check], NOW).await.allowed());
        }
    }
    // Each has known of the first questions only: 100 and what the two others admitted, at most.
    assert!((101..=100 + 2 * 100).contains(&admitted), "{admitted}");
    for shared in &instances {
        shared.settle().await;
    }
    for shared in &instances {
        let more = decide(shared, &[check], NOW).await;
        assert!(!more.allowed(), "all is known");
    }
    assert_eq!(store.used(&check, NOW), i64::from(admitted), "every unit was told once");
}

#[tokio::test]
async fn what_passes_while_the_store_is_told_is_not_forgotten() {
    let (shared, _) = shared(vec![StandIn::default()]);
    let limit = limit("1/hour burst 100");
    let interval = Consistency::LocalSync { interval_ms: 10 };
    let check = Check::new(&limit, "a").terms(terms(interval));
    let mut admitted = 0;
    for _ in 0..3_000 {
        admitted += u32::from(decide(&shared, &[check], NOW).await.allowed());
        tokio::task::yield_now().await;
    }
    assert_eq!(admitted, 100);
}

#[tokio::test]
async fn a_store_that_cannot_be_told_is_told_later() {
    let (shared, store) = shared(vec![StandIn::default()]);
    shared.set_live(2);
    let limit = limit("1/hour burst 100");
    let check = Check::new(&limit, "a").terms(terms(HOUR));
    assert!(decide(&shared, &[check], NOW).await.allowed());
    assert!(decide(&shared, &[check.cost(39)], NOW).await.allowed());
    store.fail(true);
    shared.settle().await;
    assert_eq!((shared.stats().sync_failures, shared.stats().sync_units_untold), (1, 39));
    // 60 of 100 are left, which is 30 of the half that is this one's.
    for (cost, allowed) in [(31, false), (30, true), (1, false)] {
        let decision = decide(&shared, &[check.cost(cost)], NOW).await;
        assert_eq!((decision.allowed(), decision.decided_by()), (allowed, DecidedBy::Local));
    }
    store.fail(false);
    shared.settle().await;
    assert_eq!(store.used(&check, NOW), 40);
    assert_eq!(decide(&shared, &[check], NOW).await.decided_by(), DecidedBy::Redis);
    assert_eq!(decide(&shared, &[check], NOW).await.decided_by(), DecidedBy::Memory);
}

#[tokio::test]
async fn what_the_store_may_have_heard_is_not_told_again() {
    let (shared, store) = shared(vec![StandIn::default()]);
    let limit = limit("1/hour burst 100");
    let check = Check::new(&limit, "a").terms(terms(HOUR));
    assert!(decide(&shared, &[check], NOW).await.allowed());
    assert!(decide(&shared, &[check.cost(39)], NOW).await.allowed());
    store.fail_as(Some(ErrorClass::Timeout));
    for _ in 0..5 {
        shared.settle().await;
    }
    store.fail(false);
    shared.settle().await;
    assert_eq!(store.used(&check, NOW), 40, "charged once, although nobody said so");
    let stats = shared.stats();
    let counted = (stats.sync_failures, stats.sync_units_unsure, stats.sync_units_untold);
    assert_eq!(counted, (1, 39, 0));
}

#[tokio::test]
async fn what_passed_by_other_numbers_is_told_before_the_new_ones_count() {
    let (shared, store) = shared(vec![StandIn::default()]);
    // Used is kept: 2,000 instead of 1,000 leave 1,000 more. The stand-in keeps no numbers with states.
    let window = tollgate::Algorithm::FixedWindow;
    let [few, many] = [1_000, 2_000].map(|n| Limit::per_hour(n).algorithm(window).build().unwrap());
    let by = |limit| Check::new(limit, "a").terms(terms(HOUR));
    assert!(decide(&shared, &[by(&few)], NOW).await.allowed());
    assert!(decide(&shared, &[by(&few).cost(500)], NOW).await.allowed());
    assert_eq!(shared.stats().sync_units_untold, 500);
    store.calls();
    let changed = decide(&shared, &[by(&many)], NOW).await;
    assert_eq!((changed.remaining(), changed.decided_by()), (1_498, DecidedBy::Redis));
    assert_eq!((store.calls(), shared.stats().sync_units_untold), (2, 0));
    let after = decide(&shared, &[by(&many)], NOW).await;
    assert_eq!((after.remaining(), after.decided_by()), (1_497, DecidedBy::Memory));
}

#[tokio::test]
async fn refunds_and_resets_reach_what_was_not_told() {
    let (shared, store) = shared(vec![StandIn::default()]);
    let limit = limit("1/hour burst 100");
    let check = Check::new(&limit, "a").terms(terms(HOUR));
    assert!(decide(&shared, &[check], NOW).await.allowed());
    let charged = decide(&shared, &[check.cost(9)], NOW).await;
    let Ok(()) = shared.refund(&check.cost(4), Some(charged.receipt()), NOW.into()).await;
    assert_eq!(shared.stats().sync_units_untold, 5);
    assert_eq!(decide(&shared, &[check.act(Act::Peek)], NOW).await.remaining(), 94);
    shared.settle().await;
    assert_eq!(store.used(&check, NOW), 6);
    let Ok(()) = shared.refund(&check.cost(9), Some(charged.receipt()), NOW.into()).await;
    assert_eq!(store.used(&check, NOW), 0, "what was told is given back at the store");
    assert!(decide(&shared, &[check.cost(50)], NOW).await.allowed());
    let Ok(_) = shared.reset(&check, NOW).await;
    shared.settle().await;
    assert_eq!(store.used(&check, NOW), 0);
    assert_eq!(decide(&shared, &[check.act(Act::Peek)], NOW).await.remaining(), 100);
}

#[tokio::test]
async fn too_many_keys_are_the_stores_and_idle_ones_make_room() {
    let (shared, store) = shared(vec![StandIn::default()]);
    let limit = limit("1/hour burst 100");
    let keys: Vec<String> = (0..20_000).map(|key| format!("key {key}")).collect();
    for key in &keys {
        let check = Check::new(&limit, key).terms(terms(HOUR));
        assert!(decide(&shared, &[check], NOW).await.allowed());
    }
    let stats = shared.stats();
    assert!(stats.sync_keys <= 4_096 && stats.sync_without_room > 0, "{stats:?}");
    assert_eq!(stats.sync_keys + stats.sync_without_room, 20_000);
    store.calls();
    for _ in 0..2 {
        shared.settle().await;
    }
    assert_eq!((shared.stats().sync_keys, store.calls()), (0, 0));
}
