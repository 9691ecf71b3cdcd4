//! Admission of requests that can wait: the first try, and the tries in turn.

use std::sync::Arc;
use std::time::Duration;

use tollgate::queue::{QueueBounds, QueuedCost, Weight};
use tollgate::{Act, Clock, Now, Outcome, Refusal, Wait};

use super::queued_request::{Obstacle, ObstacleKind, QueuePlace, QueueShare, TurnEnd};
use super::{BottleneckId, QueuedRequest, TurnSleepFn};
use crate::answer::{Answer, Binding, PlanDecision};
use crate::gatekeeper::{Ask, Gatekeeper, InfallibleStore, RulesVersion};
use crate::missing_facts::SkippedRule;
use crate::plan::{Enforcement, FairTurn, RequestPlan};
use crate::reservation::{BUSY_RETRY, PlanAdmission, ReservationAnswer, websocket_limits_of};
use crate::rule_set::RuleSet;
use crate::websocket_limits::WebSocketLimits;

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
    ) -> Result<ReservationAnswer, QueuedRequest> {
        self.call_store(self.try_or_queue(rules, ask, settles, patience, now.into())).await
    }

    async fn try_or_queue(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        settles: bool,
        patience: PatienceFn<'_>,
        now: Now<'_>,
    ) -> Result<ReservationAnswer, QueuedRequest> {
        let mut plan = Box::new(RequestPlan::new(&rules, ask, now.instant()));
        let admitted = if plan.peek_only || plan.fair().is_none() {
            self.admit_plan(&plan, ask, settles, now).await
        } else {
            match self.try_plan(&mut plan, ask, settles, now).await {
                Ok(admitted) => admitted,
                Err(obstacle) => match self.join_queue(&plan, obstacle, patience, now) {
                    Ok(place) => {
                        drop(plan);
                        return Err(QueuedRequest {
                            rules: RulesVersion::into_inner(rules),
                            place,
                        });
                    }
                    Err(obstacle) => (self.refuse_plan(&mut plan, &obstacle, now).await, None),
                },
            }
        };
        let answer = PlanAnswer::new(&plan, ask, admitted);
        drop(plan);
        Ok(answer.by(rules))
    }

    /// Decides a request when its turn comes, or refuses it at the end of its wait. `ask` and `settles` are those of
    /// [`admit_or_queue`](Gatekeeper::admit_or_queue). Dropping the future frees the place in the queue.
    pub async fn admit_in_turn(
        &self,
        queued: QueuedRequest,
        ask: &Ask<'_>,
        settles: bool,
        sleep: &TurnSleepFn,
    ) -> ReservationAnswer {
        let QueuedRequest { rules, mut place } = queued;
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
        let outcome = match turn {
            TurnEnd::Gone => place.loss(now.instant()),
            TurnEnd::Try => match self.try_plan_in_turn(&mut plan, ask, settles, now).await {
                Ok(admitted) => {
                    place.admitted(now.instant());
                    let rules = RulesVersion::from_inner(Arc::clone(rules));
                    return Ok(PlanAnswer::new(&plan, ask, admitted).by(rules));
                }
                Err(obstacle) => match place.wait_on(obstacle, now.instant()) {
                    Ok(()) => return Err(place),
                    Err(outcome) => outcome,
                },
            },
        };
        let refused = self.refuse_plan(&mut plan, &place.obstacle, now).await;
        place.refused(outcome);
        let rules = RulesVersion::from_inner(Arc::clone(rules));
        Ok(PlanAnswer::new(&plan, ask, (refused, None)).by(rules))
    }

    /// Tries to admit a newcomer, who does not overtake those who wait.
    async fn try_plan(
        &self,
        plan: &mut RequestPlan<'_>,
        ask: &Ask<'_>,
        settles: bool,
        now: Now<'_>,
    ) -> Result<PlanAdmission, Obstacle> {
        if let Some(bottleneck) = self.queue_ahead(plan) {
            let kind = ObstacleKind::Limit(Wait::ZERO);
            return Err(Obstacle { bottleneck: Some(bottleneck), kind });
        }
        self.try_plan_in_turn(plan, ask, settles, now).await
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
        let held = self.hold_place(plan, ask, settles, now.instant()).map_err(|busy| Obstacle {
            bottleneck: busy.bottleneck,
            kind: ObstacleKind::Busy(busy),
        })?;
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

    /// The first bottleneck of a plan at which requests wait.
    #[inline]
    fn queue_ahead(&self, plan: &RequestPlan<'_>) -> Option<BottleneckId> {
        let queues = &self.waiting.queues;
        if !queues.anybody_waits() {
            return None;
        }
        let enforced = (0..plan.limits.len())
            .filter(|index| plan.limits[*index].enforcement == Enforcement::Enforced);
        let limits = enforced.map(|index| self.limit_bottleneck(plan, index));
        let busy = self.reservations.bottlenecks(plan);
        busy.chain(limits).find(|bottleneck| queues.has_queue(*bottleneck))
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
        let FairTurn { rule, caller, cost, fair } =
            plan.fair().expect("only such a request is queued");
        let tally = plan.rules().wait_tally_of(rule);
        let wait = Wait::at_least(fair.wait.min(patience()));
        let share = QueueShare {
            flow: self.waiting.flow(plan.rules().name_hash_of(rule), caller),
            cost: QueuedCost {
                units: cost,
                weight: Weight::from_thousandths(plan.weight(fair)).unwrap_or(Weight::ONE),
            },
            bounds: QueueBounds { per_flow: fair.per_key as usize, total: fair.total as usize },
        };
        let times = (now.instant(), now.instant().after(wait));
        QueuePlace::join(&self.waiting, tally, share, obstacle, times).map_err(|(obstacle, why)| {
            tally.count(why);
            obstacle
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

/// An answer without the rules, which the plan borrows.
struct PlanAnswer {
    admission: PlanAdmission,
    skipped: Option<SkippedRule>,
    reads_response: bool,
    websocket: Vec<Arc<WebSocketLimits>>,
}

impl PlanAnswer {
    fn new(plan: &RequestPlan<'_>, ask: &Ask<'_>, admission: PlanAdmission) -> PlanAnswer {
        PlanAnswer {
            websocket: websocket_limits_of(plan, &ask.facts, admission.1),
            admission,
            skipped: plan.skipped,
            reads_response: plan.reads_response(),
        }
    }

    fn by(self, rules: RulesVersion) -> ReservationAnswer {
        let PlanAnswer { admission: (decided, id), skipped, reads_response, websocket } = self;
        let answer = Answer::new(rules, decided, skipped);
        ReservationAnswer { answer, id, reads_response, websocket }
    }
}
