//! `cargo xtask bench doors`: the cost of the Redis protocol, gRPC and the tower layer, next to Redis,
//! tonic and a bare route, all in one run.
//!
//! Read in this order: `part.rs` (a part of the measurement), `resp.rs`, `grpc.rs`, `tower.rs` (the parts, with
//! their contestants and requests), `goals.rs`, `report.rs` (tables); then, in the library of this crate,
//! `generator/` (the load), `rounds.rs` and `process.rs`.

mod goals;
mod grpc;
mod part;
mod report;
mod resp;
mod tower;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tollgate_bench::machine;
use tollgate_bench::options::{self, BenchOptions, UsageError};
use tollgate_bench::process::{
    GENERATOR_CORE, ScratchDir, check_pinned, programs_folder, sibling_program,
};
use tollgate_bench::rounds::{RoundResults, SampleTiming};
use tollgate_bench::table::TableStyle;

use goals::ListenerGoals;
use part::{LaunchPaths, ListenerPart};

const HELP: &str = "\
Measures RESP, gRPC and the tower layer on loopback, next to common alternatives, in one run.

Usage: cargo xtask bench doors [OPTIONS]

Options:
  --quick        3 rounds of 0.3 s for each contestant instead of 9 of 1 s, for a first look
  --rounds N     rounds; tables show medians
  --only PARTS   only these parts, such as resp or resp,grpc (resp, grpc, tower)
  --server PATH  measure this program instead of the `tollgate` built from this repository
  --floors FOLDER  take the floors and routes from this folder
  --markdown     tables as Markdown
  --help         print this text

What is measured:
  resp   CL.THROTTLE of `tollgate serve --resp`, next to a bare echo (tokio on one thread, a command
         parser, a constant reply), redis-server with plain INCR, redis-cell's published semantics
         as a script, and the token bucket that most people write, both by EVALSHA
  grpc   ShouldRateLimit of `tollgate serve --grpc`, one rule (bench/rules/one-address.yaml), next to a
         tonic server that answers the same messages and decides nothing
  tower  an axum route with the layer of tollgate-tower, next to a route that sets the same header
         fields; and with a layer that writes no fields, next to a bare route

`16 x 64` means 16 connections with 64 requests in flight on each: over RESP a pipeline that is answered
before the next is sent, over gRPC independent streams. Requests come from about 48,000 callers. All
are allowed, and any other answer ends the run. No server persists anything.

All servers run on core 1, the generator's one thread runs on core 0, and the contestants take turns
within each round. A warm-up round before the first does not count. CPU is the processor time of the
server, user and system. Ratios are taken within a round; `1.52 (1.40–1.61)` is their median, minimum
and maximum.

The generator polls on a core of its own and is always busy. If the server is not, requests/s measure
the generator, or the machine is not quiet, and CPU per request is the number to trust. The goals are
therefore decided by CPU. The bare echo shows how fast the generator can be.
Exits with 1 if a goal is missed or a requested contestant could not be measured.

Examples:
  cargo xtask bench doors --quick
  cargo xtask bench doors --only resp --rounds 9
";

const ROUNDS_MAX: usize = 1_000;

fn main() -> ExitCode {
    options::run(HELP, run)
}

/// The options of the command line.
struct ListenerBenchOptions {
    parts: Vec<&'static str>,
    tollgate: PathBuf,
    /// The folder of the floors.
    floors: PathBuf,
    rounds: usize,
    span: SampleTiming,
    style: TableStyle,
}

fn run(mut options: BenchOptions) -> Result<bool, UsageError> {
    let quick = options.flag("--quick");
    let (usual, warm_up_ms, duration_ms) = if quick { (3, 100, 300) } else { (9, 200, 1_000) };
    let choice = ListenerBenchOptions {
        parts: wanted(options.value("--only")?)?,
        tollgate: options.value("--server")?.map_or_else(|| sibling_program("tollgate"), Ok)?,
        floors: options.value("--floors")?.map_or_else(programs_folder, Ok)?,
        rounds: options.value("--rounds")?.unwrap_or(usual),
        span: SampleTiming {
            warm_up: Duration::from_millis(warm_up_ms),
            duration: Duration::from_millis(duration_ms),
        },
        style: TableStyle::from_flag(options.flag("--markdown")),
    };
    if !(1..=ROUNDS_MAX).contains(&choice.rounds) {
        return Err(format!("--rounds {}: write a number from 1 to {ROUNDS_MAX}", choice.rounds));
    }
    options.finish()?;
    Ok(measure_and_report(&choice).unwrap_or_else(|problem| {
        eprintln!("{problem}");
        false
    }))
}

/// The parts with these names, separated by commas; all of them for `None`.
fn wanted(only: Option<String>) -> Result<Vec<&'static str>, UsageError> {
    let Some(only) = only else { return Ok(part::NAMES.to_vec()) };
    let known = |name: &str| {
        let known = part::NAMES.into_iter().find(|it| *it == name);
        known.ok_or_else(|| {
            format!("--only {name}: write one or several of {}", part::NAMES.join(","))
        })
    };
    only.split(',').map(known).collect()
}

/// Starts the servers, measures and prints. Returns true if all goals are met.
fn measure_and_report(choice: &ListenerBenchOptions) -> Result<bool, String> {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Err("this needs two cores: one for the servers, one for the generator".into());
    }
    println!("{}; load {} at the start", machine::describe(), machine::load());
    println!(
        "{} rounds of {} ms each, {} ms of warm-up before\n",
        choice.rounds,
        choice.span.duration.as_millis(),
        choice.span.warm_up.as_millis()
    );
    machine::pin(GENERATOR_CORE);
    check_pinned(std::process::id(), GENERATOR_CORE)?;
    let (mut goals, mut complete) = (ListenerGoals::default(), true);
    for name in &choice.parts {
        let scratch = ScratchDir::new()?;
        let paths =
            LaunchPaths { tollgate: &choice.tollgate, floors: &choice.floors, scratch: &scratch };
        let part = ListenerPart::start(name, &paths);
        for problem in &part.problems {
            println!("not measured: {problem}\n");
        }
        complete &= part.problems.is_empty();
        eprintln!("{}", part.title);
        let sample = |index: usize| (part.cases[index].sample)(choice.span);
        let results = RoundResults::measure(&part.names(), choice.rounds, sample)?;
        println!("{}", report::speed(&part, &results, choice.style));
        goals.decide(&results);
    }
    let (table, all_met) = goals.table(choice.style);
    println!("{table}");
    Ok(all_met && complete)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_chosen_by_name() {
        let wanted = |only: &str| wanted(Some(only.into()));
        assert_eq!(wanted("grpc,resp"), Ok(vec!["grpc", "resp"]));
        assert!(wanted("grpc,rsp").unwrap_err().starts_with("--only rsp: write one or several of"));
    }
}
