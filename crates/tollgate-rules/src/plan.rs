//! What one request is to be asked: from facts to checks.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::{Act, Algorithm, Check, KeyBuf, Limit, Micros};

use crate::descriptors::Unit;
use crate::facts::Facts;
use crate::gatekeeper::Ask;
use crate::key_template::KeyFacts;
use crate::limit_spec::RuleLimit;
use crate::matcher::MatchWork;
use crate::missing_facts::{SkippedRule, can_refuse};
use crate::path::{Spelling, SpellingSet, each_of};
use crate::rule::{Cost, Rule};
use crate::rule_set::{RuleSet, Selected};
use crate::seen::Seen;

/// Room for most keys,
const KEY_BYTES: usize = 96;
/// and for the keys of most requests.
const KEYS: usize = 4;

/// The most keys of one request: they are numbered.
const KEYS_MAX: usize = u16::MAX as usize;

/// The limits that apply to one request, and the keys they count.
pub(crate) struct Plan<'a> {
    rules: &'a RuleSet,
    /// The asker cannot wait.
    at_once: bool,
    /// The asker wants to know, not to take.
    pub(crate) only_asks: bool,
    /// It is refused whatever the store says, so that only what counts refusals is charged.
    pub(crate) refused: bool,
    /// One for each different template among the rules that apply, and one more where tiers count on
    /// their own.
    keys: Vec<Made>,
    /// In rule order.
    pub(crate) limits: ArrayVec<Planned, MAX_LIMITS>,
    /// Limits that whoever asks has stated. Bound: as many as descriptors.
    pub(crate) stated: Vec<RuleLimit>,
    /// What is refused without asking a store. Bound: with the limits [`MAX_LIMITS`].
    pub(crate) closed: ArrayVec<Closed, MAX_LIMITS>,
    /// Rules that did not apply because a fact of their key is missing.
    pub(crate) without_fact: u32,
    /// Where that leaves no rule that could refuse: the first of those that were skipped.
    pub(crate) skipped: Option<SkippedRule>,
    /// The asker wants an error where a rule was skipped and no other could refuse.
    pub(crate) needs_facts: bool,
    /// Limits that do not refuse and found no room in the decision.
    pub(crate) left_out: u32,
    /// A limit that does found none: the request cannot be decided.
    pub(crate) too_many: bool,
    /// The bytes that may still be compared with expressions; `None` before the first facts.
    match_bytes_left: Option<usize>,
}

/// A key that was made, or could not be because a fact is missing.
struct Made {
    /// The number of the descriptor it is of.
    of: u8,
    /// `None`: it was not made by a template.
    template: Option<u16>,
    /// The number of the path's spelling; 0 where the path is no part of it.
    spelling: u8,
    by_tier: bool,
    key: Option<KeyBuf>,
}

/// One limit on its way to the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) place: Place,
    /// The number of the key that is counted.
    key: u16,
    /// The number of the caller's key, whatever the tier.
    pub(crate) caller: u16,
    pub(crate) cost: u64,
    pub(crate) standing: Standing,
    /// The number of the descriptor it is of; 0 of everything else.
    pub(crate) of: u8,
    /// It refuses only where all such limits of a request do. Until that is known it is in shadow.
    pub(crate) quota: bool,
}

/// A limit of nothing: a file, or whoever asks, refuses this descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    pub(crate) rule: u32,
    pub(crate) unit: Unit,
    key: u16,
    pub(crate) cost: u64,
    pub(crate) standing: Standing,
    pub(crate) of: u8,
    pub(crate) quota: bool,
}

/// Where a limit is in its rule set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) rule: u32,
    list: List,
    index: u8,
}

#[derive(Clone, Copy, Debug)]
enum List {
    /// Of the rule, for callers without a tier and for tiers without numbers of their own.
    Plain,
    /// Of the rule, for the tier at this place.
    Tier(u16),
    /// Of an override.
    Override(u32),
    /// Stated by whoever asks.
    Stated,
}

/// Whether a limit refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It does.
    Enforced,
    /// It only counts what it would refuse.
    Shadow,
    /// It warns the caller.
    Soft,
}

impl Place {
    pub(crate) fn limit<'r>(self, rules: &'r RuleSet, stated: &'r [RuleLimit]) -> &'r RuleLimit {
        let limits = match self.list {
            List::Stated => stated,
            List::Plain => rules.at(self.rule).limits.plain(),
            List::Tier(tier) => rules.at(self.rule).limits.of(Some(tier.into())).0,
            List::Override(number) => rules.limits_of_override(number),
        };
        &limits[usize::from(self.index)]
    }
}

impl<'a> Plan<'a> {
    pub(crate) fn new(rules: &'a RuleSet, ask: &'a Ask<'a>, now: Micros) -> Plan<'a> {
        let mut plan = Plan::empty(rules, ask.cannot_wait);
        plan.only_asks = ask.cost == Some(0);
        plan.needs_facts = ask.needs_facts;
        plan.add_facts(&ask.facts, (0, ask.cost), now);
        plan
    }

    /// A plan that asks nothing yet.
    #[inline]
    pub(crate) fn empty(rules: &'a RuleSet, at_once: bool) -> Plan<'a> {
        Plan {
            rules,
            at_once,
            only_asks: false,
            refused: false,
            keys: Vec::with_capacity(KEYS),
            limits: ArrayVec::new(),
            stated: Vec::new(),
            closed: ArrayVec::new(),
            without_fact: 0,
            skipped: None,
            needs_facts: false,
            left_out: 0,
            too_many: false,
            match_bytes_left: None,
        }
    }

    /// Whether the asker gets an error: no rule could be asked.
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
        let mut seen = rules.see(facts);
        if rules.exempts(&seen) {
            return;
        }
        if let Some(left) = self.match_bytes_left {
            seen.work = MatchWork::of_next(left);
        }
        let selected = rules.select(&seen);
        let request = Request { seen, of, explicit_cost, now };
        let mut asked = AskedRules::default();
        // The spellings of the path for which a rule is enforced that has a condition.
        let mut covered = 0;
        for one in selected.iter().filter(|one| !rules.at(one.rule).fallback) {
            let enforced = self.add_each_path(*one, &request, &mut asked);
            covered |= if rules.at(one.rule).when.is_some() { enforced } else { 0 };
        }
        if request.seen.work.is_exceeded() {
            // Some of these may not apply at all.
            covered = 0;
        }
        for one in selected.iter().filter(|one| rules.at(one.rule).fallback) {
            let spellings = one.spellings & !covered;
            if spellings != 0 {
                self.add_each_path(Selected { spellings, ..*one }, &request, &mut asked);
            }
        }
        if let (false, Some(number)) = (asked.can_refuse, asked.skipped) {
            self.skipped.get_or_insert(SkippedRule::new(rules, number, &request.seen));
        }
        self.match_bytes_left = Some(request.seen.work.left());
    }

    /// Adds a rule's limits: once or, where the path is part of the key, for each spelling. An
    /// application knows one of them, and whoever varies what it does not see must not get a new count.
    /// Returns the spellings that the rule is enforced for.
    fn add_each_path(
        &mut self,
        one: Selected,
        request: &Request<'_>,
        asked: &mut AskedRules,
    ) -> SpellingSet {
        let (rule, mut left) = (self.rules.at(one.rule), one.spellings);
        if left == 1 || !rule.key.has_path() {
            let standing = self.add(one, 0, request);
            asked.note(one.rule, rule, standing);
            return if standing == Some(Standing::Enforced) { left } else { 0 };
        }
        let mut enforced = 0;
        while left != 0 {
            let number = left.trailing_zeros() as usize;
            let text = |number| request.seen.spelling(number).map(Spelling::text);
            let same = each_of(left).filter(|other| text(*other) == text(number));
            let spellings = same.fold(0, |set, other| set | 1 << other);
            let standing = self.add(Selected { spellings, ..one }, number as u8, request);
            asked.note(one.rule, rule, standing);
            enforced |= if standing == Some(Standing::Enforced) { spellings } else { 0 };
            left &= !spellings;
        }
        enforced
    }

    /// Adds a rule's limits for one key, unless a fact of it is missing.
    fn add(&mut self, one: Selected, spelling: u8, request: &Request<'_>) -> Option<Standing> {
        let (number, rule) = (one.rule, self.rules.at(one.rule));
        if self.too_many || self.keys.len() + 2 > KEYS_MAX {
            self.too_many = true;
            // It is refused, by this rule or another.
            return Some(Standing::Enforced);
        }
        let Some(caller) = self.key_of((number, spelling), false, request) else {
            self.without_fact += 1;
            return None;
        };
        let callers_key = self.key(caller);
        let standing = match rule.mode.enforces(&rule.name, callers_key) {
            false => Standing::Shadow,
            true if rule.soft => Standing::Soft,
            true => Standing::Enforced,
        };
        let cost =
            request.explicit_cost.unwrap_or_else(|| rule.cost_of(&request.seen, one.spellings));
        let (list, limits, by_tier) = match self.rules.override_of(number, callers_key, request.now)
        {
            Some(one) => (List::Override(one), self.rules.limits_of_override(one).len(), false),
            None => {
                let tier = self.rules.tier_index(request.seen.tier);
                let (limits, own) = rule.limits.of(tier);
                let list = tier.filter(|_| own).map_or(List::Plain, |tier| List::Tier(tier as u16));
                (list, limits.len(), own)
            }
        };
        let key = match by_tier {
            true => self.key_of((number, spelling), true, request)?,
            false => caller,
        };
        for index in 0..limits as u8 {
            let place = Place { rule: number, list, index };
            let of = request.of;
            self.push(Planned { place, key, caller, cost, standing, of, quota: false });
        }
        Some(standing)
    }

    /// A limit that cannot be left out takes the room of one that can.
    fn push(&mut self, planned: Planned) {
        let needed = self.is_needed(&planned);
        if self.limits.is_full() && needed {
            let other = self.limits.iter().rposition(|one| !self.is_needed(one));
            if let Some(other) = other {
                self.limits.remove(other);
                self.left_out += 1;
            }
        }
        if self.limits.try_push(planned).is_err() {
            match needed {
                true => self.too_many = true,
                false => self.left_out += 1,
            }
        }
    }

    /// Whether a request cannot be decided without a limit: it refuses, or its status is told whether
    /// it does or not.
    fn is_needed(&self, planned: &Planned) -> bool {
        planned.standing == Standing::Enforced || self.is_direct(planned)
    }

    /// Whether a file or the asker brings it, not a rule of our own.
    pub(crate) fn is_direct(&self, planned: &Planned) -> bool {
        RuleSet::is_stated(planned.place.rule) || self.rule(planned).imported.is_some()
    }

    /// Adds what an imported file or the asker says of a descriptor. The key is made already: it is all
    /// that such a rule asks about.
    pub(crate) fn add_direct(&mut self, one: Direct, key: KeyBuf, now: Micros) {
        let Direct { rule, cost, standing, of, quota, .. } = one;
        let (number, replaced) = (self.keys.len() as u16, self.rules.override_of(rule, &key, now));
        self.keys.push(Made { of, template: None, spelling: 0, by_tier: false, key: Some(key) });
        let (list, limits) = match (replaced, one.limit) {
            (Some(one), _) => (List::Override(one), self.rules.limits_of_override(one).len()),
            (None, DirectLimit::Closed(unit)) => {
                let closed = Closed { rule, unit, key: number, cost, standing, of, quota };
                self.too_many |= self.closed.try_push(closed).is_err();
                return;
            }
            (None, DirectLimit::Stated(limit)) => {
                self.stated.push(*limit);
                let place = Place { rule, list: List::Stated, index: self.stated.len() as u8 - 1 };
                let key = number;
                return self.push(Planned { place, key, caller: key, cost, standing, of, quota });
            }
            (None, DirectLimit::OfRule) => (List::Plain, self.rules.at(rule).limits.plain().len()),
        };
        for index in 0..limits as u8 {
            let (place, key) = (Place { rule, list, index }, number);
            self.push(Planned { place, key, caller: key, cost, standing, of, quota });
        }
    }

    /// The number of the key of a rule, made at most once for each template and spelling of the path.
    fn key_of(
        &mut self,
        (rule, spelling): (u32, u8),
        by_tier: bool,
        request: &Request<'_>,
    ) -> Option<u16> {
        let (of, template) = (request.of, Some(self.rules.template_of(rule)));
        let same = |made: &Made| {
            (made.of, made.by_tier, made.template, made.spelling)
                == (of, by_tier, template, spelling)
        };
        let number = self.keys.iter().position(same).unwrap_or_else(|| {
            let mut key = KeyBuf::with_capacity(KEY_BYTES);
            let ipv6_prefix = self.rules.settings().identify.ipv6_prefix;
            let facts = KeyFacts { seen: &request.seen, spelling: spelling.into(), ipv6_prefix };
            let whole = self.rules.at(rule).key.write(&mut key, &facts);
            if by_tier {
                key.add(TIER, request.seen.tier.unwrap_or_default());
            }
            let key = whole.then_some(key);
            self.keys.push(Made { of, template, spelling, by_tier, key });
            self.keys.len() - 1
        });
        self.keys[number].key.is_some().then_some(number as u16)
    }

    fn key(&self, number: u16) -> &KeyBuf {
        let made = self.keys[usize::from(number)].key.as_ref();
        made.expect("only keys that were made are planned")
    }

    /// The key that a limit counts.
    pub(crate) fn key_for(&self, planned: &Planned) -> &KeyBuf {
        self.key(planned.key)
    }

    /// Whether two limits count in one and the same state.
    pub(crate) fn is_same_state(&self, one: &Planned, other: &Planned) -> bool {
        let (limit, same) = (self.limit(one), self.limit(other));
        let numbers = |limit: &Limit| (limit.id(), limit.fingerprint());
        numbers(limit) == numbers(same) && self.key_for(one) == self.key_for(other)
    }

    /// The key that a limit of nothing is about.
    pub(crate) fn key_of_closed(&self, closed: &Closed) -> &KeyBuf {
        self.key(closed.key)
    }

    /// The caller's key, whatever the tier: for what is kept of a rule beside its counts.
    pub(crate) fn caller(&self, planned: &Planned) -> &KeyBuf {
        self.key(planned.caller)
    }

    pub(crate) fn rule(&self, planned: &Planned) -> &'a Rule {
        self.rules.at(planned.place.rule)
    }

    pub(crate) fn rules(&self) -> &'a RuleSet {
        self.rules
    }

    /// A limit as people read it.
    pub(crate) fn limit_text(&self, planned: &Planned) -> &str {
        &planned.place.limit(self.rules, &self.stated).text
    }

    pub(crate) fn limit(&self, planned: &Planned) -> &Limit {
        self.shared_limit(planned)
    }

    /// The same, for whoever keeps it.
    pub(crate) fn shared_limit(&self, planned: &Planned) -> &Arc<Limit> {
        &planned.place.limit(self.rules, &self.stated).limit
    }

    /// The rules that are enforced, each once for each key they count.
    pub(crate) fn enforced(&self) -> impl Iterator<Item = (u32, &'a Rule, &KeyBuf)> {
        let mut last = None;
        self.limits.iter().filter_map(move |planned| {
            let rule = planned.place.rule;
            let again = last.replace((rule, planned.caller)) == Some((rule, planned.caller));
            (!again && planned.standing == Standing::Enforced)
                .then(|| (rule, self.rule(planned), self.caller(planned)))
        })
    }

    /// The questions to the store.
    pub(crate) fn checks(&self, act: Act) -> ArrayVec<Check<'_>, MAX_LIMITS> {
        self.limits.iter().map(|planned| self.check(planned, act)).collect()
    }

    pub(crate) fn check(&self, planned: &Planned, act: Act) -> Check<'_> {
        let counts_denied = act == Act::Take && self.counts_denied(planned);
        let act = if self.refused && !counts_denied { Act::Peek } else { act };
        let check = Check::new(self.limit(planned), self.key_for(planned));
        let check = check.cost(planned.cost).act(act).terms(self.rule(planned).terms);
        let check = if planned.standing == Standing::Enforced { check } else { check.shadow() };
        let check = if self.at_once { check.at_once() } else { check };
        if counts_denied { check.count_denied() } else { check }
    }

    /// Whether refusals are charged, too. A file says that of its own windows: a bucket that somebody has
    /// set in place of one would keep whoever goes on asking out for good.
    pub(crate) fn counts_denied(&self, planned: &Planned) -> bool {
        let rule = self.rule(planned);
        let replaced = rule.imported.is_some() && matches!(planned.place.list, List::Override(_));
        rule.count_denied
            && !(replaced && self.limit(planned).algorithm() != Algorithm::FixedWindow)
    }

    /// The limits that a settlement is about: those whose cost was reserved, or all if none was.
    pub(crate) fn settled(&self, explicit_cost: bool) -> impl Fn(&Planned) -> bool {
        let reserves = |planned: &Planned| matches!(self.rule(planned).cost, Cost::Reserve { .. });
        let all = explicit_cost || !self.limits.iter().any(reserves);
        move |planned| all || reserves(planned)
    }
}

/// The part of a key that keeps the counts of tiers apart.
const TIER: &str = "tier";

/// The key that is counted for a tier with numbers of its own. A caller may switch between tiers: if they
/// shared a count, every switch would fit what was used to other numbers.
pub(crate) fn tier_key(caller: &KeyBuf, tier: &str) -> KeyBuf {
    caller.clone().with(TIER, tier)
}

/// A rule that is known to apply, without asking when.
pub(crate) struct Direct {
    pub(crate) rule: u32,
    pub(crate) limit: DirectLimit,
    pub(crate) cost: u64,
    pub(crate) standing: Standing,
    pub(crate) of: u8,
    pub(crate) quota: bool,
}

/// Which limit it has.
pub(crate) enum DirectLimit {
    /// Those of the rule.
    OfRule,
    /// One that whoever asks has stated.
    Stated(Box<RuleLimit>),
    /// Nothing in this time.
    Closed(Unit),
}

/// The rules of one request that could refuse it: whether one was asked, and the first that was skipped.
#[derive(Default)]
struct AskedRules {
    can_refuse: bool,
    skipped: Option<u32>,
}

impl AskedRules {
    fn note(&mut self, number: u32, rule: &Rule, standing: Option<Standing>) {
        match standing {
            Some(Standing::Enforced) => self.can_refuse = true,
            None if can_refuse(rule) => self.skipped = self.skipped.or(Some(number)),
            _ => {}
        }
    }
}

/// What is the same for all rules of one request.
struct Request<'a> {
    seen: Seen<'a>,
    of: u8,
    explicit_cost: Option<u64>,
    now: Micros,
}
