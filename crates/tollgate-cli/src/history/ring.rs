//! `HistoryRing`: the traffic of a span of time in equal steps.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tollgate::Micros;

use super::latency_counts::LatencyCounts;
use super::{OUTCOME_NAMES, RuleTraffic, TrafficCounts, TrafficSecond};

/// Most rules that a complete step keeps by name, the busiest.
pub(super) const STEP_RULES_MAX: usize = 100;

/// Most rules of the step that is not complete yet. Beyond it, after reloads that rename thousands of rules within
/// minutes, further ones count among the others.
const OPEN_RULES_MAX: usize = 20_000;

/// The steps of one range. Bound: `steps_max` complete steps and one that is not.
pub(super) struct HistoryRing {
    step_s: u64,
    steps_max: usize,
    /// Complete steps, the oldest first. A step during which the server did not run is missing.
    complete: VecDeque<CompleteStep>,
    open: OpenStep,
}

/// A step that has ended.
struct CompleteStep {
    /// Seconds since 1970, divided by the length of a step.
    number: u64,
    all: TrafficCounts,
    latency: LatencyCounts,
    /// The busiest rules.
    rules: Box<[RuleTraffic]>,
    /// True if there were more rules with traffic than `rules` has.
    has_more_rules: bool,
}

/// The step that traffic is added to.
#[derive(Default)]
struct OpenStep {
    number: u64,
    all: TrafficCounts,
    latency: LatencyCounts,
    rules: HashMap<Arc<str>, TrafficCounts>,
    has_more_rules: bool,
    /// True once traffic was recorded, be it none.
    has_begun: bool,
}

/// The steps of a range as series.
#[derive(Debug, PartialEq)]
pub(crate) struct HistorySeries {
    pub(crate) step_s: u64,
    /// Begin of the first step, in seconds since 1970.
    pub(crate) from_s: u64,
    /// Counts of each step, by the place of the outcome; `None` without data.
    pub(crate) counts: Vec<Option<TrafficCounts>>,
    /// Durations of all decisions; there are none by rule.
    pub(crate) latency: Vec<Option<LatencyCounts>>,
    /// Seconds of the last step that are over.
    pub(crate) last_step_s: u64,
}

impl HistorySeries {
    /// One outcome of each step.
    pub(crate) fn outcome(&self, place: usize) -> impl Iterator<Item = Option<u64>> {
        debug_assert!(place < OUTCOME_NAMES.len());
        self.counts.iter().map(move |counts| counts.map(|counts| counts.0[place]))
    }
}

impl HistoryRing {
    pub(super) fn new(step_s: u64, steps_max: usize) -> HistoryRing {
        HistoryRing { step_s, steps_max, complete: VecDeque::new(), open: OpenStep::default() }
    }

    /// Adds the traffic of a second. If the clock went back by less than the ring is long, the traffic counts in the step
    /// that is open; if by more, the ring begins again.
    pub(super) fn record(&mut self, second: &TrafficSecond) {
        let number = second.second / self.step_s;
        if !self.open.has_begun {
            self.open.number = number;
        } else if number > self.open.number {
            self.complete_open(number);
        } else if self.open.number - number > self.steps_max as u64 {
            self.complete.clear();
            self.open = OpenStep { number, ..OpenStep::default() };
        }
        self.open.add(second);
    }

    /// Completes the open step and begins the one with this number.
    fn complete_open(&mut self, number: u64) {
        let open = std::mem::replace(&mut self.open, OpenStep { number, ..OpenStep::default() });
        if self.complete.len() == self.steps_max {
            self.complete.pop_front();
        }
        self.complete.push_back(open.complete());
    }

    /// The last steps up to now, the open one included: of all rules, or of one.
    pub(super) fn series(&self, rule: Option<&str>, now: Micros) -> HistorySeries {
        // The traffic of a second is read when it is over.
        let last_second = (now.as_u64() / 1_000_000).saturating_sub(1);
        let end = (last_second / self.step_s).max(self.open.number) + 1;
        let from = end.saturating_sub(self.steps_max as u64);
        let length = usize::try_from(end - from).unwrap_or(self.steps_max);
        let mut series = HistorySeries {
            step_s: self.step_s,
            from_s: from * self.step_s,
            counts: vec![None; length],
            latency: vec![None; length],
            last_step_s: (last_second + 1).saturating_sub((end - 1) * self.step_s).min(self.step_s),
        };
        let mut set = |number: u64, counts, latency| {
            let place = number.checked_sub(from).and_then(|place| usize::try_from(place).ok());
            if let Some(place) = place.filter(|place| *place < length) {
                (series.counts[place], series.latency[place]) = (counts, Some(latency));
            }
        };
        for step in &self.complete {
            set(step.number, step.counts(rule), step.latency);
        }
        if self.open.has_begun {
            set(self.open.number, self.open.counts(rule), self.open.latency);
        }
        series
    }

    /// Returns true if some step has traffic of this rule.
    pub(super) fn knows(&self, rule: &str) -> bool {
        let steps = self.complete.iter();
        self.open.rules.contains_key(rule)
            || steps.flat_map(|step| &step.rules).any(|one| &*one.name == rule)
    }

    /// Number of entries by name in all complete steps.
    #[cfg(test)]
    pub(super) fn named_entries(&self) -> usize {
        self.complete.iter().map(|step| step.rules.len()).sum()
    }
}

impl OpenStep {
    fn add(&mut self, second: &TrafficSecond) {
        self.has_begun = true;
        self.all.add(&second.all);
        self.latency.add(&second.latency);
        for RuleTraffic { name, counts } in &second.rules {
            if let Some(sum) = self.rules.get_mut(name) {
                sum.add(counts);
            } else if self.rules.len() < OPEN_RULES_MAX {
                self.rules.insert(name.clone(), *counts);
            } else {
                self.has_more_rules = true;
            }
        }
    }

    /// The step with the busiest rules alone.
    fn complete(self) -> CompleteStep {
        let rules = self.rules.into_iter().map(|(name, counts)| RuleTraffic { name, counts });
        let mut rules: Vec<RuleTraffic> = rules.collect();
        let has_more_rules = self.has_more_rules || rules.len() > STEP_RULES_MAX;
        keep_busiest(&mut rules, STEP_RULES_MAX);
        CompleteStep {
            number: self.number,
            all: self.all,
            latency: self.latency,
            rules: rules.into(),
            has_more_rules,
        }
    }

    fn counts(&self, rule: Option<&str>) -> Option<TrafficCounts> {
        let Some(rule) = rule else { return Some(self.all) };
        let none = (!self.has_more_rules).then(TrafficCounts::default);
        self.rules.get(rule).copied().or(none)
    }
}

impl CompleteStep {
    /// The counts of all rules, or of one; `None` if it was not among those that were kept.
    fn counts(&self, rule: Option<&str>) -> Option<TrafficCounts> {
        let Some(rule) = rule else { return Some(self.all) };
        let none = (!self.has_more_rules).then(TrafficCounts::default);
        self.rules.iter().find(|one| &*one.name == rule).map(|one| one.counts).or(none)
    }
}

/// Keeps the rules with the most decisions, the busiest first. Equals are ordered by name, so that the result does not
/// depend on a hash.
pub(crate) fn keep_busiest(rules: &mut Vec<RuleTraffic>, most: usize) {
    let order = |a: &RuleTraffic, b: &RuleTraffic| {
        b.counts.decisions().cmp(&a.counts.decisions()).then_with(|| a.name.cmp(&b.name))
    };
    if rules.len() > most {
        rules.select_nth_unstable_by(most, order);
        rules.truncate(most);
    }
    rules.sort_unstable_by(order);
    rules.shrink_to_fit();
}
