//! `/api/refusals`: the requests that were refused last.

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tollgate::Wait;

use super::ControlPlane;
use super::query::{QueryError, QueryFields};
use crate::listeners::response_body::ResponseBody;
use crate::recent_refusals::{REFUSALS_MAX, RecordedRefusal};
use crate::reply;
use crate::telemetry::timestamp;

/// Default number of refusals.
const REFUSALS_DEFAULT: usize = 50;

impl ControlPlane {
    /// The last refusals, the last first.
    pub(super) fn refusals(
        &self,
        query: Option<&str>,
    ) -> Result<Response<ResponseBody>, QueryError> {
        let fields = QueryFields::parse(query, &["n", "rule"])?;
        let most = fields.number("n", 1..=REFUSALS_MAX, REFUSALS_DEFAULT)?;
        let refusals = self.metrics.observer.refusals();
        let latest = refusals.latest(most, fields.text("rule"));
        let document = json!({
            "refusals": latest.iter().map(|one| refusal_row(one)).collect::<Vec<_>>(),
            "not_recorded": refusals.not_recorded(),
        });
        Ok(reply::json(StatusCode::OK, document.to_string()))
    }
}

/// One refusal as JSON, without its explanation.
pub(super) fn refusal_row(refusal: &RecordedRefusal) -> Value {
    json!({
        "id": refusal.id,
        "at": timestamp(refusal.at).to_string(),
        "rule": refusal.rule.as_deref(),
        "limit": refusal.limit,
        "key": refusal.key,
        "hash": refusal.hash,
        "cost": refusal.cost,
        "retry_after_ms": Wait::millis(refusal.retry_after),
        "reason": refusal.reason,
        "decided_by": refusal.decided_by,
        "method": refusal.method,
        "path": refusal.path,
    })
}
