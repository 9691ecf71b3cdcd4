//! The gateway: a reverse proxy that limits. It forwards the requests that the rules allow to the upstreams of the rules.
//!
//! ```text
//! protocol.rs        serves a client's connection
//!   gateway_service.rs   one request: checks its head, then the layer, then the response on its way back
//!     tollgate-tower       asks the gatekeeper: 429, or on to
//!       proxy_service.rs     finds the upstream and forwards (crate::upstream)
//! ```

pub(crate) mod access_log;
mod body_memory;
mod caller_fields;
mod client_body;
mod client_response;
mod cors_reply;
mod error_reply;
mod exchange;
mod forwarded_fields;
mod gateway_service;
mod hop_fields;
mod metrics;
pub(crate) mod overload;
pub(crate) mod precise_timer;
mod protocol;
mod proxy_service;
mod request_bodies;
mod request_check;
mod request_id;
mod tunnel;
mod websocket;
mod window_shares;

use std::sync::Arc;

use tollgate_tower::RateLimitLayer;

use crate::data_plane::DataContext;
use crate::listeners::service::ListenerService;
use crate::listeners::workers::spawn_on_worker;
use crate::store::ServerGatekeeper;
use crate::upstream::UpstreamRegistry;
use crate::upstream::upstream_log::UpstreamLog;
use access_log::AccessLog;
use body_memory::BodyMemory;
use exchange::Exchange;
use metrics::GatewayMetrics;
use overload::{OverloadCounts, WorkerBounds};
use precise_timer::PreciseTimer;
use protocol::GatewayProtocol;
use request_bodies::GatewayBodyHost;

/// The parts of the gateway that all connections share.
pub(super) struct GatewayParts {
    pub(super) gatekeeper: Arc<ServerGatekeeper>,
    pub(super) registry: UpstreamRegistry,
    /// The bounds on requests of each worker.
    pub(super) bounds: WorkerBounds,
    overload: Arc<OverloadCounts>,
    /// The memory of bodies that are read before the decision.
    body_memory: Arc<BodyMemory>,
    metrics: GatewayMetrics,
    access_log: Option<AccessLog>,
    /// True if clients connect by TLS.
    is_tls: bool,
}

/// The gateway's listener.
pub(crate) fn listener(context: &DataContext<'_>) -> ListenerService {
    let gatekeeper = context.gatekeeper.clone();
    let settings = gatekeeper.rules().settings().gateway.clone();
    let access_log = context.access_log.cloned();
    let parts = Arc::new(GatewayParts {
        registry: UpstreamRegistry::new(
            &settings,
            context.upstream.cloned(),
            UpstreamLog::new(context.logs),
        ),
        bounds: context.gateway_bounds,
        overload: Arc::default(),
        body_memory: BodyMemory::new(context.gateway_body_memory),
        metrics: GatewayMetrics::default(),
        access_log: access_log.map(|logs| AccessLog::new(logs, context.names.clone())),
        is_tls: context.has_certificate,
        gatekeeper,
    });
    let timer = PreciseTimer::default();
    let mut layer = RateLimitLayer::new(context.gatekeeper.clone())
        .peer(|head| head.extensions.get::<Arc<Exchange>>().map(|exchange| exchange.peer()))
        .inner_fields(proxy_service::LIMIT_FIELDS_DEFAULT)
        .limit_preflights()
        .wait(context.gateway_max_delay, move |duration| timer.sleep(duration))
        .on_wait(|head| Exchange::of(&head.extensions).leave_place())
        .body_host(GatewayBodyHost { memory: parts.body_memory.clone() })
        .background(spawn_on_worker)
        .on_warning(|_| {});
    if parts.access_log.is_some() {
        layer = layer.decision_in_response();
    }
    let responses = Arc::default();
    let protocol = GatewayProtocol::new(parts.clone(), layer, context, Arc::clone(&responses));
    ListenerService { responses: Some(responses), ..ListenerService::new(protocol) }
        .with_metrics(parts)
}
