//! The answer to a request while its plan still borrows the rules.

use super::{PlanAdmission, ReservationAnswer};
use crate::answer::Answer;
use crate::gatekeeper::RulesVersion;
use crate::missing_facts::SkippedRule;
use crate::plan::RequestPlan;
use crate::waiting::Departure;

/// An answer without the rules, which the plan borrows.
pub(crate) struct PlanAnswer {
    admission: PlanAdmission,
    skipped: Option<SkippedRule>,
    reads_response: bool,
    measures_latency: bool,
    departure: Option<Departure>,
}

impl PlanAnswer {
    pub(crate) fn new(
        plan: &RequestPlan<'_>,
        admission: PlanAdmission,
        departure: Option<Departure>,
    ) -> PlanAnswer {
        PlanAnswer {
            skipped: plan.skipped,
            reads_response: plan.reads_response(),
            measures_latency: admission.1.is_some() && plan.measures_latency(),
            admission,
            departure,
        }
    }

    pub(crate) fn by(self, rules: RulesVersion) -> ReservationAnswer {
        let (decided, id) = self.admission;
        ReservationAnswer {
            answer: Answer::new(rules, decided, self.skipped),
            id,
            reads_response: self.reads_response,
            measures_latency: self.measures_latency,
            departure: self.departure,
        }
    }
}
