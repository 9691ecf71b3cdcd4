//! The event `tick`: one second of the server. Bound: [`RULES_MAX`] rules with names of at most 64 characters, 16 KiB.

use serde_json::{Map, Value, json};
use tollgate_redis::SharedStats;

use crate::history::{OUTCOME_NAMES, TrafficCounts, TrafficSecond, keep_busiest};
use crate::metrics::Metrics;
use crate::store::open_stores::StoreFigures;

/// Most rules by name, the busiest.
const RULES_MAX: usize = 50;

/// The tick of a second, as one line.
pub(super) fn tick_json(second: &TrafficSecond, metrics: &Metrics) -> String {
    let mut rules = second.rules.clone();
    keep_busiest(&mut rules, RULES_MAX);
    let mut others = TrafficCounts::default();
    second.rules.iter().for_each(|rule| others.add(&rule.counts));
    rules.iter().for_each(|rule| others.subtract(&rule.counts));
    let mut tick = counts_json(&second.all);
    let percentile = |part| second.latency.percentile_us(part);
    let named = rules.iter().map(|rule| {
        let mut entry = counts_json(&rule.counts);
        entry.insert("name".into(), (*rule.name).into());
        Value::Object(entry)
    });
    let mut others = counts_json(&others);
    others.insert("rules".into(), (second.rules.len() - rules.len()).into());
    let listeners = metrics.listeners.iter();
    let connections: Map<String, Value> = listeners
        .map(|listener| (listener.name.to_string(), listener.caps.counters().open.into()))
        .collect();
    let fields = [
        ("at_s", second.second.into()),
        ("interval_ms", second.interval_ms.into()),
        (
            "latency_us",
            json!({
                "p50": percentile(0.5), "p99": percentile(0.99), "max": second.latency.max_us(),
            }),
        ),
        ("rules", named.collect()),
        ("other_rules", others.into()),
        ("store", store_json(metrics)),
        ("waiting", metrics.requests_waiting().into()),
        ("tunnels", metrics.open_tunnels().into()),
        ("connections", connections.into()),
    ];
    tick.extend(fields.map(|(name, value)| (name.to_string(), value)));
    Value::Object(tick).to_string()
}

fn counts_json(counts: &TrafficCounts) -> Map<String, Value> {
    let counts = OUTCOME_NAMES.into_iter().zip(counts.0);
    counts.map(|(name, count)| (name.to_string(), count.into())).collect()
}

/// The store in short; `/api/status` says more.
fn store_json(metrics: &Metrics) -> Value {
    let keys = metrics.store.memory().stats().keys;
    let Some(store) = metrics.store.shared() else {
        return json!({ "kind": "memory", "up": true, "keys": keys });
    };
    let figures = store.figures();
    let open = |store: &StoreFigures<'_>| store.link.nodes.iter().any(|node| node.breaker_open);
    let SharedStats { degraded_local, degraded_open, degraded_closed, .. } = store.stats();
    let instances = metrics.peers.control().map(|control| control.stats().live_instances.max(1));
    json!({
        "kind": "redis",
        "up": figures.iter().all(StoreFigures::is_up),
        "keys": keys,
        "breaker_open": figures.iter().any(open),
        "instances": instances,
        "degraded": degraded_local + degraded_open + degraded_closed,
    })
}
