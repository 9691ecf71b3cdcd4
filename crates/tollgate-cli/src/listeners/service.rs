//! The service behind a listener, whatever its protocol: what the server starts, counts and closes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::connection::HttpProtocol;
use super::handler::Handler;
use super::protocol::Protocol;
use super::tls::Certificate;
use super::watchdog::ConnectionTimeouts;
use super::workers::{Workers, WorkersEnded};
use crate::metrics::exposition::MetricsPage;
use crate::metrics::responses::ResponseCounts;
use crate::upstream::registry::UpstreamState;

/// A protocol of any type.
pub(crate) trait AnyProtocol: Send + Sync {
    /// Starts the workers of a listener.
    fn start_workers(
        &self,
        name: &str,
        count: usize,
        certificate: Option<&Certificate>,
    ) -> io::Result<(Workers, WorkersEnded)>;

    /// Reply to a connection beyond the caps.
    fn too_many_connections_reply(&self) -> &'static [u8];

    /// Starts the background task of the protocol.
    fn start_background(&self);

    /// Called after all connections have ended.
    fn drained(&self);
}

impl<P: Protocol> AnyProtocol for Arc<P> {
    fn start_workers(
        &self,
        name: &str,
        count: usize,
        certificate: Option<&Certificate>,
    ) -> io::Result<(Workers, WorkersEnded)> {
        let tls = certificate.map(|certificate| certificate.acceptor(P::ALPN));
        Workers::start(name, count, self, tls.as_ref())
    }

    fn too_many_connections_reply(&self) -> &'static [u8] {
        P::TOO_MANY_CONNECTIONS_REPLY
    }

    fn start_background(&self) {
        tokio::spawn(self.clone().background());
    }

    fn drained(&self) {
        Protocol::drained(&**self);
    }
}

/// Metrics that only one listener has.
pub(crate) trait ListenerMetrics: Send + Sync {
    /// Writes the families of this listener.
    fn write(&self, page: &mut MetricsPage);

    /// Number of open connections that have switched protocols.
    fn open_tunnels(&self) -> u64 {
        0
    }

    /// The upstreams that the listener forwards to.
    fn upstreams(&self) -> Vec<Arc<UpstreamState>> {
        Vec::new()
    }
}

/// A protocol and its counters.
pub(crate) struct ListenerService {
    pub(crate) protocol: Box<dyn AnyProtocol>,
    /// Responses by status, if it speaks HTTP.
    pub(crate) responses: Option<Arc<ResponseCounts>>,
    /// Metrics of this listener alone.
    pub(crate) metrics: Option<Arc<dyn ListenerMetrics>>,
}

impl ListenerService {
    /// A listener without metrics of its own.
    pub(crate) fn new(protocol: impl Protocol) -> ListenerService {
        ListenerService { protocol: Box::new(Arc::new(protocol)), responses: None, metrics: None }
    }

    /// A listener that speaks HTTP.
    pub(crate) fn http(
        handler: impl Handler,
        timeouts: ConnectionTimeouts,
        stopping: &Arc<AtomicBool>,
        responses: Arc<ResponseCounts>,
    ) -> ListenerService {
        let protocol = HttpProtocol::new(handler, timeouts, stopping.clone(), responses.clone());
        ListenerService { responses: Some(responses), ..ListenerService::new(protocol) }
    }

    /// Adds metrics of this listener alone.
    pub(crate) fn with_metrics(self, metrics: Arc<dyn ListenerMetrics>) -> ListenerService {
        ListenerService { metrics: Some(metrics), ..self }
    }
}
