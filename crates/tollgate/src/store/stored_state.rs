//! Decides a request on states that are stored elsewhere: the common part of all shared stores.
//!
//! A shared store reports the states it found and the instant. The request is then decided here, by
//! the functions that the memory store runs in its slots, so that it has the same answer in every
//! store.

use std::borrow::Cow;

use arrayvec::ArrayVec;

use crate::algorithm::State;
use crate::check::Check;
use crate::decision::{DecidedBy, Decision, MAX_LIMITS, Outcome, Refusal};
use crate::limit::Limit;
use crate::time::{Micros, Wait};

use super::all_or_none::{self, LimitCheck, StateHolder};
use super::carried_state::{CarriedState, PendingWrite};
use super::one_check::ChargePlan;

pub use super::carried_state::Purpose;

/// One check of a request.
#[derive(Clone, Copy, Debug)]
pub struct StoredCheck<'a> {
    /// The check.
    pub check: Check<'a>,
    /// The limit as it applies to the key, see [`Limit::for_key`].
    pub limit: &'a Limit,
    /// Number of the state among those of the same id and key: see [`Outcome::twin`].
    pub twin: u8,
}

impl LimitCheck for StoredCheck<'_> {
    fn check(&self) -> &Check<'_> {
        &self.check
    }

    fn limit(&self) -> &Limit {
        self.limit
    }
}

/// The limits of checks as they apply to their keys: see [`Limit::for_key`].
pub fn limits_for_keys<'a>(checks: &[Check<'a>]) -> Vec<Cow<'a, Limit>> {
    checks.iter().map(|check| check.limit.for_key(check.key.as_bytes())).collect()
}

/// The checks of a request, with the state that each of them uses.
///
/// Checks of the same limit and key share a state. Limits that differ only in their numbers would share
/// one as well; within one request that is never intended, so each gets its own, a *twin*.
#[derive(Debug)]
pub struct StateAssignment<'a> {
    checks: ArrayVec<StoredCheck<'a>, MAX_LIMITS>,
    /// Index of the state of each check.
    places: ArrayVec<usize, MAX_LIMITS>,
    /// Index of the first check of each state.
    first_checks: ArrayVec<usize, MAX_LIMITS>,
}

impl<'a> StateAssignment<'a> {
    /// Assigns states to at most [`MAX_LIMITS`] checks, whose limits are those of [`limits_for_keys`].
    ///
    /// # Panics
    ///
    /// If there are more checks: [`answer_without_store`] refuses such a request.
    pub fn new(checks: &[Check<'a>], limits: &'a [Cow<'a, Limit>]) -> StateAssignment<'a> {
        let mut request = StateAssignment {
            checks: ArrayVec::new(),
            places: ArrayVec::new(),
            first_checks: ArrayVec::new(),
        };
        for (check, limit) in checks.iter().zip(limits) {
            request.push(*check, limit);
        }
        request
    }

    fn push(&mut self, check: Check<'a>, limit: &'a Limit) {
        let (mut same, mut twins) = (None, 0);
        for (index, other) in self.checks.iter().enumerate() {
            if other.check.key == check.key && other.limit.id() == limit.id() {
                twins = twins.max(other.twin + 1);
                if other.limit.fingerprint() == limit.fingerprint() {
                    same = same.or(Some(index));
                }
            }
        }
        let (place, twin) = match same {
            Some(same) => (self.places[same], self.checks[same].twin),
            None => {
                self.first_checks.push(self.checks.len());
                (self.first_checks.len() - 1, twins)
            }
        };
        self.checks.push(StoredCheck { check, limit, twin });
        self.places.push(place);
    }

    /// The checks, in the order of the request.
    pub fn checks(&self) -> &[StoredCheck<'a>] {
        &self.checks
    }

    /// Index of the state of each check.
    pub fn places(&self) -> &[usize] {
        &self.places
    }

    /// The first check of each state: its limit, key and twin identify the state.
    pub fn first_checks(&self) -> impl ExactSizeIterator<Item = &StoredCheck<'a>> + Clone {
        self.first_checks.iter().map(|index| &self.checks[*index])
    }

    /// Decides the request on its states, one for each of [`StateAssignment::first_checks`]: all checks
    /// pass and are charged, or none is charged. `decided_by` is what the answer names as its decider;
    /// `outcomes` receives the outcome of each limit.
    pub fn decide(
        &self,
        states: &mut [StoredState],
        decided_by: DecidedBy,
        now: Micros,
        outcomes: &mut [Outcome],
    ) -> Decision {
        decide_outcomes(&self.checks, &self.places, states, decided_by, now, outcomes);
        let checks: ArrayVec<Check<'_>, MAX_LIMITS> =
            self.checks.iter().map(|one| one.check).collect();
        decision_of_outcomes(&checks, outcomes, decided_by, now)
    }
}

/// A state as it was found in a store, with the changes made since.
#[derive(Clone, Debug)]
pub struct StoredState(CarriedState<State>);

impl StoredState {
    /// The state of a key that is not in the store.
    pub fn absent(limit: &Limit) -> StoredState {
        StoredState::from_own_numbers(fresh(limit))
    }

    /// A state written by the numbers of the checked limit.
    pub fn from_own_numbers(state: State) -> StoredState {
        StoredState(CarriedState::new(state))
    }

    /// A copy of a state of the memory store.
    pub(crate) fn from_carried(carried: CarriedState<State>) -> StoredState {
        StoredState(carried)
    }

    /// A state written by `old` numbers.
    pub fn from_other_numbers(
        state: State,
        old: &Limit,
        limit: &Limit,
        now: Micros,
    ) -> StoredState {
        StoredState(CarriedState::from_other_numbers(state, (old, 0), limit, now))
    }

    /// A state that cannot be read: it counts as fresh, and a take overwrites it.
    pub fn unreadable(limit: &Limit, purpose: Purpose) -> StoredState {
        StoredState(CarriedState::replacing_unreadable(fresh(limit), purpose))
    }

    /// The state by the numbers of the checked limit.
    pub fn state(&self) -> &State {
        self.0.state()
    }

    /// Returns the state by the numbers of the checked limit and drops what would be written.
    pub fn into_state(self) -> State {
        self.0.into_state()
    }

    /// Gives back up to `units` that were charged at `charged_at`; without an instant, as if
    /// charged now.
    pub fn refund(&mut self, limit: &Limit, units: u64, charged_at: Option<Micros>, now: Micros) {
        self.0.refund(limit, units, charged_at, now);
    }

    /// Changes the state under the numbers that wrote it; `act` returns true if it changed
    /// anything.
    pub fn change(
        &mut self,
        limit: &Limit,
        now: Micros,
        act: impl FnOnce(&mut State, &Limit) -> bool,
    ) {
        self.0.change(limit, now, act);
    }

    /// The state to be written, if any, and its numbers if they differ from those of the checked
    /// limit.
    pub fn into_pending_write(self) -> Option<(State, Option<Limit>)> {
        Some(match self.0.into_pending_write()? {
            PendingWrite::OwnNumbers(state) => (state, None),
            PendingWrite::WriterNumbers(state, numbers, _) => (state, Some(numbers)),
        })
    }
}

/// A fresh state without a mark, so that callers with a slow clock need not wait for one.
fn fresh(limit: &Limit) -> State {
    State::fresh(limit, Micros::ZERO)
}

impl StateHolder for StoredState {
    type State = State;

    fn carried(&self) -> &CarriedState<State> {
        &self.0
    }

    fn carried_mut(&mut self) -> &mut CarriedState<State> {
        &mut self.0
    }
}

/// The answer to a request that needs no store: one without limits, with too many limits, or with
/// an empty key.
pub fn answer_without_store(checks: &[Check<'_>], now: Micros) -> Option<Decision> {
    if checks.len() > MAX_LIMITS {
        return Some(Decision::refused(Refusal::TooManyLimits, Wait::NEVER, now));
    }
    if checks.iter().any(|check| check.key.is_empty()) {
        return Some(Decision::refused(Refusal::EmptyKey, Wait::NEVER, now));
    }
    checks.is_empty().then(|| Decision::unlimited(now))
}

/// The purpose of opening the state at `place`, by all checks that share it; `places` has the index
/// of the state of each check.
pub fn purpose_at(asked: &[StoredCheck<'_>], places: &[usize], place: usize) -> Purpose {
    let here = asked.iter().zip(places).filter(|(_, other)| **other == place);
    here.map(|(one, _)| Purpose::of(&one.check)).max().unwrap_or(Purpose::Read)
}

/// The units for which the check at `index` is judged: its cost, and the costs of the checks before
/// it that share its state. Peeks do not count, nor do shadow checks for an enforced one.
pub fn cumulative_cost(asked: &[StoredCheck<'_>], places: &[usize], index: usize) -> u64 {
    all_or_none::cumulative_cost(asked, index, |other| places[other] == places[index])
}

/// Decides a request as the memory store does: all checks pass and are charged, or none is charged.
/// `places` has the index in `seen` of the state of each check; `outcomes` receives the outcome of
/// each limit, decided by `decided_by`. Returns true if the request passes.
pub fn decide_outcomes(
    asked: &[StoredCheck<'_>],
    places: &[usize],
    seen: &mut [StoredState],
    decided_by: DecidedBy,
    now: Micros,
    outcomes: &mut [Outcome],
) -> bool {
    if let [one] = asked
        && !one.check.shadow
    {
        outcomes[0] = Outcome { decided_by, ..decide_one(one, &mut seen[0], now) };
        return outcomes[0].allowed;
    }
    let violated = all_or_none::decide(asked, places, seen, now, outcomes);
    for (outcome, one) in outcomes.iter_mut().zip(asked) {
        (outcome.decided_by, outcome.twin) = (decided_by, one.twin);
    }
    violated == 0
}

/// The decision of a request whose `outcomes` are those of [`decide_outcomes`].
pub fn decision_of_outcomes(
    checks: &[Check<'_>],
    outcomes: &[Outcome],
    decided_by: DecidedBy,
    now: Micros,
) -> Decision {
    let outcomes = &outcomes[..checks.len()];
    // A request of shadow checks alone has no binding limit that names the decider.
    Decision::of_outcomes(checks, outcomes, now).with_decided_by(decided_by)
}

fn decide_one(one: &StoredCheck<'_>, seen: &mut StoredState, now: Micros) -> Outcome {
    let (limit, check) = (one.limit, &one.check);
    if Purpose::of(check) == Purpose::Take {
        seen.0.begin_take(limit, now);
    }
    let plan = ChargePlan::new(seen.state(), limit, check, now);
    if let Some((units, why)) = plan.charge {
        seen.0.charge(limit, units, why, now);
    }
    let outcome = plan.outcome_after(seen.state(), limit, check, now);
    Outcome { charged: plan.granted, ..outcome }
}
