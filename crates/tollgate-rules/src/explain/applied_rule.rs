//! One rule that applies to a request: its key, tier, cost and limits.

use tollgate::algorithm::State;
use tollgate::{KeyBuf, Micros, Outcome};

use crate::key_template::{FilledKeyPart, KeyFacts};
use crate::normalized_facts::NormalizedFacts;
use crate::path::SpellingSet;
use crate::plan::{Enforcement, PlannedLimit, RequestPlan};
use crate::rule::{Cost, Rule};
use crate::rule_set::RuleSet;

use super::ban_text::{ban_text, blocked_text};
use super::condition_text::explain_conditions;
use super::explained_facts::tier_source;
use super::limit_text::LimitJudgement;
use super::shorten::shorten;
use super::{
    ExplainedCondition, ExplainedCost, ExplainedKey, ExplainedKeyPart, ExplainedLimit,
    ExplainedRule, ExplainedTier, RuleResult,
};
use crate::credentials::HiddenCredentials;

/// Everything that the explanation of one rule is made of.
pub(super) struct RuleContext<'p, 'a> {
    pub(super) plan: &'p RequestPlan<'a>,
    /// The facts; `None` for descriptors, which have facts of their own each.
    pub(super) seen: Option<NormalizedFacts<'p>>,
    /// The outcome of each limit of the plan; none if no limit was asked.
    pub(super) outcomes: &'p [Outcome],
    /// The state of each limit before the request.
    pub(super) present: &'p [Outcome],
    /// The same with their parts; none if the store does not show them.
    pub(super) states: &'p [State],
    pub(super) secrets: HiddenCredentials<'p>,
    /// The instant of the decision.
    pub(super) at: Micros,
}

impl RuleContext<'_, '_> {
    /// The rule of this number as far as it is in the plan: an entry for each key that it counts.
    pub(super) fn applied(&self, rule: &Rule, number: u32) -> Vec<ExplainedRule> {
        let limits = self.plan.limits.iter().enumerate();
        let own: Vec<(usize, &PlannedLimit<'_>)> =
            limits.filter(|(_, planned)| planned.limit_ref.rule == number).collect();
        let same_key = own.chunk_by(|(_, one), (_, next)| one.caller == next.caller);
        let limited = same_key.map(|own| (self.plan.caller(own[0].1), own));
        let mut applied: Vec<ExplainedRule> = limited
            .map(|(caller, own)| {
                let spelling = self.spelling_of(rule, caller);
                let entry = self.with_limits(rule, own);
                self.completed(entry, (number, rule), (caller, spelling))
            })
            .collect();
        let unlimited = self.plan.unlimited.iter().filter(|other| other.number == number);
        applied.extend(unlimited.map(|other| {
            let caller = self.plan.caller_of_unlimited(other);
            let spelling = self.spelling_of(rule, caller);
            let why = "It has no limits for this caller.".into();
            let entry = plain_rule(rule, RuleResult::Allowed, why);
            self.completed(entry, (number, rule), (caller, spelling))
        }));
        applied
    }

    /// Adds what a rule has whatever its limits say: conditions, key, tier and override.
    fn completed(
        &self,
        entry: ExplainedRule,
        (number, rule): (u32, &Rule),
        (caller, spelling): (&KeyBuf, usize),
    ) -> ExplainedRule {
        let mut entry = ExplainedRule {
            conditions: self.conditions(rule, spelling),
            key: Some(self.key(rule, Some(caller), spelling)),
            ..entry
        };
        self.add_tier_and_override(&mut entry, number, rule, caller);
        entry
    }

    /// A rule with its limits for one key.
    fn with_limits(&self, rule: &Rule, planned: &[(usize, &PlannedLimit<'_>)]) -> ExplainedRule {
        let first = planned[0].1;
        let limits: Vec<ExplainedLimit> =
            planned.iter().filter_map(|(index, planned)| self.limit(*index, planned)).collect();
        let (result, why) = self.result(rule, first, &limits);
        ExplainedRule {
            cost: Some(self.cost(rule, first.cost)),
            blocked_for: (result == RuleResult::Blocked)
                .then(|| limits.iter().map(|one| one.retry_after).max().unwrap_or_default()),
            limits,
            ..plain_rule(rule, result, why)
        }
    }

    /// The result of a rule, as observers are told it, and its reason.
    fn result(
        &self,
        rule: &Rule,
        planned: &PlannedLimit<'_>,
        limits: &[ExplainedLimit],
    ) -> (RuleResult, String) {
        use tollgate::DecidedBy::{Block, Closed};
        if limits.is_empty() {
            return match self.plan.too_many_limits {
                true => (RuleResult::Closed, TOO_MANY_LIMITS.into()),
                false => (RuleResult::NotNeeded, "No limit was asked.".into()),
            };
        }
        let refusing = limits.iter().filter(|one| !one.allowed).max_by_key(|one| one.retry_after);
        let Some(one) = refusing else {
            return (RuleResult::Allowed, "All of its limits have room.".into());
        };
        match one.decided_by {
            Block => (RuleResult::Blocked, blocked_text(rule)),
            Closed => (RuleResult::StoreUnavailable, "Its store is unavailable.".into()),
            _ => refusing_result(planned.enforcement, &one.limit),
        }
    }

    /// One limit; `None` if it was not asked.
    fn limit(&self, index: usize, planned: &PlannedLimit<'_>) -> Option<ExplainedLimit> {
        let limit = self.plan.limit(planned);
        let asked = self.outcomes.get(index)?;
        let present = self.present.get(index).unwrap_or(asked);
        let state = self.states.get(index);
        let judged =
            LimitJudgement { limit, present, state, asked, needs: planned.cost, now: self.at };
        let known = asked.is_known();
        Some(ExplainedLimit {
            limit: self.plan.limit_text(planned).into(),
            algorithm: limit.algorithm().name(),
            enforced: planned.enforcement == Enforcement::Enforced,
            allowed: asked.allowed,
            max: limit.capacity(),
            remaining: known.then_some(asked.remaining),
            needs: planned.cost,
            level: judged.level(),
            retry_after: asked.retry_after,
            reset_after: known.then_some(asked.reset_after),
            delay: asked.delay,
            decided_by: asked.decided_by,
            arithmetic: judged.arithmetic(),
        })
    }

    pub(super) fn conditions(&self, rule: &Rule, spelling: usize) -> Vec<ExplainedCondition> {
        let (Some(condition), Some(seen)) = (&rule.condition, &self.seen) else {
            return Vec::new();
        };
        explain_conditions(condition, seen, seen.spelling(spelling), &self.secrets)
    }

    pub(super) fn rules(&self) -> &RuleSet {
        self.plan.rules()
    }

    pub(super) fn key_facts(&self, spelling: usize) -> Option<KeyFacts<'_>> {
        let ipv6_prefix = self.rules().settings().identify.ipv6_prefix;
        Some(KeyFacts { facts: self.seen.as_ref()?, spelling, ipv6_prefix })
    }

    /// The spelling of the path that a rule applies to and that a key was made of.
    fn spelling_of(&self, rule: &Rule, key: &KeyBuf) -> usize {
        let Some(seen) = &self.seen else { return 0 };
        let applies = |number: &usize| {
            let mut made = KeyBuf::new();
            let of = self.key_facts(*number);
            let is_its_key = of.is_some_and(|of| rule.key.write(&mut made, &of)) && made == *key;
            let condition = rule.condition.as_ref();
            is_its_key && condition.is_none_or(|one| one.holds(seen, seen.spelling(*number)))
        };
        (0..seen.spelling_count()).find(applies).unwrap_or(0)
    }

    pub(super) fn key(
        &self,
        rule: &Rule,
        caller: Option<&KeyBuf>,
        spelling: usize,
    ) -> ExplainedKey {
        let of = self.key_facts(spelling);
        let parts = of.map(|of| rule.key.filled_parts(&of)).unwrap_or_default();
        ExplainedKey {
            template: rule.key.to_string(),
            caller: caller.cloned(),
            text: caller.map(|key| self.secrets.key_text(key)),
            parts: parts.into_iter().map(|part| self.key_part(part)).collect(),
        }
    }

    fn key_part(&self, part: FilledKeyPart) -> ExplainedKeyPart {
        let Some((name, value)) = part.found else {
            let name = part.facts.join(" or ");
            let why = format!("the request has no {name}");
            return ExplainedKeyPart { name, value: None, why };
        };
        let why = match part.facts.iter().position(|fact| *fact == name) {
            _ if part.facts.len() == 1 => "the only fact of this part".into(),
            Some(0) => "the first choice, and the request has it".into(),
            _ => format!("the first of {} that the request has", part.facts.join(", ")),
        };
        let value = shorten(&self.secrets.part_text(&name, &value)).into_owned();
        ExplainedKeyPart { name, value: Some(value), why }
    }

    fn add_tier_and_override(
        &self,
        entry: &mut ExplainedRule,
        number: u32,
        rule: &Rule,
        caller: &KeyBuf,
    ) {
        let rules = self.rules();
        let replaced = rules.override_of(number, caller, self.at);
        entry.own_limits =
            replaced.map(|one| (rules.overrides()[one as usize].clone(), rules.is_run_time(one)));
        let Some(seen) = &self.seen else { return };
        let Some(tier) = seen.tier else { return };
        if !rule.limits.depend_on_tier() && !rule.key.has_tier() {
            return;
        }
        let source = tier_source(rules, seen, tier);
        let numbers = match rule.limits.of(rules.tier_index(Some(tier))).1 {
            _ if replaced.is_some() => "the caller's own limits replace those of the tier",
            true => "the rule has limits of its own for it, counted apart",
            false => "the rule has no limits of its own for it",
        };
        entry.tier = Some(ExplainedTier { name: tier.into(), why: format!("{source}; {numbers}") });
    }

    fn cost(&self, rule: &Rule, units: u64) -> ExplainedCost {
        let by_rule = self.seen.as_ref().map(|seen| {
            let spellings =
                SpellingSet::MAX >> (SpellingSet::BITS as usize - seen.spelling_count());
            rule.cost_of(seen, spellings)
        });
        let why = match &rule.cost {
            _ if by_rule != Some(units) => "stated by the request",
            Cost::Fixed(_) => "the same for every request",
            Cost::Bytes => "one for now; the bytes of the bodies are charged as they pass",
            Cost::PerEndpoint { .. } => "the rule's cost of this endpoint",
            Cost::Reserve { reserve, .. } if reserve.is_fixed() => {
                "reserved before the work, and corrected after it"
            }
            Cost::Reserve { .. } => "estimated by the request, and corrected after the work",
        };
        ExplainedCost { units, why: why.into() }
    }
}

/// The result of a rule of which this limit refuses, and its reason.
pub(super) fn refusing_result(enforcement: Enforcement, limit: &str) -> (RuleResult, String) {
    let (result, what) = match enforcement {
        Enforcement::Enforced => (RuleResult::Refused, "has no room"),
        Enforcement::Soft => (RuleResult::Soft, "is exceeded, and the rule only warns"),
        Enforcement::Shadow => {
            (RuleResult::Shadow, "would refuse, but the rule is not enforced for this caller")
        }
    };
    (result, format!("{limit} {what}."))
}

/// The reason of rules of a request that is refused without asking any limit.
pub(super) const TOO_MANY_LIMITS: &str =
    "More limits apply than one decision holds, so the request is refused.";

/// A rule without details.
pub(super) fn plain_rule(rule: &Rule, result: RuleResult, why: String) -> ExplainedRule {
    ExplainedRule {
        name: rule.name.clone(),
        result,
        why,
        conditions: Vec::new(),
        key: None,
        tier: None,
        own_limits: None,
        blocked_for: None,
        cost: None,
        limits: Vec::new(),
        ban: ban_text(rule),
    }
}
