//! `CounterReader`: reads the counters of decisions and returns what was added since the last time.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate::{Micros, Refusal};
use tollgate_rules::{RuleSet, Tally, Verdict, WaitOutcome, WaitTally};

use super::latency_counts::LatencyCounts;
use super::{DELAYED, TrafficCounts};
use crate::metrics::Metrics;
use crate::server_observer::REASONS;

/// The traffic since the last reading.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrafficSecond {
    /// The second that it belongs to, in seconds since 1970: the last whole one before the reading.
    pub(crate) second: u64,
    /// Time since the reading before, in milliseconds: about 1,000, more if the machine was busy.
    pub(crate) interval_ms: u64,
    /// Requests by outcome. Of shadow, soft and delayed each rule counts its own; no request as a whole is refused by
    /// another rule.
    pub(crate) all: TrafficCounts,
    pub(crate) latency: LatencyCounts,
    /// Rules with traffic, in the order of the file.
    pub(crate) rules: Vec<RuleTraffic>,
}

/// The traffic of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleTraffic {
    pub(crate) name: Arc<str>,
    pub(crate) counts: TrafficCounts,
}

/// Counters of a rule, and their values at the last reading.
struct CountedRule {
    name: Arc<str>,
    tally: Arc<Tally>,
    waits: Arc<WaitTally>,
    before: TrafficCounts,
}

/// Reads the counters.
pub(super) struct CounterReader {
    metrics: Arc<Metrics>,
    /// The rules at the last reading. They are replaced after they were read, so that the last decisions of a rule that
    /// was removed still count.
    rules: Vec<CountedRule>,
    version: u64,
    requests: TrafficCounts,
    latency: LatencyCounts,
    read_at: Micros,
}

impl CounterReader {
    /// A reader that returns everything since the start at its first reading.
    pub(super) fn new(metrics: Arc<Metrics>) -> CounterReader {
        let (status, rules) = metrics.live.status_and_rules(&metrics.gatekeeper);
        CounterReader {
            rules: counted_rules(&rules, &[]),
            version: status.version,
            requests: TrafficCounts::default(),
            latency: LatencyCounts::default(),
            read_at: metrics.gatekeeper.now(),
            metrics,
        }
    }

    /// Reads all counters.
    pub(super) fn read(&mut self, now: Micros) -> TrafficSecond {
        let outcomes = self.metrics.observer.outcomes();
        let latency = LatencyCounts::of(&self.metrics.timing.buckets());
        let refused = |is_unavailable: bool| -> u64 {
            let reasons = REASONS.iter().zip(outcomes.refused);
            let reasons = reasons
                .filter(|(reason, _)| (**reason == Refusal::StoreUnavailable) == is_unavailable);
            reasons.map(|(_, count)| count).sum()
        };
        let requests = TrafficCounts([outcomes.allowed, refused(false), 0, 0, 0, refused(true), 0]);
        let rules: Vec<RuleTraffic> = self.rules.iter_mut().filter_map(CountedRule::read).collect();
        let mut all = requests.since(&self.requests);
        for rule in &rules {
            for place in 2..=DELAYED {
                all.0[place] += rule.counts.0[place];
            }
        }
        let second = TrafficSecond {
            second: (now.as_u64() / 1_000_000).saturating_sub(1),
            interval_ms: now.as_u64().saturating_sub(self.read_at.as_u64()) / 1_000,
            all,
            latency: latency.since(&self.latency),
            rules,
        };
        (self.requests, self.latency, self.read_at) = (requests, latency, now);
        self.follow_rules();
        second
    }

    /// Takes over the rules in force, if they were replaced.
    fn follow_rules(&mut self) {
        let (status, rules) = self.metrics.live.status_and_rules(&self.metrics.gatekeeper);
        if status.version != self.version {
            self.rules = counted_rules(&rules, &self.rules);
            self.version = status.version;
        }
    }
}

/// The counters of all rules. Those that were there before go on from their last values.
fn counted_rules(rules: &RuleSet, before: &[CountedRule]) -> Vec<CountedRule> {
    let before: HashMap<&str, &CountedRule> =
        before.iter().map(|rule| (&*rule.name, rule)).collect();
    let counted = rules.tallies().zip(rules.wait_tallies()).map(|((rule, tally), (_, waits))| {
        let known = before.get(&*rule.name).filter(|known| Arc::ptr_eq(&known.tally, tally));
        CountedRule {
            name: rule.name.clone(),
            tally: tally.clone(),
            waits: waits.clone(),
            before: known.map(|known| known.before).unwrap_or_default(),
        }
    });
    counted.collect()
}

impl CountedRule {
    /// Returns what was added since the last reading; `None` if nothing was.
    fn read(&mut self) -> Option<RuleTraffic> {
        let verdicts = self.tally.counts();
        let count = |verdict: Verdict| verdicts[verdict as usize];
        let waits = self.waits.figures();
        let now = TrafficCounts([
            count(Verdict::Allowed),
            count(Verdict::Refused),
            count(Verdict::Shadow),
            count(Verdict::Soft),
            waits.count(WaitOutcome::Admitted) + waits.count(WaitOutcome::Delayed),
            count(Verdict::Unavailable),
            count(Verdict::RefusedByOther),
        ]);
        let counts = now.since(&self.before);
        self.before = now;
        (!counts.is_zero()).then(|| RuleTraffic { name: self.name.clone(), counts })
    }
}
