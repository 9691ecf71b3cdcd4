//! The short form: `rate_limits:` with a default, endpoints and tiers.

use std::collections::HashSet;

use tollgate::OnChange;

use crate::Problem;
use crate::diagnostic::Span;
use crate::key_template::KeyTemplate;
use crate::limit_spec::LimitSpec;
use crate::matcher::Condition;
use crate::pattern::Endpoint;
use crate::rule::Rule;
use crate::yaml::{YamlEntry, YamlNode};

use super::context::CompileContext;
use super::limits::{self, LimitOwner, WrittenLimit};
use super::tiers::WrittenTiers;
use super::{RuleNames, WrittenRule, quantities};

/// The longest name of a rule.
const NAME_MAX: usize = 64;

/// Adds the rules of the short form: one for each endpoint, and a fallback for the default.
pub(super) fn rules<'a>(
    context: CompileContext<'a>,
    node: &YamlNode,
    tiers: &WrittenTiers<'_>,
    names: &RuleNames,
    rules: &mut Vec<WrittenRule<'a>>,
) {
    let mut taken: HashSet<Box<str>> =
        rules.iter().map(|written| (*written.rule.name).into()).collect();
    taken.extend(names.iter().map(Box::from));
    let mut reader = ShortFormReader { context, tiers, used_names: taken };
    let endpoints = node.get("endpoints").map(YamlNode::entries).unwrap_or_default();
    let default = node.entry("default");
    if endpoints.is_empty() && default.is_none() {
        let problem = Problem::new("`rate_limits` has neither `default` nor `endpoints`")
            .hint("write `default: { requests: 100, window: 60 }`");
        context.error(node.span, problem);
    }
    let default = default.map(|entry| (entry, reader.free_name("default")));
    rules.extend(endpoints.iter().filter_map(|entry| reader.endpoint(entry)));
    rules.extend(default.and_then(|(entry, name)| reader.default(entry, &name)));
}

/// Warns that the short form alone does not say who is calling. It is meant to be pasted, and
/// behind a proxy it would silently count all callers by address, without their tiers.
pub(super) fn warn_unidentified(context: CompileContext<'_>, root: &YamlNode) {
    let Some(entry) = root.entry("rate_limits") else { return };
    let tiers = entry.node.entry("tiers");
    let (place, problem, tier) = match tiers {
        Some(tiers) => (
            tiers.key_span,
            "without `identify`, HTTP requests have no user and no tier: all callers are counted by \
             address, and these multipliers do nothing",
            ", tier: { header: x-tier }",
        ),
        None => (
            entry.key_span,
            "without `identify`, HTTP requests have no user: all callers are counted by \
             address",
            "",
        ),
    };
    let hint = format!(
        "write `identify: {{ trusted_peers: [127.0.0.1], user: {{ header: x-user-id }}{tier} }}` with the \
         proxy's address; or `identify: {{}}` if requests to `/v1/check` state the user and the tier"
    );
    context.warn(place, Problem::new(problem).hint(hint));
}

struct ShortFormReader<'a, 't> {
    context: CompileContext<'a>,
    tiers: &'t WrittenTiers<'t>,
    used_names: HashSet<Box<str>>,
}

impl<'a> ShortFormReader<'a, '_> {
    fn endpoint(&mut self, entry: &YamlEntry) -> Option<WrittenRule<'a>> {
        let endpoint = Endpoint::parse(&entry.key);
        let endpoint = endpoint.map_err(|problem| self.context.error(entry.key_span, problem));
        let name = endpoint.as_ref().ok().map(|endpoint| self.name(endpoint));
        let name = name.as_deref().unwrap_or("endpoint");
        let written = self.rule(name, entry, "{user|ip}")?;
        let Endpoint { method, pattern } = endpoint.ok()?;
        let path = Condition::Path(vec![pattern]);
        let when = match method {
            Some(method) => Condition::All(vec![path, Condition::Method(vec![method])]),
            None => path,
        };
        Some(WrittenRule { rule: Rule { condition: Some(when), ..written.rule }, ..written })
    }

    fn default(&self, entry: &YamlEntry, name: &str) -> Option<WrittenRule<'a>> {
        let per_path = entry.node.get("per_path").and_then(YamlNode::boolean).unwrap_or(false);
        let key = if per_path { "{user|ip}:{path}" } else { "{user|ip}" };
        let written = self.rule(name, entry, key)?;
        Some(WrittenRule { rule: Rule { fallback: true, ..written.rule }, ..written })
    }

    fn rule(&self, name: &str, entry: &YamlEntry, key: &str) -> Option<WrittenRule<'a>> {
        let specs = [self.spec(entry)?];
        let owner = LimitOwner { rule: name, on_change: OnChange::Keep, tiered: true };
        let blame = |_: &Problem, index: usize| specs[index].span;
        let limits = limits::read_rule_limits(self.context, &specs, blame, owner, self.tiers)?;
        Some(WrittenRule {
            context: self.context,
            name_span: entry.key_span,
            key_span: entry.key_span,
            is_short: true,
            specs: specs.into(),
            rule: Rule::new(name, KeyTemplate::parse(key).expect("a template of ours"), limits),
        })
    }

    fn spec(&self, entry: &YamlEntry) -> Option<WrittenLimit> {
        let span: Span = entry.node.span;
        let window = entry.node.get("window")?;
        let period = self.context.read(window, quantities::window)?;
        let requests = entry.node.get("requests")?.whole()?;
        let rate = format!("{requests}/{}us", period.as_micros());
        Some(WrittenLimit { spec: LimitSpec { rate, ..LimitSpec::default() }, span })
    }

    /// A name that headers and metrics can show: `POST /api/{id}` becomes `post-api-id`.
    fn name(&mut self, endpoint: &Endpoint) -> Box<str> {
        let mut name = String::new();
        for c in endpoint.to_string().chars() {
            if c.is_ascii_alphanumeric() || c == '_' {
                name.push(c.to_ascii_lowercase());
            } else if !name.is_empty() && !name.ends_with('-') {
                name.push('-');
            }
        }
        name.truncate(NAME_MAX);
        match name.trim_end_matches('-') {
            "" => self.free_name("root"),
            name => self.free_name(name),
        }
    }

    /// This name, or with a number at its end if it is taken; it is taken then.
    fn free_name(&mut self, base: &str) -> Box<str> {
        let numbered = (2..).map(|number| {
            let ending = format!("-{number}");
            format!("{}{ending}", &base[..base.len().min(NAME_MAX - ending.len())])
        });
        let mut all = std::iter::once(base.to_owned()).chain(numbered);
        let free = all.find(|name| !self.used_names.contains(name.as_str()));
        let name: Box<str> = free.expect("numbers do not end").into();
        self.used_names.insert(name.clone());
        name
    }
}
