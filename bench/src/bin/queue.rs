//! `cargo xtask bench queue`: the time of a scheduling step of the fair queue, by the number of keys that wait, and the
//! memory of a waiter.

use std::collections::{HashMap, VecDeque};
use std::hint::black_box;
use std::process::ExitCode;

use tollgate::Micros;
use tollgate::queue::{FairQueue, FlowKey, QueueBounds, QueuedCost, Weight};
use tollgate_bench::machine;
use tollgate_bench::options::{self, BenchOptions, UsageError};
use tollgate_bench::random::BenchRandom;
use tollgate_bench::stopwatch::{Stopwatch, median};
use tollgate_bench::table::{BenchTable, TableStyle, figures, thousands};

const HELP: &str = "\
Measures a scheduling step of the fair queue: one waiter is served, and its key waits again.

Usage: cargo xtask bench queue [OPTIONS]

Options:
  --quick     fewer steps
  --markdown  tables as Markdown
  --help      print this text

The first table has nanoseconds of processor time for one step, the median of all rounds, while so many keys wait,
each with one waiter of 8 bytes that expires 2 s after it came. Costs are all 1, or random from 1 to 1,000.
Beside the fair queue: a plain first-in, first-out queue, and deficit round robin with a quantum of the largest cost.
Neither has deadlines or lets a waiter leave.

The second table has the memory that the fair queue takes for each waiter, as the process grows.

Examples:
  cargo xtask bench queue
  cargo xtask bench queue --quick --markdown
";

const KEYS: [u64; 3] = [10, 1_000, 100_000];
const COST_MAX: u64 = 1_000;
const BEGIN_US: u64 = 1_790_000_000_000_000;
const PATIENCE_US: u64 = 2_000_000;

fn main() -> ExitCode {
    options::run(HELP, run)
}

fn run(mut options: BenchOptions) -> Result<bool, UsageError> {
    let style = TableStyle::from_flag(options.flag("--markdown"));
    let (steps, rounds) = if options.flag("--quick") { (200_000, 3) } else { (2_000_000, 9) };
    options.finish()?;
    println!("{}, load {}\n", machine::describe(), machine::load());
    machine::pin(0);
    println!("{}", memory_table(style));
    println!("{}", step_table(style, steps, rounds));
    Ok(true)
}

fn step_table(style: TableStyle, steps: u64, rounds: usize) -> BenchTable {
    let columns = KEYS.map(|keys| format!("{} keys", thousands(keys)));
    let columns: Vec<&str> =
        ["queue, costs"].into_iter().chain(columns.iter().map(|it| &**it)).collect();
    let mut table =
        BenchTable::new("ns of a step: serve one waiter, its key waits again", style, &columns);
    for cost_max in [1, COST_MAX] {
        let costs = if cost_max == 1 { "all 1" } else { "1 to 1,000" };
        let mut row = |name: &str, measured: [f64; 3]| {
            table.row([format!("{name}, {costs}")].into_iter().chain(measured.map(figures)));
        };
        row("fair queue", KEYS.map(|keys| measure::<FairSteps>(keys, cost_max, steps, rounds)));
        row("round robin", KEYS.map(|keys| measure::<DeficitRing>(keys, cost_max, steps, rounds)));
        row(
            "first in, first out",
            KEYS.map(|keys| measure::<FifoSteps>(keys, cost_max, steps, rounds)),
        );
    }
    table
}

/// Nanoseconds of a step.
fn measure<Q: StepQueue>(keys: u64, cost_max: u64, steps: u64, rounds: usize) -> f64 {
    let (mut queue, mut random) = (Q::with_quantum(cost_max), BenchRandom::new(keys));
    let mut now = BEGIN_US;
    for key in 0..keys {
        now += 1;
        queue.push(key, 1 + random.below(cost_max), now + PATIENCE_US);
    }
    let mut round = || {
        let watch = Stopwatch::start();
        for _ in 0..steps {
            now += 10;
            let key = queue.pop();
            queue.push(black_box(key), 1 + random.below(cost_max), now + PATIENCE_US);
        }
        watch.processor_ns() as f64 / steps as f64
    };
    round();
    median(&(0..rounds).map(|_| round()).collect::<Vec<_>>())
}

fn memory_table(style: TableStyle) -> BenchTable {
    let columns = ["waiters", "keys", "bytes a waiter"];
    let mut table = BenchTable::new("Memory of the fair queue", style, &columns);
    const WAITERS: u64 = 400_000;
    for keys in [WAITERS, WAITERS / 10, 1] {
        let before = machine::resident_bytes();
        let mut queue = FairSteps::with_quantum(1);
        for waiter in 0..WAITERS {
            queue.push(waiter % keys, 1, BEGIN_US + waiter);
        }
        let grown = machine::resident_bytes().saturating_sub(before);
        table.row([WAITERS, keys, grown / WAITERS].map(thousands));
        black_box(&queue.0);
    }
    table
}

/// A queue whose step is measured.
trait StepQueue {
    /// An empty queue; `quantum` is the largest cost.
    fn with_quantum(quantum: u64) -> Self;
    fn push(&mut self, key: u64, units: u64, deadline_us: u64);
    fn pop(&mut self) -> u64;
}

struct FairSteps(FairQueue<u64>);

impl StepQueue for FairSteps {
    fn with_quantum(_: u64) -> FairSteps {
        FairSteps(FairQueue::new(QueueBounds { per_flow: 1_000_000, total: 1_000_000 }))
    }

    fn push(&mut self, key: u64, units: u64, deadline_us: u64) {
        let cost = QueuedCost { units, weight: Weight::ONE };
        let queued = self.0.push(FlowKey(key), cost, Micros::new(deadline_us), key);
        queued.expect("fewer wait than there is room for");
    }

    fn pop(&mut self) -> u64 {
        self.0.pop().expect("somebody waits")
    }
}

struct FifoSteps(VecDeque<(u64, u64, u64)>);

impl StepQueue for FifoSteps {
    fn with_quantum(_: u64) -> FifoSteps {
        FifoSteps(VecDeque::new())
    }

    fn push(&mut self, key: u64, units: u64, deadline_us: u64) {
        self.0.push_back((key, units, deadline_us));
    }

    fn pop(&mut self) -> u64 {
        self.0.pop_front().expect("somebody waits").0
    }
}

/// Deficit round robin: each visit of a flow adds the quantum to its deficit, until that pays for its head.
struct DeficitRing {
    quantum: u64,
    ring: VecDeque<u64>,
    flows: HashMap<u64, DeficitFlow>,
}

#[derive(Default)]
struct DeficitFlow {
    deficit: u64,
    costs: VecDeque<u64>,
}

impl StepQueue for DeficitRing {
    fn with_quantum(quantum: u64) -> DeficitRing {
        DeficitRing { quantum, ring: VecDeque::new(), flows: HashMap::new() }
    }

    fn push(&mut self, key: u64, units: u64, _: u64) {
        let flow = self.flows.entry(key).or_default();
        if flow.costs.is_empty() {
            self.ring.push_back(key);
        }
        flow.costs.push_back(units);
    }

    fn pop(&mut self) -> u64 {
        loop {
            let key = self.ring.pop_front().expect("somebody waits");
            let flow = self.flows.get_mut(&key).expect("a flow in the ring waits");
            let cost = *flow.costs.front().expect("a flow in the ring waits");
            if flow.deficit < cost {
                flow.deficit += self.quantum;
                self.ring.push_back(key);
                continue;
            }
            flow.deficit -= cost;
            flow.costs.pop_front();
            match flow.costs.is_empty() {
                true => _ = self.flows.remove(&key),
                false => self.ring.push_front(key),
            }
            return key;
        }
    }
}
