//! An explanation in one sentence.

use tollgate::{Refusal, Wait};

use super::explained_verdict::ExplainedVerdict;
use super::wait_text::wait_text;
use super::{ExplainedRule, RuleResult};

/// The decision and its reason, in one sentence.
pub(super) fn summary(verdict: &ExplainedVerdict<'_>, rules: &[ExplainedRule]) -> String {
    if let Some(missing) = &verdict.missing_facts {
        return format!("Not decided: {missing}.");
    }
    let Some(refusal) = verdict.refusal else { return admitted(verdict, rules) };
    let by = verdict.binding;
    let wait = || match verdict.retry_after {
        Wait::NEVER => String::new(),
        wait => format!(" for {}", wait_text(wait)),
    };
    match (refusal, by) {
        (Refusal::OverLimit, Some((rule, limit))) => {
            let arithmetic = binding_arithmetic(rules, rule, limit);
            format!("Refused by {rule} ({limit}): {arithmetic}.")
        }
        (Refusal::NeverFits, Some((rule, limit))) => {
            format!("Refused by {rule} ({limit}): the cost is above {}.", verdict.capacity)
        }
        (Refusal::Blocked, Some((rule, _))) => {
            format!("Refused by {rule}: the caller is blocked{}.", wait())
        }
        (Refusal::Busy, Some((rule, limit))) => {
            format!("Refused by {rule} ({limit}): too much work is in progress.")
        }
        (Refusal::StoreUnavailable, Some((rule, limit))) => {
            format!(
                "Refused by {rule} ({limit}): the store is unavailable, and the rule refuses then."
            )
        }
        (Refusal::QueueFull, Some((rule, limit))) => {
            format!("Refused by {rule} ({limit}): too many requests are waiting.")
        }
        (Refusal::Displaced, Some((rule, limit))) => {
            format!(
                "Refused by {rule} ({limit}): it made room for a caller with fewer waiting requests."
            )
        }
        (Refusal::WaitExpired, Some((rule, limit))) => {
            format!("Refused by {rule} ({limit}): it has waited too long.")
        }
        (Refusal::WaitTooLong, Some((rule, limit))) => {
            format!("Refused by {rule} ({limit}): it would have waited too long.")
        }
        (Refusal::TooManyLimits, _) => "Refused: more limits apply than one decision holds.".into(),
        (Refusal::EmptyKey, _) => "Refused: the key is empty.".into(),
        _ => format!("Refused ({}){}.", refusal.name(), wait()),
    }
}

fn admitted(verdict: &ExplainedVerdict<'_>, rules: &[ExplainedRule]) -> String {
    let Some((rule, limit)) = verdict.binding else {
        return match rules.iter().find(|one| one.result == RuleResult::Exempt) {
            Some(one) => format!("Allowed. {}", one.why),
            None => "Allowed: no enforced rule applies.".into(),
        };
    };
    let after = match verdict.delay {
        Wait::ZERO => String::new(),
        delay => format!(" after {}", wait_text(delay)),
    };
    let (left, max) = (verdict.remaining, verdict.capacity);
    format!("Allowed{after}: {left} of {max} left under {rule} ({limit}).")
}

/// The arithmetic of the limit that refuses.
fn binding_arithmetic(rules: &[ExplainedRule], rule: &str, limit: &str) -> String {
    let named = rules.iter().filter(|one| *one.name == *rule).flat_map(|one| &one.limits);
    let refusing = named.filter(|one| one.limit == limit && !one.allowed);
    let found = refusing.max_by_key(|one| one.retry_after);
    found.map_or_else(|| "over the limit".into(), |one| one.arithmetic.clone())
}
