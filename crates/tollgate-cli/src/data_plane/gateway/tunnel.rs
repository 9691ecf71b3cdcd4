//! Tunnels: connections that switched to another protocol, such as WebSocket. Bytes pass in both directions until either
//! side closes.

use bytes::Bytes;
use hyper::client::conn::http1::Parts;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy_bidirectional};

use crate::listeners::watchdog::ConnectionActivity;

/// Anything that bytes can be read from and written to.
pub(super) trait DuplexStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> DuplexStream for T {}

/// A tunnel that begins when the client's connection has switched.
pub(super) struct Tunnel {
    client: OnUpgrade,
    upstream: Box<dyn DuplexStream>,
    /// Bytes that the upstream sent right after its response.
    received: Bytes,
}

impl Tunnel {
    pub(super) fn new<S>(client: OnUpgrade, upstream: Parts<TokioIo<S>>) -> Tunnel
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let received = upstream.read_buf;
        Tunnel { client, upstream: Box::new(upstream.io.into_inner()), received }
    }

    /// Passes bytes on until either side closes.
    pub(super) async fn run(mut self, _activity: &ConnectionActivity) {
        let Ok(client) = self.client.await else { return };
        let mut client = TokioIo::new(client);
        if client.write_all(&self.received).await.is_ok() {
            // An error means that one side is gone; there is nobody to tell.
            let _ = copy_bidirectional(&mut client, &mut self.upstream).await;
        }
    }
}
