//! Metrics of requests that wait: in fair queues, and in the lines of limits with a queue.

use tollgate_rules::waiting::WAIT_BUCKETS_MS;
use tollgate_rules::{RuleSet, WaitFigures, WaitOutcome};

use super::exposition::{MetricKind, MetricsPage};
use super::{OTHER_RULES, RULES_MAX};

/// The bounds of [`WAIT_BUCKETS_MS`] in seconds, and the one above them.
const BOUNDS_S: [&str; WAIT_BUCKETS_MS.len() + 1] =
    ["0.001", "0.005", "0.01", "0.05", "0.1", "0.5", "1.0", "2.0", "5.0", "10.0", "60.0", "+Inf"];

/// Writes the waits of each rule that can make requests wait, or whose clients have left. The first rules of the file have series of their own.
pub(super) fn write(page: &mut MetricsPage, rules: &RuleSet) {
    let mut own: Vec<(&str, WaitFigures)> = Vec::new();
    let mut others = WaitFigures::default();
    for (rule, tally) in rules.wait_tallies() {
        let figures = tally.figures();
        if !rule.can_wait() && figures.count(WaitOutcome::Left) == 0 {
            continue;
        }
        match own.len() < RULES_MAX {
            true => own.push((&rule.name, figures)),
            false => others.add(&figures),
        }
    }
    let mut all = others.clone();
    own.iter().for_each(|(_, figures)| all.add(figures));
    if others != WaitFigures::default() {
        own.push((OTHER_RULES, others));
    }
    if own.is_empty() {
        // No rule lets requests wait, and a family needs a sample.
        return;
    }
    let help = "Requests that wait now, by rule.";
    let mut waiting = page.family("tollgate_waiting", MetricKind::Gauge, help);
    for (rule, figures) in &own {
        waiting.sample(&[("rule", rule)], figures.waiting);
    }
    let help = "Waits that have ended, by rule and outcome; `full`, `refused` and `left` include requests that did not wait.";
    let mut ended = page.family("tollgate_waits_total", MetricKind::Counter, help);
    for (rule, figures) in &own {
        for outcome in WaitOutcome::ALL {
            let labels = [("rule", *rule), ("outcome", outcome.name())];
            ended.sample(&labels, figures.count(outcome));
        }
    }
    let help = "Time that admitted requests have waited in queues.";
    let mut cumulative = 0;
    let buckets = BOUNDS_S.into_iter().zip(all.buckets).map(|(bound, count)| {
        cumulative += count;
        (bound, cumulative)
    });
    page.family("tollgate_wait_seconds", MetricKind::Histogram, help)
        .buckets_of(buckets, all.sum_us);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_in_seconds_are_those_in_milliseconds() {
        let spelt = WAIT_BUCKETS_MS.map(|bound_ms| {
            let text = format!("{}", bound_ms as f64 / 1_000.0);
            if text.contains('.') { text } else { format!("{text}.0") }
        });
        assert_eq!(spelt, BOUNDS_S[..WAIT_BUCKETS_MS.len()]);
    }
}
