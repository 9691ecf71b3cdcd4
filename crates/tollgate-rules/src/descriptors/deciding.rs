//! Putting what descriptors ask to the store, and what follows from its answer.

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::{Act, Check, Clock, Micros, Now, Outcome, Refusal, Wait};

use super::plans::PlannedDescriptor;
use crate::answer::{Answer, AnswerEntries, Binding, Told};
use crate::gatekeeper::{Gatekeeper, InfallibleStore};
use crate::join::{join_all, join_both};
use crate::plan::{Enforcement, PlannedLimit, RequestPlan};
use crate::rule::Mode;

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Decides what is to be taken, all together.
    pub(super) async fn take_planned(
        &self,
        plan: &mut RequestPlan<'_>,
        each: &[PlannedDescriptor],
        asked_at: Now<'_>,
    ) -> (Told, AnswerEntries) {
        // What is given back after all is given back within the deadline of the decision.
        let asked_at = asked_at.begin_operation();
        let now = asked_at.instant();
        self.enforce_blocked(plan, now);
        plan.always_refused = is_refused_by_zero_limits(plan);
        let (mut told, mut entries) = self.ask_store(plan, Act::Take, asked_at).await;
        refuse_debtors(plan, each, &mut entries);
        enforce_quotas(plan, &mut entries);
        let passed = told.refusal.is_none();
        apply_refusals(plan, &entries, &mut told, now);
        if passed && told.refusal.is_some() {
            self.refund_charged(plan, &mut entries, asked_at).await;
        }
        if !plan.peek_only {
            self.notify(plan, &told, &entries);
        }
        (told, entries)
    }

    /// Gives back what the store has charged for a request that it let pass and that is refused after
    /// all. Only where it was charged: a store that did not answer is not waited for again.
    async fn refund_charged(
        &self,
        plan: &RequestPlan<'_>,
        entries: &mut AnswerEntries,
        now: Now<'_>,
    ) {
        let store = self.store();
        let charged: ArrayVec<(&PlannedLimit, Outcome), MAX_LIMITS> = plan
            .limits
            .iter()
            .zip(entries.outcomes().copied())
            .filter(|(one, outcome)| outcome.charged > 0 && !plan.counts_denied(one))
            .collect();
        let checks: ArrayVec<Check<'_>, MAX_LIMITS> = charged
            .iter()
            .map(|(one, outcome)| plan.check(one, Act::Take).cost(outcome.charged))
            .collect();
        let receipts = charged.iter().map(|(_, outcome)| Some(outcome.receipt()));
        let refunds = checks.iter().zip(receipts);
        join_all(refunds.map(|(check, receipt)| store.refund(check, receipt, now))).await;
        for (one, outcome) in charged {
            let same = |other: &PlannedLimit| plan.is_same_state(one, other);
            for index in (0..plan.limits.len()).filter(|index| same(&plan.limits[*index])) {
                entries.give_back(index, outcome.charged, plan.limit(one).capacity());
            }
        }
    }

    /// A caller that is blocked under a limit in quota mode is refused, whatever the others say.
    fn enforce_blocked(&self, plan: &mut RequestPlan<'_>, now: Micros) {
        let store = self.store();
        if !store.any_block(now) || !plan.limits.iter().any(|one| one.quota) {
            return;
        }
        for index in 0..plan.limits.len() {
            let planned = &plan.limits[index];
            let block = || plan.rule(planned).scoped("block", plan.caller(planned));
            if planned.quota
                && can_be_over(plan, planned)
                && store.blocked((&block()).into(), now).is_some()
            {
                let planned = &mut plan.limits[index];
                (planned.enforcement, planned.quota) = (Enforcement::Enforced, false);
            }
        }
    }

    /// Gives back what is to be given back; what is there after that, of each limit.
    pub(super) async fn give_back(
        &self,
        plan: &RequestPlan<'_>,
        asked_at: Now<'_>,
    ) -> Vec<Outcome> {
        let mut outcomes = vec![Outcome::default(); plan.limits.len()];
        if !outcomes.is_empty() {
            let store = self.store();
            let checks = plan.checks(Act::Take);
            let back = join_all(checks.iter().map(|check| store.refund(check, None, asked_at)));
            let nothing = |one: &PlannedLimit| plan.check(one, Act::Peek).cost(0);
            let asked: ArrayVec<Check<'_>, MAX_LIMITS> = plan.limits.iter().map(nothing).collect();
            // A store is asked in this order, and waited for once.
            let look = async { store.decide_each(&asked, asked_at, &mut outcomes).await };
            let (_, Ok(_)) = join_both(back, look).await;
        }
        outcomes
    }

    /// Charges what is forced, and tells of it: it is use like any other. What is there after that, of
    /// each limit.
    pub(super) async fn force(&self, plan: &RequestPlan<'_>, now: Now<'_>) -> Vec<Outcome> {
        let mut outcomes = vec![Outcome::default(); plan.limits.len()];
        if !outcomes.is_empty() {
            let store = self.store();
            let Ok(decision) =
                store.decide_each(&plan.checks(Act::Force), now, &mut outcomes).await;
            self.notify(plan, &Told::new(&decision, None), &Answer::entries(plan, &outcomes));
        }
        outcomes
    }
}

fn is_enforced(planned: &PlannedLimit) -> bool {
    planned.enforcement == Enforcement::Enforced
}

/// Whether it can be over at all: a limit in shadow is not, also in quota mode.
fn can_be_over(plan: &RequestPlan<'_>, planned: &PlannedLimit) -> bool {
    is_enforced(planned) || (planned.quota && plan.rule(planned).mode == Mode::Enforce)
}

/// Whether it is refused whatever the store says: by limits of nothing.
fn is_refused_by_zero_limits(plan: &RequestPlan<'_>) -> bool {
    let quotas = plan.limits.iter().any(|one| one.quota);
    plan.zero_limits.iter().any(|one| one.enforcement == Enforcement::Enforced)
        || (!quotas && all_quotas_over(plan, [].iter()))
}

/// Whoever takes nothing is over where there is debt.
fn refuse_debtors(plan: &RequestPlan<'_>, each: &[PlannedDescriptor], entries: &mut AnswerEntries) {
    for (index, one) in plan.limits.iter().enumerate() {
        if each[usize::from(one.descriptor)].peeks_only() && can_be_over(plan, one) {
            entries.refuse_in_debt(index);
        }
    }
}

/// Whether there are limits in quota mode, and all of them refuse.
fn all_quotas_over<'o>(
    plan: &RequestPlan<'_>,
    outcomes: impl Iterator<Item = &'o Outcome>,
) -> bool {
    let limits = plan.limits.iter().zip(outcomes).filter(|(one, _)| one.quota);
    let mut limits =
        limits.map(|(one, outcome)| !outcome.allowed && can_be_over(plan, one)).peekable();
    let closed = plan.zero_limits.iter().filter(|one| one.quota);
    let mut closed =
        closed.map(|one| plan.rules().rule_at(one.rule).mode == Mode::Enforce).peekable();
    (limits.peek().is_some() || closed.peek().is_some())
        && limits.all(|over| over)
        && closed.all(|over| over)
}

/// Limits in quota mode refuse if all of them do.
fn enforce_quotas(plan: &mut RequestPlan<'_>, entries: &mut AnswerEntries) {
    if !all_quotas_over(plan, entries.outcomes()) {
        return;
    }
    for (index, planned) in plan.limits.iter_mut().enumerate().filter(|(_, one)| one.quota) {
        planned.enforcement = Enforcement::Enforced;
        entries.enforce(index);
    }
    plan.zero_limits
        .iter_mut()
        .filter(|one| one.quota)
        .for_each(|one| one.enforcement = Enforcement::Enforced);
}

/// The limits that refuse.
fn refusing<'p>(
    plan: &'p RequestPlan<'_>,
    entries: &'p AnswerEntries,
) -> impl Iterator<Item = (usize, &'p PlannedLimit, &'p Outcome)> {
    let each = plan.limits.iter().zip(entries.outcomes()).enumerate();
    each.filter(|(_, (one, outcome))| is_enforced(one) && !outcome.allowed)
        .map(|(index, (one, outcome))| (index, one, outcome))
}

/// Makes a refusal of what the store let pass and something else refuses.
fn apply_refusals(plan: &RequestPlan<'_>, entries: &AnswerEntries, told: &mut Told, now: Micros) {
    let Some(wait) = longest_wait(plan, entries) else { return };
    let waited = told.refusal.map_or(Wait::ZERO, |_| told.outcome.retry_after);
    if told.refusal.is_none() {
        // Reversed, so that of equals the first wins.
        let refusing: ArrayVec<_, MAX_LIMITS> = refusing(plan, entries).collect();
        match refusing
            .iter()
            .rev()
            .max_by_key(|(_, _, outcome)| (outcome.is_known(), outcome.retry_after))
        {
            Some(&(index, planned, outcome)) => {
                told.binding = Some(Binding::Limit(index));
                told.capacity = plan.limit(planned).capacity();
                told.outcome = *outcome;
            }
            None => {
                (told.binding, told.capacity) = (None, 0);
                told.outcome = outcome_of_zero_limits(plan, now);
            }
        }
        told.refusal = Some(match told.outcome.is_known() {
            false => Refusal::StoreUnavailable,
            true if wait.is_never() => Refusal::NeverFits,
            true => Refusal::OverLimit,
        });
    }
    told.outcome.allowed = false;
    told.outcome.retry_after = waited.max(wait);
}

/// How long to wait for all that refuses; `None`: nothing does.
fn longest_wait(plan: &RequestPlan<'_>, entries: &AnswerEntries) -> Option<Wait> {
    let waits = |quota: bool| {
        let of_kind = refusing(plan, entries).filter(move |(_, one, _)| one.quota == quota);
        of_kind.map(|(_, _, outcome)| outcome.retry_after)
    };
    let closed = |quota: bool| {
        plan.zero_limits
            .iter()
            .any(|one| one.quota == quota && one.enforcement == Enforcement::Enforced)
    };
    // Of limits in quota mode one that has room again is enough.
    let quota = waits(true).min();
    match closed(false) || (closed(true) && quota.is_none()) {
        true => Some(Wait::NEVER),
        false => waits(false).max().max(quota),
    }
}

/// What is said where nothing but limits of nothing refuse.
fn outcome_of_zero_limits(plan: &RequestPlan<'_>, now: Micros) -> Outcome {
    let longest = plan.zero_limits.iter().map(|one| end_of_window(one.unit, now)).max();
    Outcome { reset_after: longest.unwrap_or(Wait::ZERO), served_at: now, ..Outcome::default() }
}

/// Until the window of such a unit ends.
pub(super) fn end_of_window(unit: super::Unit, now: Micros) -> Wait {
    let period = unit.seconds() * 1_000_000;
    Wait::from_micros(period - now.as_u64() % period)
}
