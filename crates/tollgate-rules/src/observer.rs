//! `RulesObserver`: whoever wants to be told what the gatekeeper decided, such as logs and live views.

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::{DecidedBy, KeyBuf, Micros, Outcome, Refusal, Wait};

use crate::MissingFacts;
use crate::answer::{AnswerEntries, Binding, Told};
use crate::plan::{Enforcement, PlannedLimit, RequestPlan, ZeroLimit};
use crate::rule::Rule;
use crate::rule_set::RuleSet;
use crate::tally::Verdict;

/// Told of every request that was decided, reservations and forced charges among them; not of
/// questions that charge nothing, nor of what is given back. Called on the thread that decides: it has to be quick and must not block.
pub trait RulesObserver: Send + Sync {
    /// A request was decided.
    fn decided(&self, decided: &DecidedRequest<'_>);

    /// Rules were skipped for want of a fact, and no other could refuse.
    fn missing_facts(&self, missing: &MissingFacts<'_>, now: Micros) {
        let _ = (missing, now);
    }
}

/// A request that was decided.
pub struct DecidedRequest<'a> {
    plan: &'a RequestPlan<'a>,
    told: &'a Told,
    rule_verdicts: ArrayVec<RuleVerdict<'a>, MAX_LIMITS>,
}

impl std::fmt::Debug for DecidedRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decided").field("told", self.told).finish_non_exhaustive()
    }
}

/// What one rule said of a request.
#[derive(Clone, Copy, Debug)]
pub struct RuleVerdict<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// Whose use it counts.
    pub key: &'a KeyBuf,
    /// What it said.
    pub verdict: Verdict,
    /// The limit that is named as the reason, as people read it: of those that refuse the one with
    /// the longest wait, else the one with the least left.
    pub limit: &'a str,
    /// The wait that this limit asks for.
    pub retry_after: Wait,
    /// What the request cost, or would have.
    pub cost: u64,
    number: u32,
}

impl<'a> DecidedRequest<'a> {
    pub(crate) fn new(
        plan: &'a RequestPlan<'a>,
        told: &'a Told,
        entries: &'a AnswerEntries,
    ) -> DecidedRequest<'a> {
        // Where nothing was refused, what refuses everything was not asked to take anything.
        let refuses =
            |one: &&ZeroLimit| told.refusal.is_some() || one.enforcement != Enforcement::Enforced;
        let closed =
            plan.zero_limits.iter().filter(refuses).map(|closed| zero_limit_verdict(plan, closed));
        let by_rule =
            verdicts_of_rules(plan, told, entries).chain(closed).take(MAX_LIMITS).collect();
        DecidedRequest { plan, told, rule_verdicts: by_rule }
    }

    /// When.
    pub fn at(&self) -> Micros {
        self.told.at
    }

    /// Why it was refused, if it was.
    pub fn refusal(&self) -> Option<Refusal> {
        self.told.refusal
    }

    /// Who decided.
    pub fn decided_by(&self) -> DecidedBy {
        self.told.decided_by
    }

    /// The rules that were asked.
    pub fn rules(&self) -> &'a RuleSet {
        self.plan.rules()
    }

    /// What each rule said that applied, in order.
    pub fn rule_verdicts(&self) -> impl ExactSizeIterator<Item = &RuleVerdict<'a>> {
        self.rule_verdicts.iter()
    }

    /// Counts what the rules said.
    pub(crate) fn tally(&self) {
        for one in self.rule_verdicts() {
            self.rules().tally_of(one.number).add(one.verdict);
        }
    }
}

impl RuleVerdict<'_> {
    /// The limits would have let it pass, but too much of the key's work is going on.
    fn refused_by_concurrency(self, told: &Told) -> Self {
        let limit = self.rule.concurrency.as_ref().map_or(self.limit, |one| &one.text);
        let (verdict, retry_after) = (Verdict::Refused, told.outcome.retry_after);
        RuleVerdict { verdict, limit, retry_after, ..self }
    }
}

/// What each rule said that applied, in order.
fn verdicts_of_rules<'a>(
    plan: &'a RequestPlan<'a>,
    told: &'a Told,
    outcomes: &'a AnswerEntries,
) -> impl Iterator<Item = RuleVerdict<'a>> {
    // A refusal without a limit's word, such as one for too many at once, has no outcomes.
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
        let busy = told.binding == Some(Binding::Concurrency(number));
        Some(if busy { found.refused_by_concurrency(told) } else { found })
    })
}

/// What a limit of nothing says.
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

/// What the limits of one rule said together.
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
