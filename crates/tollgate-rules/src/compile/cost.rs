//! `cost:` becomes a [`Cost`].

use crate::Problem;
use crate::cost_source::{ActualCost, CostEstimate, OnUnreadable};
use crate::pattern::{Endpoint, EndpointMap};
use crate::rule::{Cost, TierLimits};
use crate::yaml::{YamlEntry, YamlNode, YamlValue};

use super::context::{CompileContext, optional};

/// The most endpoints of one cost: all are scanned when rules are loaded.
const MAX_ENDPOINTS: usize = 1_000;

/// The fields of a cost that is reserved.
const RESERVED_FIELDS: [&str; 3] = ["reserve", "actual", "unreadable"];

/// Reads a cost. `None`: it could not be read.
pub(super) fn read(context: CompileContext<'_>, node: &YamlNode) -> Option<Cost> {
    let YamlValue::Map(_) = node.value else {
        if node.text() == Some("bytes") {
            return Some(Cost::Bytes);
        }
        let cost = node.whole()?;
        if cost == 0 {
            let problem = Problem::new("a cost of 0 charges nothing, so the limits never refuse")
                .hint("write at least 1, or switch the rule off with `mode: off`");
            context.warn(node.span, problem);
        }
        return Some(Cost::Fixed(cost));
    };
    match node.entry("reserve") {
        Some(reserve) => reserved(context, node, reserve),
        None => by_endpoint(context, node),
    }
}

fn reserved(context: CompileContext<'_>, node: &YamlNode, reserve: &YamlEntry) -> Option<Cost> {
    let actual = optional(node.get("actual"), |actual| context.read(actual, ActualCost::parse));
    let reserve = context.read(&reserve.node, CostEstimate::parse);
    let unreadable = unreadable(context, node, reserve.as_ref());
    let other = node.entries().iter().find(|entry| !RESERVED_FIELDS.contains(&&*entry.key));
    if let Some(entry) = other {
        let problem = Problem::new(format!("`{}` cannot stand beside `reserve`", entry.key))
            .hint("a cost is either by endpoint, or reserved and settled afterwards");
        context.error(entry.key_span, problem);
        return None;
    }
    Some(Cost::Reserve { reserve: reserve?, actual: actual?, unreadable })
}

/// Reads the treatment of bodies that cannot be read.
fn unreadable(
    context: CompileContext<'_>,
    node: &YamlNode,
    reserve: Option<&CostEstimate>,
) -> OnUnreadable {
    let Some(entry) = node.entry("unreadable") else { return OnUnreadable::default() };
    if reserve.is_some_and(|reserve| reserve.json_paths().next().is_none()) {
        let problem = Problem::new("`unreadable` has no effect: `reserve` does not read the body")
            .hint("leave it out, or write `reserve: \"{request.json.max_tokens|2000}\"`");
        context.warn(entry.key_span, problem);
    }
    match entry.node.text() {
        Some("refuse") => OnUnreadable::Refuse,
        // Other words are errors of the shape.
        _ => OnUnreadable::Estimate,
    }
}

fn by_endpoint(context: CompileContext<'_>, node: &YamlNode) -> Option<Cost> {
    for entry in RESERVED_FIELDS[1..].iter().filter_map(|field| node.entry(field)) {
        let problem = Problem::new(format!("`{}` needs `reserve`", entry.key)).hint(match &*entry
            .key
        {
            "actual" => {
                "write `cost: { reserve: 2000, actual: \"{response.header.x-tokens-used}\" }`"
            }
            _ => {
                "write `cost: { reserve: \"{request.json.max_tokens|2000}\", unreadable: refuse }`"
            }
        });
        context.error(entry.key_span, problem);
    }
    let default = node.get("default").map_or(Some(1), YamlNode::whole);
    let mut endpoints = Vec::new();
    for entry in node.entries() {
        if matches!(&*entry.key, "default" | "actual" | "unreadable") {
            continue;
        }
        match (Endpoint::parse(&entry.key), entry.node.whole()) {
            (Ok(endpoint), Some(cost)) => endpoints.push((endpoint, cost)),
            (Ok(_), None) => {}
            (Err(_), _) if !entry.key.contains('/') => unknown_field(context, entry),
            (Err(problem), _) => context.error(entry.key_span, problem),
        }
    }
    if endpoints.len() > MAX_ENDPOINTS {
        let problem = format!("a cost has at most {MAX_ENDPOINTS} endpoints");
        context.error(node.span, Problem::new(problem));
        return None;
    }
    Some(Cost::PerEndpoint { default: default?, endpoints: EndpointMap::new(endpoints) })
}

/// Warns of a cost above the capacity of a limit, which never passes. Silent if a tier has room for
/// it: that may be what the tier is for.
pub(super) fn check_capacity(context: CompileContext<'_>, node: &YamlNode, limits: &TierLimits) {
    let costs = match &node.value {
        YamlValue::Map(entries) => entries.iter().map(|entry| &entry.node).collect(),
        _ => vec![node],
    };
    // The fallback of an estimate: other requests may still pass, but these never do.
    let estimate =
        |node: &YamlNode| CostEstimate::parse(node.text()?).ok().map(|one| one.fallback());
    for node in costs {
        let Some(cost) = node.whole().or_else(|| estimate(node)) else { continue };
        let mut lists =
            limits.all().map(|list| list.iter().find(|one| one.limit.capacity() < cost));
        let Some(Some(first)) = lists.next() else { continue };
        if lists.all(|too_small| too_small.is_some()) {
            let problem = Problem::new(format!(
                "a request of cost {cost} can never be allowed: the capacity of `{}` is {}",
                first.text,
                first.limit.capacity()
            ))
            .hint("lower the cost, or raise the limit or its burst");
            context.warn(node.span, problem);
        }
    }
}

/// Reports an unknown field. A name without a slash is not meant as an endpoint.
fn unknown_field(context: CompileContext<'_>, entry: &YamlEntry) {
    let fields = ["default", "reserve", "actual", "unreadable"];
    let hint = context.did_you_mean(&entry.key, fields.into_iter(), || {
        "it has the fields default, reserve, actual and unreadable, and endpoints such as `POST /api/upload`".into()
    });
    let problem = Problem::new(format!("there is no field `{}` in a `cost`", entry.key));
    context.error(entry.key_span, problem.hint(hint));
}
