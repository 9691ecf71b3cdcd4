//! The numbers of a bucket: ticks, in which every rational rate is exact.

use crate::algorithm::Divisor;
use crate::algorithm::token_bucket::ShortNumbers;

/// The numbers with which a bucket computes. One unit is `unit` ticks long and `drain` ticks pass
/// in a microsecond, without a common factor: 3/second is 1,000,000 and 3, 100/hour 36,000,000 and
/// 1. Debt counted in ticks is exact for every rational rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketNumbers {
    pub(crate) unit: u64,
    pub(crate) drain: u64,
    /// A full bucket in ticks.
    pub(crate) capacity: u128,
    /// Microseconds until an empty bucket is full.
    pub(crate) full_refill: u64,
    pub(crate) by_unit: Divisor,
    pub(crate) by_drain: Divisor,
    /// The same numbers for the fast path, if they are small enough.
    pub(crate) short: Option<ShortNumbers>,
}

impl BucketNumbers {
    pub(super) fn new(units: u64, period: u64, capacity: u64) -> BucketNumbers {
        let common = gcd(units, period);
        let (drain, unit) = (units / common, period / common);
        let ticks = u128::from(capacity) * u128::from(unit);
        let full_refill = u64::try_from(ticks.div_ceil(u128::from(drain))).unwrap_or(u64::MAX);
        let mut numbers = BucketNumbers {
            unit,
            drain,
            capacity: ticks,
            full_refill,
            by_unit: Divisor::new(unit),
            by_drain: Divisor::new(drain),
            short: None,
        };
        numbers.short = ShortNumbers::new(&numbers);
        numbers
    }
}

pub(super) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
