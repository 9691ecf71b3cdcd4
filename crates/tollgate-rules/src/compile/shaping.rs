//! The fields of a rule that let requests wait or bound work in progress: `concurrency:`, `fair:` and `websocket:`.

use std::sync::Arc;

use tollgate::limit::parse_rate;
use tollgate::{Algorithm, Limit};

use crate::Problem;
use crate::fair::Fair;
use crate::rule::{Concurrency, Rule};
use crate::tier::Multiplier;
use crate::websocket_limits::{ExcessPolicy, LimitedDirection, WebSocketLimits};
use crate::yaml::YamlNode;

use super::context::{CompileContext, optional};
use super::quantities;
use super::tiers::WrittenTiers;

/// The lowest and the highest adaptive bound, unless the rule says otherwise.
const ADAPTIVE_DEFAULT: (u64, u64) = (4, 1_000);

/// Reads `concurrency`: a number, or `adaptive` with or without its range.
pub(super) fn concurrency(
    context: CompileContext<'_>,
    node: &YamlNode,
    rule: &str,
) -> Option<Concurrency> {
    let bound = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    if let Some(max) = node.whole() {
        return Some(Concurrency::new(rule, bound(max)));
    }
    let (min_default, max_default) = ADAPTIVE_DEFAULT;
    let Some(range) = node.get("adaptive") else {
        return Some(Concurrency::adaptive(rule, bound(min_default), bound(max_default)));
    };
    let max = range.get("max").map_or(Some(max_default), YamlNode::whole)?;
    let min = range.get("min").map_or(Some(min_default.min(max)), YamlNode::whole)?;
    if min > max {
        let problem = Problem::new(format!("`min` is {min} and `max` is {max}"))
            .hint("write a `min` that is not above `max`");
        context.error(range.span, problem);
        return None;
    }
    Some(Concurrency::adaptive(rule, bound(min), bound(max)))
}

/// Reads `fair`.
pub(super) fn fair(
    context: CompileContext<'_>,
    node: &YamlNode,
    tiers: &WrittenTiers<'_>,
) -> Option<Fair> {
    let bound = |field: &str, default: u32| {
        let number = node.get(field).map_or(Some(default.into()), YamlNode::whole);
        number.and_then(|number| u32::try_from(number).ok())
    };
    let (per_key, total) = (bound("per_key", Fair::PER_KEY), bound("total", Fair::TOTAL));
    let wait = context.read(node.get("wait")?, quantities::timeout)?;
    let mut fair = Fair::new(wait);
    (fair.per_key, fair.total) = (per_key?, total?);
    let Some(entry) = node.entry("weight_by") else { return Some(fair) };
    if tiers.is_empty() {
        let problem = Problem::new("there are no `tiers`, so `weight_by: tier` changes nothing")
            .hint("write `tiers: { free: 1, pro: 10 }`, or leave it out");
        context.warn(entry.key_span, problem);
    }
    let thousandths = |multiplier: Multiplier| multiplier.apply(1_000);
    let weights = tiers.iter().map(|tier| {
        let weight = thousandths(tier.multiplier.unwrap_or(Multiplier::ONE));
        u32::try_from(weight).unwrap_or(u32::MAX)
    });
    Some(fair.with_tier_weights(weights.collect()))
}

/// Reads `websocket`.
pub(super) fn websocket(
    context: CompileContext<'_>,
    node: &YamlNode,
    rule: &str,
) -> Option<Arc<WebSocketLimits>> {
    let time = |field| optional(node.get(field), |node| context.read(node, quantities::duration));
    let messages = optional(node.get("messages"), |node| {
        let limit = context.read(node, message_rate)?;
        Some((Arc::new(limit), node.text()?.into()))
    });
    let bytes = optional(node.get("bytes"), |node| {
        let limit = context.read(node, byte_limit)?;
        Some((Arc::new(limit), node.text()?.into()))
    });
    let message_bytes =
        optional(node.get("message_bytes"), |node| context.read(node, quantities::bytes));
    let (idle, lifetime) = (time("idle"), time("lifetime"));
    let close_code = node.get("close_code").map_or(Some(1_008), YamlNode::whole);
    let close_code = close_code.filter(|code| matches!(code, 1_008 | 1_013));
    if let (None, Some(node)) = (close_code, node.get("close_code")) {
        let problem = Problem::new("the close code is neither 1008 nor 1013")
            .hint("write 1008 (policy violation) or 1013 (try again later)");
        context.error(node.span, problem);
    }
    let connections = node.get("connections").and_then(YamlNode::whole);
    Some(Arc::new(WebSocketLimits {
        connections: connections.map(|number| {
            Concurrency::connections(rule, u32::try_from(number).unwrap_or(u32::MAX))
        }),
        messages: messages?,
        bytes: bytes?,
        message_bytes: message_bytes?,
        idle: idle?,
        lifetime: lifetime?,
        on_excess: match node.get("on_excess").and_then(YamlNode::text) {
            Some("wait") => ExcessPolicy::Wait,
            _ => ExcessPolicy::Close,
        },
        close_code: u16::try_from(close_code?).ok()?,
        direction: match node.get("direction").and_then(YamlNode::text) {
            Some("server") => LimitedDirection::Server,
            Some("both") => LimitedDirection::Both,
            _ => LimitedDirection::Client,
        },
    }))
}

/// A rate of messages, as a token bucket: a connection may send a burst at once.
fn message_rate(text: &str) -> Result<Limit, Problem> {
    let limit = parse_rate(text)?.algorithm(Algorithm::TokenBucket).build();
    limit.map_err(Problem::from)
}

/// A rate of bytes, as a token bucket.
fn byte_limit(text: &str) -> Result<Limit, Problem> {
    let (bytes, period) = quantities::byte_rate(text)?;
    let limit = Limit::per(bytes, period).algorithm(Algorithm::TokenBucket).build();
    limit.map_err(Problem::from)
}

/// Warns of values that are valid by themselves but contradict each other.
pub(super) fn check_combinations(context: CompileContext<'_>, node: &YamlNode, rule: &Rule) {
    if let (Some(entry), true) = (node.entry("fair"), rule.key.is_global()) {
        let problem = Problem::new(
            "`fair` shares among the keys of its rule, and `key: global` is one key for all: \
             requests wait first come, first served",
        )
        .hint("write `fair` in a rule with a key such as `{user|ip}` that applies to the same requests");
        context.warn(entry.key_span, problem);
    }
}
