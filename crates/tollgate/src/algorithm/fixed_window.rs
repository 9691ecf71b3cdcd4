//! Fixed window: N per window, counted from zero in each.
//!
//! # The idea
//!
//! Time is cut into windows, and each counts from zero. One number per key, easy to explain. Its
//! one weakness is known exactly: a burst at the end of one window and another at the start of the
//! next admit 2 N within a moment. That rarely matters for a daily quota, but it does for a login
//! form.
//!
//! ```text
//!   N = 5        │····▮▮▮▮▮│▮▮▮▮▮····│       10 pass within a moment around the boundary
//!                0        10        20 s
//! ```
//!
//! # The formula
//!
//! ```text
//!   window   = [start, end)         the boundary instant belongs to the new window
//!   admit    ⇔ count + cost ≤ N
//!   wait     = end − now
//! ```
//!
//! Windows last one period. They begin at whole multiples of it since the Unix epoch, so that every
//! process agrees; or since an anchor ("resets at 09:00"); or with the first charged request; or,
//! staggered, at an offset of each key's own, so that not all clients return at the same instant.
//! With a calendar, windows are its days, weeks or months and last as long as those do. The state
//! remembers when its window ends, so that apart from refunds the calendar is read once per window.

use super::{CompactState, ServedInstant, Strategy, are_exact, used_after_change};
use crate::decision::Outcome;
use crate::limit::{Align, Limit, calendar};
use crate::time::{MAX_EXACT, Micros, Wait};

/// A window as of its last charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedWindowState {
    /// The instant of the last charge.
    pub mark: u64,
    /// Units charged in the window of the mark.
    pub count: u64,
    /// Microseconds from the mark to the end of that window.
    pub left: u64,
}

/// The window in which a check is answered.
struct FixedWindowView {
    count: u64,
    /// Microseconds to the end of the window; `None` if the state counts nothing in it, because it is
    /// a later window or the state is fresh.
    left: Option<u64>,
    served: ServedInstant,
}

impl FixedWindowState {
    #[inline(always)]
    fn view(&self, limit: &Limit, now: Micros) -> FixedWindowView {
        let served = ServedInstant::new(self.mark, now, limit.window_longest_us());
        if served.moved > 0 {
            let left = match limit.align() {
                Align::FirstHit if self.count > 0 => self.left,
                _ => remaining_at(limit, served.at),
            };
            return FixedWindowView { count: self.count, left: Some(left), served };
        }
        let passed = served.at - self.mark;
        if self.count > 0 && passed < self.left {
            FixedWindowView { count: self.count, left: Some(self.left - passed), served }
        } else {
            FixedWindowView { count: 0, left: None, served }
        }
    }

    /// The instant at which the window of the mark began.
    fn start(&self, limit: &Limit) -> u64 {
        match limit.calendar() {
            Some(calendar) => calendar.window(Micros::new(self.mark)).start.as_u64(),
            None => (self.mark + self.left).saturating_sub(limit.period_us()),
        }
    }
}

impl FixedWindowView {
    #[inline(always)]
    fn judge(&self, limit: &Limit, cost: u64) -> Outcome {
        let asked = self.count.saturating_add(cost);
        let allowed = asked <= limit.capacity() || cost == 0;
        let count = if allowed { asked } else { self.count };
        let window_end = if count == 0 {
            Wait::ZERO
        } else {
            Wait::from_micros(self.left(limit) + self.served.lag)
        };
        Outcome {
            allowed,
            remaining: limit.capacity().saturating_sub(count),
            retry_after: match allowed {
                true => Wait::ZERO,
                false if cost > limit.capacity() => Wait::NEVER,
                false => window_end,
            },
            reset_after: window_end,
            more_after: window_end,
            debt_for: if count > limit.capacity() { window_end } else { Wait::ZERO },
            delay: Wait::ZERO,
            served_at: Micros::new(self.served.at),
            jumped: self.served.moved > 0,
            ..Outcome::default()
        }
    }

    #[inline(always)]
    fn charged(&self, limit: &Limit, cost: u64) -> FixedWindowState {
        FixedWindowState {
            mark: self.served.at,
            count: self.count.saturating_add(cost).min(MAX_EXACT),
            left: self.left(limit),
        }
    }

    /// Microseconds to the end of the window, for a new window as well.
    #[inline(always)]
    fn left(&self, limit: &Limit) -> u64 {
        self.left.unwrap_or_else(|| remaining_at(limit, self.served.at))
    }
}

/// Microseconds from `at` to the end of the window that contains it, or that begins with it.
#[inline]
fn remaining_at(limit: &Limit, at: u64) -> u64 {
    let period = limit.period_us();
    match (limit.calendar(), limit.align()) {
        (Some(calendar), _) => calendar::window_left_at(calendar, at),
        (None, Align::FirstHit) => period,
        (None, _) => period - limit.by_period.rem(at + period - limit.window_offset),
    }
}

impl FixedWindowState {
    /// The state of a key without any charge.
    #[inline]
    pub fn fresh(now: Micros) -> FixedWindowState {
        FixedWindowState { mark: now.as_u64(), count: 0, left: 0 }
    }
}

impl CompactState for FixedWindowState {
    #[inline(always)]
    fn to_numbers(self) -> [u64; 3] {
        [self.mark, self.count, self.left]
    }

    #[inline(always)]
    fn from_numbers([mark, count, left]: [u64; 3]) -> FixedWindowState {
        FixedWindowState { mark, count, left }
    }

    fn memory_us(limit: &Limit) -> u64 {
        limit.window_longest_us()
    }
}

impl Strategy for FixedWindowState {
    fn mark(&self) -> u64 {
        self.mark
    }

    fn is_possible(&self, limit: &Limit) -> bool {
        are_exact(self.to_numbers()) && self.left <= limit.window_longest_us()
    }

    #[inline(always)]
    fn judge(&self, limit: &Limit, cost: u64, now: Micros) -> Outcome {
        self.view(limit, now).judge(limit, cost)
    }

    fn used(&self, limit: &Limit, now: Micros) -> u64 {
        self.view(limit, now).count
    }

    #[inline(always)]
    fn charge(&mut self, limit: &Limit, cost: u64, now: Micros) {
        *self = self.view(limit, now).charged(limit, cost);
    }

    fn refund(&mut self, limit: &Limit, units: u64, charged_at: Option<Micros>, now: Micros) {
        let view = self.view(limit, now);
        let in_window = charged_at.is_none_or(|at| at.as_u64() >= self.start(limit));
        if view.left.is_some() && in_window {
            self.count = self.count.saturating_sub(units);
        }
    }

    fn renumber(&mut self, old: &Limit, new: &Limit, _now: Micros) {
        self.count = used_after_change(self.count, old, new);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at_instant, check, limit_with};
    use super::super::{Algorithm, State, charge, judge, refund, take};
    use super::*;
    use crate::limit::calendar::tests::{DAYS, HOUR as H, MONTHS, by};

    const S: u64 = 1_000_000;

    fn aligned(align: Align) -> Limit {
        Limit::per_minute(2).algorithm(Algorithm::FixedWindow).align(align).build().unwrap()
    }

    #[test]
    fn twice_the_limit_around_the_boundary_and_no_more() {
        check(
            limit_with("5/10s", Algorithm::FixedWindow),
            &[
                (9_900_000, 5, true, 0, 0),
                (9_900_000, 1, false, 0, 100_000),
                (10 * S, 5, true, 0, 0),
                (10 * S, 1, false, 0, 10 * S as i64),
                (10 * S, 6, false, 0, -1),
            ],
        );
    }

    #[test]
    fn the_first_hit_opens_a_window() {
        let rows = [
            (45 * S, 2, true, 0, 0),
            (104 * S, 1, false, 0, S as i64),
            (105 * S, 2, true, 0, 0),
            (105 * S, 1, false, 0, 60 * S as i64),
        ];
        check(aligned(Align::FirstHit), &rows);
    }

    #[test]
    fn an_anchor_moves_the_boundary() {
        let rows = [
            (10 * S, 2, true, 0, 0),
            (44 * S, 1, false, 0, S as i64),
            (45 * S, 2, true, 0, 0),
            (104 * S, 1, false, 0, S as i64),
        ];
        check(aligned(Align::Anchor(Micros::from_secs(45))), &rows);
    }

    #[test]
    fn days_of_the_calendar_last_as_long_as_they_last() {
        let rows = [
            (23 * H, 1, true, 1, 0),
            (24 * H - 1, 1, true, 0, 0),
            (24 * H - 1, 1, false, 0, 1),
            (24 * H, 2, true, 0, 0),
            (24 * H, 1, false, 0, 23 * H as i64),
            (47 * H - 1, 1, false, 0, 1),
            (47 * H, 1, true, 1, 0),
            (71 * H, 1, true, 0, 0),
            (71 * H, 1, false, 0, H as i64),
            (72 * H - 1, 2, false, 0, 1),
            (72 * H - 1, 3, false, 0, -1),
            (72 * H, 2, true, 0, 0),
            (200 * H, 1, true, 1, 0),
            (Micros::MAX.as_u64(), 2, true, 0, 0),
            (Micros::MAX.as_u64(), 1, false, 0, 1),
        ];
        check(by(DAYS, 2).build().unwrap(), &rows);
    }

    #[test]
    fn months_have_no_common_length() {
        let rows = [
            (0, 9, true, 0, 0),
            (0, 1, false, 0, 744 * H as i64),
            (744 * H - 1, 1, false, 0, 1),
            (744 * H, 9, true, 0, 0),
            (744 * H, 1, false, 0, 672 * H as i64),
            (1_416 * H, 8, true, 1, 0),
            (2_159 * H - 1, 2, false, 1, 1),
            (2_159 * H, 9, true, 0, 0),
            (2_159 * H, 9, false, 0, 720 * H as i64),
        ];
        check(by(MONTHS, 9).build().unwrap(), &rows);
    }

    #[test]
    fn a_calendar_s_window_is_fresh_at_its_end_and_not_before() {
        let limit = by(DAYS, 5).build().unwrap();
        let mut state = State::fresh(&limit, Micros::ZERO);
        at_instant(50 * H, |now| charge(&limit, &mut state, 1, now));
        for (at, reset, remaining) in [(50 * H, 22 * H, 4), (72 * H - 1, 1, 4), (72 * H, 0, 5)] {
            let present = at_instant(at, |now| judge(&limit, &state, 0, now));
            let want = Wait::from_micros(reset);
            let found = (present.reset_after, present.more_after, present.remaining);
            assert_eq!(found, (want, want, remaining), "at {at}");
        }
    }

    #[test]
    fn a_calendar_serves_clocks_that_are_behind() {
        // Charged at hour 50, in the day that ends at 72. A day's longest is 48 hours.
        // at | served as of, retry, jumped
        let rows = [
            (46 * H, 50 * H, 26 * H, false),
            (2 * H, 50 * H, 70 * H, false),
            (2 * H - 1, 2 * H - 1, 22 * H + 1, true),
        ];
        for (at, served_at, retry, jumped) in rows {
            let limit = by(DAYS, 5).build().unwrap();
            let mut state = State::fresh(&limit, Micros::ZERO);
            at_instant(50 * H, |now| charge(&limit, &mut state, 5, now));
            let refused = at_instant(at, |now| take(&limit, &mut state, 1, now));
            assert!(!refused.allowed, "at {at}: what is used stays used");
            let found = (refused.served_at.as_u64(), refused.retry_after, refused.jumped);
            assert_eq!(found, (served_at, Wait::from_micros(retry), jumped), "at {at}");
            let ready = at + retry;
            at_instant(ready - 1, |now| assert!(!judge(&limit, &state, 1, now).allowed, "at {at}"));
            at_instant(ready, |now| assert!(judge(&limit, &state, 5, now).allowed, "at {at}"));
        }
    }

    #[test]
    fn a_refund_counts_only_in_its_window_of_the_calendar() {
        // Charged at, refunded at | left of 5, of which 4 were used at hour 71 of the day 47 to 72
        let rows = [
            (47 * H - 1, 71 * H, 1),
            (47 * H, 71 * H, 3),
            (47 * H, 72 * H - 1, 3),
            (71 * H, 72 * H - 1, 3),
            (71 * H, 72 * H, 5),
            (24 * H, 71 * H, 1),
        ];
        for (charged_at, at, remaining) in rows {
            let limit = by(DAYS, 5).build().unwrap();
            let mut state = State::fresh(&limit, Micros::ZERO);
            at_instant(71 * H, |now| charge(&limit, &mut state, 4, now));
            at_instant(at, |now| refund(&limit, &mut state, 2, Some(Micros::new(charged_at)), now));
            let left = at_instant(at, |now| judge(&limit, &state, 0, now).remaining);
            assert_eq!(left, remaining, "charged at {charged_at}, refunded at {at}");
        }
    }

    #[test]
    fn staggered_keys_reset_at_their_own_time() {
        let limit = Limit::per_minute(2).algorithm(Algorithm::FixedWindow).stagger();
        let limit = limit.build().unwrap();
        let resets: std::collections::BTreeSet<_> = (0..100)
            .map(|user| {
                let own = limit.for_key(format!("user:{user}").as_bytes());
                judge(&own, &State::fresh(&own, Micros::ZERO), 1, Micros::from_secs(600))
                    .reset_after
            })
            .collect();
        assert!(resets.len() > 90, "only {} different resets", resets.len());
        assert!(resets.iter().all(|reset| (1..=60 * S).contains(&reset.as_micros().unwrap())));
    }

    #[test]
    fn a_refund_counts_only_in_its_window() {
        let limit = limit_with("5/10s", Algorithm::FixedWindow);
        let mut state = State::fresh(&limit, Micros::ZERO);
        at_instant(9 * S, |now| charge(&limit, &mut state, 5, now));
        at_instant(10 * S, |now| refund(&limit, &mut state, 5, Some(Micros::new(9 * S)), now));
        at_instant(10 * S, |now| charge(&limit, &mut state, 3, now));
        at_instant(11 * S, |now| refund(&limit, &mut state, 5, Some(Micros::new(9 * S)), now));
        at_instant(11 * S, |now| assert_eq!(judge(&limit, &state, 0, now).remaining, 2));
        at_instant(11 * S, |now| refund(&limit, &mut state, 1, Some(Micros::new(10 * S)), now));
        at_instant(11 * S, |now| assert_eq!(judge(&limit, &state, 0, now).remaining, 3));
    }
}
