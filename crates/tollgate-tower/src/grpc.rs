//! Refusals in gRPC: a response of headers only, with the status in them.
//!
//! The status is 8, `RESOURCE_EXHAUSTED`; 14, `UNAVAILABLE`, while the store is unavailable, as gRPC clients map
//! HTTP 503; or 3, `INVALID_ARGUMENT`, if the request itself is wrong. `grpc-retry-pushback-ms` tells clients with
//! automatic retries how long to wait, or not to retry. `grpc-status-details-bin` has the same wait as a
//! `google.rpc.RetryInfo`, for clients that read rich errors: three small messages, encoded by hand.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Response, request};
use tollgate::{Refusal, Wait};

use crate::decision::GateDecision;

const INVALID_ARGUMENT: u32 = 3;
const RESOURCE_EXHAUSTED: u32 = 8;
const UNAVAILABLE: u32 = 14;
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";
/// The maximum of a `google.protobuf.Duration` in seconds: about 10,000 years.
const DURATION_S_MAX: u64 = 315_576_000_000;

/// The content type of a gRPC response to this request; `None` if the client does not speak gRPC.
/// grpc-web clients also accept a status in headers, with the content type of their request.
pub(crate) fn content_type(head: &request::Parts) -> Option<HeaderValue> {
    let value = head.headers.get(CONTENT_TYPE)?;
    let rest = value.as_bytes().strip_prefix(b"application/grpc")?;
    match rest.first() {
        None | Some(b'+' | b';') => Some(const { HeaderValue::from_static("application/grpc") }),
        Some(b'-') if rest.starts_with(b"-web") => Some(value.clone()),
        Some(_) => None,
    }
}

/// The response to a refused request. Its body is empty, so the server ends the stream with the headers.
pub(crate) fn refused(decision: &GateDecision, content_type: HeaderValue) -> Response<Bytes> {
    let code = match decision.refusal() {
        Some(Refusal::StoreUnavailable) => UNAVAILABLE,
        _ => RESOURCE_EXHAUSTED,
    };
    let message = decision.message().to_owned();
    // A negative number means: do not retry.
    let pushback = decision.retry_after().millis().map_or("-1".into(), |ms| ms.max(1).to_string());
    let details = base64(&status(code, &message, decision.retry_after()));
    let fields = [
        (const { HeaderName::from_static("grpc-message") }, message),
        (const { HeaderName::from_static("grpc-retry-pushback-ms") }, pushback),
        (const { HeaderName::from_static("grpc-status-details-bin") }, details),
    ];
    headers_only_response(code, content_type, fields)
}

/// The response to an invalid request.
pub(crate) fn invalid(message: &str, content_type: HeaderValue) -> Response<Bytes> {
    // The only character of a header name that has to be escaped here.
    let message = message.replace('%', "%25");
    let fields = [(const { HeaderName::from_static("grpc-message") }, message)];
    headers_only_response(INVALID_ARGUMENT, content_type, fields)
}

/// A response that ends with its headers. The text of the fields must be plain ASCII with percent signs escaped.
fn headers_only_response(
    status: u32,
    content_type: HeaderValue,
    fields: impl IntoIterator<Item = (HeaderName, String)>,
) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(const { HeaderName::from_static("grpc-status") }, status.into());
    for (name, text) in fields {
        if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(text)) {
            headers.insert(name, value);
        }
    }
    response
}

/// Encodes a `google.rpc.Status`: code = 1, message = 2, details = 3. A detail is an `Any`: type_url = 1, value = 2.
fn status(code: u32, message: &str, retry_after: Wait) -> Vec<u8> {
    let mut status = Vec::with_capacity(128);
    number(&mut status, 1, code.into());
    bytes(&mut status, 2, message.as_bytes());
    if let Some(micros) = retry_after.as_micros() {
        let mut any = Vec::with_capacity(72);
        bytes(&mut any, 1, RETRY_INFO.as_bytes());
        bytes(&mut any, 2, &retry_info(micros));
        bytes(&mut status, 3, &any);
    }
    status
}

/// Encodes a `google.rpc.RetryInfo`: retry_delay = 1, a `Duration`: seconds = 1, nanos = 2.
fn retry_info(micros: u64) -> Vec<u8> {
    let mut delay = Vec::with_capacity(16);
    number(&mut delay, 1, (micros / 1_000_000).min(DURATION_S_MAX));
    number(&mut delay, 2, micros % 1_000_000 * 1_000);
    let mut info = Vec::with_capacity(18);
    bytes(&mut info, 1, &delay);
    info
}

/// Appends a field with a number; 0 is the default and is left out.
fn number(out: &mut Vec<u8>, field: u8, number: u64) {
    if number > 0 {
        out.push(field << 3);
        varint(out, number);
    }
}

/// Appends a field with text or another message.
fn bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Encodes without padding, as gRPC wants binary headers.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..=group.len() {
            let index = bits >> (18 - 6 * digit) & 0x3f;
            text.push(char::from(DIGITS[index as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_these_digits() {
        let rows = [
            ("", ""),
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg"),
            ("fooba", "Zm9vYmE"),
            ("foobar", "Zm9vYmFy"),
        ];
        for (text, want) in rows {
            assert_eq!(base64(text.as_bytes()), want);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xbf]), "+/+/");
    }

    #[test]
    fn a_status_is_these_bytes() {
        // 1.5 s: Duration { seconds: 1, nanos: 500_000_000 }
        let info = [0x0a, 8, 0x08, 1, 0x10, 0x80, 0xca, 0xb5, 0xee, 0x01];
        assert_eq!(retry_info(1_500_000), info);
        let mut want = vec![0x08, 8, 0x12, 2, b'n', b'o', 0x1a, 54, 0x0a, 40];
        want.extend_from_slice(RETRY_INFO.as_bytes());
        want.extend_from_slice(&[0x12, 10]);
        want.extend_from_slice(&info);
        assert_eq!(status(RESOURCE_EXHAUSTED, "no", Wait::from_micros(1_500_000)), want);
        assert_eq!(
            status(RESOURCE_EXHAUSTED, "no", Wait::NEVER),
            [0x08, 8, 0x12, 2, b'n', b'o'],
            "nothing to wait for"
        );
        assert_eq!(retry_info(0), [0x0a, 0]);
    }

    #[test]
    fn content_types_that_are_grpc() {
        let rows = [
            ("application/grpc", Some("application/grpc")),
            ("application/grpc+proto", Some("application/grpc")),
            ("application/grpc;x", Some("application/grpc")),
            ("application/grpc-web", Some("application/grpc-web")),
            ("application/grpc-web-text+proto", Some("application/grpc-web-text+proto")),
            ("application/grpcurl", None),
            ("application/grpc-other", None),
            ("application/json", None),
        ];
        for (sent, want) in rows {
            let request = http::Request::builder().header(CONTENT_TYPE, sent).body(()).unwrap();
            let found = content_type(&request.into_parts().0);
            assert_eq!(found.as_ref().and_then(|value| value.to_str().ok()), want, "{sent}");
        }
        assert_eq!(content_type(&http::Request::new(()).into_parts().0), None);
    }
}
