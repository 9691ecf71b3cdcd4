//! Runs a trace through rules: prints every answer, or a summary.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate::decision::MAX_LIMITS;
use tollgate::{ManualClock, Micros};
use tollgate_rules::{Compilation, Gatekeeper, Rule, RulesObserver};

use super::store::SimStore;
use super::trace::TraceReader;
use super::trace_line::{self, TraceLine};
use super::{
    Args, CommandFailure, OutputForm, Report, against, answer, check, in_turn, replay,
    warn_if_crowded,
};
use crate::replay::missing_facts::MissingFactsCount;
use crate::replay::tally::TraceTally;

/// Decides the requests of the trace one after the other.
pub(super) fn run(args: &Args, trace: &Path) -> Result<(), CommandFailure> {
    if args.output == Some(OutputForm::Chart) && args.against.is_empty() {
        let problem = "--output chart compares, and there is one rule set";
        let hint = "add --against FILE with candidate rules, or write --output table";
        return Err(CommandFailure::Usage(Report::new(problem).hint(hint)));
    }
    let now = SimRules::open(&args.rules, args)?;
    let then = match &args.against[..] {
        [] => None,
        paths => Some(SimRules::open(paths, args)?),
    };
    let mut trace = TraceReader::open(trace, &trace_line::TRACE_FORMAT)?;
    let people = args.output == Some(OutputForm::Table);
    match &then {
        None if now.waits() => in_turn::decide(&mut trace, &now, people)?,
        None => decide(&mut trace, &now, people)?,
        Some(then) => against::compare(&mut trace, [&now, then], args)?,
    }
    for rules in [Some(now), then].into_iter().flatten() {
        warn_if_crowded(&rules.store, args.max_keys);
        warn_if_left_out(&rules.gatekeeper);
        warn_if_facts_missing(&rules.missing);
    }
    Ok(())
}

/// Warns of requests that are allowed because they lack facts: a server would refuse some of them.
fn warn_if_facts_missing(missing: &MissingFactsCount) {
    if let Some((requests, first)) = missing.counted() {
        // The answers are printed: a closed standard error is no reason to fail.
        let _ = writeln!(
            io::stderr(),
            "warning: requests allowed because they lack facts: {requests}; the first: {first}\n\
             hint: /v1/check answers such requests with 400, unless the server is started with \
             --missing-facts allow"
        );
    }
}

/// A gatekeeper of a simulation. Its clock is read only where requests wait: every other request brings its instant.
pub(super) type SimGatekeeper = Gatekeeper<Arc<SimStore>, Arc<ManualClock>>;

/// The rules of some files, with a store of their own.
pub(super) struct SimRules {
    pub(super) gatekeeper: SimGatekeeper,
    pub(super) store: Arc<SimStore>,
    pub(super) clock: Arc<ManualClock>,
    missing: Arc<MissingFactsCount>,
}

impl SimRules {
    fn open(paths: &[PathBuf], args: &Args) -> Result<SimRules, CommandFailure> {
        let Compilation { rules, diagnostics, .. } = check::compile_paths(paths, None);
        let Some(rules) = rules else {
            // If standard error is closed, the exit code is enough.
            let _ = write!(io::stderr(), "{diagnostics}");
            return Err(CommandFailure::Reported);
        };
        let (store, missing) = (Arc::new(SimStore::open(args)?), Arc::default());
        let clock = Arc::new(ManualClock::new(Micros::ZERO));
        let gatekeeper = Gatekeeper::new(rules, Arc::clone(&store), Arc::clone(&clock));
        let gatekeeper = gatekeeper.observed_by(Arc::clone(&missing) as Arc<dyn RulesObserver>);
        Ok(SimRules { gatekeeper, store, clock, missing })
    }

    /// Returns true if requests may wait for each other. Over a shared store they do not: it would have to wait for
    /// an answer while the clock of the trace stands still.
    fn waits(&self) -> bool {
        let rules = self.gatekeeper.rules();
        let waits = |rule: &Rule| rule.fair.is_some() || rule.concurrency.is_some();
        self.store.memory().is_some() && rules.rules().any(waits)
    }
}

fn decide(trace: &mut TraceReader, rules: &SimRules, people: bool) -> Result<(), CommandFailure> {
    let mut tally = TraceTally::default();
    replay(trace, |request, answers| {
        let answer = TraceLine::read(request)?.decide(rules, request.at)?;
        match people {
            true => tally.add(&answer),
            false => answer::print(&answer, answers).map_err(CommandFailure::from_output)?,
        }
        Ok(())
    })?;
    if people {
        write!(io::stdout(), "{tally}").map_err(CommandFailure::from_output)?;
    }
    Ok(())
}

/// Warns of limits that were left out because too many apply to one request.
fn warn_if_left_out(gatekeeper: &SimGatekeeper) {
    let left_out = gatekeeper.stats().left_out;
    if left_out > 0 {
        // The answers are printed: a closed standard error is no reason to fail.
        let _ = writeln!(
            io::stderr(),
            "warning: {left_out} times a limit was left out, because more than {MAX_LIMITS} apply \
             to one request\nhint: make the rules more specific, so that fewer match the same request"
        );
    }
}
