//! A file of envoyproxy/ratelimit becomes rules, and a tree that leads to them.

use std::collections::{BTreeSet, HashMap};

use tollgate::{Algorithm, Limit, OnFailure, Terms};

use crate::Problem;
use crate::descriptors::{ACT, Unit};
use crate::diagnostic::{Diagnostic, Span};
use crate::import::name::{DescriptorStep, rule_name};
use crate::import::tree::{DEPTH_MAX, DescriptorTree, WrittenNode, counts_value};
use crate::import::wildcard::Wildcard;
use crate::import::{ImportDetails, ImportedAllowance, ImportedDomain};
use crate::key_template::KeyTemplate;
use crate::limit_spec::RuleLimit;
use crate::rule::{Mode, Rule, TierLimits};
use crate::rule_set::stated_rule;
use crate::suggest::suggest;
use crate::yaml::YamlNode;

use super::context::CompileContext;
use super::rule::{flag, on_failure};

/// A rule of an imported file, and where it stands.
pub(super) struct ImportedRule<'a> {
    pub(super) context: CompileContext<'a>,
    pub(super) span: Span,
    pub(super) rule: Rule,
}

/// Reads a file: its domain, whose tree leads to the rules that are added. `None`: reported.
pub(super) fn read<'a>(
    context: CompileContext<'a>,
    root: &YamlNode,
    (rules, first): (&mut Vec<ImportedRule<'a>>, usize),
) -> Option<(ImportedDomain, Span)> {
    let domain = root.get("domain").and_then(|node| Some((node.text()?, node.span)));
    let (domain, span) = domain.or_else(|| {
        // `shape` has reported a missing field.
        let problem = Problem::new("`domain` has no value").hint("write `domain: edge`");
        context.error(root.entry("domain")?.key_span, problem);
        None
    })?;
    if domain.is_empty() {
        let problem = Problem::new("the domain is empty").hint("write `domain: edge`");
        context.error(span, problem);
        return None;
    }
    let algorithm =
        root.get("algorithm").and_then(YamlNode::text).and_then(|name| name.parse().ok());
    let algorithm = algorithm.unwrap_or(Algorithm::FixedWindow);
    let count_denied = root.get("count_denied").and_then(YamlNode::boolean);
    let mut reader = ImportReader {
        context,
        domain,
        algorithm,
        // Charging refusals to a bucket or a sliding window keeps a client that retries out for
        // good: that has to be asked for.
        count_denied: count_denied.unwrap_or(algorithm == Algorithm::FixedWindow),
        on_failure: on_failure(root),
        first_rule: first,
        rules,
        tree: DescriptorTree::new(),
        replaced: Vec::new(),
    };
    let from = reader.rules.len();
    reader.level(root, DescriptorTree::ROOT, &mut DescriptorPath::default());
    reader.check_replaced(from);
    if reader.rules.len() == from && !context.shared.diagnostics.borrow().has_errors() {
        let problem = Problem::new(format!("the domain `{domain}` has no limits"))
            .hint("write `rate_limit` in at least one of its descriptors");
        context.warn(span, problem);
    }
    let stated =
        Rule { count_denied: reader.count_denied, terms: reader.terms(), ..stated_rule("stated") };
    Some((ImportedDomain { name: domain.into(), tree: reader.tree, stated, algorithm }, span))
}

struct ImportReader<'r, 'a> {
    context: CompileContext<'a>,
    domain: &'r str,
    algorithm: Algorithm,
    count_denied: bool,
    on_failure: OnFailure,
    /// The number that the first rule of all imported files will have.
    first_rule: usize,
    rules: &'r mut Vec<ImportedRule<'a>>,
    tree: DescriptorTree,
    /// Names of replaced limits, with their spans.
    replaced: Vec<(Box<str>, Span)>,
}

/// The path to a descriptor in the tree.
#[derive(Default)]
struct DescriptorPath<'n> {
    steps: Vec<DescriptorStep<'n>>,
    /// The keys whose values are counted.
    counted: Vec<&'n str>,
}

impl ImportReader<'_, '_> {
    /// Reads the descriptors below a node.
    fn level<'n>(&mut self, node: &'n YamlNode, above: u32, path: &mut DescriptorPath<'n>) {
        let mut seen: HashMap<DescriptorStep<'n>, Span> = HashMap::new();
        for item in node.get("descriptors").map(YamlNode::items).unwrap_or_default() {
            let Some((step, span)) = self.step(item) else { continue };
            if let Some(first) = seen.insert(step, span) {
                self.report_twice(step, span, first);
                continue;
            }
            if path.steps.len() == DEPTH_MAX {
                let problem = format!("descriptors nest more than {DEPTH_MAX} deep");
                let hint = "write fewer entries behind each other";
                return self.context.error(span, Problem::new(problem).hint(hint));
            }
            self.descriptor(item, (step, span), above, path);
        }
    }

    /// The entry that a descriptor is about, and where its key stands.
    fn step<'n>(&self, item: &'n YamlNode) -> Option<(DescriptorStep<'n>, Span)> {
        let entry = item.entry("key")?;
        let key = entry.node.text().unwrap_or_default();
        if key.is_empty() {
            let problem = Problem::new("a descriptor has an empty `key`");
            self.context.error(entry.key_span, problem.hint("write `key: remote_address`"));
            return None;
        }
        if key == ACT {
            let problem = format!("a descriptor with the key `{ACT}` never matches");
            let hint = "this key is an instruction in requests, not an entry: leave it out";
            self.context.warn(entry.node.span, Problem::new(problem).hint(hint));
        }
        let value = item.get("value").and_then(YamlNode::text).filter(|value| !value.is_empty());
        Some(((key, value), entry.node.span))
    }

    fn report_twice(&self, (key, value): DescriptorStep<'_>, span: Span, first: Span) {
        let what = match value {
            Some(value) => format!("the key `{key}` and the value {value:?}"),
            None => format!("the key `{key}` and no value"),
        };
        let problem = Problem::new(format!("two descriptors beside each other have {what}"))
            .hint("keep one of them");
        let source = self.context.source;
        let diagnostic = Diagnostic::error(source, span, problem);
        self.context.push(diagnostic.also(source, first, "the first is here"));
    }

    fn descriptor<'n>(
        &mut self,
        item: &'n YamlNode,
        (step, span): (DescriptorStep<'n>, Span),
        above: u32,
        path: &mut DescriptorPath<'n>,
    ) {
        let (key, value) = step;
        let is_wildcard = value.is_some_and(|value| Wildcard::parse(value).is_some());
        if is_wildcard && self.context.count_wildcard(span).is_none() {
            return;
        }
        let shared = flag(item, "share_threshold");
        if shared && !is_wildcard {
            let place = item.entry("share_threshold").map_or(span, |entry| entry.key_span);
            let problem = Problem::new("`share_threshold` needs a `value` with a `*` in it")
                .hint("write `value: \"files/*\"`, or leave it out");
            self.context.error(place, problem);
        }
        path.steps.push(step);
        let counts_value = counts_value(value, is_wildcard, shared);
        if counts_value {
            path.counted.push(key);
        }
        let rule = self.limited(item, span, path);
        let node = self.tree.add(above, WrittenNode { key, value, shared, rule });
        self.level(item, node, path);
        path.steps.pop();
        if counts_value {
            path.counted.pop();
        }
    }

    /// The number of the rule that the limit of a descriptor becomes.
    fn limited(&mut self, item: &YamlNode, span: Span, path: &DescriptorPath<'_>) -> Option<u32> {
        let Some(limit) = item.get("rate_limit") else {
            for field in ["shadow_mode", "quota_mode"] {
                if let Some(entry) = item.entry(field).filter(|_| flag(item, field)) {
                    let problem = format!("`{field}` does nothing without a `rate_limit`");
                    let hint = "write it beside a `rate_limit`, or leave it out";
                    self.context.warn(entry.key_span, Problem::new(problem).hint(hint));
                }
            }
            return None;
        };
        let rule_name = rule_name(self.domain, &path.steps);
        let (allows, limits) = self.allows(limit, &rule_name)?;
        let imported = ImportDetails {
            domain: self.domain.into(),
            name: own_name(limit).map(Into::into),
            allows,
            replaces: self.replaces(limit),
            quota: flag(item, "quota_mode"),
        };
        let template = KeyTemplate::of_entries(path.counted.iter().copied());
        let rule = Rule {
            mode: if flag(item, "shadow_mode") { Mode::Shadow } else { Mode::Enforce },
            count_denied: self.count_denied,
            terms: self.terms(),
            imported: Some(Box::new(imported)),
            ..Rule::new(&rule_name, template, TierLimits::untiered(limits))
        };
        let number = self.first_rule + self.rules.len();
        self.rules.push(ImportedRule { context: self.context, span, rule });
        Some(number as u32)
    }

    fn terms(&self) -> Terms {
        Terms { on_failure: self.on_failure, ..Terms::default() }
    }

    /// Reads the allowance of a `rate_limit`. `None`: an error was reported.
    fn allows(&self, limit: &YamlNode, rule: &str) -> Option<(ImportedAllowance, Vec<RuleLimit>)> {
        if flag(limit, "unlimited") {
            // Like the reference server: a `unit` that is none is ignored here.
            let is_unit = |node: &&YamlNode| node.text().and_then(Unit::parse).is_some();
            if let Some(node) = limit.get("unit").filter(is_unit) {
                let problem =
                    Problem::new("`unlimited` has no `unit`").hint("leave one of them out");
                self.context.error(node.span, problem);
            }
            return Some((ImportedAllowance::Everything, Vec::new()));
        }
        let Some(unit) = limit.get("unit").map(|node| self.context.read(node, unit)) else {
            let problem = Problem::new("a `rate_limit` needs the field `unit`");
            self.context
                .error(limit.span, problem.hint("write `unit: minute`, or `unlimited: true`"));
            return None;
        };
        let units = match limit.get("requests_per_unit") {
            Some(node) => node.whole()?,
            None => {
                let problem = Problem::new("without `requests_per_unit` nothing is allowed")
                    .hint("write `requests_per_unit: 100`; or 0 if you mean it");
                self.context.warn(limit.span, problem);
                0
            }
        };
        if units == 0 {
            return Some((ImportedAllowance::Nothing(unit?), Vec::new()));
        }
        self.context.count_limit(limit.span)?;
        let built = Limit::per(units, unit?.period()).algorithm(self.algorithm).name(rule).build();
        let built = built.map_err(|error| self.context.error(limit.span, error.into())).ok()?;
        Some((ImportedAllowance::Limited, vec![RuleLimit::new(built).called(own_name(limit))]))
    }

    /// Reads `replaces`: the names of limits that do not count where this one applies.
    fn replaces(&mut self, limit: &YamlNode) -> Vec<Box<str>> {
        let own = own_name(limit);
        let mut names = Vec::new();
        for node in limit.get("replaces").map(YamlNode::items).unwrap_or_default() {
            let Some(name) = node.get("name") else { continue };
            match name.text() {
                Some("") | None => {
                    let problem = Problem::new("an entry of `replaces` has no name");
                    let hint = "write the `name` of another `rate_limit`";
                    self.context.error(name.span, problem.hint(hint));
                }
                same if same == own => {
                    let problem = Problem::new("a limit cannot replace itself");
                    let hint = "write the `name` of another `rate_limit`";
                    self.context.error(name.span, problem.hint(hint));
                }
                Some(text) => {
                    self.replaced.push((text.into(), name.span));
                    names.push(text.into());
                }
            }
        }
        names
    }

    /// Warns of names that no limit has, most likely misspelt.
    fn check_replaced(&self, from: usize) {
        let named = self.rules[from..].iter().filter_map(|one| one.rule.imported.as_deref());
        let known: BTreeSet<&str> = named.filter_map(|one| one.name.as_deref()).collect();
        for (name, span) in &self.replaced {
            if known.contains(&**name) {
                continue;
            }
            let hint = self.context.did_you_mean(name, known.iter().copied(), || {
                "write the `name` of another `rate_limit` of this file".into()
            });
            let problem =
                format!("no limit of this file has the name `{name}`, so nothing is replaced");
            self.context.warn(*span, Problem::new(problem).hint(hint));
        }
    }
}

/// The name that a file gives a limit.
fn own_name(limit: &YamlNode) -> Option<&str> {
    limit.get("name").and_then(YamlNode::text).filter(|name| !name.is_empty())
}

fn unit(text: &str) -> Result<Unit, Problem> {
    Unit::parse(text).ok_or_else(|| {
        let all = Unit::ALL.map(Unit::name);
        let hint = match suggest(text, all) {
            Some(unit) => format!("did you mean `{unit}`? It can be: {}", all.join(", ")),
            None => format!("it can be: {}", all.join(", ")),
        };
        Problem::new(format!("`unit` cannot be {text:?}")).hint(hint)
    })
}
