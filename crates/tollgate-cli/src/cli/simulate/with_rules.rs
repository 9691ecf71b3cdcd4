//! A trace through rules: every answer, or what happened in total.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tollgate::decision::MAX_LIMITS;
use tollgate::{ManualClock, Micros};
use tollgate_rules::{Compilation, DecidedRequest, Gatekeeper, MissingFacts, RulesObserver};

use super::store::SimStore;
use super::tally::TraceTally;
use super::trace::TraceReader;
use super::trace_line::{self, TraceLine};
use super::{Args, CommandFailure, answer, check, replay, rules_comparison, warn_if_crowded};

/// Answers request after request.
pub(super) fn run(args: &Args, trace: &Path) -> Result<(), CommandFailure> {
    let (now, missing) = gatekeeper(&args.rules, args)?;
    let then = match &args.against[..] {
        [] => None,
        paths => Some(gatekeeper(paths, args)?),
    };
    let mut trace = TraceReader::open(trace, &trace_line::TRACE_FORMAT)?;
    let people = args.output == "table";
    match &then {
        None => decide(&mut trace, &now, people)?,
        Some((then, _)) => rules_comparison::compare(&mut trace, [&now, then], people)?,
    }
    for (gatekeeper, missing) in [Some((now, missing)), then].into_iter().flatten() {
        warn_if_crowded(gatekeeper.limiter(), args.max_keys);
        warn_if_left_out(&gatekeeper);
        missing.warn();
    }
    Ok(())
}

/// Counts requests that pass because they lack facts: a server would answer some of them an error.
#[derive(Debug, Default)]
struct MissingFactsCount(Mutex<(u64, Option<String>)>);

impl RulesObserver for MissingFactsCount {
    fn decided(&self, _: &DecidedRequest<'_>) {}

    fn missing_facts(&self, missing: &MissingFacts<'_>, _: Micros) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.0 += 1;
        seen.1.get_or_insert_with(|| missing.to_string());
    }
}

impl MissingFactsCount {
    fn warn(&self) {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let (requests, Some(first)) = &*seen {
            // The answers are out; a closed standard error is no reason to fail.
            let _ = writeln!(
                io::stderr(),
                "warning: requests that passed because they lack facts: {requests}; the first: {first}\n\
                 hint: /v1/check answers 400 to such questions, unless the server is started with \
                 --missing-facts allow"
            );
        }
    }
}

/// The rules of these files, with a table of their own.
fn gatekeeper(
    paths: &[PathBuf],
    args: &Args,
) -> Result<(Gatekeeper<SimStore, ManualClock>, Arc<MissingFactsCount>), CommandFailure> {
    let Compilation { rules, diagnostics, .. } = check::compile_paths(paths, None);
    let Some(rules) = rules else {
        // The exit code says enough if standard error is closed.
        let _ = write!(io::stderr(), "{diagnostics}");
        return Err(CommandFailure::Reported);
    };
    let missing = Arc::<MissingFactsCount>::default();
    let gatekeeper = Gatekeeper::new(rules, SimStore::open(args)?).observed_by(missing.clone());
    Ok((gatekeeper, missing))
}

fn decide(
    trace: &mut TraceReader,
    gatekeeper: &Gatekeeper<SimStore, ManualClock>,
    people: bool,
) -> Result<(), CommandFailure> {
    let mut tally = TraceTally::default();
    replay(trace, |request, answers| {
        let answer = TraceLine::read(request)?.decide(gatekeeper, request.at)?;
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

/// One decision has room for so many limits.
fn warn_if_left_out(gatekeeper: &Gatekeeper<SimStore, ManualClock>) {
    let left_out = gatekeeper.stats().left_out;
    if left_out > 0 {
        // The answers are out; a closed standard error is no reason to fail.
        let _ = writeln!(
            io::stderr(),
            "warning: {left_out} times a limit was left out, because more than {MAX_LIMITS} apply \
             to one request\nhint: let fewer rules match the same request"
        );
    }
}
