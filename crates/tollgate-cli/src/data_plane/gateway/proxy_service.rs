//! The proxy: the service behind the layer. Finds the upstream of a request and forwards it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CONNECTION, HOST, HeaderValue, UPGRADE};
use http::uri::{PathAndQuery, Uri};
use http::{Request, Response, Version, request};
use hyper::upgrade::OnUpgrade;
use tower_service::Service;

use super::GatewayParts;
use super::client_body::ClientBody;
use super::gateway_service::ClientConnection;
use super::hop_fields::{self, RequestedUpgrade};
use super::tunnel::Tunnel;
use super::{error_reply, forwarded_fields};
use crate::upstream::registry::{UpstreamMatch, UpstreamState};
use crate::upstream::{ForwardedResponse, Forwarder, OutgoingBody, UpstreamBody};

/// The proxy of one connection.
#[derive(Clone)]
pub(super) struct ProxyService {
    parts: Arc<GatewayParts>,
    client: Arc<ClientConnection>,
    forwarder: Forwarder,
}

impl ProxyService {
    pub(super) fn new(parts: &Arc<GatewayParts>, client: &Arc<ClientConnection>) -> ProxyService {
        ProxyService { parts: parts.clone(), client: client.clone(), forwarder: Forwarder }
    }

    fn find_upstream(
        &self,
        head: &request::Parts,
    ) -> Result<Arc<UpstreamState>, Response<UpstreamBody>> {
        let rules = self.parts.gatekeeper.rules();
        let gateway = &rules.settings().gateway;
        let host = host_of(head).map(str::to_ascii_lowercase);
        match self.parts.registry.find(gateway, host.as_deref(), head.uri.path()) {
            UpstreamMatch::Found(upstream) => Ok(upstream),
            UpstreamMatch::NoRoute => Err(error_reply::no_route().map(UpstreamBody::Whole)),
            UpstreamMatch::AmbiguousPath => {
                let message =
                    "Servers read this path differently, and its readings have different routes.";
                Err(error_reply::bad_request(message).map(UpstreamBody::Whole))
            }
        }
    }

    async fn forward(
        self,
        upstream: Arc<UpstreamState>,
        request: Request<OutgoingBody>,
        upgrade: Option<(RequestedUpgrade, OnUpgrade)>,
    ) -> Response<UpstreamBody> {
        let forwarded = self.forwarder.forward(&upstream, request).await;
        let ForwardedResponse { mut response, tunnel } = match forwarded {
            Ok(forwarded) => forwarded,
            Err(error) => return error_reply::upstream_failed(error).map(UpstreamBody::Whole),
        };
        let switched = response.headers().get(UPGRADE).cloned();
        hop_fields::remove_fields(response.headers_mut());
        if let (Some(upstream), Some((_, client)), Some(protocol)) = (tunnel, upgrade, switched) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
            response.headers_mut().insert(UPGRADE, protocol);
            self.client.keep_tunnel(Tunnel::new(client, upstream));
        }
        response
    }
}

impl Service<Request<ClientBody>> for ProxyService {
    type Response = Response<UpstreamBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<UpstreamBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        let (mut head, body) = request.into_parts();
        let upstream = match self.find_upstream(&head) {
            Ok(upstream) => upstream,
            Err(response) => return Box::pin(std::future::ready(Ok(response))),
        };
        let upgrade = head.extensions.remove::<RequestedUpgrade>();
        let upgrade = upgrade.zip(head.extensions.remove::<OnUpgrade>());
        prepare(&mut head, upgrade.as_ref().map(|(protocol, _)| protocol));
        forwarded_fields::write(&mut head.headers, self.client.peer.ip(), self.parts.is_tls);
        let request = Request::from_parts(head, OutgoingBody::new(body));
        let proxy = self.clone();
        Box::pin(async move { Ok(proxy.forward(upstream, request, upgrade).await) })
    }
}

/// Turns the head of a client's request into that of a request to an HTTP/1.1 upstream.
fn prepare(head: &mut request::Parts, upgrade: Option<&RequestedUpgrade>) {
    if !head.headers.contains_key(HOST)
        && let Some(host) = head.uri.authority()
        && let Ok(host) = HeaderValue::from_str(host.as_str())
    {
        head.headers.insert(HOST, host);
    }
    let path = head.uri.path_and_query().cloned();
    head.uri = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
    head.version = Version::HTTP_11;
    head.extensions.clear();
    if let Some(RequestedUpgrade(protocol)) = upgrade {
        head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(UPGRADE, protocol.clone());
    }
}

/// The host of a request, without its port.
fn host_of(head: &request::Parts) -> Option<&str> {
    let authority = match head.uri.host() {
        Some(host) => return Some(host),
        None => head.headers.get(HOST)?.to_str().ok()?,
    };
    let end = authority.rfind(':').filter(|end| !authority[*end..].contains(']'));
    Some(&authority[..end.unwrap_or(authority.len())])
}
