//! `DecisionTiming`: the duration of decisions, as a histogram.
//!
//! Reading the clock twice costs a good part of a decision that a store in this process makes. Of those
//! only the first ones of a thread are all timed; later each timed one stands for several.

use std::cell::Cell;
use std::time::Instant;

use super::histogram::{Histogram, HistogramBuckets};

/// Number of decisions that one timed decision stands for. Not a power of two, so that pipelines and
/// batches of equal length are not always timed at the same position.
const SAMPLE_WEIGHT: u32 = 17;

/// Number of decisions of a thread that are all timed.
const ALL_TIMED: u32 = 64;

/// Help text of the metric.
pub(super) const HELP: &str =
    "Duration of decisions; under load one in 17 is timed and counts 17 times.";

/// Duration of decisions.
#[derive(Debug, Default)]
pub(crate) struct DecisionTiming(Histogram);

impl DecisionTiming {
    /// Times a decision that may have to wait for a store.
    #[inline]
    #[expect(
        clippy::disallowed_methods,
        reason = "durations are measured, nothing is decided by them"
    )]
    pub(crate) async fn measure<T>(&self, decide: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let decided = decide.await;
        self.0.observe(began.elapsed(), 1);
        decided
    }

    /// Makes a decision that does not wait, and times it if it is its turn. `Err` is none, and not counted.
    #[inline]
    #[expect(
        clippy::disallowed_methods,
        reason = "durations are measured, nothing is decided by them"
    )]
    pub(crate) fn measure_at_once<T, E>(
        &self,
        decide: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let Some(weight) = weight_of_next() else { return decide() };
        let began = Instant::now();
        let decided = decide()?;
        self.0.observe(began.elapsed(), weight);
        Ok(decided)
    }

    /// Times decisions that wait together.
    #[expect(
        clippy::disallowed_methods,
        reason = "durations are measured, nothing is decided by them"
    )]
    pub(crate) async fn measure_many(&self, decisions: usize, decide: impl Future<Output = ()>) {
        let began = Instant::now();
        decide.await;
        self.0.observe(began.elapsed(), decisions as u64);
    }

    /// Times decisions that are made together and do not wait; each counts with its share.
    #[expect(
        clippy::disallowed_methods,
        reason = "durations are measured, nothing is decided by them"
    )]
    pub(crate) fn measure_many_at_once<E>(
        &self,
        decisions: usize,
        decide: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let began = Instant::now();
        decide()?;
        let share = began.elapsed() / u32::try_from(decisions).unwrap_or(u32::MAX).max(1);
        self.0.observe(share, decisions as u64);
        Ok(())
    }

    pub(crate) fn buckets(&self) -> HistogramBuckets {
        self.0.buckets()
    }
}

/// Number of decisions that the next one of this thread stands for; `None` if it is not timed. A timed
/// decision stands for itself and the untimed ones before it, so the count is never ahead of the truth.
#[inline]
fn weight_of_next() -> Option<u64> {
    thread_local!(static MADE: Cell<u32> = const { Cell::new(0) });
    let number = MADE.get();
    if number < ALL_TIMED {
        MADE.set(number + 1);
        return Some(1);
    }
    let is_last = number + 1 == ALL_TIMED + SAMPLE_WEIGHT;
    MADE.set(if is_last { ALL_TIMED } else { number + 1 });
    is_last.then_some(SAMPLE_WEIGHT.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_decision_is_counted_though_few_are_timed() {
        let timing = DecisionTiming::default();
        let count = || timing.buckets().cumulative.last().copied().unwrap();
        for made in 1..=1_000_u64 {
            assert_eq!(timing.measure_at_once(|| Ok::<_, ()>(made)), Ok(made));
            let behind = made - count();
            assert!(behind < SAMPLE_WEIGHT.into(), "{behind} of {made} are not counted");
            assert!(behind == 0 || made > ALL_TIMED.into(), "the first ones are all timed");
        }
    }
}
