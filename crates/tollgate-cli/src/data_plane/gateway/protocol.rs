//! The gateway's protocol: HTTP/1.1 and HTTP/2 from clients, and what they switch to.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tollgate_tower::RateLimitLayer;

use super::GatewayParts;
use super::gateway_service::{ClientConnection, GatewayService};
use super::window_shares::WindowShares;
use crate::data_plane::DataContext;
use crate::drain::ServerDrain;
use crate::listeners::activity_stream::ActivityStream;
use crate::listeners::connection::{
    CONNECTION_WINDOW_BYTES, TOO_MANY_CONNECTIONS_REPLY, close_returned, connection_builder,
    http1_builder, obey_orders,
};
use crate::listeners::protocol::{AgreedVersion, Protocol};
use crate::listeners::watchdog::{ConnectionActivity, ConnectionTimeouts};
use crate::metrics::responses::ResponseCounts;

/// Most concurrent requests of one HTTP/2 connection.
const STREAMS_MAX: u32 = 100;

/// Most unread bytes of a connection without a large window: no connection of HTTP/2 has less.
const SMALL_WINDOW_BYTES: u32 = (64 << 10) - 1;

/// Most unread bytes of one of its streams.
const SMALL_STREAM_WINDOW_BYTES: u32 = 16 << 10;

/// Most bodies of one HTTP/2 connection of a proxy that wait for memory: what is unread of them leaves a quarter of the connection's
/// window to requests of other clients. Large windows have the same proportions.
pub(super) const UNREAD_BODIES_MAX: usize =
    (SMALL_WINDOW_BYTES / SMALL_STREAM_WINDOW_BYTES) as usize;

/// Serves the gateway's connections.
pub(super) struct GatewayProtocol {
    pub(super) parts: Arc<GatewayParts>,
    pub(super) layer: RateLimitLayer,
    pub(super) timeouts: ConnectionTimeouts,
    /// Set while the server stops: responses then ask the peer to close the connection.
    pub(super) stopping: Arc<AtomicBool>,
    pub(super) drain: Arc<ServerDrain>,
    pub(super) responses: Arc<ResponseCounts>,
    /// hyper's server for connections that agreed on HTTP/1.1.
    http1_builder: http1::Builder,
    builders: WindowBuilders,
    /// The same for connections without a large window.
    small_builders: WindowBuilders,
    windows: Arc<WindowShares>,
}

/// hyper's servers with windows of one size.
struct WindowBuilders {
    /// The server of connections that may speak either version.
    any: auto::Builder<TokioExecutor>,
    /// The server of connections that agreed on HTTP/2. It needs no upgrades: a tunnel is one of its streams.
    http2: auto::Builder<TokioExecutor>,
}

impl WindowBuilders {
    fn new(builder: auto::Builder<TokioExecutor>) -> WindowBuilders {
        WindowBuilders { http2: builder.clone().http2_only(), any: builder }
    }
}

impl GatewayProtocol {
    pub(super) fn new(
        parts: Arc<GatewayParts>,
        layer: RateLimitLayer,
        context: &DataContext<'_>,
        responses: Arc<ResponseCounts>,
    ) -> GatewayProtocol {
        let mut builder = connection_builder(STREAMS_MAX);
        // A client that closes has left: what it asked for may be expensive, and is given up. The kernel does not tell
        // this from a client that has only finished sending.
        builder.http1().half_close(false);
        let mut small_builder = builder.clone();
        small_builder
            .http2()
            .initial_stream_window_size(SMALL_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(SMALL_WINDOW_BYTES);
        let window_bytes = CONNECTION_WINDOW_BYTES as usize;
        let windows = WindowShares::new(context.gateway_body_memory, window_bytes);
        GatewayProtocol {
            parts,
            layer,
            timeouts: context.timeouts,
            stopping: context.stopping.clone(),
            drain: context.drain.clone(),
            responses,
            http1_builder: http1_builder(),
            builders: WindowBuilders::new(builder),
            small_builders: WindowBuilders::new(small_builder),
            windows,
        }
    }
}

impl GatewayProtocol {
    /// Answers requests until either side closes or the connection becomes a tunnel. The future is boxed, because a tunnel
    /// would keep the room of hyper's connection.
    fn serve_requests<'a, S>(
        self: &'a Arc<Self>,
        io: ActivityStream<S>,
        agreed: AgreedVersion,
        client: &'a Arc<ClientConnection>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (io, activity) = (TokioIo::new(io), &client.activity);
        if agreed == AgreedVersion::Http1 {
            let service = GatewayService::new(self, client, None);
            let connection = self.http1_builder.serve_connection(io, service).with_upgrades();
            let finish = http1::UpgradeableConnection::graceful_shutdown;
            return Box::pin(obey_orders(connection, finish, activity));
        }
        let window = self.windows.take(client.peer);
        let builders = if window.is_some() { &self.builders } else { &self.small_builders };
        let service = GatewayService::new(self, client, window);
        if agreed == AgreedVersion::Http2 {
            let connection = builders.http2.serve_connection(io, service);
            return Box::pin(obey_orders(
                connection,
                GracefulConnection::graceful_shutdown,
                activity,
            ));
        }
        let connection = builders.any.serve_connection_with_upgrades(io, service);
        Box::pin(obey_orders(connection, GracefulConnection::graceful_shutdown, activity))
    }
}

impl Protocol for GatewayProtocol {
    const TOO_MANY_CONNECTIONS_REPLY: &'static [u8] = TOO_MANY_CONNECTIONS_REPLY;
    const ALPN: &'static [&'static str] = &["h2", "http/1.1"];

    fn timeouts(&self) -> &ConnectionTimeouts {
        &self.timeouts
    }

    async fn background(self: Arc<Self>) {
        self.parts.registry.start_checks();
        self.parts.registry.watch_states().await;
    }

    async fn serve<S>(
        self: Arc<Self>,
        stream: S,
        peer: SocketAddr,
        agreed: AgreedVersion,
        activity: Arc<ConnectionActivity>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (io, left) = ActivityStream::new(stream, Bytes::new(), &activity);
        let client = Arc::new(ClientConnection::new(peer.ip(), self.parts.is_tls, activity));
        self.serve_requests(io, agreed, &client).await;
        match client.take_tunnel() {
            // The connection belongs to the tunnel now.
            Some(tunnel) => Box::pin(tunnel.run(&client.activity)).await,
            None => Box::pin(close_returned(left, self.timeouts.head, &client.activity)).await,
        }
    }
}
