//! `/api/status`: the status of the whole server.

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tollgate::Wait;
use tollgate_redis::SharedStats;
use tollgate_rules::AdaptiveBoundReport;

use super::upstreams::upstream_problems_json;
use super::{ControlPlane, health, rules};
use crate::listeners::response_body::ResponseBody;
use crate::live::{FailedReload, RulesOrigin, WatchMethod};
use crate::reply;
use crate::store::open_stores::StoreFigures;
use crate::telemetry::timestamp;

impl ControlPlane {
    pub(super) fn status(&self) -> Response<ResponseBody> {
        let now = self.gatekeeper.now();
        let started = self.metrics.started;
        let outcomes = self.metrics.observer.outcomes();
        let listeners = self.metrics.listeners.iter();
        let connections = listeners
            .map(|listener| (listener.name.to_string(), listener.caps.counters().open.into()));
        let document = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "started_at": timestamp(started).to_string(),
            "uptime_s": now.as_u64().saturating_sub(started.as_u64()) / 1_000_000,
            "ready": health::not_ready_reason(&self.stopping, &self.gatekeeper, &self.store).is_none(),
            "rules": self.rules_status(),
            "credentials": {
                "failed": self.live.status().credentials_failed.as_ref().map(failed_reload_json),
            },
            "store": self.store_status(),
            "decisions": {
                "allowed": outcomes.allowed,
                "refused": outcomes.refused.iter().sum::<u64>(),
            },
            "reservations": self.gatekeeper.stats().reservations,
            "adaptive_concurrency": self.gatekeeper.adaptive_bounds().iter().map(adaptive_bound_json).collect::<Value>(),
            "waiting": self.metrics.requests_waiting(),
            "upstreams": upstream_problems_json(&self.metrics.upstreams()),
            "connections": Value::Object(connections.collect()),
        });
        reply::json(StatusCode::OK, document.to_string())
    }

    fn rules_status(&self) -> Value {
        let (status, rules) = self.live.status_and_rules(&self.gatekeeper);
        let paths: Vec<String> = match &status.origin {
            RulesOrigin::Files(paths) => {
                paths.iter().map(|path| path.display().to_string()).collect()
            }
            RulesOrigin::Limit | RulesOrigin::Demo | RulesOrigin::Put => Vec::new(),
        };
        let (watching, because) = match &status.watching {
            WatchMethod::Events => ("events", None),
            WatchMethod::Polling(reason) => ("polling", Some(reason)),
            WatchMethod::Nothing => ("off", None),
        };
        let run_time = self.gatekeeper.overrides().len();
        json!({
            "version": status.version,
            "count": rules.rules().len(),
            "loaded_at": timestamp(status.loaded_at).to_string(),
            "origin": rules::origin(&status.origin),
            "paths": paths,
            "watching": watching,
            "polling_because": because,
            "users_by_api_key": rules.settings().identify.users_are_api_keys(),
            "overrides": {
                "file": rules.file_overrides().len(),
                "run_time": run_time,
            },
            "failed": status.failed.as_ref().map(failed_reload_json),
            "put_failed": status.put_failed.as_ref().map(failed_reload_json),
            "keys_failed": status.keys_failed.as_ref().map(failed_reload_json),
        })
    }

    fn store_status(&self) -> Value {
        let store = &self.store;
        let stats = store.memory().stats();
        let mut status = json!({
            "kind": "memory",
            "up": true,
            "keys": stats.keys,
            "slots": stats.slots,
            "evicted": stats.evicted,
            "overflow_decisions": stats.overflowed,
            "blocked": stats.blocked,
            "log_bytes": stats.log_bytes,
        });
        if let Some(store) = store.shared() {
            let figures = store.figures();
            status["kind"] = "redis".into();
            status["up"] = figures.iter().all(StoreFigures::is_up).into();
            status["stores"] = figures.iter().map(store_json).collect();
            let SharedStats { degraded_local, degraded_open, degraded_closed, .. } = store.stats();
            status["degraded"] = json!({ "local": degraded_local, "open": degraded_open, "closed": degraded_closed });
        }
        if let Some(control) = self.peers.control() {
            let stats = control.stats();
            status["blocked"] = control.blocks().len().into();
            status["instances"] = stats.live_instances.max(1).into();
            status["untold"] = stats.unpublished.into();
        }
        status
    }
}

pub(super) fn adaptive_bound_json(bound: &AdaptiveBoundReport) -> Value {
    let ms = |wait: Wait| wait.as_micros().map(|micros| micros as f64 / 1e3);
    json!({
        "rule": &*bound.rule,
        "keys": bound.keys,
        "limit": bound.limit,
        "in_flight": bound.in_flight,
        "base_latency_ms": ms(bound.base_latency),
        "latency_ms": ms(bound.mean_latency),
    })
}

fn store_json(figures: &StoreFigures<'_>) -> Value {
    json!({
        "name": figures.address.name,
        "url": figures.address.url,
        "up": figures.is_up(),
        "error": figures.why_down(),
        "breaker_open": figures.link.nodes.iter().any(|node| node.breaker_open),
        "nodes": figures.link.nodes.len(),
        "version": figures.health().version,
        "warning": figures.health().warning,
    })
}

fn failed_reload_json(failed: &FailedReload) -> Value {
    json!({
        "at": timestamp(failed.at).to_string(),
        "cause": failed.cause.as_str(),
        "errors": failed.errors,
        "diagnostics": failed.diagnostics,
    })
}
