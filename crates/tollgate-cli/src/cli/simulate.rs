//! `tollgate simulate`: runs a trace of requests through one limit or through rules, on the clock of the
//! trace.
//!
//! Requests go through the same limiter and table that a program embeds, or through the scripts of a shared
//! store, one at a time and in order, so the answers are those that the program would have got at those
//! instants. Neither the trace nor the answers are kept in memory: a trace may be endless.

use std::io::{self, BufWriter, StdoutLock, Write};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::ArgGroup;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use tollgate::MemoryStore;

use super::{CommandFailure, Report, check};
use crate::settings::url_value::UrlValue;
use crate::settings::{StoreChoice, store_choice};
use algorithms::scenario::{SCENARIOS, TrafficScenario};
use one_limit::LimitArgs;
use store::SimStore;
use trace::{TraceReader, TraceRequest};

mod against;
mod algorithms;
mod answer;
mod caller_tally;
mod in_turn;
mod one_limit;
mod rules_course;
mod store;
mod trace;
mod trace_line;
mod virtual_time;
mod with_rules;

/// Largest `--max-keys`: a table of 39 GB.
const MAX_KEYS_MAX: u64 = 1_000_000_000;

/// Bytes of answers written at once.
const OUTPUT_BYTES: usize = 64 << 10;

/// Run a trace of requests through a limit or through rules, on a virtual clock
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tollgate simulate --scenario <NAME> [--svg <FILE>] [OPTIONS]\n       \
                      tollgate simulate --rate <RATE> --trace <FILE> [OPTIONS]\n       \
                      tollgate simulate --rules <PATH> [--against <PATH> [--svg <FILE>]] --trace <FILE> [OPTIONS]",
    group = ArgGroup::new("by").args(["rate", "rules"]),
    after_long_help = HELP
)]
pub(crate) struct Args {
    /// Compare all algorithms on this traffic: steady, burst, boundary, flood, visual, timeline or eager
    ///
    /// Draws the offered, admitted, refused and delayed requests and what each algorithm remembers.
    #[arg(
        long,
        value_name = "NAME",
        value_parser = scenario_parser(),
        conflicts_with_all = ["trace", "rules", "against", "LimitArgs", "store"]
    )]
    scenario: Option<&'static TrafficScenario>,

    /// Write the picture to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Title of the picture
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,

    /// Trace of requests, JSON lines; - is standard input
    #[arg(long, value_name = "FILE", requires = "by")]
    trace: Option<PathBuf>,

    /// Decide by the rules of this file or directory; may be given several times
    #[arg(long, value_name = "PATH", conflicts_with = "LimitArgs", help_heading = "By rules")]
    rules: Vec<PathBuf>,

    /// Show what these candidate rules would change; may be given several times
    // clap drops a requirement that conflicts with other options: hence this conflict.
    #[arg(
        long,
        value_name = "PATH",
        requires = "rules",
        conflicts_with = "LimitArgs",
        help_heading = "By rules"
    )]
    against: Vec<PathBuf>,

    #[command(flatten, next_help_heading = "By one limit")]
    limit: LimitArgs,

    /// Decide in this store, at the times of the trace: memory, redis://HOST:PORT or another store URL
    ///
    /// Keys have a unique prefix, and expire within the hour.
    #[arg(
        long,
        value_name = "STORE",
        default_value = "memory",
        value_parser = UrlValue(store_choice),
        help_heading = "Options"
    )]
    store: StoreChoice,

    /// Maximum number of keys in the table, about 40 bytes each
    #[arg(
        long,
        value_name = "KEYS",
        default_value = "1000000",
        allow_negative_numbers = true,
        value_parser = whole_number(1..=MAX_KEYS_MAX),
        help_heading = "Options"
    )]
    max_keys: u64,

    /// Output format: jsonl has one JSON line per answer, table summarizes, chart draws
    ///
    /// By default chart for a scenario, and jsonl for a trace. The table of a limit also has what was measured in
    /// this run: the largest bursts, memory for each key and time for each check.
    #[arg(long, value_name = "FORM", value_enum, help_heading = "Options")]
    output: Option<OutputForm>,
}

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OutputForm {
    /// One JSON line per answer
    Jsonl,
    /// A summary
    Table,
    /// A chart; with --against followed by the table
    Chart,
}

impl OutputForm {
    fn is_for_people(self) -> bool {
        self != OutputForm::Jsonl
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CommandFailure> {
    if let Some(scenario) = args.scenario {
        return algorithms::run_scenario(scenario, args);
    }
    let Some(trace) = &args.trace else { return Err(CommandFailure::Usage(args.without_trace())) };
    if !args.rules.is_empty() {
        check::read_input_once(args.rules.iter().chain(&args.against).chain([trace]))?;
        return with_rules::run(args, trace);
    }
    if args.limit.compares_all()
        || args.svg.is_some()
        || args.output.is_some_and(OutputForm::is_for_people)
    {
        return algorithms::run_trace(args, trace);
    }
    one_limit::run(args, trace)
}

impl Args {
    /// True if a picture is wanted.
    fn is_drawn(&self) -> bool {
        self.svg.is_some() || self.output == Some(OutputForm::Chart)
    }

    /// The report for a missing trace.
    fn without_trace(&self) -> Report {
        if !self.rules.is_empty() {
            return Report::new("--rules needs a trace of requests to decide")
                .hint("add --trace FILE, or check the rules alone with `tollgate check`");
        }
        Report::new("`simulate` needs a trace of requests: --trace FILE, or - for standard input")
            .hint(
                "it prints a decision for each request: \
             echo '{\"at\":0}' | tollgate simulate --rate 10/1s --trace -",
            )
    }
}

/// Buffered standard output for answers.
type Answers = BufWriter<StdoutLock<'static>>;

/// Decides the requests of a trace one after the other.
fn replay(
    trace: &mut TraceReader,
    mut answer: impl FnMut(&TraceRequest<'_>, &mut Answers) -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    let mut answers = BufWriter::with_capacity(OUTPUT_BYTES, io::stdout().lock());
    let outcome = loop {
        // The writer of the trace may wait for these answers before it sends more.
        if trace.may_wait() {
            answers.flush().map_err(CommandFailure::from_output)?;
        }
        match trace.advance() {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(failure) => break Err(failure),
        }
        let answered = trace.request().and_then(|request| answer(&request, &mut answers));
        if answered.is_err() {
            break answered;
        }
    };
    // Answers before a wrong line are printed before the error.
    outcome.and(answers.flush().map_err(CommandFailure::from_output))
}

/// Warns if the table was too small, so that keys shared a state.
fn warn_if_crowded(store: &SimStore, max_keys: u64) {
    let Some(stats) = store.memory().map(MemoryStore::stats) else { return };
    if stats.overflowed == 0 && stats.evicted == 0 {
        return;
    }
    // The answers are printed: a closed standard error is no reason to fail.
    let _ = writeln!(
        io::stderr(),
        "warning: the table for {max_keys} keys was too small: {} answers come from states that \
         keys share, {} states were evicted early\n\
         hint: raise --max-keys above the number of keys that are in use at once",
        stats.overflowed,
        stats.evicted,
    );
}

/// Value parser that lists all scenarios, in help and in errors.
fn scenario_parser() -> impl TypedValueParser<Value = &'static TrafficScenario> {
    PossibleValuesParser::new(SCENARIOS.each_ref().map(|scenario| scenario.name))
        .map(|name| TrafficScenario::find(&name).expect("only names of scenarios are possible"))
}

/// Parses a number in a range.
fn whole_number(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            format!("write a whole number from {} to {}", range.start(), range.end())
        })
    }
}

/// The end of `--help`.
const HELP: &str = include_str!("simulate/help.txt");
