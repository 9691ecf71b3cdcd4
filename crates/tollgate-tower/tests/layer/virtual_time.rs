//! A runtime on a clock that only moves when all tasks wait: hours of traffic in milliseconds, the same every time.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tollgate::{Clock, ManualClock, Micros, Wait};

use crate::layer::harness::{NOON_S, SharedManualClock};

type VirtualTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tasks and timers on a virtual clock.
pub(crate) struct VirtualRuntime {
    clock: SharedManualClock,
    timers: VirtualTimers,
    tasks: Vec<Option<VirtualTask>>,
    woken: Arc<Mutex<VecDeque<usize>>>,
}

type TimersByInstant = BTreeMap<(Micros, u64), Waker>;

/// Sleeping tasks, by the instant at which they wake and the order in which they fell asleep.
#[derive(Clone, Default)]
struct VirtualTimers(Arc<Mutex<(TimersByInstant, u64)>>);

struct VirtualTaskWaker {
    number: usize,
    woken: Arc<Mutex<VecDeque<usize>>>,
}

impl Wake for VirtualTaskWaker {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap().push_back(self.number);
    }
}

impl VirtualRuntime {
    pub(crate) fn new() -> VirtualRuntime {
        let clock = Arc::new(ManualClock::new(Micros::from_secs(NOON_S)));
        VirtualRuntime {
            clock,
            timers: VirtualTimers::default(),
            tasks: Vec::new(),
            woken: Arc::default(),
        }
    }

    pub(crate) fn clock(&self) -> SharedManualClock {
        Arc::clone(&self.clock)
    }

    /// A function that sleeps in virtual time; each sleep is late by what `lateness` returns.
    pub(crate) fn late_sleep<L: Fn() -> Wait + Send + Sync + 'static>(
        &self,
        lateness: L,
    ) -> impl Fn(Duration) -> VirtualTask + Clone + Send + Sync + 'static + use<L> {
        let (clock, timers, lateness) = (self.clock(), self.timers.clone(), Arc::new(lateness));
        move |duration| {
            let at = clock.now().after(Wait::at_least(duration)).after(lateness());
            Box::pin(timers.clone().sleep_until(at, Arc::clone(&clock)))
        }
    }

    /// A function that sleeps in virtual time.
    pub(crate) fn sleep(
        &self,
    ) -> impl Fn(Duration) -> VirtualTask + Clone + Send + Sync + 'static + use<> {
        self.late_sleep(|| Wait::ZERO)
    }

    /// Starts a task, and returns its number.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) -> usize {
        let number = self.tasks.len();
        self.tasks.push(Some(Box::pin(task)));
        self.woken.lock().unwrap().push_back(number);
        number
    }

    /// Drops a task, as a server drops the request of a client that leaves.
    pub(crate) fn cancel(&mut self, number: usize) {
        self.tasks[number] = None;
    }

    /// Drops all tasks.
    pub(crate) fn end(&mut self) {
        self.tasks.clear();
        self.woken.lock().unwrap().clear();
    }

    /// Runs all tasks for so long.
    pub(crate) fn run(&mut self, duration: Duration) {
        let end = self.clock.now().after(Wait::at_least(duration));
        loop {
            self.run_woken();
            let Some(at) = self.timers.next().filter(|at| *at <= end) else { break };
            self.clock.set(at.max(self.clock.now()));
            self.timers.fire(at);
        }
        self.clock.set(end);
    }

    /// Moves the clock and wakes those whose sleep is over, but runs nothing.
    pub(crate) fn advance(&mut self, duration: Duration) {
        self.clock.set(self.clock.now().after(Wait::at_least(duration)));
        self.timers.fire(self.clock.now());
    }

    /// Runs tasks until all of them wait.
    pub(crate) fn run_woken(&mut self) {
        self.run_steps(usize::MAX);
    }

    /// Polls tasks that were woken, at most so many times.
    pub(crate) fn run_steps(&mut self, steps: usize) {
        for _ in 0..steps {
            let Some(number) = self.woken.lock().unwrap().pop_front() else { return };
            let Some(task) = &mut self.tasks[number] else { continue };
            let waker =
                Waker::from(Arc::new(VirtualTaskWaker { number, woken: Arc::clone(&self.woken) }));
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                self.tasks[number] = None;
            }
        }
    }
}

impl VirtualTimers {
    async fn sleep_until(self, at: Micros, clock: SharedManualClock) {
        let mut number = None;
        poll_fn(|context| {
            if clock.now() >= at {
                return Poll::Ready(());
            }
            let (sleeping, last) = &mut *self.0.lock().unwrap();
            let number = *number.get_or_insert_with(|| {
                *last += 1;
                *last
            });
            sleeping.insert((at, number), context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn next(&self) -> Option<Micros> {
        self.0.lock().unwrap().0.first_key_value().map(|((at, _), _)| *at)
    }

    fn fire(&self, now: Micros) {
        loop {
            let (sleeping, _) = &mut *self.0.lock().unwrap();
            match sleeping.first_entry() {
                Some(first) if first.key().0 <= now => first.remove().wake(),
                _ => return,
            }
        }
    }
}
