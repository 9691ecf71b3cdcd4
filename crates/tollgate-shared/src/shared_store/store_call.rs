//! Asking a store, and what is kept in mind of its answer.

use std::sync::Arc;

use tollgate::{Act, Check, Consistency, DecidedBy, Micros, Now, Outcome};

use crate::remote_store::{AnswerStates, RemoteStore};
use crate::time_source::TimeSource;

use super::SharedStoreInner;
use super::decision_call::RemoteAnswer;

impl<R: RemoteStore> SharedStoreInner<R> {
    /// Returns true if a check goes to its store unchanged: nothing was taken for it here, and
    /// nothing has to be refunded.
    pub(super) fn is_simple(&self, check: &Check<'_>) -> bool {
        let synced = matches!(check.requested_terms().consistency, Consistency::LocalSync { .. });
        let here = synced
            && self.time == TimeSource::Server
            && self.local_sync.is_ready(self.tag(check), check.limit());
        check.requested_act() != Act::UpTo && !here
    }

    /// Asks about one simple check: most of what is asked.
    pub(super) async fn check_store(
        self: &Arc<Self>,
        check: &Check<'_>,
        asked_at: Now<'_>,
    ) -> Outcome {
        let now = asked_at.instant();
        let (asked, tag) = (self.store_for(check), self.tag(check));
        let when = asked.call_timing(asked_at);
        self.flush_before_check(check, tag, when).await;
        self.caller_clock.observe(now);
        let checks = std::slice::from_ref(check);
        let RemoteAnswer { result, outcomes, seen, .. } =
            self.begin_decision(check.requested_terms().store, checks, when).await;
        let mut outcome = [outcomes[0]];
        if let Err(error) = result {
            self.keep_unsent_work(checks, when.now, &error);
            let share = self.share_cache.share_of(check.limit(), self.live_instances());
            let at = asked.to_store_now(asked_at.again());
            self.decide_without_store(checks, &[share], at, &mut outcome);
        } else {
            let answered = asked_at.again().instant();
            asked.observe_clock(seen.answered_at, answered);
            self.copy_state(check, &seen, 0);
            self.remember_answer(check, tag, (now, answered), &outcome[0]);
        }
        outcome[0]
    }

    /// The local knowledge of a limit that is not asked, because it or another certainly refuses.
    #[cold]
    pub(super) fn peek_local(&self, check: &Check<'_>, now: Now<'_>) -> Outcome {
        let least = match check.requested_act() {
            Act::Take | Act::Peek => check.units(),
            Act::UpTo => check.units().min(1),
            Act::Force => 0,
        };
        let peek = Check::new(check.limit(), check.key()).act(Act::Peek);
        let peek = if check.is_at_once() { peek.at_once() } else { peek };
        let at = self.store_for(check).to_store_now(now);
        let about = |cost| self.local.decide_one(&peek.cost(cost), at).outcome();
        let asked = about(least);
        // Nothing is charged: who admits tells how things are.
        if asked.allowed { about(0) } else { asked }
    }

    /// Puts what a store said of a check's key into the table of this process.
    pub(super) fn copy_state(&self, check: &Check<'_>, seen: &AnswerStates, place: usize) {
        if let Some(state) = seen.states.get(place) {
            self.local.seed(check.limit(), check.key(), state, seen.answered_at);
        }
    }

    /// Keeps in mind what a store said of a check that was asked at one instant and answered at another.
    pub(super) fn remember_answer(
        self: &Arc<Self>,
        check: &Check<'_>,
        tag: u64,
        (now, answered): (Micros, Micros),
        outcome: &Outcome,
    ) {
        // A refusal before this charge was for less.
        if outcome.charged > 0 || check.counts_denied() {
            self.refusal_cache.forget(tag);
        }
        let takes = matches!(check.requested_act(), Act::Take | Act::UpTo) && check.units() > 0;
        let blocked = outcome.decided_by == DecidedBy::Block;
        if self.time == TimeSource::Caller || !takes || check.is_shadow() || blocked {
            return;
        }
        // Where refusals count, the next one changes what was just said.
        if !outcome.allowed && !check.is_at_once() && !check.counts_denied() {
            let cost = if check.requested_act() == Act::UpTo { 1 } else { check.units() };
            self.refusal_cache.remember(tag, cost, outcome, answered);
        }
        match check.requested_terms().consistency {
            Consistency::Strict => {}
            Consistency::Leased { .. } => self.consider_lease(check, tag, now, outcome),
            Consistency::LocalSync { .. } => self.start_local_sync(check, tag),
        }
    }
}
