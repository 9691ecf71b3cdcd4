//! `WaitBudget`: the units that a limit can admit until a deadline, at most. A request that has more ahead of it waits in vain.

use tollgate::{Algorithm, Limit, Micros, Wait};

/// A limit and the time until a deadline.
#[derive(Clone, Copy)]
pub(super) struct WaitBudget<'a> {
    pub(super) limit: &'a Limit,
    pub(super) now: Micros,
    pub(super) wait: Wait,
}

impl WaitBudget<'_> {
    /// Returns true if the limit cannot admit so many units in time, while the first of them have no room for a while.
    pub(super) fn is_exceeded(self, units: u64, (first_units, no_room): (u64, Wait)) -> bool {
        let WaitBudget { limit, wait, .. } = self;
        // Units of a window may all come at its start, in the worst case of an estimate those of two.
        let windows = match limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => 0,
            Algorithm::FixedWindow if limit.calendar().is_some() => return false,
            Algorithm::FixedWindow | Algorithm::SlidingWindowLog => 1,
            Algorithm::SlidingWindowCounter => 2,
        };
        let at_once = limit.capacity().saturating_mul(windows).saturating_add(first_units);
        let later = units.checked_sub(at_once);
        let after = |time: Wait| Micros::ZERO.after(no_room).after(time);
        later.is_some_and(|units| after(limit.time_of(units)) >= Micros::ZERO.after(wait))
    }

    /// Returns true if the limit admits so many units in time, however little it has now. Windows admit nothing for a while.
    pub(super) fn surely_admits(self, units: u64) -> bool {
        let is_steady =
            matches!(self.limit.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket);
        is_steady && self.limit.time_of(units) < self.wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_who_cannot_be_served_in_time_exceed_it() {
        // limit, milliseconds until there is room for the first unit, the most units that may wait for three seconds
        let cases = [
            ("1/second burst 1", 0, 3),
            ("1/second burst 1", 1_000, 2),
            ("1/second burst 1", 3_000, 0),
            ("1/second burst 10", 0, 3),
            ("2/second burst 1", 400, 6),
            ("100/minute burst 10", 0, 5),
            ("1/second", 0, 5),
            ("10/minute", 0, 21),
        ];
        for (text, no_room_ms, most) in cases {
            let limit: Limit = text.parse().unwrap();
            let budget =
                WaitBudget { limit: &limit, now: Micros::ZERO, wait: Wait::from_micros(3_000_000) };
            let first = (1, Wait::from_micros(no_room_ms * 1_000));
            assert!(most == 0 || !budget.is_exceeded(most, first), "{text}: {most}");
            assert!(budget.is_exceeded(most + 1, first), "{text}: {}", most + 1);
        }
    }
}
