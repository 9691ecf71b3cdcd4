//! The hot path: a take of a key that is in the table, whose numbers are unchanged and whose state
//! fits in a slot.
//!
//! The state is judged and charged on a copy. Then the slot is locked, if it still holds what was
//! judged, and the copy is written. The waits of the answer are computed after that.

use crate::algorithm::{CompactState, TakenState, with_compact_state};
use crate::check::{Act, Check};
use crate::clock::Now;
use crate::decision::{Decision, Outcome};
use crate::limit::Limit;
use crate::time::Micros;

use super::slot::{LockedSlot, Slot, SlotRecord, SlotSnapshot};
use super::{MemoryStore, slot_key};

/// A slot, its content when it was judged, and the record to be written, if any.
pub(super) struct SlotWrite<'a> {
    slot: &'a Slot,
    seen: SlotSnapshot,
    record: Option<SlotRecord>,
}

impl<'a> SlotWrite<'a> {
    /// Writes the record, if any. Returns false if the slot has changed since it was judged. A refusal needs
    /// no second look: it was true of the one consistent read.
    #[inline(always)]
    pub(super) fn commit(&self) -> bool {
        match self.record {
            None => true,
            Some(_) => self.lock().map(|locked| self.write(locked)).is_some(),
        }
    }

    /// Locks the slot if it has not changed since it was judged.
    #[inline(always)]
    pub(super) fn lock(&self) -> Option<LockedSlot<'a>> {
        self.slot.lock_if_unchanged(&self.seen)
    }

    /// Writes the record into the locked slot and unlocks it.
    #[inline(always)]
    pub(super) fn write(&self, mut locked: LockedSlot<'a>) {
        if let Some(record) = self.record {
            locked.write(record);
        }
    }

    /// Returns true if there is a record to be written.
    #[inline(always)]
    pub(super) fn is_charge(&self) -> bool {
        self.record.is_some()
    }
}

/// A take that is judged on a copy of its state.
pub(super) struct JudgedTake<'a, F> {
    pub(super) write: SlotWrite<'a>,
    /// Computes the outcome.
    pub(super) outcome: F,
}

impl MemoryStore {
    /// Chooses the path: the hot one for a take of a state that fits in a slot, else the slow one.
    /// `answer` receives the decision and puts it where the caller needs it, so that it is not
    /// copied.
    #[inline(always)]
    pub(super) fn decide_subject<T>(
        &self,
        check: &Check<'_>,
        subject: u64,
        now: Now<'_>,
        answer: impl FnOnce(Decision) -> T,
    ) -> T {
        let usual = !(check.count_denied | check.shadow | check.at_once);
        if check.act != Act::Take || !usual || self.blocked_for(subject, now.instant()).is_some() {
            return answer(self.decide_slow(check, subject, now));
        }
        with_compact_state!(
            check.limit.kind,
            S => self.take::<S, T>(check, subject, now, answer),
            else answer(self.decide_slow(check, subject, now))
        )
    }

    /// Each algorithm has its own copy of this function, because inlined together they spill
    /// registers.
    #[inline(never)]
    fn take<S: CompactState, T>(
        &self,
        check: &Check<'_>,
        subject: u64,
        now: Now<'_>,
        answer: impl FnOnce(Decision) -> T,
    ) -> T {
        let (limit, cost, instant) = (check.limit, check.cost, now.instant());
        let key = slot_key(subject, limit);
        while let Some(judged) = self.judge_take::<S>(limit, key, cost, instant) {
            if judged.write.commit() {
                let charged = if judged.write.is_charge() { cost } else { 0 };
                return answer(Decision::of_one(limit, (judged.outcome)(), charged, instant));
            }
        }
        answer(self.decide_slow(check, subject, now))
    }

    /// Judges and charges a copy of the state; `None` if this is not the usual case. An empty key
    /// is never in the table.
    #[inline(always)]
    pub(super) fn judge_take<S: CompactState>(
        &self,
        limit: &Limit,
        key: u64,
        cost: u64,
        now: Micros,
    ) -> Option<JudgedTake<'_, impl FnOnce() -> Outcome>> {
        let (tag, slot) = (self.numbers.tag(limit)?, self.keys.find(key)?);
        let seen = slot.read();
        let record = seen.record();
        if seen.key != key || record.tag != tag {
            return None;
        }
        let state = S::from_numbers(record.numbers());
        let TakenState { allowed, charged, outcome } = state.take(limit, cost, now)?;
        let record =
            (allowed && cost > 0).then(|| SlotRecord::of_numbers(charged.to_numbers(), tag));
        Some(JudgedTake { write: SlotWrite { slot, seen, record }, outcome })
    }
}
