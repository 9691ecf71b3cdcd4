//! `RuleSet`: all rules, compiled, immutable, and indexed so that a request is compared only with
//! the rules that its path can match.

mod dated_numbers;
mod read_headers;
mod recording;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ipnet::IpNet;
use tollgate::headers::Dialect;
use tollgate::{Algorithm, KeyBuf, Micros};

use crate::cors::CorsSettings;
use crate::facts::Facts;
use crate::gateway_settings::GatewaySettings;
use crate::identify::Identify;
use crate::import::ImportedDomain;
use crate::import::tree::DescriptorTree;
use crate::key_template::KeyTemplate;
use crate::limit_spec::RuleLimit;
use crate::matcher::Condition;
use crate::normalized_facts::NormalizedFacts;
use crate::path::{Spelling, SpellingSet, spelling_numbers};
use crate::pattern::{PathIndex, Pattern};
use crate::rule::{Cost, Mode, Rule, TierLimits};
use crate::tally::Tally;
use crate::waiting::WaitTally;
use dated_numbers::LimitsAfterOverride;
use read_headers::ReadHeaders;
pub use read_headers::confusable_header_name;
pub use recording::{RecordedHeader, hash_credential, hash_header_credential};

/// All rules. A reload replaces the set whole.
#[derive(Debug)]
pub struct RuleSet {
    /// The contents of the files. Shared by sets that differ from it in overrides alone.
    base: Arc<BaseRules>,
    overrides: OverrideTable,
    /// True if some rule has a queue.
    can_wait: bool,
}

/// The contents of rules files.
#[derive(Clone, Debug)]
struct BaseRules {
    rules: Vec<IndexedRule>,
    /// Rules that have a path, by path.
    by_path: PathIndex,
    /// The numbers of the others, which are tried one by one.
    without_path: Vec<u32>,
    /// The names of tiers; their order is that of [`TierLimits`](crate::rule::TierLimits).
    tiers: HashMap<Box<str>, usize>,
    /// The different templates of keys: a request makes the key of each at most once.
    templates: HashMap<KeyTemplate, u16>,
    /// The headers that keys of rules that refuse are made of, in lower case: true if a header
    /// counts from every peer, false if only from trusted ones.
    key_headers: HashMap<Box<str>, bool>,
    /// The headers that rules look at, sorted by name. Bound: 32.
    recorded_headers: Vec<RecordedHeader>,
    overrides: Vec<Arc<Override>>,
    settings: RuleSettings,
    /// The domains by name. Bound: the files that are read.
    domains: HashMap<Box<str>, DomainIndex>,
    /// True if some rule is our own, not from an imported file.
    has_own_rules: bool,
    /// True if the cost of some rule is estimated by the request.
    estimates_costs: bool,
    /// True if the cost of some rule is estimated by the body of a request.
    reads_request_json: bool,
    /// True if some rule counts the bytes of bodies.
    counts_bytes: bool,
    /// True if some rule looks at the host.
    reads_host: bool,
    /// The headers that rules look at and that identify callers, in lower case.
    read_headers: ReadHeaders,
    /// True if some rule with a `ban` may be in shadow.
    has_shadow_bans: bool,
    /// True if the bytes of a request's body are part of the estimate of some rule.
    estimates_by_bytes: bool,
    /// Rules that stated limits are counted under: first that of our own rules, then those of each
    /// domain. Not among the rules.
    stated: Vec<IndexedRule>,
}

/// A rule, and the rest of its condition that the path index does not test.
#[derive(Clone, Debug)]
struct IndexedRule {
    rule: Rule,
    rest: Option<Condition>,
    /// True if the rest of the condition tests the path.
    rest_has_path: bool,
    /// The number of its key's template among the different ones.
    template: u16,
    /// The hash of its name, for tables by rule and key.
    name_hash: u64,
    tally: Arc<Tally>,
    waits: Arc<WaitTally>,
}

/// A rule whose condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SelectedRule {
    /// Its number.
    pub(crate) rule: u32,
    /// True if it applies only where no other rule does.
    pub(crate) is_fallback: bool,
    /// The spellings of the path that all of it holds for.
    pub(crate) spellings: SpellingSet,
}

/// A domain that a file defines.
#[derive(Clone, Debug)]
pub(crate) struct DomainIndex {
    pub(crate) tree: DescriptorTree,
    /// The number of the rule that stated limits are counted under.
    pub(crate) stated: u32,
    /// The algorithm of stated limits.
    pub(crate) algorithm: Algorithm,
}

impl IndexedRule {
    /// Returns true if the rest of the condition holds; removes the spellings that it does not hold for.
    #[inline]
    fn still_applies(&self, seen: &NormalizedFacts<'_>, one: &mut SelectedRule) -> bool {
        one.is_fallback = self.rule.fallback;
        let Some(rest) = &self.rest else { return true };
        let holds = |number: &usize| {
            seen.match_budget.at_spelling(*number);
            rest.holds(seen, seen.spelling(*number))
        };
        if one.spellings == 1 || !self.rest_has_path {
            return holds(&0);
        }
        let held = spelling_numbers(one.spellings).filter(holds);
        one.spellings = held.fold(0, |set, number| set | 1 << number);
        one.spellings != 0
    }
}

impl SelectedRule {
    /// A rule that may apply.
    fn new(rule: u32, spellings: SpellingSet) -> SelectedRule {
        SelectedRule { rule, is_fallback: false, spellings }
    }
}

impl IndexedRule {
    /// A rule that is found only by its number.
    fn unindexed(rule: Rule) -> IndexedRule {
        IndexedRule {
            name_hash: rule.name_hash(),
            rule,
            rest: None,
            rest_has_path: false,
            template: 0,
            tally: Arc::default(),
            waits: Arc::default(),
        }
    }
}

/// The bit that marks the number of a rule that stated limits are counted under.
const STATED_BIT: u32 = 1 << 31;

/// The number of the rule that stated limits are counted under in domains that no file defines.
pub(crate) const STATED_BY_OWN_RULES: u32 = STATED_BIT;

/// Creates a rule that stated limits are counted under.
pub(crate) fn stated_rule(name: &str) -> Rule {
    Rule::new(name, KeyTemplate::of_entries([]), TierLimits::untiered(Vec::new()))
}

/// Other limits for one caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The name of the rule whose limits are replaced.
    pub rule: Box<str>,
    /// The caller's key.
    pub key: KeyBuf,
    /// The limits that apply instead.
    pub limits: Vec<RuleLimit>,
    /// The end; `None` lasts until it is removed.
    pub until: Option<Micros>,
}

impl Override {
    /// Returns true if it has not ended.
    pub fn is_active_at(&self, now: Micros) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

#[derive(Debug, Default)]
struct OverrideTable {
    /// Those of the file, then those set at run time.
    list: Vec<Arc<Override>>,
    /// Number of overrides from the file.
    file_count: usize,
    /// The overrides by rule, then by key.
    by_rule: HashMap<u32, HashMap<KeyBuf, u32>>,
    /// The limits of rules for callers whose override has ended. Bound: the overrides that have an end and
    /// those that the gatekeeper remembers.
    after: LimitsAfterOverride,
}

/// The settings of a rules file beside its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSettings {
    /// Settings for the identification of callers.
    pub identify: Identify,
    /// Networks that no rule applies to.
    pub exempt_ips: Vec<IpNet>,
    /// Users that no rule applies to.
    pub exempt_users: HashSet<Box<str>>,
    /// Header dialects of replies.
    pub dialects: Vec<Dialect>,
    /// True if logs may show keys in the clear.
    pub log_keys_plain: bool,
    /// True if CORS preflights pass rules that do not name their method.
    pub preflights_pass: bool,
    /// The web pages that may read the gateway's own responses.
    pub cors: Option<Arc<CorsSettings>>,
    /// Upstreams and routes of the gateway.
    pub gateway: Arc<GatewaySettings>,
}

impl Default for RuleSettings {
    fn default() -> RuleSettings {
        RuleSettings {
            identify: Identify::default(),
            exempt_ips: Vec::new(),
            exempt_users: HashSet::new(),
            dialects: Dialect::DEFAULT.into(),
            log_keys_plain: false,
            preflights_pass: false,
            cors: None,
            gateway: Arc::default(),
        }
    }
}

impl RuleSet {
    /// The most rules.
    pub const RULES_MAX: usize = 20_000;

    /// A set of these rules, in order. `tiers` are the names that the rules' limits are listed by.
    /// Overrides of rules that do not exist are left out.
    pub fn new(
        rules: Vec<Rule>,
        tiers: &[Box<str>],
        overrides: Vec<Override>,
        settings: RuleSettings,
    ) -> RuleSet {
        let mut book = BaseRules {
            rules: Vec::with_capacity(rules.len()),
            by_path: PathIndex::default(),
            without_path: Vec::new(),
            tiers: tiers.iter().cloned().enumerate().map(|(index, name)| (name, index)).collect(),
            templates: HashMap::new(),
            key_headers: HashMap::new(),
            recorded_headers: Vec::new(),
            overrides: overrides.into_iter().map(Arc::new).collect(),
            settings,
            domains: HashMap::new(),
            has_own_rules: false,
            estimates_costs: false,
            reads_request_json: false,
            counts_bytes: false,
            reads_host: false,
            read_headers: ReadHeaders::default(),
            has_shadow_bans: false,
            estimates_by_bytes: false,
            stated: vec![IndexedRule::unindexed(stated_rule("stated"))],
        };
        for name in book.settings.identify.identity_headers() {
            book.read_headers.insert(name);
        }
        for rule in rules {
            book.push(rule);
        }
        RuleSet::of(Arc::new(book), &[], &[])
    }

    /// Adds domains whose trees lead to rules of this set. Only before the set is shared.
    pub(crate) fn with_domains(mut self, domains: Vec<ImportedDomain>) -> RuleSet {
        let book = Arc::get_mut(&mut self.base).expect("nobody else has it yet");
        for ImportedDomain { name, tree, stated, algorithm } in domains {
            let number = STATED_BIT | book.stated.len() as u32;
            book.stated.push(IndexedRule::unindexed(stated));
            book.domains.insert(name, DomainIndex { tree, stated: number, algorithm });
        }
        self
    }

    /// A domain, if a file defines it.
    pub(crate) fn domain(&self, name: &str) -> Option<&DomainIndex> {
        self.base.domains.get(name)
    }

    /// Returns true if rules decide domains that no file defines.
    pub(crate) fn has_own_rules(&self) -> bool {
        self.base.has_own_rules
    }

    /// Returns true if this is the number of a rule that stated limits are counted under.
    pub(crate) fn is_stated(number: u32) -> bool {
        number & STATED_BIT != 0
    }

    /// Returns true if a file defines this domain.
    pub fn defines_domain(&self, name: &str) -> bool {
        self.domain(name).is_some()
    }

    /// The names of the domains that files define, sorted.
    pub fn domains(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.base.domains.keys().map(|name| &**name).collect();
        names.sort_unstable();
        names
    }

    fn indexed(&self, number: u32) -> &IndexedRule {
        match number & STATED_BIT {
            0 => &self.base.rules[number as usize],
            _ => &self.base.stated[(number & !STATED_BIT) as usize],
        }
    }

    /// The overrides of the file.
    pub fn file_overrides(&self) -> &[Arc<Override>] {
        &self.base.overrides
    }

    /// The same rules, with these overrides beside those of the file. Of two for one caller these
    /// win, and of these the last.
    /// `ended` are overrides that applied before.
    pub(crate) fn with_overrides(
        &self,
        more: &[Arc<Override>],
        ended: &[Arc<Override>],
    ) -> RuleSet {
        RuleSet::of(self.base.clone(), more, ended)
    }

    fn of(book: Arc<BaseRules>, more: &[Arc<Override>], ended: &[Arc<Override>]) -> RuleSet {
        let numbers: HashMap<&str, u32> =
            book.rules.iter().map(|one| &*one.rule.name).zip(0..).collect();
        let mut overrides = OverrideTable::default();
        for (index, one) in book.overrides.iter().chain(more).enumerate() {
            let Some(rule) = numbers.get(&*one.rule) else { continue };
            let number = overrides.list.len() as u32;
            overrides.file_count += usize::from(index < book.overrides.len());
            overrides.by_rule.entry(*rule).or_default().insert(one.key.clone(), number);
            overrides.list.push(one.clone());
        }
        for one in overrides.list.clone() {
            overrides.add_end(&numbers, &book, &one);
        }
        for one in ended {
            overrides.date_again(&numbers, one);
            overrides.add_end(&numbers, &book, one);
        }
        let delays = |limits: &[RuleLimit]| limits.iter().any(|one| one.limit.is_queue());
        let can_wait = book.rules.iter().any(|one| one.rule.can_wait())
            || overrides.list.iter().any(|one| delays(&one.limits));
        RuleSet { base: book, overrides, can_wait }
    }

    /// Takes over from `before` the tallies of rules of the same name, and the tokens that the same
    /// keys have verified. Only before the set is shared.
    pub(crate) fn inherit(&mut self, before: &RuleSet) {
        let Some(book) = Arc::get_mut(&mut self.base) else { return };
        book.settings.identify.inherit_tokens(&before.settings().identify);
        let before: HashMap<&str, &IndexedRule> =
            before.base.rules.iter().map(|indexed| (&*indexed.rule.name, indexed)).collect();
        for one in &mut book.rules {
            if let Some(before) = before.get(&*one.rule.name) {
                one.tally = Arc::clone(&before.tally);
                one.waits = Arc::clone(&before.waits);
            }
        }
    }

    /// All rules, in order.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.base.rules.iter().map(|indexed| &indexed.rule)
    }

    /// All rules, in order, with the counts of their verdicts so far.
    pub fn tallies(&self) -> impl ExactSizeIterator<Item = (&Rule, &Arc<Tally>)> {
        self.base.rules.iter().map(|indexed| (&indexed.rule, &indexed.tally))
    }

    pub(crate) fn name_hash_of(&self, number: u32) -> u64 {
        self.indexed(number).name_hash
    }

    /// The numbers of the rules, by the hash of their name.
    pub(crate) fn numbers_by_name_hash(&self) -> HashMap<u64, u32> {
        self.base.rules.iter().map(|one| one.name_hash).zip(0..).collect()
    }

    pub(crate) fn tally_of(&self, number: u32) -> &Tally {
        &self.indexed(number).tally
    }

    /// All rules, in order, with the counts of their waits so far.
    pub fn wait_tallies(&self) -> impl ExactSizeIterator<Item = (&Rule, &Arc<WaitTally>)> {
        self.base.rules.iter().map(|indexed| (&indexed.rule, &indexed.waits))
    }

    pub(crate) fn wait_tally_of(&self, number: u32) -> &Arc<WaitTally> {
        &self.indexed(number).waits
    }

    /// Returns true if some rule may let a request wait: by a fair queue, or by a limit with
    /// `queue: true`.
    #[inline]
    pub fn can_wait(&self) -> bool {
        self.can_wait
    }

    /// A rule by its name.
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.rules().find(|rule| *rule.name == *name)
    }

    /// The number of a rule's key template among the different ones, below [`RuleSet::RULES_MAX`].
    pub(crate) fn template_of(&self, number: u32) -> u16 {
        self.base.rules[number as usize].template
    }

    pub(crate) fn rule_at(&self, number: u32) -> &Rule {
        &self.indexed(number).rule
    }

    /// The settings beside the rules.
    pub fn settings(&self) -> &RuleSettings {
        &self.base.settings
    }

    /// The names of all tiers, in order.
    pub fn tiers(&self) -> Vec<&str> {
        let mut tiers: Vec<_> = self.base.tiers.iter().collect();
        tiers.sort_unstable_by_key(|(_, index)| **index);
        tiers.into_iter().map(|(name, _)| &**name).collect()
    }

    /// All overrides: of the file, then those set at run time.
    pub fn overrides(&self) -> &[Arc<Override>] {
        &self.overrides.list
    }

    /// All rules whose condition holds, in order, with fallbacks, without those switched off. For
    /// people who want to know which rules a request may meet.
    pub fn matching<'a>(&'a self, facts: &Facts<'_>) -> Vec<&'a Rule> {
        let seen = self.normalized_facts(facts);
        let mut selected = Vec::new();
        self.select(&seen, &mut selected);
        selected.into_iter().map(|one| self.rule_at(one.rule)).collect()
    }

    /// The facts as rules see them.
    pub(crate) fn normalized_facts<'a>(&'a self, facts: &'a Facts<'a>) -> NormalizedFacts<'a> {
        let mut seen = NormalizedFacts::new(facts, &self.settings().identify);
        if self.base.reads_host {
            seen = seen.with_host();
        }
        seen.tier = self.tier_of(&seen);
        let before = seen.ip;
        seen.ip = before.map(|ip| self.settings().identify.canonical_address(ip));
        if seen.ip != before {
            // Of a translated address the last 32 bits are left.
            seen.ip_prefix = seen.ip_prefix.and_then(|prefix| prefix.checked_sub(96));
        }
        seen
    }

    /// The caller's tier: what the facts say, else the table, else the default.
    fn tier_of<'a>(&'a self, seen: &NormalizedFacts<'a>) -> Option<&'a str> {
        let identify = &self.base.settings.identify;
        // An empty name is no name, as with users.
        let known = |tier: &&str| match self.base.tiers.is_empty() {
            true => !tier.is_empty(),
            false => self.base.tiers.contains_key(*tier),
        };
        let said = seen.facts.tier.filter(known);
        let in_table = || match identify.tier_of_user.is_empty() {
            true => None,
            false => identify.tier_of_user.get(seen.user()?).map(|tier| &**tier),
        };
        said.or_else(in_table).or(identify.default_tier.as_deref())
    }

    /// Returns true if a rule that refuses makes its keys from the header of this name, in lower
    /// case: as the identity of the caller, or as a fact of its key. Headers in which a proxy names
    /// the user or the address count only if the peer is `trusted`. Refuse a request that has
    /// several such fields with different values: the service behind you may read another one than
    /// Tollgate, and the client would choose what is counted.
    pub fn makes_keys_of(&self, header: &str, trusted: bool) -> bool {
        self.base.key_headers.get(header).is_some_and(|from_anybody| *from_anybody || trusted)
    }

    /// Returns true if servers may take a header of this name, in lower case, for one that rules look at or that
    /// identifies callers: `x_tenant` for `x-tenant`, because CGI and its heirs turn both into `HTTP_X_TENANT`. Remove
    /// such a field, or refuse the request: it would decide what the service behind you sees.
    #[inline]
    pub fn is_mistakable_header(&self, header: &str) -> bool {
        self.base.read_headers.is_mistakable(header)
    }

    /// Returns true if servers may take a trailer of this name for a header that rules look at or that identifies callers: many
    /// add trailers to the headers, after those have been counted.
    pub fn is_mistakable_trailer(&self, trailer: &str) -> bool {
        self.base.read_headers.may_be_taken_for_one(trailer)
    }

    /// Returns true if rules or `identify` look at header fields by name.
    #[inline]
    pub fn reads_headers(&self) -> bool {
        !self.base.read_headers.is_empty()
    }

    /// Returns true if some rule looks at the host.
    pub fn reads_host(&self) -> bool {
        self.base.reads_host
    }

    /// The place of a tier in the rules' lists of limits.
    pub(crate) fn tier_index(&self, tier: Option<&str>) -> Option<usize> {
        self.base.tiers.get(tier?).copied()
    }

    /// The name of the tier of this index.
    pub(crate) fn tier_name(&self, tier: usize) -> Option<&str> {
        self.base.tiers.iter().find(|(_, index)| **index == tier).map(|(name, _)| &**name)
    }

    /// Returns true if no rule applies to this caller.
    pub(crate) fn exempts(&self, seen: &NormalizedFacts<'_>) -> bool {
        let RuleSettings { exempt_ips, exempt_users, .. } = &self.base.settings;
        let by_user = || seen.user().is_some_and(|user| exempt_users.contains(user));
        let by_ip = || seen.is_in(exempt_ips);
        (!exempt_users.is_empty() && by_user()) || (!exempt_ips.is_empty() && by_ip())
    }

    /// Returns true if some rule with a `ban` may be in shadow.
    pub(crate) fn has_shadow_bans(&self) -> bool {
        self.base.has_shadow_bans
    }

    /// Returns true if the cost of some rule is estimated by the request: only then
    /// [`Facts::request_bytes`] and [`Facts::request_json`] are looked at.
    pub fn estimates_costs(&self) -> bool {
        self.base.estimates_costs
    }

    /// Returns true if the bytes of a request's body are part of the estimate of some rule.
    pub fn estimates_by_bytes(&self) -> bool {
        self.base.estimates_by_bytes
    }

    /// Returns true if the cost of some rule is estimated by the body of a request.
    pub fn reads_request_json(&self) -> bool {
        self.base.reads_request_json
    }

    /// Returns true if some rule counts the bytes of bodies.
    pub fn counts_bytes(&self) -> bool {
        self.base.counts_bytes
    }

    /// Finds the rules whose whole condition holds for some spelling of the path, in order. `found` is
    /// emptied first.
    pub(crate) fn select(&self, seen: &NormalizedFacts<'_>, found: &mut Vec<SelectedRule>) {
        found.clear();
        if let Some(path) = seen.spelling(0) {
            let mut add = |rule| found.push(SelectedRule::new(rule, 1));
            self.base.by_path.each_match(path.text(), &mut add);
        }
        found.extend(self.base.without_path.iter().map(|&rule| SelectedRule::new(rule, 1)));
        if seen.spelling_count() > 1 {
            self.find_by_other_spellings(seen, found);
        }
        if !found.is_sorted_by(|one, next| one.rule < next.rule) {
            found.sort_unstable_by_key(|one| one.rule);
            // A rule with several patterns may have been found by each, and by several spellings.
            found.dedup_by(|one, kept| {
                let same = one.rule == kept.rule;
                kept.spellings |= if same { one.spellings } else { 0 };
                same
            });
        }
        found.retain_mut(|one| self.base.rules[one.rule as usize].still_applies(seen, one));
    }

    /// Adds the rules that are found by the spellings of a path after the first.
    #[cold]
    fn find_by_other_spellings(&self, seen: &NormalizedFacts<'_>, found: &mut Vec<SelectedRule>) {
        for number in 1..seen.spelling_count() {
            let Some(path) = seen.spelling(number) else { continue };
            let text = |other: usize| seen.spelling(other).map(Spelling::text);
            if let Some(same) = (0..number).find(|other| text(*other) == Some(path.text())) {
                let found_too = found.iter_mut().filter(|one| one.spellings >> same & 1 == 1);
                found_too.for_each(|one| one.spellings |= 1 << number);
                continue;
            }
            let mut add = |rule| found.push(SelectedRule::new(rule, 1 << number));
            self.base.by_path.each_match(path.text(), &mut add);
        }
        let all = SpellingSet::MAX >> (SpellingSet::BITS as usize - seen.spelling_count());
        let others = self.base.without_path.iter();
        found.extend(others.map(|&rule| SelectedRule::new(rule, all)));
    }

    /// Returns true if the override of this number was set at run time.
    pub(crate) fn is_run_time(&self, number: u32) -> bool {
        number as usize >= self.overrides.file_count
    }

    /// The number of the override for a caller, if it still stands.
    pub(crate) fn override_of(&self, rule: u32, key: &KeyBuf, now: Micros) -> Option<u32> {
        if self.overrides.list.is_empty() {
            return None;
        }
        let number = *self.overrides.by_rule.get(&rule)?.get(key)?;
        self.overrides.list[number as usize].is_active_at(now).then_some(number)
    }

    pub(crate) fn limits_of_override(&self, number: u32) -> &[RuleLimit] {
        &self.overrides.list[number as usize].limits
    }
}

impl BaseRules {
    fn push(&mut self, rule: Rule) {
        let number = self.rules.len() as u32;
        let (patterns, rest) = split_path(rule.condition.clone());
        self.has_own_rules |= rule.imported.is_none();
        self.estimates_costs |= rule.mode != Mode::Off && rule.has_estimate();
        self.reads_request_json |= rule.mode != Mode::Off && rule.request_paths().next().is_some();
        self.counts_bytes |= rule.mode != Mode::Off && rule.cost == Cost::Bytes;
        let reads_host = rule.mode != Mode::Off && rule.reads_host();
        self.reads_host |= reads_host;
        self.has_shadow_bans |=
            rule.ban.is_some() && matches!(rule.mode, Mode::Shadow | Mode::Share(_));
        self.estimates_by_bytes |= rule.mode != Mode::Off && rule.estimates_by_bytes();
        if rule.mode != Mode::Off {
            self.note_headers(&rule);
        }
        if rule.mode == Mode::Off || rule.imported.is_some() {
            // The rule is never matched, or only found through a tree.
        } else if let Some(patterns) = patterns {
            patterns.iter().for_each(|pattern| self.by_path.insert(pattern, number));
        } else {
            self.without_path.push(number);
        }
        if !matches!(rule.mode, Mode::Shadow | Mode::Off) && !rule.soft {
            let identify = &self.settings.identify;
            for name in identify.forwarded_headers() {
                self.key_headers.entry(name.into()).or_insert(false);
            }
            let host = reads_host.then_some("host");
            for name in rule.key.headers().chain(identify.proving_headers()).chain(host) {
                self.key_headers.insert(name.into(), true);
            }
        }
        let next = self.templates.len() as u16;
        let template = *self.templates.entry(rule.key.clone()).or_insert(next);
        let rest_has_path = rest.as_ref().is_some_and(Condition::has_path);
        self.rules.push(IndexedRule {
            name_hash: rule.name_hash(),
            rule,
            rest,
            rest_has_path,
            template,
            tally: Arc::default(),
            waits: Arc::default(),
        });
    }
}

/// Takes the path out of a condition, if the condition cannot hold without it.
fn split_path(when: Option<Condition>) -> (Option<Vec<Pattern>>, Option<Condition>) {
    match when {
        Some(Condition::Path(patterns)) => (Some(patterns), None),
        Some(Condition::All(mut all)) => {
            let path = all.iter().position(|one| matches!(one, Condition::Path(_)));
            let Some(index) = path else { return (None, Some(Condition::All(all))) };
            let Condition::Path(patterns) = all.swap_remove(index) else { return (None, None) };
            let rest = match all.len() {
                0 | 1 => all.pop(),
                _ => Some(Condition::All(all)),
            };
            (Some(patterns), rest)
        }
        other => (None, other),
    }
}
