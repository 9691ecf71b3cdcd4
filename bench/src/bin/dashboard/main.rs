//! `cargo xtask bench dashboard`: what an open dashboard costs the server, in requests per second and in processor time.
//!
//! One server is measured in turn with and without an open page: `open_page.rs` reads the event stream and asks for what
//! the page shows, as often as the page does.

mod open_page;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use testkit::traffic;
use tollgate_bench::address::ServerAddress;
use tollgate_bench::generator::http::HttpLoadClient;
use tollgate_bench::generator::requests::EncodedRequests;
use tollgate_bench::generator::{self, LoadSpec};
use tollgate_bench::machine;
use tollgate_bench::options::{self, BenchOptions, UsageError};
use tollgate_bench::peer_server::free_address;
use tollgate_bench::process::{
    GENERATOR_CORE, ScratchDir, ServerProcess, check_pinned, sibling_program,
};
use tollgate_bench::rounds::{Figure, RoundResults, SampleTiming};
use tollgate_bench::table::{BenchTable, TableStyle, figures};

use open_page::OpenPage;

const HELP: &str = "\
Measures what an open dashboard costs `tollgate serve` under load over HTTP, in one run.

Usage: cargo xtask bench dashboard [OPTIONS]

Options:
  --quick        3 rounds of 3 s each instead of 9 of 6 s, for a first look
  --rounds N     rounds; tables show medians
  --pages N      open pages (default: 1, at most 32)
  --rules N      rules of the server, one of which has all the traffic (default: 11)
  --server PATH  measure this program instead of the `tollgate` built from this repository
  --markdown     tables as Markdown
  --help         print this text

The server runs on core 1; the generator and the pages run on core 0. One server gets POST /v1/check over 16 connections; it is
measured in turn without and with open pages, and the ratios are taken within a round. A page reads /api/events and asks for
/api/top, /api/rules, /api/status, /api/refusals and /api/history as often as the dashboard does. The time before a measurement
in which the page opens does not count.

The goal is decided by CPU, the processor time of the server for one request: less than 2 % more with one open page. Exits with 1
if it is missed.
";

const CLOSED: &str = "no page";
const OPEN: &str = "open page";

/// Most additional processor time of a request, as a factor.
const GOAL: f64 = 1.02;

const CONNECTIONS: usize = 16;
const ROUNDS_MAX: usize = 1_000;
/// Most open pages: one for each event stream that the server allows.
const PAGES_MAX: usize = 32;
const RULES_MAX: usize = 20_000;

fn main() -> ExitCode {
    options::run(HELP, run)
}

/// The extent of a run.
#[derive(Clone, Copy, Debug)]
struct DashboardEffort {
    rounds: usize,
    pages: usize,
    rules: usize,
    span: SampleTiming,
}

fn run(mut options: BenchOptions) -> Result<bool, UsageError> {
    let (rounds, seconds) = if options.flag("--quick") { (3, 3) } else { (9, 6) };
    let mut number = |name: &str, usual: usize, max: usize| match options.value(name)? {
        None => Ok(usual),
        Some(number) if (1..=max).contains(&number) => Ok(number),
        Some(other) => Err(format!("{name} {other}: write a number from 1 to {max}")),
    };
    let effort = DashboardEffort {
        rounds: number("--rounds", rounds, ROUNDS_MAX)?,
        pages: number("--pages", 1, PAGES_MAX)?,
        rules: number("--rules", 11, RULES_MAX)?,
        span: SampleTiming {
            warm_up: Duration::from_secs(1),
            duration: Duration::from_secs(seconds),
        },
    };
    let tollgate: PathBuf =
        options.value("--server")?.map_or_else(|| sibling_program("tollgate"), Ok)?;
    let style = TableStyle::from_flag(options.flag("--markdown"));
    options.finish()?;
    Ok(measure_and_report(&tollgate, effort, style).unwrap_or_else(|problem| {
        eprintln!("{problem}");
        false
    }))
}

/// Starts the server, measures and prints. Returns true if the goal is met.
fn measure_and_report(
    tollgate: &Path,
    effort: DashboardEffort,
    style: TableStyle,
) -> Result<bool, String> {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Err("this needs two cores: one for the server, one for who asks".into());
    }
    println!("{}; load {} at the start", machine::describe(), machine::load());
    machine::pin(GENERATOR_CORE);
    check_pinned(std::process::id(), GENERATOR_CORE)?;
    let scratch = ScratchDir::new()?;
    let admin = free_address()?;
    let (server, address) = start(tollgate, &scratch, admin, effort.rules)?;
    println!(
        "{CONNECTIONS} connections, {} rules, {} open pages, {} rounds of {} s each",
        effort.rules,
        effort.pages,
        effort.rounds,
        effort.span.duration.as_secs()
    );
    let requests = EncodedRequests::generate(1, |users| traffic::check(users[0]));
    let load =
        LoadSpec { address, server: server.id(), connections: CONNECTIONS, span: effort.span };
    let names = [CLOSED, OPEN].map(str::to_owned);
    let results = RoundResults::measure(&names, effort.rounds, |index| {
        let pages = if names[index] == OPEN { effort.pages } else { 0 };
        let pages: Vec<OpenPage> =
            (0..pages).map(|_| OpenPage::open(admin)).collect::<Result<_, _>>()?;
        let sample = generator::measure(&load, |index| HttpLoadClient::new(&requests, index))?;
        pages.into_iter().try_for_each(OpenPage::close)?;
        Ok(sample)
    })?;
    report(&results, style)
}

/// Starts a server with its admin listener at this address.
fn start(
    tollgate: &Path,
    scratch: &ScratchDir,
    admin: SocketAddr,
    rules: usize,
) -> Result<(ServerProcess, ServerAddress), String> {
    let others = (1..rules).map(|number| {
        format!("  - {{ name: other-{number}, match: {{ path: /other/{number} }}, key: '{{user}}', limits: [9/hour] }}\n")
    });
    let first = "rules:\n  - { name: api, key: '{user}', limits: [1000000/second] }\n".to_owned();
    let rules = std::iter::once(first).chain(others).collect::<String>();
    let rules = scratch.write("rules.yaml", &rules)?;
    let mut command = Command::new(tollgate);
    command.arg("serve").arg("--rules").arg(rules).args(["--http", "127.0.0.1:0"]);
    command.args(["--grpc", "none", "--resp", "none", "--admin", &admin.to_string()]);
    ServerProcess::start_announced(&mut command, scratch.path().join("server.log"), "http")
}

fn report(results: &RoundResults, style: TableStyle) -> Result<bool, String> {
    let columns = ["", "requests/s", "spread", "CPU us", "spread", "p99 us"];
    let mut speed = BenchTable::new("POST /v1/check", style, &columns);
    let figure = |name, of: fn(&tollgate_bench::rounds::ServerSample) -> f64| {
        results.figure(name, of).ok_or("nothing was measured")
    };
    for name in [CLOSED, OPEN] {
        let (rate, cpu) = (figure(name, |it| it.requests_per_s)?, figure(name, |it| it.server_us)?);
        let p99 = figure(name, |it| it.p99_us)?;
        speed.row([
            name.to_owned(),
            figures(rate.median),
            rate.spread(),
            figures(cpu.median),
            cpu.spread(),
            figures(p99.median),
        ]);
    }
    println!("{speed}");
    let columns = ["open page / no page", "to be", "median", "min to max", "result"];
    let mut ratios = BenchTable::new("Cost", style, &columns);
    let mut row = |name: &str, ratio: Option<Figure>, goal: Option<f64>| {
        let ratio = ratio.ok_or("nothing was measured")?;
        let is_met = goal.is_none_or(|most| ratio.median < most);
        let verdict = if is_met { "PASS" } else { "MISS" };
        ratios.row([
            name.to_owned(),
            goal.map_or("-".into(), |most| format!("< {most}")),
            format!("{:.3}", ratio.median),
            format!("{:.3} to {:.3}", ratio.min, ratio.max),
            goal.map_or("-", |_| verdict).into(),
        ]);
        Ok::<bool, String>(is_met)
    };
    let by_cpu = results.compare(OPEN, CLOSED, |open, closed| open.server_us / closed.server_us);
    let is_met = row("CPU per request", by_cpu, Some(GOAL))?;
    let by_rate =
        results.compare(OPEN, CLOSED, |open, closed| open.requests_per_s / closed.requests_per_s);
    row("requests/s", by_rate, None)?;
    println!("{ratios}");
    Ok(is_met)
}
