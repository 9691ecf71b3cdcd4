//! `/livez` and `/readyz`: whether the process works, and whether to send it requests.

use std::sync::atomic::{AtomicBool, Ordering};

use http::{Response, StatusCode};
use serde_json::json;

use crate::doors::connection::Body;
use crate::reply;
use crate::store::Gatekeeper;

/// Whoever gets this answer knows: the process works.
pub(super) fn live() -> Response<Body> {
    reply::json(StatusCode::OK, r#"{"live":true}"#)
}

/// Ready from the moment all doors are open, until the server is asked to stop; not while it would
/// refuse callers for want of a store.
pub(super) fn ready(stopping: &AtomicBool, gatekeeper: &Gatekeeper) -> Response<Body> {
    let message = match why_not(stopping, gatekeeper) {
        None => return reply::json(StatusCode::OK, r#"{"ready":true}"#),
        Some(message) => message,
    };
    let document = json!({ "ready": false, "message": message });
    reply::json(StatusCode::SERVICE_UNAVAILABLE, document.to_string())
}

/// Why no requests should be sent here; `None`: they should.
pub(super) fn why_not(stopping: &AtomicBool, gatekeeper: &Gatekeeper) -> Option<String> {
    if stopping.load(Ordering::Relaxed) {
        return Some("The server is stopping.".into());
    }
    let store = gatekeeper.limiter().store().shared()?;
    let name = store.closed(&gatekeeper.rules())?;
    Some(format!(
        "The store {name} does not answer, and some rule says `on_store_failure: closed`."
    ))
}
