//! The http listener: its paths, access checks and body limits.

use std::net::SocketAddr;
use std::sync::Arc;

use ::http::{Method, Response, StatusCode, Version, request};
use tollgate_rules::expect_ready;

use super::check_service::CheckService;
use super::forwarded::ForwardAuthProxy;
use super::{DataContext, batch, check, envoy, forward_auth, reserve};
use crate::listeners::fast_lane::plain_request::{PlainMethod, PlainRequest};
use crate::listeners::handler::{Handler, ReceivedRequest, RequestAdmission, RoutedRequest};
use crate::listeners::header_fields::{HeaderFieldSlice, HeaderFields, RequestHead};
use crate::listeners::host;
use crate::listeners::request_body::BodyError;
use crate::listeners::response_body::ResponseBody;
use crate::listeners::service::ListenerService;
use crate::listeners::tokens::Tokens;
use crate::reply::{self, HttpReply};

/// Maximum bytes of one check.
pub(crate) const CHECK_BYTES_MAX: usize = 64 << 10;

/// Maximum bytes of a batch, and of descriptors, most of which clients choose.
const BATCH_BYTES_MAX: usize = 1 << 20;

const OPENAPI: &str = include_str!("openapi.json");

const NO_SUCH_PATH: &str = "There is no such path. There are: POST /v1/check, POST /v1/check/batch, \
    POST /v1/reserve, POST /v1/commit, POST /v1/refund, /v1/forward-auth, /v1/forward-auth/nginx, \
    POST /json, GET /openapi.json.";

/// Answers on the HTTP listener.
struct DataPlane {
    checks: CheckService,
    /// Accepted tokens; `None` admits every client that reaches the listener.
    tokens: Option<Arc<Tokens>>,
    /// True if a web page could reach the listener by DNS rebinding: it has an IP address, needs no token, and has no
    /// certificate, which would be for another name.
    is_open_to_dns_rebinding: bool,
}

/// Builds the http listener.
pub(crate) fn listener(context: &DataContext<'_>) -> ListenerService {
    let tokens = context.tokens.clone();
    let is_open_to_dns_rebinding =
        tokens.is_none() && !context.has_certificate && !context.is_unix_socket;
    context.http_service(DataPlane { checks: context.checks(), tokens, is_open_to_dns_rebinding })
}

/// An endpoint, found by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataRoute {
    Check,
    Batch,
    Reserve,
    Commit,
    Refund,
    ForwardAuth(ForwardAuthProxy),
    Json,
    OpenApi,
}

impl DataRoute {
    fn from_path(path: &str) -> Option<DataRoute> {
        Some(match path {
            "/v1/check" => DataRoute::Check,
            "/v1/check/batch" => DataRoute::Batch,
            "/v1/reserve" => DataRoute::Reserve,
            "/v1/commit" => DataRoute::Commit,
            "/v1/refund" => DataRoute::Refund,
            "/v1/forward-auth" => DataRoute::ForwardAuth(ForwardAuthProxy::Standard),
            "/v1/forward-auth/nginx" => DataRoute::ForwardAuth(ForwardAuthProxy::Nginx),
            "/json" => DataRoute::Json,
            "/openapi.json" => DataRoute::OpenApi,
            _ => return None,
        })
    }

    /// Allowed methods, for the `Allow` header; `None` if all are.
    fn allowed_methods(self) -> Option<&'static str> {
        match self {
            DataRoute::ForwardAuth(_) => None,
            DataRoute::OpenApi => Some("GET, HEAD"),
            _ => Some("POST"),
        }
    }

    fn accepts_method(self, method: &Method) -> bool {
        match self {
            DataRoute::ForwardAuth(_) => true,
            DataRoute::OpenApi => method == Method::GET || method == Method::HEAD,
            _ => method == Method::POST,
        }
    }

    /// Maximum bytes of the body; `None` if it is not read.
    fn body_bytes_max(self) -> Option<usize> {
        match self {
            DataRoute::ForwardAuth(_) | DataRoute::OpenApi => None,
            DataRoute::Batch | DataRoute::Json => Some(BATCH_BYTES_MAX),
            _ => Some(CHECK_BYTES_MAX),
        }
    }
}

/// Reason why a request has no route, or may not use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteRefusal {
    Token,
    DnsRebinding,
    Path,
    Method(DataRoute),
    BrowserPage,
}

const BROWSER_PAGE_REFUSED: &str = "This request comes from a web page, and without tokens this listener cannot tell \
    which: configure tokens with --auth-token-file.";

const DNS_REBINDING_REFUSED: &str = "Without --auth-token-file this listener accepts only IP addresses, localhost and \
    names without dots as `Host`, because a web page could reach it under any other name: let your \
    proxy send Tollgate's own address as `Host`, or a token.";

/// Returns true if a browser sends this on behalf of a web page. Any page can make a browser on this machine post
/// here; without tokens, that must not charge or refund units.
fn is_from_browser_page(headers: &impl HeaderFields) -> bool {
    headers.values("origin").next().is_some()
}

impl Handler for DataPlane {
    type Endpoint = DataRoute;

    fn admit(&self, head: &request::Parts, peer: SocketAddr) -> RequestAdmission<DataRoute> {
        let head = RequestHead::from(head);
        match self.find_route(&head) {
            Ok(route) => RequestAdmission::Admitted(RoutedRequest {
                endpoint: route,
                body_bytes_max: route.body_bytes_max(),
                deadline: None,
            }),
            Err(refusal) => RequestAdmission::Answered(Box::new(self.refuse(refusal, &head, peer))),
        }
    }

    fn answer_at_once(
        &self,
        route: DataRoute,
        request: &mut ReceivedRequest<'_>,
    ) -> Option<Response<ResponseBody>> {
        if !self.checks.gatekeeper.answers_at_once() {
            return None;
        }
        let (checks, headers, peer) = (&self.checks, &request.head.headers, request.peer.ip());
        Some(match route {
            DataRoute::Check => expect_ready(check::answer(checks, request.body)).into_response(),
            DataRoute::ForwardAuth(proxy) => {
                expect_ready(forward_auth::answer(checks, headers, peer, proxy)).into_response()
            }
            DataRoute::Batch => expect_ready(batch::answer(checks, request)),
            _ => return None,
        })
    }

    fn has_fast_lane(&self) -> bool {
        self.checks.gatekeeper.answers_at_once()
    }

    fn answer_plain(&self, request: &PlainRequest<'_, '_>, peer: SocketAddr) -> Option<HttpReply> {
        let method = match request.method {
            PlainMethod::Get => Method::GET,
            PlainMethod::Post => Method::POST,
        };
        let headers = &HeaderFieldSlice(request.fields);
        let head = RequestHead {
            method: &method,
            path: request.path,
            authority: None,
            version: Version::HTTP_11,
            headers,
        };
        // Refusals are left to hyper's way.
        let route = self.find_route(&head).ok()?;
        Some(match (route, request.method) {
            (DataRoute::Check, PlainMethod::Post) => {
                expect_ready(check::answer(&self.checks, request.body))
            }
            (DataRoute::ForwardAuth(proxy), PlainMethod::Get) => {
                expect_ready(forward_auth::answer(&self.checks, headers, peer.ip(), proxy))
            }
            _ => return None,
        })
    }

    async fn answer_by(
        &self,
        route: DataRoute,
        mut request: ReceivedRequest<'_>,
    ) -> Response<ResponseBody> {
        let (checks, body, headers) = (&self.checks, request.body, &request.head.headers);
        match route {
            DataRoute::Check => check::answer(checks, body).await.into_response(),
            DataRoute::Batch => batch::answer(checks, &mut request).await,
            DataRoute::Reserve => reserve::reserve(checks, body).await,
            DataRoute::Commit => reserve::commit(checks, body).await,
            DataRoute::Refund => reserve::refund(checks, body).await,
            DataRoute::ForwardAuth(proxy) => {
                forward_auth::answer(checks, headers, request.peer.ip(), proxy)
                    .await
                    .into_response()
            }
            DataRoute::Json => envoy::json::answer(checks, body).await,
            DataRoute::OpenApi => reply::json(StatusCode::OK, OPENAPI),
        }
    }

    fn unreceived(
        &self,
        admitted: &RoutedRequest<DataRoute>,
        problem: &BodyError,
    ) -> Response<ResponseBody> {
        reply::no_body(problem, admitted.body_bytes_max.unwrap_or_default())
    }

    fn panicked(&self) -> Response<ResponseBody> {
        reply::panicked()
    }
}

impl DataPlane {
    /// The route of a request that may use it.
    fn find_route(
        &self,
        head: &RequestHead<'_, impl HeaderFields>,
    ) -> Result<DataRoute, RouteRefusal> {
        if self.tokens.as_ref().is_some_and(|tokens| tokens.admit(head.headers).is_none()) {
            return Err(RouteRefusal::Token);
        }
        if self.is_open_to_dns_rebinding && host::may_be_dns_rebinding(head) {
            return Err(RouteRefusal::DnsRebinding);
        }
        let route = DataRoute::from_path(head.path).ok_or(RouteRefusal::Path)?;
        if !route.accepts_method(head.method) {
            return Err(RouteRefusal::Method(route));
        }
        if self.tokens.is_none()
            && route.body_bytes_max().is_some()
            && is_from_browser_page(head.headers)
        {
            return Err(RouteRefusal::BrowserPage);
        }
        Ok(route)
    }

    /// The response to a request that has no route, or may not use it.
    #[cold]
    fn refuse(
        &self,
        refusal: RouteRefusal,
        head: &RequestHead<'_, impl HeaderFields>,
        peer: SocketAddr,
    ) -> Response<ResponseBody> {
        match refusal {
            RouteRefusal::Token => reply::unauthorized(),
            RouteRefusal::DnsRebinding => {
                let (host, now) = (host::requested_host(head), self.checks.gatekeeper.now());
                self.checks.warnings.dns_rebinding(peer.ip(), host, now);
                reply::error(StatusCode::FORBIDDEN, DNS_REBINDING_REFUSED)
            }
            RouteRefusal::Path => reply::error(StatusCode::NOT_FOUND, NO_SUCH_PATH),
            RouteRefusal::Method(route) => {
                reply::method_not_allowed(route.allowed_methods().unwrap_or_default())
            }
            RouteRefusal::BrowserPage => reply::error(StatusCode::FORBIDDEN, BROWSER_PAGE_REFUSED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_openapi_document_has_every_path() {
        let document: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.len(), 9);
        for (path, methods) in paths {
            let route = DataRoute::from_path(path).expect(path);
            for method in methods.as_object().unwrap().keys() {
                let method: Method = method.to_uppercase().parse().unwrap();
                assert!(route.accepts_method(&method), "{method} {path}");
            }
            assert!(NO_SUCH_PATH.contains(path.as_str()), "{path}");
        }
    }
}
