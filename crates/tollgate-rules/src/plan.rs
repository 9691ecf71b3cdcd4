//! `RequestPlan`: from the facts of a request to the checks for the store.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::{Act, Algorithm, Check, KeyBuf, Limit, Micros};

use crate::descriptors::Unit;
use crate::facts::Facts;
use crate::gatekeeper::Ask;
use crate::key_template::KeyFacts;
use crate::limit_spec::RuleLimit;
use crate::matcher::MatchBudget;
use crate::missing_facts::{SkippedRule, can_refuse};
use crate::normalized_facts::NormalizedFacts;
use crate::path::{Spelling, SpellingSet, spelling_numbers};
use crate::rule::{Cost, Rule};
use crate::rule_set::{RuleSet, SelectedRule};

/// Room for the bytes of most keys.
const KEY_BYTES: usize = 96;
/// Room for the keys of most requests.
const KEYS: usize = 4;

/// The most keys of one request: they are numbered.
const KEYS_MAX: usize = u16::MAX as usize;

/// The limits that apply to one request, and the keys they count.
pub(crate) struct RequestPlan<'a> {
    rules: &'a RuleSet,
    /// True if the caller cannot delay a request.
    cannot_wait: bool,
    /// True if nothing is charged.
    pub(crate) peek_only: bool,
    /// True if the request is refused whatever the store answers, so that only limits that count
    /// refusals are charged.
    pub(crate) always_refused: bool,
    /// One for each different template among the rules that apply, and one more where tiers count on
    /// their own.
    keys: Vec<PlannedKey>,
    /// The limits in rule order.
    pub(crate) limits: ArrayVec<PlannedLimit, MAX_LIMITS>,
    /// Limits stated in the request. Bound: as many as descriptors.
    pub(crate) stated: Vec<RuleLimit>,
    /// Limits of zero, which refuse without asking a store. Bound: with the limits [`MAX_LIMITS`].
    pub(crate) zero_limits: ArrayVec<ZeroLimit, MAX_LIMITS>,
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

/// A key, or a note that it cannot be made because a fact is missing.
struct PlannedKey {
    /// The number of its descriptor.
    descriptor: u8,
    /// `None`: it was not made by a template.
    template: Option<u16>,
    /// The number of the path's spelling; 0 where the path is no part of it.
    spelling: u8,
    by_tier: bool,
    key: Option<KeyBuf>,
}

/// One limit on its way to the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedLimit {
    pub(crate) limit_ref: LimitRef,
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
    pub(crate) fn new(rules: &'a RuleSet, ask: &'a Ask<'a>, now: Micros) -> RequestPlan<'a> {
        let mut plan = RequestPlan::empty(rules, ask.cannot_wait);
        plan.peek_only = ask.cost == Some(0);
        plan.needs_facts = ask.needs_facts;
        plan.add_facts(&ask.facts, (0, ask.cost), now);
        plan
    }

    /// A plan without limits.
    #[inline]
    pub(crate) fn empty(rules: &'a RuleSet, at_once: bool) -> RequestPlan<'a> {
        RequestPlan {
            rules,
            cannot_wait: at_once,
            peek_only: false,
            always_refused: false,
            keys: Vec::with_capacity(KEYS),
            limits: ArrayVec::new(),
            stated: Vec::new(),
            zero_limits: ArrayVec::new(),
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
        self.limits.iter().any(|one| self.rule(one).ban.is_some())
    }

    /// Returns true if the request gets an error: it needs facts, and rules were skipped while no
    /// other could refuse.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.needs_facts && self.skipped.is_some()
    }

    /// Adds the limits of all rules that apply to these facts.
    #[inline]
    pub(crate) fn add_facts(
        &mut self,
        facts: &Facts<'_>,
        (of, explicit_cost): (u8, Option<u64>),
        now: Micros,
    ) {
        let rules = self.rules;
        let mut seen = rules.normalized_facts(facts);
        if rules.exempts(&seen) {
            return;
        }
        if let Some(left) = self.match_bytes_left {
            seen.match_budget = MatchBudget::for_next_descriptor(left);
        }
        let selected = rules.select(&seen);
        let request = PlanRequest { facts: seen, descriptor: of, explicit_cost, now };
        let mut asked = ConsultedRules::default();
        // The spellings of the path for which a rule with a condition is enforced.
        let mut covered = 0;
        for one in selected.iter().filter(|one| !rules.rule_at(one.rule).fallback) {
            let enforced = self.add_for_each_spelling(*one, &request, &mut asked);
            covered |= if rules.rule_at(one.rule).condition.is_some() { enforced } else { 0 };
        }
        if request.facts.match_budget.is_exceeded() {
            // Some of these may not apply at all.
            covered = 0;
        }
        for one in selected.iter().filter(|one| rules.rule_at(one.rule).fallback) {
            let spellings = one.spellings & !covered;
            if spellings != 0 {
                self.add_for_each_spelling(
                    SelectedRule { spellings, ..*one },
                    &request,
                    &mut asked,
                );
            }
        }
        if let (false, Some(number)) = (asked.can_refuse, asked.skipped) {
            self.skipped.get_or_insert(SkippedRule::new(rules, number, &request.facts));
        }
        self.match_bytes_left = Some(request.facts.match_budget.left());
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
        if self.too_many_limits || self.keys.len() + 2 > KEYS_MAX {
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
            request.explicit_cost.unwrap_or_else(|| rule.cost_of(&request.facts, one.spellings));
        let (list, limits, by_tier) = match self.rules.override_of(number, callers_key, request.now)
        {
            Some(one) => {
                (LimitList::Override(one), self.rules.limits_of_override(one).len(), false)
            }
            None => {
                let tier = self.rules.tier_index(request.facts.tier);
                let (limits, own) = rule.limits.of(tier);
                let list = tier
                    .filter(|_| own)
                    .map_or(LimitList::Plain, |tier| LimitList::Tier(tier as u16));
                (list, limits.len(), own)
            }
        };
        let key = match by_tier {
            true => self.key_of((number, spelling), true, request)?,
            false => caller,
        };
        for index in 0..limits as u8 {
            let place = LimitRef { rule: number, list, index };
            let of = request.descriptor;
            self.push(PlannedLimit {
                limit_ref: place,
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

    /// Adds a limit. In a full plan, one that cannot be left out replaces one that can.
    fn push(&mut self, planned: PlannedLimit) {
        let needed = self.cannot_be_left_out(&planned);
        if self.limits.is_full() && needed {
            let other = self.limits.iter().rposition(|one| !self.cannot_be_left_out(one));
            if let Some(other) = other {
                self.limits.remove(other);
                self.limits_left_out += 1;
            }
        }
        if self.limits.try_push(planned).is_err() {
            match needed {
                true => self.too_many_limits = true,
                false => self.limits_left_out += 1,
            }
        }
    }

    /// Returns true if a request cannot be decided without this limit: it refuses, or the status of
    /// its descriptor shows it.
    fn cannot_be_left_out(&self, planned: &PlannedLimit) -> bool {
        planned.enforcement == Enforcement::Enforced || self.is_direct(planned)
    }

    /// Returns true if the limit comes from an imported file or from the request, not from a rule
    /// of our own.
    pub(crate) fn is_direct(&self, planned: &PlannedLimit) -> bool {
        RuleSet::is_stated(planned.limit_ref.rule) || self.rule(planned).imported.is_some()
    }

    /// Adds a limit that an imported file or the request has for a descriptor. The key is already
    /// made, and such a rule has no other condition.
    pub(crate) fn add_direct(&mut self, one: DirectRule, key: KeyBuf, now: Micros) {
        let DirectRule { rule, cost, enforcement: standing, descriptor: of, quota, .. } = one;
        let (number, replaced) = (self.keys.len() as u16, self.rules.override_of(rule, &key, now));
        self.keys.push(PlannedKey {
            descriptor: of,
            template: None,
            spelling: 0,
            by_tier: false,
            key: Some(key),
        });
        let (list, limits) = match (replaced, one.limit) {
            (Some(one), _) => (LimitList::Override(one), self.rules.limits_of_override(one).len()),
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
                self.too_many_limits |= self.zero_limits.try_push(closed).is_err();
                return;
            }
            (None, DirectLimit::Stated(limit)) => {
                self.stated.push(*limit);
                let place =
                    LimitRef { rule, list: LimitList::Stated, index: self.stated.len() as u8 - 1 };
                let key = number;
                return self.push(PlannedLimit {
                    limit_ref: place,
                    key,
                    caller: key,
                    cost,
                    enforcement: standing,
                    descriptor: of,
                    quota,
                });
            }
            (None, DirectLimit::RuleLimits) => {
                (LimitList::Plain, self.rules.rule_at(rule).limits.plain().len())
            }
        };
        for index in 0..limits as u8 {
            let (place, key) = (LimitRef { rule, list, index }, number);
            self.push(PlannedLimit {
                limit_ref: place,
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
        let (of, template) = (request.descriptor, Some(self.rules.template_of(rule)));
        let same = |made: &PlannedKey| {
            (made.descriptor, made.by_tier, made.template, made.spelling)
                == (of, by_tier, template, spelling)
        };
        let number = self.keys.iter().position(same).unwrap_or_else(|| {
            let mut key = KeyBuf::with_capacity(KEY_BYTES);
            let ipv6_prefix = self.rules.settings().identify.ipv6_prefix;
            let facts = KeyFacts { facts: &request.facts, spelling: spelling.into(), ipv6_prefix };
            let whole = self.rules.rule_at(rule).key.write(&mut key, &facts);
            if by_tier {
                key.add(TIER, request.facts.tier.unwrap_or_default());
            }
            let key = whole.then_some(key);
            self.keys.push(PlannedKey { descriptor: of, template, spelling, by_tier, key });
            self.keys.len() - 1
        });
        self.keys[number].key.is_some().then_some(number as u16)
    }

    fn key(&self, number: u16) -> &KeyBuf {
        let made = self.keys[usize::from(number)].key.as_ref();
        made.expect("only keys that were made are planned")
    }

    /// The key that a limit counts.
    pub(crate) fn key_for(&self, planned: &PlannedLimit) -> &KeyBuf {
        self.key(planned.key)
    }

    /// Returns true if two limits count in the same state.
    pub(crate) fn is_same_state(&self, one: &PlannedLimit, other: &PlannedLimit) -> bool {
        let (limit, same) = (self.limit(one), self.limit(other));
        let numbers = |limit: &Limit| (limit.id(), limit.fingerprint());
        numbers(limit) == numbers(same) && self.key_for(one) == self.key_for(other)
    }

    /// The key of a limit of zero.
    pub(crate) fn key_of_zero_limit(&self, closed: &ZeroLimit) -> &KeyBuf {
        self.key(closed.key)
    }

    /// The caller's key, whatever the tier: for blocks and other state beside the counts.
    pub(crate) fn caller(&self, planned: &PlannedLimit) -> &KeyBuf {
        self.key(planned.caller)
    }

    pub(crate) fn rule(&self, planned: &PlannedLimit) -> &'a Rule {
        self.rules.rule_at(planned.limit_ref.rule)
    }

    pub(crate) fn rules(&self) -> &'a RuleSet {
        self.rules
    }

    /// A limit as people read it.
    pub(crate) fn limit_text(&self, planned: &PlannedLimit) -> &str {
        &planned.limit_ref.limit(self.rules, &self.stated).text
    }

    pub(crate) fn limit(&self, planned: &PlannedLimit) -> &Limit {
        self.shared_limit(planned)
    }

    /// The same limit, to be shared.
    pub(crate) fn shared_limit(&self, planned: &PlannedLimit) -> &Arc<Limit> {
        &planned.limit_ref.limit(self.rules, &self.stated).limit
    }

    /// The rules that are enforced, each once for each key they count.
    pub(crate) fn enforced(&self) -> impl Iterator<Item = (u32, &'a Rule, &KeyBuf)> {
        let mut last = None;
        self.limits.iter().filter_map(move |planned| {
            let rule = planned.limit_ref.rule;
            let again = last.replace((rule, planned.caller)) == Some((rule, planned.caller));
            (!again && planned.enforcement == Enforcement::Enforced)
                .then(|| (rule, self.rule(planned), self.caller(planned)))
        })
    }

    /// The checks for the store.
    pub(crate) fn checks(&self, act: Act) -> ArrayVec<Check<'_>, MAX_LIMITS> {
        self.limits.iter().map(|planned| self.check(planned, act)).collect()
    }

    pub(crate) fn check(&self, planned: &PlannedLimit, act: Act) -> Check<'_> {
        let counts_denied = act == Act::Take && self.counts_denied(planned);
        let act = if self.always_refused && !counts_denied { Act::Peek } else { act };
        let check = Check::new(self.limit(planned), self.key_for(planned));
        let check = check.cost(planned.cost).act(act).terms(self.rule(planned).terms);
        let check =
            if planned.enforcement == Enforcement::Enforced { check } else { check.shadow() };
        let check = if self.cannot_wait { check.at_once() } else { check };
        if counts_denied { check.count_denied() } else { check }
    }

    /// Returns true if refusals are charged, too. An imported file asks for that for its own
    /// windows; a bucket that overrides one of them would never let a client pass that keeps
    /// trying.
    pub(crate) fn counts_denied(&self, planned: &PlannedLimit) -> bool {
        let rule = self.rule(planned);
        let replaced =
            rule.imported.is_some() && matches!(planned.limit_ref.list, LimitList::Override(_));
        rule.count_denied
            && !(replaced && self.limit(planned).algorithm() != Algorithm::FixedWindow)
    }

    /// Selects the limits that a settlement changes: those with a reserved cost, or all if there
    /// are none or the request states its cost.
    pub(crate) fn settled(&self, explicit_cost: bool) -> impl Fn(&PlannedLimit) -> bool {
        let reserves =
            |planned: &PlannedLimit| matches!(self.rule(planned).cost, Cost::Reserve { .. });
        let all = explicit_cost || !self.limits.iter().any(reserves);
        move |planned| all || reserves(planned)
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
    facts: NormalizedFacts<'a>,
    descriptor: u8,
    explicit_cost: Option<u64>,
    now: Micros,
}
