//! `/livez` and `/readyz`: is the server alive, and is it ready for requests?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Response, StatusCode};
use serde_json::json;

use crate::listeners::response_body::ResponseBody;
use crate::reply;
use crate::store::open_stores::OpenStores;
use crate::store::{ServerGatekeeper, ServerStore};
use crate::upstream::registry::UpstreamState;

/// Most upstreams that `/readyz` names.
const UPSTREAMS_NAMED_MAX: usize = 10;

/// The response of `/livez`: any answer shows that the process is alive.
pub(super) fn live() -> Response<ResponseBody> {
    reply::json(StatusCode::OK, r#"{"live":true}"#)
}

/// The response of `/readyz`: ready from the moment all listeners are open until shutdown begins, but not
/// while rules refuse because a store is unavailable. A server that can do without its store is ready and
/// reports that it is degraded. So does a gateway that has lost all servers of an upstream: other instances have lost
/// them as well, and taking all of them out would turn the outage of one upstream into one of all.
pub(super) fn ready(
    stopping: &AtomicBool,
    gatekeeper: &ServerGatekeeper,
    store: &ServerStore,
    upstreams: &[Arc<UpstreamState>],
) -> Response<ResponseBody> {
    if let Some(message) = not_ready_reason(stopping, gatekeeper, store) {
        let document = json!({ "ready": false, "message": message });
        return reply::json(StatusCode::SERVICE_UNAVAILABLE, document.to_string());
    }
    let without_server: Vec<&str> = upstreams
        .iter()
        .filter(|upstream| upstream.is_without_server())
        .map(|upstream| &*upstream.settings.name)
        .take(UPSTREAMS_NAMED_MAX)
        .collect();
    let store_down = store.shared().and_then(OpenStores::first_down);
    let mut messages = Vec::new();
    messages.extend(store_down.map(|name| {
        format!("The store {name} is unavailable: rules follow their `on_store_failure`.")
    }));
    if !without_server.is_empty() {
        let names = without_server.join(", ");
        messages.push(format!("No server is available of the upstreams: {names}."));
    }
    if messages.is_empty() {
        return reply::json(StatusCode::OK, r#"{"ready":true}"#);
    }
    let mut document = json!({ "ready": true, "degraded": true, "message": messages.join(" ") });
    if !without_server.is_empty() {
        document["upstreams_without_server"] = json!(without_server);
    }
    reply::json(StatusCode::OK, document.to_string())
}

/// The reason for not being ready; `None` if the server is ready.
pub(super) fn not_ready_reason(
    stopping: &AtomicBool,
    gatekeeper: &ServerGatekeeper,
    store: &ServerStore,
) -> Option<String> {
    if stopping.load(Ordering::Relaxed) {
        return Some("The server is stopping.".into());
    }
    let name = store.shared()?.first_closed(&gatekeeper.rules())?;
    Some(format!("The store {name} is unavailable, and a rule says `on_store_failure: closed`."))
}
