//! Explanations in JSON, as the admin API returns them.

use serde_json::{Value, json};
use tollgate::Wait;
use tollgate_rules::explain::{
    ExplainedFact, ExplainedKey, ExplainedLimit, ExplainedRetry, ExplainedRule, Explanation,
    RefusalExplanation,
};

use crate::control_plane::override_json;
use crate::data_plane::explained_check::decision_json;
use crate::key_names::KeyNames;
use crate::telemetry::timestamp;

/// An explanation as JSON.
pub(crate) fn explanation_json(explanation: &Explanation, names: &KeyNames) -> Value {
    let Explanation { answer, summary, facts, rules, rules_not_listed, retry } = explanation;
    json!({
        "refusal": null,
        "at": timestamp(answer.at()).to_string(),
        "summary": summary,
        "facts": facts.iter().map(fact_json).collect::<Vec<_>>(),
        "decision": decision_json(answer),
        "rules": rules.iter().map(|rule| rule_json(rule, names)).collect::<Vec<_>>(),
        "rules_not_listed": rules_not_listed,
        "retry": retry.as_ref().map(retry_json),
    })
}

/// The explanation of a refusal as JSON, under the id that it is asked for by.
pub(crate) fn refusal_json(refusal: &RefusalExplanation, id: &str, names: &KeyNames) -> Value {
    json!({
        "refusal": id,
        "at": timestamp(refusal.at).to_string(),
        "summary": refusal.summary,
        "facts": refusal.facts.iter().map(fact_json).collect::<Vec<_>>(),
        "decision": recorded_decision(refusal),
        "rules": refusal.rules.iter().map(|rule| rule_json(rule, names)).collect::<Vec<_>>(),
        "rules_not_listed": null,
        "retry": refusal.retry.as_ref().map(retry_json),
    })
}

/// The decision of a recorded refusal, with the members that `/v1/check` gives programs.
fn recorded_decision(refusal: &RefusalExplanation) -> Value {
    let is_binding = |rule: &ExplainedRule, limit: &ExplainedLimit| {
        refusal.binding.as_ref().is_some_and(|(name, text)| {
            *name == rule.name && *text == limit.limit && !limit.allowed
        })
    };
    let all =
        || refusal.rules.iter().flat_map(|rule| rule.limits.iter().map(move |one| (rule, one)));
    let binding = all().find(|(rule, limit)| is_binding(rule, limit)).map(|(_, limit)| limit);
    let limits = all().map(|(rule, limit)| {
        json!({
            "rule": &*rule.name,
            "limit": limit.limit,
            "allowed": limit.allowed,
            "remaining": limit.remaining,
            "retry_after_ms": limit.retry_after.millis(),
            "reset_after_ms": limit.reset_after.and_then(Wait::millis),
            "enforced": limit.enforced,
        })
    });
    json!({
        "allowed": false,
        "rule": refusal.binding.as_ref().map(|(rule, _)| &**rule),
        "limit": refusal.binding.as_ref().map(|(_, limit)| limit),
        "remaining": binding.and_then(|one| one.remaining),
        "retry_after_ms": refusal.retry_after.millis(),
        "reset_after_ms": binding.and_then(|one| one.reset_after?.millis()),
        "delay_ms": 0,
        "max": binding.map(|one| one.max),
        "decided_by": refusal.decided_by.name(),
        "limits": limits.collect::<Vec<_>>(),
        "reason": refusal.refusal.name(),
    })
}

fn fact_json(fact: &ExplainedFact) -> Value {
    json!({ "name": fact.name, "value": fact.value, "note": fact.note })
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
        "ban": rule.ban,
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
