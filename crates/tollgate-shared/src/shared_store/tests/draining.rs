//! The end of a program: `drain`, and permits that are dropped before it.

use tollgate::{Clock, ManualClock};

use super::*;
use crate::SharedLimiter;

const MINUTE: Duration = Duration::from_secs(60);

/// Would catch: a refund that is lost because nothing waits for the task that sends it.
#[tokio::test]
async fn drain_waits_for_the_refund_of_a_dropped_permit() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limiter = SharedLimiter::new(shared.clone(), ManualClock::new(NOW));
    let limit = limit("1/hour burst 10");
    let check = Check::new(&limit, "a");
    let permit = limiter.reserve(&limit, "a", 7, MINUTE).await.unwrap();
    assert_eq!((store.used(&check, NOW), permit.decision().remaining()), (7, 3));
    drop(permit);
    assert_eq!(shared.local().balance(&limit, check.key(), NOW), 10, "the local copy, at once");
    limiter.drain().await;
    assert_eq!(store.used(&check, NOW), 0);
}

/// Would catch: a drain that returns while a refund of a caller that has gone is on its way.
#[tokio::test]
async fn drain_waits_for_refunds_on_their_way() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("1/hour burst 10");
    let check = Check::new(&limit, "a").cost(7);
    let charged = decide(&shared, &[check], NOW).await;
    begin_and_go(&store, shared.refund(&check, Some(charged.receipt()), NOW.into())).await;
    shared.drain().await;
    assert_eq!(store.used(&check, NOW), 0);
}

#[tokio::test]
async fn a_permit_of_no_units_sends_no_refund() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limiter = SharedLimiter::new(shared, ManualClock::new(NOW));
    let limit = limit("1/hour burst 10");
    let permit = limiter.reserve(&limit, "a", 0, MINUTE).await.unwrap();
    store.calls();
    drop(permit);
    limiter.drain().await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(store.calls(), 0);
}

#[tokio::test]
async fn a_settled_permit_does_not_read_the_clock_when_it_is_dropped() {
    struct CountingClock(AtomicU64);
    impl Clock for CountingClock {
        fn now(&self) -> Micros {
            self.0.fetch_add(1, Ordering::Relaxed);
            NOW
        }
    }
    let (shared, _) = shared(vec![StandInStore::default()]);
    let limiter = SharedLimiter::new(shared, CountingClock(AtomicU64::new(0)));
    let limit = limit("1/hour burst 10");
    let permit = limiter.reserve(&limit, "a", 5, MINUTE).await.unwrap();
    limiter.clock().0.store(0, Ordering::Relaxed);
    permit.commit(5).await;
    assert_eq!(limiter.clock().0.load(Ordering::Relaxed), 1);
}

/// Would catch: a drain that sends one round of changes and leaves the rest.
#[tokio::test]
async fn drain_sends_all_pending_changes() {
    let (shared, store) = standing();
    let limit = limit("1/hour burst 10000");
    let forced = Check::new(&limit, "a").act(Act::Force);
    store.fail(true);
    for _ in 0..2_000 {
        assert!(decide(&shared, &[forced], NOW).await.allowed());
    }
    assert_eq!(shared.stats().pending_changes, 2_000);
    store.fail(false);
    shared.drain().await;
    assert_eq!((shared.stats().pending_changes, store.used(&forced, NOW)), (0, 2_000));
}

/// Would catch: an instant of one caller's choosing as the time of all others.
#[tokio::test]
async fn a_chosen_instant_does_not_move_the_clock_of_others() {
    let (shared, _) = shared(vec![StandInStore::default()]);
    let limiter = SharedLimiter::new(shared.clone(), ManualClock::new(NOW));
    let (limit, day) = (limit("10/hour"), 86_400_000_000);
    assert!(limiter.check(&limit, "a").await.allowed());
    assert!(limiter.at(at(day)).check(&limit, "a").await.allowed());
    let permit = limiter.reserve(&limit, "a", 2, 2 * Duration::from_secs(86_400)).await.unwrap();
    permit.commit_at(5, at(day)).await;
    assert!(shared.inner.caller_clock.now() < at(day), "{:?}", shared.inner.caller_clock);
    assert_eq!(limiter.balance(&limit, "a").await, 3);
}
