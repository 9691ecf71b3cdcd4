//! `InspectedStates`: the states of a request as they are now, and the decision that they lead to. For
//! explanations, which must not charge anything.

use crate::algorithm::State;
use crate::check::{Act, Check};
use crate::decision::{DecidedBy, Decision, Outcome};
use crate::time::Micros;

use super::stored_state::{StateAssignment, StoredState, limits_for_keys};

/// The states that a request would be decided on, read without changing anything.
#[derive(Clone, Debug)]
pub struct InspectedStates {
    /// The instant at which they were read, by the clock of their store.
    pub at: Micros,
    /// One for each of [`StateAssignment::first_checks`]. Bound: one for each check.
    pub states: Vec<InspectedState>,
    /// Outcomes of all checks if a take is refused without asking the store, because the store refused it a
    /// moment ago; empty otherwise. Bound: one for each check.
    pub remembered: Vec<Outcome>,
}

/// One state, and the part of the system that would decide on it.
#[derive(Clone, Debug)]
pub struct InspectedState {
    /// The state, with the numbers that wrote it.
    pub state: StoredState,
    /// The decider.
    pub decided_by: DecidedBy,
}

impl InspectedStates {
    /// The decision that these checks, which are those that were inspected, would get now;
    /// `outcomes` receives the outcome of each limit. `asked_at` is the caller's clock. Their acts may be
    /// others: what was read for a take also decides a peek.
    ///
    /// # Panics
    ///
    /// If the checks are not those that were inspected, or `outcomes` is shorter than they are.
    pub fn decide(
        &self,
        checks: &[Check<'_>],
        asked_at: Micros,
        outcomes: &mut [Outcome],
    ) -> Decision {
        let limits = limits_for_keys(checks);
        let request = StateAssignment::new(checks, &limits);
        let mut states: Vec<StoredState> =
            self.states.iter().map(|one| one.state.clone()).collect();
        if !checks.is_empty() {
            let _ = request.decide(&mut states, DecidedBy::Memory, self.at, outcomes);
        }
        for (outcome, place) in outcomes.iter_mut().zip(request.places()) {
            outcome.decided_by = self.states[*place].decided_by;
        }
        let takes = checks.iter().any(|check| check.act != Act::Peek && check.cost > 0);
        if takes && self.remembered.len() == checks.len() {
            outcomes[..checks.len()].copy_from_slice(&self.remembered);
        }
        Decision::of_outcomes(checks, outcomes, asked_at)
    }

    /// The state of each check, by the numbers of its limit.
    ///
    /// # Panics
    ///
    /// If the checks are not those that were inspected.
    pub fn by_check<'a>(&'a self, checks: &[Check<'_>]) -> Vec<&'a State> {
        let limits = limits_for_keys(checks);
        let request = StateAssignment::new(checks, &limits);
        request.places().iter().map(|place| self.states[*place].state.state()).collect()
    }
}
