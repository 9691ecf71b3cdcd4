//! `RulesObserver`: receives the gatekeeper's decisions, for example for logs and live views.

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::{DecidedBy, Decision, KeyBuf, Micros, Outcome, Refusal, Wait};

use crate::MissingFacts;
use crate::answer::{Binding, PlanDecision};
use crate::facts::Facts;
use crate::plan::{Enforcement, PlannedLimit, RequestPlan, ZeroLimit};
use crate::rule::{Concurrency, Rule};
use crate::rule_set::RuleSet;
use crate::stripes::StripeNumber;
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

    /// Called when a rule has refused a caller so often that its `ban` blocks it, or would block it if the
    /// rule were not in shadow.
    fn banned(&self, rules: &RuleSet, ban: &BanNotice<'_>) {
        let _ = (rules, ban);
    }
}

/// A ban that begins.
#[derive(Clone, Copy, Debug)]
pub struct BanNotice<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// The caller's key under the rule.
    pub key: &'a KeyBuf,
    /// The instant of the refusal that was one too many.
    pub at: Micros,
    /// The end of the block.
    pub until: Micros,
    /// The result.
    pub outcome: BanOutcome,
}

/// The result of a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanOutcome {
    /// The caller is blocked.
    Blocked,
    /// The caller would be blocked, but the rule is in shadow.
    Shadow,
    /// The caller is not blocked, because the table of blocks is full.
    NoRoom,
}

/// A request that was decided.
pub struct DecidedRequest<'a> {
    plan: &'a RequestPlan<'a>,
    decision: &'a Decision,
    outcomes: &'a [Outcome],
    rule_verdicts: &'a [RuleVerdict<'a>],
}

/// Room for the verdicts of the rules that applied.
pub(crate) type RuleVerdicts<'a> = ArrayVec<RuleVerdict<'a>, MAX_LIMITS>;

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
    /// The outcome of this limit; `None` if no store was asked, as for bounds on work in progress.
    pub outcome: Option<&'a Outcome>,
    /// The cost of the request, charged or not.
    pub cost: u64,
    /// A hash of the rule's name, the same in every version of the rules, for tables by rule and key.
    pub rule_hash: u64,
    number: u32,
}

impl<'a> DecidedRequest<'a> {
    /// A decided plan. `verdicts` is empty, and receives those of its rules.
    pub(crate) fn new<'p: 'a>(
        plan: &'p RequestPlan<'p>,
        PlanDecision { decision, binding, entries }: &'p PlanDecision,
        verdicts: &'a mut RuleVerdicts<'p>,
    ) -> DecidedRequest<'a> {
        add_verdicts_of_rules(verdicts, plan, (decision, *binding), entries.outcomes());
        if !plan.unlimited.is_empty() {
            add_unlimited_rules(verdicts, plan, (decision, *binding));
        }
        if !plan.zero_limits.is_empty() {
            add_zero_limits(verdicts, plan, decision.allowed());
        }
        settle_verdicts(verdicts, decision.allowed());
        let outcomes = entries.outcomes();
        DecidedRequest { plan, decision, outcomes, rule_verdicts: verdicts }
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

    /// The facts of the request; `None` for descriptors.
    pub fn facts(&self) -> Option<&'a Facts<'a>> {
        self.plan.facts
    }

    pub(crate) fn plan(&self) -> &'a RequestPlan<'a> {
        self.plan
    }

    pub(crate) fn decision(&self) -> &'a Decision {
        self.decision
    }

    /// The outcome of each limit of the plan; none if no limit was asked.
    pub(crate) fn outcomes(&self) -> &'a [Outcome] {
        self.outcomes
    }

    /// The cost that the request stated, instead of the one in the rules.
    pub fn stated_cost(&self) -> Option<u64> {
        self.plan.stated_cost
    }

    /// Returns true if the caller cannot delay a request.
    pub fn cannot_wait(&self) -> bool {
        self.plan.cannot_wait
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
        let stripe = StripeNumber::of_thread();
        for one in self.rule_verdicts() {
            self.rules().tally_of(one.number).add(one.verdict, stripe);
        }
    }
}

impl RuleVerdict<'_> {
    /// The verdict of a rule whose limits admit the request, by a bound on work in progress that may not.
    fn bounded_by(self, binding: Option<Binding>, retry_after: Wait) -> Self {
        match binding.and_then(|binding| binding.bound_of(self.number, self.rule)) {
            Some(Concurrency { text, .. }) => RuleVerdict {
                verdict: Verdict::Refused,
                limit: text,
                retry_after,
                outcome: None,
                ..self
            },
            None => self,
        }
    }
}

/// Makes the verdicts say what happened to the request: a rule with room for a request that was refused did not allow
/// it, and an unknown limit in shadow did not refuse one that was allowed.
fn settle_verdicts(verdicts: &mut RuleVerdicts<'_>, is_allowed: bool) {
    let (not_so, instead) = match is_allowed {
        true => (Verdict::Unavailable, Verdict::Allowed),
        false => (Verdict::Allowed, Verdict::RefusedByOther),
    };
    for one in verdicts.iter_mut().filter(|one| one.verdict == not_so) {
        one.verdict = instead;
    }
}

/// Adds the verdicts of the rules that applied, in order.
fn add_verdicts_of_rules<'a>(
    verdicts: &mut RuleVerdicts<'a>,
    plan: &'a RequestPlan<'a>,
    (decision, binding): (&Decision, Option<Binding>),
    mut outcomes: &'a [Outcome],
) {
    // A refusal that asked no limit, such as one for too many limits, has no outcomes.
    let mut rest = &plan.limits[..outcomes.len().min(plan.limits.len())];
    while let Some(first) = rest.first() {
        let id = |planned: &PlannedLimit<'_>| (planned.limit_ref.rule, planned.descriptor);
        let limits = rest.iter().take_while(|planned| id(planned) == id(first)).count();
        let verdict = rule_verdict(plan, &rest[..limits], &outcomes[..limits]);
        verdicts.push(verdict.bounded_by(binding, decision.retry_after()));
        (rest, outcomes) = (&rest[limits..], &outcomes[limits..]);
    }
}

/// Adds the verdicts of rules without limits, as far as there is room.
#[cold]
fn add_unlimited_rules<'a>(
    verdicts: &mut RuleVerdicts<'a>,
    plan: &'a RequestPlan<'a>,
    (decision, binding): (&Decision, Option<Binding>),
) {
    for one in plan.unlimited.iter().take(verdicts.remaining_capacity()) {
        let verdict = RuleVerdict {
            rule: one.rule,
            key: plan.caller_of_unlimited(one),
            verdict: Verdict::Allowed,
            limit: "",
            retry_after: Wait::ZERO,
            outcome: None,
            cost: 0,
            rule_hash: plan.rules().name_hash_of(one.number),
            number: one.number,
        };
        verdicts.push(verdict.bounded_by(binding, decision.retry_after()));
    }
}

/// Adds the verdicts of limits of zero, as far as there is room.
#[cold]
fn add_zero_limits<'a>(
    verdicts: &mut RuleVerdicts<'a>,
    plan: &'a RequestPlan<'a>,
    is_allowed: bool,
) {
    // If nothing was refused, this is a forced charge, which limits of zero do not refuse.
    let refuses = |one: &&ZeroLimit| !is_allowed || one.enforcement != Enforcement::Enforced;
    let room = verdicts.remaining_capacity();
    let refusing = plan.zero_limits.iter().filter(refuses).take(room);
    verdicts.extend(refusing.map(|one| zero_limit_verdict(plan, one)));
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
        outcome: None,
        cost: closed.cost,
        rule_hash: plan.rules().name_hash_of(closed.rule),
        number: closed.rule,
    }
}

/// The verdict of all limits of one rule.
#[inline]
fn rule_verdict<'a>(
    plan: &'a RequestPlan<'a>,
    limits: &'a [PlannedLimit<'a>],
    outcomes: &'a [Outcome],
) -> RuleVerdict<'a> {
    let reason = |outcome: &Outcome| {
        let wait = (!outcome.allowed).then_some(outcome.retry_after);
        (wait, std::cmp::Reverse(outcome.remaining))
    };
    // The first of equals, as everywhere.
    let (mut planned, mut outcome) = (&limits[0], &outcomes[0]);
    for (next, of_next) in limits.iter().zip(outcomes).skip(1) {
        if reason(of_next) > reason(outcome) {
            (planned, outcome) = (next, of_next);
        }
    }
    let verdict = match planned.enforcement {
        _ if outcome.allowed => Verdict::Allowed,
        Enforcement::Enforced if !outcome.is_known() => Verdict::Unavailable,
        // A rule that is not enforced refuses nobody because of its store.
        _ if !outcome.is_known() => Verdict::Allowed,
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
        outcome: Some(outcome),
        cost: planned.cost,
        rule_hash: plan.rules().name_hash_of(planned.limit_ref.rule),
        number: planned.limit_ref.rule,
    }
}
