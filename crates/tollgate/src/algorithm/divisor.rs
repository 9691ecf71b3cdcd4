//! Exact division by a number that is known in advance.
//!
//! A limit divides by the same few numbers all its life: a period, the length of one unit. A
//! hardware division costs as much as the rest of a decision, so each such number is turned once
//! into a multiplication. The result is exact, not an approximation: see the proof below.

/// A divisor between 1 and 2^60 with its reciprocal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divisor {
    by: u64,
    /// floor(2^(63 + shift) / by) + 1.
    reciprocal: u64,
    /// ceil(log2(by)).
    shift: u32,
}

impl Divisor {
    /// A divisor; 0 is read as 1 so that unused fields of a limit can hold anything.
    pub(crate) fn new(by: u64) -> Divisor {
        debug_assert!(by < 1 << 60, "the reciprocal of {by} does not fit in 64 bits");
        let by = by.max(1);
        let shift = u64::BITS - (by - 1).leading_zeros();
        let reciprocal = ((1u128 << (63 + shift)) / u128::from(by) + 1) as u64;
        Divisor { by, reciprocal, shift }
    }

    /// floor(x / by) for x < 2^63.
    ///
    /// With r = reciprocal × by − 2^(63+shift), 0 < r ≤ by ≤ 2^shift, the product is
    /// x / by + x × r / (by × 2^(63+shift)), and the second term is below 1 / by because
    /// x × r < 2^63 × 2^shift: it can never lift the quotient to the next whole number.
    #[inline]
    pub(crate) fn floor_short(self, x: u64) -> u64 {
        let doubled = u128::from(x << 1);
        ((doubled * u128::from(self.reciprocal)) >> 64) as u64 >> self.shift
    }

    /// ceil(x / by) for x < 2^62.
    #[inline]
    pub(crate) fn ceil_short(self, x: u64) -> u64 {
        self.floor_short(x + (self.by - 1))
    }

    /// Quotient and remainder.
    #[inline]
    pub(crate) fn div_rem(self, x: u128) -> (u128, u64) {
        if x < 1 << 63 {
            let short = x as u64;
            let quotient = self.floor_short(short);
            (u128::from(quotient), short - quotient * self.by)
        } else {
            div_rem_long(x, self.by)
        }
    }

    /// floor(x / by).
    #[inline]
    pub(crate) fn floor(self, x: u128) -> u128 {
        self.div_rem(x).0
    }

    /// ceil(x / by).
    #[inline]
    pub(crate) fn ceil(self, x: u128) -> u128 {
        let (quotient, remainder) = self.div_rem(x);
        quotient + u128::from(remainder > 0)
    }

    /// x mod by.
    #[inline]
    pub(crate) fn rem(self, x: u64) -> u64 {
        self.div_rem(u128::from(x)).1
    }
}

/// The rare wide case: very large numbers, or a very fine rate.
#[cold]
fn div_rem_long(x: u128, by: u64) -> (u128, u64) {
    (x / u128::from(by), (x % u128::from(by)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_plain_division() {
        let edges = |x: u64| [x.saturating_sub(1), x, x + 1];
        let powers: Vec<u64> = (0..60).flat_map(|bit| edges(1 << bit)).collect();
        let divisors = powers.iter().chain(&[3, 7, 10, 36_000_000, 86_400_000_000]);
        for &by in divisors.filter(|by| (1..1 << 60).contains(*by)) {
            let divisor = Divisor::new(by);
            let near = [by, by * 2, by * 3].map(u128::from);
            let wide = [(1u128 << 63) - 1, 1 << 63, 1 << 64, 1 << 105, u128::MAX];
            let numerators = powers.iter().map(|&x| u128::from(x)).chain(near).chain(wide);
            for x in numerators.flat_map(|x| [x.saturating_sub(1), x]) {
                let want = (x / u128::from(by), (x % u128::from(by)) as u64);
                assert_eq!(divisor.div_rem(x), want, "{x} / {by}");
                assert_eq!(divisor.ceil(x), x.div_ceil(u128::from(by)), "{x} / {by}");
                if x < 1 << 62 {
                    let ceil = u128::from(divisor.ceil_short(x as u64));
                    assert_eq!(ceil, x.div_ceil(u128::from(by)), "{x} / {by}");
                }
            }
        }
    }
}
