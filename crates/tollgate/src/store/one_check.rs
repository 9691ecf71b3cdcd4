//! The effect of one check on one state: the acts take, peek, force and "up to".

use crate::algorithm::Strategy;
use crate::check::{Act, Check};
use crate::decision::Outcome;
use crate::limit::Limit;
use crate::time::{Micros, Wait};

use super::carried_state::ChargeReason;

/// The answer to a check, and the charge that goes with it.
pub(crate) struct ChargePlan {
    pub(crate) outcome: Outcome,
    /// Units to charge and the reason; 0 units move the state after the clock jumped; `None` writes
    /// nothing.
    pub(crate) charge: Option<(u64, ChargeReason)>,
    /// Units that the caller is granted.
    pub(crate) granted: u64,
}

impl ChargePlan {
    #[inline]
    pub(crate) fn new(
        state: &impl Strategy,
        limit: &Limit,
        check: &Check<'_>,
        now: Micros,
    ) -> ChargePlan {
        match check.act {
            Act::Take => ChargePlan::take(state, limit, check, now),
            Act::Force if check.cost > 0 => {
                let outcome = state.judge(limit, 0, now);
                ChargePlan {
                    outcome,
                    charge: Some((check.cost, ChargeReason::Settled)),
                    granted: check.cost,
                }
            }
            Act::Peek | Act::Force => {
                ChargePlan::without_charge(ChargePlan::peek(state, limit, check, now))
            }
            Act::UpTo => {
                let units = check.cost.min(state.judge(limit, 0, now).remaining);
                let least = check.cost.min(1);
                ChargePlan::take(state, limit, &check.cost(units.max(least)), now)
            }
        }
    }

    #[inline]
    fn take(state: &impl Strategy, limit: &Limit, check: &Check<'_>, now: Micros) -> ChargePlan {
        let outcome = judge(state, limit, check, now);
        if outcome.allowed && check.cost > 0 {
            ChargePlan {
                outcome,
                charge: Some((check.cost, ChargeReason::Granted)),
                granted: check.cost,
            }
        } else if !outcome.allowed && check.count_denied {
            ChargePlan { outcome, charge: Some((check.cost, ChargeReason::Refused)), granted: 0 }
        } else {
            ChargePlan::without_charge(outcome)
        }
    }

    fn peek(state: &impl Strategy, limit: &Limit, check: &Check<'_>, now: Micros) -> Outcome {
        match check.at_once && check.act == Act::Peek {
            true => judge_at_once(state, limit, check.cost, now, Strategy::peek),
            false => state.peek(limit, check.cost, now),
        }
    }

    #[inline]
    fn without_charge(outcome: Outcome) -> ChargePlan {
        ChargePlan { outcome, charge: clock_jump_charge(&outcome), granted: 0 }
    }

    /// The answer after the charge. It shows the effect of units that were forced, or counted
    /// although they were refused.
    #[inline]
    pub(crate) fn outcome_after(
        &self,
        state: &impl Strategy,
        limit: &Limit,
        check: &Check<'_>,
        now: Micros,
    ) -> Outcome {
        let counted = self.charge.is_some_and(|(_, why)| why == ChargeReason::Refused);
        match check.act {
            Act::Force => state.judge(limit, 0, now),
            _ if counted => judge(state, limit, &check.cost(units_needed(check, check.cost)), now),
            _ => self.outcome,
        }
    }
}

/// Units that must fit for a check to be admitted, if it is judged for `judged`: one is enough for
/// "up to".
#[inline]
pub(crate) fn units_needed(check: &Check<'_>, judged: u64) -> u64 {
    if check.act == Act::UpTo { judged.min(1) } else { judged }
}

/// The charge that moves a state after the clock jumped.
#[inline]
pub(crate) fn clock_jump_charge(outcome: &Outcome) -> Option<(u64, ChargeReason)> {
    outcome.jumped.then_some((0, ChargeReason::Settled))
}

/// The outcome of a take of the check's cost.
#[inline]
pub(crate) fn judge(
    state: &impl Strategy,
    limit: &Limit,
    check: &Check<'_>,
    now: Micros,
) -> Outcome {
    match check.at_once {
        true => judge_at_once(state, limit, check.cost, now, Strategy::judge),
        false => state.judge(limit, check.cost, now),
    }
}

/// The outcome of a queue for a caller that cannot wait. Once the backlog is gone, any cost up to
/// the capacity fits.
#[cold]
fn judge_at_once<S: Strategy>(
    state: &S,
    limit: &Limit,
    cost: u64,
    now: Micros,
    judge: impl Fn(&S, &Limit, u64, Micros) -> Outcome,
) -> Outcome {
    let asked = judge(state, limit, cost, now);
    let present = state.judge(limit, 0, now);
    let backlog = present.reset_after;
    if cost == 0 || backlog.is_zero() || asked.retry_after.is_never() {
        return asked;
    }
    Outcome { allowed: false, retry_after: backlog, delay: Wait::ZERO, ..present }
}
