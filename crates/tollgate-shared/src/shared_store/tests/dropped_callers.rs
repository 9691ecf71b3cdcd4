//! Whoever asks and does not wait for the answer, and what is told late.

use super::*;
use crate::shared_store::DETACHED_CHECKS_MAX;
use crate::shared_store::decision_call::ABANDONED_CALLS_MAX;
use tollgate::store::{DetachedCheck, OwnedCheck};

const HOUR: Consistency = Consistency::LocalSync { interval_ms: 3_600_000 };

fn fixed(name: &str, units: u64) -> Limit {
    let builder = Limit::per_second(units).algorithm(tollgate::Algorithm::FixedWindow);
    builder.name(name).build().unwrap()
}

/// Would catch: charges of this process that stay when the store's answer is not waited for.
#[tokio::test]
async fn whoever_goes_before_the_store_answers_leaves_nothing_charged_here() {
    let second = StandInStore::default();
    let (shared, first) = shared(vec![StandInStore::default(), second.clone()]);
    let limits = [("here", 100), ("strict", 100), ("far", 100), ("counting", 100)];
    let limits = limits.map(|(name, n)| Limit::per_hour(n).burst(n).name(name).build().unwrap());
    let synced = Check::new(&limits[0], "a").terms(terms(HOUR)).cost(5);
    let strict = Check::new(&limits[1], "a").cost(5);
    let far = Check::new(&limits[2], "a").terms(Terms { store: 1, ..Terms::default() }).cost(5);
    let counting = Check::new(&limits[3], "a").terms(terms(HOUR)).count_denied().cost(5);
    for check in [synced, counting] {
        assert!(decide(&shared, &[check], NOW).await.allowed());
    }
    let checks = [synced, counting, strict, far];
    begin_and_go(&first, decide(&shared, &checks, NOW)).await;
    assert_eq!(shared.stats().sync_units_unsent, 5, "only where refused requests count");
    let left = |check: &Check<'_>| shared.local().balance(check.limit(), check.key(), NOW);
    assert_eq!((left(&synced), left(&counting)), (95, 90));
    // The first store has answered, the second has not.
    begin_and_go(&second, decide(&shared, &checks, NOW)).await;
    shared.drain().await;
    assert_eq!((first.used(&strict, NOW), second.used(&far, NOW), left(&synced)), (0, 0, 95));
}

/// Would catch: units of an answer that is never read, which nobody was served for.
#[tokio::test]
async fn what_the_store_charges_is_given_back_whoever_goes() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let queue = Limit::per_hour(9).burst(9).algorithm(tollgate::Algorithm::LeakyBucket).queue();
    let limits = [limit("1/hour burst 10"), fixed("second", 10), queue.build().unwrap()];
    let [bucket, window, queue] = limits.each_ref().map(|limit| Check::new(limit, "a").cost(7));
    let counting = Check::new(&limits[1], "counting").count_denied().cost(7);
    let forced = Check::new(&limits[1], "forced").act(Act::Force).cost(7);
    let requests: [&[Check<'_>]; 6] = [
        &[bucket],
        &[window],
        &[queue],
        &[bucket, window, queue.shadow()],
        &[counting, bucket],
        &[forced, bucket],
    ];
    for checks in requests {
        begin_and_go(&store, decide(&shared, checks, NOW)).await;
        shared.drain().await;
        let used = |check: &Check<'_>| store.used(check, NOW);
        assert_eq!((used(&bucket), used(&window), used(&queue)), (0, 0, 0), "{checks:?}");
    }
    assert_eq!(store.used(&counting, NOW), 7, "every judged request counts");
    assert_eq!(store.used(&forced, NOW), 7, "the work has happened");
    // A refused one charges nothing, and so gives nothing back.
    assert!(decide(&shared, &[bucket], NOW).await.allowed());
    begin_and_go(&store, decide(&shared, &[bucket, window], NOW)).await;
    shared.drain().await;
    assert_eq!((store.used(&bucket, NOW), store.used(&window, NOW)), (7, 0));
}

/// Would catch: memory that callers who go can make this instance hold, as many as there are.
#[tokio::test]
async fn calls_without_a_caller_are_bounded() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("1/hour burst 100000");
    let check = Check::new(&limit, "a");
    store.0.holds_answers.store(true, Ordering::Release);
    for _ in 0..ABANDONED_CALLS_MAX + 10 {
        let mut asking = std::pin::pin!(decide(&shared, slice::from_ref(&check), NOW));
        let polled = std::future::poll_fn(|context| {
            std::task::Poll::Ready(asking.as_mut().poll(context).is_pending())
        });
        assert!(polled.await, "the store does not answer yet");
    }
    assert_eq!(shared.stats().refunds_lost, 10, "nobody reads these answers");
    store.0.holds_answers.store(false, Ordering::Release);
    until(|| store.used(&check, NOW) == 10).await;
}

/// Would catch: counts behind an answer that keep its caller waiting, or that its caller takes along.
#[tokio::test]
async fn detached_checks_are_decided_in_turn_without_a_caller_and_are_bounded() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("1/hour burst 100000");
    let check = Check::new(&limit, "a");
    let (first, second) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let detached = || {
        let (first, second) = (Arc::clone(&first), Arc::clone(&second));
        let next = OwnedCheck::of(&check.cost(10));
        DetachedCheck::new(OwnedCheck::of(&check), move |decided| {
            first.fetch_add(u64::from(decided.allowed()), Ordering::Relaxed);
            Some(DetachedCheck::new(next, move |decided| {
                second.fetch_add(u64::from(decided.allowed()), Ordering::Relaxed);
                None
            }))
        })
    };
    store.0.holds_answers.store(true, Ordering::Release);
    let begun =
        (0..DETACHED_CHECKS_MAX + 5).filter(|_| shared.decide_detached(detached(), NOW.into()));
    assert_eq!(begun.count(), DETACHED_CHECKS_MAX);
    store.0.holds_answers.store(false, Ordering::Release);
    let all = DETACHED_CHECKS_MAX as u64;
    until(|| second.load(Ordering::Relaxed) == all).await;
    assert_eq!(first.load(Ordering::Relaxed), all);
    assert_eq!(store.used(&check, NOW), 11 * all.cast_signed());
    let memory = MemoryStore::new(100);
    assert!(memory.decide_detached(detached(), NOW.into()));
    assert_eq!(memory.balance(&limit, check.key(), NOW), 100_000 - 11);
}

/// Would catch: units that are taken out of their place to be told, and lost with whoever was to wait.
#[tokio::test]
async fn what_passed_by_other_numbers_is_told_whoever_goes() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let window = tollgate::Algorithm::FixedWindow;
    let [few, many] = [1_000, 2_000].map(|n| Limit::per_hour(n).algorithm(window).build().unwrap());
    let by = |limit| Check::new(limit, "a").terms(terms(HOUR));
    assert!(decide(&shared, &[by(&few)], NOW).await.allowed());
    assert!(decide(&shared, &[by(&few).cost(500)], NOW).await.allowed());
    begin_and_go(&store, decide(&shared, &[by(&many)], NOW)).await;
    until(|| store.used(&by(&few), NOW) == 501).await;
}

/// Would catch: refunds that are lost when the client hangs up.
#[tokio::test]
async fn a_refund_is_made_whoever_goes() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("1/hour burst 10");
    let check = Check::new(&limit, "a").cost(7);
    let charged = decide(&shared, &[check], NOW).await;
    begin_and_go(&store, shared.refund(&check, Some(charged.receipt()), NOW.into())).await;
    until(|| store.used(&check, NOW) == 0).await;
}

/// Would catch: a commit whose client goes, and whose true cost is never charged.
#[tokio::test]
async fn what_is_forced_is_charged_whoever_goes() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = fixed("forced", 10);
    let check = Check::new(&limit, "a").cost(7).act(Act::Force);
    begin_and_go(&store, decide(&shared, &[check], NOW)).await;
    until(|| store.used(&check, NOW) == 7).await;
}

/// Would catch: a timeout for each of the questions that one operation is made of.
#[tokio::test]
async fn the_questions_of_one_operation_have_one_deadline() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limits = ["a", "b", "c", "d"].map(|name| fixed(name, 10));
    let now = Now::at(NOW).begin_operation();
    for limit in &limits {
        let Ok(()) = shared.refund(&Check::new(limit, "k"), None, now).await;
        tokio::task::yield_now().await;
    }
    let checks = limits.each_ref().map(|limit| Check::new(limit, "k").count_denied());
    for asked in [&checks[..1], &checks] {
        let Ok(_) = shared.decide_each(asked, now, &mut [Outcome::default(); 4]).await;
    }
    let deadlines = std::mem::take(&mut *store.0.deadlines.lock().unwrap());
    assert_eq!(deadlines.len(), 6);
    assert!(deadlines.iter().all(|deadline| *deadline == deadlines[0]), "{deadlines:?}");
}

/// Would catch: what passed in one window being charged to the next, told late.
#[tokio::test]
async fn what_is_told_late_is_charged_to_no_later_window() {
    use tollgate::{Algorithm, Align};
    let first_hit = |builder: tollgate::LimitBuilder| builder.align(Align::FirstHit);
    let limits = [
        fixed("aligned", 10),
        first_hit(Limit::per_second(10).algorithm(Algorithm::FixedWindow)).build().unwrap(),
        Limit::per_second(10).algorithm(Algorithm::SlidingWindowLog).build().unwrap(),
        Limit::per_second(10).burst(10).build().unwrap(),
    ];
    for limit in limits {
        let (shared, store) = standing();
        let check = Check::new(&limit, "a");
        let synced = check.terms(terms(HOUR));
        assert!(decide(&shared, &[synced], NOW).await.allowed());
        assert!(decide(&shared, &[synced.cost(7)], NOW).await.allowed());
        // An instance decided alone, and one whose store was away: both tell a second later.
        store.fail(true);
        assert!(decide(&shared, &[check.act(Act::Force)], NOW).await.allowed());
        store.fail(false);
        let later = at(1_000_000);
        shared.inner.caller_clock.observe(later);
        shared.drain().await;
        until(|| shared.stats().pending_changes == 0).await;
        assert_eq!(store.used(&check, later), 0, "{limit}");
        assert!(decide(&shared, &[check.cost(10)], later).await.allowed(), "{limit}");
        let stats = shared.stats();
        assert_eq!((stats.sync_units_unsent, stats.charges_lost), (0, 0), "{limit}");
    }
}

/// Would catch: whole keys of strangers in lists that are bounded by their number alone.
#[tokio::test]
async fn long_keys_take_no_room() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("1/hour burst 100");
    let mut key = vec![b'x'; 60_000];
    let before = resident();
    for number in 0..5_000_u32 {
        key[..4].copy_from_slice(&number.to_le_bytes());
        let check = Check::new(&limit, &key[..]);
        let synced = check.terms(terms(HOUR));
        assert!(decide(&shared, &[synced], NOW).await.allowed());
    }
    let stats = shared.stats();
    assert_eq!((stats.sync_keys, stats.sync_without_room), (0, 5_000));
    store.fail(true);
    for number in 0..12_000_u32 {
        key[..4].copy_from_slice(&number.to_le_bytes());
        let Ok(()) = shared.refund(&Check::new(&limit, &key[..]), None, NOW.into()).await;
    }
    let stats = shared.stats();
    assert_eq!((stats.pending_changes, stats.refunds_lost), (10_000, 2_000));
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes for keys of 60 KB");
    store.fail(false);
}
