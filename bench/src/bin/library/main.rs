//! `cargo xtask bench library`: nanoseconds per check and bytes per key, next to governor and to
//! the floor, all in one run.
//!
//! Read in this order: `contestants.rs` (the limiters and how each is called), `floor.rs` (the bare table),
//! `measure.rs` (rounds and threads), `memory.rs`, `goals.rs`.

mod allocations;
mod contestants;
mod floor;
mod goals;
mod measure;
mod memory;

use std::process::ExitCode;
use std::time::Duration;

use tollgate_bench::keys::{KeyDistribution, KeyStream};
use tollgate_bench::machine;
use tollgate_bench::options::{self, BenchOptions, UsageError};
use tollgate_bench::table::{BenchTable, TableStyle, figures, ratio, thousands};

use contestants::{
    CallerBuffers, FLOOR, FLOOR_BATCH, GOVERNOR, LibraryContestant, LibraryQuota, TOLLGATE,
    TOLLGATE_BATCH,
};
use measure::{LibraryCase, LibraryEffort, LibraryResults, ThreadLayout};

const HELP: &str = "\
Measures the library next to governor 0.10 and to a floor, in one run, interleaved.

Usage: cargo xtask bench library [OPTIONS]

Options:
  --quick        3 rounds of short samples, up to 1 million keys, for a first look: about a minute
  --keys N       only this many keys: 1, 1000, 1000000 or 10000000
  --only NAME    only contestants whose name contains NAME, such as governor, floor, tollgate,
                 fixed_window; a ratio needs both of its sides
  --rounds N     rounds (default: 9); tables show medians
  --markdown     tables as Markdown
  --help         print this text

What is measured:
  governor keyed (DashMap)  governor's default keyed limiter, called with a reused String
  floor                     a flat array of (hash, atomic word) with a fast unkeyed hash: answers yes
                            or no, and does nothing else a limiter must do; 2 MiB pages
  floor batched             the same, 16 keys prefetched ahead, one clock read for 64
  tollgate token_bucket     Limiter::check, with the whole decision used
  tollgate batch            Limiter::decide_batch, 64 checks at a time

Keys are `user:NNNNNNN`, read from a packed stream; every key has a state before the clock starts.
Times are processor time, so that other work on the machine disturbs less; still, run it on a quiet
machine. Exits with 1 if a goal is missed.

Examples:
  cargo xtask bench library --quick
  cargo xtask bench library --keys 1000000 --only token_bucket
  cargo run --release -p tollgate-bench --bin log-cost    the cost of an exact log as N grows
";

/// Numbers of keys.
const COUNTS: [u64; 4] = [1, 1_000, 1_000_000, 10_000_000];

fn main() -> ExitCode {
    options::run(HELP, run)
}

struct LibraryPlan {
    counts: Vec<u64>,
    only: String,
    effort: LibraryEffort,
    style: TableStyle,
}

impl LibraryPlan {
    fn wants(&self, name: &str) -> bool {
        name.contains(&self.only)
    }
}

fn run(mut options: BenchOptions) -> Result<bool, UsageError> {
    let keys = options.value("--keys")?;
    if let Some(name) = options.value::<String>(memory::OPTION)? {
        memory::print_bytes_per_key(&name, keys.unwrap_or(1));
        return Ok(true);
    }
    let quick = options.flag("--quick");
    let counts = match keys {
        Some(keys) if COUNTS.contains(&keys) => vec![keys],
        Some(keys) => return Err(format!("--keys {keys}: write 1, 1000, 1000000 or 10000000")),
        None if quick => COUNTS[..3].to_vec(),
        None => COUNTS.to_vec(),
    };
    let rounds = options.value("--rounds")?.unwrap_or(if quick { 3 } else { 9 });
    let sample = Duration::from_millis(if quick { 60 } else { 200 });
    let plan = LibraryPlan {
        counts,
        only: options.value("--only")?.unwrap_or_default(),
        effort: LibraryEffort { rounds, sample },
        style: TableStyle::from_flag(options.flag("--markdown")),
    };
    options.finish()?;

    println!("{}; load {} at the start", machine::describe(), machine::load());
    println!("{rounds} rounds of {} ms samples; medians\n", sample.as_millis());
    let results = measure_all(&plan);
    let bytes = BytesPerKey::measure(&plan);
    print_tables(&plan, &results, &bytes);
    let (goals, all_met) = goals::table(&results, &bytes, plan.style);
    if !goals.is_empty() {
        println!("{goals}");
    }
    Ok(all_met)
}

fn measure_all(plan: &LibraryPlan) -> LibraryResults {
    let mut results = LibraryResults::default();
    for &keys in &plan.counts {
        for quota in [LibraryQuota::Allowed, LibraryQuota::Refused, LibraryQuota::Idle] {
            let cases = cases(keys, quota);
            if !cases.is_empty() {
                let contestants = contestants::all(keys, quota, |name| plan.wants(name));
                measure(keys, &contestants, &cases, plan.effort, &mut results);
            }
        }
        if [1_000, 1_000_000].contains(&keys) {
            let mut contestants = contestants::algorithms(keys);
            contestants.retain(|contestant| plan.wants(contestant.name()));
            let case = goals::one_thread(keys, LibraryQuota::Allowed);
            measure(keys, &contestants, &[case], plan.effort, &mut results);
        }
    }
    results
}

fn measure(
    keys: u64,
    contestants: &[Box<dyn LibraryContestant>],
    cases: &[LibraryCase],
    effort: LibraryEffort,
    results: &mut LibraryResults,
) {
    let each = KeyStream::each_once(0..keys);
    for contestant in contestants {
        eprintln!("{keys} keys into {}", contestant.name());
        contestant.fill(&each, &mut CallerBuffers::default());
    }
    drop(each);
    measure::rounds(contestants, cases, effort, results);
}

fn cases(keys: u64, quota: LibraryQuota) -> Vec<LibraryCase> {
    let mut cases = Vec::new();
    for shape in shapes(keys, quota) {
        for threads in [ThreadLayout::One, ThreadLayout::TwoShared] {
            cases.push(LibraryCase { keys, shape, quota, threads });
        }
    }
    if keys > 1 && quota == LibraryQuota::Allowed {
        for threads in [ThreadLayout::OneApart, ThreadLayout::TwoApart] {
            cases.push(LibraryCase { keys, shape: KeyDistribution::Uniform, quota, threads });
        }
    }
    cases
}

fn shapes(keys: u64, quota: LibraryQuota) -> Vec<KeyDistribution> {
    match (keys, quota) {
        (1_000_000, LibraryQuota::Idle) => vec![KeyDistribution::Uniform],
        (_, LibraryQuota::Idle) => vec![],
        (1, _) => vec![KeyDistribution::Uniform],
        _ => vec![KeyDistribution::Uniform, KeyDistribution::Zipf],
    }
}

/// Bytes per key, by number of keys and contestant.
#[derive(Default)]
struct BytesPerKey(Vec<(u64, &'static str, f64)>);

impl BytesPerKey {
    fn measure(plan: &LibraryPlan) -> BytesPerKey {
        let mut bytes = BytesPerKey::default();
        for &keys in plan.counts.iter().filter(|&&keys| keys >= 1_000_000) {
            for name in [GOVERNOR, FLOOR, TOLLGATE].into_iter().filter(|name| plan.wants(name)) {
                eprintln!("bytes per key: {keys} keys into {name}");
                bytes
                    .0
                    .extend(memory::measure_in_child(name, keys).map(|bytes| (keys, name, bytes)));
            }
        }
        bytes
    }

    fn get(&self, keys: u64, name: &str) -> Option<f64> {
        self.0
            .iter()
            .find(|(its_keys, its_name, _)| (*its_keys, *its_name) == (keys, name))
            .map(|it| it.2)
    }
}

fn print_tables(plan: &LibraryPlan, results: &LibraryResults, bytes: &BytesPerKey) {
    for quota in [LibraryQuota::Allowed, LibraryQuota::Refused, LibraryQuota::Idle] {
        for threads in [ThreadLayout::One, ThreadLayout::TwoShared] {
            print_speed(plan, results, quota, threads);
        }
    }
    print_scaling(plan, results);
    print_algorithms(plan, results);
    print_bytes(plan, results, bytes);
}

/// One row for each contestant, one column for each number of keys and shape; then the ratios.
fn print_speed(
    plan: &LibraryPlan,
    results: &LibraryResults,
    quota: LibraryQuota,
    threads: ThreadLayout,
) {
    let cases: Vec<LibraryCase> = plan
        .counts
        .iter()
        .flat_map(|&keys| cases(keys, quota))
        .filter(|case| case.threads == threads)
        .collect();
    if cases.is_empty() {
        return;
    }
    let title = match threads {
        ThreadLayout::One => format!("{}, 1 thread: ns per check (less is better)", quota.name()),
        _ => format!("{}, 2 threads on the same keys: million checks/s", quota.name()),
    };
    let names = cases.iter().map(|case| format!("{} {}", short(case.keys), case.shape.name()));
    let columns: Vec<String> = std::iter::once("limiter".to_owned()).chain(names).collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = BenchTable::new(title, plan.style, &columns);
    let value = |case: &LibraryCase, name| match threads {
        ThreadLayout::One => results.ns(*case, name),
        _ => results.rate(*case, name),
    };
    for name in [GOVERNOR, FLOOR, FLOOR_BATCH, TOLLGATE, TOLLGATE_BATCH] {
        let values: Vec<Option<f64>> = cases.iter().map(|case| value(case, name)).collect();
        if values.iter().any(Option::is_some) {
            let cells = values.into_iter().map(|value| value.map_or("-".into(), figures));
            table.row(std::iter::once(name.to_owned()).chain(cells));
        }
    }
    let faster = |case: &LibraryCase, ours, peer| {
        Some(results.rate(*case, ours)? / results.rate(*case, peer)?)
    };
    for (title, a, b) in [
        ("speed: tollgate / governor", TOLLGATE, GOVERNOR),
        ("speed: tollgate batch / governor", TOLLGATE_BATCH, GOVERNOR),
        ("cost: tollgate / floor", FLOOR, TOLLGATE),
        ("cost: tollgate batch / floor batched", FLOOR_BATCH, TOLLGATE_BATCH),
    ] {
        let cells: Vec<Option<f64>> = cases.iter().map(|case| faster(case, a, b)).collect();
        if cells.iter().any(Option::is_some) {
            table.row(std::iter::once(title.to_owned()).chain(cells.into_iter().map(ratio)));
        }
    }
    println!("{table}");
}

fn print_scaling(plan: &LibraryPlan, results: &LibraryResults) {
    let title = "allowed, uniform, each thread its own half of the keys: million checks/s";
    let columns = ["limiter", "keys", "1 thread", "2 threads", "scaling"];
    let mut table = BenchTable::new(title, plan.style, &columns);
    for &keys in plan.counts.iter().filter(|&&keys| keys > 1) {
        for name in [GOVERNOR, FLOOR, FLOOR_BATCH, TOLLGATE, TOLLGATE_BATCH] {
            let case =
                |threads| LibraryCase { threads, ..goals::one_thread(keys, LibraryQuota::Allowed) };
            let Some(one) = results.rate(case(ThreadLayout::OneApart), name) else { continue };
            let two = results.rate(case(ThreadLayout::TwoApart), name).map_or("-".into(), figures);
            let scaling = ratio(goals::scaling(results, keys, name));
            table.row([name.into(), short(keys), figures(one), two, scaling]);
        }
    }
    if !table.is_empty() {
        println!("{table}");
    }
}

fn print_algorithms(plan: &LibraryPlan, results: &LibraryResults) {
    let title = "tollgate's algorithms, uniform, allowed, 1 thread";
    let columns = ["algorithm", "keys", "ns per check", "to token_bucket"];
    let mut table = BenchTable::new(title, plan.style, &columns);
    for &keys in &plan.counts {
        for name in tollgate::Algorithm::ALL.map(tollgate::Algorithm::name) {
            let case = goals::one_thread(keys, LibraryQuota::Allowed);
            let Some(ns) = results.ns(case, name) else { continue };
            let relative = results.ns(case, "token_bucket").map(|bucket| ns / bucket);
            table.row([name.into(), short(keys), figures(ns), ratio(relative)]);
        }
    }
    if !table.is_empty() {
        println!("{table}");
    }
}

fn print_bytes(plan: &LibraryPlan, results: &LibraryResults, bytes: &BytesPerKey) {
    let columns = ["limiter", "bytes per key at 1M", "at 10M", "allocations per check"];
    let mut table = BenchTable::new("Memory", plan.style, &columns);
    for name in [GOVERNOR, FLOOR, FLOOR_BATCH, TOLLGATE, TOLLGATE_BATCH] {
        let Some(allocations) = results.allocations(name) else { continue };
        let at = |keys| bytes.get(keys, name).map_or("-".into(), |bytes| format!("{bytes:.1}"));
        table.row([name.into(), at(1_000_000), at(10_000_000), format!("{allocations}")]);
    }
    if !table.is_empty() {
        println!("{table}");
    }
}

/// Formats a number of keys as `1k` or `10M`.
fn short(keys: u64) -> String {
    match keys {
        keys if keys >= 1_000_000 => format!("{}M", keys / 1_000_000),
        keys if keys >= 1_000 => format!("{}k", keys / 1_000),
        keys => thousands(keys),
    }
}
