//! The recent past of the server's traffic: decisions by outcome and rule, and the time that they took, for charts.
//!
//! A thread of low priority reads the counters of the metrics once a second and keeps the differences. Decisions
//! know nothing of it: they count what they count anyway. Three rings keep five minutes by the second, an hour by ten
//! seconds and a day by five minutes. Of each step the busiest rules are kept by name and the others are summed up.
//!
//! Bound: 948 steps of at most 7 KB, and one entry for each rule with traffic in the three steps that are not complete:
//! 7 MB, and 3 MB more with 10,000 busy rules.

mod counter_reader;
mod latency_counts;
mod ring;
mod sampler;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::Micros;

use counter_reader::RuleTraffic;
pub(crate) use counter_reader::TrafficSecond;
#[cfg(test)]
use latency_counts::LatencyCounts;
use ring::HistoryRing;
pub(crate) use ring::{HistorySeries, keep_busiest};
pub(crate) use sampler::TrafficSampler;

/// Names of the outcomes that are counted, in the order of [`TrafficCounts`].
pub(crate) const OUTCOME_NAMES: [&str; 7] =
    ["allowed", "refused", "shadow", "soft", "delayed", "unavailable", "refused_by_other"];

/// Index of requests that waited and were then admitted.
pub(crate) const DELAYED: usize = 4;

/// Decisions by outcome. No decision counts as two of `allowed`, `refused` and `unavailable`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrafficCounts(pub(crate) [u64; OUTCOME_NAMES.len()]);

impl TrafficCounts {
    /// Adds other counts.
    pub(crate) fn add(&mut self, other: &TrafficCounts) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }

    /// Takes away counts that are part of these.
    pub(crate) fn subtract(&mut self, part: &TrafficCounts) {
        *self = self.since(part);
    }

    /// The difference to earlier counts.
    fn since(&self, before: &TrafficCounts) -> TrafficCounts {
        TrafficCounts(std::array::from_fn(|place| self.0[place].saturating_sub(before.0[place])))
    }

    fn is_zero(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }

    /// Number of decisions; a delayed request counts once.
    pub(crate) fn decisions(&self) -> u64 {
        let counts = self.0.iter().enumerate().filter(|(place, _)| *place != DELAYED);
        counts.map(|(_, count)| count).sum()
    }
}

/// Is told of the traffic of each second, after it was recorded.
pub(crate) trait SecondObserver: Send + 'static {
    /// Called once a second on the thread that reads the counters.
    fn second_over(&mut self, second: &TrafficSecond);
}

/// A span of time that ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HistoryRange {
    FiveMinutes,
    Hour,
    Day,
}

impl HistoryRange {
    /// All of them, with their names.
    pub(crate) const ALL: [(&str, HistoryRange); 3] =
        [("5m", HistoryRange::FiveMinutes), ("1h", HistoryRange::Hour), ("24h", HistoryRange::Day)];
}

/// The rings of all ranges. Only the thread that samples, and requests to the admin listener, take the lock.
pub(crate) struct TrafficHistory {
    rings: Mutex<[HistoryRing; 3]>,
}

impl Default for TrafficHistory {
    fn default() -> TrafficHistory {
        let rings =
            [HistoryRing::new(1, 300), HistoryRing::new(10, 360), HistoryRing::new(300, 288)];
        TrafficHistory { rings: Mutex::new(rings) }
    }
}

impl TrafficHistory {
    /// Adds the traffic of the last second to all rings.
    fn record(&self, second: &TrafficSecond) {
        self.lock().iter_mut().for_each(|ring| ring.record(second));
    }

    /// Returns true if a step of the range has traffic of this rule.
    pub(crate) fn knows(&self, range: HistoryRange, rule: &str) -> bool {
        self.lock()[range as usize].knows(rule)
    }

    /// The steps of a range, of all rules or of one.
    pub(crate) fn series(
        &self,
        range: HistoryRange,
        rule: Option<&str>,
        now: Micros,
    ) -> HistorySeries {
        self.lock()[range as usize].series(rule, now)
    }

    fn lock(&self) -> MutexGuard<'_, [HistoryRing; 3]> {
        // Counts that a panic left incomplete are still counts.
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
