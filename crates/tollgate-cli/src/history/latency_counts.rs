//! `LatencyCounts`: decisions by the time that they took, and the percentiles of it.

use crate::metrics::histogram::{BOUNDS, HistogramBuckets};

/// Decisions in each bucket of the histogram; the last bucket has no upper bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LatencyCounts([u64; BOUNDS.len() + 1]);

impl LatencyCounts {
    /// The decisions so far.
    pub(super) fn of(buckets: &HistogramBuckets) -> LatencyCounts {
        let below = |place: usize| place.checked_sub(1).map_or(0, |one| buckets.cumulative[one]);
        let count = |place: usize| buckets.cumulative[place].saturating_sub(below(place));
        LatencyCounts(std::array::from_fn(count))
    }

    /// The difference to earlier counts.
    pub(super) fn since(&self, before: &LatencyCounts) -> LatencyCounts {
        LatencyCounts(std::array::from_fn(|place| self.0[place].saturating_sub(before.0[place])))
    }

    pub(super) fn add(&mut self, other: &LatencyCounts) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }

    /// The time that this part of the decisions did not exceed, in microseconds: interpolated within its bucket.
    /// Above the last bound it is that bound. `None` without decisions.
    pub(crate) fn percentile_us(&self, part: f64) -> Option<f64> {
        let total: u64 = self.0.iter().sum();
        let rank = part * total as f64;
        let (mut below, mut from_ns) = (0.0, 0);
        for (count, (to_ns, _)) in self.0.iter().zip(BOUNDS) {
            let count = *count as f64;
            if count > 0.0 && below + count >= rank {
                let share = ((rank - below) / count).clamp(0.0, 1.0);
                return Some(micros(from_ns as f64 + share * (to_ns - from_ns) as f64));
            }
            (below, from_ns) = (below + count, to_ns);
        }
        (total > 0).then_some(micros(from_ns as f64))
    }

    /// The upper bound of the longest decision, in microseconds; above the last bound it is that bound.
    pub(crate) fn max_us(&self) -> Option<f64> {
        let longest = self.0.iter().rposition(|count| *count > 0)?;
        Some(micros(BOUNDS[longest.min(BOUNDS.len() - 1)].0 as f64))
    }
}

/// Nanoseconds as microseconds with two digits: more would pretend a precision that buckets do not have.
fn micros(nanos: f64) -> f64 {
    (nanos / 10.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::histogram::Histogram;

    #[test]
    fn percentiles_lie_in_their_bucket() {
        let histogram = Histogram::default();
        assert_eq!(LatencyCounts::default().percentile_us(0.5), None);
        assert_eq!(LatencyCounts::default().max_us(), None);
        histogram.observe(Duration::from_nanos(400), 98);
        let early = LatencyCounts::of(&histogram.buckets());
        histogram.observe(Duration::from_micros(80), 1);
        histogram.observe(Duration::from_secs(1), 1);
        let all = LatencyCounts::of(&histogram.buckets());
        // Part of the decisions; bounds of the percentile
        for (part, from, to) in [(0.5, 0.25, 0.5), (0.99, 50.0, 100.0), (1.0, 1e5, 1e5)] {
            let got = all.percentile_us(part).unwrap();
            assert!((from..=to).contains(&got), "{part}: {got}");
        }
        assert_eq!((early.max_us(), all.max_us()), (Some(0.5), Some(1e5)));
        let mut later = all.since(&early);
        assert!((50.0..=100.0).contains(&later.percentile_us(0.5).unwrap()));
        later.add(&early);
        assert_eq!(later, all);
    }
}
