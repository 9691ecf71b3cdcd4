//! Bounds on work in progress, and queues: they hold for reservations and for requests through the
//! gateway, and a plain check takes no place.

use std::time::Duration;

use tollgate::{Clock, DecidedBy, Wait};

use crate::gatekeeper::{Gatekeeper, InfallibleStore};
use crate::observer::RuleVerdict;
use crate::rule::{Mode, Rule};

use super::wait_text::wait_text;
use super::{ExplainedLimit, ExplainedRule, RuleResult};

/// Adds the `concurrency` of a rule to its limits, and its queue to its reason.
pub(super) fn add_bounds<S: InfallibleStore, C: Clock>(
    gatekeeper: &Gatekeeper<S, C>,
    entry: &mut ExplainedRule,
    rule: &Rule,
) {
    let Some(key) = entry.key.as_ref().and_then(|key| key.caller.clone()) else { return };
    let enforced = matches!(rule.mode, Mode::Enforce | Mode::Share(_))
        && rule.mode.enforces(&rule.name, &key)
        && !rule.soft;
    if let Some((in_flight, max)) = gatekeeper.reservations.work_in_progress(rule, &key) {
        let text = rule.concurrency.as_ref().map_or("", |one| &one.text);
        let mut one = work_limit(text, in_flight, max);
        one.enforced = enforced;
        entry.limits.push(one);
    }
    if let Some(fair) = rule.fair.as_ref().filter(|_| enforced) {
        let queue = fair_queue_text(fair.wait);
        entry.why = format!("{} {queue}", entry.why);
    }
}

/// Shows the bound on work in progress that refused a request.
pub(super) fn refusing_bound(rules: &mut [ExplainedRule], refusing: &RuleVerdict<'_>) {
    let Some(entry) = rules.iter_mut().find(|one| *one.name == *refusing.rule.name) else { return };
    entry.result = RuleResult::Refused;
    entry.why = format!("{}: no more fits.", refusing.limit);
}

fn work_limit(text: &str, in_flight: u32, max: u32) -> ExplainedLimit {
    let allowed = in_flight < max;
    let fits = match allowed {
        true => "one more fits".into(),
        false => format!("no room, retry in {}", wait_text(crate::reservation::BUSY_RETRY)),
    };
    let retry_after = if allowed { Wait::ZERO } else { crate::reservation::BUSY_RETRY };
    ExplainedLimit {
        limit: text.into(),
        algorithm: "concurrency",
        enforced: false,
        allowed,
        max: max.into(),
        remaining: Some(max.saturating_sub(in_flight).into()),
        needs: 1,
        level: Some(super::LimitLevel::whole(in_flight.into())),
        retry_after,
        reset_after: None,
        delay: Wait::ZERO,
        decided_by: DecidedBy::Memory,
        arithmetic: format!(
            "{in_flight} of {max} in progress: {fits} (reservations and requests through the \
             gateway take a place, a check takes none)"
        ),
    }
}

fn fair_queue_text(wait: Duration) -> String {
    let wait = wait_text(Wait::at_least(wait));
    format!("At the gateway a request without room waits its turn, up to {wait}.")
}
