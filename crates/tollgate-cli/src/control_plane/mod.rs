//! The control plane: how operators look at a running server, and change it. It has a listener of its own,
//! on loopback unless told otherwise, so that the data listener can be exposed without it.

mod guard;
mod health;
mod keys;
mod metrics;
mod rules;
mod status;
mod top;
mod unique_json;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::store::Gatekeeper;
use bytes::Bytes;
use http::{Method, Response, StatusCode, request};
use tollgate_rules::source::MAX_BYTES as RULES_BYTES_MAX;

use crate::key_names::KeyNames;
use crate::listeners::connection::{Body, Handler};
use crate::listeners::request_body::RequestBody;
use crate::listeners::tokens::Tokens;
use crate::live::LiveRules;
use crate::metrics::Metrics;
use crate::others::Others;
use crate::reply;
use crate::telemetry::{Field, Logs};
use crate::warnings::Warnings;
use guard::By;
use keys::Act;

/// The most bytes of a change to a key.
const CHANGE_BYTES_MAX: usize = 64 << 10;

const PATHS: &str = "There is no such path. There are: /livez, /readyz, /metrics, /api/status, \
    /api/rules, /api/reload, /api/keys/RULE/KEY, /api/top.";

/// Answers on the admin listener.
pub(crate) struct ControlPlane {
    /// Who may use more than health and metrics; `None`: whoever is on this machine.
    pub(crate) tokens: Option<Arc<Tokens>>,
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) gatekeeper: Arc<Gatekeeper>,
    pub(crate) live: LiveRules,
    pub(crate) others: Others,
    pub(crate) names: Arc<KeyNames>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) logs: Logs,
    pub(crate) warnings: Warnings,
}

impl Handler for ControlPlane {
    async fn answer(
        &self,
        head: &request::Parts,
        body: &mut RequestBody,
        peer: SocketAddr,
    ) -> Response<Body> {
        reply::no_store(self.act(head, body, peer).await)
    }

    fn panicked(&self) -> Response<Body> {
        reply::panicked()
    }
}

impl ControlPlane {
    async fn act(
        &self,
        head: &request::Parts,
        body: &mut RequestBody,
        peer: SocketAddr,
    ) -> Response<Body> {
        match self.admit(head, peer) {
            Ok(Admitted::ToAll(open)) => *open,
            Ok(Admitted::By(route, by)) => self.answer_to((route, by), head, body).await,
            Err(refused) => {
                self.warnings.admin_refused(peer, refused.status().as_u16(), self.gatekeeper.now());
                *refused
            }
        }
    }

    fn admit<'a>(
        &self,
        head: &'a request::Parts,
        peer: SocketAddr,
    ) -> Result<Admitted<'a>, Box<Response<Body>>> {
        let tokens = self.tokens.as_deref();
        guard::check_said_once(head)?;
        guard::check_host(tokens, head)?;
        if let Some(open) = self.open_to_all(head) {
            return Ok(Admitted::ToAll(Box::new(open)));
        }
        let by = guard::admit(tokens, head, peer)?;
        // Whoever is at the wrong listener is told so, and not how to knock.
        let Some(route) = Route::of(head.uri.path()) else {
            let missing = reply::error(StatusCode::NOT_FOUND, PATHS);
            return Ok(Admitted::ToAll(Box::new(missing)));
        };
        guard::check_mark(tokens, head)?;
        Ok(Admitted::By(route, by))
    }

    /// What needs no token: whoever watches a server should not be able to change it.
    fn open_to_all(&self, head: &request::Parts) -> Option<Response<Body>> {
        let answer: &dyn Fn() -> Response<Body> = match head.uri.path() {
            "/livez" => &health::live,
            "/readyz" => &|| health::ready(&self.stopping, &self.gatekeeper),
            "/metrics" => &|| metrics::page(&self.metrics, &head.headers),
            _ => return None,
        };
        let reads = guard::only_reads(head);
        Some(if reads { answer() } else { reply::method_not_allowed("GET, HEAD") })
    }

    async fn answer_to(
        &self,
        (route, by): (Route<'_>, By),
        head: &request::Parts,
        body: &mut RequestBody,
    ) -> Response<Body> {
        let reads = guard::only_reads(head);
        match (route, &head.method) {
            (Route::Status, _) if reads => self.status(),
            (Route::Top, _) if reads => self.top(head.uri.query()),
            (Route::Status | Route::Top, _) => reply::method_not_allowed("GET, HEAD"),
            (Route::Rules, _) if reads => self.rules(),
            (Route::Rules, &Method::PUT) => match read(body, RULES_BYTES_MAX as usize).await {
                Ok(text) => self.put_rules(text, by).await,
                Err(refused) => refused,
            },
            (Route::Rules, _) => reply::method_not_allowed("GET, HEAD, PUT"),
            (Route::Reload, &Method::POST) => self.reload(by).await,
            (Route::Reload, _) => reply::method_not_allowed("POST"),
            (Route::Key(key), _) => self.key_by_method(key, head, body, by).await,
        }
    }

    async fn key_by_method(
        &self,
        key: &str,
        head: &request::Parts,
        body: &mut RequestBody,
        by: By,
    ) -> Response<Body> {
        match head.method {
            Method::GET | Method::HEAD => self.key(key, Act::Show, by).await,
            Method::DELETE => self.key(key, Act::Reset, by).await,
            Method::POST => match read(body, CHANGE_BYTES_MAX).await {
                Ok(change) => self.key(key, Act::Change(&change), by).await,
                Err(refused) => refused,
            },
            _ => reply::method_not_allowed("GET, HEAD, POST, DELETE"),
        }
    }

    /// A line for the audit: what was done, and by whom.
    fn tell(&self, event: &str, by: By, fields: &[Field<'_>]) {
        let token = by.token.map_or_else(|| "none".to_string(), |number| number.to_string());
        let who: [Field<'_>; 2] = [("by", &by.peer), ("token", &token)];
        self.logs.info(event, &[fields, &who].concat());
    }
}

/// What became of a request at the listener.
enum Admitted<'a> {
    /// It gets what everybody gets.
    ToAll(Box<Response<Body>>),
    /// It is somebody's who may.
    By(Route<'a>, By),
}

/// What a path means.
enum Route<'a> {
    Status,
    Top,
    Rules,
    Reload,
    /// With a rule and a key.
    Key(&'a str),
}

impl Route<'_> {
    fn of(path: &str) -> Option<Route<'_>> {
        Some(match path {
            "/api/status" => Route::Status,
            "/api/top" => Route::Top,
            "/api/rules" => Route::Rules,
            "/api/reload" => Route::Reload,
            _ => Route::Key(path.strip_prefix("/api/keys/")?),
        })
    }
}

async fn read(body: &mut RequestBody, bytes_max: usize) -> Result<Bytes, Response<Body>> {
    body.read(bytes_max).await.map_err(|problem| reply::no_body(&problem, bytes_max))
}
