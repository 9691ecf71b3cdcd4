//! `tollgate simulate`: a trace of requests through one limit, on the trace's own clock.
//!
//! Requests go through the same limiter and table that a program embeds, one at a time and in
//! order, so the answers are those that the program would have got at those instants. Neither the
//! trace nor the answers are kept: a trace may be longer than memory, or never end.

use std::io::{self, BufWriter, Write};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use tollgate::limit::{MAX_BUCKETS, parse_rate};
use tollgate::time::MAX_EXACT;
use tollgate::{Algorithm, Align, Decision, Limit, Limiter, ManualClock, MemoryStore, Micros};

use super::{Failure, Report};
use trace::{Request, Trace};

mod trace;

/// The most keys that can be asked for: 39 GB of table.
const MAX_KEYS_MAX: u64 = 1_000_000_000;

/// Bytes of answers written at once.
const OUTPUT_BYTES: usize = 64 << 10;

/// Run a trace of requests through a limit, on a virtual clock
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tollgate simulate --rate <RATE> --trace <FILE> [OPTIONS]",
    after_long_help = TRACE_HELP
)]
pub(crate) struct Args {
    /// The limit: 10/1s, 100/minute, "5 per 90s", 0.4/second, "100/minute burst 20"
    ///
    /// Units of time are us, ms, s, m, h, d and w, or words such as minute. A month is not among
    /// them, because its length varies.
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    rate: Option<String>,

    /// The trace, JSON lines; - is standard input
    #[arg(long, value_name = "FILE", requires = "rate")]
    trace: Option<PathBuf>,

    /// Who decides; without it token_bucket if there is a burst, else sliding_window_counter
    #[arg(long, value_name = "NAME", value_parser = algorithm_parser())]
    algorithm: Option<Algorithm>,

    /// The most that may pass at one instant (buckets)
    #[arg(long, value_name = "UNITS", allow_negative_numbers = true, value_parser = burst)]
    burst: Option<u64>,

    /// Delay instead of passing a burst at once (leaky_bucket)
    #[arg(long)]
    queue: bool,

    /// Where windows begin: whole periods since the Unix epoch, or the first request (fixed_window)
    #[arg(long, value_name = "WHERE", value_parser = ["epoch", "first_hit"])]
    align: Option<String>,

    /// Let windows begin whole periods before and after this instant (fixed_window)
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

    /// Give each key windows of its own, offset by a hash of the key (fixed_window)
    #[arg(long)]
    stagger: bool,

    /// Count in so many whole sub-buckets, never above the rate (sliding_window_counter)
    #[arg(
        long,
        value_name = "COUNT",
        allow_negative_numbers = true,
        value_parser = whole_number(1..=MAX_BUCKETS.into())
    )]
    buckets: Option<u64>,

    /// How many keys the table holds, at about 40 bytes each
    #[arg(
        long,
        value_name = "KEYS",
        default_value = "1000000",
        allow_negative_numbers = true,
        value_parser = whole_number(1..=MAX_KEYS_MAX)
    )]
    max_keys: u64,

    /// The form of the answers
    #[arg(long, value_name = "FORM", default_value = "jsonl", value_parser = ["jsonl"])]
    output: String,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let Some(path) = &args.trace else {
        let problem = "`simulate` without --trace is to draw all five algorithms side by side, \
                       which comes with a later version";
        return Err(Failure::Usage(Report::new(problem).hint(
            "with a trace it prints decisions: \
             echo '{\"at\":0}' | tollgate simulate --rate 10/1s --trace -",
        )));
    };
    let limit = args.limit().map_err(Failure::Input)?;
    let mut trace = Trace::open(path)?;
    let max_keys = usize::try_from(args.max_keys).unwrap_or(usize::MAX);
    let limiter = Limiter::new(MemoryStore::new(max_keys), ManualClock::new(Micros::ZERO));
    let mut answers = BufWriter::with_capacity(OUTPUT_BYTES, io::stdout().lock());

    let outcome = replay(&mut trace, &limit, &limiter, &mut answers);
    // What was answered before a wrong line is told before the line is.
    outcome.and(answers.flush().map_err(Failure::from_output))?;
    warn_if_crowded(&limiter, max_keys);
    Ok(())
}

/// Answers request after request.
fn replay(
    trace: &mut Trace,
    limit: &Limit,
    limiter: &Limiter<MemoryStore, ManualClock>,
    answers: &mut impl Write,
) -> Result<(), Failure> {
    loop {
        // Someone may be waiting for these answers before asking more.
        if trace.may_wait() {
            answers.flush().map_err(Failure::from_output)?;
        }
        if !trace.advance()? {
            return Ok(());
        }
        let request = trace.request()?;
        let decision = limiter.at(request.at).take(limit, request.key.as_bytes(), request.cost);
        print(&request, &decision, answers).map_err(Failure::from_output)?;
    }
}

/// One answer, as it is printed. Scripts rely on names and order.
#[derive(Serialize)]
struct Answer<'a> {
    at: u64,
    key: &'a str,
    cost: u64,
    allowed: bool,
    remaining: u64,
    retry_after_us: Option<u64>,
    reset_after_us: Option<u64>,
    delay_us: Option<u64>,
}

fn print(request: &Request<'_>, decision: &Decision, answers: &mut impl Write) -> io::Result<()> {
    let answer = Answer {
        at: request.at.as_u64(),
        key: &request.key,
        cost: request.cost,
        allowed: decision.allowed(),
        remaining: decision.remaining(),
        retry_after_us: decision.retry_after().as_micros(),
        reset_after_us: decision.reset_after().as_micros(),
        delay_us: decision.delay().as_micros(),
    };
    serde_json::to_writer(&mut *answers, &answer)?;
    answers.write_all(b"\n")
}

/// A table that is too small gives answers that are not those of each key alone.
fn warn_if_crowded(limiter: &Limiter<MemoryStore, ManualClock>, max_keys: usize) {
    let stats = limiter.store().stats();
    if stats.overflowed == 0 && stats.evicted == 0 {
        return;
    }
    // The answers are out; a closed standard error is no reason to fail.
    let _ = writeln!(
        io::stderr(),
        "warning: the table for {max_keys} keys was too small: {} answers come from states that \
         keys share, {} states were forgotten early\n\
         hint: raise --max-keys above the number of keys that are in use at once",
        stats.overflowed,
        stats.evicted,
    );
}

impl Args {
    /// The limit that the options describe.
    fn limit(&self) -> Result<Limit, Report> {
        let rate = self.rate.as_deref().expect("clap: --trace requires --rate");
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
        if let Some(algorithm) = self.algorithm {
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

/// Lists the five, in help and in errors.
fn algorithm_parser() -> impl TypedValueParser<Value = Algorithm> {
    PossibleValuesParser::new(Algorithm::ALL.map(Algorithm::name))
        .map(|name| name.parse().expect("only names of Algorithm::ALL are possible"))
}

/// Reads a burst. Whether it is possible, the limit says.
fn burst(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("write a whole number from 1 to {MAX_EXACT}"))
}

/// Reads the number of an option, or says which can be written.
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
const TRACE_HELP: &str = r#"The trace has one request on each line:
  {"at":1500000,"cost":1,"key":"a"}
  at    when, in whole microseconds since the Unix epoch; may go backwards
  cost  how many units it takes; 1 if left out; 0 takes nothing and only asks
  key   whose units; if left out, all such requests share the key "default"

Each is answered by one line, in order:
  remaining       whole units that are left after this request
  retry_after_us  how long to wait before this request would pass: 0 if it
                  passes now, null if it never will
  reset_after_us  how long until the key is as good as new
  delay_us        how long --queue holds the request back

Example: a bucket that holds 2 and regains 1 each second. The third request is
refused and told when to come back; the fourth comes back then.

  printf '%s\n' '{"at":0}' '{"at":0}' '{"at":0}' '{"at":1000000}' |
    tollgate simulate --rate 1/1s --burst 2 --trace -

  {"at":0,"key":"default","cost":1,"allowed":true,"remaining":1,"retry_after_us":0,"reset_after_us":1000000,"delay_us":0}
  {"at":0,"key":"default","cost":1,"allowed":true,"remaining":0,"retry_after_us":0,"reset_after_us":2000000,"delay_us":0}
  {"at":0,"key":"default","cost":1,"allowed":false,"remaining":0,"retry_after_us":1000000,"reset_after_us":2000000,"delay_us":0}
  {"at":1000000,"key":"default","cost":1,"allowed":true,"remaining":0,"retry_after_us":0,"reset_after_us":2000000,"delay_us":0}

The exit code is 0 if every request was answered, allowed or not; 1 if the limit
or the trace is wrong, after the answers to all requests before the wrong one;
2 if the command line is wrong."#;
