//! `SharedLimiter` beside `Limiter`: the same operations, the same answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use testkit::redis::TestRedis;
use tollgate::{
    Check, DecidedBy, Decision, Key, Limit, Limiter, ManualClock, MemoryStore, Micros, Observer,
    Outcome, Store, Wait,
};
use tollgate_redis::{RedisOptions, RedisStore, SharedLimiter, SharedStore, StoreUrl, TimeSource};

use crate::shared;

const NOW: Micros = Micros::from_secs(1_795_000_000);

/// The answer without the store that gave it.
fn answer(decision: &Decision) -> (bool, u64, Wait, Wait) {
    (decision.allowed(), decision.remaining(), decision.retry_after(), decision.reset_after())
}

async fn shared_at(server: &TestRedis) -> SharedLimiter<RedisStore, ManualClock> {
    let options = RedisOptions { time: TimeSource::Caller, ..RedisOptions::default() };
    let store = shared::store_at(server, options).await;
    let store = SharedStore::start(vec![store], 10_000, TimeSource::Caller);
    SharedLimiter::new(store, ManualClock::new(NOW))
}

#[tokio::test]
async fn every_operation_answers_as_in_memory() {
    let server = TestRedis::start();
    let there = shared_at(&server).await;
    let here = Limiter::new(MemoryStore::new(10_000), ManualClock::new(NOW));
    let limit = Limit::per_minute(60).burst(20).build().unwrap();
    let day = Limit::per_day(30).name("day").build().unwrap();
    let both = [Check::new(&limit, "a").cost(2), Check::new(&day, "a").cost(3)];
    for round in 0..12 {
        assert_eq!(answer(&there.check(&limit, "a").await), answer(&here.check(&limit, "a")));
        let taken = (there.take(&limit, "a", 3).await, here.take(&limit, "a", 3));
        assert_eq!(answer(&taken.0), answer(&taken.1), "round {round}");
        assert_eq!(
            answer(&there.peek(&limit, "a", 5).await),
            answer(&here.peek(&limit, "a", 5)),
            "round {round}"
        );
        if taken.1.allowed() {
            there.refund(&limit, "a", taken.0.receipt(), 2).await;
            here.refund(&limit, "a", taken.1.receipt(), 2);
        }
        assert_eq!(answer(&there.decide(&both).await), answer(&here.decide(&both)));
        let (mut outcomes, mut wanted) = ([Outcome::default(); 2], [Outcome::default(); 2]);
        let _ = there.now().decide_each(&both, &mut outcomes).await;
        let _ = here.now().decide_each(&both, &mut wanted);
        assert_eq!(outcomes.map(|one| one.charged), wanted.map(|one| one.charged));
        let (mut batch, mut expected) = (Vec::new(), Vec::new());
        there.decide_batch(&both, &mut batch).await;
        here.decide_batch(&both, &mut expected);
        let answers = |all: &[Decision]| all.iter().map(answer).collect::<Vec<_>>();
        assert_eq!(answers(&batch), answers(&expected), "round {round}");
        let _ = there.force(&limit, "a", 2).await;
        let _ = here.force(&limit, "a", 2);
        there.grant(&limit, "a", 1).await;
        here.grant(&limit, "a", 1);
        assert_eq!(
            answer(&there.take_up_to(&day, "b", 4).await),
            answer(&here.take_up_to(&day, "b", 4))
        );
        assert_eq!(there.balance(&limit, "a").await, here.balance(&limit, "a"), "round {round}");
        if round == 7 {
            assert!(there.reset(&limit, "a").await && here.reset(&limit, "a"));
        }
        there.clock().advance(Duration::from_secs(5));
        here.clock().advance(Duration::from_secs(5));
    }
}

#[tokio::test]
async fn a_permit_is_settled_once() {
    let server = TestRedis::start();
    let limiter = shared_at(&server).await;
    let limit = Limit::per_day(100).build().unwrap();
    let minute = Duration::from_secs(60);
    // estimate, true cost, units left then
    for (estimate, actual, left) in [(30, 10, 90), (10, 10, 80), (10, 40, 40)] {
        let permit = limiter.reserve(&limit, "a", estimate, minute).await.unwrap();
        assert!(permit.decision().allowed());
        permit.commit(actual).await;
        assert_eq!(limiter.balance(&limit, "a").await, left);
    }
    assert!(limiter.reserve(&limit, "a", 41, minute).await.is_err());
    drop(limiter.reserve(&limit, "a", 40, minute).await.unwrap());
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while limiter.balance(&limit, "a").await < 40 {
        assert!(tokio::time::Instant::now() < deadline, "a dropped permit is given back");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // After its deadline the charge stands.
    let permit = limiter.reserve(&limit, "a", 40, minute).await.unwrap();
    permit.commit_at(0, NOW.after(Wait::from_micros(60_000_000))).await;
    assert_eq!(limiter.balance(&limit, "a").await, 0);
}

/// Would catch: a batch that fills the queue of a node, which opens its breaker.
#[tokio::test]
async fn a_large_batch_is_decided_by_the_store() {
    let server = TestRedis::start();
    let store = shared::store_at(&server, RedisOptions::default()).await;
    let limit = Limit::per_day(30_000).build().unwrap();
    let checks = vec![Check::new(&limit, "a"); 10_000];
    let mut decisions = Vec::new();
    store.decide_batch(&checks, NOW.into(), &mut decisions).await.unwrap();
    assert_eq!(decisions.len(), 10_000);
    let limiter = SharedLimiter::start(store, 1_000);
    limiter.decide_batch(&checks, &mut decisions).await;
    assert!(decisions.iter().all(|one| one.decided_by() == DecidedBy::Redis));
    assert_eq!(limiter.store().stats().degraded_local, 0);
}

#[tokio::test]
async fn blocks_hold_and_end() {
    let server = TestRedis::start();
    let limiter = shared_at(&server).await;
    let limit = Limit::per_day(100).build().unwrap();
    assert!(!limiter.now().any_blocked());
    assert!(limiter.block("a", Duration::from_secs(60)).await);
    assert!(!limiter.check(&limit, "a").await.allowed());
    assert_eq!(limiter.blocked_for("a"), Some(Wait::from_micros(60_000_000)));
    assert!(limiter.unblock("a").await);
    assert!(limiter.check(&limit, "a").await.allowed());
    assert_eq!(limiter.blocked_for("a"), None);
}

#[tokio::test]
async fn the_fallback_decides_while_there_is_no_server() {
    struct CountingObserver(Arc<AtomicU64>);
    impl Observer for CountingObserver {
        fn decided(&self, _: &[Check<'_>], _: &Decision) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    // Nothing listens on this port.
    let url = StoreUrl::parse("redis://127.0.0.1:1").unwrap();
    let store = RedisStore::at(&url, &RedisOptions::default());
    let count = Arc::new(AtomicU64::new(0));
    let limiter =
        SharedLimiter::start(store, 1_000).observed_by(CountingObserver(Arc::clone(&count)));
    let limit = Limit::per_hour(2).build().unwrap();
    for allowed in [true, true, false] {
        let decision = limiter.check(&limit, Key::from("a")).await;
        assert_eq!((decision.allowed(), decision.decided_by()), (allowed, DecidedBy::Local));
    }
    assert_eq!(count.load(Ordering::Relaxed), 3);
    limiter.drain().await;
}
