//! Responses that the gateway makes itself: problem documents, told apart by their `code`.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use tollgate_tower::BodyReadFailure;

use super::overload::OverloadRefusal;
use super::request_check::RequestProblem;
use crate::upstream::ForwardError;

/// The response to a request that no upstream answered.
pub(super) fn upstream_failed(error: ForwardError) -> Response<Bytes> {
    problem(error.status(), error.code(), error.message())
}

/// The response to a request without a route.
pub(super) fn no_route() -> Response<Bytes> {
    problem(StatusCode::NOT_FOUND, "no_route", "No route matches this request.")
}

/// The response to a request that is not forwarded.
pub(super) fn not_forwarded(reason: RequestProblem) -> Response<Bytes> {
    let mut response = problem(reason.status, reason.code, reason.message);
    if reason.status == StatusCode::METHOD_NOT_ALLOWED {
        let methods = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
        response.headers_mut().insert(ALLOW, methods);
    }
    response
}

/// The response to a request that the gateway has no room for.
pub(super) fn overloaded(refusal: OverloadRefusal) -> Response<Bytes> {
    let (code, message) = match refusal {
        OverloadRefusal::QueueFull => ("queue_full", "Too many requests are waiting."),
        OverloadRefusal::WaitedTooLong => ("queue_timeout", "The request has waited too long."),
    };
    problem(StatusCode::SERVICE_UNAVAILABLE, code, message)
}

/// The response to a request that still waits for its turn when the server has to end.
pub(super) fn stopping() -> Response<Bytes> {
    problem(StatusCode::SERVICE_UNAVAILABLE, "stopping", "The gateway stops: try again.")
}

/// The response to a request whose body was needed for the decision and was not read.
pub(super) fn unread_body(reason: BodyReadFailure) -> Response<Bytes> {
    let code = match reason {
        BodyReadFailure::Missing => "request_body",
        BodyReadFailure::NoMemory => "body_memory",
        BodyReadFailure::TooLong => "body_too_long",
        BodyReadFailure::NoJson => "body_unreadable",
    };
    problem(reason.status(), code, reason.message())
}

/// The response after a panic, which is a bug.
pub(super) fn panicked() -> Response<Bytes> {
    let message = "This is a bug of the gateway; its log says more.";
    problem(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
}

/// The code of a response that the gateway made itself, in its extensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyCode(pub(super) &'static str);

fn problem(status: StatusCode, code: &'static str, message: &str) -> Response<Bytes> {
    let title = status.canonical_reason().unwrap_or("Error");
    let document = serde_json::json!({
        "title": title, "status": status.as_u16(), "code": code, "detail": message,
        "error": title, "message": message,
    });
    let mut response = Response::new(Bytes::from(document.to_string()));
    *response.status_mut() = status;
    response.extensions_mut().insert(ReplyCode(code));
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        fields.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
