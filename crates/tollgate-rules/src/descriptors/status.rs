//! `DescriptorAnswer`: the answer to a request of descriptors, with a `Status` for each.

use std::time::Duration;

use tollgate::headers::Dialect;
use tollgate::{Algorithm, DecidedBy, Micros, Outcome, Wait};

use super::Unit;
use super::deciding::{SettledOutcomes, end_of_window};
use super::plans::{DescriptorOperation, DescriptorPlans};
use crate::answer::{Answer, AnswerEntries, PlanDecision};
use crate::gatekeeper::RulesVersion;
use crate::limit_spec::RuleLimit;
use crate::plan::{Enforcement, PlannedLimit, RequestPlan, ZeroLimit};
use crate::rule::Mode;
use crate::rule_set::RuleSet;

/// The remaining units of a descriptor without limit: the largest 32-bit number.
const UNLIMITED: u64 = u32::MAX as u64;

/// The answer to a request of descriptors.
#[derive(Debug)]
pub struct DescriptorAnswer {
    answer: Answer,
    /// One for each descriptor. Bound: [`DESCRIPTORS_MAX`](super::DESCRIPTORS_MAX).
    statuses: Vec<RawStatus>,
    /// True if an imported file defines the domain.
    is_imported: bool,
}

/// A status without references to the rules.
#[derive(Clone, Copy, Debug, Default)]
struct RawStatus {
    over: bool,
    limit: Option<StatusLimit>,
    remaining: u64,
    reset_after: Wait,
    retry_after: Wait,
    unlimited: bool,
}

/// The limit that a status names.
#[derive(Clone, Copy, Debug)]
struct StatusLimit {
    rule: u32,
    units: u64,
    period: Duration,
    enforcement: Enforcement,
}

/// The status of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status<'a> {
    /// True if its limit has no room. The request may pass all the same: see
    /// [`DescriptorAnswer::allowed`].
    pub over: bool,
    /// The limit that decided: of those without room the one with the longest wait, else the one with
    /// the least left. `None`: no limit applies, or there is none on purpose.
    pub limit: Option<CurrentLimit<'a>>,
    /// Units still takeable of that limit; 0 without one; as many as fit into 32 bits if it is
    /// unlimited.
    pub remaining: u64,
    /// Time until that limit is as good as fresh. In imported files the end of the window.
    pub reset_after: Wait,
    /// Zero unless over.
    pub retry_after: Wait,
    /// The effect of a refusal by that limit; `None` without a limit.
    pub enforcement: Option<Enforcement>,
    /// True if a file says that there is no limit.
    pub unlimited: bool,
}

/// A limit as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentLimit<'a> {
    /// The rule's name; of imported files the `name` that stands beside the limit, if one does.
    /// Limits stated in the request have none.
    pub name: Option<&'a str>,
    /// Units per period.
    pub units: u64,
    /// The period.
    pub period: Duration,
    /// The unit that is exactly so long, if there is one.
    pub unit: Option<Unit>,
}

/// A decided request of descriptors that borrows no rules.
pub(super) struct DecidedDescriptors {
    decided: PlanDecision,
    statuses: Vec<RawStatus>,
    stated: Vec<RuleLimit>,
    is_imported: bool,
}

impl DecidedDescriptors {
    pub(super) fn new(
        plans: &mut DescriptorPlans<'_>,
        decided: PlanDecision,
        settled: &SettledOutcomes,
        now: Micros,
    ) -> DecidedDescriptors {
        let statuses = plans.statuses(&decided.entries, settled, now);
        let stated = std::mem::take(&mut plans.takes.stated);
        DecidedDescriptors { decided, statuses, stated, is_imported: plans.is_imported }
    }

    /// The answer, which owns its rules.
    pub(super) fn into_answer(self, rules: RulesVersion) -> DescriptorAnswer {
        let DecidedDescriptors { decided, statuses, stated, is_imported } = self;
        let answer = Answer::new(rules, decided, None).with_stated_limits(stated);
        DescriptorAnswer { answer, statuses, is_imported }
    }
}

impl DescriptorAnswer {
    /// Header dialects that the rules ask for. Of these only `draft` is kept for domains of
    /// imported files, because there Envoy writes `X-RateLimit` from the statuses.
    pub fn dialects(&self) -> &[Dialect] {
        let dialects = self.answer.dialects();
        match self.is_imported {
            true if dialects.contains(&Dialect::Draft) => &[Dialect::Draft],
            true => &[],
            false => dialects,
        }
    }

    /// Returns true if the request may go on.
    pub fn allowed(&self) -> bool {
        self.answer.allowed()
    }

    /// One for each descriptor, in order.
    pub fn statuses(&self) -> impl ExactSizeIterator<Item = Status<'_>> {
        let rules = self.answer.rules();
        self.statuses.iter().map(|said| Status {
            over: said.over,
            limit: said.limit.map(|limit| limit.current(rules)),
            remaining: said.remaining,
            reset_after: said.reset_after,
            retry_after: said.retry_after,
            enforcement: said.limit.map(|limit| limit.enforcement),
            unlimited: said.unlimited,
        })
    }

    /// Zero when allowed; otherwise the wait after which the same request passes.
    pub fn retry_after(&self) -> Wait {
        self.answer.retry_after()
    }

    /// The part of the system that decided, such as the store or a fallback.
    pub fn decided_by(&self) -> DecidedBy {
        self.answer.decided_by()
    }

    /// The decision as a whole: why it is refused, what headers and bodies say, by which rules.
    pub fn answer(&self) -> &Answer {
        &self.answer
    }

    /// The same, without the statuses.
    pub fn into_answer(self) -> Answer {
        self.answer
    }
}

impl StatusLimit {
    fn current(self, rules: &RuleSet) -> CurrentLimit<'_> {
        let rule = rules.rule_at(self.rule);
        let name = match &rule.imported {
            Some(imported) => imported.name.as_deref(),
            None if RuleSet::is_stated(self.rule) => None,
            None => Some(&*rule.name),
        };
        let unit = Unit::of_period(self.period);
        CurrentLimit { name, units: self.units, period: self.period, unit }
    }
}

impl DescriptorPlans<'_> {
    /// The status of each descriptor, from the outcomes of each plan.
    fn statuses(
        &self,
        taken: &AnswerEntries,
        settled: &SettledOutcomes,
        now: Micros,
    ) -> Vec<RawStatus> {
        let mut statuses = vec![RawStatus::default(); self.descriptors.len()];
        merge_statuses(&mut statuses, &self.takes, taken.outcomes().iter(), now);
        let settled = [(&self.refunds, &settled.refunded), (&self.forces, &settled.forced)];
        for (plan, outcomes) in settled {
            if let Some(plan) = plan {
                merge_statuses(&mut statuses, plan, outcomes.iter(), now);
            }
        }
        for closed in self.each().flat_map(|plan| &plan.zero_limits) {
            let refuses = self.descriptors[usize::from(closed.descriptor)].operation
                == DescriptorOperation::Take;
            statuses[usize::from(closed.descriptor)] =
                status_of_zero_limit(&self.takes, closed, refuses, now);
        }
        for (said, _) in statuses.iter_mut().zip(&self.descriptors).filter(|(_, one)| one.unlimited)
        {
            *said = RawStatus { unlimited: true, remaining: UNLIMITED, ..RawStatus::default() };
        }
        statuses
    }
}

/// Merges the limits of a plan into the statuses.
fn merge_statuses<'o>(
    statuses: &mut [RawStatus],
    plan: &RequestPlan<'_>,
    outcomes: impl Iterator<Item = &'o Outcome>,
    now: Micros,
) {
    for (planned, outcome) in
        plan.limits.iter().zip(outcomes).filter(|(one, _)| is_reported(plan, one))
    {
        merge_status(statuses, planned, status_of_limit(plan, planned, outcome, now));
    }
}

/// Returns true if the status of a descriptor may show this limit: one that refuses and, as in the
/// reference server, every limit of a file or of the request itself.
fn is_reported(plan: &RequestPlan<'_>, planned: &PlannedLimit<'_>) -> bool {
    planned.enforcement == Enforcement::Enforced || plan.is_direct(planned)
}

/// Merges a limit into the status of its descriptor: the limit that decides is shown, the first of
/// equals.
fn merge_status(statuses: &mut [RawStatus], planned: &PlannedLimit<'_>, said: RawStatus) {
    let before = &mut statuses[usize::from(planned.descriptor)];
    let weight =
        |said: &RawStatus| (said.over, said.retry_after, std::cmp::Reverse(said.remaining));
    if before.limit.is_none() || weight(&said) > weight(before) {
        *before = said;
    }
}

fn status_of_limit(
    plan: &RequestPlan<'_>,
    planned: &PlannedLimit<'_>,
    outcome: &Outcome,
    now: Micros,
) -> RawStatus {
    let limit = plan.limit(planned);
    // A shadow limit reports OK; a limit in quota mode reports its real state.
    let shadow = planned.enforcement != Enforcement::Enforced
        && !(planned.quota && plan.rule(planned).mode == Mode::Enforce);
    let over = !outcome.allowed && !shadow;
    let unit = Unit::of_period(limit.period());
    let reset_after = match unit.filter(|_| plan.is_direct(planned)) {
        // An unused window also has an end.
        Some(unit)
            if outcome.reset_after.is_zero() && limit.algorithm() == Algorithm::FixedWindow =>
        {
            end_of_window(unit, now)
        }
        _ => outcome.reset_after,
    };
    let (units, period, standing) = (limit.units(), limit.period(), planned.enforcement);
    RawStatus {
        over,
        limit: Some(StatusLimit {
            rule: planned.limit_ref.rule,
            units,
            period,
            enforcement: standing,
        }),
        remaining: outcome.remaining,
        reset_after,
        retry_after: if over { outcome.retry_after } else { Wait::ZERO },
        unlimited: false,
    }
}

fn status_of_zero_limit(
    plan: &RequestPlan<'_>,
    closed: &ZeroLimit,
    refuses: bool,
    now: Micros,
) -> RawStatus {
    let ZeroLimit { rule, unit, enforcement: standing, quota, .. } = *closed;
    let meant = standing == Enforcement::Enforced
        || (quota && plan.rules().rule_at(rule).mode == Mode::Enforce);
    let over = refuses && meant;
    RawStatus {
        over,
        limit: Some(StatusLimit { rule, units: 0, period: unit.period(), enforcement: standing }),
        remaining: 0,
        reset_after: end_of_window(unit, now),
        retry_after: if over { Wait::NEVER } else { Wait::ZERO },
        unlimited: false,
    }
}
