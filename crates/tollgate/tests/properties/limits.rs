//! Random limits: every way to count, at rates that have been wrong somewhere.

use super::*;

/// Every way to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitShape {
    Token,
    Meter,
    Queue,
    Window,
    Anchored,
    FirstHit,
    Log,
    Counter,
    Buckets,
}

pub(crate) const EVERY_SHAPE: &[LimitShape] = &[
    LimitShape::Token,
    LimitShape::Meter,
    LimitShape::Queue,
    LimitShape::Window,
    LimitShape::Anchored,
    LimitShape::FirstHit,
    LimitShape::Log,
    LimitShape::Counter,
    LimitShape::Buckets,
];

pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const CENTURY: u64 = 100 * 36_525 * 864 * SECOND;

/// Rates that have been wrong somewhere, or lie at an end of the range.
pub(crate) const RATES: [(u64, u64); 12] = [
    (1, 86_400 * SECOND),
    (100, 3_600 * SECOND),
    (3, SECOND),
    (2, 5 * SECOND),
    (10_000_000, SECOND),
    (1, 1),
    (7, 13),
    (1, CENTURY),
    (MAX_EXACT, 1),
    (MAX_EXACT, SECOND),
    (MAX_EXACT, CENTURY),
    (MAX_EXACT - 1, CENTURY - 1),
];

/// From 1 to `max`, small and large alike.
pub(crate) fn any_size(max: u64) -> impl Strategy<Value = u64> {
    (0..=53u32, any::<u64>()).prop_map(move |(bits, noise)| (noise >> (63 - bits)).clamp(1, max))
}

pub(crate) fn rates() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        3 => select(&RATES),
        3 => (1..=12u64, 1..=60u64),
        2 => (1..=1_000u64, 1..=10 * SECOND),
        2 => (any_size(MAX_EXACT), any_size(CENTURY)),
    ]
}

/// A burst; none is as many as the rate.
pub(crate) fn bursts() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![
        2 => Just(None),
        3 => (1..=12u64).prop_map(Some),
        2 => any_size(MAX_EXACT).prop_map(Some),
        1 => Just(Some(MAX_EXACT)),
    ]
}

pub(crate) fn limit(
    kind: LimitShape,
    (units, period): (u64, u64),
    burst: Option<u64>,
    odd: u64,
) -> Limit {
    let century_units = u128::from(CENTURY) * u128::from(units) / u128::from(period);
    let burst = burst.unwrap_or(units).min(u64::try_from(century_units).unwrap_or(u64::MAX));
    let per = Limit::per(units, Duration::from_micros(period));
    let builder = match kind {
        LimitShape::Token => per.burst(burst),
        LimitShape::Meter => per.burst(burst).algorithm(Algorithm::LeakyBucket),
        LimitShape::Queue => per.burst(burst).algorithm(Algorithm::LeakyBucket).queue(),
        LimitShape::Window => per.algorithm(Algorithm::FixedWindow),
        LimitShape::Anchored => {
            per.algorithm(Algorithm::FixedWindow).align(Align::Anchor(Micros::new(odd)))
        }
        LimitShape::FirstHit => per.algorithm(Algorithm::FixedWindow).align(Align::FirstHit),
        LimitShape::Log => per.algorithm(Algorithm::SlidingWindowLog),
        LimitShape::Counter => per,
        LimitShape::Buckets => per.buckets((1 + odd % period.min(1_023)) as u32),
    };
    builder.build().expect("numbers within the range")
}

pub(crate) fn limits(kinds: &'static [LimitShape]) -> impl Strategy<Value = Limit> {
    (select(kinds), rates(), bursts(), prop_oneof![0..12u64, any::<u64>()])
        .prop_map(|(kind, rate, burst, odd)| limit(kind, rate, burst, odd))
}

/// A period, or a full refill: how long a state remembers.
pub(crate) fn horizon(limit: &Limit) -> u64 {
    let period = limit.period().as_micros();
    let horizon = match limit.algorithm().is_bucket() {
        true => (period * u128::from(limit.capacity())).div_ceil(u128::from(limit.units())),
        false => period,
    };
    horizon as u64
}

/// How late a caller may be before its clock has jumped: a horizon, and at least a second.
pub(crate) fn lateness(limit: &Limit) -> u64 {
    horizon(limit).max(1_000_000)
}

pub(crate) fn numbers(limit: &Limit) -> (i128, i128, i128) {
    let period = limit.period().as_micros() as i128;
    (limit.units().into(), period, limit.capacity().into())
}

/// `limit` with another N, or for a bucket another burst.
pub(crate) fn renumbered(limit: &Limit, units: u64, on_change: OnChange) -> Limit {
    let per = Limit::per(units, limit.period()).algorithm(limit.algorithm());
    let per = match (limit.algorithm(), limit.precision()) {
        (algorithm, _) if algorithm.is_bucket() => per.burst(units),
        (Algorithm::FixedWindow, _) => per.align(limit.align()),
        (_, Precision::Buckets(buckets)) => per.buckets(buckets),
        _ => per,
    };
    let per = if limit.is_queue() { per.queue() } else { per };
    per.on_change(on_change).build().expect("N of a period refills in that period")
}
