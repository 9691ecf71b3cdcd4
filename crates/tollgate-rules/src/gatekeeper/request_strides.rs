//! Many requests at one instant, decided in strides: all plans of a stride are made first, then the
//! store is asked about all of them together, and then the answers are handed out in order.

use std::sync::Arc;

use tollgate::store::RequestList;
use tollgate::{Act, Clock, Decision, Now, Outcome};

use super::deciding::correct_only_outcome;
use super::{Ask, Gatekeeper, InfallibleStore, RulesVersion, expect_ready};
use crate::answer::{Answer, AnswerEntries, PlanDecision};
use crate::plan::RequestPlan;

/// Requests of one stride if the store answers at once: the table looks up so many keys ahead.
const STRIDE_AT_ONCE: usize = 16;

/// Requests of one stride if the store has to be waited for, once for each stride.
const STRIDE_WITH_WAITING: usize = 128;

/// The results of a stride, in memory that the next stride uses again.
#[derive(Default)]
struct StrideResults {
    /// Bound: the limits of a stride.
    outcomes: Vec<Outcome>,
    /// Bound: the requests of a stride.
    decisions: Vec<Decision>,
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Decides many requests without waiting, as if by [`decide_at_once`](Gatekeeper::decide_at_once)
    /// in order, and calls `each` with every answer in order. `Err` gives the rules back if the store
    /// has to be waited for: nothing is charged, and
    /// [`decide_requests_by`](Gatekeeper::decide_requests_by) decides.
    pub fn decide_requests_at_once<'n>(
        &self,
        rules: RulesVersion,
        asks: &[Ask<'_>],
        now: impl Into<Now<'n>>,
        each: impl FnMut(&Answer),
    ) -> Result<(), RulesVersion> {
        if !self.answers_at_once() {
            return Err(rules);
        }
        expect_ready(self.decide_strides(rules, asks, STRIDE_AT_ONCE, now.into(), each));
        Ok(())
    }

    /// Decides many requests, as if by [`decide_by`](Gatekeeper::decide_by) in order, and calls `each`
    /// with every answer in order. The store gets up to 128 requests at a time, each time within its
    /// timeout. A request under a rule that bans, or of a blocked caller, is decided alone, because the
    /// one before it may change its answer.
    pub async fn decide_requests_by<'n>(
        &self,
        rules: RulesVersion,
        asks: &[Ask<'_>],
        now: impl Into<Now<'n>>,
        each: impl FnMut(&Answer),
    ) {
        let now = now.into();
        let stride = if self.answers_at_once() { STRIDE_AT_ONCE } else { STRIDE_WITH_WAITING };
        self.call_store(self.decide_strides(rules, asks, stride, now, each)).await;
    }

    async fn decide_strides(
        &self,
        rules: RulesVersion,
        asks: &[Ask<'_>],
        stride: usize,
        now: Now<'_>,
        mut each: impl FnMut(&Answer),
    ) {
        // The plans borrow `rules`; the answers own this one in turn.
        let mut of_answers = RulesVersion::from_inner(Arc::clone(&rules));
        let mut plans = Vec::with_capacity(stride.min(asks.len()));
        let mut results = StrideResults::default();
        for asks in asks.chunks(stride) {
            plans.clear();
            plans.extend(asks.iter().map(|ask| RequestPlan::new(&rules, ask, now.instant())));
            let mut rest = &plans[..];
            while let Some(first) = rest.first() {
                let together = self.count_decidable_together(rest, now);
                if together < 2 {
                    let decided = self.ask(first, Act::Take, now).await;
                    of_answers = hand_out(of_answers, first, decided, &mut each);
                    rest = &rest[1..];
                    continue;
                }
                let (run, others) = rest.split_at(together);
                self.ask_together(run, now, &mut results).await;
                let mut outcomes = &mut results.outcomes[..];
                for (plan, decision) in run.iter().zip(&results.decisions) {
                    let own;
                    (own, outcomes) = outcomes.split_at_mut(plan.limits.len());
                    let decided = self.conclude(plan, *decision, own, now);
                    of_answers = hand_out(of_answers, plan, decided, &mut each);
                }
                rest = others;
            }
        }
    }

    /// Number of plans at the front that the store may decide together: one of them cannot change the
    /// answer to another but by its charges.
    fn count_decidable_together(&self, plans: &[RequestPlan<'_>], now: Now<'_>) -> usize {
        let usual = |plan: &&RequestPlan<'_>| {
            !plan.too_many_limits
                && !plan.is_unanswered()
                && !plan.has_ban()
                && self.find_block(plan, now.instant()).is_none()
        };
        plans.iter().take_while(usual).count()
    }

    /// Asks the store about several plans.
    async fn ask_together(
        &self,
        plans: &[RequestPlan<'_>],
        now: Now<'_>,
        results: &mut StrideResults,
    ) {
        let mut checks = Vec::with_capacity(plans.iter().map(|plan| plan.limits.len()).sum());
        let mut ends = Vec::with_capacity(plans.len());
        for plan in plans {
            checks.extend(plan.limits.iter().map(|planned| plan.check(planned, Act::Take)));
            ends.push(checks.len());
        }
        let StrideResults { outcomes, decisions } = results;
        outcomes.clear();
        outcomes.resize(checks.len(), Outcome::default());
        let requests = RequestList::new(&checks, &ends);
        let Ok(()) = self.store.decide_requests(requests, now, outcomes, decisions).await;
    }

    /// Ends a decision that was made together with others.
    fn conclude(
        &self,
        plan: &RequestPlan<'_>,
        decision: Decision,
        outcomes: &mut [Outcome],
        now: Now<'_>,
    ) -> PlanDecision {
        self.count_skipped(plan, now.instant());
        correct_only_outcome(plan, &decision, outcomes);
        let entries = AnswerEntries::with_outcomes(plan, outcomes);
        let decided = PlanDecision::new(plan, decision, entries);
        self.notify_of_take(plan, Act::Take, &decided, now);
        decided
    }
}

/// Calls `each` with an answer. Takes the rules for it and returns them.
fn hand_out(
    rules: RulesVersion,
    plan: &RequestPlan<'_>,
    decided: PlanDecision,
    each: &mut impl FnMut(&Answer),
) -> RulesVersion {
    let answer = Answer::new(rules, decided, plan.skipped);
    each(&answer);
    answer.into_rules()
}
