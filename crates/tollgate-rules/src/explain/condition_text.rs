//! Conditions as people read them, each with the value that the request has.

use crate::matcher::{Condition, TextTest};
use crate::normalized_facts::NormalizedFacts;
use crate::path::Spelling;
use crate::rule::Rule;
use crate::rule_set::RuleSet;

use super::ExplainedCondition;
use super::shorten::shorten;
use crate::credentials::{HiddenCredentials, shown_header_value};

/// The most alternatives of a condition that are listed.
const ALTERNATIVES_MAX: usize = 8;

/// The conditions of a rule, each of which has to hold, for a path in this spelling.
pub(super) fn explain_conditions(
    condition: &Condition,
    seen: &NormalizedFacts<'_>,
    path: Option<&Spelling<'_>>,
    secrets: &HiddenCredentials<'_>,
) -> Vec<ExplainedCondition> {
    let parts = match condition {
        Condition::All(parts) => &parts[..],
        one => std::slice::from_ref(one),
    };
    let explain = |part: &Condition| {
        let mut found = Vec::new();
        add_found(part, seen, path, secrets, &mut found);
        found.dedup();
        ExplainedCondition {
            text: condition_text(part, secrets),
            holds: part.holds(seen, path),
            found: (!found.is_empty()).then(|| list(found.iter(), ", ")),
        }
    };
    parts.iter().map(explain).collect()
}

/// The condition of a rule as people read it; `None` if the rule applies always.
pub fn rule_condition_text(rules: &RuleSet, rule: &Rule) -> Option<String> {
    let secrets = HiddenCredentials(&rules.settings().identify);
    rule.condition.as_ref().map(|condition| condition_text(condition, &secrets))
}

/// A condition as people read it: `method is GET or POST`.
pub(super) fn condition_text(condition: &Condition, secrets: &HiddenCredentials<'_>) -> String {
    let nested = |parts: &[Condition], word: &str| {
        let texts = parts.iter().map(|part| match part {
            Condition::All(_) | Condition::Any(_) => format!("({})", condition_text(part, secrets)),
            _ => condition_text(part, secrets),
        });
        list(texts, word)
    };
    match condition {
        Condition::Path(patterns) => format!("path matches {}", list(patterns.iter(), " or ")),
        Condition::PathText(test) => format!("path {}", test_text(test, false)),
        Condition::Method(methods) => format!("method is {}", list(methods.iter(), " or ")),
        Condition::Host(hosts) => format!("host is {}", list(hosts.iter(), " or ")),
        Condition::HostText(test) => format!("host {}", test_text(test, false)),
        Condition::Header { name, value } => {
            format!("header {name} {}", test_text(value, secrets.hides_header(name)))
        }
        Condition::Upgrade(protocol) => format!("asks to upgrade to {protocol}"),
        Condition::User(test) => format!("user {}", test_text(test, false)),
        Condition::Tier(test) => format!("tier {}", test_text(test, false)),
        Condition::ApiKey(test) => format!("api_key {}", test_text(test, true)),
        Condition::Entry { name, value } => {
            format!("entry {name} {}", test_text(value, HiddenCredentials::hides_entry(name)))
        }
        Condition::Domain(test) => format!("domain {}", test_text(test, false)),
        Condition::Ip(nets) => format!("ip is in {}", list(nets.iter(), " or ")),
        Condition::All(parts) if parts.is_empty() => "always".into(),
        Condition::Any(parts) if parts.is_empty() => "never".into(),
        Condition::All(parts) => nested(parts, " and "),
        Condition::Any(parts) => nested(parts, " or "),
        Condition::Not(inner) => match **inner {
            Condition::All(_) | Condition::Any(_) => {
                format!("not ({})", condition_text(inner, secrets))
            }
            _ => format!("not {}", condition_text(inner, secrets)),
        },
    }
}

/// A test of a text as people read it; a hidden one does not show what it compares with.
fn test_text(test: &TextTest, hidden: bool) -> String {
    match test {
        TextTest::Present => "is present".into(),
        TextTest::OneOf(texts) if hidden => match texts.len() {
            1 => "is a certain one (not shown)".into(),
            several => format!("is one of {several} (not shown)"),
        },
        TextTest::OneOf(texts) => format!("is {}", list(texts.iter(), " or ")),
        TextTest::Like(_) if hidden => "fits an expression (not shown)".into(),
        TextTest::Like(expression) => format!("fits {}", shorten(expression.text())),
    }
}

/// Adds what the request has of each fact that a condition tests.
fn add_found(
    condition: &Condition,
    seen: &NormalizedFacts<'_>,
    path: Option<&Spelling<'_>>,
    secrets: &HiddenCredentials<'_>,
    found: &mut Vec<String>,
) {
    let facts = seen.facts;
    let shown = |value: Option<&str>, name: &str| {
        value.map_or_else(|| format!("no {name}"), |value| shorten(value).into_owned())
    };
    let header = |name: &str| {
        let value = facts.headers.and_then(|headers| headers.header(name));
        match &value {
            Some(_) if secrets.hides_header(name) => format!("{name} (not shown)"),
            value => {
                let value = value.as_deref().map(|value| shown_header_value(name, value.into()));
                shown(value.as_deref(), &format!("header {name}"))
            }
        }
    };
    found.push(match condition {
        Condition::Path(_) | Condition::PathText(_) => shown(path.map(Spelling::text), "path"),
        Condition::Method(_) => shown(seen.method(), "method"),
        Condition::Host(_) | Condition::HostText(_) => shown(seen.host(), "host"),
        Condition::Header { name, .. } => header(name),
        Condition::Upgrade(_) => header("upgrade"),
        Condition::User(_) => shown(seen.user(), "user"),
        Condition::Tier(_) => shown(seen.tier, "tier"),
        Condition::ApiKey(_) => shown(seen.api_key().map(|_| "an API key (not shown)"), "API key"),
        Condition::Entry { name, .. } => {
            let value = facts.entries_named(name).next();
            let hidden = value.filter(|_| HiddenCredentials::hides_entry(name));
            shown(hidden.map(|_| "(not shown)").or(value), &format!("entry {name}"))
        }
        Condition::Domain(_) => shown(facts.domain, "domain"),
        Condition::Ip(_) => seen.ip.map_or_else(|| "no address".into(), |ip| ip.to_string()),
        Condition::All(parts) | Condition::Any(parts) => {
            parts.iter().for_each(|part| add_found(part, seen, path, secrets, found));
            return;
        }
        Condition::Not(inner) => return add_found(inner, seen, path, secrets, found),
    });
}

/// The first few of a list, joined by a word.
fn list<T: ToString>(all: impl ExactSizeIterator<Item = T>, word: &str) -> String {
    let more = all.len().saturating_sub(ALTERNATIVES_MAX);
    let mut texts: Vec<String> =
        all.take(ALTERNATIVES_MAX).map(|one| shorten(&one.to_string()).into_owned()).collect();
    if more > 0 {
        texts.push(format!("{more} more"));
    }
    texts.join(word)
}
