//! Tunnels: connections that switched to another protocol. Bytes pass in both directions until both sides have closed, one
//! of them fails, or neither has sent anything for a while. A WebSocket is read on its way, so that its limits hold and it
//! ends with a Close frame.

mod direction;
#[cfg(test)]
mod tests;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Version;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep_until};
use tollgate::Micros;
use tollgate_rules::reservation::EXPIRES_IN_MAX;
use tollgate_rules::websocket_limits::WebSocketLimits;
use tollgate_tower::{AdmissionGuard, WebSocketRules};

use super::exchange::Exchange;
use super::metrics::GatewayMetrics;
use super::websocket::close_notice::{CloseCause, CloseNotice};
use super::websocket::frame::FrameSender;
use super::websocket::frame_budget::FrameBudget;
use super::websocket::tunnel_metrics::TunnelMetrics;
use crate::listeners::response_body::InFlightRequest;
use crate::listeners::watchdog::{ConnectionActivity, ConnectionOrder};
use crate::upstream::Http1Connection;
use direction::{DirectionEvent, TunnelDirection};

/// The longest time from the gateway's decision to close a WebSocket until it is gone. In this time the frames in progress
/// end, the Close frames are sent and those of the peers arrive. Shorter than the time for a whole drain.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time from the first Close frame or end of stream of a peer until the WebSocket is gone.
const PEER_CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// A tunnel that begins when both connections have switched.
pub(super) struct Tunnel {
    client: OnUpgrade,
    upstream: OnUpgrade,
    /// Dropping it would close the connection.
    upstream_connection: Http1Connection,
    exchange: Arc<Exchange>,
    is_websocket: bool,
    /// The slots of concurrency limits that the tunnel takes, for at most [`EXPIRES_IN_MAX`].
    pub(super) admission: Option<AdmissionGuard>,
    /// The limits of a WebSocket.
    pub(super) rules: Option<WebSocketRules>,
}

impl Tunnel {
    pub(super) fn new(
        exchange: &Arc<Exchange>,
        client: OnUpgrade,
        (upstream, upstream_connection): (OnUpgrade, Http1Connection),
        is_websocket: bool,
    ) -> Tunnel {
        let exchange = exchange.clone();
        let (admission, rules) = (None, None);
        Tunnel { client, upstream, upstream_connection, exchange, is_websocket, admission, rules }
    }

    /// Passes bytes on to the end, or until the watchdog gives up the connection. While the server drains, a WebSocket is
    /// closed; another tunnel ends with its peers or with the process.
    pub(super) async fn run(self, activity: &Arc<ConnectionActivity>) {
        // The watchdog would take the connection for an idle one.
        let _in_flight = InFlightRequest::begin(activity, Version::HTTP_11);
        let Tunnel { exchange, upstream_connection, admission, .. } = self;
        let protocol = exchange.protocol.clone();
        // The slots are free after this time, so the tunnel must be over.
        let lifetime = admission.as_ref().map(|_| EXPIRES_IN_MAX);
        let bounds = TunnelBounds { idle: exchange.idle_timeout(), lifetime };
        let metrics = &protocol.parts.metrics;
        let _open = OpenTunnel::count(metrics);
        let (Ok(client), Ok(upstream)) = (self.client.await, self.upstream.await) else { return };
        // Both HTTP connections are over: what is left of them would stay as long as the tunnel.
        let _permit = upstream_connection.into_permit();
        exchange.client.forwarded.forget_host();
        drop(exchange);
        let rules = self.rules.map(|rules| rules.0).unwrap_or_default();
        let streams = (TokioIo::new(client), TokioIo::new(upstream));
        let limits = self.is_websocket.then_some(&rules[..]);
        let mut running = RunningTunnel::new(streams, limits, bounds, Instant::now());
        poll_fn(|context| {
            activity.set_waker(context.waker());
            match activity.order() {
                ConnectionOrder::Abort => return Poll::Ready(()),
                ConnectionOrder::Finish => running.close(&CloseNotice::drain(), Instant::now()),
                ConnectionOrder::Continue => {}
            }
            running.poll(context, &metrics.websockets)
        })
        .await;
        if let Some(cause) = running.close_cause() {
            metrics.websockets.count_close(cause);
        }
    }
}

/// An open tunnel, for the metrics.
struct OpenTunnel<'a>(&'a GatewayMetrics);

impl OpenTunnel<'_> {
    fn count(metrics: &GatewayMetrics) -> OpenTunnel<'_> {
        metrics.tunnel_opened();
        OpenTunnel(metrics)
    }
}

impl Drop for OpenTunnel<'_> {
    fn drop(&mut self) {
        self.0.tunnel_closed();
    }
}

/// The longest times of a tunnel that hold whatever its protocol is.
#[derive(Clone, Copy, Default)]
struct TunnelBounds {
    /// Without a byte in either direction.
    idle: Option<Duration>,
    /// From its beginning to its end.
    lifetime: Option<Duration>,
}

/// A tunnel between two streams.
struct RunningTunnel<S> {
    client: S,
    upstream: S,
    /// From the client to the upstream.
    requests: TunnelDirection,
    /// From the upstream to the client.
    responses: TunnelDirection,
    is_websocket: bool,
    opened: Instant,
    /// The longest time without a byte in either direction.
    idle_max: Option<Duration>,
    /// The end of its lifetime.
    expires: Option<Instant>,
    /// The last poll that found new bytes, and the number of bytes then.
    last_active: (Instant, u64),
    /// The cause of its end, and the instant at which it is cut off.
    closing: Option<(CloseCause, Instant)>,
    timer: TunnelTimer,
}

impl<S: AsyncRead + AsyncWrite + Unpin> RunningTunnel<S> {
    /// A tunnel between a client and an upstream. It is a WebSocket if there are limits, which may be none. The idle time
    /// of the limits replaces that of the bounds; the shortest lifetime counts.
    fn new(
        (client, upstream): (S, S),
        limits: Option<&[Arc<WebSocketLimits>]>,
        bounds: TunnelBounds,
        now: Instant,
    ) -> RunningTunnel<S> {
        let direction = |sender| match limits {
            None => TunnelDirection::unread(sender),
            Some(limits) => {
                let budget = FrameBudget::new(limits, sender, Micros::ZERO);
                TunnelDirection::websocket(sender, budget)
            }
        };
        let rules = limits.unwrap_or_default().iter();
        RunningTunnel {
            client,
            upstream,
            requests: direction(FrameSender::Client),
            responses: direction(FrameSender::Server),
            is_websocket: limits.is_some(),
            opened: now,
            idle_max: rules.clone().filter_map(|rules| rules.idle).min().or(bounds.idle),
            expires: rules
                .filter_map(|rules| rules.lifetime)
                .chain(bounds.lifetime)
                .min()
                .and_then(|lifetime| now.checked_add(lifetime)),
            last_active: (now, 0),
            closing: None,
            timer: TunnelTimer::default(),
        }
    }

    /// The cause of the end of a WebSocket.
    fn close_cause(&self) -> Option<CloseCause> {
        let cause = self.closing.map_or(CloseCause::Peer, |(cause, _)| cause);
        self.is_websocket.then_some(cause)
    }

    /// Closes a WebSocket, unless it is being closed.
    fn close(&mut self, notice: &CloseNotice, now: Instant) {
        if !self.is_websocket
            || matches!(self.closing, Some((cause, _)) if cause != CloseCause::Peer)
        {
            return;
        }
        self.requests.close(notice);
        self.responses.close(notice);
        self.closing = Some((notice.cause, now + CLOSE_TIMEOUT));
    }

    /// Passes bytes on, and is ready when the tunnel is over.
    fn poll(&mut self, context: &mut Context<'_>, metrics: &TunnelMetrics) -> Poll<()> {
        loop {
            let now = Instant::now();
            // An error means that one side is gone; there is nobody to tell.
            if self.is_out_of_time(now) || self.poll_directions(context, now, metrics).is_ready() {
                return Poll::Ready(());
            }
            ready!(self.timer.poll_until(context, self.next_deadline()));
        }
    }

    /// Closes a WebSocket that was idle for too long or is too old. Returns true if the tunnel has to end at once.
    fn is_out_of_time(&mut self, now: Instant) -> bool {
        let is_past = |deadline: Option<Instant>| deadline.is_some_and(|deadline| now >= deadline);
        if let Some((_, cut_off)) = self.closing {
            return now >= cut_off;
        }
        if is_past(self.expires) {
            self.close(&CloseNotice::lifetime(), now);
        } else if is_past(self.idle_deadline()) {
            self.close(&CloseNotice::idle(), now);
        } else {
            return false;
        }
        !self.is_websocket
    }

    /// The instant at which the tunnel was idle for too long. A frame that waits for a rate is not idle.
    fn idle_deadline(&self) -> Option<Instant> {
        let is_waiting = self.requests.wait_until.or(self.responses.wait_until).is_some();
        let idle_max = self.idle_max.filter(|_| !is_waiting);
        idle_max.and_then(|idle_max| self.last_active.0.checked_add(idle_max))
    }

    /// The next instant at which there is something to do without a byte from either peer.
    fn next_deadline(&self) -> Option<Instant> {
        let waits = [self.requests.wait_until, self.responses.wait_until];
        let waits = waits.into_iter().flatten();
        let waits = waits.map(|until| self.opened + Duration::from_micros(until.as_u64()));
        let ends = match self.closing {
            Some((_, cut_off)) => [Some(cut_off), None],
            None => [self.expires, self.idle_deadline()],
        };
        ends.into_iter().flatten().chain(waits).min()
    }

    /// Passes bytes on in both directions. Ready when the tunnel is over.
    fn poll_directions(
        &mut self,
        context: &mut Context<'_>,
        now: Instant,
        metrics: &TunnelMetrics,
    ) -> Poll<io::Result<()>> {
        loop {
            let (client, upstream) = (&mut self.client, &mut self.upstream);
            let instant = micros(now - self.opened);
            // The time that a frame waits for its rate is not idle time.
            let is_waiting = self.requests.wait_until.or(self.responses.wait_until).is_some();
            let events = [
                self.requests.poll(context, client, upstream, instant, metrics)?,
                self.responses.poll(context, upstream, client, instant, metrics)?,
            ];
            let received = self.requests.received + self.responses.received;
            if is_waiting || received > self.last_active.1 {
                self.last_active = (now, received);
            }
            let mut ended = 0;
            let mut notice = None;
            for event in events {
                match event {
                    Poll::Ready(DirectionEvent::Ended) => ended += 1,
                    Poll::Ready(DirectionEvent::Close(first)) => notice = notice.or(Some(first)),
                    Poll::Pending => {}
                }
            }
            let Some(notice) = notice else {
                return match ended {
                    2 => Poll::Ready(Ok(())),
                    _ => self.poll_end(context, now),
                };
            };
            self.close(&notice, now);
        }
    }

    /// Ends a WebSocket whose Close frames have been exchanged. Pending while it goes on.
    fn poll_end(&mut self, context: &mut Context<'_>, now: Instant) -> Poll<io::Result<()>> {
        let (requests, responses) = (&mut self.requests, &mut self.responses);
        let is_ending = requests.has_heard_all() || responses.has_heard_all();
        match self.closing {
            None if self.is_websocket && is_ending => {
                self.closing = Some((CloseCause::Peer, now + PEER_CLOSE_TIMEOUT));
            }
            None | Some((CloseCause::Peer, _)) => {}
            Some(_) => {
                let (to_client, to_upstream) =
                    (responses.has_sent_close(), requests.has_sent_close());
                let heard_all = requests.has_heard_all() && responses.has_heard_all();
                // A peer whose Close frame cannot be recognized has to close its stream.
                let mut is_pending = !(to_client && to_upstream && heard_all);
                if to_client && (!is_pending || requests.is_unreadable()) {
                    is_pending |= responses.poll_shutdown(context, &mut self.client)?.is_pending();
                }
                if to_upstream && (!is_pending || responses.is_unreadable()) {
                    is_pending |= requests.poll_shutdown(context, &mut self.upstream)?.is_pending();
                }
                if !is_pending {
                    return Poll::Ready(Ok(()));
                }
            }
        }
        Poll::Pending
    }
}

/// The time since a tunnel was opened, in the unit of limits.
fn micros(since: Duration) -> Micros {
    Micros::new(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// The only timer of a tunnel. It is set anew when it fires or an earlier deadline appears, not with every byte.
#[derive(Default)]
struct TunnelTimer {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl TunnelTimer {
    /// Ready once a deadline has passed, perhaps an earlier one.
    fn poll_until(&mut self, context: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
        let Some(deadline) = deadline else { return Poll::Pending };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.is_elapsed() || deadline < sleep.deadline() {
            sleep.as_mut().reset(deadline);
        }
        sleep.as_mut().poll(context)
    }
}
