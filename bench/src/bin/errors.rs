//! `cargo xtask errors`: the error of the sliding window counter and its sub-buckets against the exact
//! log, per shape of traffic. Deterministic: the same table in every run.

use std::collections::VecDeque;
use std::process::ExitCode;

use tollgate::algorithm::{self, State};
use tollgate::{Algorithm, Limit, Micros};
use tollgate_bench::options::{self, BenchOptions, UsageError};
use tollgate_bench::random::BenchRandom;
use tollgate_bench::table::{BenchTable, TableStyle, thousands};

const HELP: &str = "\
Prints the error of the sliding window counter against the exact log, per shape of traffic.

Usage: cargo xtask errors [OPTIONS]

Options:
  --markdown  tables as Markdown
  --help      print this text

Columns:
  admitted        units admitted, as a share of those that the exact log admits for the same traffic
  most / N        the most units admitted in any trailing period, divided by N; above 1 is over the limit
  wrongly yes     admitted although the trailing period was full, per decision
  wrongly no      refused although there was room in the trailing period, per decision

Decisions are judged by the limiter's own history: the units that it admitted in the trailing period.
Exits with 1 if `buckets(k)` ever exceeds N in a trailing period.

Examples:
  cargo xtask errors
  cargo xtask errors --markdown
";

const PERIOD_US: u64 = 60_000_000;
/// Length of the traffic in periods.
const PERIODS: u64 = 200;
/// Start of the traffic: the start of a window, long after the epoch.
const BEGIN_US: u64 = 1_000_000 * PERIOD_US;

fn main() -> ExitCode {
    options::run(HELP, run)
}

fn run(mut options: BenchOptions) -> Result<bool, UsageError> {
    let style = TableStyle::from_flag(options.flag("--markdown"));
    options.finish()?;
    let mut most_of_buckets: f64 = 0.0;
    for units in [10, 100, 1_000] {
        let title = format!("{units} per minute, {PERIODS} minutes of traffic");
        let columns = [
            "traffic",
            "counting",
            "decisions",
            "admitted",
            "most / N",
            "wrongly yes",
            "wrongly no",
        ];
        let mut table = BenchTable::new(title, style, &columns);
        for shape in SHAPES {
            let traffic = (shape.traffic)(units, &mut BenchRandom::new(units));
            let exact = LimiterErrors::run(&limit(units, CountingMethod::Log), &traffic);
            for counting in COUNTING_METHODS {
                let course = LimiterErrors::run(&limit(units, counting), &traffic);
                let most = course.most as f64 / units as f64;
                if matches!(counting, CountingMethod::Buckets(_)) {
                    most_of_buckets = most_of_buckets.max(most);
                }
                table.row(course.cells(shape.name, counting, units, &exact));
            }
        }
        println!("{table}");
    }
    let kept = most_of_buckets <= 1.0;
    let verdict = if kept { "never above N" } else { "ABOVE N: a promise is broken" };
    println!("buckets(k), the most in any trailing period: {most_of_buckets:.3} N, {verdict}");
    Ok(kept)
}

/// The method by which a limiter counts the trailing period.
#[derive(Clone, Copy)]
enum CountingMethod {
    Log,
    Estimate,
    Buckets(u32),
}

const COUNTING_METHODS: [CountingMethod; 4] = [
    CountingMethod::Estimate,
    CountingMethod::Buckets(8),
    CountingMethod::Buckets(16),
    CountingMethod::Buckets(60),
];

fn limit(units: u64, counting: CountingMethod) -> Limit {
    let limit = Limit::per_minute(units);
    let limit = match counting {
        CountingMethod::Log => limit.algorithm(Algorithm::SlidingWindowLog),
        CountingMethod::Estimate => limit.algorithm(Algorithm::SlidingWindowCounter),
        CountingMethod::Buckets(k) => limit.buckets(k),
    };
    limit.build().expect("valid numbers")
}

/// Requests for one unit each at one instant: a fixed number, or until one is refused.
#[derive(Clone, Copy)]
struct TrafficArrival {
    at_us: u64,
    tries: ArrivalTries,
}

#[derive(Clone, Copy)]
enum ArrivalTries {
    Times(u64),
    UntilRefused,
}

/// A kind of traffic.
struct TrafficShape {
    name: &'static str,
    traffic: fn(u64, &mut BenchRandom) -> Vec<TrafficArrival>,
}

const SHAPES: [TrafficShape; 7] = [
    TrafficShape { name: "steady, at the limit", traffic: |units, _| steady(units, 1.0) },
    TrafficShape { name: "steady, 1.5 x", traffic: |units, _| steady(units, 1.5) },
    TrafficShape {
        name: "Poisson, at the limit",
        traffic: |units, random| poisson(units, 1.0, random),
    },
    TrafficShape { name: "Poisson, 1.5 x", traffic: |units, random| poisson(units, 1.5, random) },
    TrafficShape { name: "bursts of N/2", traffic: bursts },
    TrafficShape { name: "on and off", traffic: on_and_off },
    TrafficShape { name: "boundary adversary", traffic: adversary },
];

fn once(at_us: u64) -> TrafficArrival {
    TrafficArrival { at_us, tries: ArrivalTries::Times(1) }
}

fn steady(units: u64, load: f64) -> Vec<TrafficArrival> {
    let count = (units * PERIODS) as f64 * load;
    let distance = PERIOD_US as f64 / (units as f64 * load);
    (0..count as u64).map(|index| once(BEGIN_US + (index as f64 * distance) as u64)).collect()
}

fn poisson(units: u64, load: f64, random: &mut BenchRandom) -> Vec<TrafficArrival> {
    let mean = PERIOD_US as f64 / (units as f64 * load);
    let mut after = 0.0;
    let next = || {
        after += random.exponential(mean);
        Some(once(BEGIN_US + after as u64))
    };
    let end = BEGIN_US + PERIODS * PERIOD_US;
    std::iter::from_fn(next).take_while(|arrival| arrival.at_us < end).collect()
}

/// Half of N at one instant, three times a period on average.
fn bursts(units: u64, random: &mut BenchRandom) -> Vec<TrafficArrival> {
    let mut arrivals = poisson(3, 1.0, random);
    arrivals.iter_mut().for_each(|arrival| arrival.tries = ArrivalTries::Times(units / 2));
    arrivals
}

/// Twice the limit for 0.7 periods, silence for 0.6: never in step with the windows.
fn on_and_off(units: u64, random: &mut BenchRandom) -> Vec<TrafficArrival> {
    let is_on = |at_us: u64| (at_us - BEGIN_US) % (PERIOD_US * 13 / 10) < PERIOD_US * 7 / 10;
    poisson(units, 2.0, random).into_iter().filter(|arrival| is_on(arrival.at_us)).collect()
}

/// All of N at the last instant of a window, then as much as passes, every thousandth of a period
/// for two periods; again after two more periods of silence.
fn adversary(units: u64, _: &mut BenchRandom) -> Vec<TrafficArrival> {
    let step = PERIOD_US / 1_000;
    let attack = |from: u64| {
        let first =
            TrafficArrival { at_us: from + PERIOD_US - 1, tries: ArrivalTries::Times(units) };
        let polls = (0..=2_000).map(move |poll| TrafficArrival {
            at_us: from + PERIOD_US + poll * step,
            tries: ArrivalTries::UntilRefused,
        });
        std::iter::once(first).chain(polls)
    };
    (0..PERIODS / 5).flat_map(|turn| attack(BEGIN_US + turn * 5 * PERIOD_US)).collect()
}

/// The decisions of one limiter on the traffic, and its errors.
#[derive(Default)]
struct LimiterErrors {
    decisions: u64,
    admitted: u64,
    /// The most units in any trailing period.
    most: u64,
    wrongly_admitted: u64,
    wrongly_refused: u64,
    /// Instants of units admitted in the trailing period. Bound: 2 N.
    trailing: VecDeque<u64>,
}

impl LimiterErrors {
    fn run(limit: &Limit, traffic: &[TrafficArrival]) -> LimiterErrors {
        let mut course = LimiterErrors::default();
        let mut state = State::fresh(limit, Micros::new(BEGIN_US));
        for arrival in traffic {
            let mut tries = 0;
            loop {
                match arrival.tries {
                    ArrivalTries::Times(times) if tries == times => break,
                    _ => tries += 1,
                }
                let allowed = course.take(limit, &mut state, arrival.at_us);
                if !allowed && matches!(arrival.tries, ArrivalTries::UntilRefused) {
                    break;
                }
            }
        }
        course
    }

    fn take(&mut self, limit: &Limit, state: &mut State, at_us: u64) -> bool {
        while self.trailing.front().is_some_and(|&first| first + PERIOD_US <= at_us) {
            self.trailing.pop_front();
        }
        let has_room = (self.trailing.len() as u64) < limit.units();
        let allowed = algorithm::take(limit, state, 1, Micros::new(at_us)).allowed;
        self.decisions += 1;
        if allowed {
            self.admitted += 1;
            self.trailing.push_back(at_us);
            self.most = self.most.max(self.trailing.len() as u64);
        }
        self.wrongly_admitted += u64::from(allowed && !has_room);
        self.wrongly_refused += u64::from(!allowed && has_room);
        allowed
    }

    fn cells(
        &self,
        shape: &str,
        counting: CountingMethod,
        units: u64,
        exact: &LimiterErrors,
    ) -> [String; 7] {
        let per_decision = |count: u64| {
            if count == 0 {
                return "0".into();
            }
            format!("{:.3} %", count as f64 * 100.0 / self.decisions as f64)
        };
        [
            shape.into(),
            match counting {
                CountingMethod::Log => "log".into(),
                CountingMethod::Estimate => "counter".into(),
                CountingMethod::Buckets(k) => format!("buckets({k})"),
            },
            thousands(self.decisions),
            format!("{:.2} %", self.admitted as f64 * 100.0 / exact.admitted as f64),
            format!("{:.3}", self.most as f64 / units as f64),
            per_decision(self.wrongly_admitted),
            per_decision(self.wrongly_refused),
        ]
    }
}
