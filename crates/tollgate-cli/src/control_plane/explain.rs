//! `/api/explain`: which rules apply to a request and why, and the arithmetic of the verdict.

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tollgate::Wait;
use tollgate_rules::explain::{
    ExplainedKey, ExplainedLimit, ExplainedRetry, ExplainedRule, Explanation,
};

use super::ControlPlane;
use super::keys::override_json;
use crate::data_plane::explained_check::{decision_json, explain_body};
use crate::key_names::KeyNames;
use crate::listeners::response_body::ResponseBody;
use crate::reply;
use crate::telemetry::timestamp;

/// Largest body of a request to explain, in bytes: as large as that of a check.
pub(super) const EXPLAIN_BYTES_MAX: usize = crate::data_plane::http::CHECK_BYTES_MAX;

impl ControlPlane {
    /// Explains the request that a body of `/v1/check` describes.
    pub(super) async fn explain_request(
        &self,
        query: Option<&str>,
        body: &[u8],
    ) -> Response<ResponseBody> {
        if query.is_some_and(|query| !query.is_empty()) {
            let message = "Send the body of /v1/check, without a query.";
            return reply::error(StatusCode::BAD_REQUEST, message);
        }
        match explain_body(&self.gatekeeper, self.missing_facts, body).await {
            Ok(explanation) => {
                let document = explanation_json(&explanation, &self.names);
                reply::json(StatusCode::OK, document.to_string())
            }
            Err(problem) => reply::error(StatusCode::BAD_REQUEST, &problem),
        }
    }
}

/// An explanation as JSON.
fn explanation_json(explanation: &Explanation, names: &KeyNames) -> Value {
    let Explanation { answer, summary, facts, rules, rules_not_listed, retry } = explanation;
    let fact = |one: &tollgate_rules::explain::ExplainedFact| json!({ "name": one.name, "value": one.value, "note": one.note });
    json!({
        "refusal": null,
        "at": timestamp(answer.at()).to_string(),
        "summary": summary,
        "facts": facts.iter().map(fact).collect::<Vec<_>>(),
        "decision": decision_json(answer),
        "rules": rules.iter().map(|rule| rule_json(rule, names)).collect::<Vec<_>>(),
        "rules_not_listed": rules_not_listed,
        "retry": retry.as_ref().map(retry_json),
    })
}

fn rule_json(rule: &ExplainedRule, names: &KeyNames) -> Value {
    let conditions = rule.conditions.iter();
    let conditions = conditions
        .map(|one| json!({ "text": one.text, "holds": one.holds, "found": one.found }))
        .collect::<Vec<_>>();
    json!({
        "name": &*rule.name,
        "result": rule.result.name(),
        "why": rule.why,
        "conditions": conditions,
        "key": rule.key.as_ref().map(|key| key_json(key, names)),
        "tier": rule.tier.as_ref().map(|tier| json!({ "name": tier.name, "why": tier.why })),
        "override": rule.own_limits.as_ref().map(|(one, run_time)| override_json(one, *run_time)),
        "blocked_for_ms": rule.blocked_for.and_then(Wait::millis),
        "cost": rule.cost.as_ref().map(|cost| json!({ "units": cost.units, "why": cost.why })),
        "limits": rule.limits.iter().map(limit_json).collect::<Vec<_>>(),
    })
}

fn key_json(key: &ExplainedKey, names: &KeyNames) -> Value {
    let parts = key.parts.iter();
    let parts = parts
        .map(|part| json!({ "name": part.name, "value": part.value, "why": part.why }))
        .collect::<Vec<_>>();
    json!({
        "template": key.template,
        "text": key.text,
        "hash": key.caller.as_ref().map(|key| names.hash(key)),
        "parts": parts,
    })
}

fn limit_json(limit: &ExplainedLimit) -> Value {
    json!({
        "limit": limit.limit,
        "algorithm": limit.algorithm,
        "enforced": limit.enforced,
        "allowed": limit.allowed,
        "max": limit.max,
        "remaining": limit.remaining,
        "needs": limit.needs,
        "level": limit.level.map(|level| level.as_f64()),
        "retry_after_ms": limit.retry_after.millis(),
        "retry_after_us": limit.retry_after.as_micros(),
        "reset_after_ms": limit.reset_after.and_then(Wait::millis),
        "delay_ms": limit.delay.millis(),
        "decided_by": limit.decided_by.name(),
        "arithmetic": limit.arithmetic,
    })
}

fn retry_json(retry: &ExplainedRetry) -> Value {
    json!({
        "after_ms": retry.after.millis(),
        "at": retry.at.map(|at| timestamp(at).to_string()),
        "allowed": retry.allowed,
        "text": retry.text,
    })
}
