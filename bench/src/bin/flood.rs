//! `cargo xtask flood`: a flood of keys that are used once hits a bounded table.
//!
//! It checks four promises:
//!
//! * memory stays flat;
//! * a *victim* that is over its limit stays refused until its own refill time, to the microsecond,
//!   is admitted then, takes its unit, and stays refused again until the next one;
//! * an *attacker* who has used up its quota and then floods gets no more than its quota;
//! * strangers that find no room together get no more than the 64 overflow states allow.
//!
//! Time is explicit: on any machine the flood lasts as long as two refills of the victim.

use std::fmt::Write;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tollgate::store::memory::OVERFLOW_STATES;
use tollgate::{DecidedBy, Limit, Limiter, ManualClock, MemoryStore, Micros};
use tollgate_bench::machine;
use tollgate_bench::options::{self, BenchOptions, UsageError};
use tollgate_bench::stopwatch::Stopwatch;
use tollgate_bench::table::{BenchTable, TableStyle, figures, thousands};

const HELP: &str = "\
Floods a bounded limiter with keys that are used once, and checks memory and fairness.

Usage: cargo xtask flood [OPTIONS]

Options:
  --keys N     keys in the flood (default: 20 million)
  --cap N      capacity of the limiter in keys (default: 1 million)
  --threads N  flooding threads (default: 1)
  --markdown   tables as Markdown
  --help       print this text

There are two floods. *Sippers* take one unit of five, so their states can be evicted. *Gulpers* take all
five, so no state in the table can be evicted and new keys share the overflow states.
Exits with 1 if a promise is broken.

Examples:
  cargo xtask flood
  cargo xtask flood --keys 2000000 --cap 100000 --threads 2
";

/// Units of a bucket; one comes back every 12 seconds.
const BURST: u64 = 5;
const REFILL_US: u64 = 12_000_000;
/// Duration of a flood: the victim's first refill is in the middle, the second at the end.
const FLOOD_US: u64 = 2 * REFILL_US;
const BEGIN_US: u64 = 1_790_000_000_000_000;
/// Number of strangers between two probes of the attacker and the victim.
const PROBE_EVERY: u64 = 1_000;
/// Maximum growth of memory during a flood: the side tables for overflow and blocks, two 64ths of the main
/// table, because the system grants their pages when they are first touched; and the inaccuracy of the
/// system's own count.
fn growth_bytes_max(cap: u64) -> u64 {
    (1 << 20) + 2 * 40 * (cap / 64).max(4_096)
}

fn main() -> ExitCode {
    options::run(HELP, |mut options: BenchOptions| -> Result<bool, UsageError> {
        let plan = FloodPlan {
            keys: options.value("--keys")?.unwrap_or(20_000_000),
            cap: options.value("--cap")?.unwrap_or(1_000_000),
            threads: options.value("--threads")?.unwrap_or(1).max(1),
            style: TableStyle::from_flag(options.flag("--markdown")),
        };
        options.finish()?;
        println!("{}; load {}\n", machine::describe(), machine::load());
        let sippers = flood(&plan, "sippers", 1);
        let gulpers = flood(&plan, "gulpers", BURST);
        Ok(sippers && gulpers)
    })
}

struct FloodPlan {
    keys: u64,
    cap: u64,
    threads: u64,
    style: TableStyle,
}

/// The observations of all flooding threads.
#[derive(Default)]
struct FloodObservations {
    /// Units that the attacker got under its own key.
    attacker_units: AtomicU64,
    /// True if the victim was admitted too early.
    victim_freed: AtomicBool,
    /// Units of strangers that overflow states let pass.
    overflow_units: AtomicU64,
    refused: AtomicU64,
    processor_ns: AtomicU64,
    resident_most: AtomicU64,
    resident_first: AtomicU64,
}

/// Runs one flood and prints the results. Returns true if every promise held.
fn flood(plan: &FloodPlan, name: &str, cost: u64) -> bool {
    eprintln!("{name}: {} keys into a limiter for {}", thousands(plan.keys), thousands(plan.cap));
    let resident_before = machine::resident_bytes();
    let limiter = Limiter::new(MemoryStore::new(plan.cap as usize), ManualClock::new(Micros::ZERO));
    let limit = Limit::per_minute(60_000_000 / REFILL_US).burst(BURST).build().expect("5 a minute");
    let begin = limiter.at(Micros::new(BEGIN_US));
    let full = |key: &str| begin.take(&limit, key, BURST).allowed();
    assert!(full("victim") && full("attacker"), "both are fresh");
    let resident_made = machine::resident_bytes();

    let witness = FloodObservations::default();
    witness.attacker_units.store(BURST, Ordering::Relaxed);
    let half = plan.keys / 2;
    flood_with(plan, 0..half, cost, &limiter, &limit, &witness);
    // The victim takes its unit at once: with a unit left, its state may be evicted like any other.
    let victim = |us| limiter.at(Micros::new(BEGIN_US + us)).check(&limit, "victim").allowed();
    let on_time = !victim(REFILL_US - 1) && victim(REFILL_US) && !victim(REFILL_US);
    flood_with(plan, half..plan.keys, cost, &limiter, &limit, &witness);
    let on_time = on_time && !victim(FLOOD_US - 1) && victim(FLOOD_US);
    let stats = limiter.store().stats();
    let promises = promises(&witness, on_time, plan.cap);

    let mut table = BenchTable::new(
        format!("{name}: {cost} of {BURST} units each"),
        plan.style,
        &["", "measured"],
    );
    let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let ns = load(&witness.processor_ns) as f64 / plan.keys as f64;
    for (what, measured) in [
        ("keys in the flood", thousands(plan.keys)),
        ("slots of the table", thousands(stats.slots as u64)),
        ("keys in the table at the end", thousands(stats.keys as u64)),
        ("memory before the limiter", mib(resident_before)),
        ("memory with it", mib(resident_made)),
        ("memory early in the flood", mib(load(&witness.resident_first))),
        ("memory at most", mib(load(&witness.resident_most))),
        ("processor time per decision", format!("{} ns", figures(ns))),
        ("strangers refused", thousands(load(&witness.refused))),
        ("states evicted", thousands(stats.evicted as u64)),
        ("decided by an overflow state", thousands(stats.overflowed)),
        ("units that overflow states let pass", thousands(load(&witness.overflow_units))),
        ("units that the attacker got", thousands(load(&witness.attacker_units))),
    ] {
        table.row([what.into(), measured]);
    }
    for (promise, kept) in &promises {
        table.row([(*promise).into(), if *kept { "kept" } else { "BROKEN" }.into()]);
    }
    println!("{table}");
    promises.iter().all(|(_, kept)| *kept)
}

/// Runs a part of the flood on all threads.
fn flood_with(
    plan: &FloodPlan,
    keys: Range<u64>,
    cost: u64,
    limiter: &Limiter<MemoryStore, ManualClock>,
    limit: &Limit,
    witness: &FloodObservations,
) {
    std::thread::scope(|scope| {
        for thread in 0..plan.threads {
            let own = (keys.start + thread..keys.end).step_by(plan.threads as usize);
            scope.spawn(move || {
                machine::pin(thread as usize);
                flood_from(plan, own, cost, limiter, limit, witness);
            });
        }
    });
}

/// One thread's share of the flood, with a regular probe of the victim and the attacker.
fn flood_from(
    plan: &FloodPlan,
    keys: impl Iterator<Item = u64>,
    cost: u64,
    limiter: &Limiter<MemoryStore, ManualClock>,
    limit: &Limit,
    witness: &FloodObservations,
) {
    let mut key = String::with_capacity(32);
    let (mut refused, mut overflow_units, mut probing_ns) = (0, 0, 0);
    let watch = Stopwatch::start();
    for index in keys {
        let passed_us = u128::from(index) * u128::from(FLOOD_US) / u128::from(plan.keys);
        let now = Micros::new(BEGIN_US + passed_us as u64);
        key.clear();
        let _ = write!(key, "stranger:{index}");
        let decision = limiter.at(now).take(limit, key.as_str(), cost);
        refused += u64::from(!decision.allowed());
        if decision.allowed() && decision.decided_by() == DecidedBy::Overflow {
            overflow_units += cost;
        }
        if index % PROBE_EVERY < plan.threads {
            let probing = Stopwatch::start();
            probe(limiter, limit, now, witness);
            if index >= plan.keys / 20 {
                let resident = machine::resident_bytes();
                let first = &witness.resident_first;
                let _ = first.compare_exchange(0, resident, Ordering::Relaxed, Ordering::Relaxed);
                witness.resident_most.fetch_max(resident, Ordering::Relaxed);
            }
            probing_ns += probing.processor_ns();
        }
    }
    witness.processor_ns.fetch_add(watch.processor_ns() - probing_ns, Ordering::Relaxed);
    witness.refused.fetch_add(refused, Ordering::Relaxed);
    witness.overflow_units.fetch_add(overflow_units, Ordering::Relaxed);
}

fn probe(
    limiter: &Limiter<MemoryStore, ManualClock>,
    limit: &Limit,
    now: Micros,
    witness: &FloodObservations,
) {
    let got = limiter.at(now).check(limit, "attacker").granted();
    witness.attacker_units.fetch_add(got, Ordering::Relaxed);
    if limiter.at(now).check(limit, "victim").allowed() {
        witness.victim_freed.store(true, Ordering::Relaxed);
    }
}

fn promises(
    witness: &FloodObservations,
    victim_on_time: bool,
    cap: u64,
) -> [(&'static str, bool); 5] {
    let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
    let refilled = FLOOD_US / REFILL_US;
    [
        (
            "promise: memory is flat",
            load(&witness.resident_most) <= load(&witness.resident_first) + growth_bytes_max(cap),
        ),
        (
            "promise: the victim is refused until its refill",
            !witness.victim_freed.load(Ordering::Relaxed),
        ),
        ("promise: the victim is admitted then, to the microsecond", victim_on_time),
        (
            "promise: the attacker gets its quota and no more",
            load(&witness.attacker_units) <= BURST + refilled,
        ),
        (
            "promise: overflow states let pass what 64 keys may",
            load(&witness.overflow_units) <= OVERFLOW_STATES * (BURST + refilled),
        ),
    ]
}
