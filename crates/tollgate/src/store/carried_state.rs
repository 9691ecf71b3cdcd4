//! A state converted to the numbers of the limit that is checked.
//!
//! Limits that differ only in their numbers share a state: before and after a change of rules, while
//! instances use different rules, or if clients send the numbers. The first *take* that is judged by new
//! numbers converts a bucket to them, whether it is granted or refused, because its answer, with its
//! waits, was computed by them: a caller that waits as long as it was told finds a state that was
//! refilled at the rate of the answer. Peeks and settlements leave the state under the numbers that
//! wrote it; a settlement moves units under those. What it forces beyond their capacity is excess, too, so
//! that a caller does not owe it at a rate at which it was never granted.
//!
//! If the limit says [since when](Limit::numbers_since) it has its numbers, a bucket is converted as of that
//! instant, or as of its mark if that is later, whoever looks: so a caller that only peeked before finds the
//! wait that it was told, too. Without an instant the old rate goes on until the first take.
//!
//! A conversion charges nothing and refills nothing, however often numbers alternate: a bucket's usage
//! beyond the new capacity becomes [excess](crate::algorithm::token_bucket). A refusal by a window, a
//! counter or a log converts nothing: their waits do not depend on a rate of refill.

use crate::algorithm::{State, Strategy, is_paced, keeps_state};
use crate::check::{Act, Check};
use crate::limit::Limit;
use crate::time::Micros;

/// The purpose of opening a state. If several checks share a state, the greatest one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Reads the state.
    Read,
    /// Moves units that were granted before: a refund, or a force.
    Settle,
    /// Asks for units, which are granted or refused.
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

/// The reason for a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeReason {
    /// The units were granted.
    Granted,
    /// The units are forced; or they are 0, and the state is moved because the clock jumped.
    Settled,
    /// The request was refused, and its limit counts such requests.
    Refused,
}

/// A state that can be copied.
pub(crate) trait DetachState: Strategy {
    /// Returns a copy whose changes do not affect the original.
    fn detached_copy(&self) -> Self;
}

impl DetachState for State {
    fn detached_copy(&self) -> State {
        self.clone()
    }
}

/// A state that may have been written by other numbers, and whether it has to be written back.
#[derive(Clone, Debug)]
pub(crate) struct CarriedState<S> {
    /// The state by the numbers of the checked limit.
    state: S,
    /// The numbers that wrote the state, if they differ.
    writer: Option<WriterNumbers<S>>,
    changed: bool,
}

/// Numbers that wrote a state and differ from those of the checked limit.
#[derive(Clone, Debug)]
struct WriterNumbers<S> {
    numbers: Limit,
    /// The store's tag of these numbers.
    tag: u32,
    /// The state as these numbers wrote it; the state by the checked limit is a converted copy of
    /// it. `None` if both are the same.
    original: Option<S>,
}

/// A state that has to be written back.
#[expect(clippy::large_enum_variant, reason = "read at once, and nothing is to be allocated")]
pub(crate) enum PendingWrite<S> {
    /// A state by the numbers of the checked limit.
    OwnNumbers(S),
    /// A state that stays under the numbers that wrote it, with those numbers and their tag.
    WriterNumbers(S, Limit, u32),
}

impl<S: DetachState> CarriedState<S> {
    /// An unchanged state by the numbers of the checked limit.
    pub(crate) fn new(state: S) -> CarriedState<S> {
        CarriedState { state, writer: None, changed: false }
    }

    /// A fresh state in place of one that can no longer be read. A take overwrites the
    /// old one in any case, anything else only if it changes the fresh one.
    pub(crate) fn replacing_unreadable(fresh: S, purpose: Purpose) -> CarriedState<S> {
        CarriedState { changed: purpose == Purpose::Take, ..CarriedState::new(fresh) }
    }

    /// A state that was written by `old` numbers, whose tag is `tag`.
    pub(crate) fn from_other_numbers(
        mut state: S,
        (old, tag): (&Limit, u32),
        limit: &Limit,
        now: Micros,
    ) -> CarriedState<S> {
        debug_assert_eq!(old.kind, limit.kind, "the state was found by the limit's id");
        let numbers = old.shifted_like(limit);
        // A fresh state may just as well have been dropped from the store, and then the numbers
        // that wrote it would not be known.
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

    /// The state by the numbers of the checked limit.
    pub(crate) fn state(&self) -> &S {
        &self.state
    }

    /// The state by the numbers of the checked limit.
    pub(crate) fn into_state(self) -> S {
        self.state
    }

    /// A copy whose state is kept in another way.
    pub(crate) fn copied<T>(&self, copy: impl Fn(&S) -> T) -> CarriedState<T> {
        let writer = self.writer.as_ref().map(|other| WriterNumbers {
            numbers: other.numbers.clone(),
            tag: other.tag,
            original: other.original.as_ref().map(&copy),
        });
        CarriedState { state: copy(&self.state), writer, changed: self.changed }
    }

    /// Converts the state of a bucket to the numbers of the checked limit because they judge a take.
    pub(crate) fn begin_take(&mut self, limit: &Limit, now: Micros) {
        if self.writer.is_some() && is_paced(limit) {
            self.carry_over(limit, now);
            self.changed = true;
        }
    }

    pub(crate) fn charge(&mut self, limit: &Limit, units: u64, why: ChargeReason, now: Micros) {
        match why {
            ChargeReason::Granted => {
                self.carry_over(limit, now);
                self.write(limit, now, |state, limit| state.charge(limit, units, now));
            }
            // Debt for them would last as long as these numbers take, not those that granted them.
            ChargeReason::Settled if self.writer.is_some() => {
                self.write(limit, now, |state, limit| {
                    state.charge_from_other_numbers(limit, units, now);
                });
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

    /// Changes the state under the numbers that wrote it; `act` returns true if it changed
    /// anything.
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

    /// Replaces the state by another one of the same kind, under the numbers of the checked limit;
    /// `replace` returns true if it succeeded.
    pub(crate) fn replace(
        &mut self,
        limit: &Limit,
        now: Micros,
        replace: impl FnOnce(&mut S) -> bool,
    ) {
        self.carry_over(limit, now);
        self.changed |= replace(&mut self.state);
    }

    /// Converts the state to the numbers of the checked limit for good.
    fn carry_over(&mut self, limit: &Limit, now: Micros) {
        let Some(other) = self.writer.take() else { return };
        if let Some(original) = other.original {
            self.state = original;
            convert(&mut self.state, &other.numbers, limit, now);
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

    /// The state that has to be written back, if any.
    pub(crate) fn into_pending_write(self) -> Option<PendingWrite<S>> {
        self.changed.then(|| match self.writer {
            None => PendingWrite::OwnNumbers(self.state),
            Some(WriterNumbers { numbers, tag, original }) => {
                PendingWrite::WriterNumbers(original.unwrap_or(self.state), numbers, tag)
            }
        })
    }
}

/// A copy of a state, converted to the numbers of `limit`.
fn carried_over<S: DetachState>(state: &S, numbers: &Limit, limit: &Limit, now: Micros) -> S {
    let mut copy = state.detached_copy();
    convert(&mut copy, numbers, limit, now);
    copy
}

/// Converts a state to the numbers of `limit`. The old numbers count until the new ones took effect, so that
/// a peek tells the same before a take has converted the state and after.
fn convert<S: Strategy>(state: &mut S, numbers: &Limit, limit: &Limit, now: Micros) {
    let begin = limit.numbers_begin(state.mark(), now);
    state.renumber(numbers, limit, begin);
}
