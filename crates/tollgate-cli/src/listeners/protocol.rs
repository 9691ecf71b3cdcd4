//! The protocol of a listener: the part that acceptor, workers and watchdog do not know.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use super::watchdog::{ConnectionActivity, ConnectionTimeouts};

/// The HTTP version that client and server agreed on in the TLS handshake (ALPN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgreedVersion {
    /// None: there is no TLS, or the client offered no protocol. It may speak either version.
    Any,
    /// HTTP/1.1 alone.
    Http1,
    /// HTTP/2 alone.
    Http2,
}

impl AgreedVersion {
    /// The version of a protocol name of ALPN.
    pub(crate) fn of(name: Option<&[u8]>) -> AgreedVersion {
        match name {
            Some(b"h2") => AgreedVersion::Http2,
            Some(b"http/1.1") => AgreedVersion::Http1,
            _ => AgreedVersion::Any,
        }
    }
}

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

    /// Serves one connection to its end, in the agreed version if its protocol has several. Reports to `activity` and
    /// obeys its orders: see [`ConnectionActivity`].
    fn serve<S>(
        self: Arc<Self>,
        stream: S,
        peer: SocketAddr,
        agreed: AgreedVersion,
        activity: Arc<ConnectionActivity>,
    ) -> impl Future<Output = ()> + Send
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static;
}
