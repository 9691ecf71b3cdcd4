//! The pure algorithms with arbitrary numbers, costs and clocks: nothing panics or overflows, and
//! every answer keeps its promises.

use tollgate::algorithm::{self, State};
use tollgate::time::MAX_EXACT;
use tollgate::{Limit, Micros, Outcome, Wait};

use super::source::FuzzSource;

/// Checks and charges one state as the bytes say.
pub fn algorithms(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let Ok(limit) = source.builder().build() else { return };
    let now = source.instant();
    let state = State::fresh(&limit, now);
    let mut run = AlgorithmRun { limit, state, now, charged: Vec::new() };
    for _ in 0..64 {
        if source.is_empty() {
            return;
        }
        run.step(&mut source);
    }
}

struct AlgorithmRun {
    limit: Limit,
    state: State,
    now: Micros,
    /// The charged units, and the instant of each charge.
    charged: Vec<(u64, Micros)>,
}

impl AlgorithmRun {
    fn judge(&self, cost: u64, now: Micros) -> Outcome {
        algorithm::judge(&self.limit, &self.state, cost, now)
    }

    fn step(&mut self, source: &mut FuzzSource<'_>) {
        self.move_clock(source);
        match source.below(8) {
            0..=3 => {
                let cost = source.number();
                self.take(cost);
            }
            4 => {
                let cost = self.judge(0, self.now).remaining;
                self.take(cost);
            }
            5 => {
                let units = source.number();
                let at = self.judge(0, self.now).served_at;
                algorithm::charge(&self.limit, &mut self.state, units, self.now);
                self.charged.push((units, at));
            }
            6 => self.refund(source),
            _ => {
                let options = source.builder().build();
                let new = options.ok().filter(|new| same_state(new, &self.limit));
                if let Some(new) = new {
                    algorithm::renumber(&mut self.state, &self.limit, &new, self.now);
                    self.limit = new;
                }
            }
        }
        self.check_present();
    }

    /// Moves the clock forward, to a promised instant, or anywhere.
    fn move_clock(&mut self, source: &mut FuzzSource<'_>) {
        let present = self.judge(1, self.now);
        let period_us = self.limit.period().as_micros() as u64;
        let step = match source.below(12) {
            0..=2 => 0,
            3 => 1,
            4 => source.number(),
            5 => present.retry_after.as_micros().unwrap_or(0),
            6 => present.reset_after.as_micros().unwrap_or(0),
            7 => present.more_after.as_micros().unwrap_or(0),
            8 => period_us,
            9 => source.number() % period_us,
            10 => {
                let back = source.number();
                self.now = Micros::new(self.now.as_u64().saturating_sub(back));
                0
            }
            _ => {
                self.now = source.instant();
                0
            }
        };
        self.now = Micros::new(self.now.as_u64().saturating_add(step));
    }

    fn take(&mut self, cost: u64) {
        let before = self.state.clone();
        let outcome = algorithm::take(&self.limit, &mut self.state, cost, self.now);
        assert!(outcome.remaining <= self.limit.capacity(), "{outcome:?}");
        let never = cost > self.limit.capacity();
        if outcome.allowed {
            assert!(outcome.retry_after.is_zero() && (!never || cost == 0), "{outcome:?}");
            self.check_charged(cost, &outcome, &before);
        } else {
            assert_eq!(outcome.retry_after.is_never(), never, "{outcome:?}");
            assert!(outcome.delay.is_zero() && !outcome.retry_after.is_zero(), "{outcome:?}");
            if !outcome.jumped {
                assert_eq!(before, self.state, "a refusal writes nothing");
            }
            self.check_retry(cost, outcome.retry_after);
        }
    }

    /// Checks that the charge agrees with the outcome.
    fn check_charged(&mut self, cost: u64, judged: &Outcome, before: &State) {
        if cost == 0 {
            assert!(judged.jumped || *before == self.state, "a peek writes nothing");
            return;
        }
        let after = self.judge(0, self.now);
        let reported = |it: &Outcome| (it.remaining, it.reset_after, it.more_after, it.served_at);
        assert_eq!(reported(&after), reported(judged), "{} charged {cost}", self.limit);
        self.charged.push((cost, judged.served_at));
    }

    /// Checks that a wait of `retry_after` admits, and that one microsecond less does not.
    fn check_retry(&self, cost: u64, retry_after: Wait) {
        let Some(at) = promised(self.now, retry_after) else { return };
        assert!(self.judge(cost, at).allowed, "{} does not admit {cost} when told", self.limit);
        let earlier = Micros::new(at.as_u64() - 1);
        assert!(!self.judge(cost, earlier).allowed, "{} admits {cost} early", self.limit);
    }

    fn refund(&mut self, source: &mut FuzzSource<'_>) {
        let units = source.number();
        let receipt = match self.charged.len() {
            0 => None,
            many => Some(self.charged.swap_remove(source.below(many))),
        };
        let (units, at) = match receipt {
            Some((charged, at)) => (units.min(charged), Some(at)),
            None => (units, None),
        };
        let before = self.judge(0, self.now).remaining;
        algorithm::refund(&self.limit, &mut self.state, units, at, self.now);
        let after = self.judge(0, self.now).remaining;
        let most = before.saturating_add(units).min(self.limit.capacity());
        assert!((before..=most).contains(&after), "{}: {before} then {after}", self.limit);
    }

    /// Checks what an outcome reports about the present.
    fn check_present(&self) {
        let present = self.judge(0, self.now);
        let (remaining, capacity) = (present.remaining, self.limit.capacity());
        assert!(present.allowed && present.retry_after.is_zero() && remaining <= capacity);
        assert!(!present.reset_after.is_never() && !present.more_after.is_never());
        assert!(self.judge(remaining, self.now).allowed, "{}: {present:?}", self.limit);
        if remaining < capacity {
            assert!(!self.judge(remaining + 1, self.now).allowed, "{}: {present:?}", self.limit);
        }
        if present.jumped {
            // The waits are those of the state once it has followed the clock.
            return;
        }
        if let Some(at) = promised(self.now, present.reset_after) {
            let fresh = self.judge(0, at);
            assert!(fresh.reset_after.is_zero() && fresh.remaining == capacity, "{}", self.limit);
            let earlier = self.judge(0, Micros::new(at.as_u64() - 1));
            assert!(!earlier.reset_after.is_zero(), "{} is fresh early", self.limit);
        }
        if let Some(at) = promised(self.now, present.more_after) {
            assert!(self.judge(0, at).remaining > remaining, "{} has no more", self.limit);
            let earlier = self.judge(0, Micros::new(at.as_u64() - 1));
            assert!(earlier.remaining <= remaining, "{} has more early", self.limit);
        }
    }
}

/// The instant at which a wait ends; `None` if there is no wait, or it ends after the last instant.
fn promised(now: Micros, wait: Wait) -> Option<Micros> {
    let micros = wait.as_micros().filter(|micros| *micros > 0)?;
    now.as_u64().checked_add(micros).filter(|at| *at <= MAX_EXACT).map(Micros::new)
}

/// Returns true if both limits share their states: only their numbers differ.
fn same_state(new: &Limit, old: &Limit) -> bool {
    new.id() == old.id()
}
