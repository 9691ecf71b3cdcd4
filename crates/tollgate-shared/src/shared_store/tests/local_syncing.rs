//! Decided here, told afterwards.

use super::*;

const HOUR: Consistency = Consistency::LocalSync { interval_ms: 3_600_000 };

#[tokio::test]
async fn after_its_first_question_a_key_is_decided_here() {
    let (shared, store) = shared(vec![StandInStore::default()]);
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
    assert_eq!(shared.stats().sync_units_unsent, 9);
    shared.drain().await;
    assert_eq!((store.calls(), store.used(&check, NOW)), (1, 10));
    assert_eq!(shared.stats().sync_units_unsent, 0);
}

#[tokio::test]
async fn instances_learn_of_each_other_once_an_interval() {
    let store = StandInStore::default();
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
        shared.drain().await;
    }
    for shared in &instances {
        let more = decide(shared, &[check], NOW).await;
        assert!(!more.allowed(), "all is known");
    }
    assert_eq!(store.used(&check, NOW), i64::from(admitted), "every unit was told once");
}

#[tokio::test]
async fn what_passes_while_the_store_is_told_is_not_forgotten() {
    let (shared, _) = shared(vec![StandInStore::default()]);
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
    let (shared, store) = shared(vec![StandInStore::default()]);
    shared.set_live_instances(2);
    let limit = limit("1/hour burst 100");
    let check = Check::new(&limit, "a").terms(terms(HOUR));
    assert!(decide(&shared, &[check], NOW).await.allowed());
    assert!(decide(&shared, &[check.cost(39)], NOW).await.allowed());
    store.fail(true);
    shared.drain().await;
    assert_eq!((shared.stats().sync_failures, shared.stats().sync_units_unsent), (1, 39));
    // 60 of 100 are left, which is 30 of the half that is this one's.
    for (cost, allowed) in [(31, false), (30, true), (1, false)] {
        let decision = decide(&shared, &[check.cost(cost)], NOW).await;
        assert_eq!((decision.allowed(), decision.decided_by()), (allowed, DecidedBy::Local));
    }
    store.fail(false);
    shared.drain().await;
    assert_eq!(store.used(&check, NOW), 40);
    assert_eq!(decide(&shared, &[check], NOW).await.decided_by(), DecidedBy::Redis);
    assert_eq!(decide(&shared, &[check], NOW).await.decided_by(), DecidedBy::Memory);
}

#[tokio::test]
async fn what_the_store_may_have_heard_is_not_told_again() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("1/hour burst 100");
    let check = Check::new(&limit, "a").terms(terms(HOUR));
    assert!(decide(&shared, &[check], NOW).await.allowed());
    assert!(decide(&shared, &[check.cost(39)], NOW).await.allowed());
    store.fail_as(Some(StandInError::Timeout));
    for _ in 0..5 {
        shared.drain().await;
    }
    store.fail(false);
    shared.drain().await;
    assert_eq!(store.used(&check, NOW), 40, "charged once, although nobody said so");
    let stats = shared.stats();
    let counted = (stats.sync_failures, stats.sync_units_uncertain, stats.sync_units_unsent);
    assert_eq!(counted, (1, 39, 0));
}

#[tokio::test]
async fn what_passed_by_other_numbers_is_told_before_the_new_ones_count() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    // Used is kept: 2,000 instead of 1,000 leave 1,000 more. The stand-in keeps no numbers with states.
    let window = tollgate::Algorithm::FixedWindow;
    let [few, many] = [1_000, 2_000].map(|n| Limit::per_hour(n).algorithm(window).build().unwrap());
    let by = |limit| Check::new(limit, "a").terms(terms(HOUR));
    assert!(decide(&shared, &[by(&few)], NOW).await.allowed());
    assert!(decide(&shared, &[by(&few).cost(500)], NOW).await.allowed());
    assert_eq!(shared.stats().sync_units_unsent, 500);
    store.calls();
    let changed = decide(&shared, &[by(&many)], NOW).await;
    assert_eq!((changed.remaining(), changed.decided_by()), (1_498, DecidedBy::Redis));
    assert_eq!((store.calls(), shared.stats().sync_units_unsent), (2, 0));
    let after = decide(&shared, &[by(&many)], NOW).await;
    assert_eq!((after.remaining(), after.decided_by()), (1_497, DecidedBy::Memory));
}

#[tokio::test]
async fn refunds_and_resets_reach_what_was_not_told() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("1/hour burst 100");
    let check = Check::new(&limit, "a").terms(terms(HOUR));
    assert!(decide(&shared, &[check], NOW).await.allowed());
    let charged = decide(&shared, &[check.cost(9)], NOW).await;
    let Ok(()) = shared.refund(&check.cost(4), Some(charged.receipt()), NOW.into()).await;
    assert_eq!(shared.stats().sync_units_unsent, 5);
    assert_eq!(decide(&shared, &[check.act(Act::Peek)], NOW).await.remaining(), 94);
    shared.drain().await;
    assert_eq!(store.used(&check, NOW), 6);
    let Ok(()) = shared.refund(&check.cost(9), Some(charged.receipt()), NOW.into()).await;
    assert_eq!(store.used(&check, NOW), 0, "what was told is given back at the store");
    assert!(decide(&shared, &[check.cost(50)], NOW).await.allowed());
    let Ok(_) = shared.reset(&check, NOW).await;
    shared.drain().await;
    assert_eq!(store.used(&check, NOW), 0);
    assert_eq!(decide(&shared, &[check.act(Act::Peek)], NOW).await.remaining(), 100);
}

#[tokio::test]
async fn too_many_keys_are_the_stores_and_idle_ones_make_room() {
    let (shared, store) = shared(vec![StandInStore::default()]);
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
        shared.drain().await;
    }
    assert_eq!((shared.stats().sync_keys, store.calls()), (0, 0));
}

/// Would catch: a store that is back after it could not be told, and is asked before it is told what passed
/// here meanwhile: it would grant that a second time.
#[tokio::test]
async fn a_store_that_is_back_is_told_before_it_is_asked() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let window = tollgate::Algorithm::FixedWindow;
    let limit = Limit::per_hour(10).algorithm(window).build().unwrap();
    let check = Check::new(&limit, "a").terms(terms(HOUR));
    for _ in 0..10 {
        assert!(decide(&shared, &[check], NOW).await.allowed());
    }
    store.fail(true);
    shared.drain().await;
    assert_eq!(shared.stats().sync_units_unsent, 9);
    store.fail(false);
    assert!(!decide(&shared, &[check], NOW).await.allowed());
    assert_eq!((store.used(&check, NOW), shared.stats().sync_units_unsent), (10, 0));
}

/// The same where checks of one state are asked together, which only a store can judge.
#[tokio::test]
async fn what_passed_here_counts_where_one_state_is_asked_twice() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let window = tollgate::Algorithm::FixedWindow;
    let limit = Limit::per_hour(10).algorithm(window).build().unwrap();
    let check = Check::new(&limit, "a").terms(terms(HOUR));
    for _ in 0..10 {
        assert!(decide(&shared, &[check], NOW).await.allowed());
    }
    assert!(!decide(&shared, &[check, check], NOW).await.allowed());
    assert_eq!((store.used(&check, NOW), shared.stats().sync_units_unsent), (10, 0));
}

/// Would catch: refusals that are told late and make more debt than those that the store counts itself.
#[tokio::test]
async fn debt_from_refusals_that_are_told_late_ends_at_one_capacity() {
    let second = StandInStore::default();
    let (shared, first) = shared(vec![StandInStore::default(), second.clone()]);
    let [here, there, none] = ["here", "there", "none"]
        .map(|name| Limit::per_hour(1).burst(10).name(name).build().unwrap());
    let counted_here = Check::new(&here, "a").terms(terms(HOUR)).count_denied();
    let of_second = Terms { store: 1, ..Terms::default() };
    let counted_there = Check::new(&there, "a").terms(of_second).count_denied();
    let refusing = Check::new(&none, "a").cost(10);
    assert!(decide(&shared, &[refusing], NOW).await.allowed());
    for _ in 0..100 {
        let _ = decide(&shared, &[counted_here], NOW).await;
        assert!(!decide(&shared, &[refusing, counted_there], NOW).await.allowed());
    }
    shared.drain().await;
    until(|| second.used(&counted_there, NOW) >= 20).await;
    shared.drain().await;
    assert_eq!((first.used(&counted_here, NOW), second.used(&counted_there, NOW)), (20, 20));
}

/// Would catch: what is decided here for one store by the clock of another, and told as of an instant that
/// its store has forgotten.
#[tokio::test]
async fn of_several_stores_each_is_told_by_its_own_clock() {
    let second = StandInStore::default();
    second.0.ahead.store(7_200_000_000, Ordering::Relaxed);
    let (shared, first) = shared(vec![StandInStore::default(), second.clone()]);
    let window = tollgate::Algorithm::FixedWindow;
    let [one, two] = ["one", "two"]
        .map(|name| Limit::per_hour(10).algorithm(window).name(name).build().unwrap());
    let of_second = Terms { store: 1, ..terms(HOUR) };
    let checks = [Check::new(&one, "a").terms(terms(HOUR)), Check::new(&two, "a").terms(of_second)];
    for _ in 0..4 {
        assert!(decide(&shared, &checks, NOW).await.allowed());
    }
    // The second refuses what the first has admitted.
    assert!(decide(&shared, &[checks[1].cost(6)], NOW).await.allowed());
    assert!(!decide(&shared, &checks, NOW).await.allowed());
    shared.drain().await;
    assert_eq!(first.used(&checks[0], NOW), 4);
    assert_eq!(second.used(&checks[1], second.clock(NOW)), 10);
}
