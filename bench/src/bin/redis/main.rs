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
const KEYS: usize = 100_000;

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
    let names = contestants::names(KEYS);
    let naive = Contestant::naive(&servers.url(), ROOM, &names).await?;
    let strict = Contestant::strict(&servers.url(), ROOM, &names)?;
    let both = [("naive", naive), ("strict", strict)];
    let case = |(name, who): &(&str, Rc<Contestant>), load| Case {
        name: (*name).to_owned(),
        contestants: vec![Rc::clone(who)],
        servers: Rc::clone(&servers),
        keys: Keys::Many(KEYS as u64),
        load,
    };
    let loads = [256].map(|callers| Load::Closed { callers });
    let cases = loads.iter().flat_map(|load| both.iter().map(|who| case(who, *load)));
    let peak = measure::rounds("strict", cases.collect(), rounds, span).await;
    println!("{}", report::table("Strict, 100,000 keys", &peak, style));
    let naive = peak.iter().filter(|it| it.name == "naive");
    let best = naive.filter_map(|it| it.figure(|it| it.per_s)).map(|it| it.median);
    let half = Load::Open { per_s: best.fold(0.0, f64::max) / 2.0 };
    let cases = both.iter().map(|who| case(who, half)).collect();
    let measured = measure::rounds("half load", cases, rounds, span).await;
    println!("{}", report::table("Half of naive's best", &measured, style));
    Ok(true)
}
