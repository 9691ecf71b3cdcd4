//! Which rules apply to a request, and why the others do not.

use tollgate::{Clock, KeyBuf, Micros};

use crate::gatekeeper::{Ask, Gatekeeper, InfallibleStore};
use crate::key_template::KeyFacts;
use crate::matcher::MatchBudget;
use crate::normalized_facts::NormalizedFacts;
use crate::path::spelling_numbers;
use crate::plan::{Enforcement, PlannedLimit, RequestPlan};
use crate::rule::{Cost, Mode, Rule};
use crate::rule_set::{RuleSet, SelectedRule};

use super::condition_text::explain_conditions;
use super::explained_facts::tier_source;
use super::limit_text::LimitJudgement;
use super::rehearsal::RehearsedDecision;
use super::secrets::{HIDDEN, Secrets};
use super::shorten::shorten;
use super::work_in_progress::add_bounds;
use super::{
    ExplainedCondition, ExplainedCost, ExplainedKey, ExplainedKeyPart, ExplainedLimit,
    ExplainedRule, ExplainedTier, RuleResult,
};

/// The most rules that an explanation lists: files may have thousands that do not apply.
pub const RULES_LISTED_MAX: usize = 500;

/// The rules of an explanation.
pub(super) struct ExplainedRules {
    pub(super) rules: Vec<ExplainedRule>,
    /// Number of rules that do not apply and are not listed.
    pub(super) not_listed: usize,
}

/// Everything that the explanation of one rule is made of.
struct RuleContext<'p, 'a> {
    plan: &'p RequestPlan<'a>,
    ask: &'p Ask<'p>,
    rehearsal: &'p RehearsedDecision,
    seen: NormalizedFacts<'p>,
    secrets: Secrets<'p>,
    now: Micros,
}

/// Explains the rules, in order.
pub(super) fn explain_rules<S: InfallibleStore, C: Clock>(
    gatekeeper: &Gatekeeper<S, C>,
    plan: &RequestPlan<'_>,
    ask: &Ask<'_>,
    rehearsal: &RehearsedDecision,
    now: Micros,
) -> ExplainedRules {
    let rules = plan.rules();
    let seen = rules.normalized_facts(&ask.facts);
    let exempt = rules.exempts(&seen);
    let mut selected = Vec::new();
    rules.select(&seen, &mut selected);
    let secrets = Secrets(&rules.settings().identify);
    let mut context = RuleContext { plan, ask, rehearsal, seen, secrets, now };
    // Deciding has spent its own budget: showing conditions has another.
    context.seen.match_budget = MatchBudget::default();
    let mut room = RULES_LISTED_MAX.saturating_sub(selected.len());
    let mut explained = ExplainedRules { rules: Vec::new(), not_listed: 0 };
    let mut selected = selected.into_iter().peekable();
    for (rule, number) in rules.rules().zip(0..) {
        if let Some(one) = selected.next_if(|one| one.rule == number) {
            if explained.rules.len() >= RULES_LISTED_MAX {
                explained.not_listed += 1;
            } else if exempt {
                explained.rules.push(context.exempt(rule, one));
            } else {
                context.add_selected(gatekeeper, rule, one, &mut explained.rules);
            }
        } else if room > 0 {
            room -= 1;
            explained.rules.push(context.not_selected(rule));
        } else {
            explained.not_listed += 1;
        }
    }
    explained
}

impl RuleContext<'_, '_> {
    fn rules(&self) -> &RuleSet {
        self.plan.rules()
    }

    /// A rule whose condition does not hold, or that is never matched.
    fn not_selected(&self, rule: &Rule) -> ExplainedRule {
        let conditions = self.conditions(rule, 0);
        let failing = conditions.iter().find(|one| !one.holds);
        let (result, why) = match failing {
            _ if rule.mode == Mode::Off => (RuleResult::Off, "The rule is switched off.".into()),
            _ if rule.imported.is_some() => {
                let why =
                    "The rule comes from an imported file: only descriptors of its domain meet it.";
                (RuleResult::NotMatched, why.into())
            }
            Some(one) => {
                let found = one.found.as_ref().map(|found| format!("; found {found}"));
                let found = found.unwrap_or_default();
                (RuleResult::NotMatched, format!("It needs: {}{found}.", one.text))
            }
            None => (RuleResult::NotMatched, "Its condition does not hold.".into()),
        };
        ExplainedRule { conditions, ..plain_rule(rule, result, why) }
    }

    fn exempt(&self, rule: &Rule, one: SelectedRule) -> ExplainedRule {
        let settings = self.rules().settings();
        let user = self.seen.user().filter(|user| settings.exempt_users.contains(*user));
        let why = match user {
            Some(user) => format!("The user {} is exempt from all rules", shorten(user)),
            None => "The address is exempt from all rules".into(),
        };
        let conditions = self.conditions(rule, first_spelling(one));
        ExplainedRule { conditions, ..plain_rule(rule, RuleResult::Exempt, why) }
    }

    /// Adds a rule whose condition holds: an entry for each key that it counts.
    fn add_selected<S: InfallibleStore, C: Clock>(
        &self,
        gatekeeper: &Gatekeeper<S, C>,
        rule: &Rule,
        one: SelectedRule,
        explained: &mut Vec<ExplainedRule>,
    ) {
        let conditions = self.conditions(rule, first_spelling(one));
        let limits = || self.plan.limits.iter().enumerate();
        let own = limits().filter(|(_, planned)| planned.limit_ref.rule == one.rule);
        let own: Vec<(usize, &PlannedLimit<'_>)> = own.collect();
        let before = explained.len();
        for same_key in own.chunk_by(|(_, one), (_, next)| one.caller == next.caller) {
            let mut entry = self.with_limits(rule, same_key);
            entry.conditions.clone_from(&conditions);
            self.add_tier_and_override(&mut entry, one.rule, rule, self.plan.caller(same_key[0].1));
            add_bounds(gatekeeper, &mut entry, rule, self.plan.caller(same_key[0].1));
            explained.push(entry);
        }
        let unlimited = self.plan.unlimited.iter().filter(|other| other.number == one.rule);
        for other in unlimited {
            let key = self.plan.caller_of_unlimited(other);
            let why = "It has no limits for this caller.".into();
            let mut entry = plain_rule(rule, RuleResult::Allowed, why);
            entry.key = Some(self.key(rule, Some(key), first_spelling(one)));
            entry.conditions.clone_from(&conditions);
            self.add_tier_and_override(&mut entry, one.rule, rule, key);
            add_bounds(gatekeeper, &mut entry, rule, key);
            explained.push(entry);
        }
        if explained.len() == before {
            explained.push(ExplainedRule { conditions, ..self.without_limits(rule, one) });
        }
    }

    /// A rule whose condition holds and that has no part in the plan.
    fn without_limits(&self, rule: &Rule, one: SelectedRule) -> ExplainedRule {
        let spelling = first_spelling(one);
        let of = self.key_facts(spelling);
        let mut key = KeyBuf::new();
        let is_made = rule.key.write(&mut key, &of);
        if self.plan.too_many_limits {
            let why =
                "More limits apply than one decision holds, so the request is refused.".into();
            return plain_rule(rule, RuleResult::Closed, why);
        }
        if !is_made {
            let missing =
                rule.key.filled_parts(&of).into_iter().filter(|part| part.found.is_none());
            let names = missing.map(|part| part.facts.join(" or ")).collect::<Vec<_>>();
            let why = format!(
                "It counts by {}, and the request has no {}.",
                rule.key,
                names.join(", and ")
            );
            let key = Some(self.key(rule, None, spelling));
            return ExplainedRule { key, ..plain_rule(rule, RuleResult::MissingFacts, why) };
        }
        let why = match one.is_fallback {
            true => "It is a fallback, and another rule with a condition is enforced.",
            false => "It does not refuse, and the decision has no room for its limits.",
        };
        plain_rule(rule, RuleResult::NotNeeded, why.into())
    }

    /// A rule with its limits for one key.
    fn with_limits(&self, rule: &Rule, planned: &[(usize, &PlannedLimit<'_>)]) -> ExplainedRule {
        let first = planned[0].1;
        let limits: Vec<ExplainedLimit> =
            planned.iter().map(|(index, planned)| self.limit(*index, planned)).collect();
        let (result, why) = self.result(first, &limits);
        let spelling = self.spelling_of(rule, self.plan.caller(first));
        ExplainedRule {
            key: Some(self.key(rule, Some(self.plan.caller(first)), spelling)),
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
        planned: &PlannedLimit<'_>,
        limits: &[ExplainedLimit],
    ) -> (RuleResult, String) {
        use tollgate::DecidedBy::{Block, Closed};
        let refusing = limits.iter().filter(|one| !one.allowed).max_by_key(|one| one.retry_after);
        let Some(one) = refusing else {
            return (RuleResult::Allowed, "All of its limits have room.".into());
        };
        let (result, why) = match (planned.enforcement, one.decided_by) {
            (_, Block) => (RuleResult::Blocked, "The caller is blocked".into()),
            (_, Closed) => (RuleResult::StoreUnavailable, "Its store is unavailable".into()),
            (Enforcement::Enforced, _) => {
                (RuleResult::Refused, format!("{} has no room", one.limit))
            }
            (Enforcement::Soft, _) => {
                (RuleResult::Soft, format!("{} is exceeded, and the rule only warns", one.limit))
            }
            (Enforcement::Shadow, _) => (
                RuleResult::Shadow,
                format!("{} would refuse, but the rule is not enforced for this caller", one.limit),
            ),
        };
        (result, format!("{why}."))
    }

    fn limit(&self, index: usize, planned: &PlannedLimit<'_>) -> ExplainedLimit {
        let limit = self.plan.limit(planned);
        let asked = self.rehearsal.decided.entries.outcomes().get(index).copied();
        let present = self.rehearsal.present.get(index).copied();
        let asked = asked.unwrap_or_default();
        let judged = LimitJudgement {
            limit,
            present: &present.unwrap_or(asked),
            asked: &asked,
            needs: planned.cost,
            now: self.rehearsal.decided.decision.at(),
        };
        let known = asked.is_known();
        ExplainedLimit {
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
        }
    }

    fn conditions(&self, rule: &Rule, spelling: usize) -> Vec<ExplainedCondition> {
        let Some(condition) = &rule.condition else { return Vec::new() };
        explain_conditions(condition, &self.seen, self.seen.spelling(spelling), &self.secrets)
    }

    fn key_facts(&self, spelling: usize) -> KeyFacts<'_> {
        let ipv6_prefix = self.rules().settings().identify.ipv6_prefix;
        KeyFacts { facts: &self.seen, spelling, ipv6_prefix }
    }

    /// The spelling of the path that a key was made of.
    fn spelling_of(&self, rule: &Rule, key: &KeyBuf) -> usize {
        let is_made_of = |number: &usize| {
            let mut made = KeyBuf::new();
            rule.key.write(&mut made, &self.key_facts(*number)) && made == *key
        };
        (0..self.seen.spelling_count()).find(is_made_of).unwrap_or(0)
    }

    fn key(&self, rule: &Rule, caller: Option<&KeyBuf>, spelling: usize) -> ExplainedKey {
        let parts = rule.key.filled_parts(&self.key_facts(spelling)).into_iter().map(|part| {
            let Some((name, value)) = part.found else {
                let name = part.facts.join(" or ");
                let why = format!("the request has no {name}");
                return ExplainedKeyPart { name, value: None, why };
            };
            let hidden = self.secrets.hides_part(&name);
            let why = match part.facts.iter().position(|fact| *fact == name) {
                _ if part.facts.len() == 1 => "the only fact of this part".into(),
                Some(0) => "the first choice, and the request has it".into(),
                _ => format!("the first of {} that the request has", part.facts.join(", ")),
            };
            let value = if hidden { HIDDEN.into() } else { shorten(&value).into_owned() };
            ExplainedKeyPart { name, value: Some(value), why }
        });
        ExplainedKey {
            template: rule.key.to_string(),
            caller: caller.cloned(),
            text: caller.map(|key| self.secrets.key_text(key)),
            parts: parts.collect(),
        }
    }

    fn add_tier_and_override(
        &self,
        entry: &mut ExplainedRule,
        number: u32,
        rule: &Rule,
        caller: &KeyBuf,
    ) {
        let rules = self.rules();
        let replaced = rules.override_of(number, caller, self.now);
        entry.own_limits =
            replaced.map(|one| (rules.overrides()[one as usize].clone(), rules.is_run_time(one)));
        let Some(tier) = self.seen.tier else { return };
        if !rule.limits.depend_on_tier() && !rule.key.has_tier() {
            return;
        }
        let source = tier_source(rules, self.seen.facts, tier);
        let numbers = match rule.limits.of(rules.tier_index(Some(tier))).1 {
            _ if replaced.is_some() => "the caller's own limits replace those of the tier",
            true => "the rule has limits of its own for it, counted apart",
            false => "the rule has no limits of its own for it",
        };
        entry.tier = Some(ExplainedTier { name: tier.into(), why: format!("{source}; {numbers}") });
    }

    fn cost(&self, rule: &Rule, units: u64) -> ExplainedCost {
        let why = match &rule.cost {
            _ if self.ask.cost.is_some() => "stated by the request",
            Cost::Fixed(_) => "the same for every request",
            Cost::Bytes => "one for now; the bytes of the bodies are charged as they pass",
            Cost::PerEndpoint { default, .. } if *default == units => {
                "the cost of this endpoint, or that of all others"
            }
            Cost::PerEndpoint { .. } => "the cost of this endpoint",
            Cost::Reserve { reserve, .. } if reserve.is_fixed() => {
                "reserved before the work, and corrected after it"
            }
            Cost::Reserve { .. } => "estimated by the request, and corrected after the work",
        };
        ExplainedCost { units, why: why.into() }
    }
}

/// The number of the first spelling of the path that a rule applies to.
fn first_spelling(one: SelectedRule) -> usize {
    spelling_numbers(one.spellings).next().unwrap_or(0)
}

/// A rule without details.
fn plain_rule(rule: &Rule, result: RuleResult, why: String) -> ExplainedRule {
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
    }
}
