//! `Answer`: a decision in the words of the rules, ready for any protocol.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::headers::{Dialect, Policy, PolicyName, RateLimitReply};
use tollgate::{DecidedBy, Decision, Micros, Outcome, Refusal, Wait};

use crate::limit_spec::RuleLimit;
use crate::missing_facts::{MissingFacts, SkippedRule};
use crate::own_refusal::OwnRefusal;
use crate::plan::{Enforcement, LimitRef, RequestPlan};
use crate::rule::{Concurrency, Rule};
use crate::rule_set::RuleSet;
use crate::spares::{Spares, keep_spare, take_spare};

/// The answer to one request under all rules that apply to it.
#[derive(Debug)]
pub struct Answer {
    /// The version of the rules that decided, also for headers and logs written later.
    rules: arc_swap::Guard<Arc<RuleSet>>,
    entries: AnswerEntries,
    /// Limits stated in the request.
    stated: Box<[RuleLimit]>,
    skipped: Option<SkippedRule>,
    decision: Decision,
    binding: Option<Binding>,
}

/// The decision about a plan: the whole, the limit that is named as its reason, and each limit.
pub(crate) struct PlanDecision {
    /// The decision of the binding limit, with the waits and the delay of the whole.
    pub(crate) decision: Decision,
    /// `None`: no enforced limit decided.
    pub(crate) binding: Option<Binding>,
    pub(crate) entries: AnswerEntries,
}

/// The limit that is named as the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// The planned limit of this index.
    Limit(usize),
    /// The `concurrency` of the rule of this number.
    Concurrency(u32),
    /// The `connections` of WebSockets of the rule of this number.
    Connections(u32),
}

impl Binding {
    /// The bound on work in progress that a rule of this number has, if this names it.
    pub(crate) fn bound_of(self, number: u32, rule: &Rule) -> Option<&Concurrency> {
        match self {
            Binding::Concurrency(it) if it == number => rule.concurrency.as_ref(),
            Binding::Connections(it) if it == number => {
                rule.websocket.as_ref()?.connections.as_ref()
            }
            _ => None,
        }
    }
}

impl PlanDecision {
    /// The decision of a store about a plan, and the outcomes it gave.
    #[inline]
    pub(crate) fn new(
        plan: &RequestPlan<'_>,
        decision: Decision,
        entries: AnswerEntries,
    ) -> PlanDecision {
        let enforced = plan.limits.iter().any(|one| one.enforcement == Enforcement::Enforced);
        let binding = enforced.then_some(Binding::Limit(decision.binding()));
        PlanDecision { decision, binding, entries }
    }

    /// The refusal of a request that more limits apply to than one decision holds. To leave some
    /// out would switch them off, for anybody who knows how to match enough rules.
    #[cold]
    pub(crate) fn too_many_limits(now: Micros) -> PlanDecision {
        PlanDecision::refused(Refusal::TooManyLimits, now)
    }

    /// A refusal before any limit was asked.
    #[cold]
    pub(crate) fn refused(refusal: Refusal, now: Micros) -> PlanDecision {
        let decision = Decision::refused(refusal, Wait::NEVER, now);
        PlanDecision { decision, binding: None, entries: AnswerEntries::default() }
    }
}

/// The verdict of one limit of one rule.
#[derive(Clone, Copy, Debug)]
pub struct JudgedLimit<'a> {
    /// The rule's name.
    pub rule: &'a str,
    /// The limit as people read it: `10/second`.
    pub limit: &'a str,
    /// The name in headers: `api-1s`.
    pub policy: &'a PolicyName,
    /// The outcome.
    pub outcome: Outcome,
    /// The effect of a refusal by this limit.
    pub enforcement: Enforcement,
}

/// Room for the policies of a reply.
pub type Policies<'a> = ArrayVec<Policy<'a>, MAX_LIMITS>;

impl Answer {
    /// The answer to a plan; `skipped` is the rule that was skipped for a missing fact.
    #[inline]
    pub(crate) fn new(
        rules: arc_swap::Guard<Arc<RuleSet>>,
        PlanDecision { decision, binding, entries }: PlanDecision,
        skipped: Option<SkippedRule>,
    ) -> Answer {
        Answer { rules, entries, stated: Box::default(), skipped, decision, binding }
    }

    /// The version of the rules, for the next answer.
    pub(crate) fn into_rules(self) -> arc_swap::Guard<Arc<RuleSet>> {
        self.rules
    }

    /// Adds the limits stated in the request.
    pub(crate) fn with_stated_limits(self, stated: Vec<RuleLimit>) -> Answer {
        Answer { stated: stated.into(), ..self }
    }

    /// Returns true if the request may go on, after [`Answer::delay`].
    pub fn allowed(&self) -> bool {
        self.decision.allowed()
    }

    /// The reason of a refusal; `None` if the request may go on.
    pub fn refusal(&self) -> Option<Refusal> {
        self.decision.refusal()
    }

    /// The missing facts, if they left no rule that could have refused.
    pub fn missing_facts(&self) -> Option<MissingFacts<'_>> {
        self.skipped.map(|skipped| skipped.facts(&self.rules))
    }

    /// The missing facts, if the request [needs](crate::Ask::needs_facts) them: then there is no
    /// answer.
    pub fn unanswered(&self) -> Option<MissingFacts<'_>> {
        self.missing_facts().filter(|_| !self.allowed())
    }

    /// Returns false if the request was refused because the store is unavailable: then it is not
    /// known what is left.
    pub fn is_known(&self) -> bool {
        self.decision.refusal() != Some(Refusal::StoreUnavailable)
    }

    /// The instant of the request.
    pub fn at(&self) -> Micros {
        self.decision.at()
    }

    /// The part of the system that decided, such as the store or a fallback.
    pub fn decided_by(&self) -> DecidedBy {
        self.decision.decided_by()
    }

    /// Whole units of the binding limit still takeable; 0 if no limit applies.
    pub fn remaining(&self) -> u64 {
        self.decision.remaining()
    }

    /// The binding limit's capacity after the caller's tier; 0 if no limit applies.
    pub fn capacity(&self) -> u64 {
        self.decision.capacity()
    }

    /// Zero when allowed; otherwise the wait after which the same request passes.
    pub fn retry_after(&self) -> Wait {
        self.decision.retry_after()
    }

    /// Time until the binding limit is as good as fresh.
    pub fn reset_after(&self) -> Wait {
        self.decision.reset_after()
    }

    /// Time to hold an admitted request.
    pub fn delay(&self) -> Wait {
        self.decision.delay()
    }

    /// The limit that decided: of those violated the one with the longest wait, else the one with
    /// the least remaining. `None`: no enforced rule applies.
    pub fn binding(&self) -> Option<JudgedLimit<'_>> {
        match self.binding? {
            Binding::Limit(index) => self.limits().nth(index),
            binding @ (Binding::Concurrency(number) | Binding::Connections(number)) => {
                let rule = self.rules.rule_at(number);
                let Concurrency { text, policy, .. } = binding.bound_of(number, rule)?;
                let (outcome, standing) = (self.decision.outcome(), Enforcement::Enforced);
                Some(JudgedLimit {
                    rule: &rule.name,
                    limit: text,
                    policy,
                    outcome,
                    enforcement: standing,
                })
            }
        }
    }

    /// The response that the binding limit's rule gives to refused clients; `None` if there is none, if the
    /// request may go on, or if the store is unavailable.
    pub fn own_refusal(&self) -> Option<&OwnRefusal> {
        self.refusal().filter(|refusal| *refusal != Refusal::StoreUnavailable)?;
        let rule = match self.binding? {
            Binding::Limit(index) => self.entries.0.limits.get(index)?.limit_ref.rule,
            Binding::Concurrency(rule) | Binding::Connections(rule) => rule,
        };
        self.rules.rule_at(rule).refusal.as_deref()
    }

    /// Every limit that was judged, in the order of the rules.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = JudgedLimit<'_>> {
        let each = self.entries.0.limits.iter().zip(&self.entries.0.outcomes);
        each.map(|(entry, outcome)| self.judged_limit(entry, outcome))
    }

    /// The policy names of soft limits that are exceeded, each once.
    pub fn warnings(&self) -> impl Iterator<Item = &PolicyName> {
        let exceeded = |one: &JudgedLimit<'_>| {
            one.enforcement == Enforcement::Soft && !one.outcome.allowed && one.outcome.is_known()
        };
        let is_new = move |(index, one): &(usize, JudgedLimit<'_>)| {
            !self
                .limits()
                .take(*index)
                .any(|before| exceeded(&before) && before.policy == one.policy)
        };
        let exceeded_limits = self.limits().enumerate().filter(move |(_, one)| exceeded(one));
        exceeded_limits.filter(is_new).map(|(_, one)| one.policy)
    }

    /// Header dialects that the rules ask for.
    pub fn dialects(&self) -> &[Dialect] {
        &self.rules.settings().dialects
    }

    /// The rules that were asked.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// The enforced limits, as a reply lists them.
    pub fn policies(&self) -> Policies<'_> {
        let mut policies = Policies::new();
        for (entry, outcome) in self.entries.0.limits.iter().zip(&self.entries.0.outcomes) {
            if entry.enforcement == Enforcement::Enforced {
                let limit = self.limit_of(entry);
                let outcome = *outcome;
                policies.push(Policy { name: &limit.policy, limit: &limit.limit, outcome });
            }
        }
        policies
    }

    /// The reply to an HTTP client; `policies` are those of [`Answer::policies`].
    pub fn reply<'a>(&self, policies: &'a [Policy<'a>]) -> RateLimitReply<'a> {
        RateLimitReply {
            policies,
            refusal: self.refusal(),
            at: self.at(),
            capacity: self.capacity(),
            remaining: self.remaining(),
            retry_after: self.retry_after(),
            reset_after: self.reset_after(),
        }
    }

    fn judged_limit(&self, entry: &AnswerLimit, outcome: &Outcome) -> JudgedLimit<'_> {
        let limit = self.limit_of(entry);
        JudgedLimit {
            rule: &self.rules.rule_at(entry.limit_ref.rule).name,
            limit: &limit.text,
            policy: &limit.policy,
            outcome: *outcome,
            enforcement: entry.enforcement,
        }
    }

    fn limit_of(&self, entry: &AnswerLimit) -> &RuleLimit {
        entry.limit_ref.limit(&self.rules, &self.stated)
    }
}

/// The limits of an answer, with their outcomes. The thread keeps the memory when they are dropped.
#[derive(Debug, Default)]
pub(crate) struct AnswerEntries(EntryLists);

/// The limits and the outcome of each, in two lists: a store writes outcomes in a row.
#[derive(Debug, Default)]
struct EntryLists {
    /// Bound: [`MAX_LIMITS`].
    limits: Vec<AnswerLimit>,
    /// The outcome of each limit.
    outcomes: Vec<Outcome>,
}

#[derive(Clone, Copy, Debug)]
struct AnswerLimit {
    limit_ref: LimitRef,
    enforcement: Enforcement,
}

thread_local!(static SPARE: Spares<EntryLists> = const { Spares::new(Vec::new()) });

impl Drop for AnswerEntries {
    #[inline]
    fn drop(&mut self) {
        let lists = std::mem::take(&mut self.0);
        // Refusals that asked no limit have none.
        if lists.limits.capacity() > 0 {
            keep_spare(&SPARE, lists);
        }
    }
}

impl AnswerEntries {
    /// The limits of a plan, with outcomes that a store has yet to write.
    #[inline]
    pub(crate) fn new(plan: &RequestPlan<'_>) -> AnswerEntries {
        let mut lists = take_spare(&SPARE);
        let EntryLists { limits, outcomes } = &mut lists;
        limits.clear();
        outcomes.clear();
        if limits.capacity() == 0 {
            // All that a decision can have, so that memory that is used again never grows.
            limits.reserve_exact(MAX_LIMITS);
            outcomes.reserve_exact(MAX_LIMITS);
        }
        limits.extend(plan.limits.iter().map(|planned| AnswerLimit {
            limit_ref: planned.limit_ref,
            enforcement: planned.enforcement,
        }));
        outcomes.resize(limits.len(), Outcome::default());
        AnswerEntries(lists)
    }

    /// The limits of a plan with these outcomes.
    pub(crate) fn with_outcomes(plan: &RequestPlan<'_>, outcomes: &[Outcome]) -> AnswerEntries {
        let mut entries = AnswerEntries::new(plan);
        entries.0.outcomes.copy_from_slice(outcomes);
        entries
    }

    /// Turns the outcome of one limit into a refusal, if it is in debt.
    pub(crate) fn refuse_in_debt(&mut self, index: usize) {
        let Some(outcome) = self.0.outcomes.get_mut(index) else { return };
        if !outcome.debt_for.is_zero() {
            outcome.allowed = false;
            outcome.retry_after = outcome.retry_after.max(outcome.debt_for);
        }
    }

    /// Adds refunded units to what one limit has left.
    pub(crate) fn give_back(&mut self, index: usize, units: u64, capacity: u64) {
        let Some(outcome) = self.0.outcomes.get_mut(index) else { return };
        outcome.charged = 0;
        outcome.remaining = outcome.remaining.saturating_add(units).min(capacity);
    }

    /// Makes one limit enforced.
    pub(crate) fn enforce(&mut self, index: usize) {
        if let Some(limit) = self.0.limits.get_mut(index) {
            limit.enforcement = Enforcement::Enforced;
        }
    }

    /// The outcome of each limit.
    #[inline]
    pub(crate) fn outcomes(&self) -> &[Outcome] {
        &self.0.outcomes
    }

    /// The outcomes, to be written.
    #[inline]
    pub(crate) fn outcomes_mut(&mut self) -> &mut [Outcome] {
        &mut self.0.outcomes
    }
}
