//! Circuit breaker for calls to a store: when to stop calling one that does not answer, and when to
//! try again. Pure: time is an argument, nothing is read or spawned.
//!
//! ```text
//!            5 failures in a row, each 1 ms or more after the last, or more than half of
//!            20 or more within a second
//!   closed ────────────────────────────────────────────────────────────────────────▶ open
//!      ▲                                                                              │
//!      └────────── the probe succeeded ◀── one probe after 100 ms, 200 ms … 1 s ◀─────┘
//! ```
//!
//! While the breaker is open, callers get no pass and fail at once, so a frozen store costs them no
//! time. One caller in each pause is let through as the probe.

use crate::time::{Micros, Wait};

/// Number of failures in a row that open the breaker.
const FAILURES_IN_A_ROW: u32 = 5;
/// Shortest time between two failures that count separately: a short pause of the store or of this
/// machine makes all waiting calls fail together.
const FAILURE_GAP_US: u64 = 1_000;
/// Fewest outcomes within [`WINDOW_US`] for which the share of failures counts.
const OUTCOMES_MIN: u32 = 20;
/// The period whose share of failures counts. It consists of parts that expire one by one.
const WINDOW_US: u64 = 1_000_000;
const PARTS: usize = 10;
const PART_US: u64 = WINDOW_US / PARTS as u64;
/// The first pause before a probe.
const PAUSE_MIN_US: u64 = 100_000;
/// The longest pause before a probe.
const PAUSE_MAX_US: u64 = 1_000_000;

/// Circuit breaker of one store.
#[derive(Clone, Debug)]
pub struct Breaker {
    state: BreakerState,
    /// Number that grows with every change of state and every probe, so that outcomes of calls from
    /// before such a change are ignored.
    generation: u32,
    times_opened: u64,
    random: u64,
}

#[derive(Clone, Debug)]
enum BreakerState {
    /// `counted_at` is the instant of the last failure that counted.
    Closed {
        in_a_row: u32,
        counted_at: Micros,
        window: OutcomeWindow,
    },
    Open {
        pause_us: u64,
        probe_at: Micros,
    },
}

/// Permission for one call, to be handed back with its outcome. Dropping it reports nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPass(u32);

impl Breaker {
    /// A closed breaker. Instances should differ in `seed`, so that they do not all probe at once.
    pub fn new(seed: u64) -> Breaker {
        let state = BreakerState::closed();
        // The generator must not start at zero, where it would stay.
        Breaker { state, generation: 0, times_opened: 0, random: seed | 1 }
    }

    /// Returns a pass for one call, or `None` while open. While open, a caller becomes the probe if
    /// one is due. A probe without an outcome is followed by the next one.
    #[inline]
    pub fn admit(&mut self, now: Micros) -> Option<BreakerPass> {
        match self.state {
            BreakerState::Closed { .. } => Some(BreakerPass(self.generation)),
            BreakerState::Open { pause_us, probe_at } if left_us(probe_at, now) == 0 => {
                let pause_us = (pause_us * 2).min(PAUSE_MAX_US);
                self.state =
                    BreakerState::Open { pause_us, probe_at: self.jittered_after(now, pause_us) };
                self.generation = self.generation.wrapping_add(1);
                Some(BreakerPass(self.generation))
            }
            BreakerState::Open { .. } => None,
        }
    }

    /// Reports that the store answered in time.
    #[inline]
    pub fn succeeded(&mut self, pass: BreakerPass, now: Micros) {
        if pass.0 != self.generation {
            return;
        }
        match &mut self.state {
            BreakerState::Closed { in_a_row, window, .. } => {
                *in_a_row = 0;
                window.add(now, false);
            }
            BreakerState::Open { .. } => {
                self.state = BreakerState::closed();
                self.generation = self.generation.wrapping_add(1);
            }
        }
    }

    /// Reports that the store did not answer, answered late, or answered that it cannot.
    pub fn failed(&mut self, pass: BreakerPass, now: Micros) {
        if pass.0 != self.generation {
            return;
        }
        // If a probe failed, the next one is planned already.
        let BreakerState::Closed { in_a_row, counted_at, window } = &mut self.state else { return };
        // The distance in either direction, because a clock may go back.
        if *in_a_row == 0 || now.as_u64().abs_diff(counted_at.as_u64()) >= FAILURE_GAP_US {
            *in_a_row += 1;
            *counted_at = now;
        }
        window.add(now, true);
        if *in_a_row >= FAILURES_IN_A_ROW || window.mostly_failed() {
            self.state = BreakerState::Open {
                pause_us: PAUSE_MIN_US,
                probe_at: self.jittered_after(now, PAUSE_MIN_US),
            };
            self.generation = self.generation.wrapping_add(1);
            self.times_opened += 1;
        }
    }

    /// Makes the next caller the probe, because the store may be back: there is a new connection,
    /// for example.
    pub fn allow_probe(&mut self, now: Micros) {
        if let BreakerState::Open { probe_at, pause_us } = &mut self.state {
            *probe_at = now;
            *pause_us = PAUSE_MIN_US / 2;
        }
    }

    /// Returns true if callers get no pass.
    pub fn is_open(&self) -> bool {
        matches!(self.state, BreakerState::Open { .. })
    }

    /// Time until a caller may get a pass: zero while closed, at most a second while open.
    pub fn wait(&self, now: Micros) -> Wait {
        match self.state {
            BreakerState::Closed { .. } => Wait::ZERO,
            BreakerState::Open { probe_at, .. } => Wait::from_micros(left_us(probe_at, now)),
        }
    }

    /// Number of times the breaker has opened.
    pub fn times_opened(&self) -> u64 {
        self.times_opened
    }

    /// The instant `pause_us` after `now`, or up to a quarter of the pause earlier; never later.
    fn jittered_after(&mut self, now: Micros, pause_us: u64) -> Micros {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        now.after(Wait::from_micros(pause_us - self.random % (pause_us / 4)))
    }
}

/// Microseconds until the next probe. A probe that is further away than any pause was planned
/// before the clock went back: it is due now.
fn left_us(probe_at: Micros, now: Micros) -> u64 {
    let left_us = probe_at.as_u64().saturating_sub(now.as_u64());
    if left_us > PAUSE_MAX_US { 0 } else { left_us }
}

impl BreakerState {
    fn closed() -> BreakerState {
        BreakerState::Closed {
            in_a_row: 0,
            counted_at: Micros::ZERO,
            window: OutcomeWindow::default(),
        }
    }
}

/// Outcomes of the last second. Bound: a ring of [`PARTS`].
#[derive(Clone, Debug, Default)]
struct OutcomeWindow {
    /// Number of outcomes, and of failures among them, in each tenth of a second.
    parts: [(u32, u32); PARTS],
    /// The tenth of a second, counted from the epoch, that was written last.
    last: u64,
}

impl OutcomeWindow {
    #[inline]
    fn add(&mut self, now: Micros, failed: bool) {
        let tenth = now.as_u64() / PART_US;
        if tenth > self.last {
            for passed in (self.last + 1..=tenth).rev().take(PARTS) {
                self.parts[(passed % PARTS as u64) as usize] = (0, 0);
            }
            self.last = tenth;
        }
        // After the clock went back, outcomes are added to the newest part: they did happen.
        let part = &mut self.parts[(self.last % PARTS as u64) as usize];
        part.0 = part.0.saturating_add(1);
        part.1 = part.1.saturating_add(u32::from(failed));
    }

    fn mostly_failed(&self) -> bool {
        let (all, failed) = self
            .parts
            .iter()
            .fold((0u64, 0u64), |(a, f), part| (a + u64::from(part.0), f + u64::from(part.1)));
        all >= u64::from(OUTCOMES_MIN) && failed * 2 > all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Micros {
        Micros::from_secs(1_000_000).after(Wait::from_micros(ms * 1000))
    }

    /// Makes one call at `ms` and reports its outcome. Returns true if it got a pass.
    fn ask(breaker: &mut Breaker, ms: u64, fails: bool) -> bool {
        let Some(pass) = breaker.admit(at(ms)) else { return false };
        if fails {
            breaker.failed(pass, at(ms));
        } else {
            breaker.succeeded(pass, at(ms));
        }
        true
    }

    /// Makes calls fail until the breaker opens, which takes 4 ms.
    fn open(breaker: &mut Breaker, from_ms: u64) {
        for ms in from_ms..from_ms + 5 {
            ask(breaker, ms, true);
        }
        assert!(breaker.is_open());
    }

    /// Would catch: a pause of the machine that makes all waiting calls fail together, and then
    /// costs another 100 ms.
    #[test]
    fn all_who_fail_together_are_one_failure() {
        let mut breaker = Breaker::new(1);
        for ms in 0..1_000 {
            ask(&mut breaker, ms, false);
        }
        let waiting: Vec<_> = (0..64).filter_map(|_| breaker.admit(at(1_000))).collect();
        waiting.into_iter().for_each(|pass| breaker.failed(pass, at(1_010)));
        assert!(!breaker.is_open());
        assert!(ask(&mut breaker, 1_011, false));
    }

    #[test]
    fn opens_at_the_fifth_failure_in_a_row_and_not_before() {
        let mut breaker = Breaker::new(1);
        for round in 0..3 {
            for ms in 0..4 {
                assert!(ask(&mut breaker, 10 * round + ms, true));
            }
            assert!(!breaker.is_open(), "four in a row");
            assert!(ask(&mut breaker, 10 * round + 4, false));
        }
        // Twelve of fifteen failed, but fifteen outcomes are too few for a share.
        for ms in 0..5 {
            assert!(ask(&mut breaker, 30 + ms, true));
            assert_eq!(breaker.is_open(), ms == 4);
        }
        assert!(!ask(&mut breaker, 34, false), "an open breaker gives no pass");
        assert_eq!(breaker.times_opened(), 1);
    }

    #[test]
    fn opens_when_more_than_half_of_twenty_failed_within_a_second() {
        // failures and successes in turn, milliseconds between them, opens
        for (pattern, step, opens) in [
            ([false, true].as_slice(), 1, false),
            (&[true, true, false], 1, true),
            // As many failures, but over more than a second: never twenty within a window.
            (&[true, true, false], 60, false),
            (&[false, false, true], 1, false),
        ] {
            let mut breaker = Breaker::new(7);
            for i in 0..60 {
                ask(&mut breaker, i as u64 * step, pattern[i % pattern.len()]);
            }
            assert_eq!(breaker.is_open(), opens, "{pattern:?} every {step} ms");
        }
    }

    #[test]
    fn probes_come_one_at_a_time_and_ever_more_seldom_up_to_a_second() {
        let mut breaker = Breaker::new(3);
        open(&mut breaker, 0);
        let (mut probes, mut last) = (Vec::new(), 4);
        for ms in 4..10_000 {
            if ask(&mut breaker, ms, true) {
                probes.push(ms - last);
                last = ms;
            }
        }
        for (i, gap) in probes.iter().enumerate() {
            let pause = [100, 200, 400, 800].get(i).copied().unwrap_or(1000);
            assert!((pause * 3 / 4..=pause + 1).contains(gap), "probe {i} after {gap} ms");
        }
        assert!(probes.len() >= 10);
        assert!(breaker.wait(at(10_000)) <= Wait::from_micros(1_000_000));
    }

    #[test]
    fn a_probe_that_succeeds_closes_it_and_the_past_is_forgotten() {
        let mut breaker = Breaker::new(9);
        let late = breaker.admit(at(0)).unwrap();
        open(&mut breaker, 0);
        // This call was made before the breaker opened: its late answer must not close it.
        breaker.succeeded(late, at(50));
        assert!(breaker.is_open());
        assert!(ask(&mut breaker, 104, false));
        assert!(!breaker.is_open());
        for _ in 0..10 {
            breaker.failed(late, at(105));
        }
        assert!(!breaker.is_open(), "a late failure must not open it");
        for ms in 106..110 {
            ask(&mut breaker, ms, true);
        }
        assert!(!breaker.is_open(), "the count of failures starts again");
    }

    #[test]
    fn a_lost_probe_is_followed_by_another() {
        let mut breaker = Breaker::new(9);
        open(&mut breaker, 0);
        let lost = breaker.admit(at(104)).unwrap();
        assert!(breaker.admit(at(105)).is_none());
        assert!(ask(&mut breaker, 305, false));
        assert!(!breaker.is_open());
        breaker.failed(lost, at(306));
    }

    #[test]
    fn news_lets_the_next_caller_probe_at_once() {
        let mut breaker = Breaker::new(5);
        for ms in [0, 1, 2, 3, 4, 104, 304, 704, 1504, 2504] {
            ask(&mut breaker, ms, true);
        }
        assert!(breaker.admit(at(2505)).is_none());
        breaker.allow_probe(at(2505));
        assert!(ask(&mut breaker, 2505, true));
        assert!(!ask(&mut breaker, 2506, true), "only one probe per pause");
        assert!(ask(&mut breaker, 2605, false), "the pauses start again with the shortest");
        breaker.allow_probe(at(2605));
        assert!(!breaker.is_open());
    }

    #[test]
    fn clocks_that_stand_jump_or_go_back_do_not_panic() {
        let mut breaker = Breaker::new(0);
        let mut random = 88172645463325252u64;
        for _ in 0..100_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let now = match random % 7 {
                0 => Micros::ZERO,
                1 => Micros::MAX,
                _ => Micros::new(random >> 11),
            };
            if let Some(pass) = breaker.admit(now) {
                match random % 3 {
                    0 => breaker.succeeded(pass, now),
                    _ => breaker.failed(pass, now),
                }
            }
            assert!(breaker.wait(now) <= Wait::from_micros(PAUSE_MAX_US));
        }
    }
}
