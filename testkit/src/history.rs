//! The history checker: it checks that the calls that callers observed keep to the limit.
//!
//! Every caller records the instants of its request and of the answer, and the result. The server decided at an
//! unknown instant in between, so a history is wrong only if no choice of those instants makes it right. For a
//! bucket of `burst` that refills with `rate` this means: the admitted calls that were sent at `s` or later and
//! answered at `e` or earlier cost together at most `burst + rate × (e − s)`, for every s and e. Calls that
//! overlap an end of the interval may have been decided outside of it and do not count. One pass in the order of
//! answers keeps the units spent since every s: n log n steps for n calls.
//!
//! Amounts are in units × microseconds per period, whole numbers, so that nothing is lost to
//! rounding.

mod interval_starts;

use std::fmt;

use interval_starts::IntervalStarts;

/// A bucket: any interval of length w admits at most `burst + units × w / period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketBound {
    /// Units that may be admitted at once.
    pub burst: u64,
    /// Units that come back in each period.
    pub units: u64,
    /// The period in microseconds; not 0.
    pub period_us: u64,
}

/// One call as its caller observed it. Times are microseconds on one clock for all callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedCall {
    /// Instant of the request.
    pub asked_us: u64,
    /// Instant of the answer; not before the request.
    pub answered_us: u64,
    /// Units requested.
    pub cost: u64,
    /// True if the call was admitted.
    pub admitted: bool,
}

/// An interval that admitted more than any order of decisions allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverAdmission {
    /// Start of the interval: the request of the first call.
    pub from_us: u64,
    /// End of the interval: the answer to the last call.
    pub to_us: u64,
    /// Units admitted in the interval.
    pub admitted: u64,
    /// The most units possible in it, rounded down.
    pub possible: u64,
}

impl fmt::Display for OverAdmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverAdmission { from_us, to_us, admitted, possible } = self;
        write!(
            f,
            "admitted {admitted} from {from_us} µs to {to_us} µs, where {possible} is the most"
        )
    }
}

/// A phase that admitted less than callers requested and the limit had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderAdmission {
    /// Units admitted in the phase.
    pub admitted: u64,
    /// The least units expected.
    pub expected: u64,
}

impl fmt::Display for UnderAdmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "admitted {} where at least {} was due", self.admitted, self.expected)
    }
}

/// Checks that no interval admitted too much. The calls are those of one key, in any order.
///
/// # Errors
///
/// The interval with the greatest excess.
///
/// # Panics
///
/// If a call is answered before it is sent.
pub fn never_above(bound: BucketBound, calls: &[ObservedCall]) -> Result<(), OverAdmission> {
    match worst(bound, calls) {
        Some(worst) if worst.excess > 0 => Err(worst.over_admission(bound)),
        _ => Ok(()),
    }
}

/// Units admitted above the bound in the worst interval, rounded up; 0 if the bound was kept. Use it to check a
/// bound with an allowance, such as that of a lease.
///
/// # Panics
///
/// If a call is answered before it is sent.
#[must_use]
pub fn excess(bound: BucketBound, calls: &[ObservedCall]) -> u64 {
    let excess = worst(bound, calls).map_or(0, |worst| worst.excess.max(0));
    excess.unsigned_abs().div_ceil(u128::from(bound.period_us)) as u64
}

/// Checks that enough was admitted from `from_us` to `to_us`: 99 % of the units that came back. In this phase
/// callers must request clearly more than the rate (at least 1.2 times) all the time.
///
/// # Errors
///
/// The units admitted and the units expected.
///
/// # Panics
///
/// If callers did not request that much: such a phase shows nothing.
pub fn not_below(
    bound: BucketBound,
    calls: &[ObservedCall],
    from_us: u64,
    to_us: u64,
) -> Result<(), UnderAdmission> {
    let within = |call: &&ObservedCall| (from_us..to_us).contains(&call.answered_us);
    let sum = |calls: &mut dyn Iterator<Item = &ObservedCall>| calls.map(|it| it.cost).sum::<u64>();
    let offered = sum(&mut calls.iter().filter(within));
    let admitted = sum(&mut calls.iter().filter(within).filter(|it| it.admitted));
    let due = |percent: u128| {
        let come_back = u128::from(bound.units) * u128::from(to_us - from_us);
        (come_back * percent / (100 * u128::from(bound.period_us))) as u64
    };
    assert!(offered >= due(120), "only {offered} was asked for: at least {} is needed", due(120));
    let expected = due(99);
    if admitted >= expected { Ok(()) } else { Err(UnderAdmission { admitted, expected }) }
}

/// The interval with the greatest excess over the bound, which may be negative.
struct WorstInterval {
    excess: i128,
    from_us: u64,
    to_us: u64,
    admitted: u64,
}

impl WorstInterval {
    fn over_admission(&self, bound: BucketBound) -> OverAdmission {
        let came_back = u128::from(bound.units) * u128::from(self.to_us - self.from_us);
        let possible = bound.burst + (came_back / u128::from(bound.period_us)) as u64;
        let WorstInterval { from_us, to_us, admitted, .. } = *self;
        OverAdmission { from_us, to_us, admitted, possible }
    }
}

/// One pass over the admitted calls in the order of their answers. `None` if there are none.
fn worst(bound: BucketBound, calls: &[ObservedCall]) -> Option<WorstInterval> {
    let mut admitted: Vec<&ObservedCall> = calls.iter().filter(|call| call.admitted).collect();
    admitted.sort_by_key(|call| call.answered_us);
    let scaled = |cost: u64| i128::from(cost) * i128::from(bound.period_us);
    let refill = |at_us: u64| i128::from(bound.units) * i128::from(at_us);
    let mut starts = IntervalStarts::of(admitted.iter().map(|call| call.asked_us));
    let mut worst: Option<(i128, u64, u64)> = None;
    for call in &admitted {
        assert!(call.asked_us <= call.answered_us, "answered before it was asked: {call:?}");
        starts.open(call.asked_us, refill(call.asked_us));
        starts.spend(call.asked_us, scaled(call.cost));
        let (most, from_us) = starts.most();
        let excess = most - refill(call.answered_us) - scaled(bound.burst);
        if worst.is_none_or(|(greatest, ..)| excess > greatest) {
            worst = Some((excess, from_us, call.answered_us));
        }
    }
    worst.map(|(excess, from_us, to_us)| {
        let inside = |call: &&&ObservedCall| call.asked_us >= from_us && call.answered_us <= to_us;
        let admitted = admitted.iter().filter(inside).map(|call| call.cost).sum();
        WorstInterval { excess, from_us, to_us, admitted }
    })
}

#[cfg(test)]
mod tests;
