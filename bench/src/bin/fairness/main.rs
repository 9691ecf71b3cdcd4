//! `cargo xtask bench fairness`: the shares that callers get of one aggregate limit, through Tollgate with and without
//! `fair`, nginx and Envoy, with the same traffic.

mod callers;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tollgate_bench::machine;
use tollgate_bench::options::{self, BenchOptions, UsageError};
use tollgate_bench::process::{ScratchDir, sibling_program};
use tollgate_bench::proxies::{self, StartedProxy};
use tollgate_bench::table::{BenchTable, TableStyle, thousands};

use callers::{BenchCaller, CallerBehaviour, CallerResult};

const HELP: &str = "\
Measures how fairly proxies share one limit of 200 requests a second among callers.

Usage: cargo xtask bench fairness [OPTIONS]

Options:
  --quick        4 seconds for each run instead of 15
  --only NAME    only contestants whose name contains NAME, such as tollgate, nginx, Envoy
  --server PATH  measure this program instead of the `tollgate` built from this repository
  --markdown     tables as Markdown
  --help         print this text

Contestants, each with one aggregate limit of 200 requests a second:
  tollgate, fair    the limit, and a rule by user with `fair`: requests wait their turn, at most 2 s
  tollgate          the limit alone: it refuses
  nginx limit_req   rate=200r/s burst=100: requests wait in order of arrival, the rest is refused
  Envoy             local rate limit: it refuses

Traffic:
  1 greedy + 49 polite  polite callers send 2 requests a second each; the greedy one keeps 64
                        connections busy and tries again 5 ms after a refusal
  equals                6 greedy callers with 2, 4, 8, 16, 32 and 64 connections
  weights               tollgate with `weight_by: tier`: tiers of 1, 2 and 10, each with 32 connections

Jain's index is 1 if all shares are equal and 1/n if one of n has all.
Exits with 1 if tollgate with `fair` serves polite callers less than 98 %, an index is below 0.99, or
a share is more than 2 % off its weight.
";

const POLITE: usize = 49;
const WEIGHTS: [(&str, f64); 3] = [("free", 1.0), ("pro", 2.0), ("max", 10.0)];

fn main() -> ExitCode {
    options::run(HELP, run)
}

/// The options of a run.
struct FairnessRun {
    duration: Duration,
    only: String,
    tollgate: PathBuf,
    style: TableStyle,
}

fn run(mut options: BenchOptions) -> Result<bool, UsageError> {
    let quick = options.flag("--quick");
    let run = FairnessRun {
        duration: Duration::from_secs(if quick { 4 } else { 15 }),
        only: options.value("--only")?.unwrap_or_default(),
        tollgate: options.value("--server")?.map_or_else(|| sibling_program("tollgate"), Ok)?,
        style: TableStyle::from_flag(options.flag("--markdown")),
    };
    options.finish()?;
    Ok(run.measure().unwrap_or_else(|problem| {
        eprintln!("{problem}");
        false
    }))
}

type StartFn<'a> = dyn Fn(&ScratchDir, SocketAddr) -> StartedProxy + 'a;

/// A proxy to start.
struct FairnessContestant<'a> {
    name: &'static str,
    start: Box<StartFn<'a>>,
    /// True if it must be fair.
    is_judged: bool,
}

impl FairnessRun {
    fn measure(&self) -> Result<bool, String> {
        println!("{}; load {} at the start", machine::describe(), machine::load());
        let scratch = ScratchDir::new()?;
        let upstream = TcpListener::bind("127.0.0.1:0");
        let upstream = upstream.map_err(|error| format!("no upstream: {error}"))?;
        upstream.set_nonblocking(true).map_err(|error| error.to_string())?;
        let mut all_fair = true;
        let mut polite = BenchTable::new(
            "1 greedy + 49 polite callers, 200 requests a second for all",
            self.style,
            &["proxy", "polite served", "Jain, polite", "p50", "p99", "greedy served"],
        );
        let mut equals = BenchTable::new(
            "6 greedy callers with 2 to 64 connections",
            self.style,
            &["proxy", "served", "least share", "largest share", "Jain"],
        );
        for contestant in self.contestants() {
            eprintln!("{}", contestant.name);
            let shares =
                |callers: &[BenchCaller]| self.share(&contestant, &scratch, &upstream, callers);
            let (results, served) = (shares(&polite_callers())?, shares(&equal_callers())?);
            let polite_fair = add_polite_row(&mut polite, contestant.name, &results);
            let equals_fair = add_equals_row(&mut equals, contestant.name, &served);
            all_fair &= !contestant.is_judged || polite_fair && equals_fair;
        }
        println!("\n{polite}\n{equals}");
        Ok(all_fair & self.measure_weights(&scratch, &upstream)?)
    }

    fn measure_weights(
        &self,
        scratch: &ScratchDir,
        upstream: &TcpListener,
    ) -> Result<bool, String> {
        let contestants = self.contestants();
        let Some(fair) = contestants.iter().find(|it| it.is_judged) else { return Ok(true) };
        eprintln!("weights");
        let results = self.share(fair, scratch, upstream, &weighted_callers())?;
        let columns = ["tier", "weight", "served", "off its share"];
        let mut table = BenchTable::new("Weights by tier", self.style, &columns);
        let total: u64 = results.iter().map(|result| result.served).sum();
        let sum: f64 = WEIGHTS.iter().map(|(_, weight)| weight).sum();
        let mut is_fair = true;
        for ((tier, weight), result) in WEIGHTS.iter().zip(&results) {
            let off = result.served as f64 / (total as f64 * weight / sum) - 1.0;
            is_fair &= off.abs() <= 0.02;
            let cells = [(*tier).into(), format!("{weight}"), thousands(result.served)];
            table.row(cells.into_iter().chain([format!("{:+.1} %", off * 100.0)]));
        }
        println!("{table}");
        Ok(is_fair)
    }

    fn contestants(&self) -> Vec<FairnessContestant<'_>> {
        let tollgate = |name, rules: String| {
            move |scratch: &ScratchDir, upstream| {
                proxies::tollgate(&self.tollgate, scratch, upstream, (name, &rules))
            }
        };
        let fair = format!("{LIMIT}{TURNS}");
        let all = vec![
            FairnessContestant {
                name: "tollgate, fair",
                start: Box::new(tollgate("fair", fair)),
                is_judged: true,
            },
            FairnessContestant {
                name: "tollgate",
                start: Box::new(tollgate("refusing", LIMIT.into())),
                is_judged: false,
            },
            FairnessContestant {
                name: "nginx limit_req",
                start: Box::new(|scratch, upstream| {
                    proxies::nginx(scratch, upstream, include_str!("nginx.conf"))
                }),
                is_judged: false,
            },
            FairnessContestant {
                name: "Envoy",
                start: Box::new(|scratch, upstream| {
                    proxies::envoy(scratch, upstream, include_str!("envoy.yaml"))
                }),
                is_judged: false,
            },
        ];
        all.into_iter().filter(|contestant| contestant.name.contains(&self.only)).collect()
    }

    /// Starts a contestant anew and lets the callers share it.
    fn share(
        &self,
        contestant: &FairnessContestant<'_>,
        scratch: &ScratchDir,
        upstream: &TcpListener,
        callers: &[BenchCaller],
    ) -> Result<Vec<CallerResult>, String> {
        let named = |problem: String| format!("{}: {problem}", contestant.name);
        let address = upstream.local_addr().map_err(|error| error.to_string())?;
        let (process, proxy) = (contestant.start)(scratch, address).map_err(named)?;
        let results = callers::run(proxy, upstream, callers, self.duration);
        drop(process);
        results.map_err(|error| named(error.to_string()))
    }
}

const LIMIT: &str = r#"
version: 1
identify: { trusted_peers: [127.0.0.1], user: { header: x-user }, tier: { header: x-tier } }
tiers: { free: 1, pro: 2, max: 10 }
rules:
  - { name: everyone, key: global, limits: [{ rate: 200/second, burst: 10 }] }
"#;

const TURNS: &str = r#"  - { name: turns, key: "{user}", fair: { wait: 2s, per_key: 100, weight_by: tier } }
"#;

fn polite_callers() -> Vec<BenchCaller> {
    let polite = (0..POLITE).map(|number| BenchCaller {
        name: format!("polite-{number}"),
        tier: "free",
        behaviour: CallerBehaviour::Polite(Duration::from_millis(500)),
    });
    polite.chain([greedy("greedy", "free", 64)]).collect()
}

fn equal_callers() -> Vec<BenchCaller> {
    let connections = [2, 4, 8, 16, 32, 64];
    connections.map(|count| greedy(&format!("with-{count}"), "free", count)).into()
}

fn weighted_callers() -> Vec<BenchCaller> {
    WEIGHTS.iter().map(|(tier, _)| greedy(tier, tier, 32)).collect()
}

fn greedy(name: &str, tier: &'static str, connections: usize) -> BenchCaller {
    let behaviour = CallerBehaviour::Greedy { connections };
    BenchCaller { name: name.into(), tier, behaviour }
}

/// Adds a row. Returns true if the polite callers were served, and equally.
fn add_polite_row(table: &mut BenchTable, name: &str, results: &[CallerResult]) -> bool {
    let (polite, greedy) = results.split_at(POLITE);
    let sum = |count: fn(&CallerResult) -> u64| polite.iter().map(count).sum::<u64>() as f64;
    let share = sum(|result| result.served) / sum(|result| result.sent).max(1.0);
    let index = jain(polite.iter().map(|result| result.served as f64 / result.sent.max(1) as f64));
    let mut waits: Vec<Duration> = polite.iter().flat_map(|result| result.waits.clone()).collect();
    waits.sort_unstable();
    let wait = |percent: usize| match waits.get(waits.len() * percent / 100) {
        Some(wait) => format!("{:.1} ms", wait.as_secs_f64() * 1_000.0),
        None => "-".into(),
    };
    table.row([
        name.into(),
        format!("{:.1} %", share * 100.0),
        format!("{index:.3}"),
        wait(50),
        wait(99),
        thousands(greedy.iter().map(|result| result.served).sum()),
    ]);
    share >= 0.98 && index >= 0.99
}

/// Adds a row. Returns true if all callers got the same.
fn add_equals_row(table: &mut BenchTable, name: &str, results: &[CallerResult]) -> bool {
    let served: Vec<u64> = results.iter().map(|result| result.served).collect();
    let index = jain(served.iter().map(|served| *served as f64));
    let total: u64 = served.iter().sum();
    let share = |served: Option<&u64>| {
        let served = served.copied().unwrap_or(0) as f64;
        format!("{:.1} %", served / total.max(1) as f64 * 100.0)
    };
    table.row([
        name.into(),
        thousands(total),
        share(served.iter().min()),
        share(served.iter().max()),
        format!("{index:.3}"),
    ]);
    index >= 0.99
}

/// Jain's index of fairness.
fn jain(shares: impl Iterator<Item = f64>) -> f64 {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for share in shares {
        count += 1.0;
        sum += share;
        squares += share * share;
    }
    if squares == 0.0 { 0.0 } else { sum * sum / (count * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_one_for_equals_and_small_for_one_of_many() {
        assert_eq!(jain([3.0; 10].into_iter()), 1.0);
        assert_eq!(jain([1.0, 0.0, 0.0, 0.0].into_iter()), 0.25);
        assert_eq!(jain([].into_iter()), 0.0);
    }
}
