//! An entry of `rules:` becomes a [`Rule`].

use tollgate::limit::parse_rate;
use tollgate::{Algorithm, Limit, OnChange};

use crate::Problem;
use crate::key_template::KeyTemplate;
use crate::rule::{Ban, Concurrency, Cost, Mode, Rule, StoreFailure};
use crate::yaml::Node;

use super::context::Context;
use super::limits::{self, Owner};
use super::tiers::Tiers;
use super::{Written, condition, cost, quantities};

/// Reads a rule. `None`: something in it was reported.
pub(super) fn read<'a>(
    context: Context<'a>,
    node: &Node,
    tiers: &Tiers<'_>,
) -> Option<Written<'a>> {
    // Everything is read before anything is given up, so that every error is reported.
    let name_node = node.get("name");
    let name = name_node.and_then(|name| context.read(name, check_name));
    let when = node.get("match").map(|node| condition::read_match(context, node));
    let key_node = node.get("key");
    let key = key_node.and_then(|key| context.read(key, KeyTemplate::parse));
    let cost = node.get("cost").map_or(Some(Cost::Fixed(1)), |node| cost::read(context, node));
    let mode = mode(context, node);
    let rule_name = name.as_deref().unwrap_or("rule");
    let ban = node.get("ban").map(|node| ban(context, node, rule_name));
    let owner = Owner { rule: rule_name, on_change: on_change(node), tiered: flag(node, "tiered") };
    let specs = node.get("limits").and_then(|limits| limits::specs(context, limits));
    let limits = node.get("limits").zip(specs.as_ref()).and_then(|(limits, specs)| {
        let blame = |problem: &Problem, index: usize| limits::blame(problem, &limits.each()[index]);
        limits::of_rule(context, specs, blame, owner, tiers)
    });
    check_elsewhere(context, node);
    if owner.tiered
        && tiers.is_empty()
        && let Some(entry) = node.entry("tiered")
    {
        let problem = Problem::new("there are no `tiers`, so `tiered` changes nothing")
            .hint("write `tiers: { free: 1, pro: 10 }`, or leave it out");
        context.warn(entry.key_span, problem);
    }
    let name = name?;
    Some(Written {
        context,
        name_span: name_node?.span,
        key_span: key_node?.span,
        limit_spans: specs?.iter().map(|one| one.span).collect(),
        rule: Rule {
            when: match when {
                Some(when) => Some(when?),
                None => None,
            },
            fallback: flag(node, "fallback"),
            key: key?,
            limits: limits?,
            cost: cost?,
            mode: mode?,
            soft: flag(node, "soft"),
            count_denied: flag(node, "count_denied"),
            ban: match ban {
                Some(ban) => Some(ban?),
                None => None,
            },
            on_store_failure: on_store_failure(node),
            concurrency: concurrency(node, &name),
            name: name.into(),
        },
    })
}

/// Names appear in headers, metrics and paths.
pub(super) fn check_name(name: &str) -> Result<Box<str>, Problem> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if (1..=64).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(name.into());
    }
    Err(Problem::new(format!("{name:?} cannot be the name of a rule"))
        .hint("write letters, digits, `_` and `-`, at most 64, such as `api-search`"))
}

fn flag(node: &Node, field: &str) -> bool {
    node.get(field).and_then(Node::boolean).unwrap_or(false)
}

fn on_change(node: &Node) -> OnChange {
    match node.get("on_change").and_then(Node::text) {
        Some("reset") => OnChange::Reset,
        Some("scale") => OnChange::Scale,
        _ => OnChange::Keep,
    }
}

fn on_store_failure(node: &Node) -> StoreFailure {
    match node.get("on_store_failure").and_then(Node::text) {
        Some("open") => StoreFailure::Open,
        Some("closed") => StoreFailure::Closed,
        _ => StoreFailure::Local,
    }
}

fn concurrency(node: &Node, name: &str) -> Option<Concurrency> {
    let most = node.get("concurrency")?.whole()?;
    Some(Concurrency::new(name, u32::try_from(most).unwrap_or(u32::MAX)))
}

fn mode(context: Context<'_>, node: &Node) -> Option<Mode> {
    let Some(node) = node.get("mode") else { return Some(Mode::Enforce) };
    match node.text() {
        Some("enforce") => Some(Mode::Enforce),
        Some("shadow") => Some(Mode::Shadow),
        Some("off") => Some(Mode::Off),
        Some(_) => None,
        None => context.read(node.get("enforce")?, quantities::share).map(Mode::Share),
    }
}

fn ban(context: Context<'_>, node: &Node, rule: &str) -> Option<Ban> {
    let within = node.get("within").map(|node| context.read(node, quantities::duration));
    let block = node.get("for").map(|node| context.read(node, quantities::duration));
    let after = node.get("after")?;
    // A log: the refusal that is counted last is the one that earns the block, not one nearby.
    let refusals = Limit::per(after.whole()?, within??)
        .algorithm(Algorithm::SlidingWindowLog)
        .name(rule)
        .build()
        .map_err(|error| context.error(after.span, error.into()));
    Some(Ban { refusals: refusals.ok()?, block: block?? })
}

/// Fields that are checked here and act elsewhere.
fn check_elsewhere(context: Context<'_>, node: &Node) {
    let (gateway, shared) = ("in the gateway", "with a shared store");
    if let Some(entry) = node.entry("fair") {
        entry.node.get("wait").map(|node| context.read(node, quantities::duration));
        context.no_effect(entry.key_span, "fair", gateway);
    }
    if let Some(entry) = node.entry("websocket") {
        let rate = |text: &str| parse_rate(text)?.build().map(|_| ()).map_err(Problem::from);
        entry.node.get("messages").map(|node| context.read(node, rate));
        entry.node.get("bytes").map(|node| context.read(node, quantities::byte_rate));
        context.no_effect(entry.key_span, "websocket", gateway);
    }
    if let Some(entry) = node.entry("consistency")
        && entry.node.text().is_none()
    {
        entry.node.get("leased").map(|node| context.read(node, quantities::share));
        entry.node.get("local_sync").map(|node| context.read(node, quantities::duration));
        if entry.node.entries().len() != 1 {
            let problem = Problem::new("a `consistency` has exactly one field")
                .hint("write `strict`, `{ leased: 1% }` or `{ local_sync: 1s }`");
            context.error(entry.node.span, problem);
        }
        context.no_effect(entry.key_span, "consistency", shared);
    }
    if let Some(entry) = node.entry("store")
        && entry.node.text().is_some_and(|store| store != "default")
    {
        context.no_effect(entry.key_span, "store", shared);
    }
}
