//! Admission of requests that can wait: the first try, and the tries in turn.

use std::sync::Arc;
use std::time::Duration;

use tollgate::queue::{QueueBounds, QueuedCost, Weight};
use tollgate::{Act, Clock, Now, Outcome, Refusal, Wait};

use super::departures::{Departure, PassedQueue, PassedQueues};
use super::waiting_request::{Obstacle, ObstacleKind, QueuePlace, QueueShare, TurnEnd};
use super::{BottleneckId, TurnSleepFn, WaitingRequest};
use crate::answer::{Binding, PlanDecision};
use crate::gatekeeper::{Ask, Gatekeeper, InfallibleStore, RulesVersion};
use crate::plan::{Enforcement, PlannedLimit, RequestPlan};
use crate::reservation::{BUSY_RETRY, PlanAdmission, PlanAnswer, ReservationAnswer};
use crate::rule_set::RuleSet;

/// The longest wait that a caller accepts, found out only for a request that has to wait.
pub type PatienceFn<'a> = &'a (dyn Fn() -> Duration + Sync);

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Decides as [`admit_by`](Gatekeeper::admit_by), for callers that can wait. A request under a
    /// rule with `fair` that is refused for now is queued: nothing is charged, no observer sees it,
    /// and [`admit_in_turn`](Gatekeeper::admit_in_turn) decides it. A request does not overtake
    /// others that wait for one of its limits: then it is queued without asking the store.
    pub async fn admit_or_queue<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        settles: bool,
        patience: PatienceFn<'_>,
        now: impl Into<Now<'n>>,
    ) -> Result<ReservationAnswer, WaitingRequest> {
        self.call_store(self.try_or_queue(rules, ask, settles, patience, now.into())).await
    }

    async fn try_or_queue(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        settles: bool,
        patience: PatienceFn<'_>,
        now: Now<'_>,
    ) -> Result<ReservationAnswer, WaitingRequest> {
        let mut plan = Box::new(RequestPlan::new(&rules, ask, now.instant()));
        plan.defers_admission = plan.may_delay();
        let admitted = if plan.peek_only || plan.fair().is_none() {
            self.admit_plan(&plan, ask, settles, now).await
        } else {
            match self.try_plan(&mut plan, ask, settles, now).await {
                Ok(admitted) => admitted,
                Err(obstacle) => match self.join_queue(&plan, obstacle, patience, now) {
                    Ok(place) => {
                        drop(plan);
                        return Err(WaitingRequest {
                            rules: RulesVersion::into_inner(rules),
                            place,
                        });
                    }
                    Err(obstacle) => (self.refuse_plan(&mut plan, &obstacle, now).await, None),
                },
            }
        };
        let answer =
            self.line_up((&mut plan, ask), admitted, || Wait::at_least(patience()), now).await;
        drop(plan);
        Ok(answer.by(rules))
    }

    /// Decides a request when its turn comes, or refuses it at the end of its wait. `ask` and `settles` are those of
    /// [`admit_or_queue`](Gatekeeper::admit_or_queue). Dropping the future frees the place in the queue.
    pub async fn admit_in_turn(
        &self,
        queued: WaitingRequest,
        ask: &Ask<'_>,
        settles: bool,
        sleep: &TurnSleepFn,
    ) -> ReservationAnswer {
        let WaitingRequest { rules, mut place } = queued;
        loop {
            let turn = place.turn(self.clock(), sleep).await;
            // A waiting request holds no more than its place: a try has memory of its own.
            let tried = Box::pin(self.take_turn(&rules, place, turn, ask, settles)).await;
            match tried {
                Ok(answer) => return answer,
                Err(waits_on) => place = waits_on,
            }
        }
    }

    /// Decides at the end of a wait for a turn. `Err` if the request has to wait on.
    async fn take_turn(
        &self,
        rules: &Arc<RuleSet>,
        mut place: QueuePlace,
        turn: TurnEnd,
        ask: &Ask<'_>,
        settles: bool,
    ) -> Result<ReservationAnswer, QueuePlace> {
        let now = self.clock_instant(self.now());
        let mut plan = RequestPlan::new(rules, ask, now.instant());
        plan.defers_admission = plan.may_delay();
        let outcome = match turn {
            TurnEnd::Gone => place.loss(now.instant()),
            TurnEnd::Try => match self.try_plan_in_turn(&mut plan, ask, settles, now).await {
                Ok(admitted) => {
                    let patience = place.patience_left(now.instant());
                    place.admitted(now.instant());
                    let answer = self.line_up((&mut plan, ask), admitted, || patience, now).await;
                    return Ok(answer.by(RulesVersion::from_inner(Arc::clone(rules))));
                }
                Err(obstacle) => match place.wait_on(obstacle, now.instant()) {
                    Ok(()) => return Err(place),
                    Err(outcome) => outcome,
                },
            },
        };
        let refused = self.refuse_plan(&mut plan, &place.obstacle, now).await;
        place.refused(outcome);
        let answer = PlanAnswer::new(&plan, ask, (refused, None), None);
        Ok(answer.by(RulesVersion::from_inner(Arc::clone(rules))))
    }

    /// Tries to admit a newcomer, who does not overtake those who wait.
    async fn try_plan(
        &self,
        plan: &mut RequestPlan<'_>,
        ask: &Ask<'_>,
        settles: bool,
        now: Now<'_>,
    ) -> Result<PlanAdmission, Obstacle> {
        match self.queue_ahead(plan) {
            Some(obstacle) => Err(obstacle),
            None => self.try_plan_in_turn(plan, ask, settles, now).await,
        }
    }

    /// Tries to admit a request. A refusal has no effect.
    async fn try_plan_in_turn(
        &self,
        plan: &mut RequestPlan<'_>,
        ask: &Ask<'_>,
        settles: bool,
        now: Now<'_>,
    ) -> Result<PlanAdmission, Obstacle> {
        plan.is_attempt = true;
        let held = self.hold_place(plan, ask, settles, now.instant()).map_err(Obstacle::busy)?;
        let (decided, id) = self.take_held(plan, held, ask, now).await;
        match decided.decision.refusal() {
            None => Ok((decided, id)),
            Some(refusal) => {
                let binding = decided.decision.binding();
                let waits = refusal == Refusal::OverLimit && decided.decision.violates(binding);
                let bottleneck = waits.then(|| self.limit_bottleneck(plan, binding));
                Err(Obstacle {
                    bottleneck,
                    kind: ObstacleKind::Limit(decided.decision.retry_after()),
                })
            }
        }
    }

    /// The first obstacle for which others wait already.
    #[inline]
    fn queue_ahead(&self, plan: &RequestPlan<'_>) -> Option<Obstacle> {
        let queues = &self.waiting.queues;
        if !queues.anybody_waits() {
            return None;
        }
        let is_enforced = |index: &usize| plan.limits[*index].enforcement == Enforcement::Enforced;
        let limits = (0..plan.limits.len()).filter(is_enforced).map(|index| Obstacle {
            bottleneck: Some(self.limit_bottleneck(plan, index)),
            kind: ObstacleKind::Limit(Wait::ZERO),
        });
        let mut obstacles =
            self.reservations.possible_refusals(plan).map(Obstacle::busy).chain(limits);
        obstacles.find(|one| one.bottleneck.is_some_and(|one| queues.has_queue(one)))
    }

    fn limit_bottleneck(&self, plan: &RequestPlan<'_>, index: usize) -> BottleneckId {
        let planned = &plan.limits[index];
        self.waiting.limit(plan.limit(planned), plan.key_for(planned))
    }

    /// Queues a request. `Err` if no wait helps, or if the queue is full.
    fn join_queue(
        &self,
        plan: &RequestPlan<'_>,
        obstacle: Obstacle,
        patience: PatienceFn<'_>,
        now: Now<'_>,
    ) -> Result<QueuePlace, Obstacle> {
        let fair = plan.fair().expect("only such a request is queued");
        let tally = plan.rules().wait_tally_of(fair.number);
        let patience = patience();
        let wait = Wait::at_least(fair.bounds.wait.min(patience));
        let share = QueueShare {
            flow: self.waiting.flow(plan.rules().name_hash_of(fair.number), fair.key),
            cost: QueuedCost {
                units: fair.cost,
                weight: Weight::from_thousandths(fair.weight).unwrap_or(Weight::ONE),
            },
            bounds: QueueBounds {
                per_flow: fair.bounds.per_key as usize,
                total: fair.bounds.total as usize,
            },
        };
        let times = (now.instant(), now.instant().after(wait));
        let joined = QueuePlace::join(&self.waiting, tally, share, obstacle, times);
        let joined = joined.map_err(|(obstacle, why)| {
            tally.count(why);
            obstacle
        });
        joined.map(|place| place.with_patience(Wait::at_least(patience)))
    }

    /// Lets an admitted request join the line of a limit that delays it. If it would wait too long there, it is refunded
    /// and refused.
    async fn line_up(
        &self,
        (plan, ask): (&mut RequestPlan<'_>, &Ask<'_>),
        (decided, id): PlanAdmission,
        patience: impl FnOnce() -> Wait,
        now: Now<'_>,
    ) -> PlanAnswer {
        if !decided.decision.allowed() || !plan.defers_admission {
            return PlanAnswer::new(plan, ask, (decided, id), None);
        }
        plan.defers_admission = false;
        // The answer of a store that is elsewhere takes its time, and no two take the same: the distance of two departures
        // counts from this instant.
        let is_late = !self.answers_at_once();
        let now = if is_late { self.clock_instant(self.now()) } else { now };
        let delays =
            is_late || !decided.decision.delay().is_zero() || self.waiting.lines.is_in_use();
        let joined = match delays {
            true => self.join_line(plan, &decided, patience, now),
            false => Ok(None),
        };
        match joined {
            Ok(departure) => {
                if plan.is_attempt {
                    self.count_skipped(plan, now.instant());
                }
                self.notify(plan, &decided);
                PlanAnswer::new(plan, ask, (decided, id), departure)
            }
            Err(obstacle) => {
                if let Some(id) = id {
                    let _ = self.cancel_by(id, now.instant()).await;
                }
                plan.cannot_wait = true;
                let refused = self.refuse_plan(plan, &obstacle, now).await;
                PlanAnswer::new(plan, ask, (refused, None), None)
            }
        }
    }

    fn join_line(
        &self,
        plan: &RequestPlan<'_>,
        decided: &PlanDecision,
        patience: impl FnOnce() -> Wait,
        now: Now<'_>,
    ) -> Result<Option<Departure>, Obstacle> {
        let outcomes = decided.entries.outcomes();
        let queue = |(index, planned): (usize, &PlannedLimit<'_>)| PassedQueue {
            bottleneck: self.limit_bottleneck(plan, index),
            interval: plan.limit(planned).time_of(planned.cost),
            delay: outcomes[index].delay,
            delay_max: Wait::from_micros(plan.limit(planned).full_refill_us()),
        };
        let mut queues: PassedQueues = plan.queue_limits().map(queue).collect();
        // Reversed, so that of equals the first wins.
        let slowest = (0..queues.len()).rev().max_by_key(|index| queues[*index].delay);
        let Some(slowest) = slowest else { return Ok(None) };
        let (_, planned) = plan.queue_limits().nth(slowest).expect("one for each");
        let tally = plan.rules().wait_tally_of(planned.limit_ref.rule);
        let slowest = queues.remove(slowest);
        let times = (now.instant(), !self.answers_at_once());
        let joined = Departure::join(&self.waiting, tally, (slowest, queues), patience, times);
        joined.map_err(|wait| Obstacle {
            bottleneck: Some(slowest.bottleneck),
            kind: ObstacleKind::Limit(wait),
        })
    }

    /// Refuses a request that cannot wait, or has waited in vain. Only limits that count refusals
    /// are charged, once.
    async fn refuse_plan(
        &self,
        plan: &mut RequestPlan<'_>,
        obstacle: &Obstacle,
        now: Now<'_>,
    ) -> PlanDecision {
        (plan.is_attempt, plan.always_refused) = (false, true);
        self.count_skipped(plan, now.instant());
        let mut decided = match self.answers_at_once() {
            true => self.ask_store_at_once(plan, Act::Take, now),
            false => self.ask_store(plan, Act::Take, now).await,
        };
        if decided.decision.allowed() {
            self.apply_obstacle(plan, obstacle, &mut decided);
        }
        self.notify(plan, &decided);
        decided
    }

    /// Turns an admission by the limits into a refusal.
    fn apply_obstacle(
        &self,
        plan: &RequestPlan<'_>,
        obstacle: &Obstacle,
        decided: &mut PlanDecision,
    ) {
        let retry_after = match &obstacle.kind {
            ObstacleKind::Busy(busy) => return busy.apply_to(decided),
            ObstacleKind::Limit(retry_after) => (*retry_after).max(BUSY_RETRY),
        };
        let at = |index: &usize| Some(self.limit_bottleneck(plan, *index)) == obstacle.bottleneck;
        let binding = (0..plan.limits.len()).find(at).unwrap_or(0);
        let before = decided.entries.outcomes()[binding];
        let refused =
            Outcome { allowed: false, retry_after, charged: 0, delay: Wait::ZERO, ..before };
        decided.entries.outcomes_mut()[binding] = refused;
        decided.binding = Some(Binding::Limit(binding));
        let capacity = plan.limit(&plan.limits[binding]).capacity();
        decided.decision = decided.decision.refused_for(Refusal::OverLimit, capacity, refused);
    }
}
