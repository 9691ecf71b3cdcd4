//! The builder of limits, which checks their numbers.

use std::sync::Arc;
use std::time::Duration;

use super::bucket_numbers::BucketNumbers;
use super::calendar::Calendar;
use super::identity::{limit_fingerprint, state_kind_hash};
use super::options::{Align, LimitOptions, OnChange, Precision};
use super::validation::{check_calendar, check_name, check_options, checked_count, checked_period};
use super::{Limit, LimitError, MAX_PERIOD_US, notation};
use crate::algorithm::{Algorithm, Divisor, LimitStateKind};
use crate::hash::public_hash;

/// A description of a limit; [`LimitBuilder::build`] checks it.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct LimitBuilder {
    pub(super) name: String,
    pub(super) units: u64,
    pub(super) period: Duration,
    pub(super) burst: Option<u64>,
    pub(super) algorithm: Option<Algorithm>,
    pub(super) options: LimitOptions,
    pub(super) calendar: Option<Arc<dyn Calendar>>,
}

impl LimitBuilder {
    /// Sets the most that may pass at one instant; makes it a token bucket unless an algorithm is
    /// given.
    pub fn burst(mut self, units: u64) -> LimitBuilder {
        self.burst = Some(units);
        self
    }

    /// Sets the algorithm. Without it, a rate with a burst is a token bucket, one of a calendar a
    /// fixed window, and any other a sliding window counter.
    pub fn algorithm(mut self, algorithm: Algorithm) -> LimitBuilder {
        self.algorithm = Some(algorithm);
        self
    }

    /// Makes a leaky bucket a queue: admitted requests carry a delay instead of passing in a burst.
    pub fn queue(mut self) -> LimitBuilder {
        self.options.queue = true;
        self
    }

    /// Sets the start of fixed windows.
    pub fn align(mut self, align: Align) -> LimitBuilder {
        self.options.align = align;
        self
    }

    /// Gives each key's fixed windows an offset of their own.
    pub fn stagger(mut self) -> LimitBuilder {
        self.options.stagger = true;
        self
    }

    /// Makes a sliding window counter count in this many whole sub-buckets, never above N.
    pub fn buckets(mut self, buckets: u32) -> LimitBuilder {
        self.options.precision = Precision::Buckets(buckets);
        self
    }

    /// Sets the policy name, as headers and metrics show it: letters, digits, `_` and `-`, at most
    /// 64. Limits with different names never share state; limits with the same name, algorithm and
    /// period do, whatever their N. Tiers between which a client can switch need different names,
    /// because each switch cuts the units used to the new capacity.
    pub fn name(mut self, name: impl Into<String>) -> LimitBuilder {
        self.name = name.into();
        self
    }

    /// Sets the treatment of used units when the numbers change.
    pub fn on_change(mut self, on_change: OnChange) -> LimitBuilder {
        self.options.on_change = on_change;
        self
    }

    /// Checks the numbers and makes the limit.
    pub fn build(self) -> Result<Limit, LimitError> {
        check_name(&self.name)?;
        let period = checked_period(self.period)?;
        checked_count("the rate", self.units, "write at least 1, such as 1/day")?;
        let default = match self.burst {
            _ if self.calendar.is_some() => Algorithm::FixedWindow,
            Some(_) => Algorithm::TokenBucket,
            None => Algorithm::SlidingWindowCounter,
        };
        let algorithm = self.algorithm.unwrap_or(default);
        let calendar = self.calendar.as_deref();
        let capacity = self.burst.unwrap_or(self.units);
        checked_count(
            "the burst",
            capacity,
            "it is the largest cost that can pass at once; write at least 1, or leave it out",
        )?;
        calendar.map_or(Ok(()), |calendar| check_calendar(calendar, algorithm, self.options))?;
        check_options(algorithm, self.burst, self.options, period)?;
        let bucket = BucketNumbers::new(self.units, period, capacity);
        if algorithm.is_bucket() && bucket.full_refill > MAX_PERIOD_US {
            return Err(LimitError::new(format!(
                "a burst of {capacity} at {} per {} takes more than 100 years to refill: \
                 lower the burst or raise the rate",
                self.units,
                notation::show_period(period),
            )));
        }
        let kind = state_kind_hash(algorithm, period, self.options, calendar);
        let longest = calendar.map(|calendar| calendar.unit().longest().as_micros() as u64);
        Ok(Limit {
            id: public_hash(&[self.name.as_bytes(), &kind.to_le_bytes()]),
            fingerprint: limit_fingerprint(kind, self.options, [self.units, capacity]),
            name: self.name.into(),
            algorithm,
            kind: LimitStateKind::new(algorithm, self.options.precision, self.options.stagger),
            units: self.units,
            period,
            capacity,
            options: self.options,
            bucket,
            by_period: Divisor::new(period),
            window_offset: self.options.align.offset(period),
            window_longest: longest.unwrap_or(period),
            calendar: self.calendar,
            numbers_since: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::MAX_PERIOD;
    use crate::time::MAX_EXACT;

    const YEAR: Duration = Duration::from_secs(31_557_600);

    #[test]
    fn impossible_numbers_say_what_to_write() {
        let cases: [(LimitBuilder, &str); 15] = [
            (Limit::per_minute(0), "the rate is zero: write at least 1"),
            (Limit::per_minute(1).burst(0), "the burst is zero"),
            (Limit::per(1, Duration::ZERO), "the period is zero"),
            (Limit::per(1, Duration::from_nanos(1_500)), "whole number of microseconds"),
            (Limit::per(1, YEAR * 101), "longer than 100 years"),
            (Limit::per_second(1 << 53), "too large: the most is 9007199254740991"),
            (Limit::per_second(1).burst(1 << 53), "the burst of 9007199254740992 is too large"),
            (Limit::per_day(1).burst(36_526), "takes more than 100 years to refill"),
            (Limit::per_day(1).name("a b"), "letters, digits"),
            (Limit::per_day(1).name("x".repeat(65)), "at most 64"),
            (
                Limit::per_day(1).burst(2).algorithm(Algorithm::FixedWindow),
                "`burst` means nothing to fixed_window",
            ),
            (Limit::per_day(1).queue(), "`queue` means nothing to sliding_window_counter"),
            (Limit::per_day(1).buckets(2_000), "between 1 and 1023"),
            (Limit::per(5, Duration::from_micros(7)).buckets(8), "between 1 and 7"),
            (
                Limit::per_day(1)
                    .algorithm(Algorithm::FixedWindow)
                    .align(Align::FirstHit)
                    .stagger(),
                "contradict",
            ),
        ];
        for (builder, want) in cases {
            let error = builder.clone().build().expect_err(want).to_string();
            assert!(error.contains(want), "{builder:?}: {error}");
        }
    }

    #[test]
    fn the_ends_of_the_range_are_accepted() {
        for builder in [
            Limit::per(1, MAX_PERIOD),
            Limit::per(1, Duration::from_micros(1)),
            Limit::per_second(MAX_EXACT),
            Limit::per_day(1).burst(36_525),
            Limit::per_second(1_000_000).burst(4_000_000_000),
        ] {
            builder.clone().build().unwrap_or_else(|error| panic!("{builder:?}: {error}"));
        }
    }
}
