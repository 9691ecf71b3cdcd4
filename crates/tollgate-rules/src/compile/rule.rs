//! An entry of `rules:` becomes a [`Rule`].

use std::sync::Arc;

use tollgate::{Consistency, KeyBuf, OnChange, OnFailure, Terms};

use crate::Problem;
use crate::diagnostic::Span;
use crate::key_template::KeyTemplate;
use crate::own_refusal::OwnRefusal;
use crate::response_meter::is_json;
use crate::rule::{Ban, Cost, Mode, Rule, TierLimits};
use crate::suggest::suggest;
use crate::yaml::{YamlEntry, YamlNode};

use super::context::{CompileContext, StoreNames, optional};
use super::limits::{self, LimitOwner, WrittenLimit};
use super::tiers::WrittenTiers;
use super::{WrittenRule, condition, cost, quantities, shaping};

/// Reads a rule. `None`: something in it was reported.
pub(super) fn read<'a>(
    context: CompileContext<'a>,
    node: &YamlNode,
    tiers: &WrittenTiers<'_>,
) -> Option<WrittenRule<'a>> {
    // Everything is read before anything is given up, so that every error is reported.
    let (name_node, key_node) = (node.get("name"), node.get("key"));
    let name = name_node.and_then(|name| context.read(name, check_name));
    let when = optional(node.get("match"), |node| condition::read_match(context, node));
    let key = key_node.and_then(|key| read_key(context, key));
    let cost = node.get("cost").map_or(Some(Cost::Fixed(1)), |node| cost::read(context, node));
    let mode = mode(context, node);
    let rule_name = name.as_deref().unwrap_or("rule");
    let ban = optional(node.get("ban"), |node| ban(context, node, rule_name));
    let limits = limits_of(context, node, rule_name, tiers);
    let refusal = optional(node.get("refusal"), |node| refusal(context, node));
    let consistency = consistency(context, node);
    let store = store(context, node);
    let fair = optional(node.get("fair"), |node| shaping::fair(context, node, tiers));
    let websocket =
        optional(node.get("websocket"), |node| shaping::websocket(context, node, rule_name));
    let (name, (specs, limits)) = (name?, limits?);
    let rule = Rule {
        condition: when?,
        fallback: flag(node, "fallback"),
        key: key?,
        limits,
        cost: cost?,
        mode: mode?,
        soft: flag(node, "soft"),
        count_denied: flag(node, "count_denied"),
        ban: ban?,
        terms: Terms { on_failure: on_failure(node), consistency: consistency?, store: store? },
        store: named_store(node).map(|(name, _)| name.into()),
        concurrency: optional(node.get("concurrency"), |node| {
            shaping::concurrency(context, node, &name)
        })?,
        fair: fair?,
        websocket: websocket?,
        refusal: refusal?,
        imported: None,
        name: name.into(),
    };
    check_combinations(context, node, &rule);
    let (name_span, key_span) = (name_node?.span, key_node?.span);
    Some(WrittenRule { context, name_span, key_span, is_short: false, specs, rule })
}

fn read_key(context: CompileContext<'_>, node: &YamlNode) -> Option<KeyTemplate> {
    let key = context.read(node, KeyTemplate::parse)?;
    let written = node.text().unwrap_or_default().to_ascii_lowercase();
    if key.has_host() && written.contains("header.host") {
        let problem = Problem::new("a host has many spellings, and HTTP/2 has no such field")
            .hint("write `{host}`; it is read as that");
        context.warn(node.span, problem);
    }
    Some(key)
}

/// The limits of a rule as they are written, and what they become.
fn limits_of(
    context: CompileContext<'_>,
    node: &YamlNode,
    rule: &str,
    tiers: &WrittenTiers<'_>,
) -> Option<(Vec<WrittenLimit>, TierLimits)> {
    let tiered = node.entry("tiered").filter(|_| flag(node, "tiered"));
    if tiers.is_empty()
        && let Some(entry) = tiered
    {
        let problem = Problem::new("there are no `tiers`, so `tiered` changes nothing")
            .hint("write `tiers: { free: 1, pro: 10 }`, or leave it out");
        context.warn(entry.key_span, problem);
    }
    let owner = LimitOwner { rule, on_change: on_change(node), tiered: tiered.is_some() };
    let Some(limits) = node.get("limits") else { return without_limits(context, node) };
    limits::read_all(context, limits, owner, tiers)
}

/// The limits of a rule that has none, if it bounds work in another way.
fn without_limits(
    context: CompileContext<'_>,
    node: &YamlNode,
) -> Option<(Vec<WrittenLimit>, TierLimits)> {
    let bounds_work =
        ["concurrency", "fair", "websocket"].iter().any(|field| node.entry(field).is_some());
    if !bounds_work {
        // A misspelt field is reported for its name, not as missing.
        let is_misspelt = |entry: &YamlEntry| suggest(&entry.key, ["limits"]).is_some();
        if !node.entries().iter().any(is_misspelt) {
            let problem = Problem::new("a rule needs the field `limits`")
                .hint("write `limits: [10/second, 100/minute]`");
            context.error(node.span, problem);
        }
        return None;
    }
    Some((Vec::new(), TierLimits::untiered(Vec::new())))
}

/// Warns of values that are valid by themselves but contradict each other.
fn check_combinations(context: CompileContext<'_>, node: &YamlNode, rule: &Rule) {
    if rule.mode == Mode::Off {
        return;
    }
    if let Some(node) = node.get("cost") {
        cost::check_capacity(context, node, &rule.limits);
    }
    shaping::check_combinations(context, node, rule);
    let share = node.get("mode").and_then(|mode| mode.get("enforce"));
    if let (Mode::Share(1..=9_999), true, Some(share)) = (rule.mode, rule.key.is_global(), share) {
        let what = match rule.mode.enforces(&rule.name, &KeyBuf::new().with("global", "")) {
            true => "enforced for all",
            false => "never enforced",
        };
        let problem = Problem::new(format!(
            "`enforce` takes a share of keys, and `key: global` is one key: the rule is {what}"
        ))
        .hint("write `mode: enforce` or `mode: shadow`, or a key such as `{user|ip}`");
        context.warn(share.span, problem);
    }
}

/// Checks the name of a rule, which appears in headers, metrics and paths.
pub(super) fn check_name(name: &str) -> Result<Box<str>, Problem> {
    if is_name(name) {
        return Ok(name.into());
    }
    Err(Problem::new(format!("{name:?} cannot be the name of a rule"))
        .hint("write letters, digits, `_` and `-`, at most 64, such as `api-search`"))
}

/// Returns true if this is a valid name for a rule.
pub(crate) fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(is_plain)
}

pub(super) fn flag(node: &YamlNode, field: &str) -> bool {
    node.get(field).and_then(YamlNode::boolean).unwrap_or(false)
}

fn on_change(node: &YamlNode) -> OnChange {
    match node.get("on_change").and_then(YamlNode::text) {
        Some("reset") => OnChange::Reset,
        Some("scale") => OnChange::Scale,
        _ => OnChange::Keep,
    }
}

/// The name of another store than the one of all rules, and where it stands.
fn named_store(node: &YamlNode) -> Option<(&str, Span)> {
    let node = node.get("store")?;
    Some((node.text().filter(|name| *name != "default")?, node.span))
}

/// The number of the store. `None`: there is no such store, which was reported.
fn store(context: CompileContext<'_>, node: &YamlNode) -> Option<u8> {
    let Some((name, span)) = named_store(node) else { return Some(0) };
    let names = match context.shared.stores {
        StoreNames::Unknown => return Some(0),
        StoreNames::None => {
            let problem = Problem::new(format!(
                "the store {name:?} is not used: --store is memory, so this process counts"
            ));
            let hint = "start with --store redis://HOST:PORT and --second-store NAME=STORE, or \
                        leave `store` out";
            context.warn(span, problem.hint(hint));
            return Some(0);
        }
        StoreNames::Named(names) => names,
    };
    if let Some(number) = names.iter().position(|one| **one == *name) {
        return u8::try_from(number + 1).ok();
    }
    let start = format!("start with --second-store {name}=redis://HOST:PORT");
    let hint = match names {
        [] => start,
        some => format!("write one of default, {}, or {start}", some.join(", ")),
    };
    context.error(span, Problem::new(format!("there is no store {name:?}")).hint(hint));
    None
}

pub(super) fn on_failure(node: &YamlNode) -> OnFailure {
    match node.get("on_store_failure").and_then(YamlNode::text) {
        Some("open") => OnFailure::Open,
        Some("closed") => OnFailure::Closed,
        _ => OnFailure::Local,
    }
}

/// Reads `consistency`: the word `strict`, or a map with one of two fields.
fn consistency(context: CompileContext<'_>, node: &YamlNode) -> Option<Consistency> {
    let Some(node) = node.get("consistency") else { return Some(Consistency::Strict) };
    if let Some(share) = node.get("leased") {
        let parts = context.read(share, quantities::share)?;
        return Some(Consistency::Leased { millionths: u32::from(parts) * 100 });
    }
    if let Some(interval) = node.get("local_sync") {
        let interval_ms = context.read(interval, quantities::sync_interval)?;
        return Some(Consistency::LocalSync { interval_ms });
    }
    Some(Consistency::Strict)
}

fn mode(context: CompileContext<'_>, node: &YamlNode) -> Option<Mode> {
    let Some(node) = node.get("mode") else { return Some(Mode::Enforce) };
    match node.text() {
        Some("enforce") => Some(Mode::Enforce),
        Some("shadow") => Some(Mode::Shadow),
        Some("off") => Some(Mode::Off),
        Some(_) => None,
        None => context.read(node.get("enforce")?, quantities::share).map(Mode::Share),
    }
}

fn ban(context: CompileContext<'_>, node: &YamlNode, rule: &str) -> Option<Ban> {
    let duration = |node| context.read(node, quantities::duration);
    let within = node.get("within").and_then(duration);
    let block = node.get("for").and_then(duration);
    let after = node.get("after")?;
    let ban = Ban::new(rule, (after.whole()?, within?), block?);
    ban.map_err(|error| context.error(after.span, error.into())).ok()
}

fn refusal(context: CompileContext<'_>, node: &YamlNode) -> Option<Arc<OwnRefusal>> {
    let status = node.get("status").map_or(Some(OwnRefusal::STATUS.into()), YamlNode::whole);
    let content_type = match node.get("content_type") {
        Some(node) => context.read(node, OwnRefusal::check_content_type),
        None => Some(OwnRefusal::CONTENT_TYPE.into()),
    };
    let body_node = node.get("body")?;
    let body = context.read(body_node, OwnRefusal::check_body)?;
    let (status, content_type) = (u16::try_from(status?).ok()?, content_type?);
    let media_type = content_type.split(';').next().unwrap_or_default().to_ascii_lowercase();
    if is_json(media_type.trim()) && serde_json::from_slice::<serde_json::Value>(&body).is_err() {
        let problem =
            Problem::new(format!("the content type is {content_type}, and the body is no JSON"))
                .hint("write a JSON document, or `content_type: text/plain`");
        context.warn(body_node.span, problem);
    }
    Some(Arc::new(OwnRefusal { status, content_type, body }))
}
