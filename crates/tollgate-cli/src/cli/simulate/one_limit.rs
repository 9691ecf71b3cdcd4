//! Runs a trace through one limit, which the options describe.

use std::borrow::Cow;
use std::io::{self, Write};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use tollgate::limit::{MAX_BUCKETS, parse_rate};
use tollgate::time::MAX_EXACT;
use tollgate::{Algorithm, Align, Check, Decision, Limit, Micros, Outcome, Store};

use super::algorithms::ComparedLimit;
use super::store::SimStore;
use super::trace::fields::text;
use super::trace::{TraceFormat, TraceReader, TraceRequest};
use super::{Answers, Args, CommandFailure, Report, replay, warn_if_crowded, whole_number};

/// Key of requests without one.
const DEFAULT_KEY: &str = "default";

const KEY_HINT: &str = r#"write text in quotes, such as "key":"a""#;

/// Format of lines with keys.
pub(super) const TRACE_FORMAT: TraceFormat = TraceFormat {
    subject_field: "key",
    line_hint: r#"write one object per line, such as {"at":1500000,"cost":1,"key":"a"}"#,
    fields_hint: r#"a line has "at" and, once each if at all, "cost" and "key""#,
    has_work: false,
};

/// Options of the limit.
#[derive(Debug, clap::Args)]
pub(super) struct LimitArgs {
    /// Limit, such as 10/1s, 100/minute, "5 per 90s", 0.4/second, "100/minute burst 20"
    ///
    /// Units of time are us, ms, s, m, h, d and w, or words such as minute. There is no month, because its
    /// length varies.
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    rate: Option<String>,

    /// Algorithm; by default token_bucket if there is a burst, else sliding_window_counter; all compares them
    #[arg(long, value_name = "NAME", value_parser = algorithm_parser())]
    algorithm: Option<AlgorithmChoice>,

    /// Largest number of units that may pass at one instant (buckets)
    #[arg(long, value_name = "UNITS", allow_negative_numbers = true, value_parser = burst)]
    burst: Option<u64>,

    /// Delay requests instead of passing a burst at once (leaky_bucket)
    #[arg(long)]
    queue: bool,

    /// Start of windows: whole periods since the Unix epoch, or the first request (fixed_window)
    #[arg(long, value_name = "START", value_parser = ["epoch", "first_hit"])]
    align: Option<String>,

    /// Start windows whole periods before and after this time (fixed_window)
    ///
    /// In microseconds since the Unix epoch.
    #[arg(
        long,
        value_name = "MICROS",
        conflicts_with = "align",
        allow_negative_numbers = true,
        value_parser = whole_number(0..=MAX_EXACT)
    )]
    anchor: Option<u64>,

    /// Give each key its own windows, offset by a hash of the key (fixed_window)
    #[arg(long)]
    stagger: bool,

    /// Number of whole sub-buckets to count in, never above the rate (sliding_window_counter)
    #[arg(
        long,
        value_name = "COUNT",
        allow_negative_numbers = true,
        value_parser = whole_number(1..=MAX_BUCKETS.into())
    )]
    buckets: Option<u64>,
}

/// The algorithms to decide by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AlgorithmChoice {
    One(Algorithm),
    /// Every algorithm, next to each other.
    All,
}

/// The name that chooses every algorithm.
const ALL_NAME: &str = "all";

/// Decides the requests of the trace one after the other.
pub(super) fn run(args: &Args, trace: &std::path::Path) -> Result<(), CommandFailure> {
    let limit = args.limit.build().map_err(CommandFailure::Input)?;
    let mut trace = TraceReader::open(trace, &TRACE_FORMAT)?;
    let store = SimStore::open(args)?;
    replay(&mut trace, |request, answers| {
        let key = key_of(request)?;
        let cost = request.cost.unwrap_or(1);
        let check = [Check::new(&limit, key.as_bytes()).cost(cost)];
        let mut outcome = [Outcome::default()];
        let decision = store.wait(store.decide_each(&check, request.at.into(), &mut outcome))?;
        let Ok(decision) = decision;
        let answer = LimitAnswerLine::new(request.at, &key, cost, &decision);
        print(&answer, answers).map_err(CommandFailure::from_output)
    })?;
    warn_if_crowded(&store, args.max_keys);
    Ok(())
}

pub(super) fn key_of<'a>(request: &TraceRequest<'a>) -> Result<Cow<'a, str>, CommandFailure> {
    let Some(key) = request.subject else { return Ok(DEFAULT_KEY.into()) };
    text(key).ok_or_else(|| request.line.wrong_value(key, "key", "which is not text", KEY_HINT))
}

/// The output of an answer. Scripts rely on names and order.
#[derive(Serialize)]
pub(super) struct LimitAnswerLine<'a> {
    at: u64,
    key: &'a str,
    cost: u64,
    allowed: bool,
    remaining: u64,
    retry_after_us: Option<u64>,
    reset_after_us: Option<u64>,
    delay_us: Option<u64>,
}

impl LimitAnswerLine<'_> {
    pub(super) fn new<'a>(
        at: Micros,
        key: &'a str,
        cost: u64,
        decision: &Decision,
    ) -> LimitAnswerLine<'a> {
        LimitAnswerLine {
            at: at.as_u64(),
            key,
            cost,
            allowed: decision.allowed(),
            remaining: decision.remaining(),
            retry_after_us: decision.retry_after().as_micros(),
            reset_after_us: decision.reset_after().as_micros(),
            delay_us: decision.delay().as_micros(),
        }
    }
}

fn print(answer: &LimitAnswerLine<'_>, answers: &mut Answers) -> io::Result<()> {
    serde_json::to_writer(&mut *answers, answer)?;
    answers.write_all(b"\n")
}

impl LimitArgs {
    /// True if every algorithm is wanted.
    pub(super) fn compares_all(&self) -> bool {
        self.algorithm == Some(AlgorithmChoice::All)
    }

    /// The numbers that every algorithm is given.
    pub(super) fn compared(&self) -> Result<ComparedLimit, Report> {
        let options = [
            ("--queue", self.queue),
            ("--align", self.align.is_some()),
            ("--anchor", self.anchor.is_some()),
            ("--stagger", self.stagger),
            ("--buckets", self.buckets.is_some()),
        ];
        if let Some((name, _)) = options.into_iter().find(|(_, is_given)| *is_given) {
            return Err(Report::new(format!("--algorithm all compares without {name}"))
                .hint(format!("leave out {name}, or name one algorithm")));
        }
        let limit = self.build()?;
        Ok(ComparedLimit { units: limit.units(), period: limit.period(), burst: limit.capacity() })
    }

    /// The limit that the options describe.
    pub(super) fn build(&self) -> Result<Limit, Report> {
        let rate = self.rate.as_deref().expect("clap: --trace requires --rate or --rules");
        let mut builder = parse_rate(rate).map_err(|error| Report::new(error.to_string()))?;
        if let Some(burst) = self.burst {
            if rate.split_whitespace().any(|word| word == "burst") {
                return Err(Report::new(format!(
                    "the burst is given twice, in --rate {rate:?} and as --burst {burst}"
                ))
                .hint("leave one of them out"));
            }
            builder = builder.burst(burst);
        }
        if let Some(AlgorithmChoice::One(algorithm)) = self.algorithm {
            builder = builder.algorithm(algorithm);
        }
        if self.queue {
            builder = builder.queue();
        }
        if self.align.as_deref() == Some("first_hit") {
            builder = builder.align(Align::FirstHit);
        }
        if let Some(anchor) = self.anchor {
            builder = builder.align(Align::Anchor(Micros::new(anchor)));
        }
        if self.stagger {
            builder = builder.stagger();
        }
        if let Some(buckets) = self.buckets {
            builder = builder.buckets(u32::try_from(buckets).expect("at most MAX_BUCKETS"));
        }
        builder.build().map_err(|error| Report::new(error.to_string()))
    }
}

/// Value parser that lists all algorithms, in help and in errors.
fn algorithm_parser() -> impl TypedValueParser<Value = AlgorithmChoice> {
    let names = Algorithm::ALL.map(Algorithm::name).into_iter().chain([ALL_NAME]);
    PossibleValuesParser::new(names).map(|name| match name.as_str() {
        ALL_NAME => AlgorithmChoice::All,
        one => AlgorithmChoice::One(one.parse().expect("only names of Algorithm::ALL are left")),
    })
}

/// Parses a burst. Building the limit checks its range.
fn burst(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("write a whole number from 1 to {MAX_EXACT}"))
}
