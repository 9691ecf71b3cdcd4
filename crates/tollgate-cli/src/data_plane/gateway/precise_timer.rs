//! `PreciseTimer`: sleeps that end within a fraction of a millisecond, for the departures of limits with a queue.
//!
//! The timers of the runtime fire at whole milliseconds, so each departure would be late by about one, and the next one
//! has to keep its distance: at 100 requests a second that costs several percent of the rate. One thread
//! waits for the next instant instead. The head of each line or queue sleeps here, and each body between two pieces while a
//! rule paces it. All of them share one lock, which is held for an insertion or a removal; requests that nothing holds
//! back never come here.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

/// A timer with a thread of its own, which starts with the first sleep and ends with the process.
#[derive(Clone, Debug, Default)]
pub(crate) struct PreciseTimer(Arc<TimerShared>);

#[derive(Debug, Default)]
struct TimerShared {
    state: Mutex<TimerState>,
    /// Notified when there is a sleep that ends before all others.
    earlier: Condvar,
}

#[derive(Debug, Default)]
struct TimerState {
    /// Sleeping tasks by their end. Bound: the lines and queues that somebody waits in, and two for each request
    /// in progress: its bodies, if a rule paces them.
    sleeping: BTreeMap<(Instant, u64), Waker>,
    last_number: u64,
    has_thread: bool,
}

impl PreciseTimer {
    /// A future that is ready when so much time has passed, and not before.
    pub(crate) fn sleep(&self, duration: Duration) -> PreciseSleep {
        PreciseSleep { timer: self.0.clone(), ends_at: Instant::now() + duration, number: None }
    }
}

impl TimerState {
    /// Starts the thread unless it runs. If that fails, the next sleep tries again.
    fn ensure_thread(&mut self, start: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if !self.has_thread {
            start()?;
            self.has_thread = true;
        }
        Ok(())
    }
}

impl TimerShared {
    /// Nothing panics under the lock.
    fn state(&self) -> MutexGuard<'_, TimerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes each task at the end of its sleep.
    fn run(&self) {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            let next = state.sleeping.first_entry();
            state = match next {
                Some(first) if first.key().0 <= now => {
                    let waker = first.remove();
                    drop(state);
                    waker.wake();
                    self.state()
                }
                Some(first) => {
                    let left = first.key().0 - now;
                    let (state, _) = self
                        .earlier
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner);
                    state
                }
                None => self.earlier.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// A sleep of a [`PreciseTimer`].
#[derive(Debug)]
pub(crate) struct PreciseSleep {
    timer: Arc<TimerShared>,
    ends_at: Instant,
    /// Its number in the timer, once it has been polled.
    number: Option<u64>,
}

impl Future for PreciseSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.ends_at {
            return Poll::Ready(());
        }
        let timer = self.timer.clone();
        let mut state = timer.state();
        let started = state.ensure_thread(|| {
            let (shared, thread) = (timer.clone(), thread::Builder::new());
            thread.name("departures".into()).spawn(move || shared.run()).map(drop)
        });
        if let Err(error) = started {
            drop(state);
            // The request would wait until its client leaves: better to fail it.
            panic!("no thread for the timer: {error}");
        }
        let number = *self.number.get_or_insert_with(|| {
            state.last_number += 1;
            state.last_number
        });
        let key = (self.ends_at, number);
        state.sleeping.insert(key, context.waker().clone());
        let is_first = state.sleeping.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(state);
        if is_first {
            timer.earlier.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for PreciseSleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.timer.state().sleeping.remove(&(self.ends_at, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sleeps_end_in_order_and_never_early_and_leave_nothing() {
        let timer = PreciseTimer::default();
        let begun = Instant::now();
        let (long, short) = (Duration::from_millis(20), Duration::from_millis(5));
        let (mut first, mut ended) = (timer.sleep(long), Vec::new());
        let mut second = timer.sleep(short);
        let dropped = timer.sleep(Duration::from_secs(3_600));
        tokio::select! {
            biased;
            () = &mut first => ended.push(long),
            () = &mut second => ended.push(short),
            () = dropped => ended.push(Duration::MAX),
        }
        assert_eq!(ended, [short]);
        assert!(Instant::now() - begun >= short);
        first.await;
        assert!(Instant::now() - begun >= long);
        drop(second);
        assert!(timer.0.state().sleeping.is_empty());
    }

    #[tokio::test]
    async fn a_thread_that_cannot_start_is_started_by_the_next_sleep() {
        let timer = PreciseTimer::default();
        let failed = timer.0.state().ensure_thread(|| Err(io::ErrorKind::WouldBlock.into()));
        assert_eq!(failed.err().map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
        timer.sleep(Duration::from_millis(1)).await;
        assert!(timer.0.state().has_thread);
    }
}
