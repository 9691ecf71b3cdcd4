//! `overrides:` other numbers for single callers.

use std::collections::HashMap;

use tollgate::Micros;

use crate::Problem;
use crate::credentials::has_unhashed_user;
use crate::diagnostic::{Diagnostic, Span};
use crate::identify::Identify;
use crate::rule::Rule;
use crate::rule_set::Override;
use crate::yaml::YamlNode;

use super::context::{CompileContext, optional};
use super::limits::{self, LimitOwner, ReplacedLimits};
use super::{RuleNames, quantities};

/// The most overrides of all files together: each takes about 500 bytes, and they are read again with
/// every reload.
const MAX_OVERRIDES: usize = 20_000;

/// An override and where it was written.
pub(super) struct WrittenOverride<'a> {
    context: CompileContext<'a>,
    span: Span,
    pub(super) replacement: Override,
}

/// The rules that overrides refer to, the settings that their keys are read with, and the time, to
/// warn of those that have ended.
pub(super) struct OverrideContext<'w> {
    pub(super) rules: HashMap<&'w str, &'w Rule>,
    pub(super) names: &'w RuleNames,
    pub(super) identify: &'w Identify,
    pub(super) now: Option<Micros>,
}

/// Reads all overrides of a file.
pub(super) fn read<'a>(
    context: CompileContext<'a>,
    root: &YamlNode,
    known: &OverrideContext<'_>,
) -> Vec<WrittenOverride<'a>> {
    let nodes = root.get("overrides").map(YamlNode::items).unwrap_or_default();
    nodes.iter().filter_map(|node| read_one(context, node, known)).collect()
}

fn read_one<'a>(
    context: CompileContext<'a>,
    node: &YamlNode,
    known: &OverrideContext<'_>,
) -> Option<WrittenOverride<'a>> {
    let until = optional(node.get("until"), |node| until(context, node, known.now));
    let rule_node = node.get("rule")?;
    let rule = rule_node.text()?;
    let found = known.rules.get(rule).copied();
    if found.is_none() && !known.names.has(rule) {
        // Rules of the short form have no name in the file.
        let short = known.rules.keys().copied().filter(|name| !known.names.has(name));
        let names = known.names.iter().chain(short);
        let hint = context.did_you_mean(rule, names, || "write the name of a rule".into());
        context
            .error(rule_node.span, Problem::new(format!("there is no rule `{rule}`")).hint(hint));
    }
    let plain = found.map(|rule| rule.limits.plain()).unwrap_or_default();
    let on_change = plain.first().map(|limit| limit.limit.on_change()).unwrap_or_default();
    let owner = LimitOwner { rule, on_change, tiered: false };
    let limits = node
        .get("limits")
        .and_then(|limits| limits::read_replacement(context, limits, owner, ReplacedLimits(plain)));
    let key_node = node.get("key")?;
    let template = &found?.key;
    let key = context.read(key_node, |text| template.parse_key(text, known.identify));
    let one = Override { rule: rule.into(), key: key?, limits: limits?, until: until? };
    Some(WrittenOverride { context, span: key_node.span, replacement: one })
}

fn until(context: CompileContext<'_>, node: &YamlNode, now: Option<Micros>) -> Option<Micros> {
    let until = context.read(node, quantities::instant)?;
    if now.is_some_and(|now| until <= now) {
        let problem = Problem::new("this override has ended").hint("remove it");
        context.warn(node.span, problem);
    }
    Some(until)
}

/// Reports too many overrides.
pub(super) fn check_count(overrides: &[WrittenOverride<'_>]) {
    if let Some(written) = overrides.get(MAX_OVERRIDES) {
        let problem = Problem::new(format!("there are more than {MAX_OVERRIDES} overrides"))
            .hint("give the callers a tier with limits of its own, in place of one override each");
        written.context.error(written.span, problem);
    }
}

/// Warns of raw API keys in place of users. The message repeats none, because warnings are logged.
pub(super) fn check_users(overrides: &[WrittenOverride<'_>], identify: &Identify) {
    let is_raw = |one: &&WrittenOverride<'_>| has_unhashed_user(&one.replacement.key, identify);
    for written in overrides.iter().filter(is_raw) {
        let problem =
            "users are the hashes of their API keys, and the user of this override is no hash";
        let hint = "write `api_key=` and the key, or `user=` and the hash that `keys show` prints, `sha256:…`";
        written.context.warn(written.span, Problem::new(problem).hint(hint));
    }
}

/// Reports a second override for one caller, because only the last would count.
pub(super) fn check_duplicates(overrides: &[WrittenOverride<'_>]) {
    let mut seen = HashMap::new();
    for written in overrides {
        let caller = (&written.replacement.rule, &written.replacement.key);
        let Some(first) = seen.insert(caller, written) else { continue };
        let problem = Problem::new(format!(
            "there are two overrides of the rule `{}` for this caller",
            written.replacement.rule
        ))
        .hint("keep one of them");
        let diagnostic = Diagnostic::error(written.context.source, written.span, problem);
        let (source, span) = (first.context.source, first.span);
        written.context.push(diagnostic.also(source, span, "the first is here"));
    }
}
