//! `cargo xtask bench doors`: what the Redis protocol, gRPC and the tower layer cost, next to Redis,
//! tonic and a bare route, all in one run.
//!
//! Read in this order: `part.rs` (what a part of the measurement is), `resp.rs`, `grpc.rs`,
//! `tower.rs` (the parts: who, and what each is asked), `goals.rs`, `report.rs` (tables); then, in
//! the library of this crate, `generator/` (how they are asked), `rounds.rs` and `process.rs`.

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
use tollgate_bench::process::{GENERATOR_CORE, ScratchDir, check_pinned, sibling_program};
use tollgate_bench::rounds::{RoundResults, SampleTiming};
use tollgate_bench::table::TableStyle;

use goals::ListenerGoals;
use part::{LaunchPaths, ListenerPart};

const HELP: &str = "\
Measures the listeners besides HTTP on loopback, next to what people run, in one run.

Usage: cargo xtask bench doors [OPTIONS]

Options:
  --quick        3 rounds of 0.3 s for each contestant instead of 5 of 1 s
  --rounds N     rounds; tables show medians
  --only PARTS   only these parts, such as resp or resp,grpc (resp, grpc, tower)
  --server PATH  measure this program instead of the `tollgate` built from this repository
  --markdown     tables as Markdown
  --help         print this text

What is measured:
  resp   CL.THROTTLE of `tollgate serve --resp`, next to a bare echo (tokio on one thread, a parser of
         commands, one and the same reply), redis-server with plain INCR, redis-cell's published
         semantics as a script, and the token bucket that most people write, both by EVALSHA
  grpc   ShouldRateLimit of `tollgate serve --grpc`, one rule (bench/rules/one-address.yaml), next to a
         tonic server that answers the same messages and decides nothing
  tower  a route of axum with the layer of tollgate-tower, next to the same route without it; also
         with a layer that tells nothing: the difference is what its headers cost

`16 x 64` are 16 connections with 64 requests on the way on each: over RESP sent together and answered
before the next, over gRPC streams that go on by themselves. About 48,000 callers ask, all are
allowed, and an answer that does not say so ends the run. Nobody persists anything.

All servers have core 1, one thread that asks has core 0, and the contestants take turns within each
round; one round before the first does not count. CPU is the processor time of the server, user and
system. Ratios are taken within a round; `1.52 (1.40–1.61)` is their median, least and most.

The generator has one core too: where it is 100 % busy and the server is not, requests/s say how fast
the generator is, and CPU per request is the number to believe. The goals are therefore decided by
CPU. The bare echo shows how fast the generator can be. Where neither is busy, the machine is not
quiet.
Leaves with 1 if a goal is missed or something that was wanted could not be measured.

Examples:
  cargo xtask bench doors --quick
  cargo xtask bench doors --only resp --rounds 9
";

const ROUNDS_MAX: usize = 1_000;

fn main() -> ExitCode {
    options::run(HELP, run)
}

/// What the command line asks for.
struct ListenerBenchOptions {
    parts: Vec<&'static str>,
    server: Option<PathBuf>,
    rounds: usize,
    span: SampleTiming,
    style: TableStyle,
}

fn run(mut options: BenchOptions) -> Result<bool, UsageError> {
    let quick = options.flag("--quick");
    let (usual, warm_up_ms, duration_ms) = if quick { (3, 100, 300) } else { (5, 200, 1_000) };
    let choice = ListenerBenchOptions {
        parts: wanted(options.value("--only")?)?,
        server: options.value("--server")?,
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

/// The parts with these names, separated by commas; all if nothing is said.
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

/// Starts everybody, measures, prints; true if all goals are met.
fn measure_and_report(choice: &ListenerBenchOptions) -> Result<bool, String> {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Err("this needs two cores: one for the servers, one for who asks".into());
    }
    println!("{}; load {} at the start", machine::describe(), machine::load());
    println!(
        "{} rounds of {} ms each, {} ms of warm-up before\n",
        choice.rounds,
        choice.span.duration.as_millis(),
        choice.span.warm_up.as_millis()
    );
    let tollgate = choice.server.clone().map_or_else(|| sibling_program("tollgate"), Ok)?;
    machine::pin(GENERATOR_CORE);
    check_pinned(std::process::id(), GENERATOR_CORE)?;
    let (mut goals, mut complete) = (ListenerGoals::default(), true);
    for name in &choice.parts {
        let scratch = ScratchDir::new()?;
        let part =
            ListenerPart::start(name, &LaunchPaths { tollgate: &tollgate, scratch: &scratch });
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
