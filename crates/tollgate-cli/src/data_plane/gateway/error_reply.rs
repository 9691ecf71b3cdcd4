//! Responses that the gateway makes itself: problem documents, told apart by their `code`.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::upstream::ForwardError;

/// The response to a request that no upstream answered.
pub(super) fn upstream_failed(error: ForwardError) -> Response<Bytes> {
    problem(error.status(), error.code(), error.message())
}

/// The response to a request without a route.
pub(super) fn no_route() -> Response<Bytes> {
    problem(StatusCode::NOT_FOUND, "no_route", "No route matches this request.")
}

/// The response to a request that is not clear enough to be forwarded.
pub(super) fn bad_request(message: &str) -> Response<Bytes> {
    problem(StatusCode::BAD_REQUEST, "bad_request", message)
}

fn problem(status: StatusCode, code: &str, message: &str) -> Response<Bytes> {
    let title = status.canonical_reason().unwrap_or("Error");
    let document = serde_json::json!({
        "title": title, "status": status.as_u16(), "code": code, "detail": message,
        "error": title, "message": message,
    });
    let mut response = Response::new(Bytes::from(document.to_string()));
    *response.status_mut() = status;
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        fields.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
