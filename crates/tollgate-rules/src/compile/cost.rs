//! `cost:` becomes a [`Cost`].

use crate::Problem;
use crate::cost_source::{ActualCost, CostEstimate};
use crate::pattern::{Endpoint, EndpointMap};
use crate::rule::{Cost, TierLimits};
use crate::yaml::{YamlEntry, YamlNode, YamlValue};

use super::context::{CompileContext, optional};

/// The most endpoints of one cost: all are scanned when rules are loaded.
const MAX_ENDPOINTS: usize = 1_000;

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
    let other = node.entries().iter().find(|entry| !matches!(&*entry.key, "reserve" | "actual"));
    if let Some(entry) = other {
        let problem = Problem::new(format!("`{}` cannot stand beside `reserve`", entry.key))
            .hint("a cost is either by endpoint, or reserved and settled afterwards");
        context.error(entry.key_span, problem);
        return None;
    }
    Some(Cost::Reserve { reserve: reserve?, actual: actual? })
}

fn by_endpoint(context: CompileContext<'_>, node: &YamlNode) -> Option<Cost> {
    if let Some(entry) = node.entry("actual") {
        let problem = Problem::new("`actual` needs `reserve`")
            .hint("write `cost: { reserve: 2000, actual: \"{response.header.x-tokens-used}\" }`");
        context.error(entry.key_span, problem);
    }
    let default = node.get("default").map_or(Some(1), YamlNode::whole);
    let mut endpoints = Vec::new();
    for entry in node.entries() {
        if matches!(&*entry.key, "default" | "actual") {
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
    let fields = ["default", "reserve", "actual"];
    let hint = context.did_you_mean(&entry.key, fields.into_iter(), || {
        "it has the fields default, reserve and actual, and endpoints such as `POST /api/upload`".into()
    });
    let problem = Problem::new(format!("there is no field `{}` in a `cost`", entry.key));
    context.error(entry.key_span, problem.hint(hint));
}
