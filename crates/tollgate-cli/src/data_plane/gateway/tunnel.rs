//! Tunnels: connections that switched to another protocol, such as WebSocket. Bytes pass in both directions until either
//! side closes.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use crate::listeners::watchdog::ConnectionActivity;
use crate::upstream::Http1Connection;

/// A tunnel that begins when both connections have switched.
pub(super) struct Tunnel {
    client: OnUpgrade,
    upstream: OnUpgrade,
    /// Dropping it would close the connection.
    _upstream_connection: Http1Connection,
}

impl Tunnel {
    pub(super) fn new(
        client: OnUpgrade,
        (upstream, connection): (OnUpgrade, Http1Connection),
    ) -> Tunnel {
        Tunnel { client, upstream, _upstream_connection: connection }
    }

    /// Passes bytes on until either side closes.
    pub(super) async fn run(self, _activity: &ConnectionActivity) {
        let (Ok(client), Ok(upstream)) = (self.client.await, self.upstream.await) else { return };
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        // An error means that one side is gone; there is nobody to tell.
        let _ = copy_bidirectional(&mut client, &mut upstream).await;
    }
}
