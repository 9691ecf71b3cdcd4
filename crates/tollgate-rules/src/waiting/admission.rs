//! Admission of requests that can wait: the first try, and the tries in turn.

use std::sync::Arc;
use std::time::Duration;

use tollgate::queue::{QueueBounds, QueuedCost, Weight};
use tollgate::{Act, Clock, Decision, Now, Outcome, Refusal, Wait};

use super::departures::{Departure, LineNewcomer, PassedQueue, PassedQueues};
use super::line_pace::LineOwner;
use super::waiting_request::{
    Obstacle, ObstacleKind, QueuePlace, QueueShare, RefusedWait, TurnEnd,
};
use super::{BottleneckId, TurnSleepFn, WaitOutcome, WaitingRequest};
use crate::answer::{Binding, PlanDecision};
use crate::gatekeeper::{Ask, Gatekeeper, InfallibleStore, RulesVersion};
use crate::plan::{Enforcement, PlannedLimit, RequestPlan};
use crate::reservation::{
    BUSY_RETRY, PendingReservation, PlanAdmission, PlanAnswer, ReservationAnswer,
};
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
        let watch = self.watch_decision(&plan);
        let admitted = if plan.peek_only || plan.fair().is_none() {
            self.admit_plan(&plan, ask, settles, now).await
        } else {
            match self.try_plan(&mut plan, ask, (settles, false), now).await {
                Ok(admitted) => admitted,
                Err(obstacle) => {
                    match self.join_queue(&plan, ask, (obstacle, settles), patience, now) {
                        Ok(place) => {
                            watch.end();
                            drop(plan);
                            return Err(WaitingRequest {
                                rules: RulesVersion::into_inner(rules),
                                place,
                            });
                        }
                        Err((obstacle, reason)) => {
                            (self.refuse_plan(&mut plan, (&obstacle, reason), now).await, None)
                        }
                    }
                }
            }
        };
        let answer =
            self.line_up((&mut plan, ask), admitted, || Wait::at_least(patience()), now).await;
        watch.end();
        drop(plan);
        Ok(answer.by(rules))
    }

    /// Decides a request when its turn comes, or refuses it at the end of its wait. `ask` and `settles` are those of
    /// [`admit_or_queue`](Gatekeeper::admit_or_queue). Dropping the future frees the place in the queue. `Err` if the rules
    /// have been replaced before its turn: the request keeps its place, and its caller has to be identified by its new
    /// [`rules`](WaitingRequest::rules).
    pub async fn admit_in_turn(
        &self,
        queued: WaitingRequest,
        ask: &Ask<'_>,
        settles: bool,
        sleep: &TurnSleepFn,
    ) -> Result<ReservationAnswer, WaitingRequest> {
        let WaitingRequest { rules, mut place } = queued;
        // By the rules that it waits under now, it may have to wait elsewhere.
        let mut moves = place.rejudged && !self.waits_at(&rules, &place, ask);
        loop {
            let is_in_force = || Arc::ptr_eq(&self.rules(), &rules);
            let turn = match std::mem::take(&mut moves) {
                true => TurnEnd::Move,
                false => place.turn(self.clock(), sleep, is_in_force).await,
            };
            let live = self.rules();
            if matches!(turn, TurnEnd::Try | TurnEnd::Rejudge) && !Arc::ptr_eq(&live, &rules) {
                if matches!(turn, TurnEnd::Try) {
                    place.postpone_try(self.now());
                }
                place.rejudged = true;
                return Err(WaitingRequest { rules: RulesVersion::into_inner(live), place });
            }
            drop(live);
            // A waiting request holds no more than its place: a try has memory of its own.
            let tried = Box::pin(self.take_turn(&rules, place, turn, ask, settles)).await;
            match tried {
                Ok(answer) => return Ok(answer),
                Err(waits_on) => place = waits_on,
            }
        }
    }

    /// Returns true if a request is bounded by what it waits for.
    fn waits_at(&self, rules: &Arc<RuleSet>, place: &QueuePlace, ask: &Ask<'_>) -> bool {
        let plan = RequestPlan::new(rules, ask, self.now());
        let at = Some(place.bottleneck());
        let limit = self.limit_at(&plan, at).map(|index| plan.limits[index].enforcement);
        limit == Some(Enforcement::Enforced)
            || self.reservations.possible_refusals(&plan).any(|one| one.bottleneck == at)
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
        plan.is_attempt = true;
        let (outcome, reason): RefusedWait = match turn {
            TurnEnd::Gone => place.loss(now.instant()),
            // The rules have changed back meanwhile.
            TurnEnd::Rejudge => return Err(place),
            TurnEnd::Try | TurnEnd::Move => {
                let moves = matches!(turn, TurnEnd::Move);
                match self.try_at((turn, &mut plan, &place), ask, settles, now).await {
                    Ok(admitted) => {
                        let is_open = Self::keeps_open(&plan, ask, settles);
                        let patience = place.patience_left(now.instant());
                        match moves {
                            true => place.moved_on(now.instant()),
                            false => place.admitted(now.instant()),
                        }
                        let answer =
                            self.line_up((&mut plan, ask), admitted, || patience, now).await;
                        let answer = answer.ending_at_begin(!is_open);
                        return Ok(answer.by(RulesVersion::from_inner(Arc::clone(rules))));
                    }
                    // By rules that have replaced those of the wait it may have to be refused at once.
                    Err(obstacle) if plan.fair().is_none() => {
                        place.obstacle = obstacle;
                        (WaitOutcome::Refused, None)
                    }
                    Err(obstacle) => match place.wait_on(obstacle, now.instant()) {
                        Ok(()) => return Err(place),
                        Err(refused) => refused,
                    },
                }
            }
        };
        let obstacle = place.obstacle;
        // Its place is free before the store answers.
        place.refused(outcome);
        let refused = self.refuse_plan(&mut plan, (&obstacle, reason), now).await;
        let answer = PlanAnswer::new(&plan, ask, (refused, None), None);
        Ok(answer.by(RulesVersion::from_inner(Arc::clone(rules))))
    }

    /// Tries to admit a newcomer, who does not overtake those who wait. A refusal has no effect. The charges of one that `has_waited`
    /// elsewhere are kept open until its work begins.
    async fn try_plan(
        &self,
        plan: &mut RequestPlan<'_>,
        ask: &Ask<'_>,
        (settles, has_waited): (bool, bool),
        now: Now<'_>,
    ) -> Result<PlanAdmission, Obstacle> {
        plan.is_attempt = true;
        if let Some(obstacle) = self.queue_ahead(plan, None) {
            return Err(obstacle);
        }
        let held = self.hold_place(plan, ask, settles, now.instant()).map_err(Obstacle::busy)?;
        let held = match has_waited {
            true => held.or_else(|| self.hold_until_begin(plan, ask, now.instant())),
            false => held,
        };
        self.take_units(plan, held, ask, now).await
    }

    /// Tries to admit a request at the end of a wait, as a newcomer if it has waited at the wrong place.
    async fn try_at(
        &self,
        (turn, plan, place): (TurnEnd, &mut RequestPlan<'_>, &QueuePlace),
        ask: &Ask<'_>,
        settles: bool,
        now: Now<'_>,
    ) -> Result<PlanAdmission, Obstacle> {
        match turn {
            TurnEnd::Move => self.try_plan(plan, ask, (settles, true), now).await,
            _ => self.try_plan_in_turn(plan, place, ask, settles, now).await,
        }
    }

    /// Tries to admit a request whose turn it is. It does not overtake those who wait at later bottlenecks either. A refusal
    /// has no effect. Its charges are kept open until its work begins, because whoever sends it on may have no room any more.
    async fn try_plan_in_turn(
        &self,
        plan: &RequestPlan<'_>,
        place: &QueuePlace,
        ask: &Ask<'_>,
        settles: bool,
        now: Now<'_>,
    ) -> Result<PlanAdmission, Obstacle> {
        // Work in progress comes first: a request that moves on without a place there would be sent back at once.
        let held = self.hold_place(plan, ask, settles, now.instant()).map_err(Obstacle::busy)?;
        if let Some(obstacle) = self.queue_ahead(plan, Some(place.bottleneck())) {
            return Err(obstacle);
        }
        let held = held.or_else(|| self.hold_until_begin(plan, ask, now.instant()));
        self.take_units(plan, held, ask, now).await
    }

    async fn take_units(
        &self,
        plan: &RequestPlan<'_>,
        held: Option<PendingReservation<'_>>,
        ask: &Ask<'_>,
        now: Now<'_>,
    ) -> Result<PlanAdmission, Obstacle> {
        let (decided, id) = self.take_held(plan, held, ask, now).await;
        match decided.decision.refusal() {
            None => Ok((decided, id)),
            Some(refusal) => Err(self.obstacle_of(plan, &decided.decision, refusal)),
        }
    }

    /// The obstacle that a refusal stands for.
    pub(super) fn obstacle_of(
        &self,
        plan: &RequestPlan<'_>,
        decision: &Decision,
        refusal: Refusal,
    ) -> Obstacle {
        let (binding, retry_after) = (decision.binding(), decision.retry_after());
        match refusal == Refusal::OverLimit && decision.violates(binding) {
            true => Obstacle {
                bottleneck: Some(self.limit_bottleneck(plan, binding)),
                kind: ObstacleKind::Limit(retry_after),
            },
            false => Obstacle { bottleneck: None, kind: ObstacleKind::Final(refusal, retry_after) },
        }
    }

    /// The first obstacle for which others wait already; of those behind the bottleneck `passed`, if the request has waited
    /// there. A request without a refusal only moves on in the order of the plan, so that it does not go to and fro.
    #[inline]
    fn queue_ahead(
        &self,
        plan: &RequestPlan<'_>,
        passed: Option<BottleneckId>,
    ) -> Option<Obstacle> {
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
        if passed.is_some() {
            obstacles.find(|one| one.bottleneck == passed);
        }
        obstacles.find(|one| one.bottleneck.is_some_and(|one| queues.has_queue(one)))
    }

    /// The limit whose queue is at a bottleneck, by index.
    fn limit_at(&self, plan: &RequestPlan<'_>, bottleneck: Option<BottleneckId>) -> Option<usize> {
        let at = |index: &usize| Some(self.limit_bottleneck(plan, *index)) == bottleneck;
        (0..plan.limits.len()).find(at)
    }

    fn limit_bottleneck(&self, plan: &RequestPlan<'_>, index: usize) -> BottleneckId {
        let planned = &plan.limits[index];
        self.waiting.limit(plan.limit(planned), plan.key_for(planned))
    }

    /// Queues a request. `Err` if no wait helps, or if the queue is full or too long.
    fn join_queue(
        &self,
        plan: &RequestPlan<'_>,
        ask: &Ask<'_>,
        (obstacle, settles): (Obstacle, bool),
        patience: PatienceFn<'_>,
        now: Now<'_>,
    ) -> Result<QueuePlace, (Obstacle, Option<Refusal>)> {
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
        let waited_for = matches!(obstacle.kind, ObstacleKind::Limit(_))
            .then(|| self.limit_at(plan, obstacle.bottleneck))
            .flatten();
        // The queue counts units of the rule with `fair`. They say when the limit has room only if it takes as many, for good.
        let counts = |index: &usize| {
            let planned = &plan.limits[*index];
            planned.cost >= fair.cost && plan.rule(planned).reserve().is_none()
        };
        let may_come_back = Self::keeps_open(plan, ask, settles);
        let counted = waited_for.filter(counts).filter(|_| !may_come_back);
        let limit = counted.map(|index| plan.limit(&plan.limits[index]));
        let joined = QueuePlace::join(&self.waiting, tally, share, (obstacle, limit), times);
        let joined = joined.map_err(|(obstacle, (outcome, reason))| {
            tally.count(outcome);
            (obstacle, reason)
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
                self.conclude_take(plan, &decided, now);
                PlanAnswer::new(plan, ask, (decided, id), departure)
            }
            Err(obstacle) => {
                if let Some(id) = id {
                    let _ = self.cancel_by(id, now.instant()).await;
                }
                plan.cannot_wait = true;
                let refused = self.refuse_plan(plan, (&obstacle, None), now).await;
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
            limit: Arc::clone(plan.shared_limit(planned)),
            cost: planned.cost,
            delay: outcomes[index].delay,
        };
        let mut queues: PassedQueues = plan.queue_limits().map(queue).collect();
        // Reversed, so that of equals the first wins.
        let slowest = (0..queues.len()).rev().max_by_key(|index| queues[*index].delay);
        let Some(slowest) = slowest else { return Ok(None) };
        let (_, planned) = plan.queue_limits().nth(slowest).expect("one for each");
        let tally = plan.rules().wait_tally_of(planned.limit_ref.rule);
        let slowest = queues.remove(slowest);
        let times = (now.instant(), !self.answers_at_once());
        let owner = || LineOwner {
            rule: plan.rules().name_hash_of(planned.limit_ref.rule),
            caller: plan.caller(planned).clone(),
            tier: plan.tier_name().map(Box::from),
            limit: Arc::clone(plan.shared_limit(planned)),
        };
        let bottleneck = slowest.bottleneck;
        let newcomer = LineNewcomer { slowest, others: queues, owner: &owner };
        let joined = Departure::join(&self.waiting, tally, newcomer, patience, times);
        let live = self.rules();
        if !std::ptr::eq(&**live, plan.rules()) {
            self.waiting.lines.follow_rules_at(bottleneck, &live, now.instant());
        }
        joined.map_err(|wait| Obstacle {
            bottleneck: Some(bottleneck),
            kind: ObstacleKind::Limit(wait),
        })
    }

    /// Refuses a request that cannot wait, or has waited in vain. Only limits that count refusals
    /// are charged, once. The reason stands for that of the limit.
    pub(super) async fn refuse_plan(
        &self,
        plan: &mut RequestPlan<'_>,
        (obstacle, reason): (&Obstacle, Option<Refusal>),
        now: Now<'_>,
    ) -> PlanDecision {
        if plan.is_attempt {
            self.count_skipped(plan, now.instant());
        }
        (plan.is_attempt, plan.always_refused) = (false, true);
        let now = if plan.has_ban() { self.begin_operation(now) } else { now };
        let mut decided = match self.answers_at_once() {
            true => self.ask_store_at_once(plan, Act::Take, now),
            false => self.ask_store(plan, Act::Take, now).await,
        };
        if decided.decision.allowed()
            && let Some(limit) = self.apply_obstacle(plan, obstacle, &mut decided)
        {
            self.apply_ban_of(plan, limit, &mut decided, now).await;
        }
        let PlanDecision { decision, .. } = &mut decided;
        if let Some(reason) = reason
            && matches!(decision.refusal(), Some(Refusal::OverLimit | Refusal::Busy))
        {
            *decision = decision.refused_for(reason, decision.capacity(), decision.outcome());
        }
        self.conclude_take(plan, &decided, now);
        decided
    }

    /// Turns an admission by the limits into a refusal. Returns the limit in whose queue the request found no turn.
    fn apply_obstacle(
        &self,
        plan: &RequestPlan<'_>,
        obstacle: &Obstacle,
        decided: &mut PlanDecision,
    ) -> Option<usize> {
        let (refusal, retry_after, limit) = match obstacle.kind {
            ObstacleKind::Busy(ref busy) => {
                busy.apply_to(decided);
                return None;
            }
            ObstacleKind::Final(refusal, retry_after) => (refusal, retry_after, None),
            ObstacleKind::Limit(retry_after) => {
                let limit = self.limit_at(plan, obstacle.bottleneck);
                (Refusal::OverLimit, retry_after.max(BUSY_RETRY), limit)
            }
        };
        let Some(binding) = limit else {
            // The store would admit the request by now, but the first answer stands.
            let first = Decision::refused(refusal, retry_after, decided.decision.at());
            let capacity = decided.decision.capacity();
            decided.decision = decided.decision.refused_for(refusal, capacity, first.outcome());
            return None;
        };
        let before = decided.entries.outcomes()[binding];
        let refused =
            Outcome { allowed: false, retry_after, charged: 0, delay: Wait::ZERO, ..before };
        decided.entries.outcomes_mut()[binding] = refused;
        decided.binding = Some(Binding::Limit(binding));
        let capacity = plan.limit(&plan.limits[binding]).capacity();
        decided.decision = decided.decision.refused_for(Refusal::OverLimit, capacity, refused);
        Some(binding)
    }
}
