//! The level of a limit: what its state holds, as one number for people.

use std::fmt;

use tollgate::{Limit, Micros, Outcome};

/// Thousandths of a unit in a unit.
const THOUSAND: i128 = 1_000;

/// A number of units with three decimals, negative in debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitLevel {
    thousandths: i64,
}

impl LimitLevel {
    /// Whole units.
    pub(super) fn whole(units: u64) -> LimitLevel {
        LimitLevel::of_thousandths(i128::from(units) * THOUSAND)
    }

    fn of_thousandths(thousandths: i128) -> LimitLevel {
        let bounded = thousandths.clamp(i64::MIN.into(), i64::MAX.into());
        LimitLevel { thousandths: bounded as i64 }
    }

    /// The tokens in a bucket, rounded down. A bucket is full after [`Outcome::reset_after`], and
    /// fills at the limit's rate: that is all that a store needs to say.
    pub(super) fn tokens(limit: &Limit, present: &Outcome, now: Micros) -> LimitLevel {
        let until_full = present.reset_after.as_micros().unwrap_or_default();
        // A caller whose clock is behind waits for that, too.
        let lag = present.served_at.as_u64().saturating_sub(now.as_u64());
        let refill_us = i128::from(until_full.saturating_sub(lag));
        let missing = refill_us.saturating_mul(i128::from(limit.units()) * THOUSAND);
        let period_us = i128::from(limit.period_us());
        let missing = missing.saturating_add(period_us - 1) / period_us;
        let tokens = i128::from(limit.capacity()) * THOUSAND - missing;
        if !present.debt_for.is_zero() {
            return LimitLevel::of_thousandths(tokens);
        }
        // The wait is rounded up to a microsecond, in which several units may come.
        let whole = i128::from(present.remaining) * THOUSAND;
        LimitLevel::of_thousandths(tokens.clamp(whole, whole + THOUSAND - 1))
    }

    /// The rest of a capacity.
    pub(super) fn rest_of(self, capacity: u64) -> LimitLevel {
        let capacity = i128::from(capacity) * THOUSAND;
        LimitLevel::of_thousandths(capacity - i128::from(self.thousandths))
    }

    /// The level with so many units more or less.
    pub(super) fn plus(self, units: i128) -> LimitLevel {
        LimitLevel::of_thousandths(i128::from(self.thousandths) + units * THOUSAND)
    }

    /// The same number without its sign.
    pub(super) fn abs(self) -> LimitLevel {
        LimitLevel { thousandths: self.thousandths.saturating_abs() }
    }

    /// Returns true if more was charged than there is room for.
    pub(super) fn is_negative(self) -> bool {
        self.thousandths < 0
    }

    /// Returns true if there is nothing.
    pub(super) fn is_zero(self) -> bool {
        self.thousandths == 0
    }

    /// The number, for JSON.
    pub fn as_f64(self) -> f64 {
        self.thousandths as f64 / THOUSAND as f64
    }
}

impl fmt::Display for LimitLevel {
    /// Writes as many decimals as there are: `3.4`, `-2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.thousandths < 0 { "-" } else { "" };
        let size = self.thousandths.unsigned_abs();
        let (whole, part) = (size / 1_000, size % 1_000);
        match part {
            0 => write!(f, "{sign}{whole}"),
            part => write!(f, "{sign}{whole}.{}", format!("{part:03}").trim_end_matches('0')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_the_decimals_they_need() {
        for (thousandths, want) in
            [(0, "0"), (3_400, "3.4"), (-2_000, "-2"), (-1, "-0.001"), (20_050, "20.05")]
        {
            assert_eq!(LimitLevel::of_thousandths(thousandths).to_string(), want);
        }
    }
}
