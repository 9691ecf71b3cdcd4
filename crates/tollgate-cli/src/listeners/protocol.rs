//! What a listener speaks: the one thing that acceptor, workers, patrol and drain leave to others.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use super::watchdog::{ConnectionActivity, ConnectionTimeouts};

/// Serves connections in one protocol.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// What a connection too many is told before it is closed.
    const TOO_MANY_CONNECTIONS_REPLY: &'static [u8];

    /// What it is called where TLS is agreed on, the best first; none: it is not asked.
    const ALPN: &'static [&'static str];

    /// How long a peer may take.
    fn timeouts(&self) -> &ConnectionTimeouts;

    /// Serves one connection to its end. `activity` wants to know what it does, and says when it has to
    /// end: see [`ConnectionActivity`].
    fn serve<S>(
        self: Arc<Self>,
        stream: S,
        peer: SocketAddr,
        pulse: Arc<ConnectionActivity>,
    ) -> impl Future<Output = ()> + Send
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static;
}
