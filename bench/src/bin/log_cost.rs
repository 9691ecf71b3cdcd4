//! The cost of an exact sliding window log as N grows: time per take, bytes per key, and the effect of the
//! bound of 1,024 entries.
//!
//! The traffic is the worst case for a log: exactly at the limit with distinct instants, so that every take adds
//! one entry and removes one.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use tollgate::algorithm::{self, State};
use tollgate::{Algorithm, Limit, Limiter, ManualClock, MemoryStore, Micros};
use tollgate_bench::machine;
use tollgate_bench::options::{self, BenchOptions, UsageError};
use tollgate_bench::stopwatch::{Stopwatch, median};
use tollgate_bench::table::{BenchTable, TableStyle, figures, thousands};

const HELP: &str = "\
Measures the cost of the exact sliding window log at N = 10 to 1 million, for traffic exactly at
the limit with distinct instants.

Usage: cargo run --release -p tollgate-bench --bin log-cost -- [OPTIONS]

Options:
  --markdown  tables as Markdown
  --help      print this text

Columns:
  entries         kept for one key; at most 1,024, above that close neighbours are merged
  core ns         one take by the pure functions of `tollgate::algorithm`
  limiter ns      the same through a Limiter, at explicit instants
  core bytes      size of the pure state
  limiter bytes   size of a key in the memory store: its slot and its block of entries
  admitted        share of what an unbounded log would admit: merging may refuse more, never less
";

/// Microseconds between two units.
const DISTANCE_US: u64 = 10;
const ROUNDS: usize = 5;

fn main() -> ExitCode {
    options::run(HELP, |mut options: BenchOptions| -> Result<bool, UsageError> {
        let style = TableStyle::from_flag(options.flag("--markdown"));
        options.finish()?;
        println!("{}; load {}\n", machine::describe(), machine::load());
        machine::pin(0);
        let columns =
            ["N", "entries", "core ns", "limiter ns", "core bytes", "limiter bytes", "admitted"];
        let mut table = BenchTable::new("sliding_window_log at the limit", style, &columns);
        for units in [10, 100, 1_000, 10_000, 100_000, 1_000_000] {
            eprintln!("N = {units}");
            table.row(row(units));
        }
        println!("{table}");
        Ok(true)
    })
}

fn row(units: u64) -> [String; 7] {
    let limit = Limit::per(units, Duration::from_micros(units * DISTANCE_US));
    let limit = limit.algorithm(Algorithm::SlidingWindowLog).build().expect("valid numbers");
    let (mut core, mut admitted) = PureLog::fill(&limit, units);
    let limiter = Limiter::new(MemoryStore::new(4_096), ManualClock::new(Micros::ZERO));
    let mut instant = 0;
    let mut take = |key: u64| {
        instant += DISTANCE_US;
        let now = Micros::new(instant);
        black_box(limiter.at(now).check(&limit, key.to_le_bytes().as_slice())).allowed()
    };
    (0..2 * units).for_each(|_| _ = take(0));
    let (mut core_ns, mut limiter_ns) = (Vec::new(), Vec::new());
    let takes = if units > 1_000 { 20_000 } else { 100_000 };
    for _ in 0..ROUNDS {
        let watch = Stopwatch::start();
        (0..takes).for_each(|_| admitted += u64::from(core.take(&limit)));
        core_ns.push(watch.processor_ns() as f64 / takes as f64);
        let watch = Stopwatch::start();
        (0..takes).for_each(|_| _ = take(0));
        limiter_ns.push(watch.processor_ns() as f64 / takes as f64);
    }
    let asked = core.asked;
    [
        thousands(units),
        thousands(core.entries() as u64),
        figures(median(&core_ns)),
        figures(median(&limiter_ns)),
        thousands(core.bytes() as u64),
        thousands(limiter_bytes(&limit, units)),
        format!("{:.2} %", admitted as f64 * 100.0 / asked as f64),
    ]
}

/// A log that is decided by the pure functions.
struct PureLog {
    state: State,
    instant: u64,
    asked: u64,
}

impl PureLog {
    /// Fills a log with two periods of traffic at the limit. Also returns the units admitted.
    fn fill(limit: &Limit, units: u64) -> (PureLog, u64) {
        let mut core = PureLog { state: State::fresh(limit, Micros::ZERO), instant: 0, asked: 0 };
        let admitted = (0..2 * units).map(|_| u64::from(core.take(limit))).sum();
        (core, admitted)
    }

    fn take(&mut self, limit: &Limit) -> bool {
        self.instant += DISTANCE_US;
        self.asked += 1;
        black_box(algorithm::take(limit, &mut self.state, 1, Micros::new(self.instant))).allowed
    }

    fn entries(&self) -> usize {
        let State::Log(log) = &self.state else { unreachable!("the limit is a log") };
        log.entries.len()
    }

    fn bytes(&self) -> usize {
        let State::Log(log) = &self.state else { unreachable!("the limit is a log") };
        let entry = size_of::<algorithm::sliding_window_log::SlidingLogEntry>();
        size_of::<State>() + log.entries.capacity() * entry
    }
}

/// Bytes per key when many keys have full logs that grew at the same time. A slot takes 39 bytes. Blocks are
/// allocated from pages of 256 KiB, so a single key would show little.
fn limiter_bytes(limit: &Limit, units: u64) -> u64 {
    let keys = if units > 100 { 2_000 } else { 16_000 };
    let limiter = Limiter::new(MemoryStore::new(keys), ManualClock::new(Micros::ZERO));
    for unit in 0..units.min(1_100) {
        let now = limiter.at(Micros::new(unit * DISTANCE_US));
        for key in 0..keys {
            let _ = now.force(limit, key.to_le_bytes().as_slice(), 1);
        }
    }
    39 + limiter.store().stats().log_bytes as u64 / keys as u64
}
