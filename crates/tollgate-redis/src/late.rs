//! What a store is told later than it happened: charged, or given back, as of its own instant.
//!
//! An instance that decides by itself tells its store afterwards, and a store that was away is told what
//! it missed. By then another window may have begun, and what was used before is no use of this one. So
//! units carry the instant at which they were moved, and change only what remembers that instant: the
//! window or counter that it falls into, the entry of a log, a bucket that has not refilled since.

use tollgate::algorithm::sliding_window_log::{self, Entry, MAX_ENTRIES};
use tollgate::algorithm::{self, State, fixed_window, sliding_window_counter};
use tollgate::time::MAX_EXACT;
use tollgate::{Limit, Micros, Precision};

use crate::remote::{LateKind, LateUnits};

/// Changes a state as if it had been told in time; whether anything is left of that. `limit` is the one
/// that applies to the key, `now` the store's clock.
pub(crate) fn apply(limit: &Limit, state: &mut State, late: LateUnits, now: Micros) -> bool {
    // Instants come from other clocks: nothing is charged ahead.
    let at = late.at.min(now);
    match late.kind {
        LateKind::Charge => charge(limit, state, late.units, at, now),
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

fn charge(limit: &Limit, state: &mut State, units: u64, at: Micros, now: Micros) -> bool {
    if units == 0 {
        return false;
    }
    if mark(state) <= at.as_u64() {
        // Nobody has charged since: exactly as it would have been.
        algorithm::charge(limit, state, units, at);
        return !algorithm::judge(limit, state, 0, now).reset_after.is_zero();
    }
    match state {
        State::Window(window) => charge_window(limit, window, units, at),
        State::Counter(counter) => charge_counter(limit, counter, units, at.as_u64()),
        State::Log(log) => charge_log(limit, log, units, at.as_u64(), now.as_u64()),
        State::Token(_) | State::Leaky(_) => {
            // How much of it has drained since depends on what the bucket held between: all of it is
            // charged, as far as a full refill has not made up for it. Never too little.
            let mark = mark(state);
            let remembered = mark - at.as_u64() < limit.full_refill_us();
            if remembered {
                algorithm::charge(limit, state, units, Micros::new(mark));
            }
            remembered
        }
    }
}

/// The instant of the last charge.
fn mark(state: &State) -> u64 {
    match state {
        State::Token(state) => state.mark,
        State::Leaky(state) => state.0.mark,
        State::Window(state) => state.mark,
        State::Counter(state) => state.mark,
        State::Log(state) => state.mark,
    }
}

fn charge_window(limit: &Limit, window: &mut fixed_window::State, units: u64, at: Micros) -> bool {
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
    counter: &mut sliding_window_counter::State,
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
    log: &mut sliding_window_log::State,
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
        log.entries.insert(index, Entry { at, sum: before });
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
