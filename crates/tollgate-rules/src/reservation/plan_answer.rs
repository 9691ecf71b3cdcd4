//! The answer to a request while its plan still borrows the rules.

use std::sync::Arc;

use super::{PlanAdmission, ReservationAnswer, websocket_limits_of};
use crate::answer::Answer;
use crate::gatekeeper::{Ask, RulesVersion};
use crate::missing_facts::SkippedRule;
use crate::plan::RequestPlan;
use crate::waiting::Departure;
use crate::websocket_limits::WebSocketLimits;

/// An answer without the rules, which the plan borrows.
pub(crate) struct PlanAnswer {
    admission: PlanAdmission,
    skipped: Option<SkippedRule>,
    reads_response: bool,
    measures_latency: bool,
    departure: Option<Departure>,
    websocket: Vec<Arc<WebSocketLimits>>,
}

impl PlanAnswer {
    pub(crate) fn new(
        plan: &RequestPlan<'_>,
        ask: &Ask<'_>,
        admission: PlanAdmission,
        departure: Option<Departure>,
    ) -> PlanAnswer {
        PlanAnswer {
            websocket: websocket_limits_of(plan, &ask.facts, admission.1),
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
            websocket: self.websocket,
        }
    }
}
