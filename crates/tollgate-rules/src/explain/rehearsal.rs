//! The decision that a request would get, made on the present states without charging anything.

use tollgate::{Act, Clock, Now, Outcome, Refusal};

use crate::answer::PlanDecision;
use crate::gatekeeper::{Gatekeeper, InfallibleStore};
use crate::plan::RequestPlan;

/// A decision that charged nothing.
pub(super) struct RehearsedDecision {
    pub(super) decided: PlanDecision,
    /// The state of each limit before the request.
    pub(super) present: Vec<Outcome>,
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Decides a plan and charges nothing.
    pub(super) async fn rehearse(&self, plan: &RequestPlan<'_>, now: Now<'_>) -> RehearsedDecision {
        let decided = match plan.is_unanswered() {
            true => PlanDecision::refused(Refusal::EmptyKey, now.instant()),
            false => self.ask_store(plan, Act::Peek, now).await,
        };
        let present = decided.entries.outcomes().to_vec();
        RehearsedDecision { decided, present }
    }
}
