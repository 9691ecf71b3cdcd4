//! Requests that meet more limits than are judged together. Requests are made up from what the rules
//! ask for, and each is tried on all rules that its path can match.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use tollgate::KeyBuf;
use tollgate::decision::MAX_LIMITS;

use crate::Problem;
use crate::compile::WrittenRule;
use crate::facts::Facts;
use crate::key_template::KeyFacts;
use crate::matcher::{Condition, TextTest};
use crate::normalized_facts::NormalizedFacts;
use crate::pattern::{PathIndex, Pattern};
use crate::rule::{Mode, Rule};
use crate::rule_set::RuleSet;

/// How many sets of rules with too many limits are reported, of each severity.
const MAX_REPORTED: usize = 10;

/// How many rules of such a set are named.
const NAMED_MAX: usize = 20;

/// How many conditions may be tried: some hundredths of a second.
const MAX_TRIED: usize = 3_000_000;

/// What a glob or regular expression counts for among them.
const EXPRESSION_WEIGHT: usize = 50;

/// How many header fields a made-up request carries.
const MAX_HEADERS: usize = 50;

/// What is sent where any text will do.
const ANY: &str = "x";

/// Reports requests that meet too many limits: an error if they certainly do, a warning if it takes
/// certain callers or headers, or if only limits that do not refuse are left out.
pub(crate) fn check(rules: &[WrittenRule<'_>], set: &RuleSet) {
    let mut search = Search::new(rules, set);
    // Most files are small: their rules together have no more.
    if search.rules.iter().map(|one| one.longest).sum::<usize>() <= MAX_LIMITS {
        return;
    }
    let headers = key_headers(rules);
    let full = Sample::full(rules, search.tiers.first().copied(), &headers);
    let bare = Sample { headers: Vec::new(), caller: None, ..full.clone() };
    let methods: BTreeSet<&str> =
        rules.iter().flat_map(|one| methods(one.rule.condition.as_ref())).collect();
    for method in methods.into_iter().chain(["GET"]) {
        if search.is_over() {
            return;
        }
        search.examine(&Sample { method, ..full.clone() });
    }
    search.examine(&bare);
    for (number, written) in rules.iter().enumerate() {
        let Some(when) = &written.rule.condition else { continue };
        for pattern in search.patterns(number) {
            if !search.examine(&full.fitted(when, pattern)).contains(&(number as u32)) {
                search.examine(&bare.fitted(when, pattern));
            }
            if search.is_over() {
                return;
            }
        }
    }
}

/// A request that is made up.
#[derive(Clone)]
struct Sample<'a> {
    path: String,
    method: &'a str,
    ip: IpAddr,
    caller: Option<Caller<'a>>,
    headers: Vec<(&'a str, &'a str)>,
}

/// Who has all that can be known about a caller.
#[derive(Clone, Copy)]
struct Caller<'a> {
    user: &'a str,
    tier: &'a str,
    api_key: &'a str,
}

impl<'a> Sample<'a> {
    /// Has every fact, and the header fields that rules ask for.
    fn full(
        rules: &'a [WrittenRule<'_>],
        tier: Option<&'a str>,
        headers: &'a [String],
    ) -> Sample<'a> {
        let caller = Caller { user: ANY, tier: tier.unwrap_or(ANY), api_key: ANY };
        let mut sample = Sample {
            path: "/".into(),
            method: "GET",
            ip: IpAddr::from([192, 0, 2, 1]),
            caller: Some(caller),
            headers: headers.iter().map(|name| (&**name, ANY)).collect(),
        };
        rules
            .iter()
            .filter_map(|one| one.rule.condition.as_ref())
            .for_each(|one| sample.add_headers(one));
        sample
    }

    fn add_headers(&mut self, condition: &'a Condition) {
        match condition {
            Condition::Header { name, value } => self.header(name, text_of(value)),
            Condition::All(several) | Condition::Any(several) => {
                several.iter().for_each(|one| self.add_headers(one));
            }
            _ => {}
        }
    }

    fn header(&mut self, name: &'a str, value: &'a str) {
        let known = self.headers.iter().position(|(known, _)| *known == name);
        match known {
            Some(index) => self.headers[index].1 = value,
            None if self.headers.len() < MAX_HEADERS => self.headers.push((name, value)),
            None => {}
        }
    }

    /// One like it of which a condition holds, as far as that is simple.
    fn fitted(&self, when: &'a Condition, pattern: Option<&Pattern>) -> Sample<'a> {
        let mut sample = self.clone();
        sample.fit(when);
        sample.path = pattern.map_or(sample.path, Pattern::sample);
        if sample.path.is_empty() {
            sample.path.push('/');
        }
        sample
    }

    /// Changes it so that a condition holds, as far as that is simple.
    fn fit(&mut self, condition: &'a Condition) {
        let nobody = Caller { user: "", tier: "", api_key: "" };
        match condition {
            Condition::Path(patterns) => {
                self.path = patterns.first().map_or(ANY.into(), Pattern::sample);
            }
            Condition::Method(methods) => self.method = methods.first().map_or("GET", |one| one),
            Condition::Header { name, value } => self.header(name, text_of(value)),
            Condition::Upgrade(protocol) => self.header("upgrade", protocol),
            Condition::User(test) => self.caller.get_or_insert(nobody).user = text_of(test),
            Condition::Tier(test) => self.caller.get_or_insert(nobody).tier = text_of(test),
            Condition::ApiKey(test) => self.caller.get_or_insert(nobody).api_key = text_of(test),
            Condition::Ip(nets) => self.ip = nets.first().map_or(self.ip, |net| net.addr()),
            Condition::All(all) => all.iter().for_each(|one| self.fit(one)),
            Condition::Any(any) => any.first().into_iter().for_each(|one| self.fit(one)),
            // Only descriptors have these, and they are not made up: what they meet together is for
            // whoever sends them.
            Condition::Entry { .. } | Condition::Domain(_) => {}
            Condition::PathText(_) | Condition::Not(_) => {}
        }
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            method: Some(self.method),
            path: Some(&self.path),
            ip: Some(self.ip),
            user: self.caller.map(|caller| caller.user),
            tier: self.caller.map(|caller| caller.tier),
            api_key: self.caller.map(|caller| caller.api_key),
            headers: Some(&self.headers),
            ..Facts::default()
        }
    }
}

fn text_of(test: &TextTest) -> &str {
    match test {
        TextTest::OneOf(texts) => texts.first().map_or(ANY, |text| text),
        TextTest::Present | TextTest::Like(_) => ANY,
    }
}

/// A rule and what the search asks again and again.
struct Tried<'a> {
    rule: &'a Rule,
    /// How much trying it costs.
    weight: usize,
    /// The most limits that it has for any caller.
    longest: usize,
    /// The most that an override of it has.
    longest_override: usize,
    /// Whether its key can be written for every request, and for every caller that is known.
    key_always: bool,
    key_of_callers: bool,
}

struct Search<'a, 'w> {
    written: &'a [WrittenRule<'w>],
    rules: Vec<Tried<'a>>,
    tiers: Vec<&'a str>,
    by_path: PathIndex,
    /// The numbers of the rules that no path leads to.
    without_path: Vec<u32>,
    tried: usize,
    /// The sets of rules that were reported.
    errors: Vec<Vec<u32>>,
    warnings: Vec<Vec<u32>>,
}

/// Whose limits are the most, in words that follow "meets 17 limits".
type Whose = String;

impl<'a, 'w> Search<'a, 'w> {
    fn new(written: &'a [WrittenRule<'w>], set: &'a RuleSet) -> Search<'a, 'w> {
        let mut longest_overrides: HashMap<&str, usize> = HashMap::new();
        for one in set.overrides() {
            let longest = longest_overrides.entry(&one.rule).or_default();
            *longest = one.limits.len().max(*longest);
        }
        let mut search = Search {
            written,
            rules: Vec::with_capacity(written.len()),
            tiers: set.tiers(),
            by_path: PathIndex::default(),
            without_path: Vec::new(),
            tried: 0,
            errors: Vec::new(),
            warnings: Vec::new(),
        };
        for (number, written) in written.iter().enumerate() {
            let longest_override = longest_overrides.get(&*written.rule.name).copied();
            search.rules.push(Tried::new(&written.rule, longest_override.unwrap_or(0)));
            if written.rule.mode == Mode::Off {
                continue;
            }
            match required_patterns(written.rule.condition.as_ref()) {
                Some(patterns) => {
                    patterns.iter().for_each(|one| search.by_path.insert(one, number as u32));
                }
                None => search.without_path.push(number as u32),
            }
        }
        search
    }

    fn is_over(&self) -> bool {
        self.tried > MAX_TRIED || self.errors.len() == MAX_REPORTED
    }

    /// The patterns of a rule; one `None` if it needs none.
    fn patterns(&self, number: usize) -> Vec<Option<&'a Pattern>> {
        match required_patterns(self.rules[number].rule.condition.as_ref()) {
            Some(patterns) => patterns.iter().map(Some).collect(),
            None => vec![None],
        }
    }

    /// Tries a request; returns the numbers of the rules that it meets.
    fn examine(&mut self, sample: &Sample<'_>) -> Vec<u32> {
        let facts = sample.facts();
        let seen = NormalizedFacts::new(&facts, facts.tier.filter(|tier| !tier.is_empty()));
        let met = self.met_by(&seen);
        let longest = met.iter().map(|number| self.rules[*number as usize].longest);
        let is_known = |sets: &[Vec<u32>]| sets.iter().any(|set| is_subset(set, &met));
        if longest.sum::<usize>() <= MAX_LIMITS || is_known(&self.errors) {
            return met;
        }
        self.tried += met.len();
        let certain: Vec<u32> =
            met.iter().copied().filter(|number| self.certainly_meets(*number, &seen)).collect();
        let (count, whose) = self.most(&certain);
        if count > MAX_LIMITS {
            self.report_error(sample, count, &whose, &certain);
            self.errors.push(certain);
        } else if self.warnings.len() < MAX_REPORTED && !is_known(&self.warnings) {
            let (count, whose) = self.most(&met);
            if count > MAX_LIMITS {
                self.report_warning(sample, count, &whose, &met);
                self.warnings.push(met.clone());
            }
        }
        met
    }

    /// The numbers of the rules that apply, in order.
    fn met_by(&mut self, seen: &NormalizedFacts<'_>) -> Vec<u32> {
        let mut found = self.without_path.clone();
        if let Some(path) = seen.spelling(0) {
            self.by_path.each_match(path.text(), &mut |number| found.push(number));
        }
        found.sort_unstable();
        found.dedup();
        found.retain(|number| {
            let one = &self.rules[*number as usize];
            self.tried += one.weight;
            let known = seen.user().is_some();
            one.rule.condition.as_ref().is_none_or(|when| when.holds(seen, seen.spelling(0)))
                && (one.key_always
                    || (one.key_of_callers && known)
                    || one.rule.key.write(
                        &mut KeyBuf::new(),
                        &KeyFacts { facts: seen, spelling: 0, ipv6_prefix: 64 },
                    ))
        });
        let covered = found.iter().any(|number| {
            let rule = self.rules[*number as usize].rule;
            !rule.fallback && rule.condition.is_some() && is_enforced(rule)
        });
        found.retain(|number| !covered || !self.rules[*number as usize].rule.fallback);
        found
    }

    /// Whether every caller meets a rule that this one meets: it refuses, and it asks for nothing
    /// but a path, a method and who is calling.
    fn certainly_meets(&self, number: u32, seen: &NormalizedFacts<'_>) -> bool {
        let one = &self.rules[number as usize];
        is_enforced(one.rule)
            && (one.key_always || (one.key_of_callers && seen.user().is_some()))
            && one.rule.condition.as_ref().is_none_or(|when| certainty(when, seen) == Some(true))
    }

    /// The most limits that these rules have for one caller, by tier or with one override.
    fn most(&self, numbers: &[u32]) -> (usize, Whose) {
        let rules = || numbers.iter().map(|number| &self.rules[*number as usize]);
        let count = |tier| rules().map(|one| one.rule.limits.of(tier).0.len()).sum();
        let mut most: (usize, Whose) = (count(None), String::new());
        for (index, tier) in self.tiers.iter().enumerate() {
            let count: usize = count(Some(index));
            if count > most.0.max(MAX_LIMITS) {
                most = (count, format!(" of the tier `{tier}`"));
            }
        }
        let plain: usize = count(None);
        for one in rules() {
            let count =
                (plain + one.longest_override).saturating_sub(one.rule.limits.plain().len());
            if count > most.0.max(MAX_LIMITS) {
                most = (count, format!(" with an override of the rule `{}`", one.rule.name));
            }
        }
        most
    }

    fn report_error(&self, sample: &Sample<'_>, count: usize, whose: &str, numbers: &[u32]) {
        let Some(last) = numbers.last() else { return };
        let written = &self.written[*last as usize];
        let problem = Problem::new(format!(
            "{} {} meets {count} limits{whose}, and at most {MAX_LIMITS} are judged together",
            sample.method, sample.path
        ));
        written.context.error(written.name_span, problem.hint(self.narrow(whose, numbers)));
    }

    fn report_warning(&self, sample: &Sample<'_>, count: usize, whose: &str, numbers: &[u32]) {
        let Some(last) = numbers.last() else { return };
        let written = &self.written[*last as usize];
        let refusing = |number: &&u32| {
            let rule = self.rules[**number as usize].rule;
            !rule.soft && rule.mode != Mode::Shadow
        };
        let refusing: Vec<u32> = numbers.iter().filter(refusing).copied().collect();
        let left_out = match self.most(&refusing).0 > MAX_LIMITS {
            true => "the last ones are not asked",
            false => "shadow and soft ones are not asked",
        };
        let problem = Problem::new(format!(
            "{} {} can meet {count} limits{whose}, and at most {MAX_LIMITS} are judged together: \
             {left_out}",
            sample.method, sample.path
        ));
        written.context.warn(written.name_span, problem.hint(self.narrow(whose, numbers)));
    }

    fn narrow(&self, whose: &str, numbers: &[u32]) -> String {
        let name = |number: &u32| &*self.rules[*number as usize].rule.name;
        let names: Vec<&str> = numbers.iter().take(NAMED_MAX).map(name).collect();
        let more = match numbers.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let or_fewer = if whose.is_empty() { "" } else { "write fewer limits there, or " };
        let list = names.join(", ");
        format!("{or_fewer}narrow the `match` of some of these rules: {list}{more}")
    }
}

impl<'a> Tried<'a> {
    fn new(rule: &'a Rule, longest_override: usize) -> Tried<'a> {
        let longest = rule.limits.all().map(<[_]>::len).max().unwrap_or_default();
        let each_part = |wanted: fn(&str) -> bool| {
            rule.key.parts().all(|facts| facts.iter().any(|fact| wanted(fact)))
        };
        Tried {
            rule,
            weight: 1 + rule.condition.as_ref().map_or(0, weight),
            longest: if rule.mode == Mode::Off { 0 } else { longest.max(longest_override) },
            longest_override,
            key_always: each_part(|fact| matches!(fact, "ip" | "path" | "method")),
            key_of_callers: each_part(|fact| {
                let by_name = ["header.", "entry."].iter().any(|kind| fact.starts_with(kind));
                !by_name && fact != "domain"
            }),
        }
    }
}

/// The header fields that keys ask for, not too many.
fn key_headers(rules: &[WrittenRule<'_>]) -> Vec<String> {
    let facts = rules.iter().flat_map(|written| written.rule.key.parts()).flatten();
    let mut names = BTreeSet::new();
    for name in facts.filter_map(|fact| fact.strip_prefix("header.").map(str::to_owned)) {
        names.insert(name);
        if names.len() == MAX_HEADERS {
            break;
        }
    }
    names.into_iter().collect()
}

/// Whether a rule refuses every key that is over its limits.
fn is_enforced(rule: &Rule) -> bool {
    (rule.mode, rule.soft) == (Mode::Enforce, false)
}

/// Whether all of `small` are in `large`; both are sorted.
fn is_subset(small: &[u32], large: &[u32]) -> bool {
    let mut rest = large.iter();
    small.iter().all(|number| rest.any(|other| other == number))
}

/// How much trying a condition costs at most.
fn weight(condition: &Condition) -> usize {
    let of_test = |test: &TextTest| match test {
        TextTest::Present => 1,
        TextTest::OneOf(texts) => texts.len(),
        TextTest::Like(_) => EXPRESSION_WEIGHT,
    };
    1 + match condition {
        Condition::Path(patterns) => patterns.len(),
        Condition::Method(methods) => methods.len(),
        Condition::Ip(nets) => nets.len(),
        Condition::Upgrade(_) => 1,
        Condition::PathText(test)
        | Condition::User(test)
        | Condition::Tier(test)
        | Condition::ApiKey(test)
        | Condition::Domain(test)
        | Condition::Entry { value: test, .. }
        | Condition::Header { value: test, .. } => of_test(test),
        Condition::All(several) | Condition::Any(several) => several.iter().map(weight).sum(),
        Condition::Not(inner) => weight(inner),
    }
}

/// Whether a condition holds of every request with this path and method that has the same kinds of
/// facts; `None`: it depends on their values, on the address, or on header fields.
fn certainty(condition: &Condition, seen: &NormalizedFacts<'_>) -> Option<bool> {
    let of_text = |test: &TextTest, is_there: bool| match test {
        _ if !is_there => Some(false),
        TextTest::Present => Some(true),
        TextTest::OneOf(_) | TextTest::Like(_) => None,
    };
    match condition {
        Condition::Path(_) | Condition::PathText(_) | Condition::Method(_) => {
            Some(condition.holds(seen, seen.spelling(0)))
        }
        Condition::Header { .. } | Condition::Upgrade(_) | Condition::Ip(_) => None,
        Condition::Entry { .. } | Condition::Domain(_) => None,
        Condition::User(test) => of_text(test, seen.user().is_some()),
        Condition::Tier(test) => of_text(test, seen.tier.is_some()),
        Condition::ApiKey(test) => of_text(test, seen.api_key().is_some()),
        Condition::All(all) => unless(all, seen, false),
        Condition::Any(any) => unless(any, seen, true),
        Condition::Not(inner) => certainty(inner, seen).map(|holds| !holds),
    }
}

/// `decisive` if one of the conditions is certainly so; the opposite if all are certainly that.
fn unless(several: &[Condition], seen: &NormalizedFacts<'_>, decisive: bool) -> Option<bool> {
    let each: Vec<Option<bool>> = several.iter().map(|one| certainty(one, seen)).collect();
    match each.contains(&Some(decisive)) {
        true => Some(decisive),
        false => each.iter().all(Option::is_some).then_some(!decisive),
    }
}

/// The patterns that a condition needs one of; `None`: it may hold without.
fn required_patterns(when: Option<&Condition>) -> Option<&[Pattern]> {
    match when? {
        Condition::Path(patterns) => Some(patterns),
        Condition::All(all) => all.iter().find_map(|one| match one {
            Condition::Path(patterns) => Some(&patterns[..]),
            _ => None,
        }),
        _ => None,
    }
}

/// The methods that a condition names.
fn methods(when: Option<&Condition>) -> Vec<&str> {
    match when {
        Some(Condition::Method(methods)) => methods.iter().map(|name| &**name).collect(),
        Some(Condition::All(several) | Condition::Any(several)) => {
            several.iter().flat_map(|one| methods(Some(one))).collect()
        }
        _ => Vec::new(),
    }
}
