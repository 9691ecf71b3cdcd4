//! The origin of the rules of a run: files, one limit, the demo, or a text that was put.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use tollgate::{Clock, OnChange, SystemClock, Wait};
use tollgate_rules::compile::{StoreNames, compile_for};
use tollgate_rules::key_template::KeyTemplate;
use tollgate_rules::limit_spec::LimitSpec;
use tollgate_rules::rule::TierLimits;
use tollgate_rules::tier::Multiplier;
use tollgate_rules::{
    Compilation, Diagnostic, Diagnostics, NamedFile, Problem, Rule, RuleSet, Severity, Source,
};

use super::RulesOrigin;
use super::file_fingerprints::FileFingerprints;
use super::text_diff::diff_sources;
use super::watch::WatchSettings;
use crate::cli::{CommandFailure, Report};
use crate::settings::ServerSettings;
use crate::telemetry::{LogField, LogFormat, Logs};

/// Rules of `serve` without `--rules` and `--limit`.
const DEMO: &str = include_str!("../demo.yaml");

/// Most warnings that are logged one by one.
const WARNINGS_LOGGED_MAX: usize = 10;

/// Rules according to the settings.
#[derive(Clone, Debug)]
pub(crate) struct RulesSource {
    /// Files and directories; without them and without a limit, the demo.
    pub(super) paths: Vec<PathBuf>,
    pub(super) limit: Option<String>,
    pub(super) watch: WatchSettings,
    /// The stores that rules can name; `None` with the memory store.
    pub(super) stores: Option<Vec<Box<str>>>,
}

/// Input of the compiler. Equal inputs compile to equal rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RulesInput {
    pub(super) content: RulesContent,
    /// The files that the rules name, as they were when they were read. Bound: that of the compiler.
    pub(super) named_files: Vec<NamedFile>,
}

impl RulesInput {
    /// Returns true if compiling this content would give the same rules again.
    pub(super) fn is_unchanged(&self, found: &RulesContent) -> bool {
        self.content == *found && self.named_files.iter().all(NamedFile::is_current)
    }
}

/// Content of the rules before compiling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RulesContent {
    /// Texts of files. Bound: that of rules files.
    Texts(Vec<Source>),
    Limit(String),
    Unreadable(UnreadableFile),
}

/// Error of reading a file.
#[derive(Clone, Debug)]
pub(super) struct UnreadableFile(Box<Diagnostic>);

impl PartialEq for UnreadableFile {
    fn eq(&self, other: &UnreadableFile) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl Eq for UnreadableFile {}

/// The rules that a run begins with.
pub(crate) struct InitialRules {
    pub(super) source: RulesSource,
    pub(super) input: RulesInput,
    /// Fingerprints taken before the files were read, so that later changes are noticed.
    pub(super) fingerprints: FileFingerprints,
}

/// Loads the rules according to the settings.
pub(crate) fn load(
    settings: &ServerSettings,
    stores: Option<Vec<Box<str>>>,
    logs: &Logs,
) -> Result<(RuleSet, InitialRules), CommandFailure> {
    let from = RulesSource {
        paths: settings.rules.clone(),
        limit: settings.limit.clone(),
        watch: WatchSettings {
            mode: settings.rules_watch,
            look_every: Wait::at_least(settings.rules_look_interval),
        },
        stores,
    };
    let prints = FileFingerprints::of(&from.paths);
    let found = from.read();
    let Compilation { rules, diagnostics, named_files: named } = from.compile(&found);
    let Some(rules) = rules else { return Err(refused_rules(&diagnostics)) };
    match settings.log_format {
        LogFormat::Text if !diagnostics.is_empty() => {
            let _ = writeln!(io::stderr(), "{diagnostics}");
        }
        _ => log_warnings(&diagnostics, logs),
    }
    Ok((
        rules,
        InitialRules {
            source: from,
            input: RulesInput { content: found, named_files: named },
            fingerprints: prints,
        },
    ))
}

impl RulesSource {
    pub(super) fn origin(&self) -> RulesOrigin {
        match &self.limit {
            Some(_) => RulesOrigin::Limit,
            None if self.paths.is_empty() => RulesOrigin::Demo,
            None => RulesOrigin::Files(self.paths.clone()),
        }
    }

    /// Folder for relative paths in rules that are put: that of the rules files, if there are any.
    pub(super) fn folder(&self) -> PathBuf {
        folder_of(&self.paths)
    }

    /// Compiles the content with the stores of this server.
    pub(super) fn compile(&self, found: &RulesContent) -> Compilation {
        let stores = match &self.stores {
            None => StoreNames::None,
            Some(names) => StoreNames::Named(names),
        };
        found.compile(stores)
    }

    /// Reads the current content.
    pub(super) fn read(&self) -> RulesContent {
        if let Some(rate) = &self.limit {
            return RulesContent::Limit(rate.clone());
        }
        if self.paths.is_empty() {
            return RulesContent::Texts(vec![Source::from_text("the demo rules", DEMO)]);
        }
        let mut sources = Vec::new();
        for path in &self.paths {
            match Source::read(path) {
                Ok(read) => sources.extend(read),
                Err(diagnostic) => return RulesContent::Unreadable(UnreadableFile(diagnostic)),
            }
        }
        RulesContent::Texts(sources)
    }
}

/// Folder for relative paths in rules that do not come from a file: that of the first of these rules files.
pub(crate) fn folder_of(paths: &[PathBuf]) -> PathBuf {
    let folder = |path: &PathBuf| match path.is_dir() {
        true => Some(path.clone()),
        false => path.parent().map(Path::to_path_buf),
    };
    paths.first().and_then(folder).unwrap_or_default()
}

impl RulesContent {
    /// The content of a text from the admin listener; paths in it are relative to this folder.
    pub(super) fn put(text: &[u8], folder: &Path) -> RulesContent {
        match Source::from_bytes("PUT /api/rules", text) {
            Ok(source) => RulesContent::Texts(vec![source.in_folder(folder)]),
            Err(diagnostic) => RulesContent::Unreadable(UnreadableFile(diagnostic)),
        }
    }

    /// The difference from earlier content as text; empty if there is none that text could show.
    pub(super) fn diff_from(&self, before: &RulesContent) -> String {
        match (before, self) {
            (RulesContent::Texts(before), RulesContent::Texts(now)) => diff_sources(before, now),
            // A limit of the command line stays until a text replaces it.
            (RulesContent::Limit(_), RulesContent::Texts(now)) => diff_sources(&[], now),
            _ => String::new(),
        }
    }

    /// Compiles the content. A panic of the compiler becomes an error: the thread that replaces rules must
    /// survive it.
    fn compile(&self, stores: StoreNames<'_>) -> Compilation {
        catch_compiler_panic(|| match self {
            RulesContent::Texts(sources) => compile_for(sources, Some(SystemClock.now()), stores),
            RulesContent::Limit(rate) => match one_limit(rate) {
                Ok(rules) => Compilation {
                    rules: Some(rules),
                    diagnostics: Diagnostics::default(),
                    named_files: Vec::new(),
                },
                Err(problem) => failed_compile(Diagnostic::of_file("--limit", problem)),
            },
            RulesContent::Unreadable(UnreadableFile(diagnostic)) => {
                failed_compile(Diagnostic::clone(diagnostic))
            }
        })
    }
}

fn catch_compiler_panic(compile: impl FnOnce() -> Compilation) -> Compilation {
    // Nothing that a panic could leave inconsistent is used afterwards.
    catch_unwind(AssertUnwindSafe(compile)).unwrap_or_else(|_| {
        let problem = Problem::new("the rules could not be compiled because of a bug in Tollgate");
        let hint = "please report it with these rules; the log says where it happened";
        failed_compile(Diagnostic::of_file("the rules", problem.hint(hint)))
    })
}

fn failed_compile(diagnostic: Diagnostic) -> Compilation {
    Compilation { rules: None, diagnostics: diagnostic.into(), named_files: Vec::new() }
}

/// Failure of the start, with all errors.
fn refused_rules(diagnostics: &Diagnostics) -> CommandFailure {
    let _ = writeln!(io::stderr(), "{diagnostics}");
    let errors = diagnostics.count(Severity::Error);
    let plural = if errors == 1 { "" } else { "s" };
    CommandFailure::Input(Report::new(format!(
        "the rules have {errors} error{plural}; the server does not start"
    )))
}

/// Logs the warnings about rules in force.
pub(super) fn log_warnings(diagnostics: &Diagnostics, logs: &Logs) {
    for diagnostic in diagnostics.iter().take(WARNINGS_LOGGED_MAX) {
        let line = diagnostic.span().map_or(0, |span| span.line);
        let fields: [LogField<'_>; 3] =
            [("file", &diagnostic.file), ("line", &line), ("warning", &diagnostic.message)];
        logs.warn("warning about the rules", &fields);
    }
    let more = diagnostics.len().saturating_sub(WARNINGS_LOGGED_MAX);
    if more > 0 {
        let fields: [LogField<'_>; 2] = [("more", &more), ("hint", &"`tollgate check` shows all")];
        logs.warn("more warnings about the rules", &fields);
    }
}

/// Checks a rate for `--limit`.
pub(crate) fn check_rate(rate: &str) -> Result<String, String> {
    one_limit(rate).map(|_| rate.to_string()).map_err(|problem| problem.to_string())
}

/// Rules with one limit for each caller.
fn one_limit(rate: &str) -> Result<RuleSet, Problem> {
    let spec = LimitSpec { rate: rate.into(), ..LimitSpec::default() };
    let limit = spec.build("default", OnChange::default(), Multiplier::ONE)?;
    let key = KeyTemplate::parse("{user|ip}")?;
    let rule = Rule::new("default", key, TierLimits::untiered(vec![limit]));
    Ok(RuleSet::new(vec![rule], &[], Vec::new(), tollgate_rules::RuleSettings::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_compiler_is_an_error() {
        let compiled = catch_compiler_panic(|| panic!("a belief was wrong"));
        assert!(compiled.rules.is_none());
        let text = compiled.diagnostics.to_string();
        assert!(text.contains("a bug in Tollgate") && text.contains("report it"), "{text}");
    }
}
