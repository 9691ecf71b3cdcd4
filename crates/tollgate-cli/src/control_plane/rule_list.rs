//! `GET /api/rules`: the rules in force, a page at a time. There may be 10,000.

use std::cmp::Reverse;
use std::collections::HashMap;

use http::{Response, StatusCode};
use serde_json::{Map, Value, json};
use tollgate_rules::credentials::shown_typed_key;
use tollgate_rules::explain::{ban_text, rule_condition_text};
use tollgate_rules::limit_spec::RuleLimit;
use tollgate_rules::rule::Cost;
use tollgate_rules::{
    Override, Rule, RuleSet, Tally, Verdict, WaitFigures, WaitOutcome, WaitTally, key_text,
};

use super::ControlPlane;
use super::keys::override_json;
use super::query::{QueryError, QueryFields};
use super::rules::{mode, origin};
use crate::listeners::response_body::ResponseBody;
use crate::reply;

/// Rules of a page, unless the request says otherwise.
const PAGE_DEFAULT: usize = 100;

/// Most rules of a page.
const PAGE_MAX: usize = 1_000;

/// Most overrides that are listed.
const OVERRIDES_MAX: usize = 1_000;

/// The order of the list.
#[derive(Clone, Copy)]
enum RuleOrder {
    /// The order of the files.
    File,
    Name,
    Requests,
    Refusals,
}

/// The orders by their names.
const ORDERS: [(&str, RuleOrder); 4] = [
    ("order", RuleOrder::File),
    ("name", RuleOrder::Name),
    ("requests", RuleOrder::Requests),
    ("refused", RuleOrder::Refusals),
];

/// A rule with its counters.
#[derive(Clone, Copy)]
struct ListedRule<'a> {
    rule: &'a Rule,
    tally: &'a Tally,
    waits: &'a WaitTally,
}

impl ControlPlane {
    /// The rules that the query asks for, with their counts so far.
    pub(super) fn rules(&self, query: Option<&str>) -> Result<Response<ResponseBody>, QueryError> {
        let query = QueryFields::parse(query, &["q", "sort", "from", "n"])?;
        let order = query.choice("sort", &ORDERS)?;
        let from = query.number("from", 0..=RuleSet::RULES_MAX, 0)?;
        let most = query.number("n", 1..=PAGE_MAX, PAGE_DEFAULT)?;
        let (status, rules) = self.live.status_and_rules(&self.gatekeeper);
        let matching = matching_rules(&rules, query.text("q"), order);
        let page = matching.iter().skip(from).take(most);
        let (overrides, overrides_total) = self.overrides_json(&rules);
        let document = json!({
            "version": status.version,
            "origin": origin(&status.origin),
            "tiers": rules.tiers(),
            "total": rules.rules().len(),
            "matching": matching.len(),
            "from": from,
            "rules": page.map(|listed| listed.json(&rules)).collect::<Vec<_>>(),
            "overrides": overrides,
            "overrides_total": overrides_total,
        });
        Ok(reply::json(StatusCode::OK, document.to_string()))
    }

    /// The first overrides, those of files before those set at run time, and the number of all.
    fn overrides_json(&self, rules: &RuleSet) -> (Vec<Value>, usize) {
        let by_name: HashMap<&str, &Rule> = rules.rules().map(|rule| (&*rule.name, rule)).collect();
        let at_run_time = self.gatekeeper.overrides();
        let of_file = rules.file_overrides().iter().map(|one| (one, false));
        let overrides = of_file.chain(at_run_time.iter().map(|one| (one, true)));
        let listed = overrides.take(OVERRIDES_MAX).map(|(other, run_time)| {
            let mut entry = override_json(other, run_time);
            entry["rule"] = (*other.rule).into();
            let shown = shown_typed_key(&other.key, &rules.settings().identify);
            entry["key"] = key_text(&shown).into();
            entry["hash"] = self.names.hash(&other.key).into();
            // An override set at run time stays when its rule is removed, in case the rule comes back.
            let rule = by_name.get(&*other.rule).copied();
            entry["applies"] = rule.is_some_and(|rule| applies(rules, rule, other)).into();
            entry
        });
        (listed.collect(), rules.file_overrides().len() + at_run_time.len())
    }
}

/// The rules whose name contains the text, in this order; equals stay in the order of the files.
fn matching_rules<'a>(
    rules: &'a RuleSet,
    text: Option<&str>,
    order: RuleOrder,
) -> Vec<ListedRule<'a>> {
    let text = text.map(str::to_ascii_lowercase);
    let all = rules.tallies().zip(rules.wait_tallies());
    let all = all.map(|((rule, tally), (_, waits))| ListedRule { rule, tally, waits });
    let mut matching: Vec<ListedRule<'a>> = match text {
        None => all.collect(),
        Some(text) => {
            all.filter(|one| one.rule.name.to_ascii_lowercase().contains(&text)).collect()
        }
    };
    match order {
        RuleOrder::File => {}
        RuleOrder::Name => matching.sort_by(|a, b| a.rule.name.cmp(&b.rule.name)),
        RuleOrder::Requests => {
            matching.sort_by_cached_key(|one| Reverse(one.tally.counts().iter().sum::<u64>()));
        }
        RuleOrder::Refusals => {
            matching.sort_by_cached_key(|one| Reverse(one.tally.count(Verdict::Refused)));
        }
    }
    matching
}

/// Returns true if the override can apply: the key of the rule may have changed since.
fn applies(rules: &RuleSet, rule: &Rule, other: &Override) -> bool {
    let read = rule.key.parse_key(&key_text(&other.key), &rules.settings().identify);
    read.is_ok_and(|key| key == other.key)
}

impl ListedRule<'_> {
    fn json(&self, rules: &RuleSet) -> Value {
        let ListedRule { rule, tally, waits } = self;
        let texts = |list: &[RuleLimit]| -> Vec<Value> {
            list.iter().map(|limit| Value::from(&*limit.text)).collect()
        };
        let tiers = rules.tiers().into_iter().zip(rule.limits.by_tier());
        let tiers: Map<String, Value> =
            tiers.map(|(tier, list)| (tier.into(), texts(list).into())).collect();
        let counts = Verdict::ALL.into_iter().zip(tally.counts());
        let counts = counts.map(|(verdict, count)| (verdict.name().into(), count.into()));
        let mut entry = json!({
            "name": &*rule.name,
            "match": rule_condition_text(rules, rule),
            "key": rule.key.to_string(),
            "cost": cost_text(&rule.cost),
            "concurrency": rule.concurrency.as_ref().map(|bound| &*bound.text),
            "limits": texts(rule.limits.plain()),
            "compiled": rule.limits.plain().iter().map(compiled_json).collect::<Vec<_>>(),
            "tiers": tiers,
            "mode": mode(rule.mode),
            "soft": rule.soft,
            "fallback": rule.fallback,
            "ban": ban_text(rule),
            "bans": tally.bans(),
            "shadow_bans": tally.shadow_bans(),
            "tally": Map::from_iter(counts),
        });
        if rule.can_wait() {
            entry["waits"] = waits_json(&waits.figures());
        }
        entry
    }
}

/// A limit as it was compiled.
fn compiled_json(limit: &RuleLimit) -> Value {
    let RuleLimit { limit, text, .. } = limit;
    json!({
        "limit": &**text,
        "algorithm": limit.algorithm().name(),
        "units": limit.units(),
        "period_ms": limit.period_us() / 1_000,
        "capacity": limit.capacity(),
    })
}

/// A cost as people read it.
fn cost_text(cost: &Cost) -> String {
    match cost {
        Cost::Fixed(units) => units.to_string(),
        Cost::Bytes => "the bytes of the bodies".into(),
        Cost::PerEndpoint { default, .. } => format!("by endpoint, {default} for all others"),
        Cost::Reserve { actual: None, .. } => "reserved, and corrected by the caller".into(),
        Cost::Reserve { actual: Some(_), .. } => "reserved, and corrected by the response".into(),
    }
}

/// The requests of a rule that wait, and the ends of earlier waits.
fn waits_json(figures: &WaitFigures) -> Value {
    let ends = WaitOutcome::ALL.map(|end| (end.name().into(), figures.count(end).into()));
    let mut waits = Value::Object(Map::from_iter(ends));
    waits["waiting"] = figures.waiting.into();
    waits["mean_ms"] = mean_wait_ms(figures).into();
    waits
}

/// The mean wait of the requests that were admitted, in whole milliseconds.
pub(super) fn mean_wait_ms(figures: &WaitFigures) -> u64 {
    let admitted: u64 = figures.buckets.iter().sum();
    figures.sum_us / admitted.max(1) / 1_000
}
