//! Metrics of the gateway. Labels are names of upstreams, which come from the rules, and closed sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_rules::stripes::StripedCounters;

use super::GatewayParts;
use super::exchange::Exchange;
use super::websocket::tunnel_metrics::TunnelMetrics;
use crate::listeners::service::ListenerMetrics;
use crate::metrics::exposition::{MetricKind, MetricValue, MetricsPage};
use crate::upstream::counters::{RequestOutcomes, UpstreamCounters};
use crate::upstream::registry::UpstreamState;
use crate::upstream::server_state::ServerState;

const BEGUN: usize = 0;
const ENDED: usize = 1;
const RECEIVED: usize = 2;
const SENT: usize = 3;
const TUNNELS_OPENED: usize = 4;
const TUNNELS_CLOSED: usize = 5;

/// Counters of the gateway.
#[derive(Debug, Default)]
pub(super) struct GatewayMetrics {
    counts: StripedCounters<6>,
    /// Requests that reached no upstream.
    unforwarded: RequestOutcomes,
    pub(super) websockets: TunnelMetrics,
}

impl GatewayMetrics {
    pub(super) fn request_began(&self) {
        self.counts.add(BEGUN, 1);
    }

    pub(super) fn request_ended(&self, exchange: &Exchange, outcome: &str) {
        self.counts.add(ENDED, 1);
        for (index, bytes) in [RECEIVED, SENT].into_iter().zip(exchange.bytes()) {
            if bytes > 0 {
                self.counts.add(index, bytes);
            }
        }
        match exchange.upstream() {
            Some(upstream) => upstream.counters.outcomes.count(outcome),
            None => self.unforwarded.count(outcome),
        }
    }

    pub(super) fn tunnel_opened(&self) {
        self.counts.add(TUNNELS_OPENED, 1);
    }

    pub(super) fn tunnel_closed(&self) {
        self.counts.add(TUNNELS_CLOSED, 1);
    }
}

impl ListenerMetrics for GatewayParts {
    fn write(&self, page: &mut MetricsPage) {
        let counts = self.metrics.counts.sums();
        let upstreams = self.registry.upstreams();
        if upstreams.is_empty() {
            // There is no gateway.
            return;
        }
        let help = "Requests to the gateway, by upstream and outcome.";
        let mut requests =
            page.family("tollgate_gateway_requests_total", MetricKind::Counter, help);
        for (outcome, count) in self.metrics.unforwarded.sums("refused") {
            requests.sample(&[("upstream", ""), ("outcome", outcome)], count);
        }
        for upstream in &upstreams {
            for (outcome, count) in upstream.counters.outcomes.sums("2xx") {
                let labels = [("upstream", &*upstream.settings.name), ("outcome", outcome)];
                requests.sample(&labels, count);
            }
        }
        let open = |begun: usize, ended: usize| counts[begun].saturating_sub(counts[ended]);
        let help = "Requests that the gateway is serving.";
        page.single_sample(
            "tollgate_gateway_requests_in_flight",
            MetricKind::Gauge,
            open(BEGUN, ENDED),
            help,
        );
        let help = "Open connections that have switched protocols.";
        page.single_sample(
            "tollgate_gateway_tunnels",
            MetricKind::Gauge,
            self.open_tunnels(),
            help,
        );
        let help = "Bytes of bodies that are read before the decision, or wait after it.";
        page.single_sample(
            "tollgate_gateway_body_memory_bytes",
            MetricKind::Gauge,
            self.body_memory.used() as u64,
            help,
        );
        let help = "Bytes of the bodies of requests and responses.";
        let mut bytes = page.family("tollgate_gateway_body_bytes_total", MetricKind::Counter, help);
        bytes.sample(&[("direction", "received")], counts[RECEIVED]);
        bytes.sample(&[("direction", "sent")], counts[SENT]);
        self.metrics.websockets.write(page);
        write_waits(page, &upstreams);
        write_servers(page, &upstreams);
        self.write_queue(page);
    }

    fn upstreams(&self) -> Vec<Arc<UpstreamState>> {
        self.registry.upstreams()
    }

    fn open_tunnels(&self) -> u64 {
        let counts = self.metrics.counts.sums();
        counts[TUNNELS_OPENED].saturating_sub(counts[TUNNELS_CLOSED])
    }
}

fn write_waits(page: &mut MetricsPage, upstreams: &[Arc<UpstreamState>]) {
    let help = "Responses of upstreams.";
    let name = "tollgate_gateway_upstream_responses_total";
    let mut responses = page.family(name, MetricKind::Counter, help);
    for upstream in upstreams {
        let labels = [("upstream", &*upstream.settings.name)];
        responses.sample(&labels, upstream.counters.waits().0);
    }
    let help = "Time from the head of a request to the head of its response.";
    let name = "tollgate_gateway_upstream_wait_seconds_total";
    let mut waits = page.family(name, MetricKind::Counter, help);
    for upstream in upstreams {
        let labels = [("upstream", &*upstream.settings.name)];
        waits.sample(&labels, MetricValue::Micros(upstream.counters.waits().1));
    }
}

fn write_servers(page: &mut MetricsPage, upstreams: &[Arc<UpstreamState>]) {
    let help = "Servers of upstreams, by state: those that are failing still get requests.";
    let mut servers = page.family("tollgate_gateway_servers", MetricKind::Gauge, help);
    for upstream in upstreams {
        for state in ServerState::ALL {
            let labels = [("upstream", &*upstream.settings.name), ("state", state.name())];
            servers.sample(&labels, upstream.servers_in(state));
        }
    }
    let families: [(&str, &str, CounterOf); 4] = [
        ("tollgate_gateway_retries_total", "Requests that were sent again.", |counters| {
            &counters.retries
        }),
        (
            "tollgate_gateway_retries_refused_total",
            "Requests that were not sent again, because the retry budget was spent.",
            |counters| &counters.retries_refused,
        ),
        (
            "tollgate_gateway_ejections_total",
            "Times that a server got no more requests, because it failed.",
            |counters| &counters.ejections,
        ),
        (
            "tollgate_gateway_panics_total",
            "Requests for which no server was available, so that any was tried.",
            |counters| &counters.panics,
        ),
    ];
    for (name, help, counter) in families {
        let mut family = page.family(name, MetricKind::Counter, help);
        for upstream in upstreams {
            let count = counter(&upstream.counters).load(Ordering::Relaxed);
            family.sample(&[("upstream", &*upstream.settings.name)], count);
        }
    }
}

/// Chooses a counter of an upstream.
type CounterOf = fn(&UpstreamCounters) -> &AtomicU64;

impl GatewayParts {
    fn write_queue(&self, page: &mut MetricsPage) {
        let help = "Requests that found no room at once: that waited, and that were refused.";
        let mut queued = page.family("tollgate_gateway_queue_total", MetricKind::Counter, help);
        let overload = &*self.overload;
        let outcomes: [(&str, &AtomicU64); 3] = [
            ("waited", &overload.waited),
            ("queue_full", &overload.queue_full),
            ("queue_timeout", &overload.waited_too_long),
        ];
        for (outcome, count) in outcomes {
            queued.sample(&[("outcome", outcome)], count.load(Ordering::Relaxed));
        }
    }
}
