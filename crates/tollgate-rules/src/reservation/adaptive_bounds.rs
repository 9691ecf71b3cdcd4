//! The controllers of rules with `concurrency: adaptive`, one for each rule and key.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tollgate::queue::AdaptiveConcurrency;
use tollgate::{Micros, Wait};

use crate::rule::Rule;

/// The most keys whose bound is found by latency. A key beyond them has the bound of a controller that has measured
/// nothing.
pub const ADAPTIVE_KEYS_MAX: usize = 1_024;

/// Time without work after which a key is no longer reported, and is the first to make room.
const IDLE: Wait = Wait::from_micros(600_000_000);

/// Shortest time between two searches for idle keys. A search looks at all keys, under the lock that every request takes.
const SEARCH_INTERVAL: Wait = Wait::from_micros(100_000);

/// The end of measured work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkOutcome {
    /// The upstream answered after this time.
    Answered(Wait),
    /// The upstream was overloaded, or did not answer in time.
    Overloaded,
    /// The client left after this time, before the upstream answered.
    Abandoned(Wait),
    /// The time says nothing about the load of the upstream.
    Unmeasured,
}

/// The adaptive bounds of all keys of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptiveBoundReport {
    /// The rule.
    pub rule: Arc<str>,
    /// Number of keys with a controller.
    pub keys: usize,
    /// Sum of their bounds.
    pub limit: u64,
    /// Sum of their work in flight whose measured time has not ended.
    pub in_flight: u64,
    /// Highest mean latency without a queue among them, as last measured.
    pub base_latency: Wait,
    /// Highest mean latency among them, of the last round of measurements.
    pub mean_latency: Wait,
}

/// The controllers, by hash of rule and key.
#[derive(Debug, Default)]
pub(super) struct AdaptiveBounds {
    /// Bound: [`ADAPTIVE_KEYS_MAX`].
    controllers: HashMap<u64, KeyController>,
    /// The keys that were idle at the last search, the longest idle one last. Bound: [`ADAPTIVE_KEYS_MAX`].
    idle: Vec<u64>,
    /// The instant of the last search for idle keys.
    searched_at: Option<Micros>,
}

#[derive(Debug)]
struct KeyController {
    rule: Arc<str>,
    controller: AdaptiveConcurrency,
    used_at: Micros,
}

impl AdaptiveBounds {
    /// The most work that may go on now; `None` if the rule has no bound.
    pub(super) fn bound(&self, rule: &Rule, hash: u64) -> Option<u32> {
        let concurrency = rule.concurrency.as_ref()?;
        let Some(min) = concurrency.adaptive_min else { return Some(concurrency.max) };
        let found = self.controllers.get(&hash).map(|one| one.controller.limit());
        let unmeasured = || AdaptiveConcurrency::new(min, concurrency.max).limit();
        Some(found.unwrap_or_else(unmeasured).clamp(min, concurrency.max))
    }

    /// Records that work of a rule begins; `counts` has all work in flight, this included.
    pub(super) fn began(
        &mut self,
        rule: &Rule,
        hash: u64,
        counts: &HashMap<u64, u32>,
        now: Micros,
    ) {
        let Some(concurrency) = &rule.concurrency else { return };
        let Some(min) = concurrency.adaptive_min else { return };
        if !self.controllers.contains_key(&hash) && !self.has_room(counts, now) {
            return;
        }
        let one = self.controllers.entry(hash).or_insert_with(|| KeyController {
            rule: Arc::clone(&rule.name),
            controller: AdaptiveConcurrency::new(min, concurrency.max),
            used_at: now,
        });
        one.used_at = now;
        one.controller.set_range(min, concurrency.max);
        one.controller.began(counts.get(&hash).copied().unwrap_or(1));
    }

    /// Returns true if one more controller fits, if need be in the place of the longest idle one.
    fn has_room(&mut self, counts: &HashMap<u64, u32>, now: Micros) -> bool {
        self.controllers.len() < ADAPTIVE_KEYS_MAX
            || self.remove_idle(counts)
            || self.search_idle(counts, now) && self.remove_idle(counts)
    }

    /// Removes the longest idle of the keys that were found; those in use since then stay. Returns false if none is left.
    fn remove_idle(&mut self, counts: &HashMap<u64, u32>) -> bool {
        let is_idle = |one: &KeyController| self.searched_at.is_some_and(|at| one.used_at <= at);
        while let Some(hash) = self.idle.pop() {
            if !counts.contains_key(&hash) && self.controllers.get(&hash).is_some_and(is_idle) {
                return self.controllers.remove(&hash).is_some();
            }
        }
        false
    }

    /// Finds the idle keys. Returns false if the last search was just now.
    fn search_idle(&mut self, counts: &HashMap<u64, u32>, now: Micros) -> bool {
        let just_now = |at: Micros| at <= now && at.until(now) < SEARCH_INTERVAL;
        if self.searched_at.is_some_and(just_now) {
            return false;
        }
        self.searched_at = Some(now);
        let idle = self.controllers.iter().filter(|(hash, _)| !counts.contains_key(hash));
        let mut idle: Vec<(Micros, u64)> = idle.map(|(hash, one)| (one.used_at, *hash)).collect();
        idle.sort_unstable_by(|one, other| other.cmp(one));
        self.idle.extend(idle.into_iter().map(|(_, hash)| hash));
        true
    }

    /// Records the end of work; `in_flight` is what is left.
    pub(super) fn ended(&mut self, hash: u64, outcome: WorkOutcome, in_flight: u32, now: Micros) {
        let Some(one) = self.controllers.get_mut(&hash) else { return };
        match outcome {
            WorkOutcome::Answered(latency) => one.controller.ended(latency, in_flight, now),
            WorkOutcome::Overloaded => one.controller.overloaded(in_flight, now),
            WorkOutcome::Abandoned(waited) => one.controller.abandoned(waited, in_flight, now),
            WorkOutcome::Unmeasured => {}
        }
    }

    /// The bounds of the rules whose keys are in use, by name.
    pub(super) fn report(
        &self,
        counts: &HashMap<u64, u32>,
        now: Micros,
    ) -> Vec<AdaptiveBoundReport> {
        let mut reports = BTreeMap::new();
        for (hash, one) in &self.controllers {
            let in_flight = counts.get(hash).copied().unwrap_or(0);
            if in_flight == 0 && one.used_at.until(now) > IDLE {
                continue;
            }
            let report = reports.entry(&one.rule).or_insert_with(|| AdaptiveBoundReport {
                rule: Arc::clone(&one.rule),
                keys: 0,
                limit: 0,
                in_flight: 0,
                base_latency: Wait::ZERO,
                mean_latency: Wait::ZERO,
            });
            report.keys += 1;
            report.limit += u64::from(one.controller.limit());
            report.in_flight += u64::from(in_flight);
            report.base_latency = report.base_latency.max(one.controller.base_latency());
            report.mean_latency = report.mean_latency.max(one.controller.mean_latency());
        }
        reports.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Source, compile};

    const FULL: u64 = ADAPTIVE_KEYS_MAX as u64;
    const NOON: Micros = Micros::from_secs(1_794_744_000);

    fn rule() -> Rule {
        let text = "rules: [{ name: app, key: '{ip}', concurrency: adaptive }]";
        let compiled = compile(&[Source::from_text("rules.yaml", text)]);
        compiled.rules.expect("valid").rules().next().expect("one").clone()
    }

    fn later(micros: u64) -> Micros {
        NOON.after(Wait::from_micros(micros))
    }

    #[test]
    fn a_full_table_is_searched_for_idle_keys_once_per_interval() {
        let (rule, mut bounds) = (rule(), AdaptiveBounds::default());
        let mut counts: HashMap<u64, u32> = (0..FULL).map(|hash| (hash, 1)).collect();
        (0..FULL).for_each(|hash| bounds.began(&rule, hash, &counts, NOON));
        let mut is_measured = |hash, counts: &HashMap<u64, u32>, now| {
            bounds.began(&rule, hash, counts, now);
            bounds.controllers.contains_key(&hash)
        };
        assert!(!is_measured(FULL, &counts, NOON), "all are busy");
        counts.retain(|hash, _| *hash >= 3);
        assert!(!is_measured(FULL, &counts, later(99_999)), "not searched again so soon");
        // One search finds all three. The second is busy again when its place is wanted.
        let now = later(100_000);
        assert!(is_measured(FULL, &counts, now));
        counts.insert(FULL, 1);
        assert!(is_measured(1, &counts, now));
        counts.insert(1, 1);
        assert!(is_measured(FULL + 1, &counts, now), "in the place of another one");
        counts.insert(FULL + 1, 1);
        assert!(!is_measured(FULL + 2, &counts, now), "nothing was idle at the search any more");
        assert!(is_measured(1, &counts, now), "a busy key stays");
        assert_eq!(bounds.controllers.len(), ADAPTIVE_KEYS_MAX);
    }

    #[test]
    fn a_key_that_was_used_since_the_search_stays() {
        let (rule, mut bounds) = (rule(), AdaptiveBounds::default());
        let nothing = HashMap::new();
        (0..FULL).for_each(|hash| bounds.began(&rule, hash, &nothing, later(hash)));
        bounds.began(&rule, FULL, &nothing, later(2_000));
        assert!(!bounds.controllers.contains_key(&0), "the longest idle one");
        // The next in line does some work, and ends it.
        bounds.began(&rule, 1, &nothing, later(3_000));
        bounds.began(&rule, FULL + 1, &nothing, later(4_000));
        assert!(bounds.controllers.contains_key(&1) && !bounds.controllers.contains_key(&2));
    }
}
