//! A state read from its slot: one type for all algorithms, for everything that is not the hot
//! path, and the packing of each state into the three numbers of a record.

use crate::algorithm::sliding_window_log::SlidingLogEntries;
use crate::algorithm::{
    State, Strategy, fixed_window, leaky_bucket, sliding_window_counter, sliding_window_log,
    token_bucket,
};
use crate::decision::Outcome;
use crate::limit::{Limit, LimitStateKind};
use crate::time::Micros;

use super::arena::{Arena, ArenaLog};
use super::slot::SlotRecord;

/// A state that fits completely in a slot.
pub(crate) trait CompactState: Strategy + Copy {
    /// Judges a take and charges it, if the fast path can. The new state counts only if the outcome
    /// is allowed.
    #[inline(always)]
    fn take(&self, limit: &Limit, cost: u64, now: Micros) -> Option<(Outcome, Self)> {
        judge_and_charge(self, limit, cost, now)
    }
    fn pack(self, tag: u32) -> SlotRecord;
    fn unpack(record: SlotRecord) -> Self;
}

#[inline(always)]
fn judge_and_charge<S: CompactState>(
    state: &S,
    limit: &Limit,
    cost: u64,
    now: Micros,
) -> Option<(Outcome, S)> {
    let outcome = state.judge(limit, cost, now);
    let mut charged = *state;
    charged.charge(limit, cost, now);
    (!outcome.jumped).then_some((outcome, charged))
}

/// The three numbers of each state, in the order in which a record holds them.
macro_rules! compact {
    ($state:ty, $a:ident, $b:ident) => {
        impl CompactState for $state {
            #[inline]
            fn pack(self, tag: u32) -> SlotRecord {
                SlotRecord { mark: self.mark, a: self.$a, b: self.$b, tag }
            }
            #[inline]
            fn unpack(record: SlotRecord) -> Self {
                Self { mark: record.mark, $a: record.a, $b: record.b }
            }
        }
    };
}

impl CompactState for token_bucket::TokenBucketState {
    #[inline(always)]
    fn take(&self, limit: &Limit, cost: u64, now: Micros) -> Option<(Outcome, Self)> {
        self.take_short(limit, cost, now)
    }
    #[inline]
    fn pack(self, tag: u32) -> SlotRecord {
        SlotRecord { mark: self.mark, a: self.used, b: self.part, tag }
    }
    #[inline]
    fn unpack(record: SlotRecord) -> Self {
        Self { mark: record.mark, used: record.a, part: record.b }
    }
}

compact!(fixed_window::FixedWindowState, count, left);
compact!(sliding_window_counter::SlidingCounterState, current, previous);

impl CompactState for leaky_bucket::LeakyBucketState {
    #[inline(always)]
    fn take(&self, limit: &Limit, cost: u64, now: Micros) -> Option<(Outcome, Self)> {
        if limit.is_queue() {
            return judge_and_charge(self, limit, cost, now);
        }
        let (outcome, charged) = self.0.take_short(limit, cost, now)?;
        Some((outcome, leaky_bucket::LeakyBucketState(charged)))
    }
    #[inline]
    fn pack(self, tag: u32) -> SlotRecord {
        self.0.pack(tag)
    }
    #[inline]
    fn unpack(record: SlotRecord) -> Self {
        leaky_bucket::LeakyBucketState(CompactState::unpack(record))
    }
}

/// A state of any kind.
pub(crate) enum SlotState<'a> {
    Token(token_bucket::TokenBucketState),
    Leaky(leaky_bucket::LeakyBucketState),
    Window(fixed_window::FixedWindowState),
    Counter(sliding_window_counter::SlidingCounterState),
    Log(sliding_window_log::SlidingLogState<ArenaLog<'a>>),
    /// A log copied out of its block: to be read and changed, never to be written back.
    LogCopy(sliding_window_log::SlidingLogState),
}

macro_rules! dispatch {
    ($held:expr, $inner:ident => $step:expr) => {
        match $held {
            SlotState::Token($inner) => $step,
            SlotState::Leaky($inner) => $step,
            SlotState::Window($inner) => $step,
            SlotState::Counter($inner) => $step,
            SlotState::Log($inner) => $step,
            SlotState::LogCopy($inner) => $step,
        }
    };
}

impl<'a> SlotState<'a> {
    /// The state that a record describes; `None` if the record was overwritten while being read.
    pub(crate) fn from_record(
        limit: &Limit,
        record: SlotRecord,
        arena: &'a Arena,
    ) -> Option<SlotState<'a>> {
        Some(match limit.kind {
            LimitStateKind::Token => SlotState::Token(CompactState::unpack(record)),
            LimitStateKind::Leaky => SlotState::Leaky(CompactState::unpack(record)),
            LimitStateKind::Window | LimitStateKind::Staggered => {
                SlotState::Window(CompactState::unpack(record))
            }
            LimitStateKind::Counter => SlotState::Counter(CompactState::unpack(record)),
            LimitStateKind::Log => SlotState::Log(arena.open(limit, record)?),
        })
    }

    /// The state of a key without any charge.
    pub(crate) fn fresh(limit: &Limit, now: Micros, arena: &'a Arena) -> SlotState<'a> {
        let record = SlotRecord { mark: now.as_u64(), ..SlotRecord::default() };
        SlotState::from_record(limit, record, arena).expect("a fresh state is in no block")
    }

    /// A copy that does not depend on slot and arena.
    pub(crate) fn copy(&self, limit: &Limit, now: Micros) -> State {
        match self {
            SlotState::Token(state) => State::Token(*state),
            SlotState::Leaky(state) => State::Leaky(*state),
            SlotState::Window(state) => State::Window(*state),
            SlotState::Counter(state) => State::Counter(*state),
            SlotState::Log(log) => {
                let copy = copy_log(log);
                debug_assert!(copy.judge(limit, 0, now) == log.judge(limit, 0, now));
                State::Log(copy)
            }
            SlotState::LogCopy(log) => State::Log(log.clone()),
        }
    }

    /// Copies another state of the same kind into this one. Returns false if it is of another kind.
    pub(crate) fn become_copy_of(&mut self, other: &State) -> bool {
        match (self, other) {
            (SlotState::Token(state), State::Token(other)) => *state = *other,
            (SlotState::Leaky(state), State::Leaky(other)) => *state = *other,
            (SlotState::Window(state), State::Window(other)) => *state = *other,
            (SlotState::Counter(state), State::Counter(other)) => *state = *other,
            (SlotState::Log(log), State::Log(other)) => {
                (log.mark, log.base) = (other.mark, other.base);
                log.entries.remove_oldest(log.entries.len());
                log.entries.reserve(other.entries.len());
                other.entries.iter().for_each(|entry| log.append(*entry));
            }
            _ => return false,
        }
        true
    }

    /// A copy whose changes do not affect the original. Copies of a log need new entries, because
    /// those are shared.
    pub(crate) fn detached_copy(&self) -> SlotState<'a> {
        match self {
            SlotState::Token(state) => SlotState::Token(*state),
            SlotState::Leaky(state) => SlotState::Leaky(*state),
            SlotState::Window(state) => SlotState::Window(*state),
            SlotState::Counter(state) => SlotState::Counter(*state),
            SlotState::Log(log) => SlotState::LogCopy(copy_log(log)),
            SlotState::LogCopy(log) => SlotState::LogCopy(log.clone()),
        }
    }

    /// The record of this state. Call under the slot's lock.
    pub(crate) fn into_record(self, limit: &Limit, tag: u32, arena: &Arena) -> SlotRecord {
        match self {
            SlotState::Token(state) => state.pack(tag),
            SlotState::Leaky(state) => state.pack(tag),
            SlotState::Window(state) => state.pack(tag),
            SlotState::Counter(state) => state.pack(tag),
            SlotState::Log(state) => arena.close(limit, tag, state),
            SlotState::LogCopy(_) => unreachable!("a copy of a log is never written back"),
        }
    }
}

fn copy_log(
    log: &sliding_window_log::SlidingLogState<ArenaLog<'_>>,
) -> sliding_window_log::SlidingLogState {
    let entries = (0..log.entries.len()).map(|index| log.entries.get(index)).collect();
    sliding_window_log::SlidingLogState { mark: log.mark, base: log.base, entries }
}

impl Strategy for SlotState<'_> {
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
    fn refund(&mut self, limit: &Limit, units: u64, charged_at: Option<Micros>, now: Micros) {
        dispatch!(self, state => state.refund(limit, units, charged_at, now));
    }
    fn renumber(&mut self, old: &Limit, new: &Limit, now: Micros) {
        dispatch!(self, state => state.renumber(old, new, now));
    }
}
