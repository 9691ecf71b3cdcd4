//! The goals and the verdict on each. Speeds are compared by processor time within a round.

use tollgate_bench::rounds::{Figure, RoundResults};
use tollgate_bench::table::{BenchTable, TableStyle};

use crate::contestants::{ELEVEN_RULES, ENVOY, FORWARDER, HAPROXY, NGINX, NO_RULE, ONE_RULE};
use crate::results::{GatewayResults, signed};

/// The bound of a goal.
#[derive(Clone, Copy)]
enum GatewayGoalBound {
    Least(f64),
    Most(f64),
    /// No goal: shown for comparison.
    ComparisonOnly,
}

/// A goal and what was measured.
struct GatewayGoal {
    name: String,
    bound: GatewayGoalBound,
    measured: Option<Figure>,
}

/// Requests per second and core of the gateway with one rule, as multiples of the peers'.
const RATIOS: [(&str, GatewayGoalBound); 5] = [
    (ENVOY, GatewayGoalBound::Least(1.5)),
    (NGINX, GatewayGoalBound::Least(0.75)),
    (FORWARDER, GatewayGoalBound::Least(0.9)),
    (HAPROXY, GatewayGoalBound::ComparisonOnly),
    (NO_RULE, GatewayGoalBound::ComparisonOnly),
];
/// Microseconds that ten more matching rules may add.
const TEN_RULES_US_MAX: f64 = 1.5;
/// Microseconds that the gateway may add to the 99th percentile at half load.
const ADDED_P99_US_MAX: f64 = 1_000.0;
/// KiB of memory that an idle connection may take.
const IDLE_KIB_MAX: f64 = 16.0;

/// The table of goals, and true if all measured goals are met.
pub(crate) fn table(results: &GatewayResults, style: TableStyle) -> (BenchTable, bool) {
    let columns = ["goal", "to be", "measured", "min to max", "result"];
    let mut table = BenchTable::new("Goals (speeds by CPU time)", style, &columns);
    let goals = all(results);
    for goal in &goals {
        let range = |it: Figure| format!("{} to {}", signed(it.min), signed(it.max));
        table.row([
            goal.name.clone(),
            goal.to_be(),
            goal.measured.map_or("not measured".into(), |it| signed(it.median)),
            goal.measured.map_or("-".into(), range),
            goal.verdict().into(),
        ]);
    }
    (table, goals.iter().all(|goal| goal.verdict() != "MISS"))
}

fn all(results: &GatewayResults) -> Vec<GatewayGoal> {
    let speeds = results.full_speed.iter().flat_map(|(connections, it)| speed(*connections, it));
    let added = results.added.iter().find(|(name, _)| *name == ONE_RULE);
    let idle = results.idle_bytes.iter().find(|(name, _)| *name == ONE_RULE);
    let once = |value| Figure { median: value, min: value, max: value };
    let others = [
        GatewayGoal {
            name: "us added to p99 at half load".into(),
            bound: GatewayGoalBound::Most(ADDED_P99_US_MAX),
            measured: added.and_then(|(_, added)| added.p99_us),
        },
        GatewayGoal {
            name: "KiB for an idle connection".into(),
            bound: GatewayGoalBound::Most(IDLE_KIB_MAX),
            measured: idle.map(|(_, bytes)| once(bytes / 1_024.0)),
        },
    ];
    speeds.chain(others).collect()
}

/// The goals of one number of connections.
fn speed(connections: usize, results: &RoundResults) -> Vec<GatewayGoal> {
    let ratio = |(peer, bound): (&str, GatewayGoalBound)| GatewayGoal {
        name: format!("{connections} connections: 1 rule / {peer}"),
        bound,
        measured: results.compare(ONE_RULE, peer, |ours, peer| peer.server_us / ours.server_us),
    };
    let ten_rules = GatewayGoal {
        name: format!("{connections} connections: us for 10 more matching rules"),
        bound: GatewayGoalBound::Most(TEN_RULES_US_MAX),
        measured: results
            .compare(ELEVEN_RULES, ONE_RULE, |many, one| many.server_us - one.server_us),
    };
    RATIOS.into_iter().map(ratio).chain([ten_rules]).collect()
}

impl GatewayGoal {
    fn verdict(&self) -> &'static str {
        match (self.bound, self.measured) {
            (GatewayGoalBound::ComparisonOnly, _) | (_, None) => "-",
            (GatewayGoalBound::Least(least), Some(it)) if it.median >= least => "PASS",
            (GatewayGoalBound::Most(most), Some(it)) if it.median <= most => "PASS",
            _ => "MISS",
        }
    }

    fn to_be(&self) -> String {
        match self.bound {
            GatewayGoalBound::Least(least) => format!(">= {least}"),
            GatewayGoalBound::Most(most) => format!("<= {most}"),
            GatewayGoalBound::ComparisonOnly => "-".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::AddedLatency;
    use tollgate_bench::rounds::ServerSample;

    #[test]
    fn each_goal_is_judged_by_its_bound() {
        let sample = |server_us| ServerSample { server_us, ..ServerSample::default() };
        let row = |(name, us): (&str, f64)| (name.to_owned(), vec![sample(us)]);
        let costs = [
            (NGINX, 15.0),
            (ENVOY, 29.0),
            (FORWARDER, 18.0),
            (ONE_RULE, 20.0),
            (ELEVEN_RULES, 21.6),
        ];
        let p99 = Figure { median: 1_000.0, min: 1.0, max: 2_000.0 };
        let results = GatewayResults {
            full_speed: vec![(16, RoundResults(costs.map(row).into()))],
            added: vec![(ONE_RULE, AddedLatency { p99_us: Some(p99), ..AddedLatency::default() })],
            idle_bytes: vec![(NGINX, 1.0), (ONE_RULE, 16_385.0)],
        };
        let rows = [
            ("1 rule / Envoy", "MISS"),
            ("1 rule / nginx", "PASS"),
            ("1 rule / bare forwarder", "PASS"),
            ("1 rule / HAProxy", "-"),
            ("10 more matching rules", "MISS"),
            ("p99 at half load", "PASS"),
            ("KiB for an idle connection", "MISS"),
        ];
        let goals = all(&results);
        for (part, expected) in rows {
            let goal = goals.iter().find(|goal| goal.name.contains(part)).expect("it is a goal");
            assert_eq!(goal.verdict(), expected, "{part}");
        }
        assert!(!table(&results, TableStyle::Text).1);
    }
}
