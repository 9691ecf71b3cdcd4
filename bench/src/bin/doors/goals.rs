//! The goals, as ratios within one run, and the verdict on each.

use tollgate_bench::rounds::{Figure, RoundResults, ServerSample};
use tollgate_bench::table::{BenchTable, TableStyle, figures};

use crate::part::{ConnectionShape, TOLLGATE, name};
use crate::resp::{BUCKET, CELL, ECHO, INCR, MANY, ONE, PIPELINE_16, PIPELINE_64};
use crate::{grpc, tower};

struct ListenerGoal {
    what: &'static str,
    ours: &'static str,
    peer: &'static str,
    shape: ConnectionShape,
    /// The lowest ratio that meets the goal; `None` if the ratio is only shown for comparison.
    least: Option<f64>,
}

const fn resp(peer: &'static str, shape: ConnectionShape, least: Option<f64>) -> ListenerGoal {
    ListenerGoal { what: "CL.THROTTLE", ours: TOLLGATE, peer, shape, least }
}

const fn should_rate_limit(shape: ConnectionShape, least: f64) -> ListenerGoal {
    let what = "ShouldRateLimit";
    ListenerGoal { what, ours: TOLLGATE, peer: grpc::TONIC, shape, least: Some(least) }
}

const fn route(ours: &'static str, peer: &'static str, least: Option<f64>) -> ListenerGoal {
    ListenerGoal { what: "axum route", ours, peer, shape: tower::SHAPE, least }
}

const GOALS: [ListenerGoal; 15] = [
    resp(ECHO, ONE, Some(0.95)),
    resp(ECHO, MANY, Some(0.95)),
    resp(INCR, ONE, None),
    resp(ECHO, PIPELINE_16, None),
    resp(INCR, PIPELINE_16, None),
    resp(BUCKET, PIPELINE_16, None),
    resp(ECHO, PIPELINE_64, Some(0.6)),
    resp(INCR, PIPELINE_64, Some(1.5)),
    resp(CELL, PIPELINE_64, None),
    resp(BUCKET, PIPELINE_64, Some(20.0)),
    should_rate_limit(grpc::UNARY, 1.0),
    should_rate_limit(grpc::MULTIPLEXED, 0.95),
    route(tower::LIMITED, tower::FIELDS, Some(0.92)),
    route(tower::LIMITED, tower::BARE, None),
    route(tower::SILENT, tower::BARE, Some(0.95)),
];

/// All goals whose numbers were measured. Bound: `GOALS`.
#[derive(Default)]
pub(crate) struct ListenerGoals(Vec<MeasuredListenerGoal>);

struct MeasuredListenerGoal {
    goal: &'static ListenerGoal,
    by_cpu: Figure,
    by_rate: Figure,
}

impl ListenerGoals {
    /// Adds the goals for which both sides are in these results.
    pub(crate) fn decide(&mut self, results: &RoundResults) {
        for goal in &GOALS {
            let (ours, peer) = (name(goal.ours, goal.shape), name(goal.peer, goal.shape));
            let times =
                |of: fn(&ServerSample, &ServerSample) -> f64| results.compare(&ours, &peer, of);
            let by_cpu = times(|ours, peer| peer.server_us / ours.server_us);
            let by_rate = times(|ours, peer| ours.requests_per_s / peer.requests_per_s);
            if let (Some(by_cpu), Some(by_rate)) = (by_cpu, by_rate) {
                self.0.push(MeasuredListenerGoal { goal, by_cpu, by_rate });
            }
        }
    }

    /// The table of goals, and true if all are met by processor time.
    pub(crate) fn table(&self, style: TableStyle) -> (BenchTable, bool) {
        let columns = ["goal", "asked by", "to be", "by CPU", "result", "by requests/s", "result"];
        let mut table = BenchTable::new("Goals: times the peer (least–most)", style, &columns);
        let mut all_met = true;
        for MeasuredListenerGoal { goal, by_cpu, by_rate } in &self.0 {
            let verdict = |figure: &Figure| match goal.least {
                Some(least) if figure.median >= least => "met",
                Some(_) => "MISSED",
                None => "-",
            };
            all_met &= verdict(by_cpu) != "MISSED";
            table.row([
                format!("{}: {} / {}", goal.what, goal.ours, goal.peer),
                goal.shape.to_string(),
                goal.least.map_or("-".into(), |least| format!(">= {least}")),
                times(*by_cpu),
                verdict(by_cpu).into(),
                times(*by_rate),
                verdict(by_rate).into(),
            ]);
        }
        (table, all_met)
    }
}

/// Formats a ratio as `1.52 (1.40–1.61)`: median, minimum and maximum.
pub(crate) fn times(figure: Figure) -> String {
    format!("{} ({}–{})", figures(figure.median), figures(figure.min), figures(figure.max))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results with one sample for each row: microseconds of the server and requests per second.
    fn results(rows: &[(&str, ConnectionShape, f64, f64)]) -> RoundResults {
        let row = |&(who, shape, server_us, requests_per_s): &(&str, ConnectionShape, f64, f64)| {
            let sample = ServerSample { server_us, requests_per_s, ..ServerSample::default() };
            (name(who, shape), vec![sample])
        };
        RoundResults(rows.iter().map(row).collect())
    }

    #[test]
    fn goals_are_decided_by_processor_time_and_only_where_both_sides_were_measured() {
        let mut goals = ListenerGoals::default();
        goals.decide(&results(&[
            (TOLLGATE, PIPELINE_64, 0.2, 4_000_000.0),
            (INCR, PIPELINE_64, 0.4, 3_000_000.0),
            (TOLLGATE, ONE, 5.0, 200_000.0),
        ]));
        let (table, all_met) = goals.table(TableStyle::Text);
        assert!(all_met && goals.0.len() == 1);
        let line = table.to_string().lines().last().unwrap().to_owned();
        let cells: Vec<&str> =
            line.split("  ").map(str::trim).filter(|it| !it.is_empty()).collect();
        let expected = "CL.THROTTLE: tollgate / Redis INCR|16 x 64|>= 1.5|2.00 (2.00–2.00)|met|\
                        1.33 (1.33–1.33)|MISSED";
        assert_eq!(cells.join("|"), expected);

        goals.decide(&results(&[
            (TOLLGATE, grpc::UNARY, 10.0, 90_000.0),
            (grpc::TONIC, grpc::UNARY, 8.0, 90_000.0),
        ]));
        assert!(!goals.table(TableStyle::Text).1, "0.8 is below 1.0");
    }
}
