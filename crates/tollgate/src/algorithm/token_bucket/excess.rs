//! The excess of a bucket: its ticks under other numbers, and its place in a record of three numbers.

use super::{ExcessUnit, TokenBucketState, max_debt};
use crate::limit::{BucketNumbers, Limit};
use crate::time::MAX_EXACT;

impl TokenBucketState {
    /// Mark, debt and excess of a state with excess, and the unit of the latter two.
    pub(crate) fn to_excess_numbers(self, limit: &Limit) -> (ExcessUnit, [u64; 3]) {
        let both = [self.debt(limit), self.excess];
        match both.map(u64::try_from) {
            [Ok(debt), Ok(excess)] if debt.max(excess) <= MAX_EXACT => {
                (ExcessUnit::Ticks, [self.mark, debt, excess])
            }
            _ => {
                let [debt, excess] = both.map(|ticks| limit.bucket.by_drain.ceil(ticks) as u64);
                (ExcessUnit::Micros, [self.mark, debt, excess])
            }
        }
    }

    /// The state of [`TokenBucketState::to_excess_numbers`].
    pub(crate) fn from_excess_numbers(
        limit: &Limit,
        unit: ExcessUnit,
        [mark, debt, excess]: [u64; 3],
    ) -> TokenBucketState {
        let ticks = |number: u64| match unit {
            ExcessUnit::Ticks => u128::from(number),
            ExcessUnit::Micros => u128::from(number) * u128::from(limit.bucket.drain),
        };
        let excess = ticks(excess).min(max_debt(&limit.bucket));
        let mut state = TokenBucketState { mark, excess, ..TokenBucketState::default() };
        state.set_debt(limit, ticks(debt));
        state
    }
}

/// The ticks that are stored for `ticks`, one of these two numbers of a state. A record has no room for both
/// if they are large: then they are rounded up to whole microseconds of refill.
#[inline]
pub(super) fn storable(limit: &Limit, ticks: u128, debt: u128, excess: u128) -> u128 {
    if excess == 0 || debt.max(excess) <= u128::from(MAX_EXACT) {
        return ticks;
    }
    let whole = limit.bucket.by_drain.ceil(ticks) * u128::from(limit.bucket.drain);
    whole.min(max_debt(&limit.bucket))
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
