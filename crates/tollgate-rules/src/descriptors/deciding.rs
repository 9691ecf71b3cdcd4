//! Putting what descriptors ask to the store, and what follows from its answer.

use tollgate::decision::MAX_LIMITS;
use tollgate::{Act as CheckAct, Clock, Micros, Outcome, Refusal, Wait};

use super::asked::{Act, Asked};
use crate::answer::{Binding, Entries, Told};
use crate::gatekeeper::{Answering, Gatekeeper};
use crate::plan::{Plan, Planned, Standing};
use crate::rule::Mode;

impl<S: Answering, C: Clock> Gatekeeper<S, C> {
    /// Decides what is to be taken, all together.
    pub(super) async fn take_asked(&self, asked: &mut Asked<'_>, now: Micros) -> (Told, Entries) {
        let indebted = self.indebted(asked, now).await;
        let plan = &asked.first;
        let refused = plan.closed.iter().any(|one| one.standing == Standing::Enforced)
            || plan.limits.iter().zip(&indebted).any(|(one, debt)| *debt && is_enforced(one))
            || self.quotas_are_used_up(plan, &indebted, now).await;
        asked.first.refused = refused;
        let plan = &mut asked.first;
        let (mut told, mut entries) = self.ask_store(plan, CheckAct::Take, now).await;
        for (index, _) in indebted.iter().enumerate().filter(|(_, debt)| **debt) {
            entries.refuse(index);
        }
        enforce_quotas(plan, &mut entries);
        settle(plan, &entries, &mut told, now);
        if !plan.only_asks {
            self.tell(plan, &told, &entries);
        }
        (told, entries)
    }

    /// Which limits that are only asked about are in debt: that alone is over, for whoever takes
    /// nothing.
    async fn indebted(&self, asked: &Asked<'_>, now: Micros) -> [bool; MAX_LIMITS] {
        let mut indebted = [false; MAX_LIMITS];
        let plan = &asked.first;
        for (planned, debt) in plan.limits.iter().zip(&mut indebted) {
            if asked.only_asks(planned) && is_meant(plan, planned) {
                let check = plan.check(planned, CheckAct::Peek);
                let Ok(balance) = self.limiter().store().balance(&check, now).await;
                *debt = balance < 0;
            }
        }
        indebted
    }

    /// Whether all limits in quota mode refuse, where that has to be known beforehand: what counts
    /// refusals is charged either way.
    async fn quotas_are_used_up(
        &self,
        plan: &Plan<'_>,
        indebted: &[bool; MAX_LIMITS],
        now: Micros,
    ) -> bool {
        let free_when_refused = |one: &Planned| !plan.rule(one).count_denied;
        if !plan.limits.iter().any(|one| one.quota && free_when_refused(one)) {
            return false;
        }
        let mut outcomes = [Outcome::default(); MAX_LIMITS];
        let outcomes = &mut outcomes[..plan.limits.len()];
        let checks = plan.checks(CheckAct::Peek);
        let Ok(_) = self.limiter().store().decide_each(&checks, now, outcomes).await;
        for (outcome, debt) in outcomes.iter_mut().zip(indebted) {
            outcome.allowed &= !debt;
        }
        all_quotas_over(plan, outcomes.iter())
    }

    /// Carries out what is forced or given back; what is there after that, of each limit.
    pub(super) async fn carry_out(&self, asked: &Asked<'_>, now: Micros) -> Vec<Outcome> {
        let plan = &asked.after;
        if plan.limits.is_empty() {
            return Vec::new();
        }
        let store = self.limiter().store();
        let is_refund = |one: &Planned| asked.each[usize::from(one.of)].act == Act::Refund;
        for planned in plan.limits.iter().filter(|one| is_refund(one)) {
            let Ok(()) = store.refund(&plan.check(planned, CheckAct::Take), None, now).await;
        }
        let after = |planned: &Planned| match is_refund(planned) {
            true => plan.check(planned, CheckAct::Peek).cost(0),
            false => plan.check(planned, CheckAct::Force),
        };
        let checks: arrayvec::ArrayVec<_, MAX_LIMITS> = plan.limits.iter().map(after).collect();
        let mut outcomes = vec![Outcome::default(); checks.len()];
        let Ok(_) = store.decide_each(&checks, now, &mut outcomes).await;
        outcomes
    }
}

fn is_enforced(planned: &Planned) -> bool {
    planned.standing == Standing::Enforced
}

/// Whether it can be over at all: a limit in shadow is not, also in quota mode.
fn is_meant(plan: &Plan<'_>, planned: &Planned) -> bool {
    is_enforced(planned) || (planned.quota && plan.rule(planned).mode == Mode::Enforce)
}

/// Whether there are limits in quota mode, and all of them refuse.
fn all_quotas_over<'o>(plan: &Plan<'_>, outcomes: impl Iterator<Item = &'o Outcome>) -> bool {
    let limits = plan.limits.iter().zip(outcomes).filter(|(one, _)| one.quota);
    let mut limits =
        limits.map(|(one, outcome)| !outcome.allowed && is_meant(plan, one)).peekable();
    let closed = plan.closed.iter().filter(|one| one.quota);
    let mut closed = closed.map(|one| plan.rules().at(one.rule).mode == Mode::Enforce).peekable();
    (limits.peek().is_some() || closed.peek().is_some())
        && limits.all(|over| over)
        && closed.all(|over| over)
}

/// Limits in quota mode refuse if all of them do.
fn enforce_quotas(plan: &mut Plan<'_>, entries: &mut Entries) {
    if !all_quotas_over(plan, entries.outcomes()) {
        return;
    }
    for (index, planned) in plan.limits.iter_mut().enumerate().filter(|(_, one)| one.quota) {
        planned.standing = Standing::Enforced;
        entries.enforce(index);
    }
    plan.closed
        .iter_mut()
        .filter(|one| one.quota)
        .for_each(|one| one.standing = Standing::Enforced);
}

/// Makes a refusal of what the store let pass and something else refuses.
fn settle(plan: &Plan<'_>, entries: &Entries, told: &mut Told, now: Micros) {
    let over = || {
        let each = plan.limits.iter().zip(entries.outcomes()).enumerate();
        each.filter(|(_, (one, outcome))| is_enforced(one) && !outcome.allowed)
    };
    // Of limits in quota mode one that has room again is enough.
    let quota =
        over().filter(|(_, (one, _))| one.quota).map(|(_, (_, outcome))| outcome.retry_after);
    let plain =
        over().filter(|(_, (one, _))| !one.quota).map(|(_, (_, outcome))| outcome.retry_after);
    let mut wait = plain.max().max(quota.min());
    let closed = |quota: bool| {
        plan.closed.iter().any(|one| one.quota == quota && one.standing == Standing::Enforced)
    };
    let only_closed_quotas = closed(true) && !over().any(|(_, (one, _))| one.quota);
    if closed(false) || only_closed_quotas {
        wait = Some(Wait::NEVER);
    }
    let Some(wait) = wait else { return };
    let waited = told.refusal.map_or(Wait::ZERO, |_| told.outcome.retry_after);
    if told.refusal.is_none() {
        let binding =
            over().reduce(
                |best, next| {
                    if next.1.1.retry_after > best.1.1.retry_after { next } else { best }
                },
            );
        told.refusal = Some(if wait.is_never() { Refusal::NeverFits } else { Refusal::OverLimit });
        match binding {
            Some((index, (planned, outcome))) => {
                told.binding = Some(Binding::Limit(index));
                told.capacity = plan.limit(planned).capacity();
                told.outcome = *outcome;
            }
            None => {
                let longest = plan.closed.iter().map(|one| end_of_window(one.unit, now)).max();
                (told.binding, told.capacity) = (None, 0);
                told.outcome = Outcome {
                    reset_after: longest.unwrap_or(Wait::ZERO),
                    served_at: now,
                    ..Outcome::default()
                };
            }
        }
    }
    told.outcome.allowed = false;
    told.outcome.retry_after = waited.max(wait);
}

/// Until the window of such a unit ends.
pub(super) fn end_of_window(unit: super::Unit, now: Micros) -> Wait {
    let period = unit.seconds() * 1_000_000;
    Wait::from_micros(period - now.as_u64() % period)
}
