//! The HTTP listener: which path means what, who may ask, and how much they may send.

use std::net::SocketAddr;
use std::sync::Arc;

use ::http::{HeaderMap, Method, Response, StatusCode, header, request};
use bytes::Bytes;
use tollgate::Micros;
use tollgate_rules::{Answer, Ask, Facts, Version};

use super::facts::{identifying, identity, stated};
use super::forwarded::Style;
use super::json::Asked;
use super::{batch, check, envoy, forward_auth, reserve};
use crate::listeners::connection::{Body, Handler};
use crate::listeners::host;
use crate::listeners::request_body::RequestBody;
use crate::listeners::tokens::Tokens;
use crate::metrics::Timing;
use crate::reply;
use crate::settings::OnMissingFacts;
use crate::store::Gatekeeper;
use crate::warnings::Warnings;

/// The most bytes of one question.
const CHECK_BYTES_MAX: usize = 64 << 10;

/// The most bytes of a batch, and of what is asked as descriptors, where clients choose most of them.
const BATCH_BYTES_MAX: usize = 1 << 20;

const OPENAPI: &str = include_str!("openapi.json");

const PATHS: &str = "There is no such path. There are: POST /v1/check, POST /v1/check/batch, \
    POST /v1/reserve, POST /v1/commit, POST /v1/refund, /v1/forward-auth, /v1/forward-auth/nginx, \
    POST /json, GET /openapi.json.";

/// Answers on the HTTP listener.
pub(crate) struct DataPlane {
    pub(crate) gatekeeper: Arc<Gatekeeper>,
    /// Who may ask; `None`: whoever reaches the listener.
    pub(crate) tokens: Option<Arc<Tokens>>,
    pub(crate) warnings: Warnings,
    pub(crate) timing: Arc<Timing>,
    /// Whether pages in browsers could reach the listener under names of their own: there is neither a token,
    /// nor a certificate, which would be for another name.
    pub(crate) can_be_rebound: bool,
    /// What becomes of questions that no rule can be asked about.
    pub(crate) missing_facts: OnMissingFacts,
}

/// What a path means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Check,
    Batch,
    Reserve,
    Commit,
    Refund,
    ForwardAuth(Style),
    Json,
    OpenApi,
}

impl Route {
    fn of(path: &str) -> Option<Route> {
        Some(match path {
            "/v1/check" => Route::Check,
            "/v1/check/batch" => Route::Batch,
            "/v1/reserve" => Route::Reserve,
            "/v1/commit" => Route::Commit,
            "/v1/refund" => Route::Refund,
            "/v1/forward-auth" => Route::ForwardAuth(Style::PassedOn),
            "/v1/forward-auth/nginx" => Route::ForwardAuth(Style::Nginx),
            "/json" => Route::Json,
            "/openapi.json" => Route::OpenApi,
            _ => return None,
        })
    }

    /// The methods, if not all will do.
    fn allow(self) -> Option<&'static str> {
        match self {
            Route::ForwardAuth(_) => None,
            Route::OpenApi => Some("GET, HEAD"),
            _ => Some("POST"),
        }
    }

    fn takes(self, method: &Method) -> bool {
        match self {
            Route::ForwardAuth(_) => true,
            Route::OpenApi => method == Method::GET || method == Method::HEAD,
            _ => method == Method::POST,
        }
    }

    /// The most bytes of a body; `None`: it is not read.
    fn body_bytes_max(self) -> Option<usize> {
        match self {
            Route::ForwardAuth(_) | Route::OpenApi => None,
            Route::Batch | Route::Json => Some(BATCH_BYTES_MAX),
            _ => Some(CHECK_BYTES_MAX),
        }
    }
}

const OF_A_PAGE: &str = "A page in a browser asks here, and without tokens this listener cannot tell whose: \
    give it tokens with --auth-token-file.";

const OF_A_REBOUND_NAME: &str = "Without --auth-token-file this listener answers only to addresses, to localhost and \
    to names without dots, because a page in a browser could reach it under any other name: let your \
    proxy send Tollgate's own address as `Host`, or a token.";

/// Whether a browser sends this for a page. Any page can make the browser of somebody on this machine
/// post here; without tokens that must not spend or give back anybody's units.
fn is_of_a_page(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN)
}

impl Handler for DataPlane {
    async fn answer(
        &self,
        head: &request::Parts,
        body: &mut RequestBody,
        peer: SocketAddr,
    ) -> Response<Body> {
        if self.tokens.as_ref().is_some_and(|tokens| tokens.admit(&head.headers).is_none()) {
            return reply::unauthorized();
        }
        if self.can_be_rebound && host::may_be_rebound(head) {
            self.warnings.rebound(peer.ip(), host::named_by(head), self.gatekeeper.now());
            return reply::error(StatusCode::FORBIDDEN, OF_A_REBOUND_NAME);
        }
        let Some(route) = Route::of(head.uri.path()) else {
            return reply::error(StatusCode::NOT_FOUND, PATHS);
        };
        if !route.takes(&head.method) {
            return reply::method_not_allowed(route.allow().unwrap_or_default());
        }
        if self.tokens.is_none() && route.body_bytes_max().is_some() && is_of_a_page(&head.headers)
        {
            return reply::error(StatusCode::FORBIDDEN, OF_A_PAGE);
        }
        let read = match route.body_bytes_max() {
            None => Bytes::new(),
            Some(bytes_max) => match body.read(bytes_max).await {
                Ok(read) => read,
                Err(problem) => return reply::no_body(&problem, bytes_max),
            },
        };
        self.act(route, head, (&read, body), peer).await
    }

    fn panicked(&self) -> Response<Body> {
        reply::panicked()
    }
}

impl DataPlane {
    /// Decides under the rules that the facts were read by.
    pub(super) async fn decide(&self, rules: Version, ask: &Ask<'_>, now: Micros) -> Answer {
        self.timing.of(self.gatekeeper.decide_by(rules, ask, self.gatekeeper.as_read(now))).await
    }

    /// Decides what a body of JSON asks.
    pub(super) async fn decide_asked(
        &self,
        rules: Version,
        asked: &Asked<'_>,
        now: Micros,
    ) -> Answer {
        let (stated, identifying) = (stated(asked), identifying(&rules, asked));
        let identity = identity(identifying.as_deref(), &stated, now);
        let ask = self.ask(identity.complete(stated), asked.cost);
        self.decide(rules, &ask, now).await
    }

    /// A question that a program asks, which can be told what is wrong with it.
    pub(super) fn ask<'a>(&self, facts: Facts<'a>, cost: Option<u64>) -> Ask<'a> {
        let needs_facts = self.missing_facts == OnMissingFacts::Refuse;
        Ask { facts, cost, needs_facts, ..Ask::default() }
    }

    async fn act(
        &self,
        route: Route,
        head: &request::Parts,
        (body, request): (&[u8], &mut RequestBody),
        peer: SocketAddr,
    ) -> Response<Body> {
        let gatekeeper = &self.gatekeeper;
        match route {
            Route::Check => check::answer(self, body).await,
            Route::Batch => batch::answer(self, body, request).await,
            Route::Reserve => reserve::reserve(self, body).await,
            Route::Commit => reserve::commit(gatekeeper, body).await,
            Route::Refund => reserve::refund(self, body).await,
            Route::ForwardAuth(style) => forward_auth::answer(self, head, peer.ip(), style).await,
            Route::Json => envoy::json::answer(self, body).await,
            Route::OpenApi => reply::json(StatusCode::OK, OPENAPI),
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
            let route = Route::of(path).expect(path);
            for method in methods.as_object().unwrap().keys() {
                let method: Method = method.to_uppercase().parse().unwrap();
                assert!(route.takes(&method), "{method} {path}");
            }
            assert!(PATHS.contains(path.as_str()), "{path}");
        }
    }
}
