//! Blocks, which refuse before any limit is asked, and bans, which make blocks of refusals.

use std::convert::Infallible;
use std::sync::atomic::Ordering;

use tollgate::decision::MAX_LIMITS;
use tollgate::{
    Act, Check, Clock, Consistency, DecidedBy, Decision, KeyBuf, Micros, Now, Outcome, Refusal,
    Terms, Wait,
};

use super::{Gatekeeper, InfallibleStore};
use crate::answer::{AnswerEntries, Binding, PlanDecision};
use crate::plan::{Enforcement, RequestPlan};
use crate::rule::{Ban, Rule};

/// The blocks that a request is under.
pub(crate) struct FoundBlock {
    /// Index of the limit whose block is the longest.
    binding: usize,
    wait: Wait,
    /// The block of each limit.
    waits: [Option<Wait>; MAX_LIMITS],
}

impl FoundBlock {
    /// The refusal. `entries` have the outcomes of a peek.
    pub(super) fn refuse(
        &self,
        plan: &RequestPlan<'_>,
        mut entries: AnswerEntries,
        now: Micros,
    ) -> PlanDecision {
        for (outcome, wait) in entries.outcomes_mut().iter_mut().zip(self.waits) {
            if let Some(wait) = wait {
                *outcome = Decision::refused(Refusal::Blocked, wait, now).outcome();
            }
        }
        let capacity = plan.limit(&plan.limits[self.binding]).capacity();
        let decision = Decision::refused(Refusal::Blocked, self.wait, now);
        let decision = decision.refused_for(Refusal::Blocked, capacity, decision.outcome());
        let binding = Some(Binding::Limit(self.binding));
        PlanDecision { decision, binding, entries }
    }
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// The blocks of the caller under the rules of a plan; `None` if there are none.
    #[inline]
    pub(crate) fn find_block(
        &self,
        plan: &RequestPlan<'_>,
        now: Micros,
    ) -> Option<Box<FoundBlock>> {
        if self.store.any_block(now) { self.look_up_blocks(plan, now) } else { None }
    }

    #[cold]
    fn look_up_blocks(&self, plan: &RequestPlan<'_>, now: Micros) -> Option<Box<FoundBlock>> {
        let mut waits = [None; MAX_LIMITS];
        for (planned, wait) in plan.limits.iter().zip(&mut waits) {
            if planned.enforcement == Enforcement::Enforced {
                let key = plan.rule(planned).scoped("block", plan.caller(planned));
                *wait = self.store.blocked((&key).into(), now);
            }
        }
        // Reversed, so that of equals the first wins.
        let binding = (0..plan.limits.len()).rev().max_by_key(|index| waits[*index])?;
        let wait = waits[binding]?;
        Some(Box::new(FoundBlock { binding, wait, waits }))
    }

    /// Counts a refusal towards bans. If a block follows, the wait is at least as long as the
    /// block.
    #[inline]
    pub(super) async fn apply_bans(
        &self,
        plan: &RequestPlan<'_>,
        act: Act,
        (decision, outcomes): (Decision, &[Outcome]),
        now: Now<'_>,
    ) -> Decision {
        if decision.refusal() == Some(Refusal::OverLimit)
            && act == Act::Take
            && plan.has_ban()
            && let Some(block) =
                Box::pin(self.ban(plan, |index| decision.violates(index), outcomes, now)).await
        {
            return extend_to_block(decision, block);
        }
        decision
    }

    /// Counts a refusal by the queue of one limit towards the ban of its rule, as
    /// [`apply_bans`](Gatekeeper::apply_bans) counts those of the store.
    pub(crate) async fn apply_ban_of(
        &self,
        plan: &RequestPlan<'_>,
        limit: usize,
        decided: &mut PlanDecision,
        now: Now<'_>,
    ) {
        let outcomes = decided.entries.outcomes();
        if plan.has_ban()
            && let Some(block) = Box::pin(self.ban(plan, |one| one == limit, outcomes, now)).await
        {
            decided.decision = extend_to_block(decided.decision, block);
        }
    }

    /// Counts a refusal towards the bans of the rules that refused. Returns the longest block.
    #[cold]
    async fn ban(
        &self,
        plan: &RequestPlan<'_>,
        violates: impl Fn(usize) -> bool,
        outcomes: &[Outcome],
        now: Now<'_>,
    ) -> Option<Wait> {
        let mut last = None;
        let mut longest = None;
        for (index, (planned, outcome)) in plan.limits.iter().zip(outcomes).enumerate() {
            let rule = plan.rule(planned);
            // A decision refused for lack of room violates no limit.
            let refused = planned.enforcement == Enforcement::Enforced && violates(index);
            let counts = refused && counts_towards_bans(outcome.decided_by);
            let Some(ban) = rule.ban.as_ref().filter(|_| counts) else { continue };
            // Several limits of one rule that refuse a key count as one refusal.
            let counted = (planned.limit_ref.rule, planned.descriptor, planned.caller);
            if last.replace(counted) == Some(counted) {
                continue;
            }
            let check = plan.check(planned, Act::Take);
            let (caller, terms) = (plan.caller(planned), check.requested_terms());
            longest = longest.max(self.count_refusal(rule, ban, caller, terms, now).await);
        }
        longest
    }

    /// The longest block that would follow if a plan were refused by these limits now. Counts nothing.
    pub(crate) async fn rehearse_bans(
        &self,
        plan: &RequestPlan<'_>,
        violates: impl Fn(usize) -> bool,
        outcomes: &[Outcome],
        now: Now<'_>,
    ) -> Option<Wait> {
        let mut longest = None;
        for (index, (planned, outcome)) in plan.limits.iter().zip(outcomes).enumerate() {
            let rule = plan.rule(planned);
            let refused = planned.enforcement == Enforcement::Enforced && violates(index);
            let counts = refused && counts_towards_bans(outcome.decided_by);
            let Some(ban) = rule.ban.as_ref().filter(|_| counts) else { continue };
            let counted_under = rule.scoped("refusals", plan.caller(planned));
            let terms = Terms { consistency: Consistency::Strict, ..rule.terms };
            let checks = [Check::new(&ban.refusals, &counted_under).terms(terms)];
            let Ok(Some(states)) = self.store.inspect(&checks, now).await else { continue };
            let counted = states.decide(&checks, now.instant(), &mut [Outcome::default()]);
            if counted.remaining() == 0 {
                longest = longest.max(Some(Wait::at_least(ban.block)));
            }
        }
        longest
    }

    /// Counts one refusal. Returns the duration of the block if this was one too many.
    async fn count_refusal(
        &self,
        rule: &Rule,
        ban: &Ban,
        key: &KeyBuf,
        terms: Terms,
        now: Now<'_>,
    ) -> Option<Wait> {
        let counted_under = rule.scoped("refusals", key);
        let check = Check::new(&ban.refusals, &counted_under);
        let terms = Terms { consistency: Consistency::Strict, ..terms };
        let store = &self.store;
        let Ok(counted): Result<Decision, Infallible> =
            store.decide_each(&[check.terms(terms)], now, &mut [Outcome::default()]).await;
        if !counts_towards_bans(counted.decided_by()) || counted.remaining() > 0 {
            return None;
        }
        let (wait, now) = (Wait::at_least(ban.block), counted.at());
        let block = rule.scoped("block", key);
        let Ok(blocked) = store.block((&block).into(), now.after(wait), now).await;
        let counter = if blocked { &self.counts.bans } else { &self.counts.bans_without_room };
        counter.fetch_add(1, Ordering::Relaxed);
        blocked.then_some(wait)
    }
}

/// A refusal whose wait is at least as long as the block that follows.
pub(crate) fn extend_to_block(decision: Decision, block: Wait) -> Decision {
    let retry_after = decision.retry_after().max(block);
    let outcome = Outcome { retry_after, ..decision.outcome() };
    decision.refused_for(Refusal::OverLimit, decision.capacity(), outcome)
}

/// Returns true if the key itself caused the refusal. An overflow state refuses for what other keys
/// did, and without its store an instance refuses by its share or everything.
fn counts_towards_bans(decided_by: DecidedBy) -> bool {
    use DecidedBy::{Lease, Memory, Redis, RefusalCache};
    matches!(decided_by, Memory | Redis | Lease | RefusalCache)
}
