//! Asking a store, and what is kept in mind of its answer.

use std::sync::Arc;

use tollgate::{Act, Check, Consistency, DecidedBy, Micros, Now, Outcome};

use crate::options::TimeOf;
use crate::remote::{LateKind, Remote, Seen};

use super::Inner;

impl<R: Remote> Inner<R> {
    /// Whether a check is one that goes to its store as it is: nothing was taken for it here, and
    /// nothing has to be given back.
    pub(super) fn is_simple(&self, check: &Check<'_>) -> bool {
        let synced = matches!(check.its_terms().consistency, Consistency::LocalSync { .. });
        let here = synced
            && self.time == TimeOf::Server
            && self.sync.is_ready(self.tag(check), check.limit());
        check.what() != Act::UpTo && !here
    }

    /// Asks about one simple check: most of what is asked.
    pub(super) async fn ask_one(self: &Arc<Self>, check: &Check<'_>, asked_at: Now<'_>) -> Outcome {
        let now = asked_at.instant();
        let (asked, tag) = (self.asked(check), self.tag(check));
        let when = asked.when(asked_at);
        self.tell_before(check, tag, when).await;
        self.pace.saw(now);
        let checks = std::slice::from_ref(check);
        let (mut outcome, mut seen) = ([Outcome::default()], Seen::default());
        let answer = asked.store.decide_seen(checks, when, &mut outcome, &mut seen).await;
        if let Err(error) = answer {
            if check.what() == Act::Force && check.units() > 0 && !check.is_shadow() {
                // It has happened, whatever the store says.
                let at = asked.clock(now);
                self.owe(self.debt(check, LateKind::Charge, check.units(), at), now, &error);
            }
            let share = self.shares.of(check.limit(), self.live());
            let at = asked.clock_now(asked_at.again());
            self.decide_without(checks, &[share], at, &mut outcome);
        } else {
            let answered = asked_at.again().instant();
            asked.saw(seen.at, answered);
            self.copy_state(check, &seen, 0);
            self.learn(check, tag, (now, answered), &outcome[0]);
        }
        outcome[0]
    }

    /// What this instance knows of a limit that is not asked, because it or another is known to refuse.
    #[cold]
    pub(super) fn glance(&self, check: &Check<'_>, now: Now<'_>) -> Outcome {
        let least = match check.what() {
            Act::Take | Act::Peek => check.units(),
            Act::UpTo => check.units().min(1),
            Act::Force => 0,
        };
        let peek = Check::new(check.limit(), check.key()).act(Act::Peek);
        let peek = if check.is_at_once() { peek.at_once() } else { peek };
        let at = self.asked(check).clock_now(now);
        let about = |cost| self.local.decide_one(&peek.cost(cost), at).outcome();
        let asked = about(least);
        // Nothing is charged: who admits tells how things are.
        if asked.allowed { about(0) } else { asked }
    }

    /// Puts what a store said of a check's key into the table of this process.
    pub(super) fn copy_state(&self, check: &Check<'_>, seen: &Seen, place: usize) {
        if let Some(state) = seen.states.get(place) {
            self.local.seed(check.limit(), check.key(), state, seen.at);
        }
    }

    /// Keeps in mind what a store said of a check that was asked at one instant and answered at another.
    pub(super) fn learn(
        self: &Arc<Self>,
        check: &Check<'_>,
        tag: u64,
        (now, answered): (Micros, Micros),
        outcome: &Outcome,
    ) {
        // Whoever was refused before was refused for less.
        if outcome.charged > 0 || check.counts_denied() {
            self.refusals.forget(tag);
        }
        let takes = matches!(check.what(), Act::Take | Act::UpTo) && check.units() > 0;
        let blocked = outcome.decided_by == DecidedBy::Block;
        if self.time == TimeOf::Caller || !takes || check.is_shadow() || blocked {
            return;
        }
        // Where refusals count, the next one changes what was just said.
        if !outcome.allowed && !check.is_at_once() && !check.counts_denied() {
            let cost = if check.what() == Act::UpTo { 1 } else { check.units() };
            self.refusals.remember(tag, cost, outcome, answered);
        }
        match check.its_terms().consistency {
            Consistency::Strict => {}
            Consistency::Leased { .. } => self.consider_lease(check, tag, now, outcome),
            Consistency::LocalSync { .. } => self.decide_here_from_now(check, tag),
        }
    }
}
