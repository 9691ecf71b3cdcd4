//! One request and its response, as both bodies, the access log and the metrics see it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST, HeaderValue};
use http::{Extensions, Method, Response, StatusCode, Uri, request};
use tokio::time::Instant;
use tollgate_tower::{GateDecision, SendMark};

use super::error_reply::ReplyCode;
use super::gateway_service::ClientConnection;
use super::overload::{self, OverloadRefusal, OverloadWait, RequestPlace};
use super::protocol::GatewayProtocol;
use crate::upstream::counters::outcome_of;
use crate::upstream::registry::UpstreamState;

/// A request on its way.
pub(super) struct Exchange {
    pub(super) protocol: Arc<GatewayProtocol>,
    pub(super) client: Arc<ClientConnection>,
    /// The value of `X-Request-ID`.
    pub(super) id: HeaderValue,
    pub(super) started: Instant,
    /// The request line; `None` without an access log.
    pub(super) line: Option<RequestLine>,
    /// True if the response has no body whatever its head says.
    pub(super) is_head: bool,
    /// True for gRPC, whose streams may be silent for as long as they like.
    is_grpc: bool,
    upstream: OnceLock<Arc<UpstreamState>>,
    /// The place among the requests in progress. `None` while the layer lets the request wait for its turn, which may
    /// take long: those who wait must not keep others out.
    place: Mutex<Option<RequestPlace>>,
    /// Bytes of the request's body.
    received: AtomicU64,
    /// Bytes of the response's body.
    sent: AtomicU64,
    /// The mark of a request that is charged. It is set when some of it may have been sent to an upstream.
    send_mark: OnceLock<SendMark>,
    /// True once the head of the response has come.
    has_response: AtomicBool,
    /// True while the client's body waits for the upstream's `100 Continue`.
    holds_body: AtomicBool,
    /// Waker of the task that waits for it.
    body_waker: Mutex<Option<Waker>>,
}

/// The parts of a request that an access log names.
pub(super) struct RequestLine {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) host: Option<HeaderValue>,
}

/// An exchange without a response. Dropping it ends the exchange, because its client has gone.
pub(super) struct UnansweredExchange(Option<Arc<Exchange>>);

impl UnansweredExchange {
    pub(super) fn new(exchange: Arc<Exchange>) -> UnansweredExchange {
        UnansweredExchange(Some(exchange))
    }

    /// The exchange.
    pub(super) fn exchange(&self) -> &Exchange {
        self.0.as_ref().expect("it is taken by its answer")
    }

    /// The exchange, whose response will end it.
    pub(super) fn answered(mut self) -> Arc<Exchange> {
        self.0.take().expect("it is taken once")
    }
}

impl Drop for UnansweredExchange {
    fn drop(&mut self) {
        if let Some(exchange) = &self.0 {
            // The status that nginx logs for such a request. Nobody receives it.
            let status = StatusCode::from_u16(499).expect("a number of three digits");
            let summary = ResponseSummary { status, code: None, decision: None };
            exchange.end(&summary, Some("client_gone"));
        }
    }
}

/// The response of an exchange, for metrics and log.
pub(super) struct ResponseSummary {
    pub(super) status: StatusCode,
    /// The code of an error; `None` if an upstream's response passed.
    pub(super) code: Option<&'static str>,
    /// The decision about the request, if there was one.
    pub(super) decision: Option<GateDecision>,
}

impl ResponseSummary {
    pub(super) fn of<B>(response: &Response<B>) -> ResponseSummary {
        let (status, extensions) = (response.status(), response.extensions());
        let decision = extensions.get::<GateDecision>().cloned();
        let is_refused = decision.as_ref().is_some_and(|decision| !decision.allowed());
        let code = match extensions.get::<ReplyCode>() {
            Some(ReplyCode(code)) => Some(*code),
            None => is_refused.then_some("refused"),
        };
        ResponseSummary { status, code, decision }
    }
}

impl Exchange {
    pub(super) fn begin(
        protocol: &Arc<GatewayProtocol>,
        client: &Arc<ClientConnection>,
        id: HeaderValue,
        head: &request::Parts,
    ) -> Arc<Exchange> {
        let content_type = head.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let line = || RequestLine {
            method: head.method.clone(),
            uri: head.uri.clone(),
            host: head.headers.get(HOST).cloned(),
        };
        protocol.parts.metrics.request_began();
        Arc::new(Exchange {
            protocol: protocol.clone(),
            client: client.clone(),
            id,
            started: Instant::now(),
            line: protocol.parts.access_log.is_some().then(line),
            is_head: head.method == Method::HEAD,
            is_grpc: content_type.starts_with(b"application/grpc"),
            upstream: OnceLock::new(),
            place: Mutex::default(),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            send_mark: OnceLock::new(),
            has_response: AtomicBool::new(false),
            holds_body: AtomicBool::new(false),
            body_waker: Mutex::default(),
        })
    }

    pub(super) fn peer(&self) -> IpAddr {
        self.client.peer
    }

    /// The upstream, once the request has one.
    pub(super) fn upstream(&self) -> Option<&Arc<UpstreamState>> {
        self.upstream.get()
    }

    pub(super) fn set_upstream(&self, upstream: &Arc<UpstreamState>) {
        let _ = self.upstream.set(upstream.clone());
    }

    /// The exchange of a request, which the front has put into its extensions.
    pub(super) fn of(request: &Extensions) -> &Arc<Exchange> {
        request.get::<Arc<Exchange>>().expect("the front has put it here")
    }

    /// Takes a place if there is room, otherwise a place in the queue for one.
    pub(super) fn enter(&self) -> Result<(), Result<OverloadWait, OverloadRefusal>> {
        let parts = &self.protocol.parts;
        overload::enter(parts.bounds, &parts.overload).map(|place| self.keep_place(place))
    }

    /// Keeps the place until the exchange ends or waits.
    pub(super) fn keep_place(&self, place: RequestPlace) {
        *self.place() = Some(place);
    }

    pub(super) fn has_place(&self) -> bool {
        self.place().is_some()
    }

    /// Lets another request begin.
    pub(super) fn leave_place(&self) {
        drop(self.place().take());
    }

    fn place(&self) -> MutexGuard<'_, Option<RequestPlace>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn count_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes of both bodies: received, then sent.
    pub(super) fn bytes(&self) -> [u64; 2] {
        [self.received.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed)]
    }

    /// Notes that the request is about to be sent to an upstream.
    pub(super) fn note_sent(&self) {
        if let Some(mark) = self.send_mark.get() {
            mark.note_sent();
        }
    }

    /// The mark of the request.
    pub(super) fn send_mark(&self) -> SendMark {
        self.send_mark.get_or_init(SendMark::default).clone()
    }

    /// Notes that the head of the response has come, from the server with this number.
    pub(super) fn response_began(&self, server: usize) {
        self.has_response.store(true, Ordering::Relaxed);
        if let Some(upstream) = self.upstream() {
            upstream.count_response(server, self.started.elapsed());
        }
    }

    /// Returns true if the client has to send its body at a certain pace. Later the bodies of both directions keep the
    /// exchange alive.
    pub(super) fn requires_pace(&self) -> bool {
        !self.is_grpc && !self.has_response.load(Ordering::Relaxed)
    }

    /// Time after which an exchange without a byte in either direction ends; `None` without an upstream.
    pub(super) fn idle_timeout(&self) -> Option<Duration> {
        self.upstream().map(|upstream| upstream.settings.idle_timeout)
    }

    /// Holds the client's body until [`release_body`](Exchange::release_body): whoever asks for it makes hyper send
    /// `100 Continue`.
    pub(super) fn hold_body(&self) {
        self.holds_body.store(true, Ordering::Release);
    }

    /// Lets the client send its body.
    pub(super) fn release_body(&self) {
        self.holds_body.store(false, Ordering::Release);
        let waker = self.body_waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits until the client's body may be asked for.
    pub(super) fn poll_body_released(&self, context: &Context<'_>) -> Poll<()> {
        if !self.holds_body.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        let mut waker = self.body_waker.lock().unwrap_or_else(PoisonError::into_inner);
        // Read again under the lock: a release either finds this waker, or is seen here.
        if !self.holds_body.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        *waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Counts and logs the end of the exchange.
    pub(super) fn end(&self, response: &ResponseSummary, broken: Option<&'static str>) {
        self.leave_place();
        let code = broken.or(response.code);
        let outcome = code.unwrap_or_else(|| outcome_of(response.status));
        let parts = &self.protocol.parts;
        parts.metrics.request_ended(self, outcome);
        if let (Some(log), Some(line)) = (&parts.access_log, &self.line) {
            log.write(self, line, response, code.unwrap_or_default());
        }
    }
}
