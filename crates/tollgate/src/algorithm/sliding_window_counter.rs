//! Sliding window counter: the trailing period, estimated from two counters.
//!
//! # The idea
//!
//! Count per fixed window, but remember the previous one, and assume that its requests were spread
//! evenly: if 70 % of the previous window lie in the trailing period, 70 % of its units count. Two
//! numbers per key, and no boundary burst in ordinary traffic.
//!
//! ```text
//!        previous: 80          current: 20
//!   │▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮│▮▮▮▮▮          │
//!         └──── the trailing period ────┘
//!          75 % of 80 = 60   +   20  = 80 in use
//! ```
//!
//! # The formula
//!
//! ```text
//!   admit    ⇔ ⌊previous × (period − elapsed) / period⌋ + current + cost ≤ N
//! ```
//!
//! It is an **estimate**: traffic that is not spread evenly can pass up to 2 N in a trailing
//! period. `cargo xtask errors` prints the error measured per kind of traffic. Where a hard bound
//! is needed, [`Precision::Buckets`](crate::limit::Precision::Buckets) counts k + 1 whole
//! sub-buckets instead: never above N in any trailing period, a little below it on average; that
//! is the log of [`sliding_window_log`](super::sliding_window_log) with coarse instants.

use super::{CompactState, ServedInstant, Strategy, are_exact, used_after_change};
use crate::decision::Outcome;
use crate::limit::{Limit, OnChange};
use crate::time::{MAX_EXACT, Micros, Wait};

/// Two windows as of the last charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingCounterState {
    /// The instant of the last charge; it lies in the current window.
    pub mark: u64,
    /// Units charged in the window of the mark.
    pub current: u64,
    /// Units charged in the window before.
    pub previous: u64,
}

/// The two windows at the instant at which a check is answered.
#[derive(Clone, Copy)]
struct SlidingCounterView {
    current: u64,
    previous: u64,
    /// Microseconds since the start of the current window.
    elapsed: u64,
    served: ServedInstant,
}

impl SlidingCounterState {
    #[inline(always)]
    fn view(&self, limit: &Limit, now: Micros) -> SlidingCounterView {
        let period = limit.period_us();
        let served = ServedInstant::new(self.mark, now, period);
        let elapsed = limit.by_period.rem(served.at);
        // The number of windows since the mark's: 0, 1, or more, and then neither counter counts.
        let since = if served.moved > 0 { 0 } else { served.at - self.mark };
        let (current, previous) = if since <= elapsed || served.moved > 0 {
            (self.current, self.previous)
        } else if since - elapsed <= period {
            (0, self.current)
        } else {
            (0, 0)
        };
        SlidingCounterView { current, previous, elapsed, served }
    }
}

impl SlidingCounterView {
    /// The part of the previous window that still counts.
    #[inline]
    fn weighted(&self, limit: &Limit) -> u64 {
        if self.previous == 0 {
            return 0;
        }
        let overlap = limit.period_us() - self.elapsed;
        limit.by_period.floor(u128::from(self.previous) * u128::from(overlap)) as u64
    }

    /// The wait from the served instant until `cost` fits, provided that nothing else is charged.
    #[inline]
    fn until_fits(&self, limit: &Limit, cost: u64) -> u64 {
        let (capacity, period) = (limit.capacity(), limit.period_us());
        if let Some(room) = capacity.checked_sub(self.current.saturating_add(cost)) {
            let fits = fits_from(self.previous, room, period);
            if fits < period {
                return fits.saturating_sub(self.elapsed);
            }
        }
        // In the next window the current counter becomes the previous one; after that it no longer
        // counts.
        let fits = fits_from(self.current, capacity - cost, period);
        period - self.elapsed + fits
    }
}

/// The offset in a window at which the weight of `previous` has fallen to `room`: the smallest x
/// with ⌊previous × (period − x) / period⌋ ≤ room.
#[inline]
fn fits_from(previous: u64, room: u64, period: u64) -> u64 {
    if previous <= room {
        return 0;
    }
    if previous == room + 1 {
        return 1.min(period);
    }
    // previous × (period − x) < (room + 1) × period, in whole microseconds.
    let bound = u128::from(room + 1) * u128::from(period);
    let overlap = match u64::try_from(bound) {
        Ok(bound) => bound.div_ceil(previous),
        Err(_) => bound.div_ceil(u128::from(previous)) as u64,
    };
    period - (overlap - 1)
}

/// The two counters of a state at an instant, as the formula uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingCounterTerms {
    /// Units of the window before the current one.
    pub previous: u64,
    /// Those of them that still count.
    pub weighted: u64,
    /// Units of the current window.
    pub current: u64,
    /// The part of the previous window that lies in the trailing period, in thousandths, rounded down.
    pub overlap_thousandths: u64,
}

impl SlidingCounterState {
    /// The terms of the formula at an instant. For people.
    pub fn terms(&self, limit: &Limit, now: Micros) -> SlidingCounterTerms {
        let view = self.view(limit, now);
        let overlap = u128::from(limit.period_us() - view.elapsed) * 1_000;
        SlidingCounterTerms {
            previous: view.previous,
            weighted: view.weighted(limit),
            current: view.current,
            overlap_thousandths: (overlap / u128::from(limit.period_us())) as u64,
        }
    }

    /// The state of a key without any charge.
    #[inline]
    pub fn fresh(now: Micros) -> SlidingCounterState {
        SlidingCounterState { mark: now.as_u64(), current: 0, previous: 0 }
    }
}

impl CompactState for SlidingCounterState {
    #[inline(always)]
    fn to_numbers(self) -> [u64; 3] {
        [self.mark, self.current, self.previous]
    }

    #[inline(always)]
    fn from_numbers([mark, current, previous]: [u64; 3]) -> SlidingCounterState {
        SlidingCounterState { mark, current, previous }
    }

    fn memory_us(limit: &Limit) -> u64 {
        2 * limit.period_us()
    }
}

impl Strategy for SlidingCounterState {
    fn mark(&self) -> u64 {
        self.mark
    }

    fn is_possible(&self, _limit: &Limit) -> bool {
        are_exact(self.to_numbers())
    }

    #[inline(always)]
    fn judge(&self, limit: &Limit, cost: u64, now: Micros) -> Outcome {
        let mut view = self.view(limit, now);
        let (period, lag) = (limit.period_us(), view.served.lag);
        let weighted = view.weighted(limit);
        let asked = weighted.saturating_add(view.current).saturating_add(cost);
        let allowed = asked <= limit.capacity() || cost == 0;
        let retry_after = match allowed {
            true => Wait::ZERO,
            false if cost > limit.capacity() => Wait::NEVER,
            false => Wait::from_micros(view.until_fits(limit, cost) + lag),
        };
        if allowed {
            view.current += cost;
        }
        let used = weighted.saturating_add(view.current);
        let remaining = limit.capacity().saturating_sub(used);
        Outcome {
            allowed,
            remaining,
            retry_after,
            reset_after: match (view.current, view.previous) {
                (0, 0) => Wait::ZERO,
                (0, _) => Wait::from_micros(period - view.elapsed + lag),
                _ => Wait::from_micros(2 * period - view.elapsed + lag),
            },
            more_after: match used {
                0 => Wait::ZERO,
                _ => Wait::from_micros(view.until_fits(limit, remaining + 1) + lag),
            },
            debt_for: match used > limit.capacity() {
                true => Wait::from_micros(view.until_fits(limit, 0) + lag),
                false => Wait::ZERO,
            },
            delay: Wait::ZERO,
            served_at: Micros::new(view.served.at),
            jumped: view.served.moved > 0,
            ..Outcome::default()
        }
    }

    fn used(&self, limit: &Limit, now: Micros) -> u64 {
        let view = self.view(limit, now);
        view.weighted(limit).saturating_add(view.current)
    }

    #[inline(always)]
    fn charge(&mut self, limit: &Limit, cost: u64, now: Micros) {
        let view = self.view(limit, now);
        self.mark = view.served.at;
        self.current = view.current.saturating_add(cost).min(MAX_EXACT);
        self.previous = view.previous;
    }

    fn refund(&mut self, limit: &Limit, units: u64, charged_at: Option<Micros>, now: Micros) {
        let window = |at: u64| limit.by_period.floor(u128::from(at)) as u64;
        let served_at = self.mark.max(now.as_u64());
        let charged_in = window(charged_at.map_or(served_at, Micros::as_u64));
        let marked = window(self.mark);
        if charged_in + 1 < window(served_at) {
            // The window it was charged in no longer counts.
        } else if charged_in == marked {
            self.current = self.current.saturating_sub(units);
        } else if charged_in + 1 == marked {
            self.previous = self.previous.saturating_sub(units);
        }
    }

    fn renumber(&mut self, old: &Limit, new: &Limit, now: Micros) {
        let SlidingCounterView { current, previous, elapsed, served } = self.view(old, now);
        let used = used_after_change(self.used(old, now), old, new);
        let overlap = u128::from(old.period_us() - elapsed);
        // The largest previous window that weighs no more than `units` now.
        let weighing = |units: u64| {
            let bound = (u128::from(units) + 1) * u128::from(old.period_us());
            (bound.div_ceil(overlap) - 1).min(u128::from(MAX_EXACT)) as u64
        };
        let (current, previous) = match new.on_change() {
            OnChange::Keep => return,
            OnChange::Reset => (0, 0),
            OnChange::Scale => {
                let scaled = u128::from(previous) * u128::from(new.capacity());
                let scaled = (scaled / u128::from(old.capacity())).min(u128::from(MAX_EXACT));
                let previous = (scaled as u64).min(weighing(used));
                let weighted =
                    SlidingCounterView { current, previous, elapsed, served }.weighted(old);
                (used - weighted, previous)
            }
        };
        // A fresh state needs no mark, and a later mark would make callers with a slow clock wait.
        let mark = if (current, previous) == (0, 0) { 0 } else { served.at };
        *self = SlidingCounterState { mark, current, previous };
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at_instant, check, limit};
    use super::super::{State, charge, judge, refund};
    use super::*;

    const S: u64 = 1_000_000;

    #[test]
    fn the_previous_window_fades() {
        check(
            limit("100/60s"),
            &[
                (30 * S, 80, true, 20, 0),
                (75 * S, 20, true, 20, 0),
                (75 * S, 1, true, 19, 0),
                (75 * S, 20, false, 19, 1),
            ],
        );
    }

    #[test]
    fn a_full_window_needs_one_microsecond_of_the_next() {
        check(
            limit("10/10s"),
            &[
                (0, 10, true, 0, 0),
                (5 * S, 1, false, 0, 5_000_001),
                (10 * S, 1, false, 0, 1),
                (10 * S + 1, 1, true, 0, 0),
                (10 * S + 1, 11, false, 0, -1),
                (100 * S, 10, true, 0, 0),
            ],
        );
    }

    #[test]
    fn many_units_per_microsecond_may_skip_a_window() {
        // 10 million in one second: one microsecond of overlap still weighs 10 units.
        check(
            limit("10000000/1s"),
            &[
                (0, 10_000_000, true, 0, 0),
                (0, 10_000_000, false, 0, 2_000_000),
                (1_999_999, 10_000_000, false, 9_999_990, 1),
            ],
        );
    }

    #[test]
    fn refunds_find_the_counter_they_were_charged_in() {
        let limit = limit("10/10s");
        let mut state = State::fresh(&limit, Micros::ZERO);
        at_instant(5 * S, |now| charge(&limit, &mut state, 6, now));
        at_instant(12 * S, |now| charge(&limit, &mut state, 2, now));
        at_instant(12 * S, |now| refund(&limit, &mut state, 1, Some(Micros::new(5 * S)), now));
        // ⌊5 × 0.8⌋ + 2
        at_instant(12 * S, |now| assert_eq!(judge(&limit, &state, 0, now).remaining, 4));
        at_instant(12 * S, |now| refund(&limit, &mut state, 9, Some(Micros::new(12 * S)), now));
        at_instant(12 * S, |now| assert_eq!(judge(&limit, &state, 0, now).remaining, 6));
    }
}
