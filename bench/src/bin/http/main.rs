//! `cargo xtask bench http`: requests per second and processor time per request of the HTTP listener,
//! next to bare hyper and to nginx, all in one run.
//!
//! Read in this order: `contestants.rs` (servers and their requests), `requests.rs`, `goals.rs`, `report.rs`
//! (tables), `nginx.rs`; then, in the library of this crate, `generator/` (the load), `rounds.rs` and
//! `process.rs` (starting servers).

mod contestants;
mod goals;
mod nginx;
mod report;
mod requests;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tollgate_bench::generator::http::HttpLoadClient;
use tollgate_bench::generator::{self, LoadSpec};
use tollgate_bench::machine;
use tollgate_bench::options::{self, BenchOptions, UsageError};
use tollgate_bench::process::{
    GENERATOR_CORE, ScratchDir, check_pinned, programs_folder, sibling_program,
};
use tollgate_bench::rounds::{RoundResults, SampleTiming, ServerSample};
use tollgate_bench::table::TableStyle;

use contestants::{HttpContestant, HttpContestantChoice, HttpContestants};

const HELP: &str = "\
Measures `tollgate serve` over HTTP on loopback, next to bare hyper and to nginx, in one run.

Usage: cargo xtask bench http [OPTIONS]

Options:
  --quick          3 rounds of 0.3 s for each contestant instead of 9 of 1 s, for a first look
  --connections N  connections (default: 16); one request in flight on each
  --rounds N       rounds; tables show medians
  --only NAME      only contestants whose name contains NAME, such as hyper, nginx, tollgate,
                   forward-auth, check; a ratio needs both of its sides
  --server PATH    measure this program instead of the `tollgate` built from this repository
  --floors FOLDER  take the floors from this folder
  --markdown       tables as Markdown
  --help           print this text

What is measured:
  bare hyper                       hyper on a one-thread tokio: answers 200, and nothing else
  hyper, same fields               the same, with the five header fields of a decision
  hyper, same body and fields      reads the body of a check, and answers with the same JSON and fields
  nginx limit_req                  one process, 128 MiB zone, never refuses, answers with its empty
                                   GIF; gets the same bytes as tollgate
  nginx limit_req, short request   the same without the X-Forwarded-… headers
  tollgate forward-auth            GET /v1/forward-auth, one rule (bench/rules/one-rule.yaml)
  tollgate forward-auth, 11 rules  all eleven decide (bench/rules/eleven-rules.yaml)
  tollgate forward-auth, Unix      the same as the first over a Unix socket
  tollgate check                   POST /v1/check
  tollgate batch of 64             POST /v1/check/batch

All servers run on core 1, the generator's one thread runs on core 0, and the contestants take turns
within each round. A warm-up round before the first does not count. Requests come from about 48,000
callers. All are allowed, and an answer other than 200 ends the run.
CPU is the processor time of the server, user and system; ratios are taken within a round.

The generator polls on a core of its own and is always busy. If the server is not, requests/s measure
the generator, or the machine is not quiet, and CPU per request is the number to trust. The goals are
therefore decided by CPU.
Exits with 1 if a goal is missed or a requested contestant could not be measured.

Examples:
  cargo xtask bench http --quick
  cargo xtask bench http --connections 64 --only forward-auth
";

const CONNECTIONS_MAX: usize = 512;
const ROUNDS_MAX: usize = 1_000;

fn main() -> ExitCode {
    options::run(HELP, run)
}

fn run(mut options: BenchOptions) -> Result<bool, UsageError> {
    let quick = options.flag("--quick");
    let (rounds, warm_up_ms, duration_ms) = if quick { (3, 100, 300) } else { (9, 300, 1_000) };
    let effort = HttpEffort {
        connections: number(&mut options, "--connections", 16, CONNECTIONS_MAX)?,
        rounds: number(&mut options, "--rounds", rounds, ROUNDS_MAX)?,
        span: SampleTiming {
            warm_up: Duration::from_millis(warm_up_ms),
            duration: Duration::from_millis(duration_ms),
        },
    };
    let only: String = options.value("--only")?.unwrap_or_default();
    let programs = HttpPrograms {
        tollgate: options.value("--server")?.map_or_else(|| sibling_program("tollgate"), Ok)?,
        floors: options.value("--floors")?.map_or_else(programs_folder, Ok)?,
    };
    let style = TableStyle::from_flag(options.flag("--markdown"));
    options.finish()?;

    let result = measure_and_report(effort, &only, &programs, style);
    Ok(result.unwrap_or_else(|problem| {
        eprintln!("{problem}");
        false
    }))
}

/// The paths of the measured programs.
struct HttpPrograms {
    tollgate: PathBuf,
    /// The folder of the floors.
    floors: PathBuf,
}

/// Reads an option with a number from 1 to `max`.
fn number(
    options: &mut BenchOptions,
    name: &str,
    usual: usize,
    max: usize,
) -> Result<usize, UsageError> {
    match options.value(name)?.unwrap_or(usual) {
        number if (1..=max).contains(&number) => Ok(number),
        other => Err(format!("{name} {other}: write a number from 1 to {max}")),
    }
}

/// Starts the servers, measures and prints. Returns true if all goals are met.
fn measure_and_report(
    effort: HttpEffort,
    only: &str,
    programs: &HttpPrograms,
    style: TableStyle,
) -> Result<bool, String> {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Err("this needs two cores: one for the servers, one for who asks".into());
    }
    println!("{}; load {} at the start", machine::describe(), machine::load());
    machine::pin(GENERATOR_CORE);
    check_pinned(std::process::id(), GENERATOR_CORE)?;
    let scratch = ScratchDir::new()?;
    let bare_hyper = programs.floors.join("bare-hyper");
    let choice =
        HttpContestantChoice { tollgate: &programs.tollgate, bare_hyper: &bare_hyper, only };
    let contestants = HttpContestants::start(&choice, &scratch);
    for problem in &contestants.problems {
        println!("not measured: {problem}");
    }
    if contestants.all.is_empty() {
        return Err(match contestants.problems[..] {
            [] => format!("there is no contestant whose name contains {only:?}"),
            _ => "there is nobody left to measure".into(),
        });
    }
    println!(
        "{} connections, {} rounds of {} ms each, {} ms of warm-up before\n",
        effort.connections,
        effort.rounds,
        effort.span.duration.as_millis(),
        effort.span.warm_up.as_millis()
    );
    let results = measure(&contestants.all, effort)?;
    println!("{}", report::speed(&results, &contestants.all, style));
    let (goals_table, all_met) = goals::table(&results, style);
    println!("{goals_table}");
    Ok(all_met && contestants.problems.is_empty())
}

/// The duration and number of samples, and the number of connections.
#[derive(Clone, Copy, Debug)]
struct HttpEffort {
    connections: usize,
    rounds: usize,
    span: SampleTiming,
}

fn measure(contestants: &[HttpContestant], effort: HttpEffort) -> Result<RoundResults, String> {
    let names: Vec<String> = contestants.iter().map(|it| it.name.to_owned()).collect();
    RoundResults::measure(&names, effort.rounds, |index| sample(&contestants[index], effort))
}

fn sample(contestant: &HttpContestant, effort: HttpEffort) -> Result<ServerSample, String> {
    let load = LoadSpec {
        address: contestant.address.clone(),
        server: contestant.server,
        connections: effort.connections,
        span: effort.span,
    };
    generator::measure(&load, |index| HttpLoadClient::new(&contestant.requests, index))
}
