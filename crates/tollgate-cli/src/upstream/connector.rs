//! Opens connections to upstream servers: TCP, then TLS if the URL is https.

use std::sync::atomic::Ordering;

use http::Request;
use http::header::{CONTENT_TYPE, UPGRADE};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tollgate_rules::gateway_settings::UpstreamVersion;

use super::error::ForwardError;
use super::registry::UpstreamState;
use super::server::UpstreamServer;

/// A connection to an upstream.
pub(super) enum UpstreamStream {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

/// The HTTP version that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WantedVersion {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// The version that a TLS server chooses.
    Either,
}

impl WantedVersion {
    /// The version for a request to a server.
    pub(super) fn of<B>(
        version: UpstreamVersion,
        server: &UpstreamServer,
        request: &Request<B>,
    ) -> WantedVersion {
        let fields = request.headers();
        let is_grpc = || {
            fields
                .get(CONTENT_TYPE)
                .is_some_and(|it| it.as_bytes().starts_with(b"application/grpc"))
        };
        match version {
            UpstreamVersion::Http1 => WantedVersion::Http1,
            UpstreamVersion::Http2 => WantedVersion::Http2,
            // Only HTTP/1.1 can switch protocols.
            UpstreamVersion::Auto if fields.contains_key(UPGRADE) => WantedVersion::Http1,
            UpstreamVersion::Auto if server.url.tls => WantedVersion::Either,
            UpstreamVersion::Auto if is_grpc() => WantedVersion::Http2,
            UpstreamVersion::Auto => WantedVersion::Http1,
        }
    }
}

/// Opens a connection; the caller sets a timeout. Returns true beside it if the server speaks HTTP/2 on it.
pub(super) async fn connect(
    upstream: &UpstreamState,
    server: &UpstreamServer,
    wanted: WantedVersion,
) -> Result<(UpstreamStream, bool), ForwardError> {
    let url = &server.url;
    let connected = TcpStream::connect((&*url.host, url.port)).await;
    let stream = connected.map_err(|_| ForwardError::ConnectFailed)?;
    // Otherwise the end of a request may wait for an acknowledgement.
    let _ = stream.set_nodelay(true);
    if !url.tls {
        return Ok((UpstreamStream::Plain(stream), wanted == WantedVersion::Http2));
    }
    let tls = upstream.tls.as_ref().ok_or(ForwardError::TlsFailed)?;
    let stream = tls.connect(stream, &upstream.settings, server, wanted).await?;
    let chosen = stream.get_ref().1.alpn_protocol();
    let is_http2 = chosen == Some(b"h2");
    if wanted == WantedVersion::Http2 && !is_http2 {
        return Err(ForwardError::TlsFailed);
    }
    if wanted == WantedVersion::Either {
        server.speaks_http2.store(is_http2, Ordering::Relaxed);
    }
    Ok((UpstreamStream::Tls(Box::new(stream)), is_http2))
}
