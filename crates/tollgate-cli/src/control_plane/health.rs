//! `/livez` and `/readyz`: whether the process works, and whether to send it requests.

use std::sync::atomic::{AtomicBool, Ordering};

use http::{Response, StatusCode};
use serde_json::json;

use crate::listeners::connection::ResponseBody;
use crate::reply;
use crate::store::open_stores::OpenStores;
use crate::store::{ServerGatekeeper, ServerStore};

/// Whoever gets this answer knows: the process works.
pub(super) fn live() -> Response<ResponseBody> {
    reply::json(StatusCode::OK, r#"{"live":true}"#)
}

/// Ready from the moment all listeners are open, until the server is asked to stop; not while it would
/// refuse callers for want of a store. A server that does without a store serves, and says so.
pub(super) fn ready(
    stopping: &AtomicBool,
    gatekeeper: &ServerGatekeeper,
    store: &ServerStore,
) -> Response<ResponseBody> {
    if let Some(message) = not_ready_reason(stopping, gatekeeper, store) {
        let document = json!({ "ready": false, "message": message });
        return reply::json(StatusCode::SERVICE_UNAVAILABLE, document.to_string());
    }
    let Some(name) = store.shared().and_then(OpenStores::first_down) else {
        return reply::json(StatusCode::OK, r#"{"ready":true}"#);
    };
    let message =
        format!("The store {name} does not answer: rules go by their `on_store_failure`.");
    let document = json!({ "ready": true, "degraded": true, "message": message });
    reply::json(StatusCode::OK, document.to_string())
}

/// Why no requests should be sent here; `None`: they should.
pub(super) fn not_ready_reason(
    stopping: &AtomicBool,
    gatekeeper: &ServerGatekeeper,
    store: &ServerStore,
) -> Option<String> {
    if stopping.load(Ordering::Relaxed) {
        return Some("The server is stopping.".into());
    }
    let name = store.shared()?.first_closed(&gatekeeper.rules())?;
    Some(format!(
        "The store {name} does not answer, and some rule says `on_store_failure: closed`."
    ))
}
