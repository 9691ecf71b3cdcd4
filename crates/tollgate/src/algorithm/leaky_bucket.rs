//! Leaky bucket: as a meter, or as a queue that smooths.
//!
//! # The idea
//!
//! Water is poured in, one unit per unit of cost, and leaks out at the rate. As a **meter** a
//! request that would overflow the bucket is refused; a burst up to the capacity passes at once.
//! That is the token bucket seen from below: the same numbers give the same answers, and the same
//! code serves both. As a **queue** an admitted request gets a delay, the time until the water
//! ahead of it has leaked out, so that the output is evenly spaced. Only the queue gives even
//! output.
//!
//! ```text
//!   in   ▮▮▮▮            ▮        4 at once, rate 2/s, capacity 4
//!   meter▮▮▮▮            ▮        all pass at once
//!   queue▮   ▮   ▮   ▮   ▮        delays 0, 0.5, 1, 1.5 s: one every half second
//!        0 s     1 s     2 s
//! ```
//!
//! # The formula
//!
//! ```text
//!   level(e) = max(0, level − e × rate)          e: time since the last charge
//!   admit    ⇔ level(e) + cost ≤ capacity
//!   delay    = ⌈level(e) / rate⌉                 queue only: the backlog ahead
//! ```

use super::token_bucket::{self, ticks_to_wait};
use super::{CompactState, Strategy, TakenState};
use crate::decision::Outcome;
use crate::limit::Limit;
use crate::time::{Micros, Wait};

/// The water as of the last charge, counted like a token bucket's debt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeakyBucketState(pub token_bucket::TokenBucketState);

impl LeakyBucketState {
    /// The state of a key without any charge.
    #[inline]
    pub fn fresh(now: Micros) -> LeakyBucketState {
        LeakyBucketState(token_bucket::TokenBucketState::fresh(now))
    }
}

impl CompactState for LeakyBucketState {
    #[inline(always)]
    fn to_numbers(self) -> [u64; 3] {
        self.0.to_numbers()
    }

    #[inline(always)]
    fn from_numbers(numbers: [u64; 3]) -> LeakyBucketState {
        LeakyBucketState(CompactState::from_numbers(numbers))
    }

    fn memory_us(limit: &Limit) -> u64 {
        limit.full_refill_us()
    }

    #[inline(always)]
    fn take(
        self,
        limit: &Limit,
        cost: u64,
        now: Micros,
    ) -> Option<TakenState<Self, impl FnOnce() -> Outcome>> {
        let TakenState { allowed, charged, outcome } =
            self.0.take_short(limit, cost, now, limit.is_queue())?;
        Some(TakenState { allowed, charged: LeakyBucketState(charged), outcome })
    }

    fn to_script_numbers(self, limit: &Limit) -> [u64; 3] {
        self.0.to_script_numbers(limit)
    }

    fn from_script_numbers(limit: &Limit, numbers: [u64; 3]) -> Option<Self> {
        CompactState::from_script_numbers(limit, numbers).map(LeakyBucketState)
    }
}

impl Strategy for LeakyBucketState {
    fn mark(&self) -> u64 {
        self.0.mark
    }

    fn is_possible(&self, limit: &Limit) -> bool {
        self.0.is_possible(limit)
    }

    #[inline(always)]
    fn judge(&self, limit: &Limit, cost: u64, now: Micros) -> Outcome {
        let outcome = self.0.judge(limit, cost, now);
        if !limit.is_queue() || !outcome.allowed || cost == 0 {
            return outcome;
        }
        let (backlog, served) = self.0.debt_at(limit, now);
        Outcome { delay: ticks_to_wait(limit, backlog, served), ..outcome }
    }

    fn used(&self, limit: &Limit, now: Micros) -> u64 {
        self.0.used(limit, now)
    }

    #[inline(always)]
    fn charge(&mut self, limit: &Limit, cost: u64, now: Micros) {
        self.0.charge(limit, cost, now);
    }

    fn charge_refused(&mut self, limit: &Limit, cost: u64, now: Micros) {
        self.0.charge_refused(limit, cost, now);
    }

    fn charge_from_other_numbers(&mut self, limit: &Limit, cost: u64, now: Micros) {
        self.0.charge_from_other_numbers(limit, cost, now);
    }

    fn refund(&mut self, limit: &Limit, units: u64, charged_at: Option<Micros>, now: Micros) {
        self.0.refund(limit, units, charged_at, now);
    }

    fn renumber(&mut self, old: &Limit, new: &Limit, now: Micros) {
        self.0.renumber(old, new, now);
    }

    fn fresh_after(&self, limit: &Limit, now: Micros) -> Wait {
        self.0.fresh_after(limit, now)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, limit_with};
    use super::super::{Algorithm, State, take};
    use crate::limit::Limit;
    use crate::time::Micros;

    #[test]
    fn a_meter_refuses_what_overflows() {
        check(
            limit_with("1/1s burst 1", Algorithm::LeakyBucket),
            &[
                (0, 1, true, 0, 0),
                (100_000, 1, false, 0, 900_000),
                (1_000_000, 1, true, 0, 0),
                (1_900_000, 1, false, 0, 100_000),
            ],
        );
    }

    #[test]
    fn a_queue_spaces_its_output() {
        let limit = Limit::per_second(10).burst(4).algorithm(Algorithm::LeakyBucket).queue();
        let limit = limit.build().unwrap();
        let mut state = State::fresh(&limit, Micros::ZERO);
        // at µs, allowed, delay µs, retry µs
        let rows = [
            (0, true, 0, 0),
            (0, true, 100_000, 0),
            (0, true, 200_000, 0),
            (0, true, 300_000, 0),
            (0, false, 0, 100_000),
            (100_000, true, 300_000, 0),
            (1_000_000, true, 0, 0),
        ];
        for (at, allowed, delay, retry) in rows {
            let now = Micros::new(at);
            let got = take(&limit, &mut state, 1, now);
            let got_times = (got.delay.as_micros(), got.retry_after.as_micros());
            assert_eq!((got.allowed, got_times), (allowed, (Some(delay), Some(retry))), "at {at}");
        }
    }
}
