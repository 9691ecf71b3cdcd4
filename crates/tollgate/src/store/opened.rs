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

/// Why units are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charging {
    /// They were granted to whoever asked.
    Granted,
    /// They are forced; or they are 0, and the state follows a clock that jumped.
    Settled,
    /// The request was refused, and its limit counts such requests.
    Refused,
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
    /// The numbers that wrote it, if they are others.
    other: Option<OtherNumbers<S>>,
    wrote: bool,
}

/// Numbers that wrote a state and are not those of the limit asked.
#[derive(Debug)]
struct OtherNumbers<S> {
    numbers: Limit,
    /// What the store calls these numbers.
    tag: u32,
    /// The state as they wrote it, of which the one by the limit asked is a changed copy. `None`: it is
    /// the same by both.
    original: Option<S>,
}

/// What has to be written.
#[expect(clippy::large_enum_variant, reason = "read at once, and nothing is to be allocated")]
pub(crate) enum Written<S> {
    /// A state by the numbers of the limit asked.
    ByAsked(S),
    /// One that keeps its own.
    ByOther(S, Limit, u32),
}

impl<S: Apart> Opened<S> {
    /// A state by the numbers of the limit asked, not written yet.
    pub(crate) fn new(state: S) -> Opened<S> {
        Opened { state, other: None, wrote: false }
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
        now: Micros,
    ) -> Opened<S> {
        debug_assert_eq!(old.kind, limit.kind, "the state was found by the limit's id");
        let numbers = old.shifted_like(limit);
        // A fresh state may have been forgotten as well, and then nothing would be known of the
        // numbers that wrote it.
        if state.is_fresh(&numbers, now) {
            state.renumber(&numbers, limit, now);
            return Opened::new(state);
        }
        let (state, original) = match keeps_state(limit) {
            true => (state, None),
            false => (carried_over(&state, &numbers, limit, now), Some(state)),
        };
        Opened { state, other: Some(OtherNumbers { numbers, tag, original }), wrote: false }
    }

    /// The state by the numbers of the limit asked.
    pub(crate) fn state(&self) -> &S {
        &self.state
    }

    pub(crate) fn charge(&mut self, limit: &Limit, units: u64, why: Charging, now: Micros) {
        match why {
            Charging::Granted => {
                self.carry_over(limit, now);
                self.write(limit, now, |state, limit| state.charge(limit, units, now));
            }
            Charging::Settled => {
                self.write(limit, now, |state, limit| state.charge(limit, units, now));
            }
            Charging::Refused => {
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
        let before = self.wrote;
        let mut changed = false;
        self.write(limit, now, |state, limit| changed = act(state, limit));
        self.wrote = before || changed;
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
        self.wrote |= replace(&mut self.state);
    }

    /// The state is by the numbers of the limit asked from now on.
    fn carry_over(&mut self, limit: &Limit, now: Micros) {
        let Some(other) = self.other.take() else { return };
        if let Some(original) = other.original {
            self.state = original;
            self.state.renumber(&other.numbers, limit, now);
        }
    }

    /// Changes the state under the numbers that wrote it.
    fn write(&mut self, limit: &Limit, now: Micros, act: impl FnOnce(&mut S, &Limit)) {
        self.wrote = true;
        match &mut self.other {
            None => act(&mut self.state, limit),
            Some(OtherNumbers { numbers, original: None, .. }) => act(&mut self.state, numbers),
            Some(OtherNumbers { numbers, original: Some(original), .. }) => {
                act(original, numbers);
                self.state = carried_over(original, numbers, limit, now);
            }
        }
    }

    /// What has to be written, if anything.
    pub(crate) fn written(self) -> Option<Written<S>> {
        self.wrote.then(|| match self.other {
            None => Written::ByAsked(self.state),
            Some(OtherNumbers { numbers, tag, original }) => {
                Written::ByOther(original.unwrap_or(self.state), numbers, tag)
            }
        })
    }
}

/// A copy of a state, carried over to the numbers of `limit`.
fn carried_over<S: Apart>(state: &S, numbers: &Limit, limit: &Limit, now: Micros) -> S {
    let mut copy = state.apart();
    copy.renumber(numbers, limit, now);
    copy
}
