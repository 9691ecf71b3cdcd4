//! `cargo xtask bench redis`: decisions through Redis, next to the limiter that most people write.
//!
//! Read in this order: `sections.rs` (the measurements), `contestants.rs`, `naive.rs`, `redis_crate.rs`, `load.rs`,
//! `measure.rs` (rounds), `overshoot.rs`, `report.rs` (tables), `goals.rs`; then `servers.rs` (starting Redis).

mod contestants;
mod goals;
mod load;
mod measure;
mod naive;
mod overshoot;
mod redis_crate;
mod report;
mod sections;
mod servers;

use std::process::ExitCode;
use std::time::Duration;

use mimalloc::MiMalloc;
use tollgate_bench::machine;
use tollgate_bench::options::{self, BenchOptions, UsageError};
use tollgate_bench::rounds::SampleTiming;
use tollgate_bench::table::TableStyle;

use goals::RedisGoals;
use sections::{RedisBench, SECTIONS};
use servers::CLIENT_CORE;

/// The server's allocator, used for both sides.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const HELP: &str = "\
Measures decisions through Redis next to one EVALSHA for each request, in one run.

Usage: cargo xtask bench redis [OPTIONS]

Options:
  --quick       3 rounds of 0.4 s for each case instead of 5 of 1 s
  --rounds N    rounds; tables show medians
  --only NAME   only this section; the goals of others are not decided
                (strict, half, hot, overshoot, instances, cluster,
                transport)
  --markdown    tables as Markdown
  --help        print this text

What is measured:
  naive       a token bucket in a hash (HMGET, HMSET, EXPIRE), one EVALSHA for each request, over one
              MultiplexedConnection of the redis crate
  strict      a shared store over Redis that makes every decision there; 100,000 keys, all allowed
  half        both, and a PING that decides nothing, at half of naive's highest rate, at random
              instants in an open loop; latency counts from the instant at which a request was due.
              In slices of a tenth of a second, 10 for each round
  hot         one key for all callers: refused, leased (1 % of the capacity), and local_sync (100 ms)
  overshoot   three instances share a leased key with more demand than the limit: the units admitted
              above the limit, by the history checker
  instances   1, 2 and 3 instances, each with connections of its own, in one process
  cluster     1 and 3 nodes, all on one core
  transport   our script over a MultiplexedConnection of the redis crate, whose calls are encoded
              before the clock starts, and over our transport, which hashes keys, encodes calls and
              decodes states as usual; the same keys and limit

Redis runs on core 1, the client's one thread runs on core 0, and the cases take turns within each
round. `Redis us` and `client us` are processor time for each decision, `in script` is the part of it
that Redis counts as the script's, `calls` are script calls for each decision, and `failed` are
decisions that Redis did not make. Ratios are taken within a round: by decisions per second, and by
processor time of Redis, which is the bottleneck and does not depend on other work on the machine.
Exits with 1 if a goal is missed.

Examples:
  cargo xtask bench redis --quick
  cargo xtask bench redis --only hot
";

const ROUNDS_MAX: usize = 1_000;

fn main() -> ExitCode {
    options::run(HELP, run)
}

fn run(mut options: BenchOptions) -> Result<bool, UsageError> {
    let quick = options.flag("--quick");
    let (usual, warm_up_ms, duration_ms) = if quick { (3, 100, 400) } else { (5, 200, 1_000) };
    let rounds = options.value("--rounds")?.unwrap_or(usual);
    if !(1..=ROUNDS_MAX).contains(&rounds) {
        return Err(format!("--rounds {rounds}: write a number from 1 to {ROUNDS_MAX}"));
    }
    let only: Option<String> = options.value("--only")?;
    if let Some(name) = only.as_deref().filter(|name| !SECTIONS.contains(name)) {
        return Err(format!("--only {name}: write one of {}", SECTIONS.join(", ")));
    }
    let style = TableStyle::from_flag(options.flag("--markdown"));
    options.finish()?;
    let span = SampleTiming {
        warm_up: Duration::from_millis(warm_up_ms),
        duration: Duration::from_millis(duration_ms),
    };
    let result = measure_and_report(rounds, span, only.as_deref(), style);
    Ok(result.unwrap_or_else(|problem| {
        eprintln!("{problem}");
        false
    }))
}

/// Measures and prints. Returns true if all decided goals are met.
fn measure_and_report(
    rounds: usize,
    span: SampleTiming,
    only: Option<&str>,
    style: TableStyle,
) -> Result<bool, String> {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Err("this needs two cores: one for Redis, one for who asks".into());
    }
    println!("{}; load {} at the start\n", machine::describe(), machine::load());
    // Before any thread is started, so that all of them stay on that core.
    machine::pin(CLIENT_CORE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    let mut goals = RedisGoals::default();
    runtime.block_on(async {
        let bench = RedisBench { rounds, span, style };
        bench.run(only, &mut goals).await
    })?;
    let (table, all_met) = goals.table(style);
    println!("{table}");
    Ok(all_met)
}
