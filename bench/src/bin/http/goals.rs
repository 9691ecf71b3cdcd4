//! The goals, as ratios and differences within one run, and the verdict on each.

use tollgate_bench::rounds::{Figure, RoundResults, ServerSample};
use tollgate_bench::table::{BenchTable, TableStyle, figures};

use crate::contestants::{
    CHECK, CHECK_BATCH, ELEVEN_RULES, FORWARD_AUTH, HYPER, HYPER_BODIES, HYPER_FIELDS, NGINX,
    NGINX_SHORT, UNIX_SOCKET,
};
use crate::requests::BATCH;

/// The bound of a goal.
#[derive(Clone, Copy)]
enum HttpGoalBound {
    /// At least this many times the peer, counted in decisions. `decisions` are those per request: ours, the peer's.
    Times { least: f64, decisions: (usize, usize) },
    /// At most this many microseconds more than the peer, for each of `parts` parts.
    AddedUs { most: f64, parts: usize },
    /// At most this many microseconds for each of `parts` parts.
    Us { most: f64, parts: usize },
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

const GOALS: [HttpGoal; 9] = [
    HttpGoal {
        name: "forward-auth / hyper, same fields",
        ours: FORWARD_AUTH,
        peer: HYPER_FIELDS,
        bound: HttpGoalBound::Times { least: 1.05, decisions: SAME },
    },
    HttpGoal {
        name: "forward-auth / nginx limit_req",
        ours: FORWARD_AUTH,
        peer: NGINX,
        bound: HttpGoalBound::Times { least: 1.1, decisions: SAME },
    },
    HttpGoal {
        name: "forward-auth / nginx limit_req, short request",
        ours: FORWARD_AUTH,
        peer: NGINX_SHORT,
        bound: HttpGoalBound::ComparisonOnly,
    },
    HttpGoal {
        name: "forward-auth / bare hyper",
        ours: FORWARD_AUTH,
        peer: HYPER,
        bound: HttpGoalBound::ComparisonOnly,
    },
    HttpGoal {
        name: "forward-auth over a Unix socket / over TCP",
        ours: UNIX_SOCKET,
        peer: FORWARD_AUTH,
        bound: HttpGoalBound::ComparisonOnly,
    },
    HttpGoal {
        name: "us for each of 10 more matching rules",
        ours: ELEVEN_RULES,
        peer: FORWARD_AUTH,
        bound: HttpGoalBound::AddedUs { most: 0.2, parts: 10 },
    },
    HttpGoal {
        name: "check / hyper, same body and fields",
        ours: CHECK,
        peer: HYPER_BODIES,
        bound: HttpGoalBound::Times { least: 1.0, decisions: SAME },
    },
    HttpGoal {
        name: "us for each decision of a batch of 64",
        ours: CHECK_BATCH,
        peer: CHECK_BATCH,
        bound: HttpGoalBound::Us { most: 0.7, parts: BATCH },
    },
    HttpGoal {
        name: "decisions: batch of 64 / check",
        ours: CHECK_BATCH,
        peer: CHECK,
        bound: HttpGoalBound::Times { least: 10.0, decisions: (BATCH, 1) },
    },
];

/// The table of goals, and true if all measured goals are met by processor time.
pub(crate) fn table(results: &RoundResults, style: TableStyle) -> (BenchTable, bool) {
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
        results.compare(self.ours, self.peer, |ours, peer| match self.bound {
            HttpGoalBound::AddedUs { parts, .. } => (us(ours) - us(peer)) / parts as f64,
            HttpGoalBound::Us { parts, .. } => us(ours) / parts as f64,
            HttpGoalBound::Times { decisions: (mine, theirs), .. } => {
                us(peer) / us(ours) * mine as f64 / theirs as f64
            }
            HttpGoalBound::ComparisonOnly => us(peer) / us(ours),
        })
    }

    fn is_met(&self, measured: Figure) -> Option<bool> {
        match self.bound {
            HttpGoalBound::Times { least, .. } => Some(measured.median >= least),
            HttpGoalBound::AddedUs { most, .. } | HttpGoalBound::Us { most, .. } => {
                Some(measured.median <= most)
            }
            HttpGoalBound::ComparisonOnly => None,
        }
    }

    fn to_be(&self) -> String {
        match self.bound {
            HttpGoalBound::Times { least, .. } => format!(">= {least}"),
            HttpGoalBound::AddedUs { most, .. } | HttpGoalBound::Us { most, .. } => {
                format!("<= {most}")
            }
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
        let (text, all_met) = table(
            &results(&[
                (HYPER_FIELDS, 120_000.0, 7.7),
                (NGINX, 100_000.0, 9.0),
                (FORWARD_AUTH, 100_000.0, 7.0),
                (ELEVEN_RULES, 90_000.0, 9.5),
                (CHECK, 80_000.0, 10.0),
                (CHECK_BATCH, 25_000.0, 32.0),
            ]),
            TableStyle::Text,
        );
        let rows = [
            ("forward-auth / hyper, same fields", ">= 1.05 1.10 1.10 to 1.10 PASS 0.83 MISS"),
            ("forward-auth / nginx limit_req ", ">= 1.1 1.29 1.29 to 1.29 PASS 1.00 MISS"),
            ("check / hyper", ", same body and fields >= 1 not measured - - not measured -"),
            ("decisions: batch of 64 / check", ">= 10 20.0 20.0 to 20.0 PASS 20.0 PASS"),
            ("us for each decision of a batch", " of 64 <= 0.7 0.50 0.50 to 0.50 PASS 0.62 PASS"),
            ("us for each of 10 more matching rules", "<= 0.2 0.25 0.25 to 0.25 MISS 0.11 PASS"),
        ];
        for (goal, expected) in rows {
            assert_eq!(row(&text, goal).join(" "), expected.trim(), "{goal}");
        }
        assert!(!all_met, "the rules cost too much");
    }
}
