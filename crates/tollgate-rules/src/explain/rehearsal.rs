//! The decision that a request would get, made on the present states without charging anything.

use arrayvec::ArrayVec;
use tollgate::algorithm::State;
use tollgate::decision::MAX_LIMITS;
use tollgate::{Act, Check, Clock, Now, Outcome, Refusal};

use crate::answer::{AnswerEntries, PlanDecision};
use crate::gatekeeper::{Gatekeeper, InfallibleStore};
use crate::plan::RequestPlan;

/// A decision that charged nothing.
pub(super) struct RehearsedDecision {
    pub(super) decided: PlanDecision,
    /// The outcome of each limit if nothing were charged: its state before the request.
    pub(super) present: Vec<Outcome>,
    /// The state of each limit; none if the store does not show them.
    pub(super) states: Vec<State>,
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Decides a plan and charges nothing. The decision is the one that a request would get now,
    /// with what would be left after it. Where the store does not show its states, or does not
    /// answer, an admitted request shows what is left before it.
    pub(super) async fn rehearse(&self, plan: &RequestPlan<'_>, now: Now<'_>) -> RehearsedDecision {
        if plan.is_unanswered() {
            let decided = PlanDecision::refused(Refusal::EmptyKey, now.instant());
            return RehearsedDecision { decided, present: Vec::new(), states: Vec::new() };
        }
        // Looking at the states, and asking without them if that fails, share one deadline.
        let now = self.begin_operation(now);
        if !plan.too_many_limits
            && self.find_block(plan, now.instant()).is_none()
            && let Some(rehearsed) = self.rehearse_on_states(plan, now).await
        {
            return rehearsed;
        }
        let decided = self.ask_store(plan, Act::Peek, now).await;
        let present = decided.entries.outcomes().to_vec();
        RehearsedDecision { decided, present, states: Vec::new() }
    }

    /// Decides on copies of the states; `None` if the store does not show them.
    async fn rehearse_on_states(
        &self,
        plan: &RequestPlan<'_>,
        now: Now<'_>,
    ) -> Option<RehearsedDecision> {
        let takes: Box<[Check<'_>]> =
            plan.limits.iter().map(|one| plan.check(one, Act::Take)).collect();
        let Ok(inspected) = self.store().inspect(&takes, now).await;
        let inspected = inspected?;
        let peeks: ArrayVec<Check<'_>, MAX_LIMITS> = plan.checks(Act::Peek);
        let mut present = vec![Outcome::default(); peeks.len()];
        let _ = inspected.decide(&peeks, now.instant(), &mut present);
        let mut entries = AnswerEntries::new(plan);
        let decision = inspected.decide(&takes, now.instant(), entries.outcomes_mut());
        let decision = self.rehearse_bans(plan, (decision, entries.outcomes()), now).await;
        let states = inspected.by_check(&takes).into_iter().cloned().collect();
        Some(RehearsedDecision {
            decided: PlanDecision::new(plan, decision, entries),
            present,
            states,
        })
    }
}
