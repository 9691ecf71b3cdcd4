//! `DecisionWatch`: counts a client that leaves while a store decides about its request.
//!
//! The store finishes the call and gives back what it charged; no decision is made, so nothing else would count the request.

use std::sync::Arc;

use tollgate::Clock;

use super::{WaitOutcome, WaitTally};
use crate::gatekeeper::{Gatekeeper, InfallibleStore};
use crate::plan::RequestPlan;

/// A decision that has begun. Dropping it before its end counts a client that left.
pub(crate) struct DecisionWatch(Option<Arc<WaitTally>>);

impl DecisionWatch {
    /// The decision is made, or the request waits and is counted there.
    pub(crate) fn end(mut self) {
        self.0 = None;
    }
}

impl Drop for DecisionWatch {
    fn drop(&mut self) {
        if let Some(tally) = &self.0 {
            tally.count(WaitOutcome::Left);
        }
    }
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Watches a decision, if its store has to be waited for.
    pub(crate) fn watch_decision(&self, plan: &RequestPlan<'_>) -> DecisionWatch {
        let is_watched = !self.answers_at_once() && !plan.peek_only;
        let rule = if is_watched { plan.waiting_rule() } else { None };
        DecisionWatch(rule.map(|number| Arc::clone(plan.rules().wait_tally_of(number))))
    }
}
