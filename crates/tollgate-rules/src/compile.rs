//! From rules files to a [`RuleSet`], with diagnostics for everything that is wrong in them.
//!
//! Three steps: `yaml` makes a tree with places, `shape` reports what has not the form of a rules
//! file, and this module finds out what the values mean. No step stops at the first error, and a
//! wrong rule does not hide what is wrong with the next.

mod condition;
mod context;
mod cors;
mod cost;
mod gateway;
mod identify;
mod import;
mod jwt;
mod limits;
mod named_file;
mod overrides;
mod quantities;
mod raw_users;
mod rule;
mod settings;
mod shaping;
mod short_form;
mod tiers;
mod upstream;

use std::cell::RefCell;
use std::collections::HashMap;

use tollgate::Micros;

use crate::Problem;
use crate::diagnostic::{Diagnostic, Diagnostics, Span};
use crate::import::ImportedDomain;
use crate::lints;
use crate::rule::Rule;
use crate::rule_set::{Override, RuleSet};
use crate::shape;
use crate::source::{NamedFile, Source};
use crate::tier::Multiplier;
use crate::yaml::{self, YamlNode};

pub use context::StoreNames;
use context::{CompileContext, CompileState};
use import::ImportedRule;
use limits::WrittenLimit;
use overrides::OverrideContext;
use tiers::WrittenTiers;

#[cfg(test)]
pub(crate) use rule::is_name;
pub(crate) use tiers::unknown_tier;

/// The result of compiling rules files.
#[derive(Debug)]
pub struct Compilation {
    /// The rules, unless there is an error.
    pub rules: Option<RuleSet>,
    /// Everything that was found.
    pub diagnostics: Diagnostics,
    /// Every other file that was read or tried, also if there is an error: when one of these
    /// changes, the result may change. Bound: the file with the keys of tokens, and the certificates of
    /// each upstream.
    pub named_files: Vec<NamedFile>,
}

/// Reads a number of bytes such as `64KiB`.
pub fn parse_bytes(text: &str) -> Result<u64, Problem> {
    quantities::bytes(text)
}

/// Compiles the rules of all sources together.
///
/// ```
/// use tollgate_rules::{Source, compile};
///
/// let text = "rules: [{ name: api, key: '{user|ip}', limits: [10/second] }]";
/// let compiled = compile(&[Source::from_text("rules.yaml", text)]);
/// assert_eq!(compiled.rules.expect("no errors").rules().len(), 1);
///
/// let text = "rules: [{ name: api, key: '{user|ip}', limit: [10/second] }]";
/// let compiled = compile(&[Source::from_text("rules.yaml", text)]);
/// assert!(compiled.rules.is_none());
/// assert!(compiled.diagnostics.to_string().contains("did you mean `limits`?"));
/// ```
pub fn compile(sources: &[Source]) -> Compilation {
    compile_at(sources, None)
}

/// The same; overrides that have ended at `now` get a warning.
pub fn compile_at(sources: &[Source], now: Option<Micros>) -> Compilation {
    compile_for(sources, now, StoreNames::Unknown)
}

/// The same, for these stores: a rule that names another is an error.
pub fn compile_for(sources: &[Source], now: Option<Micros>, stores: StoreNames<'_>) -> Compilation {
    let shared = CompileState::of(stores);
    let files = read_all(sources, &shared.diagnostics);
    let rules = RulesFiles { files, shared: &shared }.compile(now);
    let mut diagnostics = shared.diagnostics.into_inner();
    diagnostics.sort(sources);
    let rules = rules.filter(|_| !diagnostics.has_errors());
    Compilation { rules, diagnostics, named_files: shared.named_files.into_inner() }
}

/// Reads `overrides:` of a source for rules that are already compiled, as an operator sets them at
/// run time.
pub(crate) fn read_overrides(
    source: &Source,
    rules: &RuleSet,
    now: Micros,
) -> Result<Vec<Override>, Diagnostics> {
    let shared = CompileState::default();
    let files = RulesFiles {
        files: read_all(std::slice::from_ref(source), &shared.diagnostics),
        shared: &shared,
    };
    let names = RuleNames::default();
    let known = OverrideContext {
        rules: rules.rules().map(|rule| (&*rule.name, rule)).collect(),
        names: &names,
        identify: &rules.settings().identify,
        now: Some(now),
    };
    let each = files.files.iter().map(|file| (files.context(file), &file.root));
    let read = each.flat_map(|(context, root)| overrides::read(context, root, &known));
    let overrides = read.map(|written| written.replacement).collect();
    drop(files);
    let diagnostics = shared.diagnostics.into_inner();
    if diagnostics.is_empty() { Ok(overrides) } else { Err(diagnostics) }
}

/// A rule with the places its parts were written at.
pub(crate) struct WrittenRule<'a> {
    pub(crate) context: CompileContext<'a>,
    pub(crate) name_span: Span,
    pub(crate) key_span: Span,
    /// True if it is of the short form, whose limits name no algorithm.
    pub(crate) is_short: bool,
    /// The limits of callers without a tier, in the order of the rule's.
    pub(crate) specs: Vec<WrittenLimit>,
    pub(crate) rule: Rule,
}

/// A source and its tree.
struct RulesFile<'a> {
    source: &'a Source,
    root: YamlNode,
    /// The spans that `shape` has reported, sorted.
    reported: Vec<Span>,
    /// True if it is a file of envoyproxy/ratelimit.
    is_imported: bool,
}

/// The trees of all sources that have one.
fn read_all<'a>(sources: &'a [Source], found: &RefCell<Diagnostics>) -> Vec<RulesFile<'a>> {
    let mut files = Vec::new();
    for source in sources {
        let mut diagnostics = found.borrow_mut();
        let errors_before = diagnostics.len();
        let root = yaml::read(source, &mut diagnostics);
        if root.is_none() && diagnostics.len() > errors_before {
            continue;
        }
        match root.map_or_else(|| Err(empty_file_error(source)), |root| check_root(source, root)) {
            Ok(root) => {
                let is_imported =
                    ["domain", "descriptors"].iter().any(|one| root.entry(one).is_some());
                let form = if is_imported { &shape::IMPORT } else { &shape::FILE };
                shape::check_file(source, &root, form, &mut diagnostics);
                let found = diagnostics.iter().skip(errors_before);
                let mut reported: Vec<Span> = found.filter_map(Diagnostic::span).collect();
                reported.sort_unstable();
                files.push(RulesFile { source, root, reported, is_imported });
            }
            Err(diagnostic) => diagnostics.push(*diagnostic),
        }
    }
    files
}

fn empty_file_error(source: &Source) -> Box<Diagnostic> {
    let text = source.text().trim();
    let what = match text.is_empty() || text.ends_with('}') {
        true => "the file is empty",
        false => "the file has only comments",
    };
    let hint = "write at least `rules:` with one rule, or `rate_limits:`";
    Diagnostic::of_file(source.name(), Problem::new(what).hint(hint)).into()
}

/// Checks that the root is a map with at least one field.
fn check_root(source: &Source, root: YamlNode) -> Result<YamlNode, Box<Diagnostic>> {
    let error = |span, problem| Box::new(Diagnostic::error(source, span, problem));
    match &root.value {
        yaml::YamlValue::Null => return Err(empty_file_error(source)),
        yaml::YamlValue::Map(entries) if entries.is_empty() => {
            return Err(empty_file_error(source));
        }
        yaml::YamlValue::Map(_) => {}
        yaml::YamlValue::List(_) => {
            let problem = Problem::new("the file is a list; it should be a map of fields")
                .hint("put `rules:` above the list");
            return Err(error(root.span, problem));
        }
        yaml::YamlValue::Plain(_) | yaml::YamlValue::Quoted(_) => {
            let problem = Problem::new("the file is a single text; it should be a map of fields")
                .hint("write `rules:` and below it a list of rules");
            return Err(error(root.span, problem));
        }
    }
    Ok(root)
}

/// All files of one compilation.
struct RulesFiles<'a, 'f> {
    files: Vec<RulesFile<'a>>,
    shared: &'f CompileState<'f>,
}

impl RulesFiles<'_, '_> {
    fn compile(&self, now: Option<Micros>) -> Option<RuleSet> {
        let each = || self.files.iter().map(|file| (self.context(file), &file.root));
        each().for_each(|(context, root)| check_forms(context, root));
        self.check_sections_once();
        let tiers = WrittenTiers::read(self.only_section("tiers"), self.only_short_tiers());
        let names = RuleNames::of(each());
        tiers.check_rules(&names);
        let mut rules: Vec<WrittenRule<'_>> = Vec::new();
        for (context, root) in each() {
            if let Some(short) = root.get("rate_limits") {
                short_form::rules(context, short, &tiers, &names, &mut rules);
            }
            for node in root.get("rules").map(YamlNode::items).unwrap_or_default() {
                rules.extend(rule::read(context, node, &tiers));
            }
        }
        let (imported, domains) = self.imported(rules.len());
        self.check_imported(&rules, &imported);
        self.check_count(&rules, &imported);
        self.check_tiers(&tiers);
        let settings = settings::read(self, &tiers);
        each().for_each(|(context, root)| raw_users::check(context, root, &settings.identify));
        let known = OverrideContext {
            rules: (rules.iter().map(|written| &written.rule))
                .chain(imported.iter().map(|one| &one.rule))
                .map(|rule| (&*rule.name, rule))
                .collect(),
            names: &names,
            identify: &settings.identify,
            now,
        };
        let overrides: Vec<_> =
            each().flat_map(|(context, root)| overrides::read(context, root, &known)).collect();
        overrides::check_count(&overrides);
        overrides::check_duplicates(&overrides);
        overrides::check_users(&overrides, &settings.identify);
        // Errors in `user` were reported at their place.
        let identify = self.only_section("identify").map(|(_, node)| node);
        let unread =
            |node: &YamlNode| node.get("user").is_some() && !settings.identify.finds_users();
        let identified = identify.is_some_and(|node| !unread(node));
        lints::check(&rules, &tiers.names(), identified, &settings);
        if self.shared.diagnostics.borrow().has_errors() {
            return None;
        }
        if identify.is_none() {
            each().for_each(|(context, root)| short_form::warn_unidentified(context, root));
        }
        let overrides = overrides.into_iter().map(|written| written.replacement).collect();
        let ours = rules.iter().map(|written| written.rule.clone());
        let compiled = ours.chain(imported.into_iter().map(|one| one.rule)).collect();
        let set = RuleSet::new(compiled, &tiers.names(), overrides, settings).with_domains(domains);
        lints::overlaps::check(&rules, &set);
        Some(set)
    }

    /// The rules of all imported files, the first of which gets this number, and their domains.
    fn imported(&self, first: usize) -> (Vec<ImportedRule<'_>>, Vec<ImportedDomain>) {
        let (mut rules, mut domains) = (Vec::new(), Vec::new());
        let mut places: Vec<(CompileContext<'_>, Span)> = Vec::new();
        for file in self.files.iter().filter(|file| file.is_imported) {
            let context = self.context(file);
            let read = import::read(context, &file.root, (&mut rules, first));
            let Some((domain, span)) = read else { continue };
            let same = |known: &ImportedDomain| known.name == domain.name;
            if let Some(place) = domains.iter().position(same) {
                let (other, other_span) = places[place];
                let problem = Problem::new(format!("two files have the domain `{}`", domain.name))
                    .hint("put all descriptors of a domain into one file");
                let diagnostic = Diagnostic::error(context.source, span, problem);
                context.push(diagnostic.also(other.source, other_span, "the first is here"));
            }
            domains.push(domain);
            places.push((context, span));
        }
        (rules, domains)
    }

    /// Checks their generated names, which may collide with ours or with those of another domain.
    fn check_imported(&self, rules: &[WrittenRule<'_>], imported: &[ImportedRule<'_>]) {
        let mut known: HashMap<&str, (CompileContext<'_>, Span)> = rules
            .iter()
            .map(|written| (&*written.rule.name, (written.context, written.name_span)))
            .collect();
        for one in imported {
            let here = (one.context, one.span);
            let Some((other, other_span)) = known.insert(&one.rule.name, here) else { continue };
            let name = &one.rule.name;
            let problem = Problem::new(format!("two rules are called `{name}`"))
                .hint("the limit of this descriptor gets that name: call the other rule otherwise");
            let diagnostic = Diagnostic::error(one.context.source, one.span, problem);
            one.context.push(diagnostic.also(other.source, other_span, "the other is here"));
        }
    }

    /// Reports too many rules, and files without any rule, which limit nothing.
    fn check_count(&self, rules: &[WrittenRule<'_>], imported: &[ImportedRule<'_>]) {
        let most = RuleSet::RULES_MAX;
        let places = rules.iter().map(|written| (written.context, written.name_span));
        let mut places = places.chain(imported.iter().map(|one| (one.context, one.span)));
        if let Some((context, span)) = places.nth(most) {
            let problem = Problem::new(format!("there are more than {most} rules"))
                .hint("write patterns such as `/users/{id}` in place of single paths or values");
            context.error(span, problem);
        }
        // A domain without limits has its own warning.
        let any = !rules.is_empty() || self.files.iter().any(|file| file.is_imported);
        if any || self.shared.diagnostics.borrow().has_errors() {
            return;
        }
        let Some(file) = self.files.first() else { return };
        let problem = Problem::new("there are no rules, so nothing is limited")
            .hint("write `rules:` with at least one rule, or `rate_limits:`");
        match file.root.entry("rules") {
            Some(entry) => self.context(file).error(entry.key_span, problem),
            None => self.context(file).push(Diagnostic::of_file(file.source.name(), problem)),
        }
    }

    /// Warns of multipliers that no rule uses. All rules of the short form use them.
    fn check_tiers(&self, tiers: &WrittenTiers<'_>) {
        let is_tiered = |rule: &YamlNode| {
            let weighs = rule.get("fair").is_some_and(|fair| fair.entry("weight_by").is_some());
            weighs || rule.get("tiered").and_then(YamlNode::boolean) == Some(true)
        };
        let used = self.files.iter().any(|RulesFile { root, .. }| {
            let rules = root.get("rules").map(YamlNode::items).unwrap_or_default();
            root.entry("rate_limits").is_some() || rules.iter().any(is_tiered)
        });
        let multiplies =
            tiers.iter().any(|tier| tier.multiplier.is_some_and(|one| one != Multiplier::ONE));
        if !used
            && multiplies
            && let Some(file) = self.files.iter().find(|file| file.root.entry("tiers").is_some())
            && let Some(entry) = file.root.entry("tiers")
        {
            let problem =
                Problem::new("no rule is tiered, so the multipliers of `tiers` do nothing")
                    .hint("write `tiered: true` in the rules that they are meant for");
            self.context(file).warn(entry.key_span, problem);
        }
    }

    fn context<'s>(&'s self, file: &'s RulesFile<'_>) -> CompileContext<'s> {
        CompileContext { source: file.source, shared: self.shared, reported: &file.reported }
    }

    /// The first file that has a field, and its value.
    fn only_section(&self, field: &str) -> Option<(CompileContext<'_>, &YamlNode)> {
        self.files.iter().find_map(|file| Some((self.context(file), &file.root.entry(field)?.node)))
    }

    /// The same for the tiers of the short form.
    fn only_short_tiers(&self) -> Option<(CompileContext<'_>, &YamlNode)> {
        self.files.iter().find_map(|file| {
            Some((self.context(file), &file.root.get("rate_limits")?.entry("tiers")?.node))
        })
    }

    /// Reports settings that two files have: they apply to the rules of all files.
    fn check_sections_once(&self) {
        for field in SECTIONS_ONCE {
            let (outer, inner) = field.split_once('.').map_or((None, field), |(a, b)| (Some(a), b));
            let find = |root: &YamlNode| -> Option<Span> {
                let map = outer.map_or(Some(root), |outer| root.get(outer))?;
                Some(map.entry(inner)?.key_span)
            };
            let mut given =
                self.files.iter().filter_map(|file| Some((self.context(file), find(&file.root)?)));
            let Some((first, first_span)) = given.next() else { continue };
            for (context, span) in given {
                let problem = Problem::new(format!("`{inner}` is given in two files"))
                    .hint("keep it in one of them; it counts for the rules of all");
                let diagnostic = Diagnostic::error(context.source, span, problem);
                context.push(diagnostic.also(first.source, first_span, "it was first given here"));
            }
        }
    }
}

/// Sections that only one file may have.
const SECTIONS_ONCE: [&str; 8] = [
    "identify",
    "tiers",
    "rate_limits.tiers",
    "rate_limits.default",
    "headers",
    "log_keys",
    "preflights",
    "cors",
];

/// Reports a file that mixes the short form and the full one.
fn check_forms(context: CompileContext<'_>, root: &YamlNode) {
    let Some(short) = root.entry("rate_limits") else { return };
    for field in ["rules", "tiers"] {
        if let Some(entry) = root.entry(field) {
            let problem = Problem::new(format!(
                "`{field}` cannot be combined with `rate_limits` in one file"
            ))
            .hint("write either the short form or the full one; two files may differ");
            let diagnostic = Diagnostic::error(context.source, entry.key_span, problem);
            context.push(diagnostic.also(context.source, short.key_span, "the short form is here"));
        }
    }
}

/// The names of all rules, also of those with errors, so that one error does not make others.
#[derive(Default)]
pub(crate) struct RuleNames {
    known: HashMap<Box<str>, usize>,
}

impl RuleNames {
    /// Reads all names; reports those given twice.
    fn of<'a>(files: impl Iterator<Item = (CompileContext<'a>, &'a YamlNode)>) -> RuleNames {
        let mut known: HashMap<Box<str>, usize> = HashMap::new();
        let mut places = Vec::new();
        for (context, root) in files {
            for node in root.get("rules").map(YamlNode::items).unwrap_or_default() {
                let Some((name, span)) =
                    node.get("name").and_then(|name| Some((name.text()?, name.span)))
                else {
                    continue;
                };
                let first = *known.entry(name.into()).or_insert(places.len());
                places.push((context, span));
                if let Some((other, other_span)) =
                    places.get(first).filter(|_| first + 1 < places.len())
                {
                    let problem = Problem::new(format!("two rules are called `{name}`"))
                        .hint("give one of them another name");
                    let diagnostic = Diagnostic::error(context.source, span, problem);
                    context.push(diagnostic.also(other.source, *other_span, "the first is here"));
                }
            }
        }
        RuleNames { known }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.known.keys().map(|name| &**name)
    }
}
