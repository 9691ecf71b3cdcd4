//! A state taken out of its slot: the five algorithms behind one type, for everything that is not
//! the hot path, and the packing of each state into the three numbers of a record.

use crate::algorithm::sliding_window_log::Entries;
use crate::algorithm::{
    State, Strategy, fixed_window, leaky_bucket, sliding_window_counter, sliding_window_log,
    token_bucket,
};
use crate::decision::Outcome;
use crate::limit::{Kind, Limit};
use crate::time::Micros;

use super::arena::{Arena, Log};
use super::slot::Record;

/// A state that fits in a slot whole.
pub(crate) trait Compact: Strategy + Copy {
    /// Judges a take and charges it, if that can be done the short way. The new state counts only
    /// if the outcome is allowed.
    #[inline(always)]
    fn take(&self, limit: &Limit, cost: u64, now: Micros) -> Option<(Outcome, Self)> {
        judge_and_charge(self, limit, cost, now)
    }
    fn pack(self, tag: u32) -> Record;
    fn unpack(record: Record) -> Self;
}

#[inline(always)]
fn judge_and_charge<S: Compact>(
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
        impl Compact for $state {
            #[inline]
            fn pack(self, tag: u32) -> Record {
                Record { mark: self.mark, a: self.$a, b: self.$b, tag }
            }
            #[inline]
            fn unpack(record: Record) -> Self {
                Self { mark: record.mark, $a: record.a, $b: record.b }
            }
        }
    };
}

impl Compact for token_bucket::State {
    #[inline(always)]
    fn take(&self, limit: &Limit, cost: u64, now: Micros) -> Option<(Outcome, Self)> {
        self.take_short(limit, cost, now)
    }
    #[inline]
    fn pack(self, tag: u32) -> Record {
        Record { mark: self.mark, a: self.used, b: self.part, tag }
    }
    #[inline]
    fn unpack(record: Record) -> Self {
        Self { mark: record.mark, used: record.a, part: record.b }
    }
}

compact!(fixed_window::State, count, left);
compact!(sliding_window_counter::State, current, previous);

impl Compact for leaky_bucket::State {
    #[inline(always)]
    fn take(&self, limit: &Limit, cost: u64, now: Micros) -> Option<(Outcome, Self)> {
        if limit.is_queue() {
            return judge_and_charge(self, limit, cost, now);
        }
        let (outcome, charged) = self.0.take_short(limit, cost, now)?;
        Some((outcome, leaky_bucket::State(charged)))
    }
    #[inline]
    fn pack(self, tag: u32) -> Record {
        self.0.pack(tag)
    }
    #[inline]
    fn unpack(record: Record) -> Self {
        leaky_bucket::State(Compact::unpack(record))
    }
}

/// A state of any kind.
pub(crate) enum Held<'a> {
    Token(token_bucket::State),
    Leaky(leaky_bucket::State),
    Window(fixed_window::State),
    Counter(sliding_window_counter::State),
    Log(sliding_window_log::State<Log<'a>>),
    /// A log copied out of its block: to be asked and changed, never to be written back.
    LogApart(sliding_window_log::State),
}

macro_rules! dispatch {
    ($held:expr, $inner:ident => $step:expr) => {
        match $held {
            Held::Token($inner) => $step,
            Held::Leaky($inner) => $step,
            Held::Window($inner) => $step,
            Held::Counter($inner) => $step,
            Held::Log($inner) => $step,
            Held::LogApart($inner) => $step,
        }
    };
}

impl<'a> Held<'a> {
    /// The state that a record describes. `None`: it was overwritten while being read.
    pub(crate) fn open(limit: &Limit, record: Record, arena: &'a Arena) -> Option<Held<'a>> {
        Some(match limit.kind {
            Kind::Token => Held::Token(Compact::unpack(record)),
            Kind::Leaky => Held::Leaky(Compact::unpack(record)),
            Kind::Window | Kind::Staggered => Held::Window(Compact::unpack(record)),
            Kind::Counter => Held::Counter(Compact::unpack(record)),
            Kind::Log => Held::Log(arena.open(limit, record)?),
        })
    }

    /// The state of a key that nobody has asked about yet.
    pub(crate) fn fresh(limit: &Limit, now: Micros, arena: &'a Arena) -> Held<'a> {
        let record = Record { mark: now.as_u64(), ..Record::default() };
        Held::open(limit, record, arena).expect("a fresh state is in no block")
    }

    /// A copy that lives on without slot and arena.
    pub(crate) fn copy(&self, limit: &Limit, now: Micros) -> State {
        match self {
            Held::Token(state) => State::Token(*state),
            Held::Leaky(state) => State::Leaky(*state),
            Held::Window(state) => State::Window(*state),
            Held::Counter(state) => State::Counter(*state),
            Held::Log(log) => {
                let copy = copy_log(log);
                debug_assert!(copy.judge(limit, 0, now) == log.judge(limit, 0, now));
                State::Log(copy)
            }
            Held::LogApart(log) => State::Log(log.clone()),
        }
    }

    /// Takes over what another state of the same kind says; whether it is of the same kind.
    pub(crate) fn become_copy_of(&mut self, other: &State) -> bool {
        match (self, other) {
            (Held::Token(state), State::Token(other)) => *state = *other,
            (Held::Leaky(state), State::Leaky(other)) => *state = *other,
            (Held::Window(state), State::Window(other)) => *state = *other,
            (Held::Counter(state), State::Counter(other)) => *state = *other,
            (Held::Log(log), State::Log(other)) => {
                (log.mark, log.base) = (other.mark, other.base);
                log.entries.remove_oldest(log.entries.len());
                log.entries.reserve(other.entries.len());
                other.entries.iter().for_each(|entry| log.append(*entry));
            }
            _ => return false,
        }
        true
    }

    /// A copy whose changes are seen by nobody else: a log's would be, its entries are shared.
    pub(crate) fn apart(&self) -> Held<'a> {
        match self {
            Held::Token(state) => Held::Token(*state),
            Held::Leaky(state) => Held::Leaky(*state),
            Held::Window(state) => Held::Window(*state),
            Held::Counter(state) => Held::Counter(*state),
            Held::Log(log) => Held::LogApart(copy_log(log)),
            Held::LogApart(log) => Held::LogApart(log.clone()),
        }
    }

    /// The record that describes this state. Call under the slot's lock.
    pub(crate) fn close(self, limit: &Limit, tag: u32, arena: &Arena) -> Record {
        match self {
            Held::Token(state) => state.pack(tag),
            Held::Leaky(state) => state.pack(tag),
            Held::Window(state) => state.pack(tag),
            Held::Counter(state) => state.pack(tag),
            Held::Log(state) => arena.close(limit, tag, state),
            Held::LogApart(_) => unreachable!("a copy is not written back"),
        }
    }
}

fn copy_log(log: &sliding_window_log::State<Log<'_>>) -> sliding_window_log::State {
    let entries = (0..log.entries.len()).map(|index| log.entries.get(index)).collect();
    sliding_window_log::State { mark: log.mark, base: log.base, entries }
}

impl Strategy for Held<'_> {
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
