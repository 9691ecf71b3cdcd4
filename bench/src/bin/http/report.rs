//! The tables of measurements and goals.

use tollgate_bench::rounds::{Figure, RoundResults, ServerSample};
use tollgate_bench::table::{BenchTable, TableStyle, figures, thousands};

use crate::contestants::{
    CHECK, CHECK_BATCH, ELEVEN_RULES, FORWARD_AUTH, HYPER, HYPER_BODIES, HttpContestant, NGINX,
    NGINX_SHORT,
};
use crate::requests::BATCH;

/// One row for each contestant; medians over the rounds.
pub(crate) fn speed(
    results: &RoundResults,
    contestants: &[HttpContestant],
    style: TableStyle,
) -> BenchTable {
    let columns = [
        "contestant",
        "requests/s",
        "spread",
        "decisions/s",
        "CPU us/request",
        "spread",
        "server busy",
        "generator busy",
        "p50 us",
        "p99 us",
    ];
    let mut table =
        BenchTable::new("Medians over the rounds, and half of min to max", style, &columns);
    for ((name, samples), contestant) in results.0.iter().zip(contestants) {
        let column = |of: fn(&ServerSample) -> f64| Figure::from_values(samples.iter().map(of));
        let columns = (column(|it| it.requests_per_s), column(|it| it.server_us));
        let (Some(rate), Some(cost)) = columns else { continue };
        let middle = |of| column(of).map_or("-".into(), |it: Figure| figures(it.median));
        let percent = |of| column(of).map_or("-".into(), |it| format!("{:.0} %", it.median));
        table.row([
            name.clone(),
            thousands(rate.median as u64),
            rate.spread(),
            decisions(contestant, rate),
            figures(cost.median),
            cost.spread(),
            // Microseconds in a second, in percent.
            percent(|it| it.requests_per_s * it.server_us / 10_000.0),
            percent(|it| it.requests_per_s * it.generator_us / 10_000.0),
            middle(|it| it.p50_us),
            middle(|it| it.p99_us),
        ]);
    }
    table
}

/// Decisions per second; none for bare hyper, which decides nothing.
fn decisions(contestant: &HttpContestant, rate: Figure) -> String {
    match contestant.name {
        HYPER | HYPER_BODIES => "-".into(),
        _ => thousands((rate.median * contestant.requests.decisions as f64) as u64),
    }
}

/// The bound of a goal.
#[derive(Clone, Copy)]
enum HttpGoalBound {
    /// At least this many times the peer, counted in decisions. `decisions` are those per request: ours, the peer's.
    Times { least: f64, decisions: (usize, usize) },
    /// Less than this many microseconds more than the peer.
    AddedUs { below: f64 },
    /// No goal: shown for comparison.
    ComparisonOnly,
}

struct HttpGoal {
    name: &'static str,
    ours: &'static str,
    peer: &'static str,
    bound: HttpGoalBound,
}

const SAME: (usize, usize) = (1, 1);

const GOALS: [HttpGoal; 6] = [
    HttpGoal {
        name: "forward-auth / nginx limit_req",
        ours: FORWARD_AUTH,
        peer: NGINX,
        bound: HttpGoalBound::Times { least: 1.2, decisions: SAME },
    },
    HttpGoal {
        name: "forward-auth / nginx limit_req, short request",
        ours: FORWARD_AUTH,
        peer: NGINX_SHORT,
        bound: HttpGoalBound::ComparisonOnly,
    },
    HttpGoal {
        name: "forward-auth / bare hyper, no bodies",
        ours: FORWARD_AUTH,
        peer: HYPER,
        bound: HttpGoalBound::Times { least: 0.85, decisions: SAME },
    },
    HttpGoal {
        name: "check / bare hyper, bodies",
        ours: CHECK,
        peer: HYPER_BODIES,
        bound: HttpGoalBound::Times { least: 0.8, decisions: SAME },
    },
    HttpGoal {
        name: "decisions: batch of 64 / check",
        ours: CHECK_BATCH,
        peer: CHECK,
        bound: HttpGoalBound::Times { least: 20.0, decisions: (BATCH, 1) },
    },
    HttpGoal {
        name: "us per request that 10 more rules add",
        ours: ELEVEN_RULES,
        peer: FORWARD_AUTH,
        bound: HttpGoalBound::AddedUs { below: 1.0 },
    },
];

/// The table of goals, and true if all measured goals are met by processor time.
pub(crate) fn goals(results: &RoundResults, style: TableStyle) -> (BenchTable, bool) {
    let columns = ["goal", "to be", "by CPU", "min to max", "result", "by requests/s", "result"];
    let mut table = BenchTable::new("Goals", style, &columns);
    let mut all_met = true;
    for goal in &GOALS {
        let by_cpu = goal.measure(results, |sample| sample.server_us);
        let by_rate = goal.measure(results, |sample| 1_000_000.0 / sample.requests_per_s);
        let verdict = |measured: Option<Figure>| match measured.and_then(|it| goal.is_met(it)) {
            Some(true) => "PASS",
            Some(false) => "MISS",
            None => "-",
        };
        all_met &= verdict(by_cpu) != "MISS";
        let number = |measured: Option<Figure>| {
            measured.map_or("not measured".into(), |it| signed_figures(it.median))
        };
        let range =
            |it: Figure| format!("{} to {}", signed_figures(it.min), signed_figures(it.max));
        table.row([
            goal.name.to_owned(),
            goal.to_be(),
            number(by_cpu),
            by_cpu.map_or("-".into(), range),
            verdict(by_cpu).into(),
            number(by_rate),
            verdict(by_rate).into(),
        ]);
    }
    (table, all_met)
}

impl HttpGoal {
    /// Compares two contestants by microseconds per request; `us` selects the kind of time.
    fn measure(&self, results: &RoundResults, us: impl Fn(&ServerSample) -> f64) -> Option<Figure> {
        let (ours, peers) = match self.bound {
            HttpGoalBound::Times { decisions, .. } => decisions,
            HttpGoalBound::AddedUs { .. } | HttpGoalBound::ComparisonOnly => SAME,
        };
        let weight = ours as f64 / peers as f64;
        results.compare(self.ours, self.peer, |ours, peer| match self.bound {
            HttpGoalBound::AddedUs { .. } => us(ours) - us(peer),
            HttpGoalBound::Times { .. } | HttpGoalBound::ComparisonOnly => {
                us(peer) / us(ours) * weight
            }
        })
    }

    fn is_met(&self, measured: Figure) -> Option<bool> {
        match self.bound {
            HttpGoalBound::Times { least, .. } => Some(measured.median >= least),
            HttpGoalBound::AddedUs { below } => Some(measured.median < below),
            HttpGoalBound::ComparisonOnly => None,
        }
    }

    fn to_be(&self) -> String {
        match self.bound {
            HttpGoalBound::Times { least, .. } => format!(">= {least}"),
            HttpGoalBound::AddedUs { below } => format!("< {below}"),
            HttpGoalBound::ComparisonOnly => "-".into(),
        }
    }
}

/// Formats a number that may be negative: noise can make more rules look cheaper.
fn signed_figures(value: f64) -> String {
    if value < 0.0 { format!("-{}", figures(-value)) } else { figures(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(rows: &[(&'static str, f64, f64)]) -> RoundResults {
        let row = |&(name, requests_per_s, server_us): &(&str, f64, f64)| {
            (
                name.to_owned(),
                vec![ServerSample { requests_per_s, server_us, ..ServerSample::default() }],
            )
        };
        RoundResults(rows.iter().map(row).collect())
    }

    /// The numbers and verdicts of a goal: by processor time, by requests/s.
    fn row(table: &BenchTable, goal: &str) -> Vec<String> {
        let text = table.to_string();
        let line = text.lines().find(|line| line.starts_with(goal)).expect("it has a row");
        line[goal.len()..].split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn goals_weigh_decisions_and_take_both_measures() {
        let (table, all_met) = goals(
            &results(&[
                (NGINX, 100_000.0, 9.0),
                (FORWARD_AUTH, 110_000.0, 7.0),
                (ELEVEN_RULES, 100_000.0, 8.5),
                (CHECK, 80_000.0, 10.0),
                (CHECK_BATCH, 25_000.0, 32.0),
            ]),
            TableStyle::Text,
        );
        let rows = [
            ("forward-auth / nginx limit_req ", ">= 1.2 1.29 1.29 to 1.29 PASS 1.10 MISS"),
            ("forward-auth / bare hyper", ", no bodies >= 0.85 not measured - - not measured -"),
            ("decisions: batch of 64 / check", ">= 20 20.0 20.0 to 20.0 PASS 20.0 PASS"),
            ("us per request that 10 more rules add", "< 1 1.50 1.50 to 1.50 MISS 0.91 PASS"),
        ];
        for (goal, expected) in rows {
            assert_eq!(row(&table, goal).join(" "), expected, "{goal}");
        }
        assert!(!all_met, "the rules cost too much");
    }
}
