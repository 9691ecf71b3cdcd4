//! `tiers:` of both forms.

use std::collections::HashMap;

use crate::Problem;
use crate::diagnostic::Span;
use crate::suggest::SuggestionBudget;
use crate::tier::Multiplier;
use crate::yaml::{YamlNode, YamlValue};

use super::RuleNames;
use super::context::CompileContext;

/// The most tiers: each rule has a list of limits for each.
const MAX_TIERS: usize = 100;

/// All tiers, in the order of the file.
pub(super) struct WrittenTiers<'a> {
    list: Vec<WrittenTier>,
    context: Option<CompileContext<'a>>,
    /// Own limits by rule: the index of the tier, the span of the rule's name, and the limits.
    own_limits: HashMap<&'a str, Vec<(usize, Span, &'a YamlNode)>>,
}

/// One tier.
pub(super) struct WrittenTier {
    pub(super) name: Box<str>,
    /// `None`: it has none, only own limits by rule.
    pub(super) multiplier: Option<Multiplier>,
}

impl<'a> WrittenTiers<'a> {
    /// Reads the tiers of the full form or of the short one.
    pub(super) fn read(
        full: Option<(CompileContext<'a>, &'a YamlNode)>,
        short: Option<(CompileContext<'a>, &'a YamlNode)>,
    ) -> WrittenTiers<'a> {
        if let (Some((context, node)), Some(_)) = (full, short) {
            let problem = Problem::new("there are `tiers` of the full form and of `rate_limits`")
                .hint("keep one of them; it counts for the rules of all files");
            context.error(node.span, problem);
        }
        let mut tiers =
            WrittenTiers { list: Vec::new(), context: None, own_limits: HashMap::new() };
        let Some((context, node)) = full.or(short) else { return tiers };
        tiers.context = Some(context);
        if node.entries().len() > MAX_TIERS {
            let problem = Problem::new(format!("there are more than {MAX_TIERS} tiers"));
            context.error(node.entries()[MAX_TIERS].key_span, problem);
            return tiers;
        }
        for entry in node.entries() {
            let multiplier = match &entry.node.value {
                YamlValue::Map(entries) => {
                    let index = tiers.list.len();
                    for own in entries.iter().filter(|own| &*own.key != "multiplier") {
                        let found = (index, own.key_span, &own.node);
                        tiers.own_limits.entry(&own.key).or_default().push(found);
                    }
                    entry.node.get("multiplier")
                }
                _ => Some(&entry.node),
            };
            let multiplier = multiplier.and_then(|node| context.read(node, Multiplier::parse));
            tiers.list.push(WrittenTier { name: entry.key.clone(), multiplier });
        }
        tiers
    }

    /// Reports limits for a rule that does not exist.
    pub(super) fn check_rules(&self, names: &RuleNames) {
        let Some(context) = self.context else { return };
        for (rule, own) in &self.own_limits {
            if names.has(rule) {
                continue;
            }
            let otherwise = || "write the name of a rule".into();
            let known = names.iter().chain(["multiplier"]);
            let hint = context.did_you_mean(rule, known, otherwise);
            for (_, span, _) in own {
                let problem =
                    format!("a tier has no field `{rule}`, and there is no rule of this name");
                context.error(*span, Problem::new(problem).hint(hint.clone()));
            }
        }
    }

    /// The own limits that tiers have for a rule, by the tier's number.
    pub(super) fn own_limits(&self, rule: &str) -> Vec<(usize, &'a YamlNode)> {
        let own = self.own_limits.get(rule).map(Vec::as_slice).unwrap_or_default();
        own.iter().map(|(tier, _, node)| (*tier, *node)).collect()
    }

    pub(super) fn context(&self) -> Option<CompileContext<'a>> {
        self.context
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &WrittenTier> {
        self.list.iter()
    }

    pub(super) fn names(&self) -> Vec<Box<str>> {
        self.list.iter().map(|tier| tier.name.clone()).collect()
    }

    /// Checks that a tier exists, if any do: without `tiers`, names serve conditions only.
    pub(super) fn check_name(&self, context: CompileContext<'_>, span: Span, name: &str) {
        if self.list.is_empty() || self.list.iter().any(|tier| &*tier.name == name) {
            return;
        }
        let names = self.list.iter().map(|tier| &*tier.name);
        context.error(span, unknown_tier(name, names, &context.shared.suggestions));
    }
}

/// Most tiers that a hint lists.
const TIERS_NAMED_MAX: usize = 20;

/// The problem of an unknown tier, with a suggestion or the list of tiers.
pub(crate) fn unknown_tier<'n>(
    name: &str,
    known: impl Iterator<Item = &'n str> + Clone,
    suggestions: &SuggestionBudget,
) -> Problem {
    let hint = match suggestions.suggest(name, known.clone()) {
        Some(tier) => format!("did you mean `{tier}`?"),
        None => {
            let more = if known.clone().nth(TIERS_NAMED_MAX).is_some() { ", …" } else { "" };
            let named = known.take(TIERS_NAMED_MAX).collect::<Vec<_>>().join(", ");
            format!("there are: {named}{more}")
        }
    };
    Problem::new(format!("there is no tier `{name}`")).hint(hint)
}
