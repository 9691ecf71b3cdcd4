//! The control plane: how operators look at a running server. It has a door of its own, on loopback
//! unless told otherwise, so that the data door can be exposed without it.

mod health;
mod metrics;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use http::header::HOST;
use http::{HeaderMap, Method, Response, StatusCode, request};

use crate::doors::connection::{Body, Handler, RequestBody};
use crate::doors::tokens::Tokens;
use crate::metrics::Metrics;
use crate::reply;

const PATHS: &str = "There is no such path. There are: GET /livez, GET /readyz, GET /metrics.";

/// Answers on the admin door.
pub(crate) struct ControlPlane {
    /// Who may look at more than health; `None`: whoever is on this machine.
    pub(crate) tokens: Option<Tokens>,
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Handler for ControlPlane {
    async fn answer(
        &self,
        head: &request::Parts,
        _: &mut RequestBody,
        _: SocketAddr,
    ) -> Response<Body> {
        reply::no_store(self.act(head))
    }

    fn panicked(&self) -> Response<Body> {
        reply::panicked()
    }
}

impl ControlPlane {
    fn act(&self, head: &request::Parts) -> Response<Body> {
        // A page on the internet can make a browser ask this machine, under a name of its own.
        if self.tokens.is_none() && !names_loopback(head) {
            return reply::error(
                StatusCode::FORBIDDEN,
                "Without --admin-token-file this door answers to localhost and loopback addresses \
                 only: use one of them as the host.",
            );
        }
        let path = head.uri.path();
        let health = match path {
            "/livez" => Some(health::live()),
            "/readyz" => Some(health::ready(&self.stopping)),
            "/metrics" => Some(metrics::page(&self.metrics, &head.headers)),
            _ => None,
        };
        if let Some(health) = health {
            let method = &head.method;
            let read = method == Method::GET || method == Method::HEAD;
            return if read { health } else { reply::method_not_allowed("GET, HEAD") };
        }
        if self.tokens.as_ref().is_some_and(|tokens| !tokens.admit(&head.headers)) {
            return reply::unauthorized();
        }
        reply::error(StatusCode::NOT_FOUND, PATHS)
    }
}

/// Whether the request was addressed to this machine by a name that only this machine has.
fn names_loopback(head: &request::Parts) -> bool {
    let host = match head.uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => only_host(&head.headers),
    };
    host.is_some_and(is_loopback)
}

fn only_host(headers: &HeaderMap) -> Option<&str> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next()?.to_str().ok()?;
    hosts.next().is_none().then_some(host)
}

fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let by_address = || name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    name.eq_ignore_ascii_case("localhost") || by_address()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_loopback() {
        let rows = [
            ("localhost", true),
            ("LOCALHOST:9090", true),
            ("127.0.0.1:9090", true),
            ("127.9.9.9", true),
            ("[::1]:9090", true),
            ("[::ffff:127.0.0.1]", true),
            ("localhost.example.com", false),
            ("127.0.0.1.example.com", false),
            ("192.0.2.1", false),
            ("0.0.0.0", false),
            ("user@127.0.0.1", false),
            ("", false),
        ];
        for (host, loopback) in rows {
            assert_eq!(is_loopback(host), loopback, "{host}");
        }
    }
}
