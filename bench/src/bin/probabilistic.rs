//! `cargo xtask probabilistic`: the error of limits that several servers enforce without communication, by
//! routing each caller to one server, dividing the limit, or admitting with a probability.
//! Deterministic: the same table in every run.

use std::collections::VecDeque;
use std::process::ExitCode;

use tollgate::algorithm::{self, State};
use tollgate::{Algorithm, Limit, Micros};
use tollgate_bench::options::{self, BenchOptions, UsageError};
use tollgate_bench::random::BenchRandom;
use tollgate_bench::table::{BenchTable, TableStyle};

const HELP: &str = "\
Prints the error of limits that several servers enforce without a shared store.

Usage: cargo xtask probabilistic [OPTIONS]

Options:
  --markdown  tables as Markdown
  --help      print this text

One caller, 100 requests a minute allowed, 500 minutes of random (Poisson) traffic.

Servers:
  one server for the caller   consistent-hash routing: one server sees all of the caller's requests
  limit / servers             each server allows its share of the limit
  by chance                   each server estimates the caller's rate, from the requests of the last
                              minute that reached it times the number of servers, and admits with
                              the probability limit / estimate

Balancer:
  random                      every request goes to a random server
  sticky                      all requests go to one server, as with a connection that is kept open

Columns:
  passed      requests admitted, as a share of those that the exact limit admits
  most / N    the most requests in any trailing minute, divided by the limit; above 1 is over the limit
  within 5 %  share of minutes in which the number admitted is within 5 % of the exact limit's
  wrongly no  refused although the trailing minute had room, per request

Exits with 1 if \"one server for the caller\" is ever inexact.

Examples:
  cargo xtask probabilistic
  cargo xtask probabilistic --markdown
";

const UNITS: u64 = 100;
const PERIOD_US: u64 = 60_000_000;
/// Length of the traffic in periods.
const PERIODS: u64 = 500;
const BEGIN_US: u64 = 1_000_000 * PERIOD_US;

fn main() -> ExitCode {
    options::run(HELP, run)
}

fn run(mut options: BenchOptions) -> Result<bool, UsageError> {
    let style = TableStyle::from_flag(options.flag("--markdown"));
    options.finish()?;
    let mut exact = true;
    for servers in [3, 10] {
        let title = format!("{servers} servers, {UNITS} a minute");
        let columns =
            ["servers", "balancer", "load", "passed", "most / N", "within 5 %", "wrongly no"];
        let mut table = BenchTable::new(title, style, &columns);
        for (way, balancer) in STRATEGIES {
            for load in [0.8, 1.2, 5.0] {
                let (course, cells) = row(way, balancer, servers, load);
                exact &= !matches!(way, FleetStrategy::Routed) || course.most <= UNITS;
                table.row(cells);
            }
        }
        println!("{table}");
    }
    Ok(exact)
}

/// The method by which the servers enforce the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FleetStrategy {
    Routed,
    Divided,
    ByChance,
}

/// The distribution of one caller's requests over the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Balancer {
    Random,
    Sticky,
}

const STRATEGIES: [(FleetStrategy, Balancer); 5] = [
    (FleetStrategy::Routed, Balancer::Sticky),
    (FleetStrategy::Divided, Balancer::Random),
    (FleetStrategy::Divided, Balancer::Sticky),
    (FleetStrategy::ByChance, Balancer::Random),
    (FleetStrategy::ByChance, Balancer::Sticky),
];

/// One row of the table. The traffic is the same for every strategy.
fn row(
    way: FleetStrategy,
    balancer: Balancer,
    servers: u64,
    load: f64,
) -> (FleetResult, [String; 7]) {
    let traffic = poisson(load, &mut BenchRandom::new((load * 10.0) as u64));
    let exact = FleetResult::run(&traffic, Balancer::Sticky, vec![FleetServer::with_limit(UNITS)]);
    let fleet: Vec<FleetServer> = match way {
        FleetStrategy::Routed => vec![FleetServer::with_limit(UNITS)],
        // Rounded up: a share of 33.3 that admits 33 would always lose one request in a hundred.
        FleetStrategy::Divided => {
            (0..servers).map(|_| FleetServer::with_limit(UNITS.div_ceil(servers))).collect()
        }
        FleetStrategy::ByChance => {
            (0..servers).map(|index| FleetServer::by_chance(servers, index)).collect()
        }
    };
    let course = FleetResult::run(&traffic, balancer, fleet);
    let cells = course.cells(way, balancer, load, &exact);
    (course, cells)
}

fn poisson(load: f64, random: &mut BenchRandom) -> Vec<u64> {
    let mean = PERIOD_US as f64 / (UNITS as f64 * load);
    let mut after = 0.0;
    let next = || {
        after += random.exponential(mean);
        Some(BEGIN_US + after as u64)
    };
    let end = BEGIN_US + PERIODS * PERIOD_US;
    std::iter::from_fn(next).take_while(|at_us| *at_us < end).collect()
}

/// One server's state of the caller.
enum FleetServer {
    Exact(Box<(Limit, State)>),
    ByChance {
        servers: u64,
        /// Instants of the requests of the last period. Bound: the traffic of one period.
        arrivals: VecDeque<u64>,
        random: BenchRandom,
    },
}

impl FleetServer {
    fn with_limit(units: u64) -> FleetServer {
        let limit = Limit::per_minute(units).algorithm(Algorithm::SlidingWindowLog);
        let limit = limit.build().expect("valid numbers");
        let state = State::fresh(&limit, Micros::new(BEGIN_US));
        FleetServer::Exact(Box::new((limit, state)))
    }

    fn by_chance(servers: u64, index: u64) -> FleetServer {
        FleetServer::ByChance {
            servers,
            arrivals: VecDeque::new(),
            random: BenchRandom::new(1_000 + index),
        }
    }

    fn admits(&mut self, at_us: u64) -> bool {
        match self {
            FleetServer::Exact(exact) => {
                let (limit, state) = &mut **exact;
                algorithm::take(limit, state, 1, Micros::new(at_us)).allowed
            }
            FleetServer::ByChance { servers, arrivals, random } => {
                drop_expired(arrivals, at_us);
                arrivals.push_back(at_us);
                let estimate = arrivals.len() as u64 * *servers;
                estimate <= UNITS || random.unit() < UNITS as f64 / estimate as f64
            }
        }
    }
}

/// Drops the instants that are at least one period old.
fn drop_expired(instants: &mut VecDeque<u64>, now_us: u64) {
    while instants.front().is_some_and(|&first| first + PERIOD_US <= now_us) {
        instants.pop_front();
    }
}

/// The decisions of all servers on the traffic.
struct FleetResult {
    requests: u64,
    passed: u64,
    /// The most requests admitted in any trailing period.
    most: u64,
    wrongly_refused: u64,
    /// The requests admitted in each period.
    periods: Vec<u64>,
}

impl FleetResult {
    fn run(traffic: &[u64], balancer: Balancer, mut servers: Vec<FleetServer>) -> FleetResult {
        let mut course = FleetResult {
            requests: traffic.len() as u64,
            passed: 0,
            most: 0,
            wrongly_refused: 0,
            periods: vec![0; PERIODS as usize],
        };
        let mut random = BenchRandom::new(7);
        // The requests admitted in the trailing period. Bound: the traffic of one period.
        let mut trailing = VecDeque::new();
        for &at_us in traffic {
            drop_expired(&mut trailing, at_us);
            let had_room = (trailing.len() as u64) < UNITS;
            let index = match balancer {
                Balancer::Random => random.below(servers.len() as u64) as usize,
                Balancer::Sticky => 0,
            };
            if servers[index].admits(at_us) {
                course.passed += 1;
                course.periods[((at_us - BEGIN_US) / PERIOD_US) as usize] += 1;
                trailing.push_back(at_us);
                course.most = course.most.max(trailing.len() as u64);
            } else {
                course.wrongly_refused += u64::from(had_room);
            }
        }
        course
    }

    fn cells(
        &self,
        way: FleetStrategy,
        balancer: Balancer,
        load: f64,
        exact: &FleetResult,
    ) -> [String; 7] {
        let percent =
            |part: u64, whole: u64| format!("{:.1} %", part as f64 * 100.0 / whole as f64);
        let near = |(own, exact): &(&u64, &u64)| own.abs_diff(**exact) * 20 <= **exact;
        let pairs = self.periods.iter().zip(&exact.periods);
        [
            match way {
                FleetStrategy::Routed => "one server for the caller".into(),
                FleetStrategy::Divided => "limit / servers".into(),
                FleetStrategy::ByChance => "by chance".into(),
            },
            match (way, balancer) {
                (FleetStrategy::Routed, _) => "by caller".into(),
                (_, Balancer::Random) => "random".into(),
                (_, Balancer::Sticky) => "sticky".into(),
            },
            format!("{load:.1} N"),
            percent(self.passed, exact.passed),
            format!("{:.2}", self.most as f64 / UNITS as f64),
            percent(pairs.filter(near).count() as u64, PERIODS),
            percent(self.wrongly_refused, self.requests),
        ]
    }
}
