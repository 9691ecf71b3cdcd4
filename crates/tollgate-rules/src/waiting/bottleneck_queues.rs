//! `BottleneckQueues`: one fair queue for each bottleneck, while somebody waits there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use arrayvec::ArrayVec;
use tollgate::Micros;
use tollgate::queue::{FairQueue, FairTicket, FlowKey, QueueBounds, QueuedCost};

use super::BottleneckId;
use super::wait_budget::{FirstUnits, WaitBudget};

/// The most requests that wait in a process, over all rules.
pub const WAITING_MAX: usize = 200_000;

/// Number of locks that the queues are divided among.
const SHARDS: usize = 64;

/// The most requests of one queue that ask the store at once. A store behind a network answers each after a round trip, and
/// the queue has to be served faster than that.
const TRIES_MAX: usize = 32;

/// The most waiting requests that are counted to find out whether a newcomer would wait in vain.
const COUNTED_AHEAD_MAX: usize = 1_024;

/// All queues.
#[derive(Debug)]
pub(super) struct BottleneckQueues {
    /// A queue exists only while somebody waits in it. Bound: [`WAITING_MAX`].
    shards: [Mutex<QueueShard>; SHARDS],
    /// Number of requests that wait. Bound: [`WAITING_MAX`].
    waiting: AtomicUsize,
    /// Number of queues so far.
    opened: AtomicU64,
}

/// A place in a queue. It names the queue by number as well, because a bottleneck may have had other queues before.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceId {
    pub(super) bottleneck: BottleneckId,
    queue_number: u64,
    ticket: FairTicket,
}

type QueueShard = HashMap<BottleneckId, BottleneckQueue>;

impl Default for BottleneckQueues {
    fn default() -> BottleneckQueues {
        BottleneckQueues {
            shards: std::array::from_fn(|_| Mutex::default()),
            waiting: AtomicUsize::new(0),
            opened: AtomicU64::new(0),
        }
    }
}

/// The requests that wait at one bottleneck.
#[derive(Debug)]
struct BottleneckQueue {
    number: u64,
    /// Each request by the waker of its task. Bound: that of the rule.
    queue: FairQueue<Option<Waker>>,
    /// The requests that are asking the store. Bound: [`TRIES_MAX`].
    trying: ArrayVec<FairTicket, TRIES_MAX>,
    /// The most requests that may try at once: twice as many after each admission, one after a refusal. Bound:
    /// [`TRIES_MAX`].
    tries_max: usize,
    /// True if something became free since the last try began.
    freed: bool,
    /// A request that was refused, and when it tries again.
    retry: Option<(FairTicket, RetryTime)>,
    /// True if the limit takes for good what each request so far counts in the queue.
    is_budgeted: bool,
}

/// The reason why a request does not join a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JoinRefusal {
    /// There is no room.
    Full,
    /// Those ahead take longer than the request may wait.
    TooLong,
}

/// The time of a request's next try.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryTime {
    /// The instant before which it need not try.
    pub(super) at: Micros,
    /// The instant before which the limit has no room for it, if the store has said so.
    pub(super) room_at: Option<Micros>,
}

/// A request that joins a queue.
pub(super) struct JoiningRequest<'a> {
    pub(super) flow: FlowKey,
    pub(super) cost: QueuedCost,
    pub(super) deadline: Micros,
    pub(super) bounds: QueueBounds,
    /// True if the rule has no place left: a request of a longer flow in this queue has to make room.
    pub(super) needs_room: bool,
    /// The time of its next try, if it has been refused.
    pub(super) retry: Option<RetryTime>,
    /// The limit that it waits for, and until when, if it may be refused for those ahead.
    pub(super) budget: Option<WaitBudget<'a>>,
}

/// The next step of a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueStep {
    /// It is its turn to ask the store: it has to report the result.
    Try,
    /// It is next and looks again at this instant.
    LookAgain(Micros),
    /// It is woken when it is its turn.
    Sleep,
    /// It has lost its place, by age or because it had to make room.
    Gone,
}

impl BottleneckQueues {
    /// Number of requests that wait.
    pub(super) fn len(&self) -> usize {
        let queues = self.shards.iter().map(|shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.values().map(|one| one.queue.len()).sum::<usize>()
        });
        queues.sum()
    }

    #[inline]
    pub(super) fn anybody_waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns true if somebody waits at this bottleneck.
    pub(super) fn has_queue(&self, bottleneck: BottleneckId) -> bool {
        self.shard(bottleneck).contains_key(&bottleneck)
    }

    /// Joins a queue that has room and can serve the request in time.
    pub(super) fn join(
        &self,
        bottleneck: BottleneckId,
        request: JoiningRequest<'_>,
    ) -> Result<PlaceId, JoinRefusal> {
        let JoiningRequest { flow, cost, deadline, bounds, needs_room, retry, budget } = request;
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(JoinRefusal::Full);
        }
        let mut wakers = WakerList::default();
        let mut shard = self.shard(bottleneck);
        let one = shard.entry(bottleneck).or_insert_with(|| {
            BottleneckQueue::new(self.opened.fetch_add(1, Ordering::Relaxed), bounds)
        });
        if budget.is_some_and(|budget| one.exceeds(budget, (flow, cost))) {
            Self::drop_if_empty(&mut shard, bottleneck);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(JoinRefusal::TooLong);
        }
        one.is_budgeted &= budget.is_some();
        let total = if needs_room { one.queue.len().min(bounds.total) } else { bounds.total };
        one.queue.set_bounds(QueueBounds { total, ..bounds });
        let expires_first = one.queue.next_expiry().is_some_and(|first| deadline < first);
        let Ok(queued) = one.queue.push(flow, cost, deadline, None) else {
            Self::drop_if_empty(&mut shard, bottleneck);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(JoinRefusal::Full);
        };
        if let Some(displaced) = queued.displaced {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            wakers.0.extend(displaced);
        }
        let is_next = one.is_next(queued.ticket);
        if is_next && let Some(retry) = retry {
            one.retry = Some((queued.ticket, retry));
        }
        if !is_next && expires_first {
            // The next one sets a timer for everybody's deadlines.
            wakers.0.extend(one.take_next_waker());
        }
        let place = PlaceId { bottleneck, queue_number: one.number, ticket: queued.ticket };
        drop(shard);
        Ok(place)
    }

    /// Finds the next step of a request. If it has to wait, `waker` is kept.
    pub(super) fn next_step(&self, place: PlaceId, now: Micros, waker: &Waker) -> QueueStep {
        let PlaceId { bottleneck, ticket, .. } = place;
        let mut wakers = WakerList::default();
        let mut shard = self.shard(bottleneck);
        let Some(one) = place.queue_in(&mut shard) else { return QueueStep::Gone };
        let mut expired = 0;
        while let Some(gone) = one.queue.expire(now) {
            wakers.0.extend(gone);
            expired += 1;
        }
        self.waiting.fetch_sub(expired, Ordering::Relaxed);
        let step = one.next_step(ticket, now, waker);
        let may_try = step == QueueStep::Try && one.trying.len() < one.tries_max;
        if may_try || expired > 0 && !one.is_next(ticket) {
            wakers.0.extend(one.take_next_waker());
        }
        Self::drop_if_empty(&mut shard, bottleneck);
        drop(shard);
        step
    }

    /// Ends a try that was admitted: the request leaves, and more may try at once.
    pub(super) fn served(&self, place: PlaceId) {
        self.leave_by(place, |one| {
            one.retry = None;
            one.tries_max = (2 * one.tries_max).min(TRIES_MAX);
            one.queue.serve(place.ticket)
        });
    }

    /// Takes a request out that gives up, or that waits elsewhere.
    pub(super) fn leave(&self, place: PlaceId) {
        self.leave_by(place, |one| one.queue.remove(place.ticket));
    }

    /// Ends a try that was refused at this bottleneck: the request need not try before that time, nor those behind it.
    pub(super) fn refused(&self, place: PlaceId, retry: RetryTime) {
        let ticket = place.ticket;
        let mut shard = self.shard(place.bottleneck);
        let Some(one) = place.queue_in(&mut shard) else { return };
        one.end_try(ticket);
        one.tries_max = 1;
        let is_next = one.is_next(ticket);
        if is_next {
            one.retry = (!one.freed).then_some((ticket, retry));
        }
        let next = if is_next { None } else { one.take_next_waker() };
        drop(shard);
        next.into_iter().for_each(Waker::wake);
    }

    /// Lets the next request try at once, because what it waits for has become free.
    #[cold]
    pub(super) fn free(&self, bottleneck: BottleneckId) {
        let mut shard = self.shard(bottleneck);
        let Some(one) = shard.get_mut(&bottleneck) else { return };
        (one.freed, one.retry) = (true, None);
        let next = one.take_next_waker();
        drop(shard);
        next.into_iter().for_each(Waker::wake);
    }

    /// Lets the next request of every queue try at once.
    pub(super) fn free_all(&self) {
        for shard in &self.shards {
            let mut wakers = WakerList::default();
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for one in shard.values_mut() {
                (one.freed, one.retry) = (true, None);
                wakers.0.extend(one.take_next_waker());
            }
            drop(shard);
        }
    }

    /// Wakes everybody who waits, in the order in which they may have to wait elsewhere: new rules may have changed what a
    /// request waits for.
    pub(super) fn wake_all(&self) {
        for shard in &self.shards {
            let mut wakers = WakerList::default();
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for one in shard.values_mut() {
                one.queue.visit_items(|waker| wakers.0.extend(waker.take()));
            }
            drop(shard);
        }
    }

    fn leave_by(
        &self,
        place: PlaceId,
        take_out: impl FnOnce(&mut BottleneckQueue) -> Option<Option<Waker>>,
    ) {
        let PlaceId { bottleneck, ticket, .. } = place;
        let mut shard = self.shard(bottleneck);
        let Some(one) = place.queue_in(&mut shard) else { return };
        let passes_on = one.is_next(ticket) | one.end_try(ticket);
        if take_out(one).is_some() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        let next = if passes_on { one.take_next_waker() } else { None };
        Self::drop_if_empty(&mut shard, bottleneck);
        drop(shard);
        next.into_iter().for_each(Waker::wake);
    }

    fn drop_if_empty(shard: &mut QueueShard, bottleneck: BottleneckId) {
        if shard.get(&bottleneck).is_some_and(|one| one.queue.is_empty()) {
            shard.remove(&bottleneck);
        }
    }

    /// Nothing under the lock panics halfway through a change but a bug of the queue itself.
    fn shard(&self, bottleneck: BottleneckId) -> MutexGuard<'_, QueueShard> {
        let shard = &self.shards[bottleneck.0 as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PlaceId {
    /// The queue, if it still exists.
    fn queue_in(self, shard: &mut QueueShard) -> Option<&mut BottleneckQueue> {
        shard.get_mut(&self.bottleneck).filter(|one| one.number == self.queue_number)
    }
}

impl BottleneckQueue {
    fn new(number: u64, bounds: QueueBounds) -> BottleneckQueue {
        let queue = FairQueue::new(bounds);
        let trying = ArrayVec::new();
        BottleneckQueue {
            number,
            queue,
            trying,
            tries_max: 1,
            freed: false,
            retry: None,
            is_budgeted: true,
        }
    }

    /// Returns true if those ahead of a newcomer use up what its limit can admit in time.
    fn exceeds(&self, budget: WaitBudget<'_>, (flow, cost): (FlowKey, QueuedCost)) -> bool {
        let Some((refused, retry)) = self.retry.filter(|_| self.is_budgeted) else { return false };
        let head = self.queue.head().map(|(ticket, _)| ticket);
        let Some(not_before) = retry.room_at.filter(|_| head == Some(refused)) else {
            return false;
        };
        let units = self.queue.units_ahead(flow, cost, COUNTED_AHEAD_MAX);
        if units == 0 {
            // It goes ahead of the one that the store refused, and may have room already.
            return false;
        }
        let first = FirstUnits { units: self.queue.units_of_head(), not_before };
        if budget.earliest_turn(units.saturating_add(cost.units), first) < budget.deadline {
            return false;
        }
        let all_stay = self
            .queue
            .next_expiry()
            .is_none_or(|expiry| budget.earliest_turn(units, first) < expiry);
        // Which of them give up before their turn matters only now, and takes longer to find out.
        let ahead = || self.queue.waiters_ahead(flow, cost, COUNTED_AHEAD_MAX);
        all_stay || budget.is_exceeded(ahead(), cost.units, first)
    }

    /// The first request that is not trying.
    fn next(&self) -> Option<FairTicket> {
        self.queue.next_after(&self.trying)
    }

    fn is_next(&self, ticket: FairTicket) -> bool {
        self.next() == Some(ticket)
    }

    /// Returns false if the request was not trying.
    fn end_try(&mut self, ticket: FairTicket) -> bool {
        let index = self.trying.iter().position(|one| *one == ticket);
        index.map(|index| self.trying.swap_remove(index)).is_some()
    }

    fn next_step(&mut self, ticket: FairTicket, now: Micros, waker: &Waker) -> QueueStep {
        let is_next = self.is_next(ticket);
        let Some(kept) = self.queue.get_mut(ticket) else { return QueueStep::Gone };
        match self.retry.filter(|(refused, _)| *refused == ticket) {
            _ if !is_next || self.trying.len() >= self.tries_max => {
                *kept = Some(waker.clone());
                QueueStep::Sleep
            }
            Some((_, RetryTime { at, .. })) if now < at => {
                *kept = Some(waker.clone());
                let expiry = self.queue.next_expiry().unwrap_or(at);
                QueueStep::LookAgain(at.min(expiry))
            }
            _ => {
                self.trying.push(ticket);
                self.freed = false;
                QueueStep::Try
            }
        }
    }

    fn take_next_waker(&mut self) -> Option<Waker> {
        let ticket = self.next()?;
        self.queue.get_mut(ticket)?.take()
    }
}

/// Wakers to be called when the lock is released: the list is dropped after the guard.
#[derive(Default)]
struct WakerList(Vec<Waker>);

impl Drop for WakerList {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}
