//! `GET /api/upstreams`: servers behind the gateway, queues, tunnels and adaptive concurrency.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tollgate_rules::{Rule, WaitOutcome, WaitTally};

use super::ControlPlane;
use super::query::{QueryError, QueryFields};
use super::rule_list::mean_wait_ms;
use super::status::adaptive_bound_json;
use crate::listeners::response_body::ResponseBody;
use crate::reply;
use crate::upstream::registry::UpstreamState;

/// Most rows of each list: rules files may have thousands of rules that let requests wait.
const ROWS_MAX: usize = 1_000;

impl ControlPlane {
    /// The gateway at this instant.
    pub(super) fn upstreams(
        &self,
        query: Option<&str>,
    ) -> Result<Response<ResponseBody>, QueryError> {
        QueryFields::parse(query, &[])?;
        let upstreams = self.metrics.upstreams();
        let rules = self.gatekeeper.rules();
        let queues = rules.wait_tallies().filter(|(rule, _)| rule.can_wait()).take(ROWS_MAX);
        let adaptive = self.gatekeeper.adaptive_bounds();
        let document = json!({
            "gateway": !upstreams.is_empty(),
            "upstreams": upstreams.iter().map(upstream_json).collect::<Vec<_>>(),
            "queues": queues.map(queue_json).collect::<Vec<_>>(),
            "tunnels": { "open": self.metrics.open_tunnels() },
            "adaptive": adaptive.iter().take(ROWS_MAX).map(adaptive_bound_json).collect::<Vec<_>>(),
        });
        Ok(reply::json(StatusCode::OK, document.to_string()))
    }
}

/// An upstream and its servers. Bound: that of the rules file on both.
fn upstream_json(upstream: &Arc<UpstreamState>) -> Value {
    let reports = upstream.server_reports();
    let servers = reports.iter().map(|server| {
        json!({
            "url": server.url.to_string(),
            "up": server.is_available,
            "in_flight": server.in_flight,
            "requests": server.requests,
            "failures": server.failures,
            "mean_ms": server.mean_wait.map(|wait| wait.as_micros() as f64 / 1e3),
        })
    });
    json!({ "name": &*upstream.settings.name, "servers": servers.collect::<Vec<_>>() })
}

/// The requests of a rule that wait or have waited.
fn queue_json((rule, waits): (&Rule, &Arc<WaitTally>)) -> Value {
    let figures = waits.figures();
    let admitted = figures.count(WaitOutcome::Admitted) + figures.count(WaitOutcome::Delayed);
    json!({
        "rule": &*rule.name,
        "waiting": figures.waiting,
        "admitted": admitted,
        "expired": figures.count(WaitOutcome::Expired),
        "mean_ms": (admitted > 0).then(|| mean_wait_ms(&figures)),
    })
}
