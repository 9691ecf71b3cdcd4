//! The excess of a bucket: its ticks under other numbers, and its place in records.
//!
//! A record has one number for the debt and one for the excess. Each is exact while it fits there, counted in ticks. A
//! larger one is rounded up when it is written, so that nothing used is ever forgotten. Debt is then whole microseconds
//! of refill, which a script can round to, too. Excess is whole units, which is exact if the numbers change back at
//! once, and never too much for a number, however far the smaller limit is below the larger one. A write that rounds
//! excess loses less than a unit, and less than what had flowed back since the write before.

use super::{ExcessUnits, RefillTime, TokenBucketState, UsageUnit, max_debt};
use crate::limit::{BucketNumbers, Limit};
use crate::time::MAX_EXACT;

/// The excess of a bucket as shared stores keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredExcess {
    /// Time of refill.
    Time(RefillTime),
    /// Whole units: if there is too much for a time.
    Units(u64),
}

impl StoredExcess {
    /// The excess of a state; `None` if it has none.
    pub fn of(limit: &Limit, state: &TokenBucketState) -> Option<StoredExcess> {
        let bucket = &limit.bucket;
        (state.excess > 0).then(|| match fits_in_ticks(state.excess) {
            true => {
                let (whole, part) = bucket.by_drain.div_rem(state.excess);
                StoredExcess::Time(RefillTime { whole: whole as u64, part })
            }
            false => StoredExcess::Units(bucket.by_unit.ceil(state.excess) as u64),
        })
    }

    /// The ticks of this excess; `None` if no state of this limit can have them.
    pub fn to_ticks(self, limit: &Limit) -> Option<u128> {
        let BucketNumbers { unit, drain, .. } = limit.bucket;
        let ticks = match self {
            StoredExcess::Time(RefillTime { whole, part }) if part < drain => {
                u128::from(whole) * u128::from(drain) + u128::from(part)
            }
            StoredExcess::Time(_) => return None,
            StoredExcess::Units(units) => u128::from(units) * u128::from(unit),
        };
        (ticks <= max_excess(&limit.bucket)).then_some(ticks)
    }
}

#[inline]
fn fits_in_ticks(ticks: u128) -> bool {
    ticks <= u128::from(MAX_EXACT)
}

impl ExcessUnits {
    /// The units in which so many ticks are stored.
    fn of(debt: u128, excess: u128) -> ExcessUnits {
        let in_ticks = |ticks: u128, larger: UsageUnit| match fits_in_ticks(ticks) {
            true => UsageUnit::Ticks,
            false => larger,
        };
        ExcessUnits {
            debt: in_ticks(debt, UsageUnit::Micros),
            excess: in_ticks(excess, UsageUnit::Units),
        }
    }
}

impl UsageUnit {
    /// Converts ticks to this unit, rounded up.
    fn count(self, bucket: &BucketNumbers, ticks: u128) -> u128 {
        match self {
            UsageUnit::Ticks => ticks,
            UsageUnit::Micros => bucket.by_drain.ceil(ticks),
            UsageUnit::Units => bucket.by_unit.ceil(ticks),
        }
    }

    /// Converts a count of this unit to ticks.
    fn ticks(self, bucket: &BucketNumbers, count: u128) -> u128 {
        match self {
            UsageUnit::Ticks => count,
            UsageUnit::Micros => max_debt(bucket).min(count * u128::from(bucket.drain)),
            UsageUnit::Units => max_excess(bucket).min(count * u128::from(bucket.unit)),
        }
    }
}

impl TokenBucketState {
    /// Mark, debt and excess of a state with excess, and the units of the latter two.
    pub(crate) fn to_excess_numbers(self, limit: &Limit) -> (ExcessUnits, [u64; 3]) {
        let (bucket, debt, excess) = (&limit.bucket, self.debt(limit), self.excess);
        let units = ExcessUnits::of(debt, excess);
        let (debt, excess) = (units.debt.count(bucket, debt), units.excess.count(bucket, excess));
        (units, [self.mark, debt as u64, excess as u64])
    }

    /// The state of [`TokenBucketState::to_excess_numbers`].
    pub(crate) fn from_excess_numbers(
        limit: &Limit,
        units: ExcessUnits,
        [mark, debt, excess]: [u64; 3],
    ) -> TokenBucketState {
        let excess = units.excess.ticks(&limit.bucket, excess.into());
        let mut state = TokenBucketState { mark, excess, ..TokenBucketState::default() };
        state.set_debt(limit, units.debt.ticks(&limit.bucket, debt.into()));
        state
    }
}

/// The largest excess that is stored, in ticks: a full bucket of any limit, in units.
#[inline]
pub(super) fn max_excess(bucket: &BucketNumbers) -> u128 {
    u128::from(MAX_EXACT) * u128::from(bucket.unit)
}

/// The debt and the excess that are stored for these; debt alone is left as it is.
#[inline]
pub(super) fn storable(limit: &Limit, debt: u128, excess: u128) -> (u128, u128) {
    if excess == 0 {
        return (debt, 0);
    }
    let bucket = &limit.bucket;
    let debt = debt.min(max_debt(bucket));
    let excess = excess.min(max_excess(bucket));
    let units = ExcessUnits::of(debt, excess);
    let debt = units.debt.ticks(bucket, units.debt.count(bucket, debt));
    let excess = units.excess.ticks(bucket, units.excess.count(bucket, excess));
    (debt.min(max_debt(bucket)), excess)
}

/// Converts an amount to the ticks of other numbers, rounded up to a whole tick.
pub(super) fn ticks_of_other_numbers(
    ticks: u128,
    old: &BucketNumbers,
    new: &BucketNumbers,
) -> u128 {
    let (units, part) = old.by_unit.div_rem(ticks);
    let part = u128::from(part) * u128::from(new.unit);
    units * u128::from(new.unit) + part.div_ceil(u128::from(old.unit))
}
