//! A state seen by the numbers of whoever asks.
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

/// What a state is opened for; the later ones win where several checks meet in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// To read it.
    Ask,
    /// To move units that were granted before: a refund, or a force.
    Settle,
    /// To be granted units, or refused.
    Take,
}

impl Purpose {
    pub(crate) fn of(check: &Check<'_>) -> Purpose {
        match check.act {
            Act::Peek => Purpose::Ask,
            _ if check.cost == 0 => Purpose::Ask,
            Act::Force => Purpose::Settle,
            Act::Take | Act::UpTo => Purpose::Take,
        }
    }
}

/// A state of which there can be a copy.
pub(crate) trait Apart: Strategy {
    /// A copy whose changes are seen by nobody else.
    fn apart(&self) -> Self;
}

impl Apart for State {
    fn apart(&self) -> State {
        self.clone()
    }
}

/// A state and whether it has to be written back.
#[derive(Debug)]
pub(crate) struct Opened<S> {
    /// By the numbers of the limit asked.
    state: S,
    /// What the store holds, if it keeps its own numbers; then `state` is a copy.
    kept: Option<Box<Kept<S>>>,
    wrote: bool,
}

/// A state under the numbers that wrote it.
#[derive(Debug)]
pub(crate) struct Kept<S> {
    pub(crate) state: S,
    pub(crate) numbers: Limit,
    /// What the store calls these numbers.
    pub(crate) tag: u32,
}

/// What has to be written.
pub(crate) enum Written<S> {
    /// A state by the numbers of the limit asked.
    ByAsked(S),
    /// One that keeps its own.
    Kept(Box<Kept<S>>),
}

impl<S: Apart> Opened<S> {
    /// A state by the numbers of the limit asked, not written yet.
    pub(crate) fn new(state: S) -> Opened<S> {
        Opened { state, kept: None, wrote: false }
    }

    /// A fresh state in the place of one that nobody can read any more.
    pub(crate) fn instead(fresh: S, purpose: Purpose) -> Opened<S> {
        Opened { wrote: purpose == Purpose::Take, ..Opened::new(fresh) }
    }

    /// A state that `old` numbers wrote, which the store calls `tag`.
    pub(crate) fn of_other_numbers(
        mut state: S,
        (old, tag): (&Limit, u32),
        limit: &Limit,
        purpose: Purpose,
        now: Micros,
    ) -> Opened<S> {
        // A fresh state may have been forgotten as well, and then nothing would be known of the
        // numbers that wrote it.
        let fresh = || state.is_fresh(&old.shifted_like(limit), now);
        if purpose == Purpose::Take || purpose == Purpose::Settle && fresh() {
            state.renumber(old, limit, now);
            return Opened { wrote: purpose == Purpose::Take, ..Opened::new(state) };
        }
        debug_assert_eq!(old.kind, limit.kind, "the state was found by the limit's id");
        let kept = Kept { state, numbers: old.shifted_like(limit), tag };
        Opened { state: kept.by(limit, now), kept: Some(Box::new(kept)), wrote: false }
    }

    /// The state by the numbers of the limit asked.
    pub(crate) fn state(&self) -> &S {
        &self.state
    }

    pub(crate) fn charge(&mut self, limit: &Limit, units: u64, now: Micros) {
        self.write(limit, now, |state, limit| state.charge(limit, units, now));
    }

    pub(crate) fn refund(&mut self, limit: &Limit, units: u64, at: Option<Micros>, now: Micros) {
        self.write(limit, now, |state, limit| state.refund(limit, units, at, now));
    }

    /// Changes the state under the numbers that wrote it; `act` says whether it did.
    pub(crate) fn change(
        &mut self,
        limit: &Limit,
        now: Micros,
        act: impl FnOnce(&mut S, &Limit) -> bool,
    ) {
        let before = self.wrote;
        let mut changed = false;
        self.write(limit, now, |state, limit| changed = act(state, limit));
        self.wrote = before || changed;
    }

    /// Puts another state of the same kind in its place; `replace` says whether it could.
    pub(crate) fn replace(&mut self, replace: impl FnOnce(&mut S) -> bool) {
        debug_assert!(self.kept.is_none(), "whoever replaces a state takes it");
        self.wrote |= replace(&mut self.state);
    }

    fn write(&mut self, limit: &Limit, now: Micros, act: impl FnOnce(&mut S, &Limit)) {
        self.wrote = true;
        match &mut self.kept {
            None => act(&mut self.state, limit),
            Some(kept) => {
                act(&mut kept.state, &kept.numbers);
                self.state = kept.by(limit, now);
            }
        }
    }

    /// What has to be written, if anything.
    pub(crate) fn written(self) -> Option<Written<S>> {
        self.wrote.then(|| match self.kept {
            None => Written::ByAsked(self.state),
            Some(kept) => Written::Kept(kept),
        })
    }
}

impl<S: Apart> Kept<S> {
    /// A copy, carried over to the numbers of `limit`.
    fn by(&self, limit: &Limit, now: Micros) -> S {
        let mut copy = self.state.apart();
        copy.renumber(&self.numbers, limit, now);
        copy
    }
}
