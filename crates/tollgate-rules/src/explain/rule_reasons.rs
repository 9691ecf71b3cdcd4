//! Which rules apply to a request, and why the others do not.

use tollgate::Clock;

use crate::facts::Facts;
use crate::gatekeeper::{Gatekeeper, InfallibleStore};
use crate::matcher::MatchBudget;
use crate::normalized_facts::NormalizedFacts;
use crate::path::spelling_numbers;
use crate::plan::RequestPlan;
use crate::rule::{Mode, Rule};
use crate::rule_set::SelectedRule;

use super::applied_rule::{RuleContext, TOO_MANY_LIMITS, plain_rule};
use super::rehearsal::RehearsedDecision;
use super::shorten::shorten;
use super::work_in_progress::add_bounds;
use super::{ExplainedRule, RuleResult};
use crate::credentials::HiddenCredentials;

/// The most rules that an explanation lists: files may have thousands that do not apply.
pub const RULES_LISTED_MAX: usize = 500;

/// The rules of an explanation.
pub(super) struct ExplainedRules {
    pub(super) rules: Vec<ExplainedRule>,
    /// Number of rules that do not apply and are not listed.
    pub(super) not_listed: usize,
}

/// Explains the rules, in order.
pub(super) fn explain_rules<S: InfallibleStore, C: Clock>(
    gatekeeper: &Gatekeeper<S, C>,
    plan: &RequestPlan<'_>,
    facts: &Facts<'_>,
    rehearsal: &RehearsedDecision,
) -> ExplainedRules {
    let rules = plan.rules();
    let mut seen = rules.normalized_facts(facts);
    let exempt = rules.exempts(&seen);
    let mut selected = Vec::new();
    rules.select(&seen, &mut selected);
    // Selecting has spent its budget: showing conditions has another.
    seen.match_budget = MatchBudget::default();
    let context = RuleContext {
        plan,
        seen: Some(seen),
        outcomes: rehearsal.decided.entries.outcomes(),
        present: &rehearsal.present,
        states: &rehearsal.states,
        secrets: HiddenCredentials(&rules.settings().identify),
        at: rehearsal.decided.decision.at(),
    };
    let mut room = RULES_LISTED_MAX.saturating_sub(selected.len());
    let mut explained = ExplainedRules { rules: Vec::new(), not_listed: 0 };
    let mut selected = selected.into_iter().peekable();
    for (rule, number) in rules.rules().zip(0..) {
        if let Some(one) = selected.next_if(|one| one.rule == number) {
            if explained.rules.len() >= RULES_LISTED_MAX {
                explained.not_listed += 1;
            } else if exempt {
                explained.rules.push(context.exempt(rule, one));
            } else {
                let mut applied = context.selected(rule, one);
                applied.iter_mut().for_each(|entry| add_bounds(gatekeeper, entry, rule));
                explained.rules.append(&mut applied);
            }
        } else if room > 0 {
            room -= 1;
            explained.rules.push(context.not_selected(rule));
        } else {
            explained.not_listed += 1;
        }
    }
    explained
}

impl RuleContext<'_, '_> {
    /// A rule whose condition does not hold, or that is never matched.
    fn not_selected(&self, rule: &Rule) -> ExplainedRule {
        let conditions = self.conditions(rule, 0);
        let failing = conditions.iter().find(|one| !one.holds);
        let (result, why) = match failing {
            _ if rule.mode == Mode::Off => (RuleResult::Off, "The rule is switched off.".into()),
            _ if rule.imported.is_some() => {
                let why =
                    "The rule comes from an imported file: only descriptors of its domain meet it.";
                (RuleResult::NotMatched, why.into())
            }
            Some(one) => {
                let found = one.found.as_ref().map(|found| format!("; found {found}"));
                let found = found.unwrap_or_default();
                (RuleResult::NotMatched, format!("It needs: {}{found}.", one.text))
            }
            None => (RuleResult::NotMatched, "Its condition does not hold.".into()),
        };
        ExplainedRule { conditions, ..plain_rule(rule, result, why) }
    }

    fn exempt(&self, rule: &Rule, one: SelectedRule) -> ExplainedRule {
        let settings = self.rules().settings();
        let user = self.seen.as_ref().and_then(NormalizedFacts::user);
        let user = user.filter(|user| settings.exempt_users.contains(*user));
        let why = match user {
            Some(user) => format!("The user {} is exempt from all rules.", shorten(user)),
            None => "The address is exempt from all rules.".into(),
        };
        let conditions = self.conditions(rule, first_spelling(one));
        ExplainedRule { conditions, ..plain_rule(rule, RuleResult::Exempt, why) }
    }

    /// A rule whose condition holds: an entry for each key that it counts.
    fn selected(&self, rule: &Rule, one: SelectedRule) -> Vec<ExplainedRule> {
        let applied = self.applied(rule, one.rule);
        match applied.is_empty() {
            true => vec![self.without_limits(rule, one)],
            false => applied,
        }
    }

    /// A rule whose condition holds and that has no part in the plan.
    fn without_limits(&self, rule: &Rule, one: SelectedRule) -> ExplainedRule {
        let spelling = first_spelling(one);
        let conditions = self.conditions(rule, spelling);
        let plain = |result, why: String| ExplainedRule {
            conditions: conditions.clone(),
            ..plain_rule(rule, result, why)
        };
        if self.plan.too_many_limits {
            return plain(RuleResult::Closed, TOO_MANY_LIMITS.into());
        }
        let others = self.plan.enforced().any(|(_, other, _)| other.condition.is_some());
        if one.is_fallback && others {
            let why = "It is a fallback, and another rule with a condition is enforced.";
            return plain(RuleResult::NotNeeded, why.into());
        }
        let parts = self.key_facts(spelling).map(|of| rule.key.filled_parts(&of));
        let missing = parts.iter().flatten().filter(|part| part.found.is_none());
        let missing = missing.map(|part| part.facts.join(" or ")).collect::<Vec<_>>();
        if missing.is_empty() {
            let why = "It cannot refuse, and the decision has no room for its limits.";
            return plain(RuleResult::NotNeeded, why.into());
        }
        let why = format!(
            "It counts by {}, and the request has no {}.",
            rule.key,
            missing.join(", and ")
        );
        let key = Some(self.key(rule, None, spelling));
        ExplainedRule { key, ..plain(RuleResult::MissingFacts, why) }
    }
}

/// The number of the first spelling of the path that a rule applies to.
fn first_spelling(one: SelectedRule) -> usize {
    spelling_numbers(one.spellings).next().unwrap_or(0)
}
