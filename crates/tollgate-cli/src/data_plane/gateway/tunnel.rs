//! Tunnels: connections that switched to another protocol, such as WebSocket. Bytes pass in both directions until both
//! sides have closed, one of them fails, or neither has sent anything for a while.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Version;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tollgate_tower::AdmissionGuard;

use super::exchange::Exchange;
use super::metrics::GatewayMetrics;
use crate::listeners::response_body::InFlightRequest;
use crate::listeners::watchdog::{ConnectionActivity, ConnectionOrder};
use crate::upstream::Http1Connection;

/// A tunnel that begins when both connections have switched.
pub(super) struct Tunnel {
    client: OnUpgrade,
    upstream: OnUpgrade,
    /// Dropping it would close the connection.
    _upstream_connection: Http1Connection,
    exchange: Arc<Exchange>,
    /// The slots of concurrency limits that the tunnel takes.
    pub(super) admission: Option<AdmissionGuard>,
}

impl Tunnel {
    pub(super) fn new(
        exchange: &Arc<Exchange>,
        client: OnUpgrade,
        (upstream, connection): (OnUpgrade, Http1Connection),
    ) -> Tunnel {
        let exchange = exchange.clone();
        Tunnel { client, upstream, _upstream_connection: connection, exchange, admission: None }
    }

    /// Passes bytes on to the end, or until the watchdog gives up the connection. While the server drains, a tunnel goes
    /// on: it ends with its peers or with the process.
    pub(super) async fn run(self, activity: &Arc<ConnectionActivity>) {
        // The watchdog would take the connection for an idle one.
        let _in_flight = InFlightRequest::begin(activity, Version::HTTP_11);
        let _open = OpenTunnel::count(&self.exchange);
        let idle_timeout = self.exchange.idle_timeout().unwrap_or(Duration::MAX);
        let mut passed = pin!(pass(self.client, self.upstream, idle_timeout));
        poll_fn(|context| {
            activity.set_waker(context.waker());
            match activity.order() {
                ConnectionOrder::Abort => Poll::Ready(()),
                ConnectionOrder::Continue | ConnectionOrder::Finish => {
                    passed.as_mut().poll(context)
                }
            }
        })
        .await;
    }
}

/// Passes bytes in both directions.
async fn pass(client: OnUpgrade, upstream: OnUpgrade, idle_timeout: Duration) {
    let (Ok(client), Ok(upstream)) = (client.await, upstream.await) else { return };
    let bytes = AtomicU64::new(0);
    let mut client = CountedStream { stream: TokioIo::new(client), bytes: &bytes };
    let mut upstream = CountedStream { stream: TokioIo::new(upstream), bytes: &bytes };
    let mut copied = pin!(copy_bidirectional(&mut client, &mut upstream));
    let mut before = 0;
    // An error means that one side is gone; there is nobody to tell.
    while tokio::time::timeout(idle_timeout, copied.as_mut()).await.is_err() {
        let now = bytes.load(Ordering::Relaxed);
        if now == before {
            return;
        }
        before = now;
    }
}

/// An open tunnel, for the metrics.
struct OpenTunnel<'a>(&'a GatewayMetrics);

impl OpenTunnel<'_> {
    fn count(exchange: &Exchange) -> OpenTunnel<'_> {
        let metrics = &exchange.protocol.parts.metrics;
        metrics.tunnel_opened();
        OpenTunnel(metrics)
    }
}

impl Drop for OpenTunnel<'_> {
    fn drop(&mut self) {
        self.0.tunnel_closed();
    }
}

/// A stream that counts the bytes that it receives.
struct CountedStream<'a, S> {
    stream: S,
    bytes: &'a AtomicU64,
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let received = buffer.filled().len() - before;
        self.bytes.fetch_add(received as u64, Ordering::Relaxed);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
