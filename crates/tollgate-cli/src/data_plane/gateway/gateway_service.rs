//! One request through the gateway: cleans its header fields, asks the layer, and completes the response.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, Version, request};
use hyper::body::{Body as _, Incoming};
use tollgate_tower::{PeerAddr, RateLimit};
use tower_layer::Layer;
use tower_service::Service;

use super::client_body::ClientBody;
use super::client_response::ClientResponseBody;
use super::error_reply;
use super::forwarded_fields::ForwardedValues;
use super::hop_fields::{self, RequestedUpgrade};
use super::overload::{self, OverloadWait, RequestPlace};
use super::protocol::GatewayProtocol;
use super::proxy_service::ProxyService;
use super::request_check::{self, RequestProblem};
use super::tunnel::Tunnel;
use crate::listeners::response_body::InFlightRequest;
use crate::listeners::watchdog::ConnectionActivity;

/// A client's connection, as its requests see it.
pub(super) struct ClientConnection {
    /// The client's address, or that of the proxy in front of this one.
    pub(super) peer: IpAddr,
    pub(super) forwarded: ForwardedValues,
    pub(super) activity: Arc<ConnectionActivity>,
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
            tunnel: Mutex::default(),
        }
    }

    /// Keeps a tunnel, which runs when the connection has switched protocols.
    pub(super) fn keep_tunnel(&self, tunnel: Tunnel) {
        *self.tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some(tunnel);
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
}

impl GatewayService {
    pub(super) fn new(
        protocol: &Arc<GatewayProtocol>,
        client: &Arc<ClientConnection>,
    ) -> GatewayService {
        let proxy = ProxyService::new(&protocol.parts, client);
        let limited = RefCell::new(protocol.layer.layer(proxy));
        GatewayService { protocol: protocol.clone(), client: client.clone(), limited }
    }

    /// Lets the layer decide about a request, as soon as there is room for it.
    fn begin(&self, request: Request<ClientBody>) -> RequestStep {
        let parts = &self.protocol.parts;
        match overload::enter(parts.bounds, &parts.overload) {
            Ok(place) => RequestStep::Decide(self.limited.borrow_mut().call(request), place),
            Err(Ok(queued)) => {
                RequestStep::Wait(Box::new((queued, self.limited.borrow().clone(), request)))
            }
            Err(Err(refusal)) => RequestStep::Respond(error_reply::overloaded(refusal)),
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
        hop_fields::remove_from_request(head, &rules.settings().identify, has_body)
    }
}

/// A service with the layer around it.
type LimitedProxy = RateLimit<ProxyService>;

/// The next step of a request.
enum RequestStep {
    /// The gateway answers it.
    Respond(Response<Bytes>),
    /// The layer decides about it.
    Decide(<LimitedProxy as Service<Request<ClientBody>>>::Future, RequestPlace),
    /// It waits until there is room.
    Wait(Box<(OverloadWait, LimitedProxy, Request<ClientBody>)>),
}

impl RequestStep {
    /// The response, and the place of the request while it is in progress.
    async fn response(self) -> (Response<ClientResponseBody>, Option<RequestPlace>) {
        let (answer, place) = match self {
            RequestStep::Respond(response) => {
                return (response.map(ClientResponseBody::whole), None);
            }
            RequestStep::Decide(answer, place) => (answer, place),
            RequestStep::Wait(waiting) => {
                let (queued, mut limited, request) = *waiting;
                match queued.await {
                    Ok(place) => (limited.call(request), place),
                    Err(refusal) => {
                        let response = error_reply::overloaded(refusal);
                        return (response.map(ClientResponseBody::whole), None);
                    }
                }
            }
        };
        let Ok(response) = answer.await;
        (response.map(ClientResponseBody::gated), Some(place))
    }
}

impl hyper::service::Service<Request<Incoming>> for GatewayService {
    type Response = Response<ClientResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let in_flight = InFlightRequest::begin(&self.client.activity, request.version());
        let version = request.version();
        let protocol = self.protocol.clone();
        let (mut head, incoming) = request.into_parts();
        let has_body = !incoming.is_end_stream();
        let body = ClientBody::new(incoming, &protocol);
        let step = match self.clean(&mut head, has_body) {
            Err(problem) => RequestStep::Respond(error_reply::not_forwarded(problem)),
            Ok(upgrade) => {
                head.extensions.insert(PeerAddr(self.client.peer));
                if let Some(upgrade) = upgrade {
                    head.extensions.insert(upgrade);
                }
                self.begin(Request::from_parts(head, body))
            }
        };
        Box::pin(async move {
            let (mut response, place) = step.response().await;
            protocol.responses.count(response.status());
            if version < Version::HTTP_2 && protocol.stopping.load(Ordering::Relaxed) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            response.body_mut().hold(in_flight, place);
            Ok(response)
        })
    }
}
