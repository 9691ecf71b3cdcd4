//! A trace through rules: every answer, or what happened in total.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tollgate::ManualClock;
use tollgate::decision::MAX_LIMITS;
use tollgate_rules::{Compiled, Gatekeeper};

use super::facts::{self, Asked};
use super::store::SimStore;
use super::tally::Tally;
use super::trace::Trace;
use super::{Args, Failure, against, answer, check, replay, warn_if_crowded};

/// Answers request after request.
pub(super) fn run(args: &Args, trace: &Path) -> Result<(), Failure> {
    let now = gatekeeper(&args.rules, args)?;
    let then = match &args.against[..] {
        [] => None,
        paths => Some(gatekeeper(paths, args)?),
    };
    let mut trace = Trace::open(trace, &facts::LINES)?;
    let people = args.output == "table";
    match &then {
        None => decide(&mut trace, &now, people)?,
        Some(then) => against::compare(&mut trace, [&now, then], people)?,
    }
    for gatekeeper in [Some(&now), then.as_ref()].into_iter().flatten() {
        warn_if_crowded(gatekeeper.limiter(), args.max_keys);
        warn_if_left_out(gatekeeper);
    }
    Ok(())
}

/// The rules of these files, with a table of their own.
fn gatekeeper(
    paths: &[PathBuf],
    args: &Args,
) -> Result<Gatekeeper<SimStore, ManualClock>, Failure> {
    let Compiled { rules, diagnostics, .. } = check::compile_paths(paths, None);
    let Some(rules) = rules else {
        // The exit code says enough if standard error is closed.
        let _ = write!(io::stderr(), "{diagnostics}");
        return Err(Failure::Told);
    };
    Ok(Gatekeeper::new(rules, SimStore::open(args)?))
}

fn decide(
    trace: &mut Trace,
    gatekeeper: &Gatekeeper<SimStore, ManualClock>,
    people: bool,
) -> Result<(), Failure> {
    let mut tally = Tally::default();
    replay(trace, |request, answers| {
        let answer = Asked::read(request)?.decide(gatekeeper, request.at)?;
        match people {
            true => tally.add(&answer),
            false => answer::print(&answer, answers).map_err(Failure::from_output)?,
        }
        Ok(())
    })?;
    if people {
        write!(io::stdout(), "{tally}").map_err(Failure::from_output)?;
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
