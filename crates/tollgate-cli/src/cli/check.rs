//! `tollgate check`: validates rules files, and reports every mistake with its position.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tollgate::{Clock, Micros, SystemClock};
use tollgate_rules::compile::compile_at;
use tollgate_rules::source::MAX_BYTES;
use tollgate_rules::{Compilation, Diagnostic, Diagnostics, Problem, RuleSet, Severity, Source};

use super::{CommandFailure, Report};

/// Validate rules files
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Rules files, or directories of them; - is standard input
    ///
    /// All are read together, as `serve` does: tiers and overrides may be in their own files. In a directory,
    /// all *.yaml and *.yml files are read, sorted by name.
    #[arg(value_name = "RULES", required = true)]
    rules: Vec<PathBuf>,

    /// Treat warnings as errors, for CI
    #[arg(long)]
    deny_warnings: bool,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CommandFailure> {
    read_input_once(&args.rules)?;
    let Compilation { rules, diagnostics, .. } =
        compile_paths(&args.rules, Some(SystemClock.now()));
    let warnings = diagnostics.count(Severity::Warning);
    let rules = rules.filter(|_| !args.deny_warnings || warnings == 0);
    let told = match args.json {
        true => CheckReport::new(rules.as_ref(), &diagnostics).print(),
        false => print_for_humans(rules.as_ref(), &diagnostics),
    };
    told.map_err(CommandFailure::from_output)?;
    rules.map(|_| ()).ok_or(CommandFailure::Reported)
}

/// Prints diagnostics to standard error and a summary of valid rules to standard output.
fn print_for_humans(rules: Option<&RuleSet>, diagnostics: &Diagnostics) -> io::Result<()> {
    // If standard error is closed, the exit code is enough.
    let _ = write!(io::stderr(), "{diagnostics}");
    if !diagnostics.has_errors() {
        let mut gap = if diagnostics.is_empty() { "" } else { "\n" };
        for note in diagnostics.notes() {
            let _ = writeln!(io::stderr(), "{gap}{note}");
            gap = "\n";
        }
    }
    let found = problem_counts(diagnostics);
    let Some(rules) = rules else {
        let denied = if diagnostics.has_errors() { "" } else { ", which --deny-warnings denies" };
        let _ = writeln!(io::stderr(), "\nnot valid: {found}{denied}");
        return Ok(());
    };
    let RulesSize { rules, limits, tiers, overrides, domains } = RulesSize::of(rules);
    let mut parts = vec![count_with_noun(rules, "rule"), count_with_noun(limits, "limit")];
    for (count, noun) in [(tiers, "tier"), (overrides, "override"), (domains, "domain")] {
        if count > 0 {
            parts.push(count_with_noun(count, noun));
        }
    }
    let found = if found.is_empty() { found } else { format!("; {found}") };
    writeln!(io::stdout(), "ok: {}{found}", parts.join(", "))
}

/// The result as JSON: validity, size of the rules, and all diagnostics.
#[derive(Serialize)]
struct CheckReport {
    ok: bool,
    #[serde(flatten)]
    size: Option<RulesSize>,
    errors: usize,
    warnings: usize,
    notes: usize,
    /// Errors, warnings and notes.
    diagnostics: Vec<serde_json::Value>,
}

impl CheckReport {
    fn new(rules: Option<&RuleSet>, diagnostics: &Diagnostics) -> CheckReport {
        CheckReport {
            ok: rules.is_some(),
            size: rules.map(RulesSize::of),
            errors: diagnostics.count(Severity::Error),
            warnings: diagnostics.count(Severity::Warning),
            notes: diagnostics.count(Severity::Note),
            diagnostics: diagnostics
                .shown()
                .chain(diagnostics.notes())
                .map(Diagnostic::to_json)
                .collect(),
        }
    }

    fn print(&self) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        serde_json::to_writer(&mut stdout, self)?;
        writeln!(stdout)
    }
}

/// Numbers of rules, limits and other parts.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct RulesSize {
    pub(crate) rules: usize,
    /// Limits as written: a limit that tiers multiply counts once.
    pub(crate) limits: usize,
    tiers: usize,
    overrides: usize,
    /// Domains of envoyproxy/ratelimit files; left out if there is none.
    #[serde(skip_serializing_if = "is_zero")]
    domains: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl RulesSize {
    pub(crate) fn of(rules: &RuleSet) -> RulesSize {
        RulesSize {
            rules: rules.rules().len(),
            limits: rules.rules().map(|rule| rule.limits.plain().len()).sum(),
            tiers: rules.tiers().len(),
            overrides: rules.overrides().len(),
            domains: rules.domains().len(),
        }
    }
}

/// Formats `2 errors, 1 warning, 1 note`; empty if there are none.
fn problem_counts(diagnostics: &Diagnostics) -> String {
    let severities =
        [(Severity::Error, "error"), (Severity::Warning, "warning"), (Severity::Note, "note")];
    let counts = severities.map(|(severity, noun)| (diagnostics.count(severity), noun));
    let told = counts.iter().filter(|(count, _)| *count > 0);
    told.map(|(count, noun)| count_with_noun(*count, noun)).collect::<Vec<_>>().join(", ")
}

/// Formats `1 rule`, `2 rules`.
fn count_with_noun(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Compiles files, directories and standard input together. If one cannot be read, only that is reported: the
/// others may depend on it. Parts that have ended by `now` cause warnings.
pub(super) fn compile_paths(paths: &[PathBuf], now: Option<Micros>) -> Compilation {
    let mut sources = Vec::new();
    let mut diagnostics = Diagnostics::default();
    for path in paths {
        match read(path) {
            Ok(read) => sources.extend(read),
            Err(diagnostic) => diagnostics.push(*diagnostic),
        }
    }
    match diagnostics.is_empty() {
        true => compile_at(&sources, now),
        false => Compilation { rules: None, diagnostics, named_files: Vec::new() },
    }
}

fn read(path: &Path) -> Result<Vec<Source>, Box<Diagnostic>> {
    const NAME: &str = "<stdin>";
    if path != Path::new("-") {
        return Source::read(path);
    }
    let mut bytes = Vec::new();
    // One byte more than allowed shows that it is too long.
    let read = io::stdin().lock().take(MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| {
        Diagnostic::of_file(NAME, Problem::new(format!("the file cannot be read: {error}")))
    })?;
    Ok(vec![Source::from_bytes(NAME, &bytes)?])
}

/// Refuses standard input that is named more than once.
pub(super) fn read_input_once<'a>(
    paths: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), CommandFailure> {
    let times = paths.into_iter().filter(|path| path.as_os_str() == "-").count();
    match times {
        0 | 1 => Ok(()),
        _ => Err(CommandFailure::Usage(
            Report::new(format!(
                "standard input is named {times} times, but can be read only once"
            ))
            .hint("write - once, and paths of files otherwise"),
        )),
    }
}

/// The end of `--help`.
const EXAMPLES: &str = r#"Every mistake is reported with its file, line and column, and a hint how to fix
it. A warning is about rules that are valid but do not do what they seem to. A
note is about a choice worth knowing, such as a limit that is an estimate.
Files of envoyproxy/ratelimit are read unchanged.

Examples:

  tollgate check rules.yaml
  tollgate check --deny-warnings rules/ extra.yaml
  tollgate check --json - < rules.yaml

The exit code is 0 if the rules are valid, 1 if they are not, 2 if the command
line is invalid."#;
