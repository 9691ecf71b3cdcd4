//! A state read from its slot, for everything that is not the hot path.

use crate::algorithm::sliding_window_log::{SlidingLogEntries, SlidingLogState};
use crate::algorithm::token_bucket::TokenBucketState;
use crate::algorithm::{State, Strategy};
use crate::decision::Outcome;
use crate::limit::Limit;
use crate::time::{Micros, Wait};

use super::arena::{Arena, ArenaLog};
use super::slot::SlotRecord;

/// A state of any kind, whose log is in the arena.
pub(crate) type SlotState<'a> = State<SlotLog<'a>>;

/// The log of a slot.
pub(crate) enum SlotLog<'a> {
    InArena(SlidingLogState<ArenaLog<'a>>),
    /// A log copied out of its block: to be read and changed, never to be written back.
    Copied(SlidingLogState),
}

impl<'a> SlotState<'a> {
    /// The state that a record describes; `None` if the record was overwritten while being read.
    pub(crate) fn from_record(
        limit: &Limit,
        record: SlotRecord,
        arena: &'a Arena,
    ) -> Option<SlotState<'a>> {
        let Some(mut state) = State::from_numbers(limit, record.numbers()) else {
            return Some(State::Log(SlotLog::InArena(arena.open(limit, record)?)));
        };
        if let (Some(units), Some(bucket)) = (record.excess_units(), state.bucket_mut()) {
            *bucket = TokenBucketState::from_excess_numbers(limit, units, record.numbers());
        }
        Some(state)
    }

    /// The state of a key without any charge.
    pub(crate) fn fresh_in_slot(limit: &Limit, now: Micros, arena: &'a Arena) -> SlotState<'a> {
        let record = SlotRecord { mark: now.as_u64(), ..SlotRecord::default() };
        SlotState::from_record(limit, record, arena).expect("a fresh state is in no block")
    }

    /// A copy that does not depend on slot and arena.
    pub(crate) fn copy(&self) -> State {
        self.with_log(SlotLog::copied)
    }

    /// Copies another state of the same kind into this one. Returns false if it is of another kind.
    pub(crate) fn become_copy_of(&mut self, other: &State) -> bool {
        match (self, other) {
            (State::Log(SlotLog::InArena(log)), State::Log(other)) => {
                (log.mark, log.base) = (other.mark, other.base);
                log.entries.remove_oldest(log.entries.len());
                log.entries.reserve(other.entries.len());
                other.entries.iter().for_each(|entry| log.append(*entry));
                true
            }
            (state, other) => state.copy_compact(other),
        }
    }

    /// A copy whose changes do not affect the original. Copies of a log need new entries, because
    /// those are shared.
    pub(crate) fn independent_copy(&self) -> SlotState<'a> {
        self.with_log(|log| SlotLog::Copied(log.copied()))
    }

    /// The record of this state. Call under the slot's lock.
    pub(crate) fn into_record(self, limit: &Limit, tag: u32, arena: &Arena) -> SlotRecord {
        if let Some(bucket) = self.bucket().filter(|bucket| bucket.excess > 0) {
            let (units, numbers) = bucket.to_excess_numbers(limit);
            return SlotRecord::with_excess(numbers, units, tag);
        }
        match (self.to_numbers(), self) {
            (Some(numbers), _) => SlotRecord::of_numbers(numbers, tag),
            (None, State::Log(SlotLog::InArena(log))) => arena.close(limit, tag, log),
            (None, _) => unreachable!("a copy of a log is never written back"),
        }
    }
}

impl SlotLog<'_> {
    fn copied(&self) -> SlidingLogState {
        match self {
            SlotLog::Copied(log) => log.clone(),
            SlotLog::InArena(log) => {
                let entries = (0..log.entries.len()).map(|index| log.entries.get(index)).collect();
                SlidingLogState { mark: log.mark, base: log.base, entries }
            }
        }
    }
}

macro_rules! dispatch {
    ($log:expr, $inner:ident => $step:expr) => {
        match $log {
            SlotLog::InArena($inner) => $step,
            SlotLog::Copied($inner) => $step,
        }
    };
}

impl Strategy for SlotLog<'_> {
    fn mark(&self) -> u64 {
        dispatch!(self, state => state.mark())
    }
    fn is_possible(&self, limit: &Limit) -> bool {
        dispatch!(self, state => state.is_possible(limit))
    }
    fn judge(&self, limit: &Limit, cost: u64, now: Micros) -> Outcome {
        dispatch!(self, state => state.judge(limit, cost, now))
    }
    fn used(&self, limit: &Limit, now: Micros) -> u64 {
        dispatch!(self, state => state.used(limit, now))
    }
    fn charge(&mut self, limit: &Limit, cost: u64, now: Micros) {
        dispatch!(self, state => state.charge(limit, cost, now));
    }
    fn charge_refused(&mut self, limit: &Limit, cost: u64, now: Micros) {
        dispatch!(self, state => state.charge_refused(limit, cost, now));
    }
    fn charge_from_other_numbers(&mut self, limit: &Limit, cost: u64, now: Micros) {
        dispatch!(self, state => state.charge_from_other_numbers(limit, cost, now));
    }
    fn refund(&mut self, limit: &Limit, units: u64, charged_at: Option<Micros>, now: Micros) {
        dispatch!(self, state => state.refund(limit, units, charged_at, now));
    }
    fn renumber(&mut self, old: &Limit, new: &Limit, now: Micros) {
        dispatch!(self, state => state.renumber(old, new, now));
    }
    fn fresh_after(&self, limit: &Limit, now: Micros) -> Wait {
        dispatch!(self, state => state.fresh_after(limit, now))
    }
}
