//! More limits than one decision holds, where that is certain: rules without `match` apply to every
//! request, and rules with the same `match` apply to the same requests. Other requests that meet too
//! many limits are refused when they arrive, with a warning in the log.

use std::collections::HashMap;

use tollgate::decision::MAX_LIMITS;

use crate::Problem;
use crate::compile::WrittenRule;
use crate::rule::{Mode, Rule};
use crate::rule_set::RuleSet;

/// The most sets of rules that are reported.
const MAX_REPORTED: usize = 10;

/// The most rules of such a set that are named.
const NAMED_MAX: usize = 20;

/// Reports rules that certainly apply together and have too many limits: an error if those that are
/// always enforced are too many, else a warning.
pub(crate) fn check(rules: &[WrittenRule<'_>], set: &RuleSet) {
    let overlaps = Overlaps::new(rules, set);
    let mut everywhere = Vec::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut group_of: HashMap<String, usize> = HashMap::new();
    for (number, written) in rules.iter().enumerate() {
        if written.rule.mode == Mode::Off || !has_key_of_known_callers(&written.rule) {
            continue;
        }
        let Some(condition) = &written.rule.condition else {
            everywhere.push(number);
            continue;
        };
        let group = *group_of.entry(format!("{condition:?}")).or_insert(groups.len());
        if group == groups.len() {
            groups.push(Vec::new());
        }
        groups[group].push(number);
    }
    if overlaps.report("every request meets", &everywhere) {
        return;
    }
    let mut reported = 0;
    for mut group in groups {
        let applies = |number: &usize| !rules[*number].rule.fallback;
        let covered = group.iter().any(|one| applies(one) && is_enforced(&rules[*one].rule));
        group.extend(&everywhere);
        group.retain(|number| !covered || applies(number));
        group.sort_unstable();
        reported += usize::from(overlaps.report("requests that match this rule meet", &group));
        if reported == MAX_REPORTED {
            return;
        }
    }
}

/// Rules, and the limits that take the place of theirs.
struct Overlaps<'a, 'w> {
    rules: &'a [WrittenRule<'w>],
    tiers: Vec<&'a str>,
    /// The most limits of an override, by the name of its rule.
    longest_overrides: HashMap<&'a str, usize>,
}

impl<'a, 'w> Overlaps<'a, 'w> {
    fn new(rules: &'a [WrittenRule<'w>], set: &'a RuleSet) -> Overlaps<'a, 'w> {
        let mut longest_overrides: HashMap<&str, usize> = HashMap::new();
        for one in set.overrides() {
            let longest = longest_overrides.entry(&one.rule).or_default();
            *longest = one.limits.len().max(*longest);
        }
        Overlaps { rules, tiers: set.tiers(), longest_overrides }
    }

    /// Reports rules that apply together, if they have too many limits. Returns true if they have.
    fn report(&self, requests_meet: &str, numbers: &[usize]) -> bool {
        let Some(last) = numbers.last() else { return false };
        let such = |wanted: fn(&Rule) -> bool| -> Vec<usize> {
            numbers.iter().copied().filter(|number| wanted(&self.rules[*number].rule)).collect()
        };
        let (enforced, refusing) = (such(is_enforced), such(may_refuse));
        let is_error = self.most_limits(&enforced).0 > MAX_LIMITS;
        let reported = if is_error { &enforced[..] } else { numbers };
        let (count, whose) = self.most_limits(reported);
        if count <= MAX_LIMITS {
            return false;
        }
        let effect = match self.most_limits(&refusing).0 > MAX_LIMITS {
            _ if is_error => "",
            true => ": callers for whom all of them are enforced are refused",
            false => ": shadow and soft limits are left out",
        };
        let problem = Problem::new(format!(
            "{requests_meet} {count} limits{whose}, but at most {MAX_LIMITS} can be decided \
             together{effect}"
        ));
        let problem = problem.hint(self.hint(&whose, reported));
        let written = &self.rules[*reported.last().unwrap_or(last)];
        match is_error {
            true => written.context.error(written.name_span, problem),
            false => written.context.warn(written.name_span, problem),
        }
        true
    }

    /// The most limits that these rules have for one caller, and for which caller: of a tier, or with
    /// one override.
    fn most_limits(&self, numbers: &[usize]) -> (usize, String) {
        let rules = || numbers.iter().map(|number| &self.rules[*number].rule);
        let count = |tier| rules().map(|rule| rule.limits.of(tier).0.len()).sum::<usize>();
        let plain = count(None);
        let mut most = (plain, String::new());
        for (index, tier) in self.tiers.iter().enumerate() {
            let count = count(Some(index));
            if count > most.0.max(MAX_LIMITS) {
                most = (count, format!(" in the tier `{tier}`"));
            }
        }
        for rule in rules() {
            let longest = self.longest_overrides.get(&*rule.name).copied().unwrap_or(0);
            let count = (plain + longest).saturating_sub(rule.limits.plain().len());
            if count > most.0.max(MAX_LIMITS) {
                most = (count, format!(" with an override of the rule `{}`", rule.name));
            }
        }
        most
    }

    fn hint(&self, whose: &str, numbers: &[usize]) -> String {
        let name = |number: &usize| &*self.rules[*number].rule.name;
        let names: Vec<&str> = numbers.iter().take(NAMED_MAX).map(name).collect();
        let more = match numbers.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let or_fewer = if whose.is_empty() { "" } else { "write fewer limits there, or " };
        format!("{or_fewer}narrow the `match` of some of these rules: {}{more}", names.join(", "))
    }
}

/// Returns true if a rule refuses every key that is over its limits.
fn is_enforced(rule: &Rule) -> bool {
    (rule.mode, rule.soft) == (Mode::Enforce, false)
}

/// Returns true if a rule refuses at least some keys that are over its limits.
fn may_refuse(rule: &Rule) -> bool {
    rule.mode != Mode::Shadow && !rule.soft
}

/// Returns true if the key can be written for every caller with a user, a tier and an API key.
/// Header fields, and entries and domains of descriptors, may be missing.
fn has_key_of_known_callers(rule: &Rule) -> bool {
    let known = |fact: &&str| {
        !fact.starts_with("header.") && !fact.starts_with("entry.") && *fact != "domain"
    };
    rule.key.parts().all(|facts| facts.iter().any(|fact| known(&&**fact)))
}
