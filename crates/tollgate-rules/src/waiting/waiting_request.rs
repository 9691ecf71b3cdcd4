//! `WaitingRequest`: one request in its queue. Dropping it frees its place at once.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tollgate::queue::{FlowKey, QueueBounds, QueuedCost};
use tollgate::{Clock, Limit, Micros, Refusal, Wait};

use super::bottleneck_queues::{JoinRefusal, JoiningRequest, PlaceId, QueueStep, RetryTime};
use super::head_timer::HeadTimer;
use super::wait_budget::WaitBudget;
use super::{BottleneckId, TurnSleepFn, WaitOutcome, WaitTally, WaitingTables};
use crate::reservation::ConcurrencyRefusal;
use crate::rule_set::RuleSet;

/// The longest time until the head of a queue looks again by itself: units that another instance gives back, or that
/// came back before it joined, wake nobody.
const LOOK_AGAIN: Wait = Wait::from_micros(1_000_000);

/// A request that waits its turn, for [`Gatekeeper::admit_in_turn`](crate::Gatekeeper::admit_in_turn). It has charged
/// nothing; dropping it frees its place.
pub struct WaitingRequest {
    /// The version of the rules that identified its caller. A try sees that one alone.
    pub(super) rules: Arc<RuleSet>,
    pub(super) place: QueuePlace,
}

impl WaitingRequest {
    /// The version of the rules that decides the request, and that its caller has to be identified by.
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }
}

impl fmt::Debug for WaitingRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingRequest").field("bottleneck", &self.place.id.bottleneck).finish()
    }
}

/// The reason why a request cannot go on now.
#[derive(Clone, Copy)]
pub(super) struct Obstacle {
    /// The place to wait at; `None` if no wait helps.
    pub(super) bottleneck: Option<BottleneckId>,
    pub(super) kind: ObstacleKind,
}

/// The part that refuses a request for now.
#[derive(Clone, Copy)]
pub(super) enum ObstacleKind {
    /// A limit, and the time until it has room.
    Limit(Wait),
    /// The `concurrency` of a rule, or the table of reservations.
    Busy(ConcurrencyRefusal),
    /// A refusal that no turn changes, such as that of a store that is unavailable, and the time until another try.
    Final(Refusal, Wait),
}

impl Obstacle {
    pub(super) fn busy(refusal: ConcurrencyRefusal) -> Obstacle {
        Obstacle { bottleneck: refusal.bottleneck, kind: ObstacleKind::Busy(refusal) }
    }

    /// The time of the next try. A limit for which others wait already has been asked for nothing.
    fn retry(&self, now: Micros) -> RetryTime {
        match self.kind {
            ObstacleKind::Limit(retry_after) => RetryTime {
                at: now.after(retry_after.min(LOOK_AGAIN)),
                room_at: (!retry_after.is_zero()).then(|| now.after(retry_after)),
            },
            ObstacleKind::Busy(_) | ObstacleKind::Final(..) => {
                RetryTime { at: now.after(LOOK_AGAIN), room_at: None }
            }
        }
    }

    /// Returns true if the request can wait for this until its deadline.
    fn can_be_waited_for(&self, deadline: Micros, now: Micros) -> bool {
        match self.kind {
            ObstacleKind::Limit(retry_after) => {
                !retry_after.is_never() && now.after(retry_after) < deadline
            }
            ObstacleKind::Busy(_) => true,
            ObstacleKind::Final(..) => false,
        }
    }
}

/// The end of a wait that was refused, and the reason that the client is told instead of that of the limit.
pub(super) type RefusedWait = (WaitOutcome, Option<Refusal>);

impl From<JoinRefusal> for RefusedWait {
    fn from(refusal: JoinRefusal) -> RefusedWait {
        match refusal {
            JoinRefusal::Full => (WaitOutcome::Full, Some(Refusal::QueueFull)),
            JoinRefusal::TooLong => (WaitOutcome::Refused, Some(Refusal::WaitTooLong)),
        }
    }
}

/// A wait that cannot help, which the refusal of the limit says by itself.
const NO_WAIT_HELPS: RefusedWait = (WaitOutcome::Refused, None);

/// The part of a request that its queue has to know.
#[derive(Clone, Copy)]
pub(super) struct QueueShare {
    pub(super) flow: FlowKey,
    pub(super) cost: QueuedCost,
    pub(super) bounds: QueueBounds,
}

/// The end of a wait for a turn.
pub(super) enum TurnEnd {
    /// It is its turn: the request asks the store, and reports the result.
    Try,
    /// The rules have changed: the request may have to wait elsewhere.
    Rejudge,
    /// It waits here for nothing by new rules: it tries as a newcomer.
    Move,
    /// The request has lost its place.
    Gone,
}

/// A place in a queue.
pub(super) struct QueuePlace {
    tables: Arc<WaitingTables>,
    tally: Arc<WaitTally>,
    id: PlaceId,
    share: QueueShare,
    arrived: Micros,
    deadline: Micros,
    /// The instant until which the client waits, also for a delay that follows.
    patient_until: Micros,
    /// True if the rules have been replaced since it joined: it may have to wait elsewhere.
    pub(super) rejudged: bool,
    /// The last reason why it could not go on.
    pub(super) obstacle: Obstacle,
    /// The end of the wait; a client that leaves if nothing else ended it.
    end: (WaitOutcome, Wait),
}

impl QueuePlace {
    /// Joins the queue of an obstacle. `Err` if no wait helps, or if the queue is full.
    pub(super) fn join(
        tables: &Arc<WaitingTables>,
        tally: &Arc<WaitTally>,
        share: QueueShare,
        (obstacle, limit): (Obstacle, Option<&Limit>),
        (now, deadline): (Micros, Micros),
    ) -> Result<QueuePlace, (Obstacle, RefusedWait)> {
        let Some(bottleneck) = obstacle.bottleneck else {
            return Err((obstacle, NO_WAIT_HELPS));
        };
        if !obstacle.can_be_waited_for(deadline, now) {
            return Err((obstacle, NO_WAIT_HELPS));
        }
        let mut request = share.joining(&obstacle, (now, deadline));
        request.budget = limit.map(|limit| WaitBudget { limit, deadline });
        // The bound of the rule counts all its queues.
        request.needs_room = tally.queued() >= share.bounds.total;
        let joined = tables.queues.join(bottleneck, request);
        let id = joined.map_err(|refusal| (obstacle, refusal.into()))?;
        tally.begin_queued();
        Ok(QueuePlace {
            tables: Arc::clone(tables),
            tally: Arc::clone(tally),
            id,
            share,
            arrived: now,
            deadline,
            patient_until: deadline,
            rejudged: false,
            obstacle,
            end: (WaitOutcome::Left, Wait::ZERO),
        })
    }

    /// The bottleneck at which the request waits.
    pub(super) fn bottleneck(&self) -> BottleneckId {
        self.id.bottleneck
    }

    /// Sets the patience of the client, counted from its arrival.
    pub(super) fn with_patience(mut self, patience: Wait) -> QueuePlace {
        self.patient_until = self.arrived.after(patience);
        self
    }

    /// The patience that the client has left.
    pub(super) fn patience_left(&self, now: Micros) -> Wait {
        now.until(self.patient_until)
    }

    /// Waits until the request may try, has lost its place, or waits by rules that are not in force any more.
    pub(super) async fn turn(
        &self,
        clock: &impl Clock,
        sleep: &TurnSleepFn,
        is_in_force: impl Fn() -> bool,
    ) -> TurnEnd {
        // Only the next one of a queue has a timer.
        let mut timer = HeadTimer::default();
        poll_fn(|context| {
            loop {
                let now = clock.now();
                let at = match self.tables.queues.next_step(self.id, now, context.waker()) {
                    QueueStep::Try => return Poll::Ready(TurnEnd::Try),
                    QueueStep::Gone => return Poll::Ready(TurnEnd::Gone),
                    QueueStep::Sleep => {
                        timer.clear();
                        return match is_in_force() {
                            true => Poll::Pending,
                            false => Poll::Ready(TurnEnd::Rejudge),
                        };
                    }
                    QueueStep::LookAgain(at) => at,
                };
                if timer.poll_until((now, at), sleep, context).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// The outcome of a wait that ended because the place was lost.
    pub(super) fn loss(&self, now: Micros) -> RefusedWait {
        match now >= self.deadline {
            true => (WaitOutcome::Expired, Some(Refusal::WaitExpired)),
            false => (WaitOutcome::Displaced, Some(Refusal::Displaced)),
        }
    }

    /// Gives a try back: the request tries again at once, by other rules.
    pub(super) fn postpone_try(&self, now: Micros) {
        self.tables.queues.refused(self.id, RetryTime { at: now, room_at: None });
    }

    /// Waits on after a try that was refused, in the queue of the new obstacle. `Err` if that is not
    /// possible.
    pub(super) fn wait_on(&mut self, obstacle: Obstacle, now: Micros) -> Result<(), RefusedWait> {
        let retry = obstacle.retry(now);
        let can_wait = obstacle.can_be_waited_for(self.deadline, now);
        let bottleneck = obstacle.bottleneck.filter(|_| can_wait);
        let request = self.share.joining(&obstacle, (now, self.deadline));
        self.obstacle = obstacle;
        let in_vain = match obstacle.kind {
            ObstacleKind::Limit(retry_after) if !retry_after.is_never() => {
                JoinRefusal::TooLong.into()
            }
            _ => NO_WAIT_HELPS,
        };
        let bottleneck = bottleneck.ok_or(in_vain)?;
        let queues = &self.tables.queues;
        if bottleneck == self.id.bottleneck {
            queues.refused(self.id, retry);
            return Ok(());
        }
        queues.leave(self.id);
        self.id = queues.join(bottleneck, request)?;
        Ok(())
    }

    /// Ends the wait of a request that is admitted: the next one may try.
    pub(super) fn admitted(mut self, now: Micros) {
        self.tables.queues.served(self.id);
        self.end = (WaitOutcome::Admitted, self.arrived.until(now));
    }

    /// Ends the wait of a request that is admitted without a turn here: those behind it find the queue as if it had left.
    pub(super) fn moved_on(mut self, now: Micros) {
        self.end = (WaitOutcome::Admitted, self.arrived.until(now));
    }

    /// Ends the wait of a request that is refused.
    pub(super) fn refused(mut self, outcome: WaitOutcome) {
        self.end.0 = outcome;
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        // Without effect if it has left.
        self.tables.queues.leave(self.id);
        self.tally.end_queued(self.end.0, self.end.1);
    }
}

impl QueueShare {
    fn joining(
        self,
        obstacle: &Obstacle,
        (now, deadline): (Micros, Micros),
    ) -> JoiningRequest<'static> {
        let QueueShare { flow, cost, bounds } = self;
        // A place may have become free since the refusal, so a request that waits for one tries again.
        let retry = match obstacle.kind {
            ObstacleKind::Limit(_) => Some(obstacle.retry(now)),
            ObstacleKind::Busy(_) | ObstacleKind::Final(..) => None,
        };
        JoiningRequest { flow, cost, deadline, bounds, needs_room: false, retry, budget: None }
    }
}
