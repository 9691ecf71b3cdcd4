//! The usual case of several limits as one request: all of them admit, and no other thread uses
//! their slots.
//!
//! Each limit is judged and charged once, on a copy. Then the slots are locked, each only if it
//! still holds exactly what was judged, and the charged copies are written. In all other cases (a
//! limit refuses, a key is new, a slot is locked) nothing is written and `several_limits.rs`
//! decides. This path never waits for a lock, so it needs no order of locking.

use arrayvec::ArrayVec;

use crate::algorithm::{CompactState, with_compact_state};
use crate::check::{Act, Check};
use crate::decision::{Decision, MAX_LIMITS, Outcome};
use crate::limit::Limit;
use crate::time::Micros;

use super::MemoryStore;
use super::several_limits::LockedCheck;
use super::slot::{LockedSlot, Slot, SlotRecord, SlotSnapshot};

/// A slot, its content when it was judged, and the record to be written.
struct SlotWrite<'a> {
    slot: &'a Slot,
    snapshot: SlotSnapshot,
    record: SlotRecord,
}

impl MemoryStore {
    /// The answer if all admit and no other thread interferes; `outcomes` then has the outcome of
    /// each limit.
    pub(super) fn take_optimistic(
        &self,
        asked: &[LockedCheck<'_>],
        checks: &[Check<'_>],
        now: Micros,
        outcomes: &mut [Outcome],
    ) -> Option<Decision> {
        let mut charges = ArrayVec::<SlotWrite<'_>, MAX_LIMITS>::new();
        for (one, place) in asked.iter().zip(outcomes.iter_mut()) {
            let (outcome, charge) = self.take_copy(one, asked, now)?;
            *place = outcome;
            charges.extend(charge);
        }
        let mut locked = ArrayVec::<LockedSlot<'_>, MAX_LIMITS>::new();
        for charge in &charges {
            // Also fails if two checks share a slot: the first one has locked it.
            locked.push(charge.slot.lock_if_unchanged(&charge.snapshot)?);
        }
        for (locked, charge) in locked.iter_mut().zip(&charges) {
            locked.write(charge.record);
        }
        drop(locked);
        Some(Decision::of_all(checks, outcomes, 0, now))
    }

    /// The outcome of one limit and its write; `None` if this is not the usual case.
    fn take_copy(
        &self,
        one: &LockedCheck<'_>,
        asked: &[LockedCheck<'_>],
        now: Micros,
    ) -> Option<(Outcome, Option<SlotWrite<'_>>)> {
        let check = &one.check;
        // Checks that share a state are judged for their costs together.
        let is_alone = || asked.iter().filter(|other| other.key == one.key).count() == 1;
        if check.act != Act::Take || check.count_denied || check.cost == 0 {
            return None;
        }
        let slot = self.keys.find(one.key)?;
        let seen = slot.read();
        let record = seen.record();
        if seen.key != one.key || record.tag != one.tag {
            return None;
        }
        let (outcome, record) = take(one.limit, record, check.cost, now)?;
        // A caller that cannot wait gets another answer than the one judged here.
        if check.at_once && !(outcome.allowed && outcome.delay.is_zero()) {
            return None;
        }
        let outcome = Outcome { twin: one.twin, ..outcome };
        match outcome.allowed {
            true => {
                let outcome = Outcome { charged: check.cost, ..outcome };
                Some((outcome, Some(SlotWrite { slot, snapshot: seen, record })))
            }
            // Shadow limits never refuse, so they do not vote here; a shadow refusal is not
            // charged.
            false if check.shadow && is_alone() => Some((outcome, None)),
            false => None,
        }
    }
}

/// Judges and charges a state that fits in a slot.
#[inline]
fn take(
    limit: &Limit,
    record: SlotRecord,
    cost: u64,
    now: Micros,
) -> Option<(Outcome, SlotRecord)> {
    fn of<S: CompactState>(
        limit: &Limit,
        record: SlotRecord,
        cost: u64,
        now: Micros,
    ) -> Option<(Outcome, SlotRecord)> {
        let (outcome, charged) = S::from_numbers(record.numbers()).take(limit, cost, now)?;
        Some((outcome, SlotRecord::of_numbers(charged.to_numbers(), record.tag)))
    }
    with_compact_state!(limit.kind.stored(), S => of::<S>(limit, record, cost, now), else None)
}
