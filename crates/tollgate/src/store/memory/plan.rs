//! What one check does to one state: the acts take, peek, force and "up to", written once.

use crate::algorithm::Strategy;
use crate::check::{Act, Check};
use crate::decision::Outcome;
use crate::limit::Limit;
use crate::time::Micros;

/// The answer, and what has to be written for it.
pub(crate) struct Plan {
    pub(crate) outcome: Outcome,
    /// Units to charge; 0 moves the state after a clock that jumped; `None` writes nothing.
    pub(crate) charge: Option<u64>,
    /// Units that the caller gets.
    pub(crate) granted: u64,
}

impl Plan {
    #[inline]
    pub(crate) fn new(
        state: &impl Strategy,
        limit: &Limit,
        check: &Check<'_>,
        now: Micros,
    ) -> Plan {
        match check.act {
            Act::Take => Plan::take(state, limit, check, now),
            Act::Force if check.cost > 0 => {
                let outcome = state.judge(limit, 0, now);
                Plan { outcome, charge: Some(check.cost), granted: check.cost }
            }
            Act::Peek | Act::Force => Plan::unless_jumped(state.peek(limit, check.cost, now)),
            Act::UpTo => {
                let units = check.cost.min(state.judge(limit, 0, now).remaining);
                let least = check.cost.min(1);
                Plan::take(state, limit, &check.cost(units.max(least)), now)
            }
        }
    }

    #[inline]
    fn take(state: &impl Strategy, limit: &Limit, check: &Check<'_>, now: Micros) -> Plan {
        let outcome = state.judge(limit, check.cost, now);
        if outcome.allowed && check.cost > 0 {
            Plan { outcome, charge: Some(check.cost), granted: check.cost }
        } else if !outcome.allowed && check.count_denied {
            Plan { outcome, charge: Some(check.cost), granted: 0 }
        } else {
            Plan::unless_jumped(outcome)
        }
    }

    #[inline]
    fn unless_jumped(outcome: Outcome) -> Plan {
        Plan { outcome, charge: outcome.jumped.then_some(0), granted: 0 }
    }

    /// The answer once the state is charged: what was forced, or counted although it was refused,
    /// shows its effect.
    #[inline]
    pub(crate) fn outcome_after(
        &self,
        state: &impl Strategy,
        limit: &Limit,
        check: &Check<'_>,
        now: Micros,
    ) -> Outcome {
        let counted = self.charge.is_some_and(|units| units > self.granted);
        match check.act {
            Act::Force => state.judge(limit, 0, now),
            _ if counted => state.judge(limit, check.cost, now),
            _ => self.outcome,
        }
    }
}
