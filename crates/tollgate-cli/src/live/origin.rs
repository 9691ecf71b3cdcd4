//! Where the rules of a run come from: files, one limit, the demo, or a text that was put in place.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use tollgate::{Clock, OnChange, SystemClock, Wait};
use tollgate_rules::compile::{Stores, compile_for};
use tollgate_rules::key_template::KeyTemplate;
use tollgate_rules::limit_spec::LimitSpec;
use tollgate_rules::rule::TierLimits;
use tollgate_rules::tier::Multiplier;
use tollgate_rules::{
    Compiled, Diagnostic, Diagnostics, NamedFile, Problem, Rule, RuleSet, Severity, Source,
};

use super::Origin;
use super::prints::Prints;
use super::watch::HowToWatch;
use crate::cli::{Failure, Report};
use crate::settings::Settings;
use crate::telemetry::{Field, LogFormat, Logs};

/// What `serve` shows when nobody tells it anything.
const DEMO: &str = include_str!("../demo.yaml");

/// The most warnings that are logged one by one.
const WARNINGS_LOGGED_MAX: usize = 10;

/// What the settings say about rules.
#[derive(Clone, Debug)]
pub(crate) struct RulesFrom {
    /// Files and directories; without them and without a limit, the demo.
    pub(super) paths: Vec<PathBuf>,
    pub(super) limit: Option<String>,
    pub(super) watch: HowToWatch,
    /// The stores that rules can name; `None`: all is in this process.
    pub(super) stores: Option<Vec<Box<str>>>,
}

/// What rules are made of. Two that are equal mean the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MadeOf {
    pub(super) found: Found,
    /// The files that it names, as they were. Bound: that of the compiler.
    pub(super) named: Vec<NamedFile>,
}

impl MadeOf {
    /// Whether compiling what was found would come to the same again.
    pub(super) fn is_still(&self, found: &Found) -> bool {
        self.found == *found && self.named.iter().all(NamedFile::is_current)
    }
}

/// What was found there, before it is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Bound: that of rules files.
    Texts(Vec<Source>),
    Limit(String),
    Unreadable(Unreadable),
}

/// Why a file cannot be read.
#[derive(Clone, Debug)]
pub(super) struct Unreadable(Box<Diagnostic>);

impl PartialEq for Unreadable {
    fn eq(&self, other: &Unreadable) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl Eq for Unreadable {}

/// The rules that a run begins with.
pub(crate) struct First {
    pub(super) from: RulesFrom,
    pub(super) made_of: MadeOf,
    /// Taken before the files were read: what changes after that is noticed.
    pub(super) prints: Prints,
}

/// The rules that the settings ask for.
pub(crate) fn load(
    settings: &Settings,
    stores: Option<Vec<Box<str>>>,
    logs: &Logs,
) -> Result<(RuleSet, First), Failure> {
    let from = RulesFrom {
        paths: settings.rules.clone(),
        limit: settings.limit.clone(),
        watch: HowToWatch {
            mode: settings.rules_watch,
            look_every: Wait::at_least(settings.rules_look_interval),
        },
        stores,
    };
    let prints = Prints::of(&from.paths);
    let found = from.read();
    let Compiled { rules, diagnostics, named } = from.compile(&found);
    let Some(rules) = rules else { return Err(refused(&diagnostics)) };
    match settings.log_format {
        LogFormat::Text if !diagnostics.is_empty() => {
            let _ = writeln!(io::stderr(), "{diagnostics}");
        }
        _ => log_warnings(&diagnostics, logs),
    }
    Ok((rules, First { from, made_of: MadeOf { found, named }, prints }))
}

impl RulesFrom {
    pub(super) fn origin(&self) -> Origin {
        match &self.limit {
            Some(_) => Origin::Limit,
            None if self.paths.is_empty() => Origin::Demo,
            None => Origin::Files(self.paths.clone()),
        }
    }

    /// Where a text stands that comes from elsewhere: beside the rules, if they are in files.
    pub(super) fn folder(&self) -> PathBuf {
        let folder = |path: &PathBuf| match path.is_dir() {
            true => Some(path.clone()),
            false => path.parent().map(Path::to_path_buf),
        };
        self.paths.first().and_then(folder).unwrap_or_default()
    }

    /// What it means, with the stores that there are.
    pub(super) fn compile(&self, found: &Found) -> Compiled {
        let stores = match &self.stores {
            None => Stores::None,
            Some(names) => Stores::Named(names),
        };
        found.compile(stores)
    }

    /// What is there now.
    pub(super) fn read(&self) -> Found {
        if let Some(rate) = &self.limit {
            return Found::Limit(rate.clone());
        }
        if self.paths.is_empty() {
            return Found::Texts(vec![Source::from_text("the demo rules", DEMO)]);
        }
        let mut sources = Vec::new();
        for path in &self.paths {
            match Source::read(path) {
                Ok(read) => sources.extend(read),
                Err(diagnostic) => return Found::Unreadable(Unreadable(diagnostic)),
            }
        }
        Found::Texts(sources)
    }
}

impl Found {
    /// A text that came over the admin listener, as if it stood in this folder.
    pub(super) fn put(text: &[u8], folder: &Path) -> Found {
        match Source::from_bytes("PUT /api/rules", text) {
            Ok(source) => Found::Texts(vec![source.in_folder(folder)]),
            Err(diagnostic) => Found::Unreadable(Unreadable(diagnostic)),
        }
    }

    /// What it means. A panic of the compiler is an error like others: the thread that replaces
    /// rules must go on.
    fn compile(&self, stores: Stores<'_>) -> Compiled {
        or_bug(|| match self {
            Found::Texts(sources) => compile_for(sources, Some(SystemClock.now()), stores),
            Found::Limit(rate) => match one_limit(rate) {
                Ok(rules) => Compiled {
                    rules: Some(rules),
                    diagnostics: Diagnostics::default(),
                    named: Vec::new(),
                },
                Err(problem) => failed(Diagnostic::of_file("--limit", problem)),
            },
            Found::Unreadable(Unreadable(diagnostic)) => failed(Diagnostic::clone(diagnostic)),
        })
    }
}

fn or_bug(compile: impl FnOnce() -> Compiled) -> Compiled {
    // Nothing that a panic could leave half done is used afterwards.
    catch_unwind(AssertUnwindSafe(compile)).unwrap_or_else(|_| {
        let problem = Problem::new("the rules cannot be understood because of a bug in Tollgate");
        let hint = "report it with these rules; the log says where it happened";
        failed(Diagnostic::of_file("the rules", problem.hint(hint)))
    })
}

fn failed(diagnostic: Diagnostic) -> Compiled {
    Compiled { rules: None, diagnostics: diagnostic.into(), named: Vec::new() }
}

/// Shows all that is wrong, not only the first of it.
fn refused(diagnostics: &Diagnostics) -> Failure {
    let _ = writeln!(io::stderr(), "{diagnostics}");
    let errors = diagnostics.count(Severity::Error);
    let plural = if errors == 1 { "" } else { "s" };
    Failure::Input(Report::new(format!("the rules have {errors} error{plural}; nothing is served")))
}

/// Logs what to look at in rules that are in force.
pub(super) fn log_warnings(diagnostics: &Diagnostics, logs: &Logs) {
    for diagnostic in diagnostics.iter().take(WARNINGS_LOGGED_MAX) {
        let line = diagnostic.span().map_or(0, |span| span.line);
        let fields: [Field<'_>; 3] =
            [("file", &diagnostic.file), ("line", &line), ("warning", &diagnostic.message)];
        logs.warn("the rules have a weakness", &fields);
    }
    let more = diagnostics.len().saturating_sub(WARNINGS_LOGGED_MAX);
    if more > 0 {
        let fields: [Field<'_>; 2] = [("more", &more), ("hint", &"`tollgate check` shows all")];
        logs.warn("the rules have more weaknesses", &fields);
    }
}

/// Checks a rate as `--limit` takes it.
pub(crate) fn check_rate(rate: &str) -> Result<String, String> {
    one_limit(rate).map(|_| rate.to_string()).map_err(|problem| problem.to_string())
}

/// One limit for each caller, whatever they ask for.
fn one_limit(rate: &str) -> Result<RuleSet, Problem> {
    let spec = LimitSpec { rate: rate.into(), ..LimitSpec::default() };
    let limit = spec.build("default", OnChange::default(), Multiplier::ONE)?;
    let key = KeyTemplate::parse("{user|ip}")?;
    let rule = Rule::new("default", key, TierLimits::untiered(vec![limit]));
    Ok(RuleSet::new(vec![rule], &[], Vec::new(), tollgate_rules::Settings::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_compiler_is_an_error() {
        let compiled = or_bug(|| panic!("a belief was wrong"));
        assert!(compiled.rules.is_none());
        let text = compiled.diagnostics.to_string();
        assert!(text.contains("a bug in Tollgate") && text.contains("report it"), "{text}");
    }
}
