//! One request through the gateway: cleans its header fields, asks the layer, and completes the response.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT, HeaderValue};
use http::{Extensions, Request, Response, StatusCode, Version, request};
use hyper::body::{Body as _, Incoming};
use tollgate_tower::request_body::RequestBodyService;
use tollgate_tower::{AdmissionGuard, CarriesBody, RateLimit, WebSocketRules};
use tower_layer::Layer;
use tower_service::Service;

use super::caller_fields;
use super::client_body::ClientBody;
use super::client_response::{AnsweredRequest, ClientResponseBody};
use super::cors_reply::CorsReply;
use super::error_reply;
use super::exchange::{Exchange, ResponseSummary, UnansweredExchange};
use super::forwarded_fields::ForwardedValues;
use super::hop_fields::{self, RequestedUpgrade};
use super::overload::{OverloadRefusal, OverloadWait};
use super::protocol::{GatewayProtocol, UNREAD_BODIES_MAX};
use super::proxy_service::ProxyService;
use super::request_check::{self, RequestProblem};
use super::request_id::{self, X_REQUEST_ID};
use super::tunnel::Tunnel;
use super::window_shares::WindowShare;
use crate::listeners::answering::catch_panic;
use crate::listeners::response_body::InFlightRequest;
use crate::listeners::watchdog::ConnectionActivity;

/// A client's connection, as its requests see it.
pub(super) struct ClientConnection {
    /// The client's address, or that of the proxy in front of this one.
    pub(super) peer: IpAddr,
    pub(super) forwarded: ForwardedValues,
    pub(super) activity: Arc<ConnectionActivity>,
    /// Bodies of a proxy's clients that wait for memory. Bound: [`UNREAD_BODIES_MAX`].
    unread_bodies: AtomicUsize,
    /// The tunnel that the connection becomes.
    tunnel: Mutex<Option<Tunnel>>,
}

impl ClientConnection {
    pub(super) fn new(
        peer: IpAddr,
        is_tls: bool,
        activity: Arc<ConnectionActivity>,
    ) -> ClientConnection {
        let forwarded = ForwardedValues::new(peer, is_tls);
        ClientConnection {
            peer: peer.to_canonical(),
            forwarded,
            activity,
            unread_bodies: AtomicUsize::new(0),
            tunnel: Mutex::default(),
        }
    }

    /// Begins the wait of a body for memory. Returns false if too many wait.
    pub(super) fn begin_unread(&self) -> bool {
        let more = |unread| (unread < UNREAD_BODIES_MAX).then_some(unread + 1);
        self.unread_bodies.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Ends the wait of a body.
    pub(super) fn end_unread(&self) {
        self.unread_bodies.fetch_sub(1, Ordering::Relaxed);
    }

    /// Keeps a tunnel, which runs when the connection has switched protocols.
    pub(super) fn keep_tunnel(&self, tunnel: Tunnel) {
        *self.tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some(tunnel);
    }

    /// Gives the tunnel the admission and the limits of the request that became it.
    fn admit_tunnel(&self, response: &mut Extensions) {
        let mut tunnel = self.tunnel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tunnel) = &mut *tunnel {
            tunnel.admission = response.remove::<AdmissionGuard>();
            tunnel.rules = response.remove::<WebSocketRules>();
        }
    }

    pub(super) fn take_tunnel(&self) -> Option<Tunnel> {
        self.tunnel.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The service of one connection.
pub(super) struct GatewayService {
    protocol: Arc<GatewayProtocol>,
    client: Arc<ClientConnection>,
    /// The layer around the proxy. Each connection has a copy, so that no count is shared by all processors.
    limited: RefCell<LimitedProxy>,
    /// The large window of an HTTP/2 connection.
    window: Cell<Option<WindowShare>>,
}

impl GatewayService {
    pub(super) fn new(
        protocol: &Arc<GatewayProtocol>,
        client: &Arc<ClientConnection>,
        window: Option<WindowShare>,
    ) -> GatewayService {
        let proxy = ProxyService::new(&protocol.parts, client);
        let limited = protocol.layer.request_body().layer(protocol.layer.layer(proxy));
        let limited = RefCell::new(limited);
        let window = Cell::new(window);
        GatewayService { protocol: protocol.clone(), client: client.clone(), limited, window }
    }

    /// Lets the layer decide about a request, as soon as there is room for it.
    fn begin(
        &self,
        request: Request<ClientBody>,
        entered: Result<(), Result<OverloadWait, OverloadRefusal>>,
    ) -> RequestStep {
        match entered {
            Ok(()) => RequestStep::Decide(self.limited.borrow_mut().call(request)),
            Err(Ok(queued)) => {
                RequestStep::Wait(Box::new((queued, self.limited.borrow().clone(), request)))
            }
            Err(Err(refusal)) => RequestStep::Respond(error_reply::overloaded(refusal)),
        }
    }

    /// Checks a request, and begins it if it can be forwarded.
    fn first_step(
        &self,
        mut head: request::Parts,
        incoming: Incoming,
        exchange: Arc<Exchange>,
    ) -> RequestStep {
        let has_body = !incoming.is_end_stream();
        let is_http2 = head.version == Version::HTTP_2;
        // A client that expects `100 Continue` has sent nothing to discard.
        let must_discard = is_http2 && has_body && !head.headers.contains_key(EXPECT);
        let body = ClientBody::new(incoming, &exchange, must_discard);
        if has_body {
            head.extensions.insert(CarriesBody);
        }
        match self.clean(&mut head, has_body) {
            Err(problem) => {
                let mut response = error_reply::not_forwarded(problem);
                if problem == request_check::FRAMING && !is_http2 {
                    // Nobody knows where the next request begins.
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                RequestStep::Respond(response)
            }
            Ok(upgrade) => {
                let entered = exchange.enter();
                head.extensions.insert(exchange);
                if let Some(upgrade) = upgrade {
                    head.extensions.insert(upgrade);
                }
                self.begin(Request::from_parts(head, body), entered)
            }
        }
    }

    /// Checks the head of a request and removes the fields that concern the connection alone.
    fn clean(
        &self,
        head: &mut request::Parts,
        has_body: bool,
    ) -> Result<Option<RequestedUpgrade>, RequestProblem> {
        request_check::check(head, has_body)?;
        let rules = self.protocol.parts.gatekeeper.rules();
        if rules.reads_host() {
            request_check::check_has_host(head)?;
        }
        caller_fields::remove_mistakable(&mut head.headers, &rules);
        hop_fields::remove_from_request(head, &rules.settings().identify, has_body)
    }
}

/// The proxy behind the layer, which reads the bodies of requests that a rule has to know.
type LimitedProxy = RequestBodyService<RateLimit<ProxyService>>;

/// The next step of a request.
enum RequestStep {
    /// The gateway answers it.
    Respond(Response<Bytes>),
    /// The layer decides about it.
    Decide(<LimitedProxy as Service<Request<ClientBody>>>::Future),
    /// It waits until there is room.
    Wait(Box<(OverloadWait, LimitedProxy, Request<ClientBody>)>),
}

impl RequestStep {
    async fn response(self) -> Response<ClientResponseBody> {
        let answer = match self {
            RequestStep::Respond(response) => return response.map(ClientResponseBody::whole),
            RequestStep::Decide(answer) => answer,
            RequestStep::Wait(waiting) => {
                let (queued, mut limited, request) = *waiting;
                match queued.await {
                    Ok(place) => {
                        Exchange::of(request.extensions()).keep_place(place);
                        limited.call(request)
                    }
                    Err(refusal) => {
                        return error_reply::overloaded(refusal).map(ClientResponseBody::whole);
                    }
                }
            }
        };
        let mut answer = pin!(answer);
        let answered = poll_fn(|context| {
            let polled = catch_panic(|| answer.as_mut().poll(context));
            polled.map_or(Poll::Ready(None), |polled| polled.map(Some))
        });
        match answered.await {
            Some(Ok(response)) => response.map(ClientResponseBody::gated),
            None => error_reply::panicked().map(ClientResponseBody::whole),
        }
    }
}

/// The response to a request, or the refusal of one that still waits for its turn when a drain has ended. It leaves, which
/// gives back what was charged for it.
async fn response_before_end(
    step: RequestStep,
    unanswered: &UnansweredExchange,
) -> Response<ClientResponseBody> {
    let (exchange, mut end) = (unanswered.exchange(), None);
    let mut response = pin!(step.response());
    poll_fn(|context| {
        if let Poll::Ready(response) = response.as_mut().poll(context) {
            return Poll::Ready(response);
        }
        if exchange.has_place() {
            return Poll::Pending;
        }
        let end = end.get_or_insert_with(|| Box::pin(exchange.protocol.drain.waits_ended()));
        let ended = end.as_mut().poll(context);
        ended.map(|()| error_reply::stopping().map(ClientResponseBody::whole))
    })
    .await
}

impl hyper::service::Service<Request<Incoming>> for GatewayService {
    type Response = Response<ClientResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let version = request.version();
        if version != Version::HTTP_2 {
            // HTTP/1.1 has no windows: the share is for a connection that uses it.
            self.window.take();
        }
        let in_flight = InFlightRequest::begin(&self.client.activity, version);
        let (mut head, incoming) = request.into_parts();
        let rules = self.protocol.parts.gatekeeper.rules();
        let is_trusted = rules.settings().identify.trusts(self.client.peer);
        let cors = rules.settings().cors.as_deref();
        let cors = cors.and_then(|settings| CorsReply::of(settings, &head.headers));
        drop(rules);
        let id = request_id::name(&mut head.headers, is_trusted);
        let exchange = Exchange::begin(&self.protocol, &self.client, id, &head);
        let unanswered = UnansweredExchange::new(exchange.clone());
        let step = catch_panic(|| self.first_step(head, incoming, exchange));
        let step = step.unwrap_or_else(|| RequestStep::Respond(error_reply::panicked()));
        Box::pin(async move {
            let mut response = response_before_end(step, &unanswered).await;
            let exchange = unanswered.answered();
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                exchange.client.admit_tunnel(response.extensions_mut());
            }
            let protocol = &exchange.protocol;
            protocol.responses.count(response.status());
            let is_switching = response.status() == StatusCode::SWITCHING_PROTOCOLS;
            if version < Version::HTTP_2
                && !is_switching
                && protocol.stopping.load(Ordering::Relaxed)
            {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            response.headers_mut().insert(X_REQUEST_ID, exchange.id.clone());
            let summary = ResponseSummary::of(&response);
            if let Some(cors) = cors.filter(|_| summary.code.is_some()) {
                cors.write(response.headers_mut());
            }
            response.body_mut().hold(AnsweredRequest { exchange, summary, in_flight });
            Ok(response)
        })
    }
}
