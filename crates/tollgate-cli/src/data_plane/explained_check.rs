//! Explains the check that a body of `POST /v1/check` describes, for operators.

use serde_json::Value;
use tollgate_rules::explain::Explanation;
use tollgate_rules::{Answer, Ask};

use super::answer;
use super::facts::{identify_caller, rules_for_identity, stated_facts};
use super::json::{CHECK_FIELDS, CheckBody};
use crate::settings::OnMissingFacts;
use crate::store::ServerGatekeeper;

/// Explains the decision that this body would get from `/v1/check`; charges nothing. `Err` is the
/// mistake in the body.
pub(crate) async fn explain_body(
    gatekeeper: &ServerGatekeeper,
    missing_facts: OnMissingFacts,
    body: &[u8],
) -> Result<Explanation, String> {
    let check = CheckBody::read(body, CHECK_FIELDS)?;
    let (rules, now) = (gatekeeper.rules(), gatekeeper.now());
    let (stated, identifying) = (stated_facts(&check), rules_for_identity(&rules, &check));
    let identity = identify_caller(identifying.as_deref(), &stated, now);
    let needs_facts = missing_facts == OnMissingFacts::Refuse;
    let facts = identity.complete(stated);
    let ask = Ask { facts, cost: check.cost, needs_facts, ..Ask::default() };
    Ok(gatekeeper.explain_by(rules, &ask, gatekeeper.clock_instant(now)).await)
}

/// The decision as `/v1/check` answers it.
pub(crate) fn decision_json(answer: &Answer) -> Value {
    let mut out = Vec::new();
    match answer.unanswered() {
        Some(missing) => answer::write_missing_facts(&mut out, &missing),
        None => {
            let policies = answer.policies();
            answer::write_decision(&mut out, answer, &answer.reply(&policies), None);
        }
    }
    serde_json::from_slice(&out).unwrap_or_default()
}
