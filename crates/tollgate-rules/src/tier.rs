//! Multipliers of tiers: exact decimals.

use std::fmt;

use crate::problem::Problem;
use crate::shape::has_leading_zero;

/// The factor by which a tier multiplies limits: a decimal above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiplier {
    numerator: u64,
    denominator: u64,
}

impl Multiplier {
    /// Leaves numbers as they are.
    pub const ONE: Multiplier = Multiplier { numerator: 1, denominator: 1 };
    /// The largest. With a rate below 2^53 the product still fits in 128 bits with room to spare.
    const MAX: u64 = 1_000_000_000;

    /// Reads `10`, `1.5` or `0.25`.
    pub fn parse(text: &str) -> Result<Multiplier, Problem> {
        let bad = |what: &str| {
            Problem::new(format!("the multiplier `{text}` {what}"))
                .hint("write a decimal above 0, such as 1.5")
        };
        if text.starts_with('-') {
            return Err(bad("is negative"));
        }
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let digits = format!("{whole}{decimals}");
        if whole.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad("is not a decimal number"));
        }
        if has_leading_zero(whole) {
            return Err(bad("has a leading 0, which some YAML readers take for octal"));
        }
        let decimals = decimals.trim_end_matches('0');
        if decimals.len() > 9 {
            return Err(bad("has more than nine decimals"));
        }
        let digits = format!("{whole}{decimals}");
        let denominator = 10u64.pow(decimals.len() as u32);
        let numerator: u64 = digits.parse().map_err(|_| bad("is too large"))?;
        if numerator == 0 {
            return Err(bad("is zero, which would refuse everything"));
        }
        if numerator / denominator > Multiplier::MAX {
            return Err(bad("is too large"));
        }
        Ok(Multiplier { numerator, denominator })
    }

    /// `units` times this, rounded down, at least 1.
    pub fn apply(self, units: u64) -> u64 {
        let product = u128::from(units) * u128::from(self.numerator) / u128::from(self.denominator);
        u64::try_from(product).unwrap_or(u64::MAX).max(1)
    }
}

impl fmt::Display for Multiplier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.numerator / self.denominator;
        let decimals = self.numerator % self.denominator;
        if decimals == 0 {
            return write!(f, "{whole}");
        }
        let width = self.denominator.ilog10() as usize;
        write!(f, "{whole}.{decimals:0width$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_multiply_exactly() {
        let cases = [
            ("1", 100, 100, "1"),
            ("10.0", 10, 100, "10"),
            ("1.5", 3, 4, "1.5"),
            ("0.1", 5, 1, "0.1"),
            ("0.333", 1_000, 333, "0.333"),
            ("2.50", 2, 5, "2.5"),
            ("1.000000001", 1_000_000_000, 1_000_000_001, "1.000000001"),
        ];
        for (text, units, want, shown) in cases {
            let multiplier = Multiplier::parse(text).unwrap();
            assert_eq!(multiplier.apply(units), want, "{text}");
            assert_eq!(multiplier.to_string(), shown);
        }
    }

    #[test]
    fn others_say_what_to_write() {
        for text in ["0", "0.0", "-1", "", ".5", "x", "1e3", "1.0000000001", "99999999999999999999"]
        {
            let problem = Multiplier::parse(text).unwrap_err();
            assert!(problem.hint.unwrap().contains("above 0"), "{text}");
        }
    }
}
