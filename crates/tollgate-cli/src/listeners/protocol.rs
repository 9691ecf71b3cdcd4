//! The protocol of a listener: the part that acceptor, workers and watchdog do not know.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use super::watchdog::{ConnectionActivity, ConnectionTimeouts};

/// Serves connections in one protocol.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// Reply to a connection beyond the caps, before it is closed.
    const TOO_MANY_CONNECTIONS_REPLY: &'static [u8];

    /// Protocol names for the TLS handshake (ALPN), the preferred one first; empty if clients send none.
    const ALPN: &'static [&'static str];

    /// Timeouts of its connections.
    fn timeouts(&self) -> &ConnectionTimeouts;

    /// Runs beside the connections for as long as the server does, for example to write log lines.
    fn background(self: Arc<Self>) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Called after all connections have ended.
    fn drained(&self) {}

    /// Serves one connection to its end. Reports to `activity` and obeys its orders: see [`ConnectionActivity`].
    fn serve<S>(
        self: Arc<Self>,
        stream: S,
        peer: SocketAddr,
        activity: Arc<ConnectionActivity>,
    ) -> impl Future<Output = ()> + Send
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static;
}
