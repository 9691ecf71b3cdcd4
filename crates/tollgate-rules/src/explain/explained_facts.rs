//! The facts of a request as rules see them, with remarks on where they come from.

use crate::facts::Facts;
use crate::normalized_facts::{NormalizedFacts, network_of};
use crate::path::Spelling;
use crate::rule_set::RuleSet;

use super::ExplainedFact;
use super::shorten::shorten;

/// The facts, without credentials.
pub(super) fn explain_facts(rules: &RuleSet, facts: &Facts<'_>) -> Vec<ExplainedFact> {
    let seen = rules.normalized_facts(facts);
    let fact = |name: &str, value: Option<String>, note: Option<String>| {
        value.map(|value| ExplainedFact { name: name.into(), value, note })
    };
    let text = |value: Option<&str>| value.map(|value| shorten(value).into_owned());
    let hashed = seen.hashed_api_key().map(String::from);
    let all = [
        fact("method", text(seen.method()), None),
        fact("path", text(seen.spelling(0).map(Spelling::text)), path_note(&seen)),
        fact("host", text(seen.host()), None),
        fact("ip", seen.ip.map(|ip| ip.to_string()), address_note(rules, &seen)),
        fact("user", text(seen.user()), None),
        fact("tier", text(seen.tier), seen.tier.map(|tier| tier_source(rules, &seen, tier).into())),
        fact("api_key", hashed, Some("its hash; the key itself is never shown".into())),
        fact("domain", text(facts.domain), None),
        fact("request_bytes", facts.request_bytes.map(|bytes| bytes.to_string()), None),
    ];
    all.into_iter().flatten().collect()
}

/// The source of a tier.
pub(super) fn tier_source(rules: &RuleSet, seen: &NormalizedFacts<'_>, tier: &str) -> &'static str {
    let table = &rules.settings().identify.tier_of_user;
    let of_user = seen.user().and_then(|user| table.get(user));
    match (seen.facts.tier, of_user) {
        (Some(stated), _) if stated == tier => "stated by the request",
        (_, Some(assigned)) if **assigned == *tier => "assigned to the user by the rules",
        _ => "the default of the rules",
    }
}

fn path_note(seen: &NormalizedFacts<'_>) -> Option<String> {
    let sent = seen.facts.path?;
    let first = seen.spelling(0)?.text();
    // A query may have credentials: rules do not look at it, and neither does this.
    let sent = sent.split(['?', '#']).next().unwrap_or_default();
    match seen.spelling_count() {
        1 if sent == first => None,
        // A whole URL may name a user and a password.
        _ if !sent.starts_with('/') => Some("taken out of what was sent".into()),
        1 => Some(format!("sent as {}", shorten(sent))),
        several => Some(format!("sent as {}; servers read it in {several} ways", shorten(sent))),
    }
}

fn address_note(rules: &RuleSet, seen: &NormalizedFacts<'_>) -> Option<String> {
    let ip = seen.ip.filter(|ip| ip.is_ipv6())?;
    let prefix = rules.settings().identify.ipv6_prefix;
    Some(format!("counted as the network {}/{prefix}", network_of(ip, prefix)))
}
