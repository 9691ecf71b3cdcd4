//! `tollgate bench`: an open load against a running server, with latencies corrected for coordinated omission.
//!
//! A closed load waits for each answer before it sends the next request, so while the server stalls it measures
//! nothing, and its percentiles miss the stall. Here each request has its time, and its latency counts from then.

use std::io::{self, Write};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use connection::LoadPeer;
use keys::{KEYS_MAX, KeySampler, parse_exponent};
use load::{LoadPlan, LoadProgress, run_load};
use progress::ProgressDrawer;
use report::LoadReport;
use request::RequestArgs;
use schedule::{LoadSchedule, parse_rate};
use target::LoadTarget;
use timeline::timeline;

use super::client::authorization;
use super::{CommandFailure, Report};
use crate::settings::parse_duration;

mod connection;
mod grpc_connection;
mod http_connection;
mod keys;
mod load;
mod progress;
mod record;
mod report;
mod request;
mod resp_connection;
mod schedule;
mod target;
mod timeline;

const EXAMPLES: &str = "\
Targets
  http://127.0.0.1:8080          checks: POST /v1/check for user bench-0, bench-1, …
  http://127.0.0.1:8000/search   any URL, such as one of the gateway
  redis://127.0.0.1:6380         commands of Redis: TG.CHECK, or with --throttle CL.THROTTLE
  grpc://127.0.0.1:8081          Envoy's rate limit service

Examples
  5,000 checks per second for 10 s, by 1,000 callers of whom few send most:
    tollgate bench --target http://127.0.0.1:8080 --rate 5000/s --zipf 1.1

  Requests through the gateway, each caller with a key of its own:
    tollgate bench --target http://127.0.0.1:8000/search --header x-api-key={key}

  As a Redis client that brings its own limit:
    tollgate bench --target redis://127.0.0.1:6380 --throttle '15 30 60'

Exit code
  0 there was at least one answer, 1 there was none, 2 invalid command line.";

/// Send requests at a fixed rate to a running server, and measure
///
/// Every request has its time, whatever happens to those before it. Latency counts from that time, so that a stall of
/// the server shows in full; the latency from the moment of sending stands beside it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "More, with examples: tollgate bench --help")]
pub(crate) struct Args {
    /// URL to send requests to: http://HOST:PORT, http://HOST:PORT/PATH, redis://HOST:PORT or grpc://HOST:PORT
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    target: LoadTarget,

    /// Requests per second
    #[arg(long, value_name = "RATE", default_value = "1000/s", value_parser = parse_rate)]
    rate: u64,

    /// Duration of the load
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    duration: Duration,

    /// Connections, each with at most one request in flight
    #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,

    /// Number of different callers
    #[arg(long, value_name = "N", default_value = "1000", value_parser = key_count)]
    keys: NonZeroU64,

    /// Frequencies of the callers by Zipf's law with this exponent, instead of equal ones
    #[arg(long, value_name = "EXPONENT", allow_negative_numbers = true, value_parser = parse_exponent)]
    zipf: Option<f64>,

    #[command(flatten)]
    request: RequestArgs,

    /// File with the server's token
    #[arg(
        long,
        value_name = "FILE",
        env = "TOLLGATE_TOKEN_FILE",
        visible_alias = "auth-token-file"
    )]
    token_file: Option<PathBuf>,

    /// Longest wait for one answer
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,

    /// Send the load to another machine, whose owner agrees
    #[arg(long)]
    allow_remote: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn key_count(text: &str) -> Result<NonZeroU64, String> {
    let keys = text.parse::<NonZeroU64>().ok().filter(|keys| keys.get() <= KEYS_MAX);
    keys.ok_or_else(|| format!("write a number from 1 to {KEYS_MAX}"))
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CommandFailure> {
    let plan = args.plan()?;
    let ignores_key = plan.peer.request.ignores_key();
    let progress = Arc::new(LoadProgress::default());
    let drawer = ProgressDrawer::start(progress.clone(), plan.schedule.requests());
    let record = run_load(plan, progress);
    drop(drawer);
    let record = record.map_err(|problem| args.no_connection(&problem))?;
    let report = LoadReport {
        target: &args.target,
        rate_per_s: args.rate,
        duration: args.duration,
        connections: args.connections,
        keys: if ignores_key { 1 } else { args.keys.get() },
        record: &record,
    };
    let text = match args.json {
        true => report.json_text(),
        false => report.human_text() + "\n" + &timeline(&record, args.duration),
    };
    io::stdout().write_all(text.as_bytes()).map_err(CommandFailure::from_output)?;
    if record.answered() > 0 { Ok(()) } else { Err(args.no_answers(&report)) }
}

impl Args {
    /// The load that the options describe. Looks the host up, and sends nothing.
    fn plan(&self) -> Result<LoadPlan, CommandFailure> {
        let usage = |problem: String| CommandFailure::Usage(Report::new(problem));
        let schedule = LoadSchedule::new(self.rate, self.duration).map_err(usage)?;
        let request = self.request.request(&self.target).map_err(usage)?;
        let authorization =
            self.token_file.as_deref().map(|path| authorization(path, "--token-file"));
        let authorization = authorization.transpose().map_err(CommandFailure::Input)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|error| CommandFailure::Input(Report::new(format!("no runtime: {error}"))))?;
        let address = runtime.block_on(self.target.resolve(self.allow_remote));
        let address = address.map_err(CommandFailure::Input)?;
        Ok(LoadPlan {
            peer: LoadPeer { target: self.target.clone(), address, request, authorization },
            schedule,
            connections: self.connections.into(),
            keys: KeySampler::new(self.keys.get(), self.zipf),
            timeout: self.timeout,
        })
    }

    fn no_connection(&self, problem: &str) -> CommandFailure {
        let report = Report::new(format!("cannot connect to {}: {problem}", self.target));
        CommandFailure::Input(report.hint(
            "is a server running there? Start one with `tollgate serve`, or choose another with --target",
        ))
    }

    fn no_answers(&self, report: &LoadReport<'_>) -> CommandFailure {
        let report =
            Report::new(format!("{} answered no request: {}", self.target, report.main_error()));
        CommandFailure::Input(
            report.hint("try a single request first, with `tollgate ask` or curl"),
        )
    }
}
