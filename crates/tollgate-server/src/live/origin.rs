//! The rules of a run: from files, from one limit, or the demo.

use std::io::{self, Write};

use tollgate::{Clock, OnChange, SystemClock};
use tollgate_rules::compile::compile_at;
use tollgate_rules::key_template::KeyTemplate;
use tollgate_rules::limit_spec::LimitSpec;
use tollgate_rules::rule::TierLimits;
use tollgate_rules::tier::Multiplier;
use tollgate_rules::{Diagnostics, Problem, Rule, RuleSet, Severity, Source};

use crate::cli::{Failure, Report};
use crate::settings::Settings;
use crate::telemetry::{Field, LogFormat, Logs};

/// What `serve` shows when nobody tells it anything.
const DEMO: &str = include_str!("demo.yaml");

/// The rules that the settings ask for.
pub(crate) fn load(settings: &Settings, logs: &Logs) -> Result<RuleSet, Failure> {
    if let Some(rate) = &settings.limit {
        return one_limit(rate)
            .map_err(|problem| Failure::Usage(Report::new(format!("--limit: {problem}"))));
    }
    let mut sources = Vec::new();
    for path in &settings.rules {
        let read = Source::read(path);
        sources.extend(read.map_err(|diagnostic| refused(&(*diagnostic).into()))?);
    }
    if sources.is_empty() {
        sources.push(Source::from_text("the demo rules", DEMO));
    }
    let compiled = compile_at(&sources, Some(SystemClock.now()));
    let Some(rules) = compiled.rules else { return Err(refused(&compiled.diagnostics)) };
    warn(&compiled.diagnostics, settings.log_format, logs);
    Ok(rules)
}

/// Shows all that is wrong, not only the first of it.
fn refused(diagnostics: &Diagnostics) -> Failure {
    let _ = writeln!(io::stderr(), "{diagnostics}");
    let errors = diagnostics.count(Severity::Error);
    let plural = if errors == 1 { "" } else { "s" };
    Failure::Input(Report::new(format!("the rules have {errors} error{plural}; nothing is served")))
}

fn warn(diagnostics: &Diagnostics, format: LogFormat, logs: &Logs) {
    if format == LogFormat::Text && !diagnostics.is_empty() {
        let _ = writeln!(io::stderr(), "{diagnostics}");
        return;
    }
    for diagnostic in diagnostics.iter() {
        let line = diagnostic.span().map_or(0, |span| span.line);
        let fields: [Field<'_>; 3] =
            [("file", &diagnostic.file), ("line", &line), ("warning", &diagnostic.message)];
        logs.warn("the rules have a weakness", &fields);
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
