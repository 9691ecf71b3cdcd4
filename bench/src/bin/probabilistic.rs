//! `cargo xtask probabilistic`: what limits cost that several servers keep without talking to each
//! other: routing each caller to one server, dividing the limit, and admitting by chance.
//! Deterministic: the same table in every run.

use std::collections::VecDeque;
use std::process::ExitCode;

use tollgate::algorithm::{self, State};
use tollgate::{Algorithm, Limit, Micros};
use tollgate_bench::options::{self, Options, UsageError};
use tollgate_bench::random::Random;
use tollgate_bench::table::{Style, Table};

const HELP: &str = "\
Prints how far limits stray that several servers keep without a shared store.

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
  random                      every request goes to any server
  sticky                      all of them to one, as with a connection that is kept open

Columns:
  passed      of what the exact limit lets pass
  most / N    the most in any trailing minute, of the limit; above 1 is over the limit
  within 5 %  the minutes in which what passed is at most 5 % off what the exact limit lets pass
  wrongly no  refused although less than the limit had passed in the trailing minute, per request

Leaves with 1 if one server for the caller is ever off.

Examples:
  cargo xtask probabilistic
  cargo xtask probabilistic --markdown
";

const UNITS: u64 = 100;
const PERIOD_US: u64 = 60_000_000;
/// How many periods the traffic lasts.
const PERIODS: u64 = 500;
const BEGIN_US: u64 = 1_000_000 * PERIOD_US;

fn main() -> ExitCode {
    options::run(HELP, run)
}

fn run(mut options: Options) -> Result<bool, UsageError> {
    let style = Style::from_flag(options.flag("--markdown"));
    options.finish()?;
    let mut exact = true;
    for servers in [3, 10] {
        let title = format!("{servers} servers, {UNITS} a minute");
        let columns =
            ["servers", "balancer", "load", "passed", "most / N", "within 5 %", "wrongly no"];
        let mut table = Table::new(title, style, &columns);
        for (way, balancer) in WAYS {
            for load in [0.8, 1.2, 5.0] {
                let (course, cells) = row(way, balancer, servers, load);
                exact &= !matches!(way, Way::Routed) || course.most <= UNITS;
                table.row(cells);
            }
        }
        println!("{table}");
    }
    Ok(exact)
}

/// How the servers keep the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Routed,
    Divided,
    ByChance,
}

/// How requests of one caller come to the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Balancer {
    Random,
    Sticky,
}

const WAYS: [(Way, Balancer); 5] = [
    (Way::Routed, Balancer::Sticky),
    (Way::Divided, Balancer::Random),
    (Way::Divided, Balancer::Sticky),
    (Way::ByChance, Balancer::Random),
    (Way::ByChance, Balancer::Sticky),
];

/// One row: the same traffic for every way.
fn row(way: Way, balancer: Balancer, servers: u64, load: f64) -> (Course, [String; 7]) {
    let traffic = poisson(load, &mut Random::new((load * 10.0) as u64));
    let exact = Course::run(&traffic, Balancer::Sticky, vec![Server::with_limit(UNITS)]);
    let fleet: Vec<Server> = match way {
        Way::Routed => vec![Server::with_limit(UNITS)],
        // Rounded up: a share of 33.3 that lets 33 pass would lose one in a hundred for ever.
        Way::Divided => (0..servers).map(|_| Server::with_limit(UNITS.div_ceil(servers))).collect(),
        Way::ByChance => (0..servers).map(|index| Server::by_chance(servers, index)).collect(),
    };
    let course = Course::run(&traffic, balancer, fleet);
    let cells = course.cells(way, balancer, load, &exact);
    (course, cells)
}

fn poisson(load: f64, random: &mut Random) -> Vec<u64> {
    let mean = PERIOD_US as f64 / (UNITS as f64 * load);
    let mut after = 0.0;
    let next = || {
        after += random.exponential(mean);
        Some(BEGIN_US + after as u64)
    };
    let end = BEGIN_US + PERIODS * PERIOD_US;
    std::iter::from_fn(next).take_while(|at_us| *at_us < end).collect()
}

/// What one server knows of the caller.
enum Server {
    Exact(Box<(Limit, State)>),
    ByChance {
        servers: u64,
        /// When requests came in the last period. Bound: what the traffic has in one.
        arrivals: VecDeque<u64>,
        random: Random,
    },
}

impl Server {
    fn with_limit(units: u64) -> Server {
        let limit = Limit::per_minute(units).algorithm(Algorithm::SlidingWindowLog);
        let limit = limit.build().expect("valid numbers");
        let state = State::fresh(&limit, Micros::new(BEGIN_US));
        Server::Exact(Box::new((limit, state)))
    }

    fn by_chance(servers: u64, index: u64) -> Server {
        Server::ByChance { servers, arrivals: VecDeque::new(), random: Random::new(1_000 + index) }
    }

    fn admits(&mut self, at_us: u64) -> bool {
        match self {
            Server::Exact(exact) => {
                let (limit, state) = &mut **exact;
                algorithm::take(limit, state, 1, Micros::new(at_us)).allowed
            }
            Server::ByChance { servers, arrivals, random } => {
                forget(arrivals, at_us);
                arrivals.push_back(at_us);
                let estimate = arrivals.len() as u64 * *servers;
                estimate <= UNITS || random.unit() < UNITS as f64 / estimate as f64
            }
        }
    }
}

/// What is one period old no longer counts.
fn forget(instants: &mut VecDeque<u64>, now_us: u64) {
    while instants.front().is_some_and(|&first| first + PERIOD_US <= now_us) {
        instants.pop_front();
    }
}

/// What the servers together made of the traffic.
struct Course {
    requests: u64,
    passed: u64,
    /// The most in any trailing period.
    most: u64,
    wrongly_refused: u64,
    /// What passed in each period.
    periods: Vec<u64>,
}

impl Course {
    fn run(traffic: &[u64], balancer: Balancer, mut servers: Vec<Server>) -> Course {
        let mut course = Course {
            requests: traffic.len() as u64,
            passed: 0,
            most: 0,
            wrongly_refused: 0,
            periods: vec![0; PERIODS as usize],
        };
        let mut random = Random::new(7);
        // What passed in the trailing period. Bound: the traffic of one.
        let mut trailing = VecDeque::new();
        for &at_us in traffic {
            forget(&mut trailing, at_us);
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

    fn cells(&self, way: Way, balancer: Balancer, load: f64, exact: &Course) -> [String; 7] {
        let percent =
            |part: u64, whole: u64| format!("{:.1} %", part as f64 * 100.0 / whole as f64);
        let near = |(own, exact): &(&u64, &u64)| own.abs_diff(**exact) * 20 <= **exact;
        let pairs = self.periods.iter().zip(&exact.periods);
        [
            match way {
                Way::Routed => "one server for the caller".into(),
                Way::Divided => "limit / servers".into(),
                Way::ByChance => "by chance".into(),
            },
            match (way, balancer) {
                (Way::Routed, _) => "by caller".into(),
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
