//! `--against`: shows what candidate rules would change for callers, before they are deployed.

use std::io::{self, Write};

use super::trace::TraceReader;
use super::trace_line::TraceLine;
use super::with_rules::SimRules;
use super::{Args, CommandFailure, OutputForm, algorithms, answer, replay};
use crate::replay::{AffectedCallersTable, ReplayComparison, ReplayedRequest};

/// Prints each request that the second rule set answers differently, and then a summary; or for people a chart
/// and the summary.
pub(super) fn compare(
    trace: &mut TraceReader,
    [now, then]: [&SimRules; 2],
    args: &Args,
) -> Result<(), CommandFailure> {
    let output = args.output.unwrap_or(OutputForm::Jsonl);
    let people = output != OutputForm::Jsonl;
    let mut comparison = ReplayComparison::default();
    let outcome = replay(trace, |request, answers| {
        let asked = TraceLine::read(request)?;
        let both = [asked.decide(now, request.at)?, asked.decide(then, request.at)?];
        let both = [&both[0], &both[1]];
        let replayed = ReplayedRequest {
            at: request.at,
            method: asked.method.as_deref(),
            path: asked.path.as_deref(),
            caller: asked.replayed_caller(),
            position: Some(&request.line),
        };
        let changed = comparison.add(&replayed, both);
        if changed && !people {
            answer::print_both(request.subject, both, answers)
                .map_err(CommandFailure::from_output)?;
        }
        Ok(())
    });
    outcome?;
    algorithms::show(&comparison.chart(), output, args.svg.as_deref())?;
    if output == OutputForm::Chart {
        writeln!(io::stdout()).map_err(CommandFailure::from_output)?;
    }
    let callers = match output {
        OutputForm::Chart => AffectedCallersTable(&comparison).to_string(),
        OutputForm::Table | OutputForm::Jsonl => String::new(),
    };
    match people {
        true => {
            write!(io::stdout(), "{comparison}{callers}").map_err(CommandFailure::from_output)?
        }
        // The answers are printed: a closed standard error is no reason to fail.
        false => drop(write!(io::stderr(), "{comparison}")),
    }
    Ok(())
}
