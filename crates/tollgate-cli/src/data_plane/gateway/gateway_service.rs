//! One request through the gateway: cleans its header fields, asks the layer, and completes the response.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, Version};
use hyper::body::Incoming;
use tollgate_tower::{PeerAddr, RateLimit};
use tower_layer::Layer;
use tower_service::Service;

use super::client_body::ClientBody;
use super::client_response::ClientResponseBody;
use super::error_reply;
use super::hop_fields;
use super::protocol::GatewayProtocol;
use super::proxy_service::ProxyService;
use super::tunnel::Tunnel;
use crate::listeners::response_body::InFlightRequest;
use crate::listeners::watchdog::ConnectionActivity;

/// A client's connection, as its requests see it.
pub(super) struct ClientConnection {
    pub(super) peer: SocketAddr,
    pub(super) activity: Arc<ConnectionActivity>,
    /// The tunnel that the connection becomes.
    tunnel: Mutex<Option<Tunnel>>,
}

impl ClientConnection {
    pub(super) fn new(peer: SocketAddr, activity: Arc<ConnectionActivity>) -> ClientConnection {
        ClientConnection { peer, activity, tunnel: Mutex::default() }
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
    limited: RefCell<RateLimit<ProxyService>>,
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
        let body = ClientBody::new(incoming, protocol.timeouts.body);
        let checked = hop_fields::remove(&mut head);
        let answer = match checked {
            Err(problem) => Err(error_reply::bad_request(problem)),
            Ok(upgrade) => {
                head.extensions.insert(PeerAddr(self.client.peer.ip()));
                if let Some(upgrade) = upgrade {
                    head.extensions.insert(upgrade);
                }
                Ok(self.limited.borrow_mut().call(Request::from_parts(head, body)))
            }
        };
        Box::pin(async move {
            let mut response = match answer {
                Err(response) => response.map(ClientResponseBody::whole),
                Ok(answer) => {
                    let Ok(response) = answer.await;
                    response.map(ClientResponseBody::gated)
                }
            };
            protocol.responses.count(response.status());
            if version < Version::HTTP_2 && protocol.stopping.load(Ordering::Relaxed) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            response.body_mut().hold(in_flight);
            Ok(response)
        })
    }
}
