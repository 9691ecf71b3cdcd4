//! A wait under one limit as the wait under another: the exact quotient, rounded up, whatever the numbers are.

use super::*;

/// 100 years.
const PERIOD_MAX: u64 = 3_155_760_000_000_000;

/// The product of two numbers as its high part and its low 64 bits.
fn product(a: u128, b: u64) -> (u128, u64) {
    let (high, low) = (a >> 64, a & u128::from(u64::MAX));
    let low = low * u128::from(b);
    (high * u128::from(b) + (low >> 64), low as u64)
}

/// Numbers of all sizes up to this one, the large ones as often as the small.
fn up_to(most: u64) -> impl Strategy<Value = u64> {
    (0..=most.ilog2(), any::<u64>()).prop_map(move |(bits, random)| {
        let least = 1 << bits;
        (least | random & (least - 1)).min(most)
    })
}

fn bucket() -> impl Strategy<Value = (u64, u64, Limit)> {
    (up_to(MAX_EXACT), up_to(PERIOD_MAX)).prop_filter_map("possible limits", |(units, period)| {
        let limit = Limit::per(units, Duration::from_micros(period)).burst(1).build().ok()?;
        Some((units, period, limit))
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_converted_wait_is_the_exact_quotient_rounded_up(
        (from_units, from_period, from) in bucket(),
        (to_units, to_period, to) in bucket(),
        wait in up_to(MAX_EXACT),
    ) {
        let converted = to.wait_converted(&from, Wait::from_micros(wait));
        let micros = converted.as_micros().unwrap_or(u64::MAX);
        let wanted = product(u128::from(wait) * u128::from(from_units), to_period);
        let per_micro = u128::from(from_period) * u128::from(to_units);
        prop_assert!(product(per_micro, micros - 1) < wanted, "{micros} is too much");
        prop_assert!(micros == u64::MAX || product(per_micro, micros) >= wanted, "{micros} is too little");
    }
}
