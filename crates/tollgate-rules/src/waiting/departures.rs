//! `Departure`: an admitted request that a limit with `queue: true` delays, until it may go on.
//!
//! The store schedules departures. The lines here keep them apart in this process when a timer is late or a client
//! leaves: two departures of one key are never closer than the interval of the first. Over a shared store each
//! instance has lines of its own requests, and the store's schedule interleaves them.
//!
//! A request under several such limits stands in the line of the one that delays it longest. It keeps the pace of the
//! others when it departs, but does not hold back those who stand there: otherwise a caller's own slow line would
//! block the line of all callers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::queue::{DepartureLine, LineTicket};
use tollgate::{Clock, Limit, Micros, Wait};

use super::head_timer::HeadTimer;
use super::line_pace::{LineOwner, LineRequest};
use super::{BottleneckId, TurnSleepFn, WaitOutcome, WaitTally, WaitingTables};

/// The most requests in one line. Each holds a reservation, and there are not more of these.
const PLACES_MAX: usize = crate::reservation::RESERVATIONS_MAX;

/// The lines of all keys.
#[derive(Debug, Default)]
pub(super) struct DepartureLines {
    /// One lock for all: a request that joins looks at several lines at one instant, and only requests under limits
    /// with a queue come here.
    table: Mutex<LineTable>,
    /// True if there is a line.
    in_use: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct LineTable {
    /// A line exists while somebody waits in it, and until the last departure has had its interval. Bound: the
    /// reservations of requests that wait, and the keys of those that departed within their interval.
    pub(super) lines: HashMap<BottleneckId, KeyLine>,
    /// Lines that were left empty, by the instant from which they are not needed. Bound: as many as lines.
    idle: BinaryHeap<Reverse<(Micros, BottleneckId)>>,
    opened: u64,
    /// The latest instant that anybody has read: the present, or somewhat before.
    latest: Micros,
    /// Number of requests in all lines.
    standing: usize,
}

/// The line of one key.
#[derive(Debug)]
pub(super) struct KeyLine {
    /// The number of the line: a key may have had others before.
    number: u64,
    pub(super) line: DepartureLine<LineRequest>,
    /// The limit that paces the line, once somebody stands in it.
    pub(super) owner: Option<Box<LineOwner>>,
    /// The instant and the limit of the departure whose interval keeps the head back.
    pub(super) held_by: Option<(Micros, Arc<Limit>)>,
    /// True if the line is in the list of idle ones.
    is_listed: bool,
}

/// A limit with a queue that a request passes.
#[derive(Clone)]
pub(super) struct PassedQueue {
    pub(super) bottleneck: BottleneckId,
    pub(super) limit: Arc<Limit>,
    /// The units that the request takes of it.
    pub(super) cost: u64,
    /// The delay that the store gave.
    pub(super) delay: Wait,
}

impl PassedQueue {
    /// The time that the cost of the request takes.
    fn interval(&self) -> Wait {
        self.limit.time_of(self.cost)
    }

    /// The longest delay: the capacity of the queue.
    fn delay_max(&self) -> Wait {
        Wait::from_micros(self.limit.full_refill_us())
    }
}

/// A request that joins a line.
pub(super) struct LineNewcomer<'a> {
    /// The queue that delays it longest.
    pub(super) slowest: PassedQueue,
    /// The others that it passes.
    pub(super) others: PassedQueues,
    /// Tells whose limit the slowest is.
    pub(super) owner: &'a dyn Fn() -> LineOwner,
}

/// The queues that a request passes. Bound: the limits of a decision.
pub(super) type PassedQueues = ArrayVec<PassedQueue, MAX_LIMITS>;

/// An admitted request that waits for its departure. Dropping it leaves the line, and those behind move up.
pub struct Departure {
    tables: Arc<WaitingTables>,
    tally: Arc<WaitTally>,
    line: BottleneckId,
    number: u64,
    ticket: LineTicket,
    /// The other queues that it passes.
    others: Box<[PassedQueue]>,
    joined_at: Micros,
    departs_at: Micros,
    /// The end of the wait; a client that leaves if nothing else ended it.
    end: (WaitOutcome, Wait),
}

impl fmt::Debug for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Departure").field("departs_at", &self.departs_at).finish_non_exhaustive()
    }
}

impl DepartureLines {
    /// Returns true if a request without a delay may have to wait for others.
    #[inline]
    pub(super) fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Number of requests that wait.
    pub(super) fn len(&self) -> usize {
        self.table().standing
    }

    /// A panic under the lock leaves at worst one place that nobody takes.
    pub(super) fn table(&self) -> MutexGuard<'_, LineTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Departure {
    /// Joins the line of the slowest queue that a request passes. `None` if it may go on at once, `Err` with the wait if
    /// it would have to wait longer than the capacity of its queue or `patience`. `records` says if a departure at once
    /// is recorded although nobody stands in line.
    pub(super) fn join(
        tables: &Arc<WaitingTables>,
        tally: &Arc<WaitTally>,
        newcomer: LineNewcomer<'_>,
        patience: impl FnOnce() -> Wait,
        (now, records): (Micros, bool),
    ) -> Result<Option<Departure>, Wait> {
        let LineNewcomer { slowest, others, owner } = newcomer;
        let mut table = tables.lines.table();
        table.drop_idle(now);
        table.latest = table.latest.max(now);
        // The clock may have been read before a departure that other threads have recorded since.
        let present = table.latest;
        let others_free = table.others_free_at(&others, now);
        table.release_by(&slowest, now);
        let scheduled = now.after(slowest.delay);
        if scheduled.max(others_free) <= now && table.may_pass(slowest.bottleneck, now) {
            table.pass(others.iter().chain([&slowest]), now, records);
            tables.lines.in_use.store(!table.lines.is_empty(), Ordering::Relaxed);
            return Ok(None);
        }
        let one = table.line(slowest.bottleneck);
        let moved_up = one.follow_newcomer(&slowest.limit, owner, now);
        let (interval, delay_max) = (slowest.interval(), slowest.delay_max());
        let request = LineRequest::new(&slowest.limit, slowest.cost);
        let Ok(joined) = one.line.join(scheduled, interval, request) else {
            drop(table);
            moved_up.into_iter().for_each(Waker::wake);
            return Err(delay_max);
        };
        // Timers are late at times, and the schedule of the store does not know. One interval of the capacity is
        // left for that, so that nobody waits longer than the capacity.
        let departs_at = joined.departs_at.max(others_free);
        let wait = now.until(departs_at);
        let latest = present.min(now.after(delay_max)).after(delay_max);
        let is_late = joined.departs_at > scheduled && joined.departs_at.after(interval) > latest;
        if is_late || wait > patience() {
            one.line.leave(joined.ticket);
            table.list_if_empty(slowest.bottleneck);
            tables.lines.in_use.store(true, Ordering::Relaxed);
            drop(table);
            moved_up.into_iter().for_each(Waker::wake);
            return Err(wait);
        }
        let number = one.number;
        table.standing += 1;
        tables.lines.in_use.store(true, Ordering::Relaxed);
        drop(table);
        moved_up.into_iter().for_each(Waker::wake);
        tally.begin();
        Ok(Some(Departure {
            tables: Arc::clone(tables),
            tally: Arc::clone(tally),
            line: slowest.bottleneck,
            number,
            ticket: joined.ticket,
            others: others.into_iter().collect(),
            joined_at: now,
            departs_at,
            end: (WaitOutcome::Left, Wait::ZERO),
        }))
    }

    /// The instant at which the request departs, if everybody ahead stays and departs in time.
    pub fn departs_at(&self) -> Micros {
        self.departs_at
    }

    /// Waits until the request departs: never early by `clock`.
    pub async fn wait(mut self, clock: &impl Clock, sleep: &TurnSleepFn) {
        // Only the head of a line has a timer.
        let mut timer = HeadTimer::default();
        let departed_at = poll_fn(|context| {
            loop {
                let now = clock.now();
                let at = match self.next_step(now, context.waker()) {
                    LineStep::Go => return Poll::Ready(now),
                    LineStep::Wait => {
                        timer.clear();
                        return Poll::Pending;
                    }
                    LineStep::LookAgain(at) => at,
                };
                if timer.poll_until((now, at), sleep, context).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await;
        self.end = (WaitOutcome::Delayed, self.joined_at.until(departed_at));
    }

    fn next_step(&self, now: Micros, waker: &Waker) -> LineStep {
        let mut table = self.tables.lines.table();
        table.latest = table.latest.max(now);
        let others_free = table.others_free_at(&self.others, now);
        let Some(one) = table.line_of(self.line, self.number) else { return LineStep::Go };
        let at = match one.line.head() {
            Some((head, at)) if head == self.ticket => at.max(others_free),
            _ => match one.line.get_mut(self.ticket) {
                Some(request) => {
                    request.waker = Some(waker.clone());
                    return LineStep::Wait;
                }
                None => return LineStep::Go,
            },
        };
        if now < at {
            // A higher rate moves it up.
            if let Some(request) = one.line.get_mut(self.ticket) {
                request.waker = Some(waker.clone());
            }
            return LineStep::LookAgain(at);
        }
        one.held_by = one.line.depart(now).map(|departed| (now, departed.into_limit()));
        let next = one.take_head_waker();
        table.standing -= 1;
        table.list_if_empty(self.line);
        table.pass(self.others.iter(), now, true);
        drop(table);
        next.into_iter().for_each(Waker::wake);
        LineStep::Go
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        let mut table = self.tables.lines.table();
        let mut next = None;
        if let Some(one) = table.line_of(self.line, self.number) {
            let was_head = one.line.head().is_some_and(|(head, _)| head == self.ticket);
            let has_left = one.line.leave(self.ticket).is_some();
            next = if was_head { one.take_head_waker() } else { None };
            table.standing -= usize::from(has_left);
            table.list_if_empty(self.line);
        }
        drop(table);
        next.into_iter().for_each(Waker::wake);
        self.tally.end(self.end.0, self.end.1);
    }
}

/// The next step of a request in line.
enum LineStep {
    /// It departs.
    Go,
    /// It is the head and looks again at this instant.
    LookAgain(Micros),
    /// It is woken when it becomes the head.
    Wait,
}

impl LineTable {
    /// The line of a key, opened if there is none.
    fn line(&mut self, bottleneck: BottleneckId) -> &mut KeyLine {
        let opened = &mut self.opened;
        self.lines.entry(bottleneck).or_insert_with(|| {
            *opened += 1;
            let line = DepartureLine::new(PLACES_MAX);
            KeyLine { number: *opened, line, owner: None, held_by: None, is_listed: false }
        })
    }

    /// The line of a key, if it is still the one of this number.
    fn line_of(&mut self, bottleneck: BottleneckId, number: u64) -> Option<&mut KeyLine> {
        self.lines.get_mut(&bottleneck).filter(|one| one.number == number)
    }

    /// The instant at which the last departures under all of these limits have had their intervals.
    fn others_free_at(&mut self, others: &[PassedQueue], now: Micros) -> Micros {
        others.iter().map(|other| self.release_by(other, now)).max().unwrap_or_default()
    }

    /// Shortens the interval of a key's last departure to that of a limit with a higher rate. Returns its end.
    fn release_by(&mut self, queue: &PassedQueue, now: Micros) -> Micros {
        let Some(one) = self.lines.get_mut(&queue.bottleneck) else { return Micros::ZERO };
        one.release_by(&queue.limit, now);
        one.line.free_at()
    }

    /// Returns true if a request that the store does not delay may go on: nobody waits, and the last departure has
    /// had its interval.
    fn may_pass(&self, bottleneck: BottleneckId, now: Micros) -> bool {
        self.lines.get(&bottleneck).is_none_or(|one| one.line.is_idle(now))
    }

    /// Records a departure: the next one keeps its distance. Whoever stands in any line may have one of these queues
    /// among its others, so their lines are opened then. If nobody does, the schedule of the store is enough, and the
    /// lines come to rest.
    fn pass<'q>(
        &mut self,
        queues: impl Iterator<Item = &'q PassedQueue>,
        now: Micros,
        records: bool,
    ) {
        let opens = records || self.standing > 0;
        for queue in queues {
            if opens {
                self.line(queue.bottleneck);
            }
            if let Some(one) = self.lines.get_mut(&queue.bottleneck) {
                let until = now.after(queue.interval());
                if until > one.line.free_at() {
                    one.line.hold_back(until);
                    one.held_by = Some((now, Arc::clone(&queue.limit)));
                }
                self.list_if_empty(queue.bottleneck);
            }
        }
    }

    /// Lists a line that was left empty, to be dropped later.
    fn list_if_empty(&mut self, bottleneck: BottleneckId) {
        if let Some(one) = self.lines.get_mut(&bottleneck)
            && one.line.is_empty()
            && !one.is_listed
        {
            one.is_listed = true;
            self.idle.push(Reverse((one.line.free_at(), bottleneck)));
        }
    }

    /// Drops lines that are not needed any more.
    fn drop_idle(&mut self, now: Micros) {
        while let Some(&Reverse((free_at, bottleneck))) = self.idle.peek()
            && free_at <= now
        {
            self.idle.pop();
            let Some(one) = self.lines.get_mut(&bottleneck) else { continue };
            one.is_listed = false;
            if one.line.is_idle(now) {
                self.lines.remove(&bottleneck);
            } else {
                self.list_if_empty(bottleneck);
            }
        }
    }
}

impl KeyLine {
    pub(super) fn take_head_waker(&mut self) -> Option<Waker> {
        let (ticket, _) = self.line.head()?;
        self.line.get_mut(ticket)?.waker.take()
    }
}
