//! Waiting until ready, on a clock that moves when told and an executor of a few lines.
//!
//! The executor polls a task only when it was woken, so a lost wake-up is a test that never ends
//! its line, and time moves only when nobody can go on, so instants are exact.

use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use tollgate::algorithm::{self, State};
use tollgate::wait::{MAX_WAITING, MAX_WAITING_PER_KEY};
use tollgate::{
    Algorithm, Align, Clock, Limit, Limiter, ManualClock, MemoryStore, Micros, NotReady, Refusal,
    Wait,
};

const S: u64 = 1_000_000;
const START: Micros = Micros::new(1_790_000_000 * S + 250_000);
const LONG: Duration = Duration::from_secs(100_000);

type ManualLimiter = Limiter<MemoryStore, Arc<ManualClock>>;

/// Set when a task is woken.
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// What became of a waiter, and when.
type WaitResult = (usize, Result<(), NotReady>, Micros);

struct WaitingTask<'a> {
    future: Pin<Box<dyn Future<Output = Result<(), NotReady>> + 'a>>,
    woken: Arc<WakeFlag>,
}

/// Timers, and who waits for them.
#[derive(Default)]
struct Timers(RefCell<Vec<(Micros, Waker)>>);

/// A limiter, its clock, and the tasks that wait.
struct WaitingWorld<'a> {
    limiter: &'a ManualLimiter,
    clock: Arc<ManualClock>,
    timers: Rc<Timers>,
    tasks: Vec<Option<WaitingTask<'a>>>,
    ended: Vec<WaitResult>,
}

fn limiter() -> ManualLimiter {
    Limiter::new(MemoryStore::new(1_000), Arc::new(ManualClock::new(START)))
}

impl<'a> WaitingWorld<'a> {
    fn new(limiter: &'a ManualLimiter) -> WaitingWorld<'a> {
        WaitingWorld {
            limiter,
            clock: Arc::clone(limiter.clock()),
            timers: Rc::default(),
            tasks: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// The runtime's sleep.
    fn sleep(&self) -> impl Fn(Duration) -> Pin<Box<dyn Future<Output = ()>>> + use<> {
        let (clock, timers) = (Arc::clone(&self.clock), Rc::clone(&self.timers));
        move |duration| {
            let (clock, timers) = (Arc::clone(&clock), Rc::clone(&timers));
            let ends = clock.now().after(Wait::at_least(duration));
            Box::pin(std::future::poll_fn(move |context| {
                if clock.now() >= ends {
                    return Poll::Ready(());
                }
                timers.0.borrow_mut().push((ends, context.waker().clone()));
                Poll::Pending
            }))
        }
    }

    /// Adds a waiter and lets it begin; returns its number.
    fn join(&mut self, limit: &'a Limit, key: &'a str, cost: u64, max_wait: Duration) -> usize {
        let future = self.limiter.until_ready(limit, key, cost, max_wait, self.sleep());
        self.tasks.push(Some(WaitingTask {
            future: Box::pin(future),
            woken: Arc::new(WakeFlag(AtomicBool::new(true))),
        }));
        self.run();
        self.tasks.len() - 1
    }

    /// Polls who was woken, the youngest first so that order is not the executor's doing.
    fn run(&mut self) {
        while let Some(number) = (0..self.tasks.len()).rev().find(|&number| {
            let task = self.tasks[number].as_ref();
            task.is_some_and(|task| task.woken.0.swap(false, SeqCst))
        }) {
            let task = self.tasks[number].as_mut().expect("found just now");
            let waker = Waker::from(Arc::clone(&task.woken));
            let polled = task.future.as_mut().poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(result) = polled {
                self.tasks[number] = None;
                self.ended.push((number, result, self.clock.now()));
            }
        }
    }

    /// Drops a waiter while it waits.
    fn cancel(&mut self, number: usize) {
        assert!(self.tasks[number].take().is_some(), "{number} has ended already");
        self.run();
    }

    /// Moves time to the next timer, until nobody waits.
    fn finish(&mut self) {
        while self.tasks.iter().any(Option::is_some) {
            let next = self.timers.0.borrow().iter().map(|(at, _)| *at).min();
            self.advance_to(next.expect("somebody waits, and for no timer: a lost wake-up"));
        }
    }

    fn advance_to(&mut self, now: Micros) {
        self.clock.set(now.max(self.clock.now()));
        let timers = std::mem::take(&mut *self.timers.0.borrow_mut());
        for (at, waker) in timers {
            match at <= self.clock.now() {
                true => waker.wake(),
                false => self.timers.0.borrow_mut().push((at, waker)),
            }
        }
        self.run();
    }

    fn result(&self, number: usize) -> Option<Result<(), NotReady>> {
        self.ended.iter().find(|(ended, ..)| *ended == number).map(|(_, result, _)| *result)
    }
}

/// `units` per second, counted in every way that waits differently.
fn every(units: u64) -> Vec<Limit> {
    let of = |algorithm| Limit::per_second(units).algorithm(algorithm);
    let more = [
        of(Algorithm::LeakyBucket).queue().name("queue"),
        of(Algorithm::FixedWindow).align(Align::FirstHit),
        of(Algorithm::SlidingWindowCounter).buckets(4),
    ];
    Algorithm::ALL.map(of).into_iter().chain(more).map(|limit| limit.build().unwrap()).collect()
}

/// When each of `costs` passes, if all are there at `START` and each passes as soon as it can
/// after those before it; `slot_state` is what a queue adds.
fn expected(limit: &Limit, costs: &[u64]) -> Vec<Micros> {
    let mut state = State::fresh(limit, START);
    let mut at = START;
    let mut step = |cost: u64| {
        if limit.is_queue() {
            // Charged on arrival, held until the backlog ahead is gone.
            let backlog = algorithm::judge(limit, &state, 0, START).reset_after;
            algorithm::charge(limit, &mut state, cost, START);
            return START.after(backlog);
        }
        at = at.after(algorithm::judge(limit, &state, cost, at).retry_after);
        algorithm::charge(limit, &mut state, cost, at);
        at
    };
    costs.iter().map(|&cost| step(cost)).collect()
}

fn micros_between(from: Micros, to: Micros) -> Duration {
    Duration::from_micros(to.as_u64() - from.as_u64())
}

/// Would catch: a small cost that overtakes a large one, waiters that wake together, a wait that
/// is a microsecond too long or too short, a wake-up that is lost.
#[test]
fn first_come_first_served_each_as_soon_as_possible() {
    for limit in &every(3) {
        let costs = [3, 1, 2, 3, 1, 1, 1, 3, 2];
        let limiter = limiter();
        let mut world = WaitingWorld::new(&limiter);
        for cost in costs {
            world.join(limit, "line", cost, LONG);
        }
        world.finish();
        let want: Vec<WaitResult> = expected(limit, &costs)
            .into_iter()
            .enumerate()
            .map(|(number, at)| (number, Ok(()), at))
            .collect();
        let mut got = world.ended;
        // Those who pass at one instant were woken in turn; the executor polls them as it likes.
        got.sort_by_key(|(number, _, at)| (*at, *number));
        assert_eq!(got, want, "{limit}");
    }
}

/// Would catch: lines of different keys or limits that wait for each other.
#[test]
fn keys_and_limits_have_lines_of_their_own() {
    let limits = every(1);
    let limiter = limiter();
    let mut world = WaitingWorld::new(&limiter);
    for limit in &limits {
        for key in ["anna", "ben"] {
            world.join(limit, key, 1, LONG);
            world.join(limit, key, 1, LONG);
        }
    }
    // The first of each line passed at once.
    assert_eq!(world.ended.len(), 2 * limits.len());
    world.finish();
    assert!(world.ended.iter().all(|(_, result, _)| result.is_ok()));
    for limit in &limits {
        let want = expected(limit, &[1, 1])[1];
        let times = world.ended.iter().filter(|(.., at)| *at == want).count();
        assert!(times >= 2, "{limit}: nobody passed at {want:?}");
    }
}

/// Would catch: a waiter that cannot make it and waits all the same, or that is told so although
/// it could; and a refusal that charges or stays in line.
#[test]
fn whoever_cannot_make_the_deadline_is_told_at_once() {
    for limit in &every(2) {
        let costs = [2, 1, 2, 2];
        let times = expected(limit, &costs);
        let wait = micros_between(START, times[3]);
        let limiter = limiter();
        let mut world = WaitingWorld::new(&limiter);
        for cost in &costs[..3] {
            world.join(limit, "line", *cost, LONG);
        }
        let hasty = world.join(limit, "line", 2, wait - Duration::from_micros(1));
        let told = Err(NotReady::TooLong(Wait::at_least(wait)));
        assert_eq!(world.result(hasty), Some(told), "{limit}");
        let patient = world.join(limit, "line", 2, wait);
        assert_eq!(world.result(patient), None, "{limit}");
        world.finish();
        assert_eq!(world.result(patient), Some(Ok(())), "{limit}");
        assert_eq!(world.ended.last().unwrap().2, times[3], "{limit}");
    }
}

/// The same for windows that are each key's own. Would catch: a wait that is reckoned with the
/// windows of everybody.
#[test]
fn a_deadline_in_staggered_windows_is_reckoned_with_the_key_s_own() {
    let limit = Limit::per_second(1).algorithm(Algorithm::FixedWindow).stagger().build().unwrap();
    for user in 0..20 {
        let (key, limiter) = (format!("user {user}"), limiter());
        let mut world = WaitingWorld::new(&limiter);
        world.join(&limit, &key, 1, LONG);
        world.join(&limit, &key, 1, LONG);
        // The second passes when the next window begins, the third one period later.
        let second = limiter.peek(&limit, &key, 1).retry_after().duration().unwrap();
        let third = second + Duration::from_secs(1);
        let hasty = world.join(&limit, &key, 1, third - Duration::from_micros(1));
        let told = Err(NotReady::TooLong(Wait::at_least(third)));
        assert_eq!(world.result(hasty), Some(told), "{key}");
        let patient = world.join(&limit, &key, 1, third);
        world.finish();
        assert_eq!(world.result(patient), Some(Ok(())), "{key}");
    }
}

#[test]
fn whoever_needs_not_wait_does_not() {
    for limit in &every(2) {
        let limiter = limiter();
        let mut world = WaitingWorld::new(&limiter);
        let first = world.join(limit, "free", 2, Duration::ZERO);
        assert_eq!(world.result(first), Some(Ok(())), "{limit}");
        let second = world.join(limit, "free", 1, Duration::ZERO);
        assert!(matches!(world.result(second), Some(Err(NotReady::TooLong(_)))), "{limit}");
        assert_eq!(limiter.peek(limit, "free", 0).remaining(), 0, "{limit}");
    }
}

/// Would catch: units that a dropped waiter keeps, a place in line that stays taken, and a line
/// that stops because the one who would have woken it is gone.
#[test]
fn a_dropped_waiter_leaves_the_line_and_takes_nothing() {
    for limit in &every(2) {
        for dropped in [1, 2, 3] {
            let limiter = limiter();
            let mut world = WaitingWorld::new(&limiter);
            for _ in 0..4 {
                world.join(limit, "line", 2, LONG);
            }
            // Somewhere in the first wait.
            world.advance_to(START.after(Wait::from_micros(1_000)));
            world.cancel(dropped);
            world.finish();
            let others: Vec<usize> = [0, 1, 2, 3].into_iter().filter(|it| *it != dropped).collect();
            let passed: Vec<usize> = world.ended.iter().map(|(number, ..)| *number).collect();
            assert_eq!(passed, others, "{limit}: FIFO among those who stayed");
            assert!(world.ended.iter().all(|(_, result, _)| result.is_ok()), "{limit}");
            // Nobody waits any more, and three charges of two are all that was taken.
            let last = world.ended.last().unwrap().2;
            let full = limiter.at(last).peek(limit, "line", 0).reset_after();
            assert!(full <= Wait::from_micros(2 * S), "{limit}: a charge stayed, {full}");
        }
    }
}

/// The youngest in line leaves: everything is as if it had never been there.
#[test]
fn dropping_the_youngest_is_the_identity() {
    for limit in &every(2) {
        let limiter = limiter();
        let mut world = WaitingWorld::new(&limiter);
        for _ in 0..3 {
            world.join(limit, "line", 2, LONG);
        }
        let before = limiter.peek(limit, "line", 1);
        let youngest = world.join(limit, "line", 2, LONG);
        world.cancel(youngest);
        assert_eq!(limiter.peek(limit, "line", 1), before, "{limit}");
        let again = world.join(limit, "line", 2, LONG);
        world.finish();
        let ended = world.ended.iter().find(|(number, ..)| *number == again).unwrap();
        assert_eq!(ended.2, expected(limit, &[2; 4])[3], "{limit}");
    }
}

/// The whole line is dropped, front first and back first.
#[test]
fn a_line_that_is_dropped_whole_leaves_nothing() {
    for limit in &every(2) {
        for back_first in [false, true] {
            let limiter = limiter();
            let mut world = WaitingWorld::new(&limiter);
            world.join(limit, "line", 2, LONG);
            let before = limiter.peek(limit, "line", 1);
            let mut numbers: Vec<usize> =
                (0..5).map(|_| world.join(limit, "line", 2, LONG)).collect();
            if back_first {
                numbers.reverse();
            }
            for number in numbers {
                world.cancel(number);
            }
            assert_eq!(limiter.peek(limit, "line", 1), before, "{limit}");
        }
    }
}

#[test]
fn what_never_fits_and_what_is_refused_is_said_at_once() {
    for limit in &every(2) {
        let limiter = limiter();
        assert!(limiter.block("blocked", Duration::from_secs(10)));
        let mut world = WaitingWorld::new(&limiter);
        let rows = [
            ("anna", 3, NotReady::TooLong(Wait::NEVER)),
            ("anna", u64::MAX, NotReady::TooLong(Wait::NEVER)),
            ("", 1, NotReady::Refused(Refusal::EmptyKey)),
            ("blocked", 1, NotReady::Refused(Refusal::Blocked)),
        ];
        for (key, cost, why) in rows {
            let number = world.join(limit, key, cost, Duration::from_secs(5));
            assert_eq!(world.result(number), Some(Err(why)), "{limit}, {key:?}, {cost}");
        }
        assert_eq!(limiter.peek(limit, "anna", 0).remaining(), 2, "{limit}");
    }
}

/// A timer may fire early: a runtime counts in milliseconds, or on another clock.
#[test]
fn a_timer_that_fires_early_is_set_again() {
    for limit in &every(1) {
        let limiter = limiter();
        let clock = Arc::clone(limiter.clock());
        let mut sleeps = 0;
        let sleeps_counted = RefCell::new(&mut sleeps);
        for _ in 0..3 {
            // Moves the clock by half of what was asked, at least a microsecond.
            let sleep = |duration: Duration| {
                **sleeps_counted.borrow_mut() += 1;
                clock.advance(Duration::from_micros((duration.as_micros() as u64).div_ceil(2)));
                std::future::ready(())
            };
            let mut future = pin!(limiter.until_ready(limit, "early", 1, LONG, sleep));
            let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(polled, Poll::Ready(Ok(())), "{limit}");
        }
        assert!(sleeps > 10, "{limit}: {sleeps} sleeps");
        // In turn, so a queue's third passes when the second's time is over too.
        assert!(clock.now() >= expected(limit, &[1; 3])[2], "{limit}");
    }
}

/// Would catch: a line without a bound, and a place that is not free again when left.
#[test]
fn lines_are_bounded() {
    let limit = &Limit::per_second(1).algorithm(Algorithm::FixedWindow).build().unwrap();
    let limiter = limiter();
    let mut world = WaitingWorld::new(&limiter);
    world.join(limit, "long", 1, LONG);
    for _ in 0..MAX_WAITING_PER_KEY {
        world.join(limit, "long", 1, LONG);
    }
    let one_more = world.join(limit, "long", 1, LONG);
    assert_eq!(world.result(one_more), Some(Err(NotReady::LineFull)));
    let elsewhere = world.join(limit, "short", 1, LONG);
    assert_eq!(world.result(elsewhere), Some(Ok(())));
    world.cancel(MAX_WAITING_PER_KEY / 2);
    let now_there_is = world.join(limit, "long", 1, LONG);
    assert_eq!(world.result(now_there_is), None);
}

#[test]
fn all_lines_together_are_bounded() {
    let limit = &Limit::per_second(1).algorithm(Algorithm::FixedWindow).build().unwrap();
    let limiter = limiter();
    let keys: Vec<String> = (0..MAX_WAITING / 64).map(|key| format!("key {key}")).collect();
    let new = "new".to_owned();
    let sleep = |_| std::future::pending::<()>();
    let mut context = Context::from_waker(Waker::noop());
    let mut join = |key| {
        let key: &String = key;
        let mut future = Box::pin(limiter.until_ready(limit, key, 1, LONG, sleep));
        let polled = future.as_mut().poll(&mut context);
        (polled, future)
    };
    let mut waiting = Vec::new();
    for key in &keys {
        assert_eq!(join(key).0, Poll::Ready(Ok(())));
        for _ in 0..64 {
            let (polled, future) = join(key);
            assert_eq!(polled, Poll::Pending);
            waiting.push(future);
        }
    }
    assert_eq!(waiting.len(), MAX_WAITING);
    let _ = limiter.check(limit, &new);
    assert_eq!(join(&new).0, Poll::Ready(Err(NotReady::LineFull)));
    drop(waiting.pop());
    assert_eq!(join(&new).0, Poll::Pending);
}

/// Wakes a thread.
struct ThreadWaker(thread::Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => thread::park(),
        }
    }
}

/// Threads that join, pass and leave one line at once. Would catch: a wake-up that is lost between
/// looking and waiting, which never ends, and a window that lets two heads of the line through.
#[test]
fn a_line_of_threads_moves_on() {
    const THREADS: u64 = 8;
    const TURNS: u64 = 400;
    let (done, watch) = channel::<()>();
    thread::spawn(move || {
        if watch.recv_timeout(Duration::from_secs(120))
            == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            eprintln!("a_line_of_threads_moves_on: no end after 120 s, a wake-up was lost");
            std::process::abort();
        }
    });
    for limit in &every(2) {
        let limiter = limiter();
        let (passed, barrier) = (AtomicU64::new(0), Barrier::new(THREADS as usize));
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (limiter, passed, barrier) = (&limiter, &passed, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for turn in 0..TURNS {
                        // Only who may go on next sleeps, so its sleep is what moves the time.
                        let sleep = |duration: Duration| {
                            limiter.clock().advance(duration);
                            std::future::ready(())
                        };
                        let future = limiter.until_ready(limit, "line", 1, LONG, sleep);
                        if (thread + turn) % 3 == 0 {
                            // Looks once and leaves.
                            let mut future = pin!(future);
                            let waker = Waker::noop();
                            let polled = future.as_mut().poll(&mut Context::from_waker(waker));
                            passed.fetch_add(u64::from(polled.is_ready()), SeqCst);
                        } else {
                            assert_eq!(block_on(future), Ok(()));
                            passed.fetch_add(1, SeqCst);
                        }
                    }
                });
            }
        });
        let passed = passed.load(SeqCst);
        assert!(passed >= THREADS * TURNS * 2 / 3, "{limit}: {passed}");
        if !limit.algorithm().is_bucket() {
            // Whoever waits for a bucket sleeps on its own, so here many move the clock at once,
            // past those who have read it and not yet asked: no bound of rate × time would hold.
            let elapsed = micros_between(START, limiter.clock().now()).as_secs() + 2;
            assert!(passed <= 2 * (elapsed + 1), "{limit}: {passed} in {elapsed} s");
        }
    }
    drop(done);
}
