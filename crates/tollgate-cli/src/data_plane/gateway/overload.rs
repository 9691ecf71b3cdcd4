//! Overload of the gateway itself: a bound on requests in progress, and a short queue in front of it.
//!
//! Each worker has its share of the bounds and its own queue, so requests of different workers share no lock. A request
//! beyond the bound waits its turn; if the queue is full, or the wait takes too long, it is answered with 503. Nothing is
//! charged for it, because it has not been decided yet. A request that the rules let wait leaves its place meanwhile, and
//! takes one again when its turn has come; if there is none, it gets back what it was charged. A request that has to wait for its
//! body before the decision leaves its place meanwhile, too, and nothing is charged for it if there is none afterwards.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Sleep;

/// The bounds of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerBounds {
    /// Most requests in progress.
    pub(crate) requests_max: usize,
    /// Most requests that wait.
    pub(crate) waiting_max: usize,
    /// Longest wait.
    pub(crate) wait_max: Duration,
}

impl WorkerBounds {
    /// Divides the bounds of the gateway among its workers, rounded up.
    pub(crate) fn share(self, workers: usize) -> WorkerBounds {
        WorkerBounds {
            requests_max: self.requests_max.div_ceil(workers.max(1)),
            waiting_max: self.waiting_max.div_ceil(workers.max(1)),
            wait_max: self.wait_max,
        }
    }
}

/// The reason why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverloadRefusal {
    /// The queue is full.
    QueueFull,
    /// The request has waited too long.
    WaitedTooLong,
}

/// Counts of requests that waited or were refused.
#[derive(Debug, Default)]
pub(super) struct OverloadCounts {
    pub(super) waited: AtomicU64,
    pub(super) queue_full: AtomicU64,
    pub(super) waited_too_long: AtomicU64,
}

thread_local! {
    /// The queue of this worker. Workers of the gateway serve nothing else.
    static QUEUE: RefCell<WorkerQueue> = RefCell::default();
}

#[derive(Default)]
struct WorkerQueue {
    in_progress: usize,
    /// Requests that wait, the first in line first. Bound: `waiting_max`.
    waiting: VecDeque<QueueTicket>,
    last_ticket: u64,
}

/// A place in the queue.
struct QueueTicket {
    number: u64,
    waker: Option<Waker>,
}

/// A request in progress. Dropping it lets the next one begin.
#[derive(Debug)]
pub(super) struct RequestPlace(());

impl Drop for RequestPlace {
    fn drop(&mut self) {
        QUEUE.with_borrow_mut(WorkerQueue::leave);
    }
}

/// Begins a request at once if there is room, otherwise queues it.
pub(super) fn enter(
    bounds: WorkerBounds,
    counts: &Arc<OverloadCounts>,
) -> Result<RequestPlace, Result<OverloadWait, OverloadRefusal>> {
    QUEUE.with_borrow_mut(|queue| {
        // Those who wait come first.
        if queue.in_progress < bounds.requests_max && queue.waiting.is_empty() {
            queue.in_progress += 1;
            return Ok(RequestPlace(()));
        }
        if queue.waiting.len() >= bounds.waiting_max {
            counts.queue_full.fetch_add(1, Ordering::Relaxed);
            return Err(Err(OverloadRefusal::QueueFull));
        }
        counts.waited.fetch_add(1, Ordering::Relaxed);
        queue.last_ticket += 1;
        let number = queue.last_ticket;
        queue.waiting.push_back(QueueTicket { number, waker: None });
        let timer = Box::pin(tokio::time::sleep(bounds.wait_max));
        Err(Ok(OverloadWait { ticket: Some(number), bounds, counts: counts.clone(), timer }))
    })
}

impl WorkerQueue {
    fn leave(&mut self) {
        self.in_progress -= 1;
        self.wake_first();
    }

    fn wake_first(&mut self) {
        if let Some(waker) = self.waiting.front_mut().and_then(|first| first.waker.take()) {
            waker.wake();
        }
    }

    /// Takes a place for the request with this ticket if it is the first in line and there is room.
    fn try_begin(&mut self, ticket: u64, requests_max: usize) -> bool {
        let is_first = self.waiting.front().is_some_and(|first| first.number == ticket);
        if !is_first || self.in_progress >= requests_max {
            return false;
        }
        self.waiting.pop_front();
        self.in_progress += 1;
        // There may be room for the next one as well.
        if self.in_progress < requests_max {
            self.wake_first();
        }
        true
    }

    fn set_waker(&mut self, ticket: u64, waker: &Waker) {
        let mine = self.waiting.iter_mut().find(|waiting| waiting.number == ticket);
        if let Some(mine) = mine {
            mine.waker = Some(waker.clone());
        }
    }

    /// Removes a ticket whose request is given up.
    fn give_up(&mut self, ticket: u64) {
        self.waiting.retain(|waiting| waiting.number != ticket);
        // The first one may have been woken just now; the next must not wait for it.
        self.wake_first();
    }
}

/// A request that waits its turn. Dropping it frees its place in the queue.
pub(super) struct OverloadWait {
    /// `None` once the wait is over.
    ticket: Option<u64>,
    bounds: WorkerBounds,
    counts: Arc<OverloadCounts>,
    timer: Pin<Box<Sleep>>,
}

impl Future for OverloadWait {
    type Output = Result<RequestPlace, OverloadRefusal>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ticket = self.ticket.expect("it is polled until it is ready");
        let begins = QUEUE.with_borrow_mut(|queue| {
            let begins = queue.try_begin(ticket, self.bounds.requests_max);
            if !begins {
                queue.set_waker(ticket, context.waker());
            }
            begins
        });
        if begins {
            self.ticket = None;
            return Poll::Ready(Ok(RequestPlace(())));
        }
        self.timer.as_mut().poll(context).map(|()| {
            self.counts.waited_too_long.fetch_add(1, Ordering::Relaxed);
            Err(OverloadRefusal::WaitedTooLong)
        })
    }
}

impl Drop for OverloadWait {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            QUEUE.with_borrow_mut(|queue| queue.give_up(ticket));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const BOUNDS: WorkerBounds = WorkerBounds { requests_max: 2, waiting_max: 2, wait_max: HOUR };

    fn queue_lengths() -> (usize, usize) {
        QUEUE.with_borrow(|queue| (queue.in_progress, queue.waiting.len()))
    }

    fn queued(counts: &Arc<OverloadCounts>, wait_max: Duration) -> OverloadWait {
        match enter(WorkerBounds { wait_max, ..BOUNDS }, counts) {
            Err(Ok(queued)) => queued,
            _ => panic!("there is room in the queue, and nowhere else"),
        }
    }

    #[tokio::test]
    async fn requests_beyond_the_bound_wait_in_order_and_the_queue_is_bounded() {
        let counts = Arc::<OverloadCounts>::default();
        let first = enter(BOUNDS, &counts).unwrap_or_else(|_| panic!("there is room"));
        let second = enter(BOUNDS, &counts).unwrap_or_else(|_| panic!("there is room"));
        let (third, mut fourth) = (queued(&counts, HOUR), queued(&counts, HOUR));
        assert!(matches!(enter(BOUNDS, &counts), Err(Err(OverloadRefusal::QueueFull))));
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut fourth).poll(&mut context).is_pending());
        drop(first);
        assert!(Pin::new(&mut fourth).poll(&mut context).is_pending(), "the third comes first");
        assert!(matches!(enter(BOUNDS, &counts), Err(Err(OverloadRefusal::QueueFull))));
        let third = third.await.expect("its turn");
        drop(second);
        let fourth = fourth.await.expect("its turn");
        assert_eq!(queue_lengths(), (2, 0));
        drop((third, fourth));
        assert_eq!(queue_lengths(), (0, 0));
        assert_eq!(counts.queue_full.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_wait_ends_by_time_and_a_client_that_leaves_frees_its_place() {
        let counts = Arc::<OverloadCounts>::default();
        let busy: Vec<_> = (0..2).map(|_| enter(BOUNDS, &counts).ok()).collect();
        let (late, gone) = (queued(&counts, Duration::ZERO), queued(&counts, HOUR));
        assert_eq!(late.await.err(), Some(OverloadRefusal::WaitedTooLong));
        assert_eq!(queue_lengths(), (2, 1));
        // The one in front leaves after it was woken: the next must still be served.
        let mut next = queued(&counts, HOUR);
        assert!(Pin::new(&mut next).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(busy);
        drop(gone);
        drop(next.await.expect("nobody is in front of it"));
        assert_eq!(queue_lengths(), (0, 0));
        assert_eq!(counts.waited_too_long.load(Ordering::Relaxed), 1);
    }
}
