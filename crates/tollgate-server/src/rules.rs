//! The rules of a run: from files, from one limit, or the demo.

use tollgate::OnChange;
use tollgate_rules::key_template::KeyTemplate;
use tollgate_rules::limit_spec::LimitSpec;
use tollgate_rules::rule::{Cost, Mode, StoreFailure, TierLimits};
use tollgate_rules::tier::Multiplier;
use tollgate_rules::{Problem, Rule, RuleSet};

use crate::cli::{Failure, Report};
use crate::settings::Settings;
use crate::telemetry::Logs;

/// What `serve` shows when nobody tells it anything.
pub(crate) const DEMO: &str = include_str!("demo.yaml");

/// The rules that the settings ask for.
pub(crate) fn load(settings: &Settings, _logs: &Logs) -> Result<RuleSet, Failure> {
    if let Some(rate) = &settings.limit {
        return one_limit(rate)
            .map_err(|problem| Failure::Usage(Report::new(format!("--limit: {problem}"))));
    }
    if !settings.rules.is_empty() {
        return Err(Failure::Input(Report::new("rules files come with the next commit")));
    }
    let _ = DEMO;
    one_limit("30/minute").map_err(|problem| Failure::Input(Report::new(problem.to_string())))
}

/// Checks a rate as `--limit` takes it.
pub(crate) fn check_rate(rate: &str) -> Result<String, String> {
    one_limit(rate).map(|_| rate.to_string()).map_err(|problem| problem.to_string())
}

/// One limit for each caller, whatever they ask for.
fn one_limit(rate: &str) -> Result<RuleSet, Problem> {
    let spec = LimitSpec { rate: rate.into(), ..LimitSpec::default() };
    let limit = spec.build("default", OnChange::default(), Multiplier::ONE)?;
    let rule = Rule {
        name: "default".into(),
        when: None,
        fallback: false,
        key: KeyTemplate::parse("{user|ip}")?,
        limits: TierLimits::untiered(vec![limit]),
        cost: Cost::Fixed(1),
        mode: Mode::Enforce,
        soft: false,
        count_denied: false,
        ban: None,
        on_store_failure: StoreFailure::Local,
        concurrency: None,
    };
    Ok(RuleSet::new(vec![rule], &[], Vec::new(), tollgate_rules::Settings::default()))
}
