//! A refused hot key never reaches the store; a store that is gone is noticed, and noticed again.

use tollgate::{OnFailure, Refusal};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_hot_key_does_not_reach_the_store() {
    let server = TestRedis::start();
    let all = instances(&server, 1).await;
    let limit = Limit::per_hour(10).burst(10).build().unwrap();
    let check = Check::new(&limit, "hot");
    for _ in 0..10 {
        assert!(decide(&all[0], &[check]).await.allowed());
    }
    let before = calls_of(&all[0]);
    let (mut refused, ends) = (0_u64, now().as_u64() + 1_500_000);
    while now().as_u64() < ends {
        let decision = decide(&all[0], &[check]).await;
        assert_eq!(decision.refusal(), Some(Refusal::OverLimit));
        refused += 1;
    }
    let calls = calls_of(&all[0]) - before;
    assert!(calls <= 4, "asked again once a second: {calls} calls for {refused} refusals");
    assert!(refused > 10_000, "{refused}");
    assert!(all[0].stats().refusals_cached >= refused - calls);
}

/// Another instance gives units back: known within a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_give_back_is_known_within_a_second() {
    let server = TestRedis::start();
    let all = instances(&server, 2).await;
    let limit = Limit::per_day(5).burst(5).build().unwrap();
    let check = Check::new(&limit, "hot");
    assert!(decide(&all[0], &[check.cost(5)]).await.allowed());
    assert!(!decide(&all[1], &[check]).await.allowed());
    let Ok(()) = all[0].refund(&check.cost(5), None, now().into()).await;
    let back = now().as_u64();
    loop {
        let asked = now().as_u64();
        let decision = decide(&all[1], &[check]).await;
        if decision.allowed() {
            break;
        }
        assert_eq!(decision.decided_by(), DecidedBy::RefusalCache);
        assert!(asked < back + 1_000_000, "still refused after a second");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_dies_and_returns_is_answered_for_meanwhile() {
    let mut server = TestRedis::start();
    let all = instances(&server, 1).await;
    all[0].set_live_instances(2);
    let limit = Limit::per_day(100).burst(100).build().unwrap();
    let policy = |on_failure| Terms { on_failure, ..Terms::default() };
    let check = |on_failure| Check::new(&limit, "a").terms(policy(on_failure));
    let local = check(OnFailure::Local);
    assert!(decide(&all[0], &[local.cost(60)]).await.allowed());
    server.kill();
    let mut by = DecidedBy::Redis;
    while by == DecidedBy::Redis {
        by = decide(&all[0], &[local.cost(20)]).await.decided_by();
    }
    // 40 of 100 were left, which is 20 of 50.
    assert_eq!(by, DecidedBy::Local);
    let more = decide(&all[0], &[local]).await;
    assert_eq!((more.allowed(), more.decided_by()), (false, DecidedBy::Local));
    let open = decide(&all[0], &[check(OnFailure::Open)]).await;
    assert_eq!((open.allowed(), open.decided_by()), (true, DecidedBy::Open));
    let closed = decide(&all[0], &[check(OnFailure::Closed)]).await;
    assert_eq!((closed.allowed(), closed.decided_by()), (false, DecidedBy::Closed));
    server.restart();
    let deadline = now().as_u64() + 2_000_000;
    while decide(&all[0], &[local]).await.decided_by() != DecidedBy::Redis {
        assert!(now().as_u64() < deadline, "not back after 2 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Would catch: refunds that count as lost although they were never sent, because the connection had ended
/// soon after it was made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refunds_after_a_connection_that_ended_young_are_made_when_the_store_is_back() {
    use testkit::fault_proxy::{FaultMode, FaultProxy};
    let server = TestRedis::start();
    let proxy = FaultProxy::start(server.address());
    let all = instances_at(&proxy.url(), 1).await;
    let limit = Limit::per_day(100).burst(100).build().unwrap();
    let check = Check::new(&limit, "a");
    let mut receipts = Vec::new();
    for _ in 0..100 {
        receipts.push(decide(&all[0], &[check]).await.receipt());
    }
    // A young connection, and no other after it.
    for mode in [FaultMode::Refuse, FaultMode::Pass, FaultMode::Refuse] {
        proxy.set_mode(mode);
        let up = mode == FaultMode::Pass;
        let peek = [check.act(tollgate::Act::Peek)];
        let deadline = now().as_u64() + 10_000_000;
        while (decide(&all[0], &peek).await.decided_by() == DecidedBy::Redis) != up {
            assert!(now().as_u64() < deadline, "{mode:?} is not noticed");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    for receipt in receipts {
        let Ok(()) = all[0].refund(&check, Some(receipt), now().into()).await;
    }
    // One that is being told at this moment does not wait.
    let stats = all[0].stats();
    assert!(stats.refunds_lost == 0 && stats.pending_changes > 0, "{stats:?}");
    proxy.set_mode(FaultMode::Pass);
    let (other, deadline) = (instances(&server, 1).await, now().as_u64() + 10_000_000);
    loop {
        let Ok(left) = other[0].balance(&check, now()).await;
        if left == 100 {
            break;
        }
        assert!(now().as_u64() < deadline, "{left} left: {:?}", all[0].stats());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(all[0].stats().refunds_lost, 0);
}
