//! A state in a locked slot, seen by the numbers of whoever asks.
//!
//! Limits that differ only in their numbers share a state: before and after a change of rules, or the
//! tiers of one rule. Who *takes* carries the state over to its own numbers, because it was told a
//! wait by them. Carrying over may forget use: what the new numbers have no room for. So neither a
//! question nor a settlement does it. A question reads a copy that is carried over. A settlement
//! moves units: it moves them in the state as it is, under the numbers that wrote it.

use crate::algorithm::{State, Strategy};
use crate::check::{Act, Check};
use crate::limit::Limit;
use crate::time::Micros;

use super::MemoryStore;
use super::arena::Arena;
use super::held::Held;
use super::slot::Record;

/// What a state is opened for; the later ones win where several checks meet in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// To read it.
    Ask,
    /// To move units that were granted before: a refund, or a force.
    Settle,
    /// To be granted units, or refused.
    Take,
}

impl Purpose {
    pub(super) fn of(check: &Check<'_>) -> Purpose {
        match check.act {
            Act::Peek => Purpose::Ask,
            _ if check.cost == 0 => Purpose::Ask,
            Act::Force => Purpose::Settle,
            Act::Take | Act::UpTo => Purpose::Take,
        }
    }
}

/// A state and whether it has to be written back.
pub(super) struct Opened<'a> {
    /// By the numbers of the limit asked.
    state: Held<'a>,
    /// What the slot holds, if it keeps its own numbers; then `state` is a copy.
    kept: Option<Box<Kept<'a>>>,
    wrote: bool,
}

/// A state under the numbers that wrote it.
struct Kept<'a> {
    state: Held<'a>,
    numbers: Limit,
    tag: u32,
}

impl<'a> Opened<'a> {
    /// A state by the numbers of the limit asked, not written yet.
    pub(super) fn new(state: Held<'a>) -> Opened<'a> {
        Opened { state, kept: None, wrote: false }
    }

    fn keeping(kept: Kept<'a>, limit: &Limit, now: Micros) -> Opened<'a> {
        let state = kept.by(limit, now);
        Opened { state, kept: Some(Box::new(kept)), wrote: false }
    }

    /// The state by the numbers of the limit asked.
    pub(super) fn state(&self) -> &Held<'a> {
        &self.state
    }

    pub(super) fn charge(&mut self, limit: &Limit, units: u64, now: Micros) {
        self.write(limit, now, |state, limit| state.charge(limit, units, now));
    }

    pub(super) fn refund(&mut self, limit: &Limit, units: u64, at: Option<Micros>, now: Micros) {
        self.write(limit, now, |state, limit| state.refund(limit, units, at, now));
    }

    /// Puts another state of the same kind in its place.
    pub(super) fn replace(&mut self, with: &State) {
        debug_assert!(self.kept.is_none(), "whoever replaces a state takes it");
        self.wrote |= self.state.become_copy_of(with);
    }

    fn write(&mut self, limit: &Limit, now: Micros, act: impl FnOnce(&mut Held<'a>, &Limit)) {
        self.wrote = true;
        match &mut self.kept {
            None => act(&mut self.state, limit),
            Some(kept) => {
                act(&mut kept.state, &kept.numbers);
                self.state = kept.by(limit, now);
            }
        }
    }

    /// What has to be written into the slot, if anything. Call under its lock.
    pub(super) fn close(self, limit: &Limit, tag: u32, arena: &Arena) -> Option<Record> {
        self.wrote.then(|| match self.kept {
            None => self.state.close(limit, tag, arena),
            Some(kept) => kept.state.close(&kept.numbers, kept.tag, arena),
        })
    }
}

impl<'a> Kept<'a> {
    /// A copy, carried over to the numbers of `limit`.
    fn by(&self, limit: &Limit, now: Micros) -> Held<'a> {
        let mut copy = self.state.apart();
        copy.renumber(&self.numbers, limit, now);
        copy
    }
}

impl MemoryStore {
    /// The state in a locked slot. `limit` and `tag` are those of whoever asks.
    pub(super) fn open(
        &self,
        limit: &Limit,
        tag: u32,
        record: Record,
        purpose: Purpose,
        now: Micros,
    ) -> Opened<'_> {
        if record.tag == tag {
            let state = Held::open(limit, record, &self.arena);
            return Opened::new(state.expect("nobody else writes a locked slot"));
        }
        self.numbers.with(record.tag, |old| {
            let opened = old.and_then(|old| Some((old, Held::open(old, record, &self.arena)?)));
            let Some((old, mut state)) = opened else {
                let fresh = Opened::new(Held::fresh(limit, now, &self.arena));
                return Opened { wrote: purpose == Purpose::Take, ..fresh };
            };
            // A fresh state may have been forgotten as well, and then nothing would be known of the
            // numbers that wrote it.
            let fresh = || state.is_fresh(&old.shifted_like(limit), now);
            if purpose == Purpose::Take || purpose == Purpose::Settle && fresh() {
                state.renumber(old, limit, now);
                return Opened { wrote: purpose == Purpose::Take, ..Opened::new(state) };
            }
            debug_assert_eq!(old.kind, limit.kind, "the slot was found by the limit's id");
            let numbers = old.shifted_like(limit);
            Opened::keeping(Kept { state, numbers, tag: record.tag }, limit, now)
        })
    }
}
