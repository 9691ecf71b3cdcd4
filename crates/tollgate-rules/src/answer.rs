//! `Answer`: a decision in the words of the rules, ready for any protocol.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::headers::{Dialect, Policy, PolicyName, RateLimitReply};
use tollgate::{DecidedBy, Decision, Micros, Outcome, Refusal, Wait};

use crate::limit_spec::RuleLimit;
use crate::missing_facts::{MissingFacts, SkippedRule};
use crate::plan::{Enforcement, LimitRef, PlannedLimit, RequestPlan};
use crate::rule::Concurrency;
use crate::rule_set::RuleSet;

/// The answer to one request under all rules that apply to it.
#[derive(Debug)]
pub struct Answer {
    /// One request sees one version of the rules, also in what is said about it afterwards.
    rules: arc_swap::Guard<Arc<RuleSet>>,
    /// Bound: [`MAX_LIMITS`].
    entries: Vec<AnswerEntry>,
    /// Limits that whoever asked has stated.
    stated: Box<[RuleLimit]>,
    skipped: Option<SkippedRule>,
    told: Told,
}

#[derive(Clone, Copy, Debug)]
struct AnswerEntry {
    limit_ref: LimitRef,
    enforcement: Enforcement,
    outcome: Outcome,
}

/// What the answer says as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) refusal: Option<Refusal>,
    pub(crate) decided_by: DecidedBy,
    pub(crate) at: Micros,
    pub(crate) capacity: u64,
    /// Of the binding limit, with the waits and the delay of the whole.
    pub(crate) outcome: Outcome,
    pub(crate) binding: Option<Binding>,
}

/// What is named as the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// The limit of this index.
    Limit(usize),
    /// How much a rule lets go on at once.
    Concurrency(u32),
}

impl Told {
    pub(crate) fn new(decision: &Decision, binding: Option<Binding>) -> Told {
        Told {
            refusal: decision.refusal(),
            decided_by: decision.decided_by(),
            at: decision.at(),
            capacity: decision.capacity(),
            outcome: decision.outcome(),
            binding,
        }
    }
}

/// What one limit of one rule said.
#[derive(Clone, Copy, Debug)]
pub struct JudgedLimit<'a> {
    /// The rule's name.
    pub rule: &'a str,
    /// The limit as people read it: `10/second`.
    pub limit: &'a str,
    /// What headers call it: `api-1s`.
    pub policy: &'a PolicyName,
    /// What it said.
    pub outcome: Outcome,
    /// Whether it refuses.
    pub enforcement: Enforcement,
}

/// Room for the policies of a reply.
pub type Policies<'a> = ArrayVec<Policy<'a>, MAX_LIMITS>;

impl Answer {
    pub(crate) fn new(
        rules: arc_swap::Guard<Arc<RuleSet>>,
        (told, entries): (Told, AnswerEntries),
    ) -> Answer {
        Answer { rules, entries: entries.0, stated: Box::default(), skipped: None, told }
    }

    /// With a rule that was skipped for want of a fact.
    pub(crate) fn with_skipped_rule(self, skipped: Option<SkippedRule>) -> Answer {
        Answer { skipped, ..self }
    }

    /// With the limits that whoever asked has stated.
    pub(crate) fn with_stated_limits(self, stated: Vec<RuleLimit>) -> Answer {
        Answer { stated: stated.into(), ..self }
    }

    /// What each planned limit said.
    pub(crate) fn entries(plan: &RequestPlan<'_>, outcomes: &[Outcome]) -> AnswerEntries {
        let entry = |(planned, outcome): (&PlannedLimit, &Outcome)| AnswerEntry {
            limit_ref: planned.limit_ref,
            enforcement: planned.enforcement,
            outcome: *outcome,
        };
        AnswerEntries(plan.limits.iter().zip(outcomes).map(entry).collect())
    }

    /// Whether the request may go on, after [`Answer::delay`].
    pub fn allowed(&self) -> bool {
        self.told.refusal.is_none()
    }

    /// Why it may not.
    pub fn refusal(&self) -> Option<Refusal> {
        self.told.refusal
    }

    /// The facts that were missing, where for want of them no rule was asked that could have refused.
    pub fn missing_facts(&self) -> Option<MissingFacts<'_>> {
        self.skipped.map(|skipped| skipped.facts(&self.rules))
    }

    /// The same, where the asker [needs](crate::Ask::needs_facts) them: there is no answer.
    pub fn unanswered(&self) -> Option<MissingFacts<'_>> {
        self.missing_facts().filter(|_| !self.allowed())
    }

    /// Whether anybody knows what is left: not where the store does not answer.
    pub fn is_known(&self) -> bool {
        self.told.refusal != Some(Refusal::StoreUnavailable)
    }

    /// The instant of the question.
    pub fn at(&self) -> Micros {
        self.told.at
    }

    /// Who decided.
    pub fn decided_by(&self) -> DecidedBy {
        self.told.decided_by
    }

    /// Whole units of the binding limit still takeable; 0 if no limit applies.
    pub fn remaining(&self) -> u64 {
        self.told.outcome.remaining
    }

    /// The binding limit's capacity after the caller's tier; 0 if no limit applies.
    pub fn capacity(&self) -> u64 {
        self.told.capacity
    }

    /// Zero when allowed; otherwise the wait after which the same request passes.
    pub fn retry_after(&self) -> Wait {
        self.told.outcome.retry_after
    }

    /// Until the binding limit is as good as fresh.
    pub fn reset_after(&self) -> Wait {
        self.told.outcome.reset_after
    }

    /// How long to hold an admitted request.
    pub fn delay(&self) -> Wait {
        self.told.outcome.delay
    }

    /// The limit that decided: of those violated the one with the longest wait, else the one with
    /// the least remaining. `None`: no enforced rule applies.
    pub fn binding(&self) -> Option<JudgedLimit<'_>> {
        match self.told.binding? {
            Binding::Limit(index) => self.entries.get(index).map(|entry| self.judged_limit(entry)),
            Binding::Concurrency(number) => {
                let rule = self.rules.rule_at(number);
                let Concurrency { text, policy, .. } = rule.concurrency.as_ref()?;
                let (outcome, standing) = (self.told.outcome, Enforcement::Enforced);
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

    /// Every limit that was judged, in the order of the rules.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = JudgedLimit<'_>> {
        self.entries.iter().map(|entry| self.judged_limit(entry))
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

    /// How the rules want clients to be told.
    pub fn dialects(&self) -> &[Dialect] {
        &self.rules.settings().dialects
    }

    /// The rules that were asked.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// The enforced limits, as a reply lists them.
    pub fn policies(&self) -> Policies<'_> {
        let enforced =
            self.entries.iter().filter(|entry| entry.enforcement == Enforcement::Enforced);
        enforced
            .map(|entry| {
                let limit = self.limit_of(entry);
                Policy { name: &limit.policy, limit: &limit.limit, outcome: entry.outcome }
            })
            .collect()
    }

    /// What to tell an HTTP client; `policies` are those of [`Answer::policies`].
    pub fn reply<'a>(&self, policies: &'a [Policy<'a>]) -> RateLimitReply<'a> {
        let told = &self.told;
        RateLimitReply {
            policies,
            refusal: told.refusal,
            at: told.at,
            capacity: told.capacity,
            remaining: told.outcome.remaining,
            retry_after: told.outcome.retry_after,
            reset_after: told.outcome.reset_after,
        }
    }

    fn judged_limit(&self, entry: &AnswerEntry) -> JudgedLimit<'_> {
        let limit = self.limit_of(entry);
        JudgedLimit {
            rule: &self.rules.rule_at(entry.limit_ref.rule).name,
            limit: &limit.text,
            policy: &limit.policy,
            outcome: entry.outcome,
            enforcement: entry.enforcement,
        }
    }

    fn limit_of(&self, entry: &AnswerEntry) -> &RuleLimit {
        entry.limit_ref.limit(&self.rules, &self.stated)
    }
}

/// What each limit said, on its way into an answer.
#[derive(Default)]
pub(crate) struct AnswerEntries(Vec<AnswerEntry>);

impl AnswerEntries {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Makes a refusal of what one limit said, if it is in debt.
    pub(crate) fn refuse_in_debt(&mut self, index: usize) {
        let Some(AnswerEntry { outcome, .. }) = self.0.get_mut(index) else { return };
        if !outcome.debt_for.is_zero() {
            outcome.allowed = false;
            outcome.retry_after = outcome.retry_after.max(outcome.debt_for);
        }
    }

    /// So much of what was charged to the state of one limit is there again.
    pub(crate) fn give_back(&mut self, index: usize, units: u64, capacity: u64) {
        let Some(AnswerEntry { outcome, .. }) = self.0.get_mut(index) else { return };
        outcome.charged = 0;
        outcome.remaining = outcome.remaining.saturating_add(units).min(capacity);
    }

    /// One limit refuses after all.
    pub(crate) fn enforce(&mut self, index: usize) {
        if let Some(entry) = self.0.get_mut(index) {
            entry.enforcement = Enforcement::Enforced;
        }
    }

    pub(crate) fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.0.iter().map(|entry| &entry.outcome)
    }
}
