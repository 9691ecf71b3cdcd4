//! Missing facts: a rule whose key cannot be made does not apply, and where that leaves no rule that
//! could refuse, a silent yes would hide a mistake.

use std::fmt;

use crate::normalized_facts::NormalizedFacts;
use crate::rule::{Mode, Rule};
use crate::rule_set::RuleSet;

/// The first rule that could have refused a request and was skipped, where all of them were.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SkippedRule {
    rule: u32,
    /// The parts of its key that no fact fills, one bit each.
    parts: u8,
}

impl SkippedRule {
    #[cold]
    pub(crate) fn new(rules: &RuleSet, rule: u32, seen: &NormalizedFacts<'_>) -> SkippedRule {
        let prefix = rules.settings().identify.ipv6_prefix;
        SkippedRule { rule, parts: rules.rule_at(rule).key.missing(seen, prefix) }
    }

    pub(crate) fn facts(self, rules: &RuleSet) -> MissingFacts<'_> {
        MissingFacts { rule: rules.rule_at(self.rule), parts: self.parts }
    }
}

/// The facts that a request would need for a rule to apply. `Display` writes a sentence.
#[derive(Clone, Copy, Debug)]
pub struct MissingFacts<'a> {
    rule: &'a Rule,
    parts: u8,
}

impl<'a> MissingFacts<'a> {
    /// The rule that was skipped, the first of several.
    pub fn rule(&self) -> &'a Rule {
        self.rule
    }

    /// One entry for each part of the key that is missing: the facts any of which would fill it.
    pub fn facts(&self) -> impl Iterator<Item = Vec<String>> + use<'a> {
        let missing = self.parts;
        let parts = self.rule.key.parts().enumerate();
        parts.filter(move |(index, _)| missing >> index & 1 == 1).map(|(_, facts)| facts)
    }
}

impl fmt::Display for MissingFacts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule { name, key, .. } = self.rule;
        let needed =
            self.facts().map(|facts| facts.join(" or ")).collect::<Vec<_>>().join(", and ");
        write!(f, "the rule {name} counts by {key}, and this request has no {needed}")
    }
}

/// Returns true if a rule can refuse: shadow and soft rules, and those switched off, cannot.
pub(crate) fn can_refuse(rule: &Rule) -> bool {
    matches!(rule.mode, Mode::Enforce | Mode::Share(_)) && !rule.soft
}
