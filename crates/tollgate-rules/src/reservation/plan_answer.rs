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
    ends_at_begin: bool,
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
            ends_at_begin: false,
            reads_response: plan.reads_response(),
            measures_latency: admission.1.is_some() && plan.measures_latency(),
            admission,
            departure,
        }
    }

    /// Notes if the reservation is for leaving before the work begins, and nothing else.
    pub(crate) fn ending_at_begin(self, ends_at_begin: bool) -> PlanAnswer {
        PlanAnswer { ends_at_begin: ends_at_begin && self.admission.1.is_some(), ..self }
    }

    pub(crate) fn by(self, rules: RulesVersion) -> ReservationAnswer {
        let (decided, id) = self.admission;
        ReservationAnswer {
            answer: Answer::new(rules, decided, self.skipped),
            id,
            ends_at_begin: self.ends_at_begin,
            reads_response: self.reads_response,
            measures_latency: self.measures_latency,
            departure: self.departure,
            websocket: self.websocket,
        }
    }
}
