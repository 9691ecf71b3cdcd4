//! `cargo xtask bench adaptive`: the adaptive concurrency controller in front of modelled upstreams whose capacity halves and
//! returns, beside fixed bounds and other controllers. Deterministic: the same table in every run.

mod other_controllers;

use std::fmt;
use std::process::ExitCode;

use testkit::upstream_model::{
    ConcurrencyBound, FixedBound, ModelClients, ModelPhase, PhaseResult, ServiceTimes,
    UpstreamModel,
};
use tollgate::queue::AdaptiveConcurrency;
use tollgate_bench::options::{self, BenchOptions, UsageError};
use tollgate_bench::table::{BenchTable, TableStyle, figures};

use other_controllers::{AimdBound, GradientBound, VegasBound};

const HELP: &str = "\
Compares the adaptive concurrency controller with fixed bounds and other controllers, on modelled upstreams.

Usage: cargo xtask bench adaptive [OPTIONS]

Options:
  --markdown  tables as Markdown
  --help      print this text

An upstream has 16 servers of 50 ms each and a queue without end. In the second of three phases, it has
8 servers, or its servers take 100 ms. A phase lasts 50 s; its first 10 s are not measured.

Columns:
  goodput     requests answered per second, at any latency
  p99         latency that one in a hundred of them exceeds, in milliseconds
  of best     goodput and p99 as a share of the best fixed bound of the phase: the lowest p99 among the bounds
              that answer at least 99 % of the most that any bound answers
  limit       mean, lowest and highest limit

The tables are of one seed. The last lines repeat all models with 20 seeds, for the adaptive controller alone.

The other controllers are rewritten here from their descriptions, with default numbers and nothing tuned, and see
each latency on its own; concurrency-limits can also feed its limits with windows. The numbers of the adaptive controller were
chosen on models like these, so the comparison favours it.

Exits with 1 if the controller answers less than 90 % of the best fixed bound in a phase of a table, or if its p99 is
more than twice as high.
";

fn main() -> ExitCode {
    options::run(HELP, run)
}

fn run(mut options: BenchOptions) -> Result<bool, UsageError> {
    let style = TableStyle::from_flag(options.flag("--markdown"));
    options.finish()?;
    let (mut kept, mut sweep) = (true, SeedSweep::default());
    for (name, (servers, service_us)) in
        [("half of the servers", (8, 50_000)), ("servers half as fast", (16, 100_000))]
    {
        for times in [ServiceTimes::Constant, ServiceTimes::Exponential] {
            for (clients_name, clients) in CLIENTS {
                let phases = vec![phase(16, 50_000), phase(servers, service_us), phase(16, 50_000)];
                let model = UpstreamModel { phases, times, clients, seed: 1 };
                let title = format!("{name} in phase 2, {times:?} service times, {clients_name}");
                let best: Vec<_> = (0..3).map(|phase| model.best_fixed(phase)).collect();
                kept &= compare(&model, &best, title, style);
                sweep.add(&model, &best);
            }
        }
    }
    println!("{sweep}");
    let verdict = if kept { "kept" } else { "NOT KEPT: a promise is broken" };
    println!("goodput at least 90 % and p99 at most twice that of the best fixed bound: {verdict}");
    Ok(kept)
}

const CLIENTS: [(&str, ModelClients); 3] = [
    ("open loop at 1.5 times the capacity", ModelClients::Open { load: 1.5 }),
    ("open loop at 3 times the capacity", ModelClients::Open { load: 3.0 }),
    ("60 clients in a closed loop", ModelClients::Closed { clients: 60, retry_us: 20_000 }),
];

fn phase(servers: u32, service_us: u64) -> ModelPhase {
    ModelPhase { length_us: 50_000_000, settling_us: 10_000_000, servers, service_us }
}

/// Prints the table of one model. Returns true if the controller keeps its promise there.
fn compare(
    model: &UpstreamModel,
    best: &[(u32, PhaseResult)],
    title: String,
    style: TableStyle,
) -> bool {
    let columns =
        ["bound", "phase", "goodput", "of best", "p99 ms", "of best", "limit", "from", "to"];
    let mut table = BenchTable::new(title, style, &columns);
    for (number, (limit, result)) in best.iter().enumerate() {
        table.row(cells(&format!("best fixed: {limit}"), number, result, result));
    }
    let mut kept = true;
    for (name, bound) in &mut bounds() {
        for (number, result) in model.run(bound.as_mut()).iter().enumerate() {
            let best = &best[number].1;
            table.row(cells(name, number, result, best));
            if *name == ADAPTIVE {
                kept &= result.goodput >= 0.9 * best.goodput && result.p99_us <= 2 * best.p99_us;
            }
        }
    }
    println!("{table}");
    kept
}

/// Number of seeds of the last lines.
const SEEDS: u64 = 20;

/// The adaptive controller with other seeds, as shares of the best fixed bound of the first.
#[derive(Default)]
struct SeedSweep {
    goodputs: Vec<f64>,
    p99s: Vec<f64>,
}

impl SeedSweep {
    fn add(&mut self, model: &UpstreamModel, best: &[(u32, PhaseResult)]) {
        for seed in 1..=SEEDS {
            let model = UpstreamModel { seed, ..model.clone() };
            let results = model.run(&mut AdaptiveConcurrency::new(4, 1_000));
            for (result, (_, best)) in results.iter().zip(best) {
                self.goodputs.push(result.goodput / best.goodput);
                self.p99s.push(result.p99_us as f64 / best.p99_us as f64);
            }
        }
    }
}

impl fmt::Display for SeedSweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (phases, low) = (self.goodputs.len(), |share: &&f64| **share < 0.9);
        let below = self.goodputs.iter().filter(low).count();
        let worst = self.goodputs.iter().copied().fold(f64::INFINITY, f64::min);
        let mean = self.goodputs.iter().sum::<f64>() / phases as f64;
        let above = self.p99s.iter().filter(|share| **share > 2.0).count();
        let highest = self.p99s.iter().copied().fold(0.0, f64::max);
        writeln!(f, "{phases} phases with {SEEDS} seeds, as shares of the best fixed bound:")?;
        writeln!(f, "goodput: mean {mean:.3}, worst {worst:.3}, below 0.9 in {below}")?;
        write!(f, "p99: highest {highest:.2}, above 2 in {above}")
    }
}

const ADAPTIVE: &str = "adaptive";

fn bounds() -> Vec<(&'static str, Box<dyn ConcurrencyBound>)> {
    vec![
        (ADAPTIVE, Box::new(AdaptiveConcurrency::new(4, 1_000))),
        ("gradient2", Box::new(GradientBound::new())),
        ("vegas", Box::new(VegasBound::new())),
        ("aimd on 150 ms", Box::new(AimdBound::new(150_000))),
        ("fixed 10", Box::new(FixedBound(10))),
        ("fixed 20", Box::new(FixedBound(20))),
        ("fixed 40", Box::new(FixedBound(40))),
    ]
}

fn cells(name: &str, number: usize, result: &PhaseResult, best: &PhaseResult) -> Vec<String> {
    vec![
        name.to_owned(),
        (number + 1).to_string(),
        figures(result.goodput),
        format!("{:.2}", result.goodput / best.goodput),
        figures(result.p99_us as f64 / 1e3),
        format!("{:.2}", result.p99_us as f64 / best.p99_us.max(1) as f64),
        figures(result.limit_mean),
        result.limit_min.to_string(),
        result.limit_max.to_string(),
    ]
}
