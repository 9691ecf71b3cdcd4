//! Deciding descriptors: the calls to the store, and the consequences of its answers.

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::{Act, Check, Clock, Micros, Now, Outcome, Refusal, Wait};

use super::plans::PlannedDescriptor;
use crate::answer::{AnswerEntries, Binding, PlanDecision};
use crate::gatekeeper::{Gatekeeper, InfallibleStore, expect_ready};
use crate::plan::{Enforcement, PlannedLimit, RequestPlan};
use crate::rule::Mode;
use tollgate::store::join::{join_all, join_both};

/// The outcome of each limit after refunds and forced charges; empty without them.
#[derive(Default)]
pub(super) struct SettledOutcomes {
    pub(super) refunded: Vec<Outcome>,
    pub(super) forced: Vec<Outcome>,
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Decides all takes and peeks as one decision, with a store that answers at once.
    pub(super) fn take_at_once(
        &self,
        plan: &mut RequestPlan<'_>,
        each: &[PlannedDescriptor],
        now: Now<'_>,
    ) -> PlanDecision {
        self.prepare_take(plan, now.instant());
        let mut decided = self.ask_store_at_once(plan, Act::Take, now);
        if is_refused_after_all(plan, each, &mut decided, now.instant()) {
            expect_ready(self.refund_charged(plan, &mut decided.entries, now));
        }
        self.conclude_unless_peek(plan, &decided, now);
        decided
    }

    /// The same with a store that has to be waited for.
    pub(super) async fn take_and_wait(
        &self,
        plan: &mut RequestPlan<'_>,
        each: &[PlannedDescriptor],
        now: Now<'_>,
    ) -> PlanDecision {
        // Refunds of a request that is refused after all share the deadline of the decision.
        let now = self.begin_operation(now);
        self.prepare_take(plan, now.instant());
        let mut decided = self.ask_store(plan, Act::Take, now).await;
        if is_refused_after_all(plan, each, &mut decided, now.instant()) {
            Box::pin(self.refund_charged(plan, &mut decided.entries, now)).await;
        }
        self.conclude_unless_peek(plan, &decided, now);
        decided
    }

    fn prepare_take(&self, plan: &mut RequestPlan<'_>, now: Micros) {
        self.enforce_blocked(plan, now);
        plan.always_refused = is_refused_by_zero_limits(plan);
    }

    fn conclude_unless_peek(&self, plan: &RequestPlan<'_>, decided: &PlanDecision, now: Now<'_>) {
        if !plan.peek_only {
            self.conclude_take(plan, decided, now);
        }
    }

    /// Refunds the charges of a request that the store admitted and that is refused after all. Only
    /// limits that were charged: a store that did not answer is not called again. Limits that count
    /// refusals keep the charge.
    async fn refund_charged(
        &self,
        plan: &RequestPlan<'_>,
        entries: &mut AnswerEntries,
        now: Now<'_>,
    ) {
        let store = self.store();
        let charged: ArrayVec<(&PlannedLimit<'_>, Outcome), MAX_LIMITS> = plan
            .limits
            .iter()
            .zip(entries.outcomes().iter().copied())
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
            let same = |other: &PlannedLimit<'_>| plan.is_same_state(one, other);
            for index in (0..plan.limits.len()).filter(|index| same(&plan.limits[*index])) {
                entries.give_back(index, outcome.charged, plan.limit(one).capacity());
            }
        }
    }

    /// Enforces limits in quota mode under which the caller is blocked, whatever the others answer.
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

    /// Makes the refunds and the forced charges, in this order.
    pub(super) async fn settle_planned(
        &self,
        (refunds, forces): (&Option<Box<RequestPlan<'_>>>, &Option<Box<RequestPlan<'_>>>),
        now: Now<'_>,
    ) -> SettledOutcomes {
        let refund = Box::pin(self.give_back(refunds.as_deref(), now));
        let force = Box::pin(self.force(forces.as_deref(), now));
        let (refunded, forced) = join_both(refund, force).await;
        SettledOutcomes { refunded, forced }
    }

    /// Makes the refunds. Returns the outcome of each limit after that.
    async fn give_back(&self, plan: Option<&RequestPlan<'_>>, asked_at: Now<'_>) -> Vec<Outcome> {
        let Some(plan) = plan else { return Vec::new() };
        let mut outcomes = vec![Outcome::default(); plan.limits.len()];
        if !outcomes.is_empty() {
            let store = self.store();
            let checks = plan.checks(Act::Take);
            let back = join_all(checks.iter().map(|check| store.refund(check, None, asked_at)));
            let peeks = plan.limits.iter().map(|one| plan.check(one, Act::Peek).cost(0));
            let asked: ArrayVec<Check<'_>, MAX_LIMITS> = peeks.collect();
            // The store gets the calls in this order, and both are awaited together.
            let look = async { store.decide_each(&asked, asked_at, &mut outcomes).await };
            let (_, Ok(_)) = join_both(back, look).await;
        }
        outcomes
    }

    /// Makes the forced charges and notifies the observer. Returns the outcome of each limit after
    /// that.
    async fn force(&self, plan: Option<&RequestPlan<'_>>, now: Now<'_>) -> Vec<Outcome> {
        let Some(plan) = plan else { return Vec::new() };
        let mut outcomes = vec![Outcome::default(); plan.limits.len()];
        if !outcomes.is_empty() {
            let store = self.store();
            let Ok(decision) =
                store.decide_each(&plan.checks(Act::Force), now, &mut outcomes).await;
            let entries = AnswerEntries::with_outcomes(plan, &outcomes);
            self.notify(plan, &PlanDecision { decision, binding: None, entries });
        }
        outcomes
    }
}

/// Applies all that refuses beside the store. Returns true if it admitted a request that is refused
/// after all.
fn is_refused_after_all(
    plan: &mut RequestPlan<'_>,
    each: &[PlannedDescriptor],
    decided: &mut PlanDecision,
    now: Micros,
) -> bool {
    refuse_debtors(plan, each, &mut decided.entries);
    enforce_quotas(plan, &mut decided.entries);
    let passed = decided.decision.allowed();
    apply_refusals(plan, decided, now);
    passed && !decided.decision.allowed()
}

fn is_enforced(planned: &PlannedLimit<'_>) -> bool {
    planned.enforcement == Enforcement::Enforced
}

/// Returns true if a limit can be over. A limit in shadow cannot, also in quota mode.
fn can_be_over(plan: &RequestPlan<'_>, planned: &PlannedLimit<'_>) -> bool {
    is_enforced(planned) || (planned.quota && plan.rule(planned).mode == Mode::Enforce)
}

/// Returns true if limits of zero refuse the request whatever the store answers.
fn is_refused_by_zero_limits(plan: &RequestPlan<'_>) -> bool {
    let quotas = plan.limits.iter().any(|one| one.quota);
    plan.zero_limits.iter().any(|one| one.enforcement == Enforcement::Enforced)
        || (!quotas && all_quotas_over(plan, [].iter()))
}

/// Refuses descriptors that take nothing while their limit is in debt.
fn refuse_debtors(plan: &RequestPlan<'_>, each: &[PlannedDescriptor], entries: &mut AnswerEntries) {
    for (index, one) in plan.limits.iter().enumerate() {
        if each[usize::from(one.descriptor)].peeks_only() && can_be_over(plan, one) {
            entries.refuse_in_debt(index);
        }
    }
}

/// Returns true if there are limits in quota mode and all of them refuse.
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

/// Enforces the limits in quota mode if all of them refuse.
fn enforce_quotas(plan: &mut RequestPlan<'_>, entries: &mut AnswerEntries) {
    if !all_quotas_over(plan, entries.outcomes().iter()) {
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
) -> impl Iterator<Item = (usize, &'p PlannedLimit<'p>, &'p Outcome)> {
    let each = plan.limits.iter().zip(entries.outcomes()).enumerate();
    each.filter(|(_, (one, outcome))| is_enforced(one) && !outcome.allowed)
        .map(|(index, (one, outcome))| (index, one, outcome))
}

/// Turns an admission by the store into a refusal, if something else refuses.
fn apply_refusals(plan: &RequestPlan<'_>, decided: &mut PlanDecision, now: Micros) {
    let PlanDecision { decision, binding, entries } = decided;
    let Some(wait) = longest_wait(plan, entries) else { return };
    let waited = decision.refusal().map_or(Wait::ZERO, |_| decision.retry_after());
    let (mut capacity, mut outcome) = (decision.capacity(), decision.outcome());
    let refusal = decision.refusal().unwrap_or_else(|| {
        // Reversed, so that of equals the first wins.
        let refusing: ArrayVec<_, MAX_LIMITS> = refusing(plan, entries).collect();
        let known_first =
            |(_, _, outcome): &&(_, _, &Outcome)| (outcome.is_known(), outcome.retry_after);
        (*binding, capacity, outcome) = match refusing.iter().rev().max_by_key(known_first) {
            Some(&(index, planned, outcome)) => {
                (Some(Binding::Limit(index)), plan.limit(planned).capacity(), *outcome)
            }
            None => (None, 0, outcome_of_zero_limits(plan, now)),
        };
        match outcome.is_known() {
            false => Refusal::StoreUnavailable,
            true if wait.is_never() => Refusal::NeverFits,
            true => Refusal::OverLimit,
        }
    });
    let outcome = Outcome { retry_after: waited.max(wait), ..outcome };
    *decision = decision.refused_for(refusal, capacity, outcome);
}

/// The wait until nothing refuses any more; `None` if nothing refuses.
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
    // One limit in quota mode that has room again is enough.
    let quota = waits(true).min();
    match closed(false) || (closed(true) && quota.is_none()) {
        true => Some(Wait::NEVER),
        false => waits(false).max().max(quota),
    }
}

/// The outcome where only limits of zero refuse.
fn outcome_of_zero_limits(plan: &RequestPlan<'_>, now: Micros) -> Outcome {
    let longest = plan.zero_limits.iter().map(|one| end_of_window(one.unit, now)).max();
    Outcome { reset_after: longest.unwrap_or(Wait::ZERO), served_at: now, ..Outcome::default() }
}

/// Time until the window of this unit ends.
pub(super) fn end_of_window(unit: super::Unit, now: Micros) -> Wait {
    let period = unit.seconds() * 1_000_000;
    Wait::from_micros(period - now.as_u64() % period)
}
