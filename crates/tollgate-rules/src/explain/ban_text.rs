//! The `ban` of a rule as people read it.

use tollgate::Wait;

use super::wait_text::wait_text;
use crate::rule::{Mode, Rule};

/// The block that follows refusals by a rule: `10 refusals within 1 min block the caller for 15 min`; `None` if the
/// rule has none.
pub fn ban_text(rule: &Rule) -> Option<String> {
    let blocks = match rule.mode {
        Mode::Shadow => "would block the caller",
        _ => "block the caller",
    };
    let text = conditions_and_length(rule, blocks)?;
    Some(match rule.mode {
        Mode::Shadow => format!("{text}; in shadow this is only counted and logged"),
        _ => text,
    })
}

/// The reason why a rule refuses a blocked caller.
pub(super) fn blocked_text(rule: &Rule) -> String {
    match conditions_and_length(rule, "block a caller") {
        Some(ban) => {
            format!("The caller is blocked, by an operator or by the ban of this rule: {ban}.")
        }
        None => "The caller is blocked.".into(),
    }
}

fn conditions_and_length(rule: &Rule, blocks: &str) -> Option<String> {
    let ban = rule.ban.as_ref()?;
    let refusals = ban.refusals.capacity();
    let plural = if refusals == 1 { "" } else { "s" };
    let within = wait_text(Wait::at_least(ban.refusals.period()));
    let length = wait_text(Wait::at_least(ban.block));
    Some(format!("{refusals} refusal{plural} within {within} {blocks} for {length}"))
}
