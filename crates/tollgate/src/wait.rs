//! Waiting until ready: in line, first come first served for each key.
//!
//! No runtime is needed: the caller passes the function that sleeps. Waiters of one key stand in a
//! queue, and only its head is active. A bucket carries debt, so its head is charged at once and
//! sleeps until the earlier debt is paid; other checks see that debt meanwhile. Windows and logs
//! carry no debt, so there the head takes as soon as it can.
//!
//! A waiter that is dropped leaves the line and takes nothing, and those behind it move up. A
//! waiter that cannot meet its deadline fails at once, before it waits.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::check::{Check, Key};
use crate::clock::Clock;
use crate::decision::{Decision, Receipt, Refusal};
use crate::hash::public_hash;
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::store::MemoryStore;
use crate::time::{Micros, Wait};

/// Cap on the waiters of one key.
pub const MAX_WAITING_PER_KEY: usize = 1_024;
/// Cap on the waiters of all keys.
pub const MAX_WAITING: usize = 65_536;

/// The reason why waiting was not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// The wait, which is longer than the caller's maximum; or never.
    TooLong(Wait),
    /// The line is full.
    LineFull,
    /// The key is empty or blocked.
    Refused(Refusal),
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotReady::TooLong(wait) if wait.is_never() => {
                f.write_str("the cost is above the limit's capacity: no wait helps")
            }
            NotReady::TooLong(wait) => write!(f, "it would take {wait}, longer than allowed"),
            NotReady::LineFull => f.write_str("too many are waiting already"),
            NotReady::Refused(refusal) => write!(f, "refused: {refusal:?}"),
        }
    }
}

impl std::error::Error for NotReady {}

impl<C: Clock> Limiter<MemoryStore, C> {
    /// Waits in line until `cost` units are taken, at most `max_wait`.
    ///
    /// `sleep` is the runtime's: `tokio::time::sleep`, or anything that returns a future.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Limit, Limiter};
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sleep = |_: Duration| std::future::ready(());
    /// let limiter = Limiter::with_capacity(1_000);
    /// let limit = Limit::per_second(10).burst(1).build()?;
    /// limiter.until_ready(&limit, "mailer", 1, Duration::from_secs(5), sleep).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn until_ready<'k, F: Future<Output = ()>>(
        &self,
        limit: &Limit,
        key: impl Into<Key<'k>>,
        cost: u64,
        max_wait: Duration,
        sleep: impl Fn(Duration) -> F,
    ) -> Result<(), NotReady> {
        let key: Key<'k> = key.into();
        let check = Check::new(limit, key).cost(cost);
        if check.key.is_empty() {
            return Err(NotReady::Refused(Refusal::EmptyKey));
        }
        let deadline = self.clock().now().after(Wait::at_least(max_wait));
        let place = self.waiting_lines.join(&check).ok_or(NotReady::LineFull)?;
        let now = self.clock().now();
        let wait = self.store().wait_in_line(&check, &place.costs_up_to_here(), now);
        if wait > now.until(deadline) {
            return Err(NotReady::TooLong(wait));
        }
        place.head_of_line().await;
        if limit.algorithm().is_bucket() {
            self.book_and_wait(&check, &place, deadline, sleep).await
        } else {
            self.take_when_ready(&check, deadline, sleep).await
        }
    }

    /// Waits at the head of the line of a bucket.
    async fn book_and_wait<F: Future<Output = ()>>(
        &self,
        check: &Check<'_>,
        place: &LinePlace<'_>,
        deadline: Micros,
        sleep: impl Fn(Duration) -> F,
    ) -> Result<(), NotReady> {
        let booked = self.now().book(check, deadline);
        if !booked.allowed() {
            return Err(not_ready(booked));
        }
        place.mark_charged();
        let booking = Booking { limiter: self, check, receipt: Some(booked.receipt()) };
        sleep_until(self.clock(), booked.at().after(booked.delay()), sleep).await;
        booking.confirm();
        Ok(())
    }

    /// Waits at the head of the line of a window or a log.
    async fn take_when_ready<F: Future<Output = ()>>(
        &self,
        check: &Check<'_>,
        deadline: Micros,
        sleep: impl Fn(Duration) -> F,
    ) -> Result<(), NotReady> {
        loop {
            let decision = self.now().take(check.limit, check.key, check.cost);
            if decision.allowed() {
                return Ok(());
            }
            let (now, wait) = (decision.at(), decision.retry_after());
            let blocked = decision.refusal() == Some(Refusal::Blocked);
            if blocked || wait > now.until(deadline) {
                return Err(not_ready(decision));
            }
            sleep_until(self.clock(), now.after(wait), &sleep).await;
        }
    }
}

fn not_ready(decision: Decision) -> NotReady {
    match decision.refusal() {
        Some(refusal @ (Refusal::Blocked | Refusal::EmptyKey)) => NotReady::Refused(refusal),
        _ => NotReady::TooLong(decision.retry_after()),
    }
}

/// Sleeps until the limiter's own clock has reached `ready`: a runtime's timer may fire early, and
/// its clock may run at another speed.
async fn sleep_until<F: Future<Output = ()>>(
    clock: &impl Clock,
    ready: Micros,
    sleep: impl Fn(Duration) -> F,
) {
    loop {
        let left = clock.now().until(ready);
        match left.duration() {
            Some(left) if !left.is_zero() => sleep(left).await,
            _ => return,
        }
    }
}

/// Units charged ahead for the head of a line; given back if it is dropped while it waits.
struct Booking<'a, C: Clock> {
    limiter: &'a Limiter<MemoryStore, C>,
    check: &'a Check<'a>,
    receipt: Option<Receipt>,
}

impl<C: Clock> Booking<'_, C> {
    fn confirm(mut self) {
        self.receipt = None;
    }
}

impl<C: Clock> Drop for Booking<'_, C> {
    fn drop(&mut self) {
        if let Some(mut receipt) = self.receipt.take() {
            let (units, moment) = (receipt.granted(), self.limiter.now());
            // However long ago it was booked, all of it is still owed until it is ready.
            receipt.charged_at = moment.instant();
            moment.refund(self.check.limit, self.check.key, receipt, units);
        }
    }
}

/// The lines of all keys; bounded by [`MAX_WAITING`], each by [`MAX_WAITING_PER_KEY`].
pub(crate) struct WaitingLines {
    shards: [Mutex<LineMap>; 64],
    waiting: AtomicUsize,
    next_ticket: AtomicU64,
}

/// The line of each key, by limit and key; empty ones are removed.
type LineMap = HashMap<(u64, Box<[u8]>), VecDeque<Waiter>>;

struct Waiter {
    ticket: u64,
    /// Units still to be charged; 0 once they are booked.
    cost: u64,
    waker: Option<Waker>,
}

impl WaitingLines {
    pub(crate) fn new() -> WaitingLines {
        WaitingLines {
            shards: std::array::from_fn(|_| Mutex::default()),
            waiting: AtomicUsize::new(0),
            next_ticket: AtomicU64::new(0),
        }
    }

    fn shard(&self, line: &(u64, Box<[u8]>)) -> MutexGuard<'_, LineMap> {
        let shard = (public_hash(&[&line.1]) ^ line.0) as usize % self.shards.len();
        self.shards[shard].lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Counts a waiter, unless there are too many.
    fn enter(&self) -> Option<WaiterPermit<'_>> {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        let counted = WaiterPermit(self);
        (waiting < MAX_WAITING).then_some(counted)
    }

    /// Joins the end of a key's line, if there is room.
    fn join(&self, check: &Check<'_>) -> Option<LinePlace<'_>> {
        let counted = self.enter()?;
        let line = (check.limit.id(), Box::from(check.key.as_bytes()));
        let mut lines = self.shard(&line);
        // Numbered under the lock: the order of tickets is the order in line.
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let waiters = lines.entry(line.clone()).or_default();
        if waiters.len() >= MAX_WAITING_PER_KEY {
            return None;
        }
        waiters.push_back(Waiter { ticket, cost: check.cost, waker: None });
        Some(LinePlace { waiting_lines: self, line, ticket, _permit: counted })
    }
}

/// Permission to wait, counted against [`MAX_WAITING`].
struct WaiterPermit<'a>(&'a WaitingLines);

impl Drop for WaiterPermit<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place in line; dropping it leaves the line and wakes the next.
struct LinePlace<'a> {
    waiting_lines: &'a WaitingLines,
    line: (u64, Box<[u8]>),
    ticket: u64,
    _permit: WaiterPermit<'a>,
}

impl LinePlace<'_> {
    /// The costs of all waiters ahead, and this one's.
    fn costs_up_to_here(&self) -> Vec<u64> {
        let lines = self.waiting_lines.shard(&self.line);
        let waiters = lines.get(&self.line).into_iter().flatten();
        waiters
            .take_while(|waiter| waiter.ticket <= self.ticket)
            .map(|waiter| waiter.cost)
            .collect()
    }

    /// Marks the head as charged, so that those behind do not count it twice.
    fn mark_charged(&self) {
        let mut lines = self.waiting_lines.shard(&self.line);
        let waiters = lines.get_mut(&self.line).into_iter().flatten();
        for waiter in waiters.filter(|waiter| waiter.ticket == self.ticket) {
            waiter.cost = 0;
        }
    }

    /// Waits until this place is at the head.
    async fn head_of_line(&self) {
        poll_fn(|context| {
            let mut lines = self.waiting_lines.shard(&self.line);
            let waiters =
                lines.get_mut(&self.line).expect("a place stays in its line until it is dropped");
            if waiters.front().is_some_and(|first| first.ticket == self.ticket) {
                return Poll::Ready(());
            }
            let own = waiters.iter_mut().find(|waiter| waiter.ticket == self.ticket);
            own.expect("a place stays in its line until it is dropped").waker =
                Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for LinePlace<'_> {
    fn drop(&mut self) {
        let mut lines = self.waiting_lines.shard(&self.line);
        let Some(waiters) = lines.get_mut(&self.line) else { return };
        waiters.retain(|waiter| waiter.ticket != self.ticket);
        let next = waiters.front_mut().and_then(|first| first.waker.take());
        if waiters.is_empty() {
            lines.remove(&self.line);
        }
        drop(lines);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}
