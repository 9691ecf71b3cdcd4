//! Valid but surely unintended settings: rules that never apply, limits that never bind, keys that
//! nothing provides; in `overlaps`, more limits than can be decided together; and, in `estimates`,
//! limits that are estimates where a hard bound may have been meant.

mod estimates;
pub(crate) mod overlaps;

use std::collections::BTreeSet;
use std::time::Duration;

use tollgate::limit::Precision;
use tollgate::{Algorithm, Limit};

use crate::Problem;
use crate::compile::{WrittenRule, unknown_tier};
use crate::diagnostic::Diagnostic;
use crate::matcher::{Condition, TextTest};
use crate::pattern::Pattern;
use crate::rule::Mode;
use crate::rule_set::RuleSettings;

/// Warns of rules that are valid but surely not meant so.
pub(crate) fn check(
    rules: &[WrittenRule<'_>],
    tiers: &[Box<str>],
    identified: bool,
    settings: &RuleSettings,
) {
    for written in rules.iter().filter(|written| written.rule.mode != Mode::Off) {
        if let Some(condition) = &written.rule.condition {
            check_condition(written, condition, tiers);
        }
        if identified {
            check_facts(written, settings);
        }
        check_redundant_limits(written);
        estimates::check(written);
    }
    check_fallbacks(rules);
}

fn check_condition(written: &WrittenRule<'_>, condition: &Condition, tiers: &[Box<str>]) {
    if let Some(reason) = never_holds_because(condition) {
        let problem =
            Problem::new(format!("the rule `{}` never applies: {reason}", written.rule.name))
                .hint("correct its `match`, or switch it off with `mode: off`");
        written.context.warn(written.name_span, problem);
    }
    let mut unknown = BTreeSet::new();
    collect_tiers(condition, &mut unknown);
    for name in unknown {
        if !tiers.is_empty() && !tiers.iter().any(|tier| **tier == *name) {
            let Problem { message, hint } = unknown_tier(
                name,
                tiers.iter().map(|tier| &**tier),
                &written.context.shared.suggestions,
            );
            let message = format!("the `match` of the rule `{}`: {message}", written.rule.name);
            written.context.warn(written.name_span, Problem { message, hint });
        }
    }
}

/// The reason why a condition never holds, if that is certain.
fn never_holds_because(condition: &Condition) -> Option<String> {
    let empty = |what: &str| Some(format!("its list of {what} is empty"));
    match condition {
        Condition::Path(patterns) if patterns.is_empty() => empty("paths"),
        Condition::Method(methods) if methods.is_empty() => empty("methods"),
        Condition::Ip(networks) if networks.is_empty() => empty("networks"),
        Condition::Any(any) if any.is_empty() => empty("conditions under `any`"),
        Condition::Host(hosts) if hosts.is_empty() => empty("hosts"),
        Condition::User(test)
        | Condition::HostText(test)
        | Condition::Tier(test)
        | Condition::ApiKey(test)
        | Condition::Domain(test)
        | Condition::Entry { value: test, .. }
        | Condition::Header { value: test, .. } => match test {
            TextTest::OneOf(texts) if texts.is_empty() => empty("texts"),
            _ => None,
        },
        Condition::Any(any) => {
            let reasons: Option<Vec<String>> = any.iter().map(never_holds_because).collect();
            reasons.and_then(|reasons| reasons.into_iter().next())
        }
        Condition::All(all) => {
            all.iter().find_map(never_holds_because).or_else(|| contradiction(all))
        }
        Condition::Not(inner) if always_holds(inner) => {
            Some("its `not` excludes every request".into())
        }
        _ => None,
    }
}

/// Returns true if a condition holds for every request that has a path.
fn always_holds(condition: &Condition) -> bool {
    match condition {
        Condition::Path(patterns) => patterns.iter().any(Pattern::is_everything),
        Condition::All(all) => all.iter().all(always_holds),
        Condition::Any(any) => any.iter().any(always_holds),
        Condition::Not(inner) => never_holds_because(inner).is_some(),
        _ => false,
    }
}

/// Finds two conditions on one fact that exclude each other.
fn contradiction(all: &[Condition]) -> Option<String> {
    let mut flat = Vec::new();
    flatten(all, &mut flat);
    for (index, one) in flat.iter().enumerate() {
        for other in &flat[..index] {
            let (what, a, b) = match (one, other) {
                (Condition::Method(a), Condition::Method(b)) => ("methods", a, b),
                (Condition::User(TextTest::OneOf(a)), Condition::User(TextTest::OneOf(b))) => {
                    ("users", a, b)
                }
                (Condition::Tier(TextTest::OneOf(a)), Condition::Tier(TextTest::OneOf(b))) => {
                    ("tiers", a, b)
                }
                _ => continue,
            };
            if !a.iter().any(|value| b.contains(value)) {
                return Some(format!("its conditions on {what} exclude each other"));
            }
        }
    }
    None
}

/// The conditions that must hold together, those of inner `all` included.
fn flatten<'c>(all: &'c [Condition], flat: &mut Vec<&'c Condition>) {
    for condition in all {
        match condition {
            Condition::All(inner) => flatten(inner, flat),
            one => flat.push(one),
        }
    }
}

fn collect_tiers<'c>(condition: &'c Condition, found: &mut BTreeSet<&'c str>) {
    match condition {
        Condition::Tier(TextTest::OneOf(names)) => found.extend(names.iter().map(|name| &**name)),
        Condition::All(several) | Condition::Any(several) => {
            several.iter().for_each(|one| collect_tiers(one, found));
        }
        Condition::Not(inner) => collect_tiers(inner, found),
        _ => {}
    }
}

/// Warns of a key whose facts `identify` does not provide. Facts may also be stated in requests,
/// but a file that says how callers are identified and leaves out the one fact that a key needs has
/// most likely forgotten it.
fn check_facts(written: &WrittenRule<'_>, settings: &RuleSettings) {
    let identify = &settings.identify;
    let tiers_known = !identify.tier_of_user.is_empty() || identify.default_tier.is_some();
    let missing = |fact: &str| match fact {
        "user" => !identify.finds_users(),
        "api_key" => identify.api_key_header.is_none(),
        "tier" => !identify.finds_tiers() && !tiers_known,
        _ => false,
    };
    for facts in written.rule.key.parts() {
        if facts.iter().all(|fact| missing(fact)) {
            let fact = &facts[0];
            let problem = Problem::new(format!(
                "`identify` has no source for the fact `{fact}`, so this rule does not apply to HTTP \
                 requests"
            ))
            .hint(format!(
                "write `identify: {{ {fact}: {{ header: x-{} }} }}`, or pass it in checks",
                fact.replace('_', "-")
            ));
            written.context.warn(written.key_span, problem);
        }
    }
}

/// Warns of limits that never refuse, because another one of the same rule is always reached first.
fn check_redundant_limits(written: &WrittenRule<'_>) {
    let limits = written.rule.limits.plain();
    for (index, one) in limits.iter().enumerate() {
        let stricter = limits
            .iter()
            .enumerate()
            .find(|(other, stricter)| *other != index && is_within(&stricter.limit, &one.limit));
        let Some((other, stricter)) = stricter else { continue };
        let problem = Problem::new(format!(
            "the limit `{}` has no effect: `{}` is always reached first",
            one.text, stricter.text
        ))
        .hint("remove it, or correct the numbers");
        let (context, specs) = (written.context, &written.specs);
        let diagnostic = Diagnostic::warning(context.source, specs[index].span, problem);
        let place = specs[other].span;
        context.push(diagnostic.also(context.source, place, "the stricter one is here"));
    }
}

/// Returns true if `wide` is redundant, because it admits everything that `strict` admits. False if
/// both are equal.
fn is_within(strict: &Limit, wide: &Limit) -> bool {
    // Two that share one count are an error anyway; and a queue is there to delay, not to refuse.
    if strict.id() == wide.id() || wide.is_queue() {
        return false;
    }
    if strict.calendar().is_some() || wide.calendar().is_some() || strict.period() < wide.period() {
        return false;
    }
    let (units, period) = (u128::from(strict.units()), strict.period().as_micros());
    let (wide_units, wide_period) = (u128::from(wide.units()), wide.period().as_micros());
    let peak = max_admitted_within(strict, wide.period());
    // Equal limits refuse together, so neither is redundant.
    peak <= u128::from(wide.capacity())
        && units * wide_period <= wide_units * period
        && (peak, period) != (u128::from(wide.capacity()), wide_period)
}

/// The most that a limit admits within a time that is no longer than its period.
fn max_admitted_within(limit: &Limit, within: Duration) -> u128 {
    let capacity = u128::from(limit.capacity());
    if limit.algorithm().is_bucket() {
        let refilled = u128::from(limit.units()) * within.as_micros();
        return capacity + refilled.div_ceil(limit.period().as_micros());
    }
    match limit.algorithm() {
        // The end of one window and the beginning of the next.
        Algorithm::FixedWindow => 2 * capacity,
        // The counter assumes even use of the last window: what came at its end has half left by
        // the middle of this one, when all of it is still within one period.
        Algorithm::SlidingWindowCounter if limit.precision() == Precision::Estimate => 2 * capacity,
        _ => capacity,
    }
}

/// Warns of a fallback that never applies, because another rule matches everything.
fn check_fallbacks(rules: &[WrittenRule<'_>]) {
    // A request with a path came over HTTP, so it has an address; all other facts may be missing.
    let is_there = |fact: &String| matches!(&**fact, "ip" | "path");
    let covering = rules.iter().find(|written| {
        let rule = &written.rule;
        !rule.fallback
            && (rule.mode, rule.soft) == (Mode::Enforce, false)
            && rule.condition.as_ref().is_some_and(always_holds)
            && rule.key.parts().all(|facts| facts.iter().any(is_there))
    });
    let Some(covering) = covering else { return };
    for written in rules.iter().filter(|written| written.rule.fallback) {
        let problem = Problem::new(format!(
            "the rule `{}` never applies: it is a fallback, and `{}` matches every path",
            written.rule.name, covering.rule.name
        ))
        .hint("leave out `fallback`, or the `match` of the other rule");
        let (context, other) = (written.context, covering.context);
        let diagnostic = Diagnostic::warning(context.source, written.name_span, problem);
        context.push(diagnostic.also(other.source, covering.name_span, "the other rule is here"));
    }
}
