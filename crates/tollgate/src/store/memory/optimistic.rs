//! The usual case of several limits as one request: all of them admit, and no other thread uses
//! their slots.
//!
//! Each limit is judged and charged once, on a copy. Then the slots are locked, each only if it
//! still holds exactly what was judged, and the charged copies are written. In all other cases (a
//! limit refuses, a key is new, a slot is locked) nothing is written and `several_limits.rs`
//! decides. This path never waits for a lock, so it needs no order of locking.

use crate::algorithm::{CompactState, with_compact_state};
use crate::check::{Act, Check};
use crate::decision::{Decision, Outcome};
use crate::limit::Limit;
use crate::time::Micros;

use super::take::SlotWrite;
use super::{MemoryStore, PerCheck, slot_key};

impl MemoryStore {
    /// The answer if all admit and no other thread interferes; `outcomes` then has the outcome of
    /// each limit.
    pub(super) fn take_optimistic(
        &self,
        checks: &[Check<'_>],
        subjects: &[u64],
        now: Micros,
        outcomes: &mut [Outcome],
    ) -> Option<Decision> {
        let mut writes = PerCheck::<SlotWrite<'_>>::new();
        for (index, (check, outcome)) in checks.iter().zip(outcomes.iter_mut()).enumerate() {
            let write = self.judge_copy(check, subjects[index], now, outcome)?;
            if write.is_charge() {
                writes.push(write);
            } else if !check.shadow || !is_alone(checks, subjects, index) {
                // Shadow limits never refuse, so they do not vote here; a shadow refusal is not
                // charged. Checks that share a state are judged for their costs together.
                return None;
            }
        }
        // Fails if two checks share a slot, because the first one has locked it. Limits that differ
        // in their numbers alone do so as well, unless one of them finds the numbers of the other.
        let mut locked = PerCheck::new();
        for write in &writes {
            locked.push(write.lock()?);
        }
        for (write, locked) in writes.iter().zip(locked) {
            write.write(locked);
        }
        Some(Decision::of_all(checks, outcomes, 0, now))
    }

    /// Judges one limit on a copy of its state; `None` if this is not the usual case.
    #[inline]
    fn judge_copy(
        &self,
        check: &Check<'_>,
        subject: u64,
        now: Micros,
        outcome: &mut Outcome,
    ) -> Option<SlotWrite<'_>> {
        if check.act != Act::Take || check.count_denied || check.cost == 0 {
            return None;
        }
        let shifted;
        let limit = match check.limit.is_staggered() {
            true => {
                shifted = check.limit.for_key(check.key.as_bytes());
                &*shifted
            }
            false => check.limit,
        };
        let write = with_compact_state!(
            limit.kind.stored(),
            S => self.judge_limit::<S>(limit, subject, check.cost, now, outcome),
            else None
        )?;
        // A caller that cannot wait gets another answer than the one judged here.
        let waits = check.at_once && !(outcome.allowed && outcome.delay.is_zero());
        (!waits).then_some(write)
    }

    /// Each algorithm has its own copy of this function, because inlined together they spill
    /// registers.
    #[inline(never)]
    fn judge_limit<S: CompactState>(
        &self,
        limit: &Limit,
        subject: u64,
        cost: u64,
        now: Micros,
        outcome: &mut Outcome,
    ) -> Option<SlotWrite<'_>> {
        let judged = self.judge_take::<S>(limit, slot_key(subject, limit), cost, now)?;
        let charged = if judged.write.is_charge() { cost } else { 0 };
        *outcome = Outcome { charged, ..(judged.outcome)() };
        Some(judged.write)
    }
}

/// Returns true if no other check of the request has the state of the one at `index`.
#[cold]
fn is_alone(checks: &[Check<'_>], subjects: &[u64], index: usize) -> bool {
    let key = |(check, &subject): (&Check<'_>, &u64)| slot_key(subject, check.limit);
    let own = key((&checks[index], &subjects[index]));
    checks.iter().zip(subjects).filter(|one| key(*one) == own).count() == 1
}
