//! The control plane: the API with which operators inspect and change a running server. It has its own
//! listener, on loopback by default, so that the data listeners can be exposed without it.

mod assets;
mod candidate;
mod events;
mod explain;
mod guard;
mod health;
mod history;
mod keys;
mod metrics;
mod query;
mod refusals;
mod reloads;
mod rule_list;
mod rules;
mod status;
mod top;
mod unique_json;
mod upstreams;

pub(crate) use keys::override_json;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::store::{ServerGatekeeper, ServerStore};
use http::header::{CACHE_CONTROL, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Response, StatusCode, request};
use tollgate_rules::source::MAX_BYTES as RULES_BYTES_MAX;

use crate::key_names::KeyNames;
use crate::listeners::handler::{Handler, ReceivedRequest, RequestAdmission, RoutedRequest};
use crate::listeners::request_body::BodyError;
use crate::listeners::response_body::ResponseBody;
use crate::listeners::tokens::Tokens;
use crate::live::LiveRules;
use crate::metrics::Metrics;
use crate::peer_instances::PeerInstances;
use crate::reply;
use crate::settings::OnMissingFacts;
use crate::telemetry::{LogField, Logs};
use crate::warnings::Warnings;
pub(crate) use candidate::CandidateReplays;
pub(crate) use events::LiveTraffic;
use guard::AdminCaller;
use keys::KeyRequest;
use query::QueryError;

/// Largest body of a change to a key, in bytes.
const CHANGE_BYTES_MAX: usize = 64 << 10;

/// One path a line, so that two changes rarely meet.
const UNKNOWN_PATH: &str = "There is no such path. There are: / (the dashboard), /livez, /readyz, /metrics, \
    /api/candidate, \
    /api/events, \
    /api/explain, \
    /api/history, \
    /api/keys/RULE/KEY, \
    /api/refusals, \
    /api/reload, \
    /api/reloads, \
    /api/rules, \
    /api/status, \
    /api/top, \
    /api/upstreams.";

/// Handler of the admin listener.
pub(crate) struct ControlPlane {
    /// Tokens for everything but health and metrics; `None` if loopback alone protects the listener.
    pub(crate) tokens: Option<Arc<Tokens>>,
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) gatekeeper: Arc<ServerGatekeeper>,
    pub(crate) store: Arc<ServerStore>,
    pub(crate) live: LiveRules,
    pub(crate) peers: PeerInstances,
    pub(crate) names: Arc<KeyNames>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traffic: LiveTraffic,
    pub(crate) candidates: CandidateReplays,
    pub(crate) logs: Logs,
    pub(crate) warnings: Warnings,
    /// Treatment of checks that lack the facts every rule needs.
    pub(crate) missing_facts: OnMissingFacts,
}

impl Handler for ControlPlane {
    type Endpoint = AdminCaller;

    fn admit(&self, head: &request::Parts, peer: SocketAddr) -> RequestAdmission<AdminCaller> {
        match self.check(head, peer) {
            Ok(AdminAdmission::Public(open)) => {
                RequestAdmission::Answered(Box::new(hardened(*open)))
            }
            Ok(AdminAdmission::Authorized(route, by)) => {
                RequestAdmission::Admitted(RoutedRequest {
                    endpoint: by,
                    body_bytes_max: route.body_bytes_max(&head.method),
                    deadline: None,
                })
            }
            Err(refused) => {
                self.warnings.admin_refused(peer, refused.status().as_u16(), self.gatekeeper.now());
                RequestAdmission::Answered(Box::new(hardened(*refused)))
            }
        }
    }

    /// Every change may have to wait for the store or the rules, and nothing here is in a hurry.
    fn answer_at_once(
        &self,
        _: AdminCaller,
        _: &mut ReceivedRequest<'_>,
    ) -> Option<Response<ResponseBody>> {
        None
    }

    async fn answer_by(
        &self,
        by: AdminCaller,
        request: ReceivedRequest<'_>,
    ) -> Response<ResponseBody> {
        let response = match AdminRoute::of(request.head.uri.path()) {
            Some(route) => self.answer_route((route, by), &request).await,
            None => reply::error(StatusCode::NOT_FOUND, UNKNOWN_PATH),
        };
        hardened(response)
    }

    fn unreceived(
        &self,
        admitted: &RoutedRequest<AdminCaller>,
        problem: &BodyError,
    ) -> Response<ResponseBody> {
        hardened(reply::no_body(problem, admitted.body_bytes_max.unwrap_or_default()))
    }

    fn panicked(&self) -> Response<ResponseBody> {
        reply::panicked()
    }
}

impl ControlPlane {
    /// Checks the head of a request.
    fn check<'a>(
        &self,
        head: &'a request::Parts,
        peer: SocketAddr,
    ) -> Result<AdminAdmission<'a>, Box<Response<ResponseBody>>> {
        let tokens = self.tokens.as_deref();
        guard::check_single_headers(head)?;
        guard::check_host(tokens, head)?;
        if let Some(open) = self.public_response(head) {
            return Ok(AdminAdmission::Public(Box::new(open)));
        }
        let by = guard::admit(tokens, head, peer)?;
        // Before the header of a write is checked: a caller at the wrong listener gets 404, not advice about it.
        let Some(route) = AdminRoute::of(head.uri.path()) else {
            let missing = reply::error(StatusCode::NOT_FOUND, UNKNOWN_PATH);
            return Ok(AdminAdmission::Public(Box::new(missing)));
        };
        guard::check_admin_header(tokens, head)?;
        Ok(AdminAdmission::Authorized(route, by))
    }

    /// The response to a path that needs no token, for monitoring.
    fn public_response(&self, head: &request::Parts) -> Option<Response<ResponseBody>> {
        let answer: &dyn Fn() -> Response<ResponseBody> = match head.uri.path() {
            "/livez" => &health::live,
            "/readyz" => &|| {
                let upstreams = self.metrics.upstreams();
                health::ready(&self.stopping, &self.gatekeeper, &self.store, &upstreams)
            },
            "/metrics" => &|| metrics::page(&self.metrics, &head.headers),
            path => {
                let file = assets::page_file(path, &head.headers)?;
                let reads = guard::only_reads(head);
                return Some(if reads { file } else { reply::method_not_allowed("GET, HEAD") });
            }
        };
        let reads = guard::only_reads(head);
        Some(if reads { answer() } else { reply::method_not_allowed("GET, HEAD") })
    }

    async fn answer_route(
        &self,
        (route, by): (AdminRoute<'_>, AdminCaller),
        request: &ReceivedRequest<'_>,
    ) -> Response<ResponseBody> {
        let head = request.head;
        let reads = guard::only_reads(head);
        match (route, &head.method) {
            (AdminRoute::Status, _) if reads => self.status(),
            (AdminRoute::Top, _) if reads => or_refusal(self.top(head.uri.query())),
            (AdminRoute::History, _) if reads => or_refusal(self.history(head.uri.query())),
            (AdminRoute::Events, _) if reads => or_refusal(self.events(head)),
            (AdminRoute::Upstreams, _) if reads => or_refusal(self.upstreams(head.uri.query())),
            (AdminRoute::Reloads, _) if reads => or_refusal(self.reloads(head.uri.query())),
            (AdminRoute::Rules, _) if reads => or_refusal(self.rules(head.uri.query())),
            (AdminRoute::Rules, &Method::PUT) => self.put_rules(request.body.clone(), by).await,
            (AdminRoute::Rules, _) => reply::method_not_allowed("GET, HEAD, PUT"),
            (AdminRoute::Reload, &Method::POST) => self.reload(by).await,
            (AdminRoute::Reload, _) => reply::method_not_allowed("POST"),
            (AdminRoute::Candidate, &Method::POST) => self.candidate(request.body.clone()).await,
            (AdminRoute::Candidate, _) => reply::method_not_allowed("POST"),
            (AdminRoute::Explain, &Method::POST) => {
                or_refusal(self.explain_request(head.uri.query(), request.body).await)
            }
            (AdminRoute::Explain, _) if reads => or_refusal(self.explain_refusal(head.uri.query())),
            (AdminRoute::Explain, _) => reply::method_not_allowed("GET, HEAD, POST"),
            (AdminRoute::Refusals, _) if reads => or_refusal(self.refusals(head.uri.query())),
            (AdminRoute::Key(key), _) => self.key_by_method(key, request, by).await,
            // The others only show.
            _ => reply::method_not_allowed("GET, HEAD"),
        }
    }

    async fn key_by_method(
        &self,
        key: &str,
        request: &ReceivedRequest<'_>,
        by: AdminCaller,
    ) -> Response<ResponseBody> {
        match request.head.method {
            Method::GET | Method::HEAD => self.key(key, KeyRequest::Show, by).await,
            Method::DELETE => self.key(key, KeyRequest::Reset, by).await,
            Method::POST => self.key(key, KeyRequest::Change(request.body), by).await,
            _ => reply::method_not_allowed("GET, HEAD, POST, DELETE"),
        }
    }

    /// Logs an audit line: the change, and the caller.
    fn log_audit(&self, event: &str, by: AdminCaller, fields: &[LogField<'_>]) {
        let token = by.token.map_or_else(|| "none".to_string(), |number| number.to_string());
        let who: [LogField<'_>; 2] = [("by", &by.peer), ("token", &token)];
        self.logs.info(event, &[fields, &who].concat());
    }
}

/// The response to a query that may be wrong.
fn or_refusal(answer: Result<Response<ResponseBody>, QueryError>) -> Response<ResponseBody> {
    answer.unwrap_or_else(|wrong| wrong.response())
}

/// Adds the fields of every response: caches must not store it, unless it says otherwise, and browsers must not guess
/// another media type.
fn hardened(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    if !response.headers().contains_key(CACHE_CONTROL) {
        response = reply::no_store(response);
    }
    let as_declared = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, as_declared);
    response
}

/// Result of checking a request.
enum AdminAdmission<'a> {
    /// A response that needs no token.
    Public(Box<Response<ResponseBody>>),
    /// An authorized request.
    Authorized(AdminRoute<'a>, AdminCaller),
}

/// The resource of a path.
enum AdminRoute<'a> {
    Status,
    Top,
    History,
    Candidate,
    Explain,
    Events,
    Reloads,
    Refusals,
    Upstreams,
    Rules,
    Reload,
    /// One caller; holds the rule and key of the path.
    Key(&'a str),
}

impl AdminRoute<'_> {
    fn of(path: &str) -> Option<AdminRoute<'_>> {
        Some(match path {
            "/api/status" => AdminRoute::Status,
            "/api/top" => AdminRoute::Top,
            "/api/history" => AdminRoute::History,
            "/api/candidate" => AdminRoute::Candidate,
            "/api/explain" => AdminRoute::Explain,
            "/api/events" => AdminRoute::Events,
            "/api/reloads" => AdminRoute::Reloads,
            "/api/refusals" => AdminRoute::Refusals,
            "/api/upstreams" => AdminRoute::Upstreams,
            "/api/rules" => AdminRoute::Rules,
            "/api/reload" => AdminRoute::Reload,
            _ => AdminRoute::Key(path.strip_prefix("/api/keys/")?),
        })
    }

    /// Maximum bytes of the body; `None` if it is not read.
    fn body_bytes_max(&self, method: &Method) -> Option<usize> {
        match self {
            AdminRoute::Rules if method == Method::PUT => Some(RULES_BYTES_MAX as usize),
            AdminRoute::Candidate if method == Method::POST => Some(RULES_BYTES_MAX as usize),
            AdminRoute::Explain if method == Method::POST => Some(explain::EXPLAIN_BYTES_MAX),
            AdminRoute::Key(_) if method == Method::POST => Some(CHANGE_BYTES_MAX),
            _ => None,
        }
    }
}
