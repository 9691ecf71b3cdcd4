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
        if !self.controllers.contains_key(&hash) && !self.has_room(counts) {
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
    fn has_room(&mut self, counts: &HashMap<u64, u32>) -> bool {
        if self.controllers.len() < ADAPTIVE_KEYS_MAX {
            return true;
        }
        let idle = self.controllers.iter().filter(|(hash, _)| !counts.contains_key(hash));
        let oldest = idle.min_by_key(|(_, one)| one.used_at).map(|(hash, _)| *hash);
        oldest.is_some_and(|hash| self.controllers.remove(&hash).is_some())
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
