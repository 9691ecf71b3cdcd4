//! `RequestPlan`: from the facts of a request to the checks for the store.

mod memory;

use std::sync::Arc;

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::{Act, Algorithm, Check, KeyBuf, Limit, Micros};

use crate::cost_source::ActualCost;
use crate::descriptors::Unit;
use crate::facts::Facts;
use crate::fair::Fair;
use crate::gatekeeper::Ask;
use crate::key_template::KeyFacts;
use crate::limit_spec::RuleLimit;
use crate::matcher::MatchBudget;
use crate::missing_facts::{SkippedRule, can_refuse};
use crate::normalized_facts::NormalizedFacts;
use crate::path::{Spelling, SpellingSet, spelling_numbers};
use crate::rule::{Cost, Rule};
use crate::rule_set::{RuleSet, SelectedRule};
use memory::{PlanMemory, PlannedKeyId};

/// The most keys of one request: they are numbered.
const KEYS_MAX: usize = u16::MAX as usize;

/// The limits that apply to one request, and the keys they count.
pub(crate) struct RequestPlan<'a> {
    rules: &'a RuleSet,
    /// The facts of the request; `None` for descriptors, which have facts of their own each.
    pub(crate) facts: Option<&'a Facts<'a>>,
    /// The cost that the request states, instead of the one in the rules.
    pub(crate) stated_cost: Option<u64>,
    /// True if the caller cannot delay a request.
    pub(crate) cannot_wait: bool,
    /// True if nothing is charged.
    pub(crate) peek_only: bool,
    /// True if a refusal is not final, because the request waits and tries again: it has no effect
    /// beside the answer. It is not counted, not charged and not reported.
    pub(crate) is_attempt: bool,
    /// True if an admission is not final, because the request may find its line too long.
    pub(crate) defers_admission: bool,
    /// The index of the caller's tier.
    tier: Option<usize>,
    /// True if the request is refused whatever the store answers, so that only limits that count
    /// refusals are charged.
    pub(crate) always_refused: bool,
    /// The keys: one for each different template among the rules that apply, and one more where tiers
    /// count on their own.
    memory: PlanMemory,
    /// The limits in rule order. Bound: [`MAX_LIMITS`].
    pub(crate) limits: Vec<PlannedLimit<'a>>,
    /// Limits stated in the request. Bound: as many as descriptors.
    pub(crate) stated: Vec<RuleLimit>,
    /// Rules without limits, which bound work in progress. Bound: [`MAX_LIMITS`].
    pub(crate) unlimited: Vec<UnlimitedRule<'a>>,
    /// Limits of zero, which refuse without asking a store. Bound: with the limits [`MAX_LIMITS`].
    pub(crate) zero_limits: Vec<ZeroLimit>,
    /// Rules that did not apply because a fact of their key is missing.
    pub(crate) rules_without_fact: u32,
    /// The first rule that was skipped, if no rule is left that could refuse.
    pub(crate) skipped: Option<SkippedRule>,
    /// True if the request gets an error where a rule was skipped and no other could refuse.
    pub(crate) needs_facts: bool,
    /// Limits that do not refuse and found no room in the decision.
    pub(crate) limits_left_out: u32,
    /// True if a limit that refuses found no room: the request cannot be decided.
    pub(crate) too_many_limits: bool,
    /// The bytes that may still be compared with expressions; `None` before the first facts.
    match_bytes_left: Option<usize>,
}

/// One limit on its way to the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedLimit<'a> {
    pub(crate) limit_ref: LimitRef,
    rule: &'a Rule,
    /// `None`: the request states it.
    configured: Option<&'a RuleLimit>,
    /// The number of the key that is counted.
    key: u16,
    /// The number of the caller's key, whatever the tier.
    pub(crate) caller: u16,
    pub(crate) cost: u64,
    pub(crate) enforcement: Enforcement,
    /// The number of its descriptor; 0 for other requests.
    pub(crate) descriptor: u8,
    /// True for a limit that refuses only if all such limits of a request do. Until that is known
    /// it is in shadow.
    pub(crate) quota: bool,
}

/// A rule without limits, which bounds work in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnlimitedRule<'a> {
    pub(crate) number: u32,
    pub(crate) rule: &'a Rule,
    /// The number of the caller's key.
    caller: u16,
    pub(crate) enforcement: Enforcement,
}

/// The share of a request in a fair queue.
pub(crate) struct FairShare<'a> {
    /// The number of the rule.
    pub(crate) number: u32,
    /// The caller's key under the rule.
    pub(crate) key: &'a KeyBuf,
    pub(crate) bounds: &'a Fair,
    /// The weight of the caller, in thousandths.
    pub(crate) weight: u32,
    pub(crate) cost: u64,
}

/// A limit of zero: a file, or the request itself, refuses this descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZeroLimit {
    pub(crate) rule: u32,
    pub(crate) unit: Unit,
    key: u16,
    pub(crate) cost: u64,
    pub(crate) enforcement: Enforcement,
    pub(crate) descriptor: u8,
    pub(crate) quota: bool,
}

/// The position of a limit in its rule set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitRef {
    pub(crate) rule: u32,
    list: LimitList,
    index: u8,
}

#[derive(Clone, Copy, Debug)]
enum LimitList {
    /// Limits of the rule for callers without a tier, and for tiers without numbers of their own.
    Plain,
    /// Limits of the rule for the tier of this index.
    Tier(u16),
    /// Limits of an override.
    Override(u32),
    /// Limits stated in the request.
    Stated,
}

/// The effect of a refusal by one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Enforcement {
    /// The request is refused.
    Enforced,
    /// The refusal is only counted.
    Shadow,
    /// The caller is warned.
    Soft,
}

impl LimitRef {
    pub(crate) fn limit<'r>(self, rules: &'r RuleSet, stated: &'r [RuleLimit]) -> &'r RuleLimit {
        let limits = match self.list {
            LimitList::Stated => stated,
            LimitList::Plain => rules.rule_at(self.rule).limits.plain(),
            LimitList::Tier(tier) => rules.rule_at(self.rule).limits.of(Some(tier.into())).0,
            LimitList::Override(number) => rules.limits_of_override(number),
        };
        &limits[usize::from(self.index)]
    }
}

impl<'a> RequestPlan<'a> {
    /// The plan of a request.
    pub(crate) fn new(rules: &'a RuleSet, ask: &'a Ask<'a>, now: Micros) -> RequestPlan<'a> {
        let mut plan = RequestPlan::empty(rules, ask.cannot_wait);
        plan.peek_only = ask.cost == Some(0);
        plan.stated_cost = ask.cost;
        plan.needs_facts = ask.needs_facts;
        plan.facts = Some(&ask.facts);
        plan.add_facts(&ask.facts, (0, ask.cost), now);
        plan
    }

    /// A plan without limits.
    #[inline]
    pub(crate) fn empty(rules: &'a RuleSet, at_once: bool) -> RequestPlan<'a> {
        let mut memory = PlanMemory::take();
        RequestPlan {
            rules,
            facts: None,
            stated_cost: None,
            cannot_wait: at_once,
            peek_only: false,
            is_attempt: false,
            defers_admission: false,
            tier: None,
            always_refused: false,
            limits: memory.take_limits(),
            memory,
            stated: Vec::new(),
            unlimited: Vec::new(),
            zero_limits: Vec::new(),
            rules_without_fact: 0,
            skipped: None,
            needs_facts: false,
            limits_left_out: 0,
            too_many_limits: false,
            match_bytes_left: None,
        }
    }

    /// Takes the cost of each limit out of the plan, which then only peeks.
    pub(crate) fn take_costs(&mut self) -> ArrayVec<u64, MAX_LIMITS> {
        self.peek_only = true;
        self.limits.iter_mut().map(|planned| std::mem::take(&mut planned.cost)).collect()
    }

    /// Returns true if a rule of the plan bans callers after refusals.
    pub(crate) fn has_ban(&self) -> bool {
        self.limits.iter().any(|one| one.rule.ban.is_some())
    }

    /// The first enforced rule with a fair queue.
    pub(crate) fn fair(&self) -> Option<FairShare<'_>> {
        let fair_rules = self.enforced().filter(|(_, rule, _)| rule.fair.is_some());
        let (number, rule, key) = fair_rules.min_by_key(|(number, ..)| *number)?;
        let bounds = rule.fair.as_ref()?;
        let enforced = || self.limits.iter().filter(|one| one.enforcement == Enforcement::Enforced);
        let own = enforced().find(|one| one.limit_ref.rule == number).map(|one| one.cost);
        // A rule that has no limits shares those of others.
        let cost = own.or_else(|| enforced().map(|one| one.cost).max()).unwrap_or(1);
        Some(FairShare { number, key, bounds, weight: bounds.weight(self.tier), cost })
    }

    /// The rule whose waits count the request: the one with `fair`, with a queue, or else the first.
    pub(crate) fn waiting_rule(&self) -> Option<u32> {
        let fair = self.fair().map(|fair| fair.number);
        let queue = || self.queue_limits().next().map(|(_, planned)| planned.limit_ref.rule);
        fair.or_else(queue).or_else(|| self.enforced().next().map(|(number, ..)| number))
    }

    /// Returns true if a limit may delay the request.
    pub(crate) fn may_delay(&self) -> bool {
        !self.cannot_wait && !self.peek_only && self.queue_limits().next().is_some()
    }

    /// The name of the caller's tier.
    pub(crate) fn tier_name(&self) -> Option<&str> {
        self.rules.tier_name(self.tier?)
    }

    /// The enforced limits that delay requests, by index.
    pub(crate) fn queue_limits(&self) -> impl Iterator<Item = (usize, &PlannedLimit<'a>)> {
        self.limits.iter().enumerate().filter(|(_, planned)| {
            let is_enforced = planned.enforcement == Enforcement::Enforced;
            is_enforced && planned.cost > 0 && self.limit(planned).is_queue()
        })
    }

    /// Returns true if a number in the body of the response decides the cost.
    pub(crate) fn reads_response(&self) -> bool {
        let in_json = |actual: &Arc<ActualCost>| matches!(&**actual, ActualCost::Json(_));
        self.limits.iter().any(|one| one.rule.actual_cost().is_some_and(in_json))
    }

    /// Returns true if the time that the work takes decides how much of it may go on at once.
    pub(crate) fn measures_latency(&self) -> bool {
        let limited = self.limits.iter().map(|one| one.rule);
        let mut rules = limited.chain(self.unlimited.iter().map(|one| one.rule));
        rules.any(|rule| rule.concurrency.as_ref().is_some_and(|it| it.adaptive_min.is_some()))
    }

    /// Returns true if the request gets an error: it needs facts, and rules were skipped while no
    /// other could refuse.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.needs_facts && self.skipped.is_some()
    }

    /// Adds the limits of all rules that apply to these facts.
    pub(crate) fn add_facts(
        &mut self,
        facts: &Facts<'_>,
        (of, explicit_cost): (u8, Option<u64>),
        now: Micros,
    ) {
        let rules = self.rules;
        let mut facts = rules.normalized_facts(facts);
        if rules.exempts(&facts) {
            return;
        }
        if let Some(left) = self.match_bytes_left {
            facts.match_budget = MatchBudget::for_next_descriptor(left);
        }
        let mut selected = self.memory.take_selected();
        rules.select(&facts, &mut selected);
        let tier = rules.tier_index(facts.tier);
        self.tier = tier;
        let request = PlanRequest { facts: &facts, tier, descriptor: of, explicit_cost, now };
        let mut asked = ConsultedRules::default();
        // The spellings of the path for which a rule with a condition is enforced.
        let mut covered = 0;
        let mut fallbacks = false;
        let spares = facts.facts.is_preflight && explicit_cost != Some(0);
        if spares && rules.settings().preflights_pass {
            // A peek looks at all rules: it finds the blocks that preflights do not pass.
            selected.retain(|one| rules.rule_at(one.rule).names_method("OPTIONS"));
        }
        for one in &selected {
            if one.is_fallback {
                fallbacks = true;
                continue;
            }
            let enforced = self.add_for_each_spelling(*one, &request, &mut asked);
            covered |= if rules.rule_at(one.rule).condition.is_some() { enforced } else { 0 };
        }
        if facts.match_budget.is_exceeded() {
            // Some of these may not apply at all.
            covered = 0;
        }
        for one in selected.iter().filter(|one| fallbacks && one.is_fallback) {
            let spellings = one.spellings & !covered;
            if spellings != 0 {
                let one = SelectedRule { spellings, ..*one };
                self.add_for_each_spelling(one, &request, &mut asked);
            }
        }
        if let (false, Some(number)) = (asked.can_refuse, asked.skipped) {
            self.skipped.get_or_insert(SkippedRule::new(rules, number, &facts));
        }
        self.match_bytes_left = Some(facts.match_budget.left());
        self.memory.give_back_selected(selected);
    }

    /// Adds a rule's limits: once or, where the path is part of the key, for each spelling. An
    /// application reads the path as one of them, so a client that varies only the others must not
    /// get a new count. Returns the spellings that the rule is enforced for.
    fn add_for_each_spelling(
        &mut self,
        one: SelectedRule,
        request: &PlanRequest<'_>,
        asked: &mut ConsultedRules,
    ) -> SpellingSet {
        let (rule, mut left) = (self.rules.rule_at(one.rule), one.spellings);
        if left == 1 || !rule.key.has_path() {
            let standing = self.add(one, 0, request);
            asked.record(one.rule, rule, standing);
            return if standing == Some(Enforcement::Enforced) { left } else { 0 };
        }
        let mut enforced = 0;
        while left != 0 {
            let number = left.trailing_zeros() as usize;
            let text = |number| request.facts.spelling(number).map(Spelling::text);
            let same = spelling_numbers(left).filter(|other| text(*other) == text(number));
            let spellings = same.fold(0, |set, other| set | 1 << other);
            let standing = self.add(SelectedRule { spellings, ..one }, number as u8, request);
            asked.record(one.rule, rule, standing);
            enforced |= if standing == Some(Enforcement::Enforced) { spellings } else { 0 };
            left &= !spellings;
        }
        enforced
    }

    /// Adds a rule's limits for one key; `None` if a fact of the key is missing.
    fn add(
        &mut self,
        one: SelectedRule,
        spelling: u8,
        request: &PlanRequest<'_>,
    ) -> Option<Enforcement> {
        let (number, rule) = (one.rule, self.rules.rule_at(one.rule));
        if self.too_many_limits || self.memory.keys().len() + 2 > KEYS_MAX {
            self.too_many_limits = true;
            // The request is refused in any case.
            return Some(Enforcement::Enforced);
        }
        let Some(caller) = self.key_of((number, spelling), false, request) else {
            self.rules_without_fact += 1;
            return None;
        };
        let callers_key = self.key(caller);
        let standing = match rule.mode.enforces(&rule.name, callers_key) {
            false => Enforcement::Shadow,
            true if rule.soft => Enforcement::Soft,
            true => Enforcement::Enforced,
        };
        let cost =
            request.explicit_cost.unwrap_or_else(|| rule.cost_of(request.facts, one.spellings));
        let replaced = self.rules.override_of(number, callers_key, request.now);
        let (list, limits, by_tier) = match replaced {
            Some(one) => (LimitList::Override(one), self.rules.limits_of_override(one), false),
            None => {
                let (limits, own) = rule.limits.of(request.tier);
                let after = match own {
                    true => None,
                    false => self.rules.limits_after_override(number, callers_key),
                };
                let (limits, list) = (after.unwrap_or(limits), request.tier.filter(|_| own));
                (list.map_or(LimitList::Plain, |tier| LimitList::Tier(tier as u16)), limits, own)
            }
        };
        let key = match by_tier {
            true => self.key_of((number, spelling), true, request)?,
            false => caller,
        };
        if limits.is_empty() {
            self.push_unlimited(UnlimitedRule { number, rule, caller, enforcement: standing });
        }
        for (limit, index) in limits.iter().zip(0..) {
            let place = LimitRef { rule: number, list, index };
            let of = request.descriptor;
            self.push(PlannedLimit {
                limit_ref: place,
                rule,
                configured: Some(limit),
                key,
                caller,
                cost,
                enforcement: standing,
                descriptor: of,
                quota: false,
            });
        }
        Some(standing)
    }

    /// Adds a limit.
    #[inline]
    fn push(&mut self, planned: PlannedLimit<'a>) {
        match self.limits.len() < MAX_LIMITS {
            true => self.limits.push(planned),
            false => self.push_to_full(planned),
        }
    }

    /// Adds a rule without limits.
    #[cold]
    fn push_unlimited(&mut self, rule: UnlimitedRule<'a>) {
        match self.unlimited.len() < MAX_LIMITS {
            true => self.unlimited.push(rule),
            false if rule.enforcement == Enforcement::Enforced => self.too_many_limits = true,
            false => self.limits_left_out += 1,
        }
    }

    /// Adds a limit to a full plan: one that cannot be left out replaces one that can.
    #[cold]
    fn push_to_full(&mut self, planned: PlannedLimit<'a>) {
        if !self.cannot_be_left_out(&planned) {
            self.limits_left_out += 1;
            return;
        }
        match self.limits.iter().rposition(|one| !self.cannot_be_left_out(one)) {
            Some(other) => {
                self.limits.remove(other);
                self.limits_left_out += 1;
                self.limits.push(planned);
            }
            None => self.too_many_limits = true,
        }
    }

    /// Returns true if a request cannot be decided without this limit: it refuses, or the status of
    /// its descriptor shows it.
    fn cannot_be_left_out(&self, planned: &PlannedLimit<'a>) -> bool {
        planned.enforcement == Enforcement::Enforced || self.is_direct(planned)
    }

    /// Returns true if the limit comes from an imported file or from the request, not from a rule
    /// of our own.
    pub(crate) fn is_direct(&self, planned: &PlannedLimit<'a>) -> bool {
        RuleSet::is_stated(planned.limit_ref.rule) || planned.rule.imported.is_some()
    }

    /// Adds a limit that an imported file or the request has for a descriptor. The key is already
    /// made, and such a rule has no other condition.
    pub(crate) fn add_direct(&mut self, one: DirectRule, key: KeyBuf, now: Micros) {
        let DirectRule { rule, cost, enforcement: standing, descriptor: of, quota, .. } = one;
        let of_rule = self.rules.rule_at(rule);
        let (number, replaced) =
            (self.memory.keys().len() as u16, self.rules.override_of(rule, &key, now));
        self.memory.add_key(PlannedKeyId::WITHOUT_TEMPLATE, |planned| {
            planned.append(&key);
            true
        });
        let (list, limits) = match (replaced, one.limit) {
            (Some(one), _) => (LimitList::Override(one), self.rules.limits_of_override(one)),
            (None, DirectLimit::Zero(unit)) => {
                let closed = ZeroLimit {
                    rule,
                    unit,
                    key: number,
                    cost,
                    enforcement: standing,
                    descriptor: of,
                    quota,
                };
                match self.zero_limits.len() < MAX_LIMITS {
                    true => self.zero_limits.push(closed),
                    false => self.too_many_limits = true,
                }
                return;
            }
            (None, DirectLimit::Stated(limit)) => {
                self.stated.push(*limit);
                let place =
                    LimitRef { rule, list: LimitList::Stated, index: self.stated.len() as u8 - 1 };
                let key = number;
                return self.push(PlannedLimit {
                    limit_ref: place,
                    rule: of_rule,
                    configured: None,
                    key,
                    caller: key,
                    cost,
                    enforcement: standing,
                    descriptor: of,
                    quota,
                });
            }
            (None, DirectLimit::RuleLimits) => {
                let after = self.rules.limits_after_override(rule, &key);
                (LimitList::Plain, after.unwrap_or_else(|| of_rule.limits.plain()))
            }
        };
        for (limit, index) in limits.iter().zip(0..) {
            let (place, key) = (LimitRef { rule, list, index }, number);
            self.push(PlannedLimit {
                limit_ref: place,
                rule: of_rule,
                configured: Some(limit),
                key,
                caller: key,
                cost,
                enforcement: standing,
                descriptor: of,
                quota,
            });
        }
    }

    /// The number of the key of a rule, made at most once for each template and spelling of the path.
    fn key_of(
        &mut self,
        (rule, spelling): (u32, u8),
        by_tier: bool,
        request: &PlanRequest<'_>,
    ) -> Option<u16> {
        let template = self.rules.template_of(rule);
        let id = PlannedKeyId::new(template, request.descriptor, spelling, by_tier);
        let made = self.memory.keys().iter().position(|made| made.id == id);
        let number = made.unwrap_or_else(|| {
            let ipv6_prefix = self.rules.settings().identify.ipv6_prefix;
            let facts = KeyFacts { facts: request.facts, spelling: spelling.into(), ipv6_prefix };
            let template = &self.rules.rule_at(rule).key;
            self.memory.add_key(id, |key| {
                let whole = template.write(key, &facts);
                if by_tier {
                    key.add(TIER, request.facts.tier.unwrap_or_default());
                }
                whole
            });
            self.memory.keys().len() - 1
        });
        self.memory.keys()[number].is_made.then_some(number as u16)
    }

    #[inline]
    fn key(&self, number: u16) -> &KeyBuf {
        self.memory.key(number)
    }

    /// The key that a limit counts.
    pub(crate) fn key_for(&self, planned: &PlannedLimit<'a>) -> &KeyBuf {
        self.key(planned.key)
    }

    /// Returns true if two limits count in the same state.
    pub(crate) fn is_same_state(&self, one: &PlannedLimit<'a>, other: &PlannedLimit<'a>) -> bool {
        let (limit, same) = (self.limit(one), self.limit(other));
        let numbers = |limit: &Limit| (limit.id(), limit.fingerprint());
        numbers(limit) == numbers(same) && self.key_for(one) == self.key_for(other)
    }

    /// The key of a limit of zero.
    pub(crate) fn key_of_zero_limit(&self, closed: &ZeroLimit) -> &KeyBuf {
        self.key(closed.key)
    }

    /// The caller's key, whatever the tier: for blocks and other state beside the counts.
    pub(crate) fn caller(&self, planned: &PlannedLimit<'a>) -> &KeyBuf {
        self.key(planned.caller)
    }

    #[inline]
    pub(crate) fn rule(&self, planned: &PlannedLimit<'a>) -> &'a Rule {
        planned.rule
    }

    pub(crate) fn rules(&self) -> &'a RuleSet {
        self.rules
    }

    /// A limit as people read it.
    pub(crate) fn limit_text(&self, planned: &PlannedLimit<'a>) -> &str {
        &self.rule_limit(planned).text
    }

    #[inline]
    pub(crate) fn limit(&self, planned: &PlannedLimit<'a>) -> &Limit {
        &self.rule_limit(planned).limit
    }

    /// The same limit, to be shared.
    pub(crate) fn shared_limit(&self, planned: &PlannedLimit<'a>) -> &Arc<Limit> {
        &self.rule_limit(planned).limit
    }

    #[inline]
    fn rule_limit(&self, planned: &PlannedLimit<'a>) -> &RuleLimit {
        let stated = || &self.stated[usize::from(planned.limit_ref.index)];
        planned.configured.unwrap_or_else(stated)
    }

    /// The rules that are enforced, each once for each key they count.
    pub(crate) fn enforced(&self) -> impl Iterator<Item = (u32, &'a Rule, &KeyBuf)> {
        let mut last = None;
        let unlimited = self.unlimited.iter().filter_map(|one| {
            let is_enforced = one.enforcement == Enforcement::Enforced;
            is_enforced.then(|| (one.number, one.rule, self.caller_of_unlimited(one)))
        });
        let limited = self.limits.iter().filter_map(move |planned| {
            let rule = planned.limit_ref.rule;
            let again = last.replace((rule, planned.caller)) == Some((rule, planned.caller));
            (!again && planned.enforcement == Enforcement::Enforced)
                .then(|| (rule, self.rule(planned), self.caller(planned)))
        });
        limited.chain(unlimited)
    }

    /// The caller's key under a rule without limits.
    pub(crate) fn caller_of_unlimited(&self, one: &UnlimitedRule<'a>) -> &KeyBuf {
        self.key(one.caller)
    }

    /// The checks for the store. Inlined, so that the list is built where it stays.
    #[inline(always)]
    pub(crate) fn checks(&self, act: Act) -> ArrayVec<Check<'_>, MAX_LIMITS> {
        let mut checks = ArrayVec::new();
        for planned in &self.limits {
            checks.push(self.check(planned, act));
        }
        checks
    }

    #[inline]
    pub(crate) fn check(&self, planned: &PlannedLimit<'a>, act: Act) -> Check<'_> {
        let counts_denied = act == Act::Take && self.counts_denied(planned);
        let act = if self.always_refused && !counts_denied { Act::Peek } else { act };
        let check = Check::new(self.limit(planned), self.key_for(planned));
        let check = check.cost(planned.cost).act(act).terms(planned.rule.terms);
        let check =
            if planned.enforcement == Enforcement::Enforced { check } else { check.shadow() };
        let check = if self.cannot_wait { check.at_once() } else { check };
        if counts_denied { check.count_denied() } else { check }
    }

    /// Returns true if refusals are charged, too. An imported file asks for that for its own
    /// windows; a bucket that overrides one of them would never let a client pass that keeps
    /// trying.
    pub(crate) fn counts_denied(&self, planned: &PlannedLimit<'a>) -> bool {
        let rule = planned.rule;
        let replaced =
            || rule.imported.is_some() && matches!(planned.limit_ref.list, LimitList::Override(_));
        rule.count_denied
            && !self.is_attempt
            && !(replaced() && self.limit(planned).algorithm() != Algorithm::FixedWindow)
    }

    /// Selects the limits that a settlement changes: those with a reserved cost, or all if there
    /// are none or the request states its cost.
    pub(crate) fn settled(&self, explicit_cost: bool) -> impl Fn(&PlannedLimit<'a>) -> bool {
        let reserves =
            |planned: &PlannedLimit<'a>| matches!(self.rule(planned).cost, Cost::Reserve { .. });
        let all = explicit_cost || !self.limits.iter().any(reserves);
        move |planned| all || reserves(planned)
    }
}

impl Drop for RequestPlan<'_> {
    #[inline]
    fn drop(&mut self) {
        self.memory.give_back_limits(std::mem::take(&mut self.limits));
    }
}

/// The part of a key that keeps the counts of tiers apart.
const TIER: &str = "tier";

/// The key that is counted for a tier with numbers of its own. A caller may switch between tiers:
/// if they shared a count, every switch would rescale it to other numbers.
pub(crate) fn tier_key(caller: &KeyBuf, tier: &str) -> KeyBuf {
    caller.clone().with(TIER, tier)
}

/// A rule that applies without a condition.
pub(crate) struct DirectRule {
    pub(crate) rule: u32,
    pub(crate) limit: DirectLimit,
    pub(crate) cost: u64,
    pub(crate) enforcement: Enforcement,
    pub(crate) descriptor: u8,
    pub(crate) quota: bool,
}

/// The limits of a direct rule.
pub(crate) enum DirectLimit {
    /// The limits of the rule.
    RuleLimits,
    /// A limit stated in the request.
    Stated(Box<RuleLimit>),
    /// A limit of zero in this unit.
    Zero(Unit),
}

/// The rules that could refuse a request: `can_refuse` if one of them applies, and the first that
/// was skipped.
#[derive(Default)]
struct ConsultedRules {
    can_refuse: bool,
    skipped: Option<u32>,
}

impl ConsultedRules {
    fn record(&mut self, number: u32, rule: &Rule, standing: Option<Enforcement>) {
        match standing {
            Some(Enforcement::Enforced) => self.can_refuse = true,
            None if can_refuse(rule) => self.skipped = self.skipped.or(Some(number)),
            _ => {}
        }
    }
}

/// The input of one request that is the same for all rules.
struct PlanRequest<'a> {
    facts: &'a NormalizedFacts<'a>,
    /// The index of the caller's tier.
    tier: Option<usize>,
    descriptor: u8,
    explicit_cost: Option<u64>,
    now: Micros,
}
