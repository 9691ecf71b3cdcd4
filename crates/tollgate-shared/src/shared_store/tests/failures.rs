//! A store that does not answer.

use tollgate::{Clock, ManualClock};

use super::*;

#[tokio::test]
async fn each_policy_answers_in_its_own_way() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    shared.set_live_instances(3);
    let limit = limit("9/minute burst 9");
    let check = |policy| Check::new(&limit, "a").terms(failing(policy));
    store.fail(true);
    let closed = decide(&shared, &[check(OnFailure::Closed)], NOW).await;
    assert_eq!((closed.allowed(), closed.decided_by()), (false, DecidedBy::Closed));
    assert_eq!(closed.refusal(), Some(Refusal::StoreUnavailable));
    assert!(closed.retry_after() <= Wait::from_micros(1_000_000), "{}", closed.retry_after());
    for _ in 0..20 {
        let open = decide(&shared, &[check(OnFailure::Open)], NOW).await;
        assert_eq!((open.allowed(), open.granted()), (true, 0));
        assert_eq!(open.decided_by(), DecidedBy::Open);
    }
    // A third of 9.
    for allowed in [true, true, true, false] {
        let local = decide(&shared, &[check(OnFailure::Local)], NOW).await;
        assert_eq!((local.allowed(), local.decided_by()), (allowed, DecidedBy::Local));
    }
    let stats = shared.stats();
    let counted = (stats.degraded_closed, stats.degraded_open, stats.degraded_local);
    assert_eq!(counted, (1, 20, 4));
    store.fail(false);
    let back = decide(&shared, &[check(OnFailure::Local)], NOW).await;
    assert_eq!((back.allowed(), back.decided_by()), (true, DecidedBy::Redis));
}

#[tokio::test]
async fn in_one_request_closed_beats_local_beats_open() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    store.fail(true);
    let limits = ["a", "b", "c"].map(|name| Limit::per_minute(2).name(name).build().unwrap());
    let [closed, local, open] = [OnFailure::Closed, OnFailure::Local, OnFailure::Open];
    let check = |index: usize, policy| Check::new(&limits[index], "k").terms(failing(policy));
    let all = [check(0, open), check(1, local), check(2, closed)];
    for _ in 0..5 {
        let decision = decide(&shared, &all, NOW).await;
        assert_eq!((decision.allowed(), decision.decided_by()), (false, DecidedBy::Closed));
        assert!(decision.violates(2) && !decision.violates(0) && !decision.violates(1));
    }
    for allowed in [true, true, false] {
        let decision = decide(&shared, &all[..2], NOW).await;
        assert_eq!((decision.allowed(), decision.decided_by()), (allowed, DecidedBy::Local));
    }
    let shadow = [check(0, open), check(2, closed).shadow()];
    assert!(decide(&shared, &shadow, NOW).await.allowed(), "what only watches refuses nobody");
}

#[tokio::test]
async fn the_table_goes_on_where_the_store_was() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    // An hour ahead: nobody's clock is right.
    store.0.ahead.store(3_600_000_000, Ordering::Relaxed);
    for algorithm in tollgate::Algorithm::ALL {
        let limit = Limit::per_minute(10).algorithm(algorithm).build().unwrap();
        let check = Check::new(&limit, "a");
        store.fail(false);
        shared.set_live_instances(2);
        assert!(decide(&shared, &[check.cost(6)], NOW).await.allowed());
        store.fail(true);
        // 4 of 10 are left: of a half that is 2.
        for allowed in [true, true, false] {
            let decision = decide(&shared, &[check], NOW).await;
            assert_eq!(decision.allowed(), allowed, "{algorithm}");
            assert_eq!(decision.decided_by(), DecidedBy::Local, "{algorithm}");
        }
    }
}

#[tokio::test]
async fn what_was_charged_here_is_given_back_here() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("4/minute burst 4");
    let check = Check::new(&limit, "a");
    store.fail(true);
    let charged = decide(&shared, &[check.cost(4)], NOW).await;
    store.fail(false);
    let before = decide(&shared, &[check.cost(3)], NOW).await;
    assert!(charged.allowed() && before.allowed());
    let Ok(()) = shared.refund(&check.cost(4), Some(charged.receipt()), NOW.into()).await;
    assert_eq!(store.used(&check, NOW), 3, "the store was never charged for it");
    let Ok(()) = shared.refund(&check.cost(3), Some(before.receipt()), NOW.into()).await;
    assert_eq!(store.used(&check, NOW), 0);
    store.fail_as(Some(StandInError::Timeout));
    let Ok(()) = shared.refund(&check, Some(before.receipt()), NOW.into()).await;
    assert_eq!(
        (shared.stats().refunds_lost, shared.stats().pending_changes),
        (1, 0),
        "perhaps it was done"
    );
}

#[tokio::test]
async fn what_the_store_certainly_did_not_hear_is_told_when_it_is_back() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("100/hour burst 100");
    let check = |key: &'static str| Check::new(&limit, key);
    let reserved = [check("a"), check("b"), check("c")];
    let mut receipts = Vec::new();
    for check in &reserved {
        receipts.push(decide(&shared, &[check.cost(40)], NOW).await.receipt());
    }
    store.fail_as(Some(StandInError::BreakerOpen));
    // Two cost less than was reserved, one more.
    for (check, receipt) in reserved.iter().zip(receipts).take(2) {
        let Ok(()) = shared.refund(&check.cost(30), Some(receipt), NOW.into()).await;
    }
    let forced = decide(&shared, &[check("c").cost(20).act(Act::Force)], NOW).await;
    assert!(forced.allowed());
    assert_eq!(shared.stats().pending_changes, 3);
    store.fail(false);
    until(|| shared.stats().pending_changes == 0).await;
    until(|| reserved.iter().all(|check| store.used(check, NOW) != 40)).await;
    let used: Vec<_> = reserved.iter().map(|check| store.used(check, NOW)).collect();
    assert_eq!(used, [10, 10, 60]);
    let stats = shared.stats();
    assert_eq!((stats.refunds_lost, stats.charges_lost), (0, 0));
}

#[tokio::test]
async fn what_a_limit_has_forgotten_by_itself_is_not_given_back() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("1000/second burst 10");
    let check = Check::new(&limit, "a").cost(10);
    let charged = decide(&shared, &[check], NOW).await;
    store.fail_as(Some(StandInError::Connect));
    let Ok(()) = shared.refund(&check, Some(charged.receipt()), at(1_000_000).into()).await;
    store.fail(false);
    until(|| shared.stats().pending_changes == 0).await;
    assert_eq!(shared.stats().refunds_lost, 0);
}

#[tokio::test]
async fn a_grant_counts_here_while_the_store_does_not_answer() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    shared.set_live_instances(2);
    let limit = limit("10/hour burst 10");
    let check = Check::new(&limit, "a");
    store.fail(true);
    assert!(decide(&shared, &[check.cost(5)], NOW).await.allowed());
    assert!(!decide(&shared, &[check], NOW).await.allowed());
    let Ok(()) = shared.refund(&check.cost(3), None, NOW.into()).await;
    let Ok(left) = shared.balance(&check, NOW).await;
    assert_eq!(left, 3, "of the share, as decisions are");
    assert!(decide(&shared, &[check.cost(3)], NOW).await.allowed());
    let Ok(left) = shared.balance(&check, NOW).await;
    assert_eq!(left, 0);
}

#[tokio::test]
async fn what_is_given_back_to_the_store_is_given_back_in_its_copy() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("10/hour burst 10");
    let check = Check::new(&limit, "a").cost(10);
    let charged = decide(&shared, &[check], NOW).await;
    let Ok(()) = shared.refund(&check, Some(charged.receipt()), NOW.into()).await;
    store.fail(true);
    let here = decide(&shared, &[check], NOW).await;
    assert_eq!((here.allowed(), here.decided_by()), (true, DecidedBy::Local));
}

#[tokio::test]
async fn who_starts_without_the_store_has_a_share_of_those_there_are_at_least() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    store.fail(true);
    shared.set_min_instances(3);
    let limit = limit("9/minute burst 9");
    for (live, instances, cost) in [(1, 3, 3), (0, 3, 3), (9, 9, 1)] {
        shared.set_live_instances(live);
        assert_eq!(shared.stats().instances, instances);
        let key = format!("heard of {live}");
        let check = Check::new(&limit, &key);
        assert!(decide(&shared, &[check.cost(cost)], NOW).await.allowed());
        assert!(!decide(&shared, &[check], NOW).await.allowed());
    }
}

#[tokio::test]
async fn a_cost_that_only_the_whole_limit_holds_is_not_refused_for_ever() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    shared.set_live_instances(3);
    store.fail(true);
    let limit = limit("9/minute burst 9");
    // cost, refused for ever
    for (cost, never) in [(9, false), (10, true)] {
        let decision = decide(&shared, &[Check::new(&limit, "a").cost(cost)], NOW).await;
        assert_eq!((decision.allowed(), decision.retry_after().is_never()), (false, never));
    }
}

#[tokio::test]
async fn mistakes_are_answered_as_in_memory() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("4/minute burst 4");
    let refusal = |decision: Decision| decision.refusal();
    assert_eq!(refusal(decide(&shared, &[], NOW).await), None);
    let empty = [Check::new(&limit, "")];
    assert_eq!(refusal(decide(&shared, &empty, NOW).await), Some(Refusal::EmptyKey));
    let many = [Check::new(&limit, "a"); 17];
    let mut outcomes = [Outcome::default(); 17];
    let Ok(decision) = shared.decide_each(&many, NOW.into(), &mut outcomes).await;
    assert_eq!(refusal(decision), Some(Refusal::TooManyLimits));
    let Ok(blocked) = shared.block("a".into(), at(5_000_000), NOW).await;
    assert!(blocked && shared.any_block(NOW));
    let decision = decide(&shared, &[Check::new(&limit, "a")], at(1)).await;
    assert_eq!(decision.retry_after(), Wait::from_micros(4_999_999));
    assert_eq!(refusal(decision), Some(Refusal::Blocked));
    assert_eq!(store.used(&Check::new(&limit, "a"), NOW), 0);
    let Ok(lifted) = shared.unblock("a".into(), NOW).await;
    assert!(lifted && decide(&shared, &[Check::new(&limit, "a")], NOW).await.allowed());
}

#[tokio::test]
async fn a_block_holds_without_the_store_and_leaves_others_alone() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("1/hour burst 1");
    let check = |key: &'static str| Check::new(&limit, key);
    for _ in 0..2 {
        let _ = decide(&shared, &[check("refused")], NOW).await;
    }
    store.fail(true);
    let Ok(blocked) = shared.block("blocked".into(), at(5_000_000), NOW).await;
    assert!(blocked, "the store does not answer: it is kept here");
    let decision = decide(&shared, &[check("blocked").terms(failing(OnFailure::Open))], NOW).await;
    assert_eq!(decision.refusal(), Some(Refusal::Blocked));
    let forced = decide(&shared, &[check("blocked").act(Act::Force)], NOW).await;
    assert!(forced.allowed(), "what has happened cannot be blocked");
    let cached = decide(&shared, &[check("refused")], NOW).await;
    assert_eq!(cached.decided_by(), DecidedBy::RefusalCache, "others are answered as before");
}

/// Waiting for a store that does not answer takes time: the table of this process is asked at the
/// instant at which that is known. Would catch: a state that is set back to before the wait, and that
/// the next caller finds refilled.
#[tokio::test]
async fn after_a_wait_for_the_store_the_clock_is_read_again() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    store.fail(true);
    let limit = limit("10/second burst 10");
    let (asked, clock) = (NOW, ManualClock::new(at(5_000_000)));
    for (several, key) in [(false, "one"), (true, "several")] {
        let check = Check::new(&limit, key);
        let beside = Limit::per_hour(1_000).name("beside").build().unwrap();
        let both = [check, Check::new(&beside, key)];
        let checks = if several { &both[..] } else { &both[..1] };
        assert!(decide(&shared, &[check.cost(10)], clock.now()).await.allowed());
        let mut outcomes = [Outcome::default(); 2];
        let read = Now::read(asked, &clock);
        let Ok(late) = shared.decide_each(checks, read, &mut outcomes).await;
        assert!(!late.allowed(), "{key}");
        assert_eq!(late.retry_after(), Wait::from_micros(100_000), "{key}");
        let next = decide(&shared, &[check], clock.now()).await;
        assert!(!next.allowed(), "{key}: refilled");
    }
}

/// Would catch: of several charges that have happened, those of a store that was away are forgotten.
#[tokio::test]
async fn what_was_forced_on_several_limits_is_told_when_the_store_is_back() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limits = ["a", "b"].map(|name| Limit::per_hour(100).name(name).build().unwrap());
    let checks = limits.each_ref().map(|limit| Check::new(limit, "k").cost(7).act(Act::Force));
    store.fail(true);
    assert!(decide(&shared, &checks, NOW).await.allowed());
    store.fail(false);
    until(|| shared.stats().pending_changes == 0).await;
    until(|| checks.iter().all(|check| store.used(check, NOW) == 7)).await;
}
