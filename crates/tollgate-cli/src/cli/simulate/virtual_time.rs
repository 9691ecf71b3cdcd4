//! Virtual time: runs requests that wait, on the clock of the trace.
//!
//! Every request is a task. A task that sleeps wakes when the clock has reached its instant; between two
//! instants nothing happens, so an hour of waiting takes no time.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tollgate::{Clock, ManualClock, Micros, Wait};

/// A task, and the waker that puts it into the line of those to be polled.
struct VirtualTask<'a> {
    future: Pin<Box<dyn Future<Output = ()> + 'a>>,
    waker: Waker,
}

/// Tasks on a virtual clock.
pub(super) struct VirtualTime<'a> {
    clock: Arc<ManualClock>,
    timers: Arc<TimerTable>,
    woken: Arc<WokenTasks>,
    /// Tasks that have not ended. Bound: the requests that wait or are in progress at one instant.
    tasks: BTreeMap<u64, VirtualTask<'a>>,
    next_task: u64,
}

impl<'a> VirtualTime<'a> {
    pub(super) fn new(clock: Arc<ManualClock>) -> VirtualTime<'a> {
        VirtualTime {
            clock,
            timers: Arc::default(),
            woken: Arc::default(),
            tasks: BTreeMap::new(),
            next_task: 0,
        }
    }

    /// A function that sleeps on this clock.
    pub(super) fn sleep_fn(&self) -> SleepOnClock {
        SleepOnClock { clock: Arc::clone(&self.clock), timers: Arc::clone(&self.timers) }
    }

    /// Starts a task, and runs it until it waits.
    pub(super) fn start(&mut self, future: impl Future<Output = ()> + 'a) {
        let number = self.next_task;
        self.next_task += 1;
        let waker = Waker::from(Arc::new(TaskWaker { number, woken: Arc::clone(&self.woken) }));
        waker.wake_by_ref();
        self.tasks.insert(number, VirtualTask { future: Box::pin(future), waker });
        self.run_woken();
    }

    /// Lets time pass until `instant`, and everything happen that is due by then.
    pub(super) fn run_until(&mut self, instant: Micros) {
        while let Some(waker) = self.timers.take_next(instant, &self.clock) {
            waker.wake();
            self.run_woken();
        }
        if self.clock.now() < instant {
            self.clock.set(instant);
        }
    }

    /// Lets time pass until no task is left.
    pub(super) fn run_to_end(&mut self) {
        self.run_until(Micros::MAX);
    }

    fn run_woken(&mut self) {
        while let Some(number) = self.woken.next() {
            let Some(task) = self.tasks.get_mut(&number) else { continue };
            let waker = task.waker.clone();
            if task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                self.tasks.remove(&number);
            }
        }
    }
}

/// The tasks to be polled, in the order in which they were woken.
#[derive(Default)]
struct WokenTasks(Mutex<VecDeque<u64>>);

impl WokenTasks {
    fn next(&self) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

struct TaskWaker {
    number: u64,
    woken: Arc<WokenTasks>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut woken = self.woken.0.lock().unwrap_or_else(PoisonError::into_inner);
        woken.push_back(self.number);
    }
}

#[derive(Default)]
struct TimerTable(Mutex<VirtualTimers>);

#[derive(Default)]
struct VirtualTimers {
    /// Timers by their instant and number. Bound: a few for each task.
    by_instant: BTreeMap<(Micros, u64), Waker>,
    last_number: u64,
}

impl TimerTable {
    fn lock(&self) -> MutexGuard<'_, VirtualTimers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next timer that is due by `instant`, and moves the clock to it.
    fn take_next(&self, instant: Micros, clock: &ManualClock) -> Option<Waker> {
        let mut timers = self.lock();
        let entry = timers.by_instant.first_entry().filter(|entry| entry.key().0 <= instant)?;
        clock.set(entry.key().0.max(clock.now()));
        Some(entry.remove())
    }
}

/// Makes futures that sleep on the virtual clock.
#[derive(Clone)]
pub(super) struct SleepOnClock {
    clock: Arc<ManualClock>,
    timers: Arc<TimerTable>,
}

impl SleepOnClock {
    pub(super) fn sleep(&self, duration: Duration) -> VirtualSleep {
        self.sleep_until(self.clock.now().after(Wait::at_least(duration)))
    }

    pub(super) fn sleep_until(&self, wakes_at: Micros) -> VirtualSleep {
        VirtualSleep { until: wakes_at, maker: self.clone(), timer: None }
    }
}

/// A future that sleeps.
pub(super) struct VirtualSleep {
    until: Micros,
    maker: SleepOnClock,
    timer: Option<(Micros, u64)>,
}

impl Future for VirtualSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.maker.clock.now() >= self.until {
            return Poll::Ready(());
        }
        let key = self.timer.unwrap_or_else(|| {
            let mut timers = self.maker.timers.lock();
            timers.last_number += 1;
            (self.until, timers.last_number)
        });
        self.maker.timers.lock().by_instant.insert(key, context.waker().clone());
        self.timer = Some(key);
        Poll::Pending
    }
}

impl Drop for VirtualSleep {
    fn drop(&mut self) {
        if let Some(key) = self.timer {
            self.maker.timers.lock().by_instant.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn tasks_wake_in_the_order_of_time_and_no_real_time_passes() {
        let clock = Arc::new(ManualClock::new(Micros::from_secs(100)));
        let woken = RefCell::new(Vec::new());
        let mut time = VirtualTime::new(Arc::clone(&clock));
        for seconds in [3_600, 1, 60] {
            let sleep = time.sleep_fn();
            let woken = &woken;
            time.start(async move {
                sleep.sleep(Duration::from_secs(seconds)).await;
                woken.borrow_mut().push(seconds);
            });
        }
        time.run_until(Micros::from_secs(160));
        assert_eq!(*woken.borrow(), [1, 60]);
        assert_eq!(clock.now(), Micros::from_secs(160));
        time.run_to_end();
        assert_eq!(*woken.borrow(), [1, 60, 3_600]);
        assert!(time.tasks.is_empty() && time.timers.lock().by_instant.is_empty());
    }
}
