//! Mistakes that were made once. Each test is the shortest way in which one showed.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use tollgate::{
    Act, Algorithm, Check, Limit, LimitBuilder, Limiter, ManualClock, MemoryStore, Micros, Outcome,
};

fn at(seconds: u64) -> Micros {
    Micros::from_secs(seconds)
}

fn built(builder: LimitBuilder) -> Limit {
    builder.build().unwrap()
}

fn limiter() -> (Limiter<MemoryStore, Arc<ManualClock>>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(at(1)));
    (Limiter::new(MemoryStore::new(100), Arc::clone(&clock)), clock)
}

fn sleeps_for_ever(_: Duration) -> impl Future<Output = ()> {
    std::future::pending()
}

/// A refusal that is counted lengthens the wait, and must say so.
#[test]
fn who_obeys_is_admitted_although_refusals_count() {
    let store = MemoryStore::new(100);
    let limit = built(Limit::per_second(1).burst(5));
    let _ = store.decide_one(&Check::new(&limit, "anna").cost(5), at(1));
    let mut now = at(1);
    for others in [vec![], vec![built(Limit::per_day(1_000))]] {
        let mut checks = vec![Check::new(&limit, "anna").count_denied()];
        checks.extend(others.iter().map(|other| Check::new(other, "anna")));
        let refused = store.decide_now(&checks, now);
        assert!(!refused.allowed());
        now = now.after(refused.retry_after());
        assert!(store.decide_now(&checks, now).allowed(), "{} checks", checks.len());
    }
}

/// Each check of a limit that stands twice in a request had a state of its own.
#[test]
fn the_same_limit_twice_is_one_state() {
    let store = MemoryStore::new(100);
    let limit = built(Limit::per_hour(10).burst(10));
    let six = Check::new(&limit, "anna").cost(6);
    assert!(!store.decide_now(&[six, six], at(1)).allowed());
    assert!(store.decide_now(&[six.cost(5), six.cost(5)], at(1)).allowed());
    assert_eq!(store.decide_one(&six.cost(0), at(1)).remaining(), 0);
}

/// A receipt of several limits knew only the smallest cost.
#[test]
fn every_limit_has_a_receipt_of_its_own() {
    let (limiter, _) = limiter();
    let [second, day] =
        [Limit::per_second(10).burst(10), Limit::per_day(100).burst(100)].map(built);
    let checks = [Check::new(&second, "anna"), Check::new(&day, "anna").cost(5)];
    let mut outcomes = [Outcome::default(); 2];
    let decision = limiter.now().decide_each(&checks, &mut outcomes);
    assert_eq!(outcomes.map(|outcome| outcome.charged), [1, 5]);
    assert_eq!(decision.granted(), 1, "of the binding limit");
    limiter.refund(&day, "anna", outcomes[1].receipt(), 5);
    assert_eq!(limiter.peek(&day, "anna", 0).remaining(), 100);
    assert_eq!(limiter.peek(&second, "anna", 0).remaining(), 9);
}

/// A peek beside it made "up to" grant nothing.
#[test]
fn a_peek_does_not_limit_what_others_grant() {
    let store = MemoryStore::new(100);
    let [second, day] =
        [Limit::per_second(10).burst(10), Limit::per_day(100).burst(100)].map(built);
    let up_to = Check::new(&second, "anna").cost(3).act(Act::UpTo);
    let decision = store.decide_now(&[up_to, Check::new(&day, "anna").act(Act::Peek)], at(1));
    assert_eq!((decision.allowed(), decision.granted()), (true, 3));
}

/// What was to be forced was shown as refused because another limit refused.
#[test]
fn only_the_limit_that_refuses_is_shown_as_refusing() {
    let store = MemoryStore::new(100);
    let [second, day] = [Limit::per_second(10).burst(10), Limit::per_day(1).burst(1)].map(built);
    let _ = store.decide_one(&Check::new(&day, "anna"), at(1));
    let forced = Check::new(&second, "anna").cost(50).act(Act::Force);
    let mut outcomes = [Outcome::default(); 2];
    let decision = store.decide_each(&[forced, Check::new(&day, "anna")], at(1), &mut outcomes);
    assert_eq!([0, 1].map(|index| decision.violates(index)), [false, true]);
    assert_eq!(outcomes.map(|outcome| outcome.allowed), [true, false]);
}

/// A booking older than a full refill was not given back.
#[test]
fn a_waiter_in_debt_takes_nothing_when_it_leaves() {
    let (limiter, clock) = limiter();
    let limit = built(Limit::per_second(1).burst(1));
    let _ = limiter.force(&limit, "anna", 10);
    let mut waiting =
        Box::pin(limiter.until_ready(&limit, "anna", 1, Duration::from_secs(60), sleeps_for_ever));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(context).is_pending());
    clock.advance(Duration::from_secs(5));
    drop(waiting);
    assert_eq!(limiter.balance(&limit, "anna"), -4);
}

/// The backlog of a queue was not reckoned with for those further back in line.
#[test]
fn a_queue_tells_at_once_who_cannot_make_it() {
    let (limiter, _) = limiter();
    let queue = Limit::per_second(1).burst(10).algorithm(Algorithm::LeakyBucket).queue();
    let limit = built(queue);
    let _ = limiter.take(&limit, "anna", 1);
    let within = |millis| {
        let deadline = Duration::from_millis(millis);
        Box::pin(limiter.until_ready(&limit, "anna", 1, deadline, sleeps_for_ever))
    };
    let context = &mut Context::from_waker(Waker::noop());
    let mut patient = within(5_000);
    assert!(patient.as_mut().poll(context).is_pending());
    assert!(within(1_500).as_mut().poll(context).is_ready(), "it needs 2 s");
    assert!(within(2_000).as_mut().poll(context).is_pending());
}

/// Waiters that came and went let later ones pass all at once.
#[test]
fn those_who_leave_the_line_let_nobody_overtake() {
    let (limiter, clock) = limiter();
    let limit = built(Limit::per_second(1).burst(5));
    let _ = limiter.take(&limit, "anna", 5);
    let wait = |cost| {
        let minute = Duration::from_secs(60);
        Box::pin(limiter.until_ready(&limit, "anna", cost, minute, |_| std::future::ready(())))
    };
    let context = &mut Context::from_waker(Waker::noop());
    let sleeping = |cost| {
        let minute = Duration::from_secs(60);
        Box::pin(limiter.until_ready(&limit, "anna", cost, minute, sleeps_for_ever))
    };
    let mut first = sleeping(5);
    let mut second = sleeping(1);
    assert!(
        first.as_mut().poll(context).is_pending() && second.as_mut().poll(context).is_pending()
    );
    drop(first);
    // The second moves up: it books now, and whoever comes later is behind it.
    assert!(second.as_mut().poll(context).is_pending());
    let mut third = sleeping(1);
    assert!(third.as_mut().poll(context).is_pending());
    clock.advance(Duration::from_secs(1));
    assert_eq!(limiter.peek(&limit, "anna", 1).retry_after().seconds(), Some(1));
    drop((second, third));
    assert_eq!(limiter.balance(&limit, "anna"), 1);
    assert!(wait(1).as_mut().poll(context).is_ready());
}

/// A permit made at an instant of the caller's choosing was settled at another.
#[test]
fn a_permit_is_settled_at_the_instant_given() {
    let limiter = Limiter::with_capacity(100);
    let limit = built(Limit::per_day(100).burst(100));
    let permit = limiter.at(at(1_000)).reserve(&limit, "anna", 10, Duration::from_secs(60));
    permit.unwrap().commit_at(1, at(1_001));
    assert_eq!(limiter.at(at(1_001)).peek(&limit, "anna", 0).remaining(), 99);
}

/// A peek under other numbers cut what was used to their capacity.
#[test]
fn a_peek_under_other_numbers_changes_nothing() {
    let store = MemoryStore::new(100);
    let [hundred, one] = [100, 1].map(|units| built(Limit::per_hour(units)));
    let _ = store.decide_one(&Check::new(&hundred, "anna").cost(100), at(1));
    let _ = store.decide_one(&Check::new(&one, "anna").act(Act::Peek), at(1));
    let _ = store.balance(&one, "anna".into(), at(1));
    assert!(!store.decide_one(&Check::new(&hundred, "anna"), at(1)).allowed());
}

/// The cost of work that was done was not charged to a key blocked meanwhile.
#[test]
fn what_is_forced_is_charged_to_a_blocked_key_too() {
    let (limiter, _) = limiter();
    let limit = built(Limit::per_day(100).burst(100));
    let permit = limiter.reserve(&limit, "anna", 10, Duration::from_secs(60)).unwrap();
    limiter.block("anna", Duration::from_secs(10));
    permit.commit(50);
    limiter.unblock("anna");
    assert_eq!(limiter.peek(&limit, "anna", 0).remaining(), 50);
}

/// A log whose entries met at the epoch, after the clock had jumped, could not be restored.
#[test]
fn entries_that_met_are_restored() {
    let store = MemoryStore::new(100);
    let log = Limit::per(5, Duration::from_secs(10)).algorithm(Algorithm::SlidingWindowLog);
    let limit = built(log);
    for second in [91, 92, 100, 1] {
        let _ = store.decide_one(&Check::new(&limit, "anna"), at(second));
    }
    let bytes = store.to_bytes(at(1));
    let (restored, _) = MemoryStore::new(100).restore(&bytes, at(1)).unwrap();
    let asked = |store: &MemoryStore| store.decide_one(&Check::new(&limit, "anna"), at(2));
    assert_eq!(asked(&restored), asked(&store));
}

/// A limit that appeared while a snapshot was taken made the whole snapshot useless.
#[test]
fn snapshots_are_good_while_limits_appear() {
    let store = MemoryStore::new(20_000);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for units in (2..60_000).take_while(|_| !done.load(Ordering::Relaxed)) {
                let limit = built(Limit::per_day(units));
                let key = format!("user:{}", units % 2_000);
                let _ = store.decide_one(&Check::new(&limit, &key), at(1));
            }
        });
        for _ in 0..20 {
            let bytes = store.to_bytes(at(1));
            MemoryStore::new(20_000).restore(&bytes, at(1)).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}
