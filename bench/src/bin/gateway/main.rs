//! `cargo xtask bench gateway`: the cost of a request through the gateway, the latency it adds and its memory, next to
//! nginx, HAProxy, Envoy and a bare forwarder, all in one run in front of the same upstream.
//!
//! Read in this order: `contestants.rs` (the proxies), `configurations.rs` (those of others), `measure.rs`, `results.rs`
//! (tables), `goals.rs`; then, in the library of this crate, `generator/` (the load and the upstream).

mod configurations;
mod contestants;
mod goals;
mod measure;
mod overload;
mod requests;
mod results;
mod rules;

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tollgate_bench::generator::upstream::BenchUpstream;
use tollgate_bench::machine;
use tollgate_bench::options::{self, BenchOptions, UsageError};
use tollgate_bench::process::{
    GENERATOR_CORE, ScratchDir, check_pinned, programs_folder, sibling_program,
};
use tollgate_bench::rounds::RoundResults;
use tollgate_bench::table::TableStyle;

use contestants::{GatewayContestant, GatewayContestantChoice, GatewayContestants, ONE_RULE};
use measure::{GatewayEffort, GatewayLoad, timing};
use results::GatewayResults;

const HELP: &str = "\
Measures `tollgate serve --gateway` on loopback, next to nginx, HAProxy, Envoy and a bare forwarder, in
one run and in front of the same upstream.

Usage: cargo xtask bench gateway [OPTIONS]

Options:
  --quick          3 rounds of 0.3 s for each contestant instead of 9 of 1 s, for a first look
  --rounds N       rounds; tables show medians
  --overload       offer three times the peak for 60 s (10 s with --quick) to `tollgate, 1 rule`, and
                   print the goodput of each second and the time until all is served again
  --only NAME      only contestants whose name contains NAME, such as tollgate, nginx, Envoy; a
                   ratio needs both of its sides
  --server PATH    measure this program instead of the `tollgate` built from this repository
  --floors FOLDER  take the bare forwarder from this folder
  --markdown       tables as Markdown
  --help           print this text

What is measured:
  bare forwarder             hyper on a one-thread tokio with a pool of connections: decides nothing,
                             and adds the same fields as tollgate with one rule
  nginx limit_req            one process, proxy_pass, limit_req by address
  HAProxy stick-table        one thread, request rate by address
  Envoy local rate limit     one worker thread, a token bucket
  tollgate, no rule matches  the gateway, forwarding everything
  tollgate, 1 rule           one matching rule by address
  tollgate, 11 rules         eleven matching rules by address

All proxies run on core 1. The generator's one thread runs on core 0 and is the upstream as well, so
that nothing else has to be scheduled there. Contestants take turns within each round, over 16 and
then over 64 connections with one request in flight on each. A warm-up round does not count. All
requests are allowed, and an answer other than 200 ends the run.
CPU is the processor time of the proxy, user and system; ratios are taken within a round.

Half load is an open load at half of the requests that one core can do by CPU time, over 64
connections. The same load goes directly to the upstream; the table shows the differences. A round in
which the direct load falls behind its schedule does not count: the machine is busy then.
Memory is the growth of the proxy's resident set by 2,000 connections after one request on each.
Exits with 1 if a goal is missed or a requested contestant could not be measured.

Examples:
  cargo xtask bench gateway --quick
  cargo xtask bench gateway --only tollgate
";

/// Numbers of connections, one after the other.
const CONNECTIONS: [usize; 2] = [16, 64];
const ROUNDS_MAX: usize = 1_000;

fn main() -> ExitCode {
    options::run(HELP, run)
}

/// The options of a run.
struct GatewayRun {
    effort: GatewayEffort,
    only: String,
    /// Duration of the overload, if that is what is measured.
    overload: Option<Duration>,
    tollgate: PathBuf,
    /// The folder of the bare forwarder.
    floors: PathBuf,
    style: TableStyle,
}

fn run(mut options: BenchOptions) -> Result<bool, UsageError> {
    let quick = options.flag("--quick");
    let (rounds, span) = if quick { (3, timing(100, 300)) } else { (9, timing(300, 1_000)) };
    let rounds = match options.value("--rounds")?.unwrap_or(rounds) {
        rounds if (1..=ROUNDS_MAX).contains(&rounds) => rounds,
        other => return Err(format!("--rounds {other}: write a number from 1 to {ROUNDS_MAX}")),
    };
    let overload = options.flag("--overload");
    let only = options.value("--only")?;
    let run = GatewayRun {
        effort: GatewayEffort { rounds, span },
        only: only.unwrap_or_else(|| if overload { ONE_RULE.into() } else { String::new() }),
        overload: overload.then(|| Duration::from_secs(if quick { 10 } else { 60 })),
        tollgate: options.value("--server")?.map_or_else(|| sibling_program("tollgate"), Ok)?,
        floors: options.value("--floors")?.map_or_else(programs_folder, Ok)?,
        style: TableStyle::from_flag(options.flag("--markdown")),
    };
    options.finish()?;
    Ok(run.measure_and_report().unwrap_or_else(|problem| {
        eprintln!("{problem}");
        false
    }))
}

impl GatewayRun {
    /// Starts the proxies, measures and prints. Returns true if all goals are met.
    fn measure_and_report(&self) -> Result<bool, String> {
        if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            return Err("this needs two cores: one for the proxies, one for the generator".into());
        }
        println!("{}; load {} at the start", machine::describe(), machine::load());
        machine::pin(GENERATOR_CORE);
        check_pinned(std::process::id(), GENERATOR_CORE)?;
        let scratch = ScratchDir::new()?;
        let upstream = BenchUpstream::listen();
        let mut upstream = upstream.map_err(|error| format!("no upstream: {error}"))?;
        let requests = requests::api();
        let forwarder = self.floors.join("bare-forwarder");
        let choice = GatewayContestantChoice {
            tollgate: &self.tollgate,
            forwarder: &forwarder,
            only: &self.only,
        };
        let contestants = GatewayContestants::start(&choice, &requests, &mut upstream, &scratch);
        for problem in &contestants.problems {
            println!("not measured: {problem}");
        }
        if contestants.all.is_empty() {
            return Err(format!("no contestant to measure whose name contains {:?}", self.only));
        }
        let GatewayEffort { rounds, span } = self.effort;
        println!("{rounds} rounds of {} ms each\n", span.duration.as_millis());
        let upstream = RefCell::new(upstream);
        let load = GatewayLoad { upstream, requests: &requests, effort: self.effort };
        if let Some(duration) = self.overload {
            let first = &contestants.all[0];
            return overload::run(&load, first, (duration, self.style));
        }
        let results = measure(&load, &contestants.all)?;
        results.tables(self.style).iter().for_each(|table| println!("{table}"));
        let (goals_table, all_met) = goals::table(&results, self.style);
        println!("{goals_table}");
        Ok(all_met && contestants.problems.is_empty())
    }
}

fn measure(
    load: &GatewayLoad<'_>,
    contestants: &[GatewayContestant],
) -> Result<GatewayResults, String> {
    let mut results = GatewayResults::default();
    for connections in CONNECTIONS {
        eprintln!("{connections} connections");
        results.full_speed.push((connections, load.full_speed(contestants, connections)?));
    }
    for contestant in contestants {
        let named = |problem| format!("{}: {problem}", contestant.name);
        eprintln!("half load and idle connections: {}", contestant.name);
        let rate = core_rate(&results.full_speed[0].1, contestant.name).ok_or("no sample")? / 2.0;
        let added = load.added_latency(contestant, rate).map_err(named)?;
        results.added.push((contestant.name, added));
        let idle = load.idle_bytes(contestant).map_err(named)?;
        results.idle_bytes.push((contestant.name, idle));
    }
    Ok(results)
}

/// Requests per second that a core can do, by processor time.
fn core_rate(results: &RoundResults, name: &str) -> Option<f64> {
    results.figure(name, |it| it.server_us).map(|it| 1_000_000.0 / it.median)
}
