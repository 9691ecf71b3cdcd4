//! Random rules and random requests, decided twice: by the gatekeeper with its index, shared keys and
//! bounded table, and by a model that tries every rule in turn, spells keys as text and keeps its
//! states in a plain map. Both must say the same of every limit.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use tollgate::algorithm::{self, State};
use tollgate::{Algorithm, ManualClock, MemoryStore, Micros, OnChange};
use tollgate_rules::key_template::KeyTemplate;
use tollgate_rules::limit_spec::{LimitSpec, RuleLimit};
use tollgate_rules::matcher::Condition;
use tollgate_rules::pattern::{Endpoint, EndpointMap, Pattern};
use tollgate_rules::rule::{Cost, Mode, Rule, TierLimits};
use tollgate_rules::rule_set::{RuleSet, RuleSettings};
use tollgate_rules::tier::Multiplier;
use tollgate_rules::{Ask, Enforcement, Facts, Gatekeeper};

/// How many rule sets are made, and how many requests each decides.
const SETS: u64 = 1_500;
const REQUESTS: usize = 60;

const PATTERNS: [&str; 9] =
    ["/{*rest}", "/a", "/a/{x}", "/{x}", "/{x}/b", "/a/{*rest}", "/a/b", "/b/{x}/a", "/b/{*rest}"];
const PATHS: [&str; 8] = ["/", "/a", "/b", "/a/b", "/a//b/", "/b/a/a", "/b/./b/a?q", "/%61/b"];
const KEYS: [&str; 6] = ["{user|ip}", "{user}", "{ip}", "{user}:{path}", "global", "{method}:{ip}"];
const METHODS: [&str; 2] = ["GET", "POST"];
const RATES: [(&str, Option<Algorithm>); 5] = [
    ("2/second", None),
    ("3/minute burst 2", None),
    ("4/minute", Some(Algorithm::FixedWindow)),
    ("3/10s", Some(Algorithm::SlidingWindowLog)),
    ("6/minute", Some(Algorithm::LeakyBucket)),
];

/// A small generator: the same seed, the same story.
pub(crate) struct RulesModelRandom(pub(crate) u64);

impl RulesModelRandom {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(crate) fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}

/// A rule as the model reads it; the gatekeeper's is made from it.
#[derive(Clone)]
struct ModelRule {
    name: String,
    patterns: Option<Vec<&'static str>>,
    method: Option<&'static str>,
    key: &'static str,
    limits: Vec<(&'static str, Option<Algorithm>)>,
    costs: Vec<(&'static str, u64)>,
    mode: Mode,
    soft: bool,
    fallback: bool,
    tiered: bool,
}

fn plain_rule(random: &mut RulesModelRandom, number: usize) -> ModelRule {
    let patterns = (!random.one_in(6))
        .then(|| (0..1 + random.below(2)).map(|_| random.pick(&PATTERNS)).collect());
    let mut limits = vec![random.pick(&RATES)];
    if random.one_in(3) {
        let other = random.pick(&RATES);
        limits.extend((other != limits[0]).then_some(other));
    }
    ModelRule {
        name: format!("rule-{number}"),
        patterns,
        method: random.one_in(4).then(|| random.pick(&METHODS)),
        key: random.pick(&KEYS),
        limits,
        costs: (0..random.below(3))
            .map(|_| (random.pick(&PATTERNS), random.below(4) as u64))
            .collect(),
        mode: if random.one_in(5) {
            random.pick(&[Mode::Shadow, Mode::Off])
        } else {
            Mode::Enforce
        },
        soft: random.one_in(8),
        fallback: random.one_in(6),
        tiered: random.one_in(3),
    }
}

impl ModelRule {
    fn limits(&self, tier: Option<&str>) -> Vec<RuleLimit> {
        let multiplier = if self.tiered && tier == Some("pro") { "2.5" } else { "1" };
        let multiplier = Multiplier::parse(multiplier).unwrap();
        let build = |(rate, algorithm): &(&str, Option<Algorithm>)| {
            let spec =
                LimitSpec { rate: (*rate).into(), algorithm: *algorithm, ..LimitSpec::default() };
            spec.build(&self.name, OnChange::Keep, multiplier).unwrap()
        };
        self.limits.iter().map(build).collect()
    }

    fn compiled(&self) -> Rule {
        let mut all = Vec::new();
        if let Some(patterns) = &self.patterns {
            all.push(Condition::Path(
                patterns.iter().map(|one| Pattern::parse(one).unwrap()).collect(),
            ));
        }
        all.extend(self.method.map(|method| Condition::Method(vec![method.into()])));
        let endpoints = self.costs.iter().map(|(one, cost)| (Endpoint::parse(one).unwrap(), *cost));
        let limits = TierLimits::tiered(
            self.limits(None),
            vec![None, self.tiered.then(|| self.limits(Some("pro")))],
        );
        Rule {
            condition: (!all.is_empty()).then_some(Condition::All(all)),
            fallback: self.fallback,
            cost: Cost::PerEndpoint {
                default: 1,
                endpoints: EndpointMap::new(endpoints.collect()),
            },
            mode: self.mode,
            soft: self.soft,
            ..Rule::new(&self.name, KeyTemplate::parse(self.key).unwrap(), limits)
        }
    }
}

/// One request as the model reads it.
#[derive(Clone, Copy, Debug)]
struct ModelRequest {
    method: &'static str,
    path: &'static str,
    ip: Option<Ipv4Addr>,
    user: Option<&'static str>,
    tier: Option<&'static str>,
}

fn request(random: &mut RulesModelRandom) -> ModelRequest {
    ModelRequest {
        method: random.pick(&METHODS),
        path: random.pick(&PATHS),
        ip: (!random.one_in(8)).then(|| Ipv4Addr::new(192, 0, 2, random.below(2) as u8)),
        user: (!random.one_in(3)).then(|| random.pick(&["anna", "bert"])),
        tier: random.pick(&[None, Some("free"), Some("pro"), Some("unheard-of")]),
    }
}

impl ModelRequest {
    fn facts(&self) -> Facts<'_> {
        Facts {
            method: Some(self.method),
            path: Some(self.path),
            ip: self.ip.map(IpAddr::V4),
            user: self.user,
            tier: self.tier,
            ..Facts::default()
        }
    }

    /// The path as somebody would tidy it by hand: as servers see it that decode and resolve it, that
    /// only decode it, and that do neither.
    fn tidy_paths(&self) -> Vec<String> {
        let raw = self.path.split('?').next().unwrap();
        let decoded = raw.replace("%61", "a");
        let join = |path: &str, dots: bool| {
            let kept = |part: &&str| !part.is_empty() && (dots || *part != ".");
            path.split('/').filter(kept).fold(String::new(), |path, part| path + "/" + part)
        };
        let mut paths = vec![join(&decoded, false), join(&decoded, true), join(raw, true)];
        paths.dedup();
        paths
    }

    fn key(&self, template: &str, path: &str) -> Option<String> {
        let ip = || self.ip.map(|ip| format!("ip {ip}"));
        let user = || self.user.map(|user| format!("user {user}"));
        match template {
            "{user|ip}" => user().or_else(ip),
            "{user}" => user(),
            "{ip}" => ip(),
            "{user}:{path}" => Some(format!("{} path {path}", user()?)),
            "{method}:{ip}" => Some(format!("method {} {}", self.method, ip()?)),
            _ => Some("all".into()),
        }
    }
}

/// Whether a pattern fits, segment by segment; and how specific it is.
fn fits(pattern: &str, path: &str) -> Option<(usize, usize, bool)> {
    let mut rank = (0, 0, true);
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    for segment in pattern.split('/').filter(|part| !part.is_empty()) {
        match segment {
            "{*rest}" => return Some((rank.0, rank.1, false)),
            "{x}" => {
                parts.next()?;
                rank.1 += 1;
            }
            literal => {
                parts.next().filter(|part| *part == literal)?;
                rank.0 += 1;
            }
        }
    }
    parts.next().is_none().then_some(rank)
}

#[derive(Debug, PartialEq, Eq)]
struct ModelVerdict {
    allowed: bool,
    binding: Option<(String, String)>,
    /// Rule, limit, allowed, remaining.
    limits: Vec<(String, String, bool, u64)>,
}

#[derive(Default)]
struct RulesModel {
    states: HashMap<(String, usize, String, Option<&'static str>), State>,
}

impl RulesModel {
    fn decide(&mut self, rules: &[ModelRule], request: &ModelRequest, now: Micros) -> ModelVerdict {
        let paths = request.tidy_paths();
        let applies = |rule: &ModelRule, path: &str| {
            rule.mode != Mode::Off
                && rule.method.is_none_or(|method| method == request.method)
                && rule
                    .patterns
                    .as_ref()
                    .is_none_or(|all| all.iter().any(|one| fits(one, path).is_some()))
                && request.key(rule.key, path).is_some()
        };
        let standing = |rule: &ModelRule| match (rule.mode, rule.soft) {
            (Mode::Shadow, _) => Enforcement::Shadow,
            (_, true) => Enforcement::Soft,
            _ => Enforcement::Enforced,
        };
        let firm = |rule: &ModelRule, path: &str| {
            let conditional = rule.patterns.is_some() || rule.method.is_some();
            let enforced = standing(rule) == Enforcement::Enforced;
            applies(rule, path) && !rule.fallback && conditional && enforced
        };
        // Of each rule the spellings that it applies to; fallbacks last.
        let mut chosen: Vec<(&ModelRule, Vec<&String>)> = Vec::new();
        for fallback in [false, true] {
            for rule in rules.iter().filter(|rule| rule.fallback == fallback) {
                let covered = |path: &str| fallback && rules.iter().any(|rule| firm(rule, path));
                let held = paths.iter().filter(|path| applies(rule, path) && !covered(path));
                chosen.push((rule, held.collect()));
            }
        }

        let mut asked = Vec::new();
        for (rule, held) in chosen.into_iter().filter(|(_, held)| !held.is_empty()) {
            let cost = |path: &&String| {
                let costs = rule.costs.iter().rev();
                let costs = costs.filter_map(|(one, cost)| Some((fits(one, path)?, *cost)));
                costs.max_by_key(|(rank, _)| *rank).map_or(1, |(_, cost)| cost)
            };
            // One count or, with the path in its key, one for each.
            let apart = rule.key.contains("{path}");
            let groups: Vec<&[&String]> =
                if apart { held.chunks(1).collect() } else { vec![&held[..]] };
            for group in groups {
                let cost = group.iter().map(cost).max().unwrap();
                for (index, limit) in rule.limits(request.tier).into_iter().enumerate() {
                    // A tier with numbers of its own counts on its own.
                    let tier = request.tier.filter(|tier| rule.tiered && *tier == "pro");
                    let key = request.key(rule.key, group[0]).unwrap();
                    asked.push((rule, limit, (rule.name.clone(), index, key, tier), cost));
                }
            }
        }
        let judged: Vec<_> = asked
            .iter()
            .map(|(rule, limit, key, cost)| {
                let fresh = State::fresh(&limit.limit, now);
                let state = self.states.get(key).unwrap_or(&fresh);
                let outcome = algorithm::judge(&limit.limit, state, *cost, now);
                (standing(rule), outcome)
            })
            .collect();
        let enforced = |(standing, _): &&(Enforcement, _)| *standing == Enforcement::Enforced;
        let allowed = judged.iter().filter(enforced).all(|(_, outcome)| outcome.allowed);

        let mut limits = Vec::new();
        for ((rule, limit, key, cost), (_, outcome)) in asked.iter().zip(&judged) {
            let state =
                self.states.entry(key.clone()).or_insert_with(|| State::fresh(&limit.limit, now));
            if allowed && outcome.allowed && *cost > 0 {
                algorithm::charge(&limit.limit, state, *cost, now);
            }
            let remaining = algorithm::judge(&limit.limit, state, 0, now).remaining;
            limits.push((rule.name.clone(), limit.text.to_string(), outcome.allowed, remaining));
        }
        let index = |wanted: &dyn Fn(usize) -> Option<u64>| {
            let best = (0..judged.len()).filter_map(|one| Some((wanted(one)?, one)));
            best.min_by_key(|(rank, one)| (*rank, *one)).map(|(_, one)| one)
        };
        let binding = match allowed {
            true => index(&|one| (judged[one].0 == Enforcement::Enforced).then_some(limits[one].3)),
            false => index(&|one| {
                let (standing, outcome) = &judged[one];
                let refuses = *standing == Enforcement::Enforced && !outcome.allowed;
                refuses.then(|| u64::MAX - outcome.retry_after.as_micros().unwrap_or(u64::MAX))
            }),
        };
        let binding = binding.map(|one| (limits[one].0.clone(), limits[one].1.clone()));
        ModelVerdict { allowed, binding, limits }
    }
}

fn verdict(
    gatekeeper: &Gatekeeper<MemoryStore, ManualClock>,
    request: &ModelRequest,
    now: Micros,
) -> ModelVerdict {
    let answer = gatekeeper.decide_at(&Ask { facts: request.facts(), ..Ask::default() }, now);
    let limits = answer
        .limits()
        .map(|one| (one.rule.into(), one.limit.into(), one.outcome.allowed, one.outcome.remaining));
    ModelVerdict {
        allowed: answer.allowed(),
        binding: answer.binding().map(|one| (one.rule.into(), one.limit.into())),
        limits: limits.collect(),
    }
}

#[test]
fn the_gatekeeper_says_what_the_model_says() {
    for seed in 1..=SETS {
        let mut random = RulesModelRandom(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let count = 1 + random.below(6);
        let plain: Vec<ModelRule> =
            (0..count).map(|number| plain_rule(&mut random, number)).collect();
        let tiers = ["free", "pro"].map(Box::from);
        let compiled = plain.iter().map(ModelRule::compiled).collect();
        let rules = RuleSet::new(compiled, &tiers, Vec::new(), RuleSettings::default());
        let (store, clock) = (MemoryStore::new(10_000), ManualClock::new(Micros::ZERO));
        let gatekeeper = Gatekeeper::new(rules, store, clock);
        let mut model = RulesModel::default();
        let mut now = 1_700_000_000_000_000;
        for step in 0..REQUESTS {
            now += random.below(4) as u64 * 700_000;
            let request = request(&mut random);
            let want = model.decide(&plain, &request, Micros::new(now));
            let got = verdict(&gatekeeper, &request, Micros::new(now));
            assert_eq!(got, want, "seed {seed}, step {step}: {request:?}");
        }
    }
}
