//! Envoy's rate limit service: the door grpc.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ::http::{Response, StatusCode, request};

use crate::doors::connection::{Body, Handler, RequestBody};
use crate::doors::tokens::Tokens;
use crate::metrics::Timing;
use crate::reply;
use crate::store::Gatekeeper;

/// Answers on the door grpc.
pub(crate) struct EnvoyDoor {
    pub(crate) gatekeeper: Arc<Gatekeeper>,
    /// Who may ask; `None`: whoever reaches the door.
    pub(crate) tokens: Option<Arc<Tokens>>,
    pub(crate) timing: Arc<Timing>,
    /// Set while the server stops: health says so.
    pub(crate) stopping: Arc<AtomicBool>,
}

impl Handler for EnvoyDoor {
    async fn answer(
        &self,
        _: &request::Parts,
        _: &mut RequestBody,
        _: SocketAddr,
    ) -> Response<Body> {
        reply::error(StatusCode::NOT_IMPLEMENTED, "Not yet.")
    }

    fn panicked(&self) -> Response<Body> {
        reply::panicked()
    }
}
