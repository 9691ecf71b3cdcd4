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
use crate::upstream::server_state::ServerState;

/// Most rows of each list: rules files may have thousands of rules that let requests wait.
const ROWS_MAX: usize = 1_000;

/// Most servers in the list of problems.
const PROBLEMS_MAX: usize = 100;

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

/// The servers that are ejected, down or failing, for `/api/status`.
pub(super) fn upstream_problems_json(upstreams: &[Arc<UpstreamState>]) -> Value {
    let count = |state| upstreams.iter().map(|upstream| upstream.servers_in(state)).sum::<usize>();
    let without_server = upstreams.iter().filter(|upstream| upstream.is_without_server()).count();
    let problems = upstreams.iter().flat_map(|upstream| {
        let reports = upstream.server_reports().into_iter();
        let reports = reports.filter(|server| server.state != ServerState::Available);
        reports.map(|server| {
            json!({
                "upstream": &*upstream.settings.name,
                "server": server.url.to_string(),
                "state": server.state.name(),
                "reason": server.reason.map(|reason| reason.to_string()),
                "since_ms": server.since_unix_ms,
            })
        })
    });
    json!({
        "ejected": count(ServerState::Ejected),
        "down": count(ServerState::Down),
        "failing": count(ServerState::Failing),
        "without_server": without_server,
        "problems": problems.take(PROBLEMS_MAX).collect::<Vec<_>>(),
    })
}

/// An upstream and its servers. Bound: that of the rules file on both.
fn upstream_json(upstream: &Arc<UpstreamState>) -> Value {
    let reports = upstream.server_reports();
    let servers = reports.iter().map(|server| {
        json!({
            "url": server.url.to_string(),
            "up": server.state.gets_requests(),
            "state": server.state.name(),
            "reason": server.reason.map(|reason| reason.to_string()),
            "since_ms": server.since_unix_ms,
            "in_flight": server.in_flight,
            "requests": server.requests,
            "failures": server.failures,
            "failed_checks": server.failed_checks,
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
