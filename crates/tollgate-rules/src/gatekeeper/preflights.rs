//! CORS preflights that rules let by: no rule counts them, but a block stops them.

use tollgate::{Act, Clock, Now};

use super::{Ask, Gatekeeper, InfallibleStore, RulesVersion};
use crate::answer::{Answer, PlanDecision};
use crate::plan::RequestPlan;

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Refuses a CORS preflight that a block stops, although rules with `preflights: pass` do not count it. The refusal is
    /// counted, and observers see it. `None`: the request is to be decided like any other.
    pub async fn refuse_preflight_by<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> Option<Answer> {
        if !ask.facts.is_preflight || !rules.settings().preflights_pass {
            return None;
        }
        Box::pin(self.look_for_block(rules, ask, now.into())).await
    }

    async fn look_for_block(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: Now<'_>,
    ) -> Option<Answer> {
        // A peek finds the blocks of all rules.
        let peek = Ask { cost: Some(0), cannot_wait: true, ..*ask };
        let plan = RequestPlan::new(&rules, &peek, now.instant());
        let decided: PlanDecision = self.ask(&plan, Act::Peek, now).await;
        if decided.decision.allowed() {
            return None;
        }
        if !plan.is_unanswered() {
            self.notify(&plan, &decided);
        }
        let skipped = plan.skipped;
        drop(plan);
        Some(Answer::new(rules, decided, skipped))
    }
}
