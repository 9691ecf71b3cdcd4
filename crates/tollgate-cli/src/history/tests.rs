//! Tests of the rings with seconds that the test makes up.

use std::sync::Arc;

use tollgate::Micros;

use super::ring::{HistoryRing, STEP_RULES_MAX, keep_busiest};
use super::{
    HistoryRange, LatencyCounts, RuleTraffic, TrafficCounts, TrafficHistory, TrafficSecond,
};

fn counts(allowed: u64) -> TrafficCounts {
    TrafficCounts([allowed, 0, 0, 0, 0, 0, 0])
}

fn traffic(name: impl Into<Arc<str>>, allowed: u64) -> RuleTraffic {
    RuleTraffic { name: name.into(), counts: counts(allowed) }
}

/// A second in which these rules allowed requests.
fn second(second: u64, rules: Vec<RuleTraffic>) -> TrafficSecond {
    let mut all = TrafficCounts::default();
    rules.iter().for_each(|rule| all.add(&rule.counts));
    TrafficSecond { second, interval_ms: 1_000, all, latency: LatencyCounts::default(), rules }
}

/// Just after this second.
fn after(second: u64) -> Micros {
    Micros::new((second + 1) * 1_000_000 + 500)
}

/// The allowed requests of the steps that have data, with the begin of the step.
fn allowed(ring: &HistoryRing, rule: Option<&str>, now: Micros) -> Vec<(u64, Option<u64>)> {
    let series = ring.series(rule, now);
    let begins = (series.from_s..).step_by(series.step_s as usize);
    let known = begins.zip(series.outcome(0)).zip(&series.latency);
    known.filter(|(_, latency)| latency.is_some()).map(|(step, _)| step).collect()
}

#[test]
fn every_range_sums_to_the_traffic_and_gaps_are_no_data() {
    let history = TrafficHistory::default();
    // Not the beginning of a step, and a gap of seven seconds.
    let seconds: Vec<u64> = (1_003..1_040).chain(1_047..1_250).collect();
    for (turn, at) in seconds.iter().enumerate() {
        history.record(&second(*at, vec![traffic("api", turn as u64)]));
    }
    let total: u64 = (0..seconds.len() as u64).sum();
    let now = after(1_249);
    for (range, step_s, steps) in [
        (HistoryRange::FiveMinutes, 1, 300),
        (HistoryRange::Hour, 10, 124 + 1),
        (HistoryRange::Day, 300, 4 + 1),
    ] {
        let series = history.series(range, None, now);
        assert_eq!((series.step_s, series.counts.len()), (step_s, steps), "{range:?}");
        assert_eq!(series.outcome(0).flatten().sum::<u64>(), total, "{range:?}");
        assert_eq!(series.from_s + steps as u64 * step_s, 1_250_u64.next_multiple_of(step_s));
    }
    let seconds = history.series(HistoryRange::FiveMinutes, None, now);
    let at = |second: u64| seconds.counts[(second - seconds.from_s) as usize];
    assert_eq!((at(1_003), at(1_039)), (Some(counts(0)), Some(counts(36))));
    assert!((1_040..1_047).all(|second| at(second).is_none()));
    assert_eq!(at(1_002), None);
    assert_eq!(history.series(HistoryRange::Day, None, now).last_step_s, 50);
}

#[test]
fn a_ring_keeps_its_length_and_the_last_steps() {
    let mut ring = HistoryRing::new(10, 6);
    for at in 0..1_000 {
        ring.record(&second(at, vec![traffic("a", 1)]));
    }
    let series = ring.series(None, after(999));
    assert_eq!((series.from_s, series.counts.len()), (940, 6));
    assert!(series.outcome(0).all(|allowed| allowed == Some(10)));
    // Without traffic to record, such as while the process is stopped, the steps move out.
    assert_eq!(allowed(&ring, None, after(1_029)), [970, 980, 990].map(|step| (step, Some(10))));
    assert_eq!(allowed(&ring, None, after(9_999)), []);
}

#[test]
fn a_clock_that_goes_back_loses_nothing_or_begins_again() {
    let mut ring = HistoryRing::new(1, 60);
    for at in [100, 101, 99, 50, 102] {
        ring.record(&second(at, vec![traffic("a", 1)]));
    }
    let want = [(100, Some(1)), (101, Some(3)), (102, Some(1))];
    assert_eq!(allowed(&ring, None, after(102)), want);
    ring.record(&second(10, vec![traffic("a", 7)]));
    assert_eq!(allowed(&ring, None, after(10)), [(10, Some(7))]);
}

#[test]
fn a_step_keeps_the_busiest_rules_and_says_nothing_of_the_others() {
    let mut ring = HistoryRing::new(1, 3);
    let many = |rules: u64| (1..=rules).map(|number| traffic(format!("r{number}"), number));
    ring.record(&second(1, many(10_000).collect()));
    ring.record(&second(2, many(3).collect()));
    ring.record(&second(3, Vec::new()));
    let of = |rule: &str| allowed(&ring, Some(rule), after(3));
    assert_eq!(of("r10000"), [(1, Some(10_000)), (2, Some(0)), (3, Some(0))]);
    assert_eq!(of("r9901"), [(1, Some(9_901)), (2, Some(0)), (3, Some(0))]);
    assert_eq!(of("r9900"), [(1, None), (2, Some(0)), (3, Some(0))]);
    assert_eq!(of("r2"), [(1, None), (2, Some(2)), (3, Some(0))]);
    let total = (1..=10_000).sum();
    assert_eq!(allowed(&ring, None, after(3))[0], (1, Some(total)));
    assert!(ring.knows("r9901") && !ring.knows("r9900") && ring.knows("r2"));
    assert_eq!(ring.named_entries(), STEP_RULES_MAX + 3);
}

#[test]
fn equally_busy_rules_are_kept_by_name() {
    let mut rules: Vec<RuleTraffic> = ["d", "b", "e", "a", "c"].map(|name| traffic(name, 1)).into();
    rules.push(traffic("z", 2));
    keep_busiest(&mut rules, 3);
    assert_eq!(rules, [traffic("z", 2), traffic("a", 1), traffic("b", 1)]);
}
