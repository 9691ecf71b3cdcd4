//! Blocks, which refuse before any limit is asked, and bans, which make blocks of refusals.

use std::convert::Infallible;
use std::slice;
use std::sync::atomic::Ordering;

use tollgate::decision::MAX_LIMITS;
use tollgate::{
    Act, Check, Clock, Consistency, DecidedBy, Decision, KeyBuf, Micros, Now, Outcome, Refusal,
    Terms, Wait,
};

use super::{Gatekeeper, InfallibleStore};
use crate::answer::{AnswerEntries, Binding, PlanDecision};
use crate::observer::{BanNotice, BanOutcome, RulesObserver};
use crate::plan::{Enforcement, PlannedLimit, RequestPlan};
use crate::rule::{Ban, Rule};
use crate::rule_set::RuleSet;

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

    /// Counts a refusal towards bans. If a block follows, the wait is at least as long as the block.
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
        let mut longest = None;
        for (ban, planned) in bans_of_refusal(plan, violates, outcomes) {
            longest = longest.max(self.count_refusal(plan, planned, ban, now).await);
        }
        longest
    }

    /// Returns the decision that [`apply_bans`](Gatekeeper::apply_bans) would return. Counts nothing.
    pub(crate) async fn rehearse_bans(
        &self,
        plan: &RequestPlan<'_>,
        (decision, outcomes): (Decision, &[Outcome]),
        now: Now<'_>,
    ) -> Decision {
        if decision.refusal() != Some(Refusal::OverLimit) || !plan.has_ban() {
            return decision;
        }
        let mut longest = None;
        for (ban, planned) in bans_of_refusal(plan, |index| decision.violates(index), outcomes) {
            let rule = plan.rule(planned);
            let counted_under = rule.scoped("refusals", plan.caller(planned));
            let checks = [refusal_check(rule, ban, &counted_under)];
            let Ok(states) = self.store.inspect(&checks, now).await;
            let Some(states) = states else { continue };
            let counted = states.decide(&checks, now.instant(), &mut [Outcome::default()]);
            if is_one_too_many(&counted) {
                longest = longest.max(Some(Wait::at_least(ban.block)));
            }
        }
        longest.map_or(decision, |block| extend_to_block(decision, block))
    }

    /// Counts one refusal. Returns the duration of the block if this was one too many.
    async fn count_refusal(
        &self,
        plan: &RequestPlan<'_>,
        planned: &PlannedLimit<'_>,
        ban: &Ban,
        now: Now<'_>,
    ) -> Option<Wait> {
        let (rule, key) = (plan.rule(planned), plan.caller(planned));
        let counted_under = rule.scoped("refusals", key);
        let counted = self.count_one(&refusal_check(rule, ban, &counted_under), now).await;
        if !is_one_too_many(&counted) {
            return None;
        }
        let (wait, now) = (Wait::at_least(ban.block), counted.at());
        let (block, until) = (rule.scoped("block", key), now.after(wait));
        let Ok(blocked) = self.store.block((&block).into(), until, now).await;
        let counter = if blocked { &self.counts.bans } else { &self.counts.bans_without_room };
        counter.fetch_add(1, Ordering::Relaxed);
        let outcome = if blocked { BanOutcome::Blocked } else { BanOutcome::NoRoom };
        let notice = BanNotice { rule, key, at: now, until, outcome };
        let number = planned.limit_ref.rule;
        notify_of_ban(plan.rules(), number, self.observer.as_deref(), &notice);
        blocked.then_some(wait)
    }

    async fn count_one(&self, check: &Check<'_>, now: Now<'_>) -> Decision {
        let outcome = &mut [Outcome::default()];
        let Ok(counted): Result<Decision, Infallible> =
            self.store.decide_each(slice::from_ref(check), now, outcome).await;
        counted
    }
}

/// Counts a ban for its rule, and notifies the observer.
pub(super) fn notify_of_ban(
    rules: &RuleSet,
    number: u32,
    observer: Option<&dyn RulesObserver>,
    notice: &BanNotice<'_>,
) {
    if notice.outcome != BanOutcome::NoRoom {
        rules.tally_of(number).add_ban(notice.outcome == BanOutcome::Shadow);
    }
    if let Some(observer) = observer {
        observer.banned(rules, notice);
    }
}

/// The bans that a refusal counts towards, each with a limit that refused: once for each rule and key,
/// however many limits of the rule refused it.
fn bans_of_refusal<'p>(
    plan: &'p RequestPlan<'_>,
    violates: impl Fn(usize) -> bool,
    outcomes: &[Outcome],
) -> impl Iterator<Item = (&'p Ban, &'p PlannedLimit<'p>)> {
    bans_of(plan, outcomes, move |index, planned, _| {
        // A decision refused for lack of room violates no limit.
        planned.enforcement == Enforcement::Enforced && violates(index)
    })
}

/// The bans of the limits that refused, once for each rule and key.
pub(super) fn bans_of<'p>(
    plan: &'p RequestPlan<'_>,
    outcomes: &[Outcome],
    refused: impl Fn(usize, &PlannedLimit<'_>, &Outcome) -> bool,
) -> impl Iterator<Item = (&'p Ban, &'p PlannedLimit<'p>)> {
    let mut last = None;
    let each = plan.limits.iter().zip(outcomes).enumerate();
    each.filter_map(move |(index, (planned, outcome))| {
        let counts = refused(index, planned, outcome) && counts_towards_bans(outcome.decided_by);
        let ban = plan.rule(planned).ban.as_ref().filter(|_| counts)?;
        let counted = (planned.limit_ref.rule, planned.descriptor, planned.caller);
        (last.replace(counted) != Some(counted)).then_some((ban, planned))
    })
}

/// The check that counts a refusal towards a ban.
pub(super) fn refusal_check<'c>(rule: &Rule, ban: &'c Ban, counted_under: &'c KeyBuf) -> Check<'c> {
    Check::new(&ban.refusals, counted_under).terms(ban_terms(rule))
}

/// Terms of the counts behind a ban.
pub(super) fn ban_terms(rule: &Rule) -> Terms {
    Terms { consistency: Consistency::Strict, ..rule.terms }
}

/// Returns true if the refusal that was counted was the last before the block.
pub(super) fn is_one_too_many(counted: &Decision) -> bool {
    counts_towards_bans(counted.decided_by()) && counted.remaining() == 0
}

/// A refusal whose wait is at least as long as the block that follows.
fn extend_to_block(decision: Decision, block: Wait) -> Decision {
    let retry_after = decision.retry_after().max(block);
    let outcome = Outcome { retry_after, ..decision.outcome() };
    decision.refused_for(Refusal::OverLimit, decision.capacity(), outcome)
}

/// Returns true if the key itself caused the refusal. An overflow state refuses for what other keys
/// did, and without its store an instance refuses by its share or everything.
pub(super) fn counts_towards_bans(decided_by: DecidedBy) -> bool {
    use DecidedBy::{Lease, Memory, Redis, RefusalCache};
    matches!(decided_by, Memory | Redis | Lease | RefusalCache)
}
