//! gRPC over HTTP/2: checks that a request is a gRPC call, reads its message and builds the reply.

use std::borrow::Cow;
use std::fmt::Write;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode, Version, request};

use super::code::{GrpcCode, GrpcCodeCounters};
use super::frame::{self, FrameError, MESSAGE_BYTES_MAX, PREFIX_BYTES};
use crate::listeners::request_body::BodyError;
use crate::listeners::response_body::ResponseBody;
use crate::reply;

/// The framed reply message, or an error.
pub(super) type GrpcResult = Result<Bytes, GrpcError>;

/// A failed call: its code and a message for people.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GrpcError {
    pub(super) code: GrpcCode,
    pub(super) message: Cow<'static, str>,
}

impl GrpcError {
    pub(super) const fn new(code: GrpcCode, message: &'static str) -> GrpcError {
        GrpcError { code, message: Cow::Borrowed(message) }
    }
}

pub(super) const DEADLINE_EXCEEDED: GrpcError = GrpcError::new(
    GrpcCode::DeadlineExceeded,
    "The deadline of the call has passed: raise the caller's timeout, or lower --store-timeout.",
);
pub(super) const INVALID_TIMEOUT: GrpcError = GrpcError::new(
    GrpcCode::InvalidArgument,
    "grpc-timeout is at most eight digits and one of H, M, S, m, u, n: write 20m for 20 ms.",
);
pub(super) const INTERNAL_ERROR: GrpcError =
    GrpcError::new(GrpcCode::Internal, "The server has a bug; its log says where.");
pub(super) const UNREADABLE_MESSAGE: GrpcError =
    GrpcError::new(GrpcCode::Internal, "The message is not a valid request of this method.");

const HTTP2_REQUIRED: &str = "This listener speaks gRPC, which needs HTTP/2. Without gRPC, use the http listener: POST \
    /json takes the same request as JSON.";
const NOT_GRPC: &str = "This listener speaks gRPC: send Content-Type: application/grpc. Without gRPC, use \
    the http listener: POST /json takes the same request as JSON.";

/// The response to a request that is not a gRPC call; `None` if it is one.
pub(super) fn reject_non_grpc(head: &request::Parts) -> Option<Response<ResponseBody>> {
    if head.version != Version::HTTP_2 {
        return Some(reply::error(StatusCode::HTTP_VERSION_NOT_SUPPORTED, HTTP2_REQUIRED));
    }
    if head.method != Method::POST {
        return Some(reply::method_not_allowed("POST"));
    }
    let kind = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    if !kind.is_some_and(is_grpc) {
        return Some(reply::error(StatusCode::UNSUPPORTED_MEDIA_TYPE, NOT_GRPC));
    }
    None
}

/// Returns true for `application/grpc` and `application/grpc+proto`, with or without parameters.
fn is_grpc(kind: &[u8]) -> bool {
    let end = kind.iter().position(|byte| *byte == b';').unwrap_or(kind.len());
    let kind = kind[..end].trim_ascii();
    kind.eq_ignore_ascii_case(b"application/grpc")
        || kind.eq_ignore_ascii_case(b"application/grpc+proto")
}

/// Maximum bytes of the body of a call.
pub(super) const BODY_BYTES_MAX: usize = PREFIX_BYTES + MESSAGE_BYTES_MAX;

/// The error of a call whose body did not arrive.
pub(super) fn body_error(problem: &BodyError) -> GrpcError {
    match problem {
        BodyError::TooLarge => MESSAGE_TOO_LONG,
        BodyError::TooSlow => {
            GrpcError::new(GrpcCode::DeadlineExceeded, "The message took too long to arrive.")
        }
        BodyError::Broken => GrpcError::new(GrpcCode::Cancelled, "The call was aborted."),
        BodyError::NoRoom => GrpcError::new(
            GrpcCode::ResourceExhausted,
            "Too many long messages are being read: call again in a second.",
        ),
        BodyError::DeadlinePassed => DEADLINE_EXCEEDED,
    }
}

/// The message in the body of a call.
pub(super) fn message(body: &[u8]) -> Result<&[u8], GrpcError> {
    frame::decode(body).map_err(|error| match error {
        FrameError::Truncated => GrpcError::new(GrpcCode::Internal, "The message is incomplete."),
        FrameError::TrailingBytes => {
            GrpcError::new(GrpcCode::Internal, "There are bytes after the message: send one message.")
        }
        FrameError::InvalidFlag => GrpcError::new(GrpcCode::Internal, "The body is not a gRPC frame."),
        FrameError::Compressed => GrpcError::new(
            GrpcCode::Unimplemented,
            "Compressed messages are not supported: send them uncompressed (grpc-encoding: identity).",
        ),
        FrameError::TooLong => MESSAGE_TOO_LONG,
    })
}

pub(super) const MESSAGE_TOO_LONG: GrpcError =
    GrpcError::new(GrpcCode::ResourceExhausted, "A message has at most 1048576 bytes.");

const GRPC_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// The reply. A failed call has its code in the header fields, others in the trailers.
pub(super) fn reply(outcome: GrpcResult, codes: &GrpcCodeCounters) -> Response<ResponseBody> {
    codes.count(outcome.as_ref().map_or_else(|failed| failed.code, |_| GrpcCode::Ok));
    match outcome {
        Ok(message) => {
            let mut trailers = HeaderMap::with_capacity(1);
            trailers.insert(GRPC_STATUS, HeaderValue::from_static(GrpcCode::Ok.digits()));
            let mut response = Response::new(ResponseBody::with_trailers(message, trailers));
            response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
            response
        }
        Err(GrpcError { code, message }) => {
            let mut response = Response::new(ResponseBody::default());
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
            headers.insert(GRPC_STATUS, HeaderValue::from_static(code.digits()));
            let text = HeaderValue::try_from(percent_encoded(&message));
            headers.insert(GRPC_MESSAGE, text.expect("unprintable bytes are escaped"));
            if code == GrpcCode::Unimplemented {
                // Tells a client that compresses which encoding to use.
                headers.insert(GRPC_ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            }
            response
        }
    }
}

/// Percent-encodes a message as gRPC requires: printable ASCII stays, other bytes and `%` become `%XX`.
fn percent_encoded(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => write!(text, "%{byte:02X}").expect("a string takes every text"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_grpc_of_protocol_buffers_is_spoken() {
        let rows: [(&str, bool); 9] = [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/GRPC", true),
            ("application/grpc; charset=utf-8", true),
            ("application/grpc+json", false),
            ("application/grpc-web", false),
            ("application/json", false),
            ("", false),
            (";", false),
        ];
        for (kind, want) in rows {
            assert_eq!(is_grpc(kind.as_bytes()), want, "{kind}");
        }
    }

    #[test]
    fn messages_of_failures_are_printable() {
        assert_eq!(percent_encoded("50% of \u{e9}\n"), "50%25 of %C3%A9%0A");
        let codes = GrpcCodeCounters::default();
        let failed = GrpcError { code: GrpcCode::Internal, message: "\r\n\u{1f600}".into() };
        let response = reply(Err(failed), &codes);
        assert_eq!(response.headers()["grpc-message"], "%0D%0A%F0%9F%98%80");
        assert_eq!(response.headers()["grpc-status"], "13");
        assert_eq!(codes.sums().filter(|(_, count)| *count > 0).count(), 1);
    }
}
