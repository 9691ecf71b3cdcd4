//! The gateway: a reverse proxy that limits. It forwards the requests that the rules allow to the upstreams of the rules.
//!
//! ```text
//! protocol.rs        serves a client's connection
//!   gateway_service.rs   one request: field hygiene, then the layer, then the response on its way back
//!     tollgate-tower       asks the gatekeeper: 429, or on to
//!       proxy_service.rs     finds the upstream and forwards (crate::upstream)
//! ```

mod caller_fields;
mod client_body;
mod client_response;
mod error_reply;
mod forwarded_fields;
mod gateway_service;
mod hop_fields;
pub(crate) mod overload;
mod protocol;
mod proxy_service;
mod request_check;
mod tunnel;

use std::sync::Arc;

use tollgate_tower::RateLimitLayer;

use crate::data_plane::DataContext;
use crate::listeners::service::ListenerService;
use crate::store::ServerGatekeeper;
use crate::upstream::UpstreamRegistry;
use overload::{OverloadCounts, WorkerBounds};
use protocol::GatewayProtocol;

/// The parts of the gateway that all connections share.
pub(super) struct GatewayParts {
    pub(super) gatekeeper: Arc<ServerGatekeeper>,
    pub(super) registry: UpstreamRegistry,
    /// The bounds on requests of each worker.
    pub(super) bounds: WorkerBounds,
    overload: Arc<OverloadCounts>,
    /// True if clients connect by TLS.
    is_tls: bool,
}

/// The gateway's listener.
pub(crate) fn listener(context: &DataContext<'_>) -> ListenerService {
    let gatekeeper = context.gatekeeper.clone();
    let settings = gatekeeper.rules().settings().gateway.clone();
    let parts = Arc::new(GatewayParts {
        registry: UpstreamRegistry::new(&settings, context.upstream.cloned()),
        bounds: context.gateway_bounds,
        overload: Arc::default(),
        is_tls: context.has_certificate,
        gatekeeper,
    });
    let layer = RateLimitLayer::new(context.gatekeeper.clone()).on_warning(|_| {});
    let responses = Arc::default();
    let protocol = GatewayProtocol::new(parts, layer, context, Arc::clone(&responses));
    ListenerService { responses: Some(responses), ..ListenerService::new(protocol) }
}
