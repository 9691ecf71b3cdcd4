//! The proxy: the service behind the layer. Finds the upstream of a request and forwards it.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONNECTION, COOKIE, EXPECT, HOST, HeaderMap, HeaderValue, UPGRADE};
use http::uri::{PathAndQuery, Uri};
use http::{Request, Response, StatusCode, Version, request};
use http_body::Body as _;
use hyper::upgrade::OnUpgrade;
use tollgate_rules::gateway_settings::UpstreamHost;
use tollgate_rules::{GatewaySettings, Identify, UpstreamSettings, normalize_host};
use tollgate_tower::{ChargeStands, InnerLimitFields, ReplayedBody, UnsentRequest};
use tower_service::Service;

use super::GatewayParts;
use super::client_body::ClientBody;
use super::exchange::Exchange;
use super::gateway_service::ClientConnection;
use super::hop_fields::{self, RequestedUpgrade};
use super::request_check::RequestProblem;
use super::tunnel::Tunnel;
use super::{caller_fields, error_reply, forwarded_fields};
use crate::upstream::registry::{UpstreamMatch, UpstreamState};
use crate::upstream::{
    ForwardError, ForwardFailure, ForwardedResponse, Forwarder, OutgoingBody, UpstreamBody,
};

const AMBIGUOUS_PATH: RequestProblem = RequestProblem::malformed(
    "Servers read this path differently, and its readings have different routes.",
);

/// The treatment of an upstream's rate limit fields, unless its settings say otherwise.
pub(super) const LIMIT_FIELDS_DEFAULT: InnerLimitFields = InnerLimitFields::Replace;

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
        gateway: &Arc<GatewaySettings>,
    ) -> Result<Arc<UpstreamState>, Box<Response<UpstreamBody>>> {
        let refuse = |response: Response<Bytes>| {
            let mut response = response.map(UpstreamBody::Whole);
            response.extensions_mut().insert(UnsentRequest);
            Box::new(response)
        };
        let host = host_of(head);
        match self.parts.registry.find(gateway, host.as_deref(), head.uri.path()) {
            UpstreamMatch::Found(upstream) => Ok(upstream),
            UpstreamMatch::NoRoute => Err(refuse(error_reply::no_route())),
            UpstreamMatch::AmbiguousPath => Err(refuse(error_reply::not_forwarded(AMBIGUOUS_PATH))),
        }
    }

    /// Writes the fields that tell the upstream about the client, in place of those that the client may not send.
    fn describe_client(&self, head: &mut request::Parts, identify: &Identify) {
        if !head.headers.contains_key(HOST)
            && let Some(host) = head.uri.authority()
            && let Ok(host) = HeaderValue::from_str(host.as_str())
        {
            head.headers.insert(HOST, host);
        }
        let is_trusted = identify.trusts(self.client.peer);
        caller_fields::remove_forged(&mut head.headers, identify, is_trusted);
        self.client.forwarded.write(&mut head.headers);
        forwarded_fields::add_via(&mut head.headers, head.version);
    }

    async fn forward(
        self,
        exchange: Arc<Exchange>,
        request: Request<OutgoingBody>,
        upgrade: Option<(RequestedUpgrade, OnUpgrade)>,
    ) -> Response<UpstreamBody> {
        let upstream = exchange.upstream().expect("it has been set");
        let on_send = || exchange.note_sent();
        let forwarded = self.forwarder.forward(upstream, request, &on_send).await;
        let ForwardedResponse { mut response, server, tunnel } = match forwarded {
            Ok(forwarded) => forwarded,
            Err(ForwardFailure { error, was_sent }) => {
                // A body of which nothing arrived has cost the upstream nothing.
                let has_arrived = error != ForwardError::RequestBody || exchange.bytes()[0] > 0;
                return failed_response(error, was_sent && has_arrived);
            }
        };
        exchange.response_began(server);
        let switched = response.headers().get(UPGRADE).cloned();
        hop_fields::remove_from_response(response.headers_mut());
        let received = response.version();
        forwarded_fields::add_via(response.headers_mut(), received);
        let limit_fields = InnerLimitFields::from(upstream.settings.limit_fields);
        if limit_fields != LIMIT_FIELDS_DEFAULT {
            response.extensions_mut().insert(limit_fields);
        }
        let Some(switched_to) = tunnel else { return response };
        match (upgrade, switched) {
            (Some((offered, client)), Some(protocol)) if offered.offers(&protocol) => {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
                let is_websocket = hop_fields::names_websocket(&protocol);
                self.client.keep_tunnel(Tunnel::new(&exchange, client, switched_to, is_websocket));
                response.headers_mut().insert(UPGRADE, protocol);
                response
            }
            // The upstream switches to a protocol that nobody asked for.
            _ => failed_response(ForwardError::InvalidResponse, true),
        }
    }
}

impl Service<Request<ReplayedBody<ClientBody>>> for ProxyService {
    type Response = Response<UpstreamBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<UpstreamBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReplayedBody<ClientBody>>) -> Self::Future {
        let (mut head, body) = request.into_parts();
        let rules = self.parts.gatekeeper.rules();
        let settings = rules.settings();
        let upstream = match self.find_upstream(&head, &settings.gateway) {
            Ok(upstream) => upstream,
            Err(response) => return Box::pin(std::future::ready(Ok(*response))),
        };
        let exchange =
            head.extensions.remove::<Arc<Exchange>>().expect("the front has put it here");
        exchange.set_upstream(&upstream);
        let upgrade = head.extensions.remove::<RequestedUpgrade>();
        let upgrade = upgrade.zip(head.extensions.remove::<OnUpgrade>());
        self.describe_client(&mut head, &settings.identify);
        prepare(&mut head, &upstream.settings, upgrade.is_some());
        let mut request = Request::from_parts(head, OutgoingBody::new(body));
        pass_expectation(&mut request, &exchange);
        let proxy = self.clone();
        Box::pin(async move { Ok(proxy.forward(exchange, request, upgrade).await) })
    }
}

/// The response in place of an upstream's. The charge stands if the upstream may have done the work, otherwise the request counts as unsent.
fn failed_response(error: ForwardError, may_have_worked: bool) -> Response<UpstreamBody> {
    let mut response = error_reply::upstream_failed(error).map(UpstreamBody::Whole);
    if may_have_worked {
        response.extensions_mut().insert(ChargeStands);
    } else {
        response.extensions_mut().insert(UnsentRequest);
    }
    response
}

/// Turns the head of a client's request into that of a request to an upstream. Without `Host` the forwarder writes that
/// of the server.
fn prepare(head: &mut request::Parts, upstream: &UpstreamSettings, is_upgrade: bool) {
    if upstream.host == UpstreamHost::Upstream {
        head.headers.remove(HOST);
    }
    join_cookies(&mut head.headers);
    let path = head.uri.path_and_query().cloned();
    head.uri = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
    head.version = Version::HTTP_11;
    head.extensions.clear();
    if is_upgrade {
        head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    } else {
        head.headers.remove(UPGRADE);
    }
}

/// Joins the lines of `Cookie`: HTTP/2 may split it, but HTTP/1.1 has one (RFC 9113, section 8.2.3).
fn join_cookies(fields: &mut HeaderMap) {
    let mut lines = fields.get_all(COOKIE).iter().map(HeaderValue::as_bytes);
    let (Some(first), Some(second)) = (lines.next(), lines.next()) else { return };
    let lines: Vec<&[u8]> = [first, second].into_iter().chain(lines).collect();
    if let Ok(cookie) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
        fields.insert(COOKIE, cookie);
    }
}

/// Lets a client that expects `100 Continue` wait until the upstream says so.
fn pass_expectation(request: &mut Request<OutgoingBody>, exchange: &Arc<Exchange>) {
    if !request.headers().contains_key(EXPECT) {
        return;
    }
    if request.body().is_end_stream() {
        request.headers_mut().remove(EXPECT);
        return;
    }
    exchange.hold_body();
    let exchange = Arc::downgrade(exchange);
    hyper::ext::on_informational(request, move |response| {
        if response.status() == StatusCode::CONTINUE
            && let Some(exchange) = exchange.upgrade()
        {
            exchange.release_body();
        }
    });
}

/// The host of a request in its one spelling, as rules see it.
fn host_of(head: &request::Parts) -> Option<Cow<'_, str>> {
    let written = match head.uri.authority() {
        Some(authority) => authority.as_str(),
        None => head.headers.get(HOST)?.to_str().ok()?,
    };
    normalize_host(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_become_one_line() {
        let rows: [(&[&str], &[&str]); 3] = [
            (&[], &[]),
            (&["a=1; b=2"], &["a=1; b=2"]),
            (&["a=1", "b=2", "c=3"], &["a=1; b=2; c=3"]),
        ];
        for (lines, want) in rows {
            let mut fields = HeaderMap::new();
            for line in lines {
                fields.append(COOKIE, line.parse().unwrap());
            }
            join_cookies(&mut fields);
            assert_eq!(fields.get_all(COOKIE).iter().collect::<Vec<_>>(), want);
        }
    }

    #[test]
    fn routes_are_found_by_the_host_alone() {
        // Target, Host | host
        let rows = [
            ("/", Some("h"), Some("h")),
            ("/", Some("h:80"), Some("h")),
            ("/", Some("H.Example"), Some("h.example")),
            ("/", Some("h.example."), Some("h.example")),
            ("/", Some("h.example.:80"), Some("h.example")),
            ("/", Some("[::1]:80"), Some("[::1]")),
            ("/", Some("[::1]"), Some("[::1]")),
            ("http://a:80/", Some("a:80"), Some("a")),
            ("http://[::1]/", None, Some("[::1]")),
            ("/", None, None),
        ];
        for (target, host, want) in rows {
            let mut request = Request::get(target);
            if let Some(host) = host {
                request = request.header(HOST, host);
            }
            let (head, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(host_of(&head).as_deref(), want, "{target} {host:?}");
        }
    }
}
