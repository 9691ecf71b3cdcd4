//! `WaitBudget`: the units that a limit can admit until a deadline, at most. A request that has more ahead of it waits in vain.

use tollgate::queue::WaiterAhead;
use tollgate::{Algorithm, Limit, Micros, Precision, Wait};

/// A limit and the instant until which a newcomer would wait for it.
#[derive(Clone, Copy)]
pub(super) struct WaitBudget<'a> {
    pub(super) limit: &'a Limit,
    pub(super) deadline: Micros,
}

/// The first units that a limit admits, and the instant before which it has no room for them, as its store said.
#[derive(Clone, Copy)]
pub(super) struct FirstUnits {
    pub(super) units: u64,
    pub(super) not_before: Micros,
}

impl WaitBudget<'_> {
    /// Returns true if a newcomer of this cost is not served in time, however fast the limit admits those ahead of it.
    pub(super) fn is_exceeded(
        self,
        ahead: impl IntoIterator<Item = WaiterAhead>,
        cost: u64,
        first: FirstUnits,
    ) -> bool {
        let served = ahead.into_iter().fold(0_u64, |units, one| {
            let with_it = units.saturating_add(one.units);
            // A waiter that gives up before its turn takes nothing.
            let gives_up = self.earliest_turn(with_it, first) >= one.expires_at;
            if gives_up { units } else { with_it }
        });
        self.earliest_turn(served.saturating_add(cost), first) >= self.deadline
    }

    /// The earliest instant at which the limit has admitted so many units.
    pub(super) fn earliest_turn(self, units: u64, first: FirstUnits) -> Micros {
        let limit = self.limit;
        let later = units.saturating_sub(first.units);
        let refilled = limit.time_of(later);
        // Whole windows that lie between the first unit and the last one.
        let windows = units.saturating_sub(1) / limit.capacity();
        let in_windows = Wait::from_micros(limit.period_us().saturating_mul(windows));
        let time = match (limit.algorithm(), limit.precision()) {
            (Algorithm::TokenBucket | Algorithm::LeakyBucket, _) => refilled,
            // A month is not as long as the next one.
            (Algorithm::FixedWindow, _) if limit.calendar().is_some() => Wait::ZERO,
            (Algorithm::SlidingWindowCounter, _) if self.counts_for_old_numbers(first) => {
                limit.time_of(later.saturating_sub(limit.capacity().saturating_mul(2)))
            }
            (Algorithm::SlidingWindowCounter, Precision::Estimate) if limit.capacity() > 1 => {
                // Its estimate falls at the pace of the limit and is rounded down: one unit comes earlier.
                limit.time_of(later.saturating_sub(1))
            }
            _ => in_windows,
        };
        first.not_before.after(time)
    }

    /// Returns true while windows count that are older than the numbers of the limit: their estimate may fall faster, and
    /// admit the units of two windows at once.
    fn counts_for_old_numbers(self, first: FirstUnits) -> bool {
        let windows = Wait::from_micros(self.limit.period_us().saturating_mul(2));
        self.limit.numbers_since().is_some_and(|since| first.not_before < since.after(windows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: u64 = 3_000_000;

    fn at(millis: u64) -> Micros {
        Micros::new(millis * 1_000)
    }

    /// True if a newcomer of cost 1 waits in vain for three seconds behind waiters that give up at these milliseconds.
    fn is_exceeded(text: &str, no_room_ms: u64, ahead: &[u64]) -> bool {
        let limit: Limit = text.parse().unwrap();
        let budget = WaitBudget { limit: &limit, deadline: Micros::new(WAIT) };
        let first = FirstUnits { units: 1, not_before: at(no_room_ms) };
        let ahead = ahead.iter().map(|&expires| WaiterAhead { units: 1, expires_at: at(expires) });
        budget.is_exceeded(ahead, 1, first)
    }

    #[test]
    fn only_those_who_cannot_be_served_in_time_exceed_it() {
        // limit, milliseconds until there is room for the first unit, the most requests that may wait for three seconds
        let cases = [
            ("1/second burst 1", 0, 3),
            ("1/second burst 1", 1_000, 2),
            ("1/second burst 1", 999, 3),
            ("1/second burst 1", 3_000, 0),
            ("1/second burst 10", 0, 3),
            ("2/second burst 1", 400, 6),
            ("100/minute burst 10", 0, 5),
            ("1/second", 999, 3),
            ("10/second", 100, 30),
            ("10/minute", 0, 2),
        ];
        for (text, no_room_ms, most) in cases {
            let patient = vec![9_000; most];
            assert!(most == 0 || !is_exceeded(text, no_room_ms, &patient[1..]), "{text}: {most}");
            assert!(is_exceeded(text, no_room_ms, &patient), "{text}: {}", most + 1);
        }
    }

    #[test]
    fn windows_admit_their_units_at_their_start() {
        let windows = [Algorithm::FixedWindow, Algorithm::SlidingWindowLog];
        for algorithm in windows {
            let limit = Limit::per_second(10).algorithm(algorithm).build().unwrap();
            let budget = WaitBudget { limit: &limit, deadline: Micros::new(WAIT) };
            let first = FirstUnits { units: 1, not_before: at(500) };
            let ahead =
                |count| std::iter::repeat_n(WaiterAhead { units: 1, expires_at: at(9_000) }, count);
            assert!(!budget.is_exceeded(ahead(29), 1, first), "{algorithm}");
            assert!(budget.is_exceeded(ahead(30), 1, first), "{algorithm}");
        }
    }

    #[test]
    fn a_counter_of_new_numbers_may_admit_two_windows_at_once() {
        let limit: Limit = "10/second".parse().unwrap();
        let first = FirstUnits { units: 1, not_before: at(500) };
        let is_exceeded = |since: Micros, count| {
            let limit = limit.clone().with_numbers_since(Some(since));
            let budget = WaitBudget { limit: &limit, deadline: Micros::new(WAIT) };
            let patient = WaiterAhead { units: 1, expires_at: at(9_000) };
            budget.is_exceeded(std::iter::repeat_n(patient, count), 1, first)
        };
        assert!(!is_exceeded(at(0), 44) && is_exceeded(at(0), 46));
    }

    #[test]
    fn waiters_that_give_up_before_their_turn_take_nothing() {
        let limit = "1/second burst 1";
        assert!(is_exceeded(limit, 1_000, &[1_500, 2_500]), "both are served");
        assert!(!is_exceeded(limit, 1_000, &[1_500, 2_000]), "the second gives up at its turn");
        assert!(!is_exceeded(limit, 1_000, &[900, 2_500]), "the first gives up");
        assert!(is_exceeded(limit, 1_000, &[1_500, 1_500, 1_500, 2_500]));
    }
}
