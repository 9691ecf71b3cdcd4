//! The answer to a request while its plan still borrows the rules.

use super::{PlanAdmission, ReservationAnswer};
use crate::answer::Answer;
use crate::gatekeeper::RulesVersion;
use crate::missing_facts::SkippedRule;
use crate::plan::RequestPlan;

/// An answer without the rules, which the plan borrows.
pub(crate) struct PlanAnswer {
    admission: PlanAdmission,
    skipped: Option<SkippedRule>,
    reads_response: bool,
    measures_latency: bool,
}

impl PlanAnswer {
    pub(crate) fn new(plan: &RequestPlan<'_>, admission: PlanAdmission) -> PlanAnswer {
        PlanAnswer {
            admission,
            skipped: plan.skipped,
            reads_response: plan.reads_response(),
            measures_latency: plan.measures_latency(),
        }
    }

    pub(crate) fn by(self, rules: RulesVersion) -> ReservationAnswer {
        let PlanAnswer { admission: (decided, id), skipped, reads_response, measures_latency } =
            self;
        let answer = Answer::new(rules, decided, skipped);
        ReservationAnswer { answer, id, reads_response, measures_latency }
    }
}
