//! `cargo xtask bench redis`: decisions through Redis, next to the limiter that most people write.
//!
//! Read in this order: `contestants.rs` (who is measured), `naive.rs`, `load.rs` (how they are asked),
//! `measure.rs` (rounds), `report.rs` (tables and goals); then `servers.rs` (how Redis is started).

mod contestants;
mod load;
mod measure;
mod naive;
mod report;
mod servers;

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use tollgate_bench::machine;
use tollgate_bench::options::{self, Options, UsageError};
use tollgate_bench::table::Style;

use contestants::{Contestant, ROOM};
use load::{Keys, Load, Span};
use measure::Case;
use naive::Naive;
use servers::{CLIENT_CORE, Servers};

const HELP: &str = "\
Measures decisions through Redis, next to one EVALSHA for each request, in one run.

Usage: cargo xtask bench redis [OPTIONS]

Options:
  --quick     3 rounds of 0.4 s for each case instead of 5 of 1 s
  --rounds N  rounds; tables show medians
  --markdown  tables as Markdown
  --help      print this text
";

/// Keys, all alike.
const KEYS: Keys = Keys::Many(100_000);

fn main() -> ExitCode {
    options::run(HELP, run)
}

fn run(mut options: Options) -> Result<bool, UsageError> {
    let quick = options.flag("--quick");
    let (usual, warm_up_ms, duration_ms) = if quick { (3, 100, 400) } else { (5, 200, 1_000) };
    let rounds: usize = options.value("--rounds")?.unwrap_or(usual);
    let style = Style::from_flag(options.flag("--markdown"));
    options.finish()?;
    let span = Span {
        warm_up: Duration::from_millis(warm_up_ms),
        duration: Duration::from_millis(duration_ms),
    };
    println!("{}; load {} at the start", machine::describe(), machine::load());
    // Before any thread is made: all of them stay on that core.
    machine::pin(CLIENT_CORE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    let result = runtime.block_on(compete(rounds, span, style));
    Ok(result.unwrap_or_else(|problem| {
        eprintln!("{problem}");
        false
    }))
}

async fn compete(rounds: usize, span: Span, style: Style) -> Result<bool, String> {
    let servers = Rc::new(Servers::one());
    let naive = Rc::new(Contestant::Naive(Naive::connect(&servers.url()).await?, ROOM));
    let mut cases = Vec::new();
    for callers in [1, 16, 64, 256] {
        cases.push(Case {
            name: "naive".into(),
            contestants: vec![Rc::clone(&naive)],
            servers: Rc::clone(&servers),
            keys: KEYS,
            load: Load::Closed { callers },
        });
    }
    let peak = measure::rounds("strict", cases, rounds, span).await;
    println!("{}", report::table("Strict, 100,000 keys", &peak, style));
    let best = peak.iter().filter_map(|it| it.figure(|it| it.per_s)).map(|it| it.median);
    let half = best.fold(0.0, f64::max) / 2.0;
    let cases = vec![Case {
        name: "naive".into(),
        contestants: vec![naive],
        servers,
        keys: KEYS,
        load: Load::Open { per_s: half },
    }];
    let measured = measure::rounds("half load", cases, rounds, span).await;
    println!("{}", report::table("Half of naive's best", &measured, style));
    Ok(true)
}
