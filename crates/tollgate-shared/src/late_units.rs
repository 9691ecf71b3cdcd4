//! Changes that reach a store late: charges and refunds, each at its own instant.
//!
//! An instance that decides locally sends its charges afterwards, and a store that was unavailable
//! gets the changes that it missed. By then another window may have begun, which the old charges
//! must not use up. So each change has its instant, and applies only to a state that still
//! remembers it: the window or counter of that instant, the entry of a log, a bucket that has not
//! refilled since.

use tollgate::algorithm::sliding_window_log::{self, MAX_ENTRIES, SlidingLogEntry};
use tollgate::algorithm::{self, State, fixed_window, sliding_window_counter};
use tollgate::time::MAX_EXACT;
use tollgate::{Limit, Micros, Precision};

use crate::remote_store::{LateKind, LateUnits};

/// Changes a state as if it had been told in time; whether anything is left of that. `limit` is the one
/// that applies to the key, `now` the store's clock.
pub fn apply(limit: &Limit, state: &mut State, late: LateUnits, now: Micros) -> bool {
    // Instants come from other clocks: nothing is charged ahead.
    let at = late.at.min(now);
    match late.kind {
        LateKind::Charge | LateKind::ChargeWithRefusals => charge(limit, state, late, at, now),
        LateKind::Refund => {
            algorithm::refund(limit, state, late.units, Some(at), now);
            true
        }
        LateKind::RefundOfNoCharge => {
            refund_of_no_charge(limit, state, late.units, at, now);
            true
        }
    }
}

fn charge(limit: &Limit, state: &mut State, late: LateUnits, at: Micros, now: Micros) -> bool {
    let units = late.units;
    if units == 0 {
        return false;
    }
    let charge = match late.kind {
        LateKind::ChargeWithRefusals => algorithm::charge_refused,
        _ => algorithm::charge,
    };
    if state.mark() <= at.as_u64() {
        // Nobody has charged since: exactly as it would have been.
        charge(limit, state, units, at);
        return !algorithm::fresh_after(limit, state, now).is_zero();
    }
    match state {
        State::Window(window) => charge_window(limit, window, units, at),
        State::Counter(counter) => charge_counter(limit, counter, units, at.as_u64()),
        State::Log(log) => charge_log(limit, log, units, at.as_u64(), now.as_u64()),
        _ => {
            // How much of it has drained since depends on what the bucket held between: all of it is
            // charged, as far as a full refill has not made up for it. Never too little.
            let mark = state.mark();
            let remembered = mark - at.as_u64() < limit.memory_us();
            if remembered {
                charge(limit, state, units, Micros::new(mark));
            }
            remembered
        }
    }
}

fn charge_window(
    limit: &Limit,
    window: &mut fixed_window::FixedWindowState,
    units: u64,
    at: Micros,
) -> bool {
    let end = window.mark.saturating_add(window.left);
    let same = match limit.calendar() {
        Some(calendar) => calendar.window(at).contains(&Micros::new(window.mark)),
        None => end.saturating_sub(at.as_u64()) <= limit.period_us(),
    };
    if same {
        window.count = window.count.saturating_add(units).min(MAX_EXACT);
    }
    same
}

fn charge_counter(
    limit: &Limit,
    counter: &mut sliding_window_counter::SlidingCounterState,
    units: u64,
    at: u64,
) -> bool {
    let period = limit.period_us();
    let count = match counter.mark / period - at / period {
        0 => &mut counter.current,
        1 => &mut counter.previous,
        _ => return false,
    };
    *count = count.saturating_add(units).min(MAX_EXACT);
    true
}

/// Sub-buckets of a limit's log; `None` where it counts whole microseconds.
fn buckets(limit: &Limit) -> Option<u128> {
    match limit.precision() {
        Precision::Estimate => None,
        Precision::Buckets(buckets) => Some(buckets.into()),
    }
}

/// An instant as the log of this limit counts it.
fn tick(limit: &Limit, at: u64) -> u64 {
    let coarse = |k: u128| (u128::from(at) * k / u128::from(limit.period_us())) as u64;
    buckets(limit).map_or(at, coarse)
}

/// The first instant that the log of this limit counts so.
fn instant(limit: &Limit, tick: u64) -> Micros {
    let first = |k: u128| (u128::from(tick) * u128::from(limit.period_us())).div_ceil(k) as u64;
    Micros::new(buckets(limit).map_or(tick, first))
}

/// Puts units between the entries that are there. Where there is no room for one more entry they go onto
/// the next later one, which may refuse more and never admits more.
fn charge_log(
    limit: &Limit,
    log: &mut sliding_window_log::SlidingLogState,
    units: u64,
    at: u64,
    now: u64,
) -> bool {
    let (at, now) = (tick(limit, at), tick(limit, now));
    let span = buckets(limit).map_or(limit.period_us(), |k| k as u64 + 1);
    let total = log.entries.back().map_or(0, |last| last.sum.wrapping_sub(log.base));
    let units = units.min(MAX_EXACT.saturating_sub(total));
    if at + span <= now || units == 0 {
        return false;
    }
    let index = log.entries.partition_point(|entry| entry.at < at);
    let found = log.entries.get(index).is_some_and(|entry| entry.at == at);
    let room = log.entries.len() + 2 < MAX_ENTRIES || index == log.entries.len();
    if !found && room {
        let before = if index == 0 { log.base } else { log.entries[index - 1].sum };
        log.entries.insert(index, SlidingLogEntry { at, sum: before });
    }
    log.entries.range_mut(index..).for_each(|entry| entry.sum = entry.sum.wrapping_add(units));
    true
}

/// Gives back what no charge is named for: in a log the youngest that there were then.
fn refund_of_no_charge(limit: &Limit, state: &mut State, units: u64, at: Micros, now: Micros) {
    let State::Log(log) = state else {
        return algorithm::refund(limit, state, units, Some(at), now);
    };
    let mut before = log.base;
    let mut held: Vec<(u64, u64)> = Vec::with_capacity(log.entries.len());
    for entry in &log.entries {
        held.push((entry.at, entry.sum.wrapping_sub(before)));
        before = entry.sum;
    }
    let (mut left, last) = (units, tick(limit, at.as_u64()));
    for (tick, held) in held.into_iter().rev().filter(|(tick, _)| *tick <= last) {
        let taken = left.min(held);
        left -= taken;
        algorithm::refund(limit, state, taken, Some(instant(limit, tick)), now);
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Algorithm;

    use super::*;

    const S: u64 = 1_000_000;

    fn limit(algorithm: Algorithm) -> Limit {
        Limit::per(10, std::time::Duration::from_secs(10)).algorithm(algorithm).build().unwrap()
    }

    /// Units that a limit of 10 in 10 s has used.
    fn used(limit: &Limit, state: &State, at: u64) -> i64 {
        10 - state.balance(limit, Micros::new(at))
    }

    #[test]
    fn late_units_are_charged_where_they_belong() {
        use Algorithm::*;
        // 3 units charged at 25 s; 2 sent late for another instant; used at a third
        for (algorithm, at, told, looked, expected) in [
            (FixedWindow, 19 * S, 26 * S, 26 * S, 3),
            (FixedWindow, 20 * S, 26 * S, 26 * S, 5),
            (FixedWindow, 26 * S, 29 * S, 29 * S, 5),
            (FixedWindow, 26 * S, 31 * S, 31 * S, 0),
            (SlidingWindowCounter, 9 * S, 26 * S, 26 * S, 3),
            // All of the window before counts at its end, half of it in the middle of this one.
            (SlidingWindowCounter, 19 * S, 25 * S, 25 * S, 4),
            (SlidingWindowCounter, 21 * S, 26 * S, 26 * S, 5),
            (SlidingWindowCounter, 26 * S, 30 * S, 30 * S, 5),
            (SlidingWindowLog, 15 * S, 25 * S, 25 * S, 3),
            (SlidingWindowLog, 16 * S, 25 * S, 25 * S, 5),
            (SlidingWindowLog, 16 * S, 25 * S, 26 * S, 3),
            (SlidingWindowLog, 25 * S, 34 * S, 34 * S, 5),
            (SlidingWindowLog, 26 * S, 36 * S, 36 * S, 0),
            (TokenBucket, 15 * S, 25 * S, 25 * S, 3),
            (TokenBucket, 16 * S, 25 * S, 25 * S, 5),
            (TokenBucket, 26 * S, 27 * S, 27 * S, 3),
            (TokenBucket, 26 * S, 40 * S, 40 * S, 0),
        ] {
            let limit = limit(algorithm);
            let mut state = State::fresh(&limit, Micros::ZERO);
            algorithm::charge(&limit, &mut state, 3, Micros::new(25 * S));
            let late = LateUnits { units: 2, at: Micros::new(at), kind: LateKind::Charge };
            apply(&limit, &mut state, late, Micros::new(told));
            let case = format!("{algorithm}: of {at}, told at {told}");
            assert_eq!(used(&limit, &state, looked), expected, "{case}");
            assert!(state.is_possible(&limit), "{case}");
        }
    }

    /// Told late or in time, in any order: a log is the same.
    #[test]
    fn a_log_takes_entries_between_others() {
        for buckets in [None, Some(7)] {
            let builder = Limit::per(100, std::time::Duration::from_secs(10));
            let limit = match buckets {
                None => builder.algorithm(Algorithm::SlidingWindowLog),
                Some(buckets) => builder.buckets(buckets),
            };
            let limit = limit.build().unwrap();
            let mut random = testkit::random::SplitMix64::seeded(7);
            let mut charges: Vec<(u64, u64)> =
                (0..40).map(|_| (random.below(10 * S), random.between(1, 3))).collect();
            let mut late = State::fresh(&limit, Micros::ZERO);
            for &(at, units) in &charges {
                let one = LateUnits { units, at: Micros::new(at), kind: LateKind::Charge };
                apply(&limit, &mut late, one, Micros::new(10 * S));
            }
            charges.sort_unstable();
            let mut in_time = State::fresh(&limit, Micros::ZERO);
            for (at, units) in charges {
                algorithm::charge(&limit, &mut in_time, units, Micros::new(at));
            }
            for at in 10..21 {
                assert_eq!(used(&limit, &late, at * S), used(&limit, &in_time, at * S), "at {at}");
            }
        }
    }

    #[test]
    fn a_full_log_takes_late_units_onto_a_later_entry() {
        let limit = Limit::per(9_000, std::time::Duration::from_secs(10));
        let limit = limit.algorithm(Algorithm::SlidingWindowLog).build().unwrap();
        let mut state = State::fresh(&limit, Micros::ZERO);
        for number in 0..5_000_u64 {
            let at = Micros::new(number * 7_919 % 4_999 * 1_000 + 1);
            let one = LateUnits { units: 1, at, kind: LateKind::Charge };
            assert!(apply(&limit, &mut state, one, Micros::new(5 * S)));
            assert!(state.is_possible(&limit));
        }
        assert_eq!(9_000 - state.balance(&limit, Micros::new(5 * S)), 5_000);
    }

    #[test]
    fn what_is_given_back_late_is_of_its_own_time() {
        let limit = limit(Algorithm::SlidingWindowLog);
        let mut state = State::fresh(&limit, Micros::ZERO);
        for (at, units) in [(1, 2), (3, 2), (5, 2)] {
            algorithm::charge(&limit, &mut state, units, Micros::new(at * S));
        }
        let kind = LateKind::RefundOfNoCharge;
        let late = LateUnits { units: 3, at: Micros::new(4 * S), kind };
        apply(&limit, &mut state, late, Micros::new(6 * S));
        // 1 of 1 s and 2 of 5 s are left.
        for (at, left) in [(6, 3), (11, 2), (15, 0)] {
            assert_eq!(used(&limit, &state, at * S), left, "at {at} s");
        }
    }
}
