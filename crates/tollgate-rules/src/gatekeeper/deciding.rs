//! Deciding requests: from a plan to the store and back.
//!
//! A store that answers at once is called without a future; every other store in a future that is
//! boxed once, because a network round trip follows.

use tollgate::store::join::{join_all, join_both};
use tollgate::{Act, Clock, Decision, Now, Outcome, Refusal};

use super::{Ask, Gatekeeper, InfallibleStore, RulesVersion, StoreCall, expect_ready};
use crate::answer::{Answer, AnswerEntries, PlanDecision};
use crate::plan::{Enforcement, RequestPlan};
use crate::waiting::DecisionWatch;

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Decides a request without waiting. `Err` gives the rules back if the store has to be waited for:
    /// nothing is charged, and [`decide_by`](Gatekeeper::decide_by) decides.
    #[inline]
    pub fn decide_at_once<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> Result<Answer, RulesVersion> {
        self.act_at_once(rules, ask, Act::Take, now.into())
    }

    /// Peeks without waiting. `Err` gives the rules back if the store has to be waited for.
    pub fn peek_at_once<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> Result<Answer, RulesVersion> {
        self.act_at_once(rules, ask, Act::Peek, now.into())
    }

    /// Decides a request under the version of the rules that identified its caller, so that one
    /// request sees one version.
    pub async fn decide_by<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> Answer {
        self.act_by(rules, ask, Act::Take, now.into()).await
    }

    /// Returns the answer that [`decide_by`](Gatekeeper::decide_by) would give; charges nothing.
    pub async fn peek_by<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> Answer {
        self.act_by(rules, ask, Act::Peek, now.into()).await
    }

    /// Refunds the cost of a request like this one, as if charged now; the answer has the state
    /// after the refund.
    pub async fn refund_by<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> Answer {
        // Refunding and peeking is one operation, with one deadline.
        let asked_at = self.begin_operation(now.into());
        self.call_store(async move {
            let mut plan = Box::new(RequestPlan::new(&rules, ask, asked_at.instant()));
            let costs = plan.take_costs();
            let mut checks = Vec::with_capacity(costs.len());
            if !plan.is_unanswered() {
                let refund = |(one, cost)| plan.check(one, Act::Take).cost(cost);
                checks.extend(plan.limits.iter().zip(costs).map(refund));
            }
            let back = checks.iter().map(|check| self.store.refund(check, None, asked_at));
            // The store gets the calls in this order, and both are awaited together.
            let (_, answer) = join_both(join_all(back), self.ask(&plan, Act::Peek, asked_at)).await;
            let given_back = &plan.limits[..checks.len()];
            given_back
                .iter()
                .for_each(|one| self.waiting.free_limit(plan.limit(one), plan.key_for(one)));
            let skipped = plan.skipped;
            drop(checks);
            drop(plan);
            Answer::new(rules, answer, skipped)
        })
        .await
    }

    /// The small future of an operation that calls the store.
    pub(crate) fn call_store<F: Future>(&self, operation: F) -> StoreCall<F> {
        StoreCall::new(operation, self.answers_at_once())
    }

    fn act_at_once(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        act: Act,
        now: Now<'_>,
    ) -> Result<Answer, RulesVersion> {
        if !self.answers_at_once() {
            return Err(rules);
        }
        let plan = RequestPlan::new(&rules, ask, now.instant());
        let decided = self.ask_at_once(&plan, act, now);
        let skipped = plan.skipped;
        drop(plan);
        Ok(Answer::new(rules, decided, skipped))
    }

    async fn act_by(&self, rules: RulesVersion, ask: &Ask<'_>, act: Act, now: Now<'_>) -> Answer {
        match self.act_at_once(rules, ask, act, now) {
            Ok(answer) => answer,
            Err(rules) => Box::pin(self.act_and_wait(rules, ask, act, now)).await,
        }
    }

    async fn act_and_wait(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        act: Act,
        now: Now<'_>,
    ) -> Answer {
        let plan = Box::new(RequestPlan::new(&rules, ask, now.instant()));
        let watch = (act == Act::Take).then(|| self.watch_decision(&plan));
        let answer = self.ask(&plan, act, now).await;
        watch.into_iter().for_each(DecisionWatch::end);
        let skipped = plan.skipped;
        drop(plan);
        Answer::new(rules, answer, skipped)
    }

    /// Asks the store about a plan, and notifies the observer of a take.
    pub(crate) async fn ask(&self, plan: &RequestPlan<'_>, act: Act, now: Now<'_>) -> PlanDecision {
        if self.answers_at_once() {
            return self.ask_at_once(plan, act, now);
        }
        if let Some(refused) = self.refuse_before_store(plan, now) {
            return refused;
        }
        let decided = self.ask_store(plan, act, now).await;
        self.notify_of_take(plan, act, &decided, now);
        decided
    }

    /// The same for a store that answers at once.
    #[inline]
    pub(super) fn ask_at_once(
        &self,
        plan: &RequestPlan<'_>,
        act: Act,
        now: Now<'_>,
    ) -> PlanDecision {
        if let Some(refused) = self.refuse_before_store(plan, now) {
            return refused;
        }
        let decided = self.ask_store_at_once(plan, act, now);
        self.notify_of_take(plan, act, &decided, now);
        decided
    }

    /// Counts skipped rules. Returns the refusal of a request that lacks facts.
    #[inline]
    fn refuse_before_store(&self, plan: &RequestPlan<'_>, now: Now<'_>) -> Option<PlanDecision> {
        if !plan.is_attempt {
            self.count_skipped(plan, now.instant());
        }
        plan.is_unanswered().then(|| self.refuse_unanswered(now.instant()))
    }

    pub(super) fn notify_of_take(
        &self,
        plan: &RequestPlan<'_>,
        act: Act,
        decided: &PlanDecision,
        now: Now<'_>,
    ) {
        let is_final = match decided.decision.allowed() {
            true => !plan.defers_admission,
            false => !plan.is_attempt,
        };
        if act == Act::Take && !plan.peek_only && is_final {
            if plan.is_attempt {
                self.count_skipped(plan, decided.decision.at());
            }
            self.conclude_take(plan, decided, now);
        }
    }

    /// Counts a final decision, also towards bans of rules in shadow, and notifies the observer.
    pub(crate) fn conclude_take(
        &self,
        plan: &RequestPlan<'_>,
        decided: &PlanDecision,
        now: Now<'_>,
    ) {
        self.count_shadow_refusals(plan, decided, now);
        self.notify(plan, decided);
    }

    /// Asks a store that answers at once. Only a refusal under a rule that bans takes the way of other stores.
    pub(crate) fn ask_store_at_once(
        &self,
        plan: &RequestPlan<'_>,
        act: Act,
        now: Now<'_>,
    ) -> PlanDecision {
        if plan.too_many_limits {
            return PlanDecision::too_many_limits(now.instant());
        }
        let mut entries = AnswerEntries::new(plan);
        let block = self.find_block(plan, now.instant());
        let checks = plan.checks(if block.is_some() { Act::Peek } else { act });
        let decided = self.store.decide_at_once(&checks, now, entries.outcomes_mut());
        let mut decision = decided.expect("this store answers at once");
        if let Some(block) = block {
            return block.refuse(plan, entries, now.instant());
        }
        let may_ban = decision.refusal() == Some(Refusal::OverLimit);
        if may_ban && plan.has_ban() && !plan.is_attempt {
            let outcomes = entries.outcomes();
            decision = expect_ready(self.apply_bans(plan, act, (decision, outcomes), now));
        }
        PlanDecision::new(plan, decision, entries)
    }

    /// Asks a store that has to be waited for, with the blocks before it and the bans after it.
    pub(crate) async fn ask_store(
        &self,
        plan: &RequestPlan<'_>,
        act: Act,
        now: Now<'_>,
    ) -> PlanDecision {
        if plan.too_many_limits {
            return PlanDecision::too_many_limits(now.instant());
        }
        // Counting a refusal towards a ban shares the deadline of the decision.
        let bans = act == Act::Take && plan.has_ban() && !plan.is_attempt;
        let now = if bans { self.begin_operation(now) } else { now };
        let block = self.find_block(plan, now.instant());
        let act = if block.is_some() { Act::Peek } else { act };
        let checks: Box<[_]> = plan.limits.iter().map(|one| plan.check(one, act)).collect();
        let mut entries = AnswerEntries::new(plan);
        let Ok(decision) = self.store.decide_each(&checks, now, entries.outcomes_mut()).await;
        if let Some(block) = block {
            return block.refuse(plan, entries, now.instant());
        }
        correct_only_outcome(plan, &decision, entries.outcomes_mut());
        let decided = (decision, entries.outcomes());
        let decision = match bans {
            true => self.apply_bans(plan, act, decided, now).await,
            false => decided.0,
        };
        PlanDecision::new(plan, decision, entries)
    }
}

/// Takes the outcome of the only limit from the decision: a shared store that refuses an empty key
/// leaves the outcome at its default.
pub(super) fn correct_only_outcome(
    plan: &RequestPlan<'_>,
    decision: &Decision,
    outcomes: &mut [Outcome],
) {
    if let ([only], [outcome]) = (&plan.limits[..], outcomes)
        && only.enforcement == Enforcement::Enforced
    {
        *outcome = decision.outcome();
    }
}
