//! Opens connections to upstream servers: TCP, then TLS if the URL is https.

use std::sync::atomic::Ordering;

use http::Request;
use http::header::{CONTENT_TYPE, HeaderValue, UPGRADE};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tollgate_rules::gateway_settings::UpstreamVersion;

use super::clock;
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
    /// The version for a request to a server, and true if it is the client that chooses it: by an upgrade or by gRPC.
    pub(super) fn of<B>(
        version: UpstreamVersion,
        server: &UpstreamServer,
        request: &Request<B>,
    ) -> (WantedVersion, bool) {
        match version {
            UpstreamVersion::Http1 => (WantedVersion::Http1, false),
            UpstreamVersion::Http2 => (WantedVersion::Http2, false),
            // Only HTTP/1.1 can switch protocols.
            UpstreamVersion::Auto if request.headers().contains_key(UPGRADE) => {
                (WantedVersion::Http1, server.url.tls)
            }
            UpstreamVersion::Auto if server.url.tls => (WantedVersion::Either, false),
            UpstreamVersion::Auto if is_grpc(request) && !server.lacks_http2(&clock::now_ms) => {
                (WantedVersion::Http2, true)
            }
            UpstreamVersion::Auto => (WantedVersion::Http1, false),
        }
    }
}

/// Returns true for a request of gRPC. gRPC-Web has a similar media type, and HTTP/1.1.
fn is_grpc<B>(request: &Request<B>) -> bool {
    let media_type = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = media_type.and_then(|it| it.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
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
