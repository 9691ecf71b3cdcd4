//! `RulesObserver`: receives the gatekeeper's decisions, for example for logs and live views.

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::{DecidedBy, Decision, KeyBuf, Micros, Outcome, Refusal, Wait};

use crate::MissingFacts;
use crate::answer::{AnswerEntries, Binding, PlanDecision};
use crate::plan::{Enforcement, PlannedLimit, RequestPlan, ZeroLimit};
use crate::rule::Rule;
use crate::rule_set::RuleSet;
use crate::tally::Verdict;

/// An observer of every decided request, including reservations and forced charges, but not peeks
/// and refunds. It is called on the thread that decides, so it must be quick and must not block.
pub trait RulesObserver: Send + Sync {
    /// Called when a request was decided.
    fn decided(&self, decided: &DecidedRequest<'_>);

    /// Called when rules were skipped for a missing fact and no other rule could refuse.
    fn missing_facts(&self, missing: &MissingFacts<'_>, now: Micros) {
        let _ = (missing, now);
    }
}

/// A request that was decided.
pub struct DecidedRequest<'a> {
    plan: &'a RequestPlan<'a>,
    decision: &'a Decision,
    rule_verdicts: ArrayVec<RuleVerdict<'a>, MAX_LIMITS>,
}

impl std::fmt::Debug for DecidedRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DecidedRequest").field("decision", self.decision).finish_non_exhaustive()
    }
}

/// The verdict of one rule on a request.
#[derive(Clone, Copy, Debug)]
pub struct RuleVerdict<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// The key that it counts.
    pub key: &'a KeyBuf,
    /// The verdict.
    pub verdict: Verdict,
    /// The limit that is named as the reason, as people read it: of those that refuse the one with
    /// the longest wait, else the one with the least left.
    pub limit: &'a str,
    /// The wait that this limit asks for.
    pub retry_after: Wait,
    /// The cost of the request, charged or not.
    pub cost: u64,
    number: u32,
}

impl<'a> DecidedRequest<'a> {
    pub(crate) fn new(
        plan: &'a RequestPlan<'a>,
        PlanDecision { decision, binding, entries }: &'a PlanDecision,
    ) -> DecidedRequest<'a> {
        // If nothing was refused, this is a forced charge, which limits of zero do not refuse.
        let refuses =
            |one: &&ZeroLimit| !decision.allowed() || one.enforcement != Enforcement::Enforced;
        let closed =
            plan.zero_limits.iter().filter(refuses).map(|closed| zero_limit_verdict(plan, closed));
        let by_rule = verdicts_of_rules(plan, (decision, *binding), entries)
            .chain(closed)
            .take(MAX_LIMITS)
            .collect();
        DecidedRequest { plan, decision, rule_verdicts: by_rule }
    }

    /// The time of the decision.
    pub fn at(&self) -> Micros {
        self.decision.at()
    }

    /// The reason of a refusal; `None` if the request was admitted.
    pub fn refusal(&self) -> Option<Refusal> {
        self.decision.refusal()
    }

    /// The part of the system that decided, such as the store or a fallback.
    pub fn decided_by(&self) -> DecidedBy {
        self.decision.decided_by()
    }

    /// The rules that were asked.
    pub fn rules(&self) -> &'a RuleSet {
        self.plan.rules()
    }

    /// The verdicts of the rules that applied, in order.
    pub fn rule_verdicts(&self) -> impl ExactSizeIterator<Item = &RuleVerdict<'a>> {
        self.rule_verdicts.iter()
    }

    /// Counts the verdicts of the rules.
    pub(crate) fn tally(&self) {
        for one in self.rule_verdicts() {
            self.rules().tally_of(one.number).add(one.verdict);
        }
    }
}

impl RuleVerdict<'_> {
    /// The verdict of a rule whose limits admit the request while its `concurrency` does not.
    fn refused_by_concurrency(self, retry_after: Wait) -> Self {
        let limit = self.rule.concurrency.as_ref().map_or(self.limit, |one| &one.text);
        RuleVerdict { verdict: Verdict::Refused, limit, retry_after, ..self }
    }
}

/// The verdicts of the rules that applied, in order.
fn verdicts_of_rules<'a>(
    plan: &'a RequestPlan<'a>,
    (decision, binding): (&'a Decision, Option<Binding>),
    outcomes: &'a AnswerEntries,
) -> impl Iterator<Item = RuleVerdict<'a>> {
    // A refusal that asked no limit, such as one for too many limits, has no outcomes.
    let mut rest: &[PlannedLimit] = &plan.limits[..outcomes.len().min(plan.limits.len())];
    let mut done = 0;
    std::iter::from_fn(move || {
        let (number, of) = rest.first().map(|first| (first.limit_ref.rule, first.descriptor))?;
        let same =
            |planned: &&PlannedLimit| (planned.limit_ref.rule, planned.descriptor) == (number, of);
        let limits = rest.iter().take_while(same).count();
        let (of_rule, others) = rest.split_at(limits);
        let found = rule_verdict(plan, of_rule, outcomes.outcomes().skip(done));
        rest = others;
        done += limits;
        let busy = binding == Some(Binding::Concurrency(number));
        Some(if busy { found.refused_by_concurrency(decision.retry_after()) } else { found })
    })
}

/// The verdict of a limit of zero.
fn zero_limit_verdict<'a>(plan: &'a RequestPlan<'a>, closed: &ZeroLimit) -> RuleVerdict<'a> {
    let verdict = match closed.enforcement {
        Enforcement::Enforced => Verdict::Refused,
        Enforcement::Shadow => Verdict::Shadow,
        Enforcement::Soft => Verdict::Soft,
    };
    RuleVerdict {
        rule: plan.rules().rule_at(closed.rule),
        key: plan.key_of_zero_limit(closed),
        verdict,
        limit: closed.unit.zero_limit_text(),
        retry_after: Wait::NEVER,
        cost: closed.cost,
        number: closed.rule,
    }
}

/// The verdict of all limits of one rule.
fn rule_verdict<'a, 'o>(
    plan: &'a RequestPlan<'a>,
    limits: &'a [PlannedLimit],
    outcomes: impl Iterator<Item = &'o Outcome>,
) -> RuleVerdict<'a> {
    let reason = |(_, outcome): &(&PlannedLimit, &Outcome)| {
        let wait = (!outcome.allowed).then_some(outcome.retry_after);
        (wait, std::cmp::Reverse(outcome.remaining))
    };
    // The first of equals, as everywhere.
    let (planned, outcome) = limits
        .iter()
        .zip(outcomes)
        .reduce(|best, next| if reason(&next) > reason(&best) { next } else { best })
        .expect("a rule that applies has limits");
    let verdict = match planned.enforcement {
        _ if outcome.allowed => Verdict::Allowed,
        _ if !outcome.is_known() => Verdict::Unavailable,
        Enforcement::Enforced => Verdict::Refused,
        Enforcement::Shadow => Verdict::Shadow,
        Enforcement::Soft => Verdict::Soft,
    };
    RuleVerdict {
        rule: plan.rule(planned),
        key: plan.caller(planned),
        verdict,
        limit: plan.limit_text(planned),
        retry_after: outcome.retry_after,
        cost: planned.cost,
        number: planned.limit_ref.rule,
    }
}
