//! `Histogram`: durations in fixed buckets, striped by thread.

use std::time::Duration;

use tollgate_rules::stripes::StripedCounters;

/// The upper bounds of the buckets in nanoseconds, and as both formats spell them in seconds.
pub(crate) const BOUNDS: [(u64, &str); 18] = [
    (250, "2.5e-07"),
    (500, "5e-07"),
    (1_000, "1e-06"),
    (2_500, "2.5e-06"),
    (5_000, "5e-06"),
    (10_000, "1e-05"),
    (25_000, "2.5e-05"),
    (50_000, "5e-05"),
    (100_000, "0.0001"),
    (250_000, "0.00025"),
    (500_000, "0.0005"),
    (1_000_000, "0.001"),
    (2_500_000, "0.0025"),
    (5_000_000, "0.005"),
    (10_000_000, "0.01"),
    (25_000_000, "0.025"),
    (50_000_000, "0.05"),
    (100_000_000, "0.1"),
];

/// Index of the bucket above all bounds.
const OVERFLOW_BUCKET: usize = BOUNDS.len();
const SUM_INDEX: usize = OVERFLOW_BUCKET + 1;

/// Counts durations. Bound: one counter for each bucket and stripe.
#[derive(Debug, Default)]
pub(crate) struct Histogram(StripedCounters<{ SUM_INDEX + 1 }>);

/// Counts of a histogram at one moment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HistogramBuckets {
    /// Number of durations up to each bound; the last is the total.
    pub(crate) cumulative: [u64; OVERFLOW_BUCKET + 1],
    pub(crate) sum_ns: u64,
}

impl Histogram {
    /// Counts a duration that so many events took.
    #[inline]
    pub(crate) fn observe(&self, took: Duration, times: u64) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Most are short, so the search ends early.
        let bucket = BOUNDS.iter().position(|(bound_ns, _)| took_ns <= *bound_ns);
        self.0.add(bucket.unwrap_or(OVERFLOW_BUCKET), times);
        self.0.add(SUM_INDEX, took_ns.saturating_mul(times));
    }

    pub(crate) fn buckets(&self) -> HistogramBuckets {
        let counted = self.0.sums();
        let mut up_to = [0; OVERFLOW_BUCKET + 1];
        let mut sum = 0;
        for (up_to, counted) in up_to.iter_mut().zip(counted) {
            sum += counted;
            *up_to = sum;
        }
        HistogramBuckets { cumulative: up_to, sum_ns: counted[SUM_INDEX] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_buckets_that_are_not_shorter() {
        // took_ns, the first bucket that has it
        let rows = [
            (0, 0),
            (250, 0),
            (251, 1),
            (1_000, 2),
            (1_001, 3),
            (100_000_000, 17),
            (100_000_001, 18),
            (9_000_000_000, 18),
        ];
        for (took_ns, first) in rows {
            let histogram = Histogram::default();
            histogram.observe(Duration::from_nanos(took_ns), 1);
            let buckets = histogram.buckets();
            assert_eq!(buckets.cumulative.iter().position(|count| *count == 1), Some(first));
            assert_eq!(
                (buckets.cumulative[OVERFLOW_BUCKET], buckets.sum_ns),
                (1, took_ns),
                "{took_ns}"
            );
        }
    }

    #[test]
    fn bounds_rise_and_are_spelt_as_they_are() {
        assert!(BOUNDS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (bound_ns, spelt) in BOUNDS {
            let seconds: f64 = spelt.parse().unwrap();
            assert!((seconds * 1e9 - bound_ns as f64).abs() < 1e-3, "{spelt}");
        }
    }
}
