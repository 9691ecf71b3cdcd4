//! `InspectedStates`: the states of a request as they are now, and the decision that they lead to. For
//! explanations, which must not charge anything.

use crate::algorithm::State;
use crate::check::{Act, Check};
use crate::decision::{DecidedBy, Decision, Outcome};
use crate::time::{Micros, Wait};

use super::stored_state::{StateAssignment, StoredState, limits_for_keys};

/// The states that a request would be decided on, read without changing anything.
#[derive(Clone, Debug)]
pub struct InspectedStates {
    /// The instant at which they were read, by the clock of their store.
    pub at: Micros,
    /// One for each of [`StateAssignment::first_checks`]. Bound: one for each check.
    pub states: Vec<InspectedState>,
    /// Outcomes of all checks if a take is refused without asking the store, because the store refused it a
    /// moment ago or this process does; empty otherwise. Bound: one for each check.
    pub remembered: Vec<Outcome>,
    /// The outcomes of checks that this process decides before it asks the store, by leased units or `local_sync`: one
    /// place for each check, of which each has a state of its own; empty if there are none. Bound: one for each check.
    pub taken_here: Vec<Option<Outcome>>,
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
    /// No states yet, read at this instant.
    pub fn at(at: Micros) -> InspectedStates {
        InspectedStates { at, states: Vec::new(), remembered: Vec::new(), taken_here: Vec::new() }
    }

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
        let takes = checks.iter().any(|check| check.act != Act::Peek && check.cost > 0);
        if takes && self.remembered.len() == checks.len() {
            outcomes[..checks.len()].copy_from_slice(&self.remembered);
        } else if takes && self.taken_here.len() == checks.len() {
            self.decide_beside_taken(checks, asked_at, outcomes);
        } else {
            self.decide_on_states(checks, outcomes);
            self.add_leased_units(checks, outcomes);
        }
        Decision::of_outcomes(checks, outcomes, asked_at)
    }

    /// Shows leased units to checks that take nothing: the store counts them as used.
    fn add_leased_units(&self, checks: &[Check<'_>], outcomes: &mut [Outcome]) {
        let leased = |one: &Outcome| one.decided_by == DecidedBy::Lease;
        for (place, one) in self.taken_here.iter().enumerate().take(checks.len()) {
            if let Some(one) = one.filter(leased) {
                outcomes[place] = one.refunded(one.charged, checks[place].limit());
            }
        }
    }

    /// Decides by the states alone.
    fn decide_on_states(&self, checks: &[Check<'_>], outcomes: &mut [Outcome]) {
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
    }

    /// Decides the checks that the store is asked about by their states. Units taken here are put back if one of them
    /// refuses.
    fn decide_beside_taken(
        &self,
        checks: &[Check<'_>],
        asked_at: Micros,
        outcomes: &mut [Outcome],
    ) {
        let (asked, taken): (Vec<usize>, Vec<usize>) =
            (0..checks.len()).partition(|place| self.taken_here[*place].is_none());
        let states = asked.iter().map(|place| self.states[*place].clone()).collect();
        let apart = InspectedStates { states, ..InspectedStates::at(self.at) };
        let asked_checks: Vec<Check<'_>> = asked.iter().map(|place| checks[*place]).collect();
        let mut answers = vec![Outcome::default(); asked.len()];
        let is_allowed = apart.decide(&asked_checks, asked_at, &mut answers).allowed();
        for (place, answer) in asked.into_iter().zip(answers) {
            outcomes[place] = answer;
        }
        for place in taken {
            let one = self.taken_here[place].unwrap_or_default();
            outcomes[place] = match is_allowed {
                true => one,
                // A refusal that counts is charged.
                false if checks[place].count_denied => Outcome { charged: 0, ..one },
                false => one.refunded(one.charged, checks[place].limit()),
            };
        }
        if !is_allowed {
            outcomes[..checks.len()].iter_mut().for_each(|one| one.delay = Wait::ZERO);
        }
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
