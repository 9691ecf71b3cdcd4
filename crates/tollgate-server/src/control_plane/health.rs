//! `/livez` and `/readyz`: whether the process works, and whether to send it requests.

use std::sync::atomic::{AtomicBool, Ordering};

use http::{Response, StatusCode};

use crate::doors::connection::Body;
use crate::reply;

/// Whoever gets this answer knows: the process works.
pub(super) fn live() -> Response<Body> {
    reply::json(StatusCode::OK, r#"{"live":true}"#)
}

/// Ready from the moment all doors are open, until the server is asked to stop.
pub(super) fn ready(stopping: &AtomicBool) -> Response<Body> {
    match stopping.load(Ordering::Relaxed) {
        false => reply::json(StatusCode::OK, r#"{"ready":true}"#),
        true => reply::json(
            StatusCode::SERVICE_UNAVAILABLE,
            r#"{"ready":false,"message":"The server is stopping."}"#,
        ),
    }
}
