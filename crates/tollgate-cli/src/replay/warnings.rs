//! Reasons why a replay may answer differently than a server would, as sentences.

use tollgate_rules::matcher::{Condition, TextTest};
use tollgate_rules::rule::Cost;
use tollgate_rules::{Identify, Rule, RuleSet};

use crate::recording::{MissingRequests, SampleShare};

/// Most rules that one sentence names.
const RULES_NAMED_MAX: usize = 5;

/// The gaps of a recording.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordingLimits {
    pub(super) share: SampleShare,
    pub(super) missing: MissingRequests,
}

/// Warnings about a recording under the rules that were in force and under a candidate.
pub(super) fn of_recording(limits: &RecordingLimits, [now, then]: [&RuleSet; 2]) -> Vec<String> {
    let mut warnings = Vec::new();
    let RecordingLimits { share, missing } = limits;
    if *share != SampleShare::ALL {
        let shared = rules_that(then, |rule| !rule.key.names_caller());
        warnings.extend(shared.map(|rules| {
            let one_in = share.one_in();
            format!(
                "Only 1 caller in {one_in} is recorded, so a limit that callers share has room for more: {rules}."
            )
        }));
    }
    if missing.lost > 0 {
        let lost = missing.lost;
        warnings
            .push(format!("{lost} requests since the start were too large or too many to record."));
    }
    if missing.without_facts > 0 {
        let count = missing.without_facts;
        warnings.push(format!(
            "{count} requests of Envoy's protocol since the start are not recorded."
        ));
    }
    if !identifies_alike(now, then) {
        warnings.push(
            "The candidate identifies callers in another way: the replay keeps them as they were identified."
                .into(),
        );
    }
    let recorded = now.recorded_headers();
    let is_recorded = |name: &str| recorded.iter().any(|header| *header.name == *name);
    let unrecorded = then.recorded_headers().iter().filter(|header| !is_recorded(&header.name));
    let unrecorded: Vec<&str> = unrecorded.map(|header| &*header.name).collect();
    if !unrecorded.is_empty() {
        let names = unrecorded.join(", ");
        warnings.push(format!(
            "No rule in force looks at these headers, so they were not recorded, and the candidate does not find \
             them: {names}."
        ));
    }
    warnings.extend(of_credentials(then));
    warnings.extend(of_replay(then));
    warnings
}

/// Warnings about conditions on the value of credentials, which are recorded as hashes.
fn of_credentials(then: &RuleSet) -> Option<String> {
    let compares = |test: &TextTest| !matches!(test, TextTest::Present);
    let is_credential = |name: &str| {
        then.recorded_headers().iter().any(|header| *header.name == *name && header.is_credential)
    };
    let on_secret = |one: &Condition| match one {
        Condition::ApiKey(test) => compares(test),
        Condition::Header { name, value } => compares(value) && is_credential(name),
        _ => false,
    };
    let rules = rules_that(then, |rule| has_condition(rule, &on_secret))?;
    Some(format!(
        "Credentials are recorded as hashes, so conditions on their value do not hold: {rules}."
    ))
}

/// Warnings about rules that a replay cannot follow, wherever the requests come from.
fn of_replay(then: &RuleSet) -> Vec<String> {
    let waits = |rule: &Rule| rule.fair.is_some() || rule.concurrency.is_some();
    let waits = rules_that(then, waits).map(|rules| {
        format!("Requests neither wait nor take time, so fair queues and bounds on work in progress do not act: {rules}.")
    });
    let settles = |rule: &Rule| matches!(rule.cost, Cost::Bytes | Cost::Reserve { .. });
    let settles = rules_that(then, settles).map(|rules| {
        format!("Bodies are not recorded, so costs are the estimates without them: {rules}.")
    });
    waits.into_iter().chain(settles).collect()
}

/// Warnings about rules that look at callers whom a recorded trace has only as hashes.
pub(crate) fn of_hashed_callers(rules: &RuleSet) -> Vec<String> {
    let mut warnings = Vec::new();
    let compares = |test: &TextTest| !matches!(test, TextTest::Present);
    let in_key = |name: &str| {
        rules.recorded_headers().iter().any(|header| *header.name == *name && header.is_in_key)
    };
    let on_caller = |one: &Condition| match one {
        Condition::User(test) | Condition::ApiKey(test) => compares(test),
        Condition::Ip(_) => true,
        Condition::Header { name, value } => compares(value) && in_key(name),
        _ => false,
    };
    if let Some(found) = rules_that(rules, |rule| has_condition(rule, &on_caller)) {
        warnings.push(format!(
            "the trace has callers as hashes, so conditions on users, API keys and addresses do not hold: {found}"
        ));
    }
    let settings = rules.settings();
    if !settings.exempt_ips.is_empty() || !settings.exempt_users.is_empty() {
        warnings.push("the trace has callers as hashes, so nobody is exempt".into());
    }
    if !rules.overrides().is_empty() {
        warnings.push("the trace has callers as hashes, so overrides do not apply".into());
    }
    let in_part = |rule: &Rule| matches!(rule.mode, tollgate_rules::rule::Mode::Share(_));
    if let Some(found) = rules_that(rules, in_part) {
        warnings.push(format!(
            "the trace has callers as hashes, so rules in force for a share of callers pick others: {found}"
        ));
    }
    warnings
}

/// A warning if the replay of the rules in force differs from the answers that the server gave.
pub(super) fn of_server(unlike: u64, requests: usize) -> Option<String> {
    (unlike > 0).then(|| {
        format!(
            "The replay of the rules in force answers {unlike} of {requests} requests differently than the server \
             did: limits were partly used at the beginning, were counted together with other servers, or were \
             changed since."
        )
    })
}

/// The names of the rules in force for which this holds; `None` if there are none.
fn rules_that(rules: &RuleSet, holds: impl Fn(&Rule) -> bool) -> Option<String> {
    let is_on = |rule: &&Rule| rule.mode != tollgate_rules::rule::Mode::Off;
    let found: Vec<&str> =
        rules.rules().filter(is_on).filter(|rule| holds(rule)).map(|rule| &*rule.name).collect();
    let shown = found.iter().take(RULES_NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    match found.len() {
        0 => None,
        few if few <= RULES_NAMED_MAX => Some(shown),
        many => Some(format!("{shown} and {} more", many - RULES_NAMED_MAX)),
    }
}

fn has_condition(rule: &Rule, such: &dyn Fn(&Condition) -> bool) -> bool {
    rule.condition.as_ref().is_some_and(|condition| condition.has(such))
}

/// Returns true if both find the same caller in a request. Tables of tiers act in a replay, too.
fn identifies_alike(now: &RuleSet, then: &RuleSet) -> bool {
    let source = |rules: &RuleSet| Identify {
        tier_of_user: Default::default(),
        default_tier: None,
        ipv6_prefix: 64,
        nat64: false,
        ..rules.settings().identify.clone()
    };
    source(now) == source(then)
}
