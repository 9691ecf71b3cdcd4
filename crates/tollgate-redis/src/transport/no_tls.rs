//! The place of TLS in a build without the feature `tls`.

use std::io;

use tokio::net::TcpStream;

use super::connect::Stream;
use super::url::TlsFiles;

/// Never succeeds: the URLs of such a build cannot ask for TLS.
pub(super) async fn start(_: TcpStream, _: &str, _: &TlsFiles) -> io::Result<Box<dyn Stream>> {
    Err(io::ErrorKind::Unsupported.into())
}
