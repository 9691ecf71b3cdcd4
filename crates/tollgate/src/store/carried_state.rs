//! A state seen by the numbers of whoever asks.
//!
//! Limits that differ only in their numbers share a state: before and after a change of rules, or if
//! the asker states the numbers. Whoever is *granted* units carries the state over to its own numbers,
//! because it was told a wait by them. Nobody else does: a question, a refusal and a settlement leave
//! the numbers that wrote it, and units are moved under those. So numbers that were only asked about
//! change nothing, and what is forgotten in carrying a bucket over is never more than was free.

use crate::algorithm::{State, Strategy, keeps_state};
use crate::check::{Act, Check};
use crate::limit::Limit;
use crate::time::Micros;

/// What a state is opened for; the later ones win where several checks meet in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// To read it.
    Read,
    /// To move units that were granted before: a refund, or a force.
    Settle,
    /// To be granted units, or refused.
    Take,
}

impl Purpose {
    pub(crate) fn of(check: &Check<'_>) -> Purpose {
        match check.act {
            Act::Peek => Purpose::Read,
            _ if check.cost == 0 => Purpose::Read,
            Act::Force => Purpose::Settle,
            Act::Take | Act::UpTo => Purpose::Take,
        }
    }
}

/// Why units are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeReason {
    /// They were granted to whoever asked.
    Granted,
    /// They are forced; or they are 0, and the state follows a clock that jumped.
    Settled,
    /// The request was refused, and its limit counts such requests.
    Refused,
}

/// A state of which there can be a copy.
pub(crate) trait DetachState: Strategy {
    /// A copy whose changes are seen by nobody else.
    fn detached_copy(&self) -> Self;
}

impl DetachState for State {
    fn detached_copy(&self) -> State {
        self.clone()
    }
}

/// A state and whether it has to be written back.
#[derive(Debug)]
pub(crate) struct CarriedState<S> {
    /// By the numbers of the limit asked.
    state: S,
    /// The numbers that wrote it, if they are others.
    writer: Option<WriterNumbers<S>>,
    changed: bool,
}

/// Numbers that wrote a state and are not those of the limit asked.
#[derive(Debug)]
struct WriterNumbers<S> {
    numbers: Limit,
    /// What the store calls these numbers.
    tag: u32,
    /// The state as they wrote it, of which the one by the limit asked is a changed copy. `None`: it is
    /// the same by both.
    original: Option<S>,
}

/// What has to be written.
#[expect(clippy::large_enum_variant, reason = "read at once, and nothing is to be allocated")]
pub(crate) enum PendingWrite<S> {
    /// A state by the numbers of the limit asked.
    OwnNumbers(S),
    /// One that keeps its own.
    WriterNumbers(S, Limit, u32),
}

impl<S: DetachState> CarriedState<S> {
    /// A state by the numbers of the limit asked, not written yet.
    pub(crate) fn new(state: S) -> CarriedState<S> {
        CarriedState { state, writer: None, changed: false }
    }

    /// A fresh state in the place of one that nobody can read any more.
    pub(crate) fn replacing_unreadable(fresh: S, purpose: Purpose) -> CarriedState<S> {
        CarriedState { changed: purpose == Purpose::Take, ..CarriedState::new(fresh) }
    }

    /// A state that `old` numbers wrote, which the store calls `tag`.
    pub(crate) fn from_other_numbers(
        mut state: S,
        (old, tag): (&Limit, u32),
        limit: &Limit,
        now: Micros,
    ) -> CarriedState<S> {
        debug_assert_eq!(old.kind, limit.kind, "the state was found by the limit's id");
        let numbers = old.shifted_like(limit);
        // A fresh state may have been forgotten as well, and then nothing would be known of the
        // numbers that wrote it.
        if state.is_fresh(&numbers, now) {
            state.renumber(&numbers, limit, now);
            return CarriedState::new(state);
        }
        let (state, original) = match keeps_state(limit) {
            true => (state, None),
            false => (carried_over(&state, &numbers, limit, now), Some(state)),
        };
        CarriedState {
            state,
            writer: Some(WriterNumbers { numbers, tag, original }),
            changed: false,
        }
    }

    /// The state by the numbers of the limit asked.
    pub(crate) fn state(&self) -> &S {
        &self.state
    }

    pub(crate) fn charge(&mut self, limit: &Limit, units: u64, why: ChargeReason, now: Micros) {
        match why {
            ChargeReason::Granted => {
                self.carry_over(limit, now);
                self.write(limit, now, |state, limit| state.charge(limit, units, now));
            }
            ChargeReason::Settled => {
                self.write(limit, now, |state, limit| state.charge(limit, units, now));
            }
            ChargeReason::Refused => {
                self.write(limit, now, |state, limit| state.charge_refused(limit, units, now));
            }
        }
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
        let before = self.changed;
        let mut changed = false;
        self.write(limit, now, |state, limit| changed = act(state, limit));
        self.changed = before || changed;
    }

    /// Puts another state of the same kind in its place, by the numbers of the limit asked; `replace`
    /// says whether it could.
    pub(crate) fn replace(
        &mut self,
        limit: &Limit,
        now: Micros,
        replace: impl FnOnce(&mut S) -> bool,
    ) {
        self.carry_over(limit, now);
        self.changed |= replace(&mut self.state);
    }

    /// The state is by the numbers of the limit asked from now on.
    fn carry_over(&mut self, limit: &Limit, now: Micros) {
        let Some(other) = self.writer.take() else { return };
        if let Some(original) = other.original {
            self.state = original;
            self.state.renumber(&other.numbers, limit, now);
        }
    }

    /// Changes the state under the numbers that wrote it.
    fn write(&mut self, limit: &Limit, now: Micros, act: impl FnOnce(&mut S, &Limit)) {
        self.changed = true;
        match &mut self.writer {
            None => act(&mut self.state, limit),
            Some(WriterNumbers { numbers, original: None, .. }) => act(&mut self.state, numbers),
            Some(WriterNumbers { numbers, original: Some(original), .. }) => {
                act(original, numbers);
                self.state = carried_over(original, numbers, limit, now);
            }
        }
    }

    /// What has to be written, if anything.
    pub(crate) fn into_pending_write(self) -> Option<PendingWrite<S>> {
        self.changed.then(|| match self.writer {
            None => PendingWrite::OwnNumbers(self.state),
            Some(WriterNumbers { numbers, tag, original }) => {
                PendingWrite::WriterNumbers(original.unwrap_or(self.state), numbers, tag)
            }
        })
    }
}

/// A copy of a state, carried over to the numbers of `limit`.
fn carried_over<S: DetachState>(state: &S, numbers: &Limit, limit: &Limit, now: Micros) -> S {
    let mut copy = state.detached_copy();
    copy.renumber(numbers, limit, now);
    copy
}
