//! Opens connections to upstream servers.

use std::io;

use tokio::net::TcpStream;

use super::registry::UpstreamServer;

/// A connection to an upstream.
pub(super) type UpstreamStream = TcpStream;

/// Opens a connection; the caller sets a timeout.
pub(super) async fn connect(server: &UpstreamServer) -> io::Result<UpstreamStream> {
    let url = &server.url;
    let stream = TcpStream::connect((&*url.host, url.port)).await?;
    // Otherwise the end of a request may wait for an acknowledgement.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}
