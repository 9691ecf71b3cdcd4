//! Several checks decided as one request, on states that no other thread or process writes
//! meanwhile: all are charged, or none is.

use crate::algorithm::Strategy;
use crate::check::{Act, Check};
use crate::decision::Outcome;
use crate::limit::Limit;
use crate::time::{Micros, Wait};

use super::carried_state::{CarriedState, ChargeReason, DetachState, Purpose};
use super::one_check::{self, ChargePlan};

/// One check of a request.
pub(crate) trait LimitCheck {
    /// The check.
    fn check(&self) -> &Check<'_>;
    /// The limit, shifted to the key's own windows if it is staggered.
    fn limit(&self) -> &Limit;
}

/// The holder of a state of the request.
pub(crate) trait StateHolder {
    type State: DetachState;
    fn carried(&self) -> &CarriedState<Self::State>;
    fn carried_mut(&mut self) -> &mut CarriedState<Self::State>;
}

impl<S: DetachState> StateHolder for CarriedState<S> {
    type State = S;

    fn carried(&self) -> &CarriedState<S> {
        self
    }

    fn carried_mut(&mut self) -> &mut CarriedState<S> {
        self
    }
}

/// Judges every check, and charges if all enforced ones admit. `places[i]` is the index of the
/// state of check `i`. Returns the enforced checks that refuse, one bit each.
pub(crate) fn decide(
    asked: &[impl LimitCheck],
    places: &[usize],
    states: &mut [impl StateHolder],
    now: Micros,
    outcomes: &mut [Outcome],
) -> u16 {
    for (one, &place) in asked.iter().zip(places) {
        if Purpose::of(one.check()) == Purpose::Take {
            states[place].carried_mut().begin_take(one.limit(), now);
        }
    }
    let (violated, granted) = judge_all(asked, places, states, now, outcomes);
    for (index, (one, &place)) in asked.iter().zip(places).enumerate() {
        let opened = states[place].carried_mut();
        let admitted = outcomes[index].allowed;
        let charge = charge_for(opened.state(), one, admitted, violated, granted, now);
        let Some((units, why)) = charge else { continue };
        opened.charge(one.limit(), units, why, now);
        outcomes[index].charged = if violated == 0 { units } else { 0 };
    }
    for (index, (one, &place)) in asked.iter().zip(places).enumerate() {
        let state = states[place].carried().state();
        let judged = cumulative_cost(asked, index, |other| places[other] == place);
        outcomes[index] = final_outcome(state, one, judged, outcomes[index], violated, now);
    }
    violated
}

/// The outcome of one check for `judged` units if nothing is charged, and true if it is a refusal.
pub(crate) fn judge_uncharged(
    state: &impl Strategy,
    one: &impl LimitCheck,
    judged: u64,
    now: Micros,
) -> (Outcome, bool) {
    let limit = one.limit();
    let plan = ChargePlan::new(state, limit, &one.check().cost(judged), now);
    match plan.outcome.allowed {
        true => {
            let delay = if one.check().act == Act::Peek { plan.outcome.delay } else { Wait::ZERO };
            (Outcome { delay, ..state.judge(limit, 0, now) }, false)
        }
        false => (plan.outcome, true),
    }
}

/// Judges every check. Returns the enforced checks that refuse, and the units granted to the
/// request.
fn judge_all(
    asked: &[impl LimitCheck],
    places: &[usize],
    states: &[impl StateHolder],
    now: Micros,
    outcomes: &mut [Outcome],
) -> (u16, u64) {
    let mut violated = 0;
    let mut granted = u64::MAX;
    for (index, one) in asked.iter().enumerate() {
        let (state, check) = (states[places[index]].carried().state(), one.check());
        let judged = cumulative_cost(asked, index, |other| places[other] == places[index]);
        let plan = ChargePlan::new(state, one.limit(), &check.cost(judged), now);
        let refuses = !plan.outcome.allowed;
        violated |= u16::from(refuses && !check.shadow) << index;
        outcomes[index] = plan.outcome;
        if !check.shadow && check.act != Act::Peek && check.cost > 0 {
            granted = granted.min(plan.granted.saturating_sub(judged - check.cost));
        }
    }
    let granted = if violated != 0 || granted == u64::MAX { 0 } else { granted };
    (violated, granted)
}

/// The units for which the check at `index` is judged: its cost, and the costs of the checks before
/// it that share its state. Peeks do not count, nor do shadow checks for an enforced one.
pub(crate) fn cumulative_cost(
    asked: &[impl LimitCheck],
    index: usize,
    is_same: impl Fn(usize) -> bool,
) -> u64 {
    let one = asked[index].check();
    if one.cost == 0 {
        return 0;
    }
    let counts = |other: &Check<'_>| other.act != Act::Peek && (one.shadow || !other.shadow);
    let ahead = (0..index).filter(|other| is_same(*other)).map(|other| asked[other].check());
    let ahead = ahead.filter(|other| counts(other)).map(|other| other.cost);
    ahead.fold(one.cost, u64::saturating_add)
}

/// The charge of one check once the answer to the request is known; `None` if nothing is written.
fn charge_for(
    state: &impl Strategy,
    one: &impl LimitCheck,
    admitted: bool,
    violated: u16,
    granted: u64,
    now: Micros,
) -> Option<(u64, ChargeReason)> {
    // A check with `at_once` was judged before this request was charged. Units that the same
    // request has put into the queue since must not delay it.
    let asked = one.check();
    let check = Check { at_once: false, ..*asked };
    let plan = ChargePlan::new(state, one.limit(), &check, now);
    let admits = plan.outcome.allowed && (admitted || !asked.at_once);
    let counts_anyway = asked.count_denied && asked.act != Act::Peek;
    let units = match asked.act {
        Act::UpTo if violated == 0 => granted.min(asked.cost),
        Act::UpTo => asked.cost.min(1),
        _ => asked.cost,
    };
    if violated == 0 && admits && plan.granted > 0 {
        let forced = asked.act == Act::Force;
        Some((units, if forced { ChargeReason::Settled } else { ChargeReason::Granted }))
    } else if counts_anyway && units > 0 {
        Some((units, ChargeReason::Refused))
    } else {
        one_check::clock_jump_charge(&plan.outcome)
    }
}

/// The outcome of one limit once the answer to the request is known: its state after a charge,
/// otherwise its present state, and its own refusal if it has one.
fn final_outcome(
    state: &impl Strategy,
    one: &impl LimitCheck,
    judged: u64,
    said: Outcome,
    violated: u16,
    now: Micros,
) -> Outcome {
    let after = state.judge(one.limit(), 0, now);
    let (charged, served_at) = (said.charged, said.served_at);
    if said.allowed {
        let delay = if violated == 0 { said.delay } else { Wait::ZERO };
        return Outcome { delay, served_at, charged, ..after };
    }
    // Counting a refused request lengthens its wait.
    let retry_after = match one.check().count_denied {
        true => {
            let check = one.check().cost(one_check::units_needed(one.check(), judged));
            one_check::judge(state, one.limit(), &check, now).retry_after
        }
        false => said.retry_after,
    };
    Outcome { allowed: false, retry_after, ..after }
}
