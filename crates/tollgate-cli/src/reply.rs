//! Responses that all HTTP listeners share: JSON documents and errors as JSON.

mod http_reply;

use std::fmt::{self, Write};

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};

use crate::data_plane::json::plain_prefix_len;
use crate::listeners::request_body::BodyError;
use crate::listeners::response_body::ResponseBody;

pub(crate) use http_reply::{DecisionReply, HttpReply};

/// Longest message, in characters: some repeat text of the request.
const MESSAGE_CHARS_MAX: usize = 400;

/// A JSON document.
pub(crate) fn json(status: StatusCode, document: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::from(document.into()));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// `{"error":"Bad Request","message":"…"}`.
pub(crate) fn error(status: StatusCode, message: &str) -> Response<ResponseBody> {
    let mut text = br#"{"error":""#.to_vec();
    text.extend_from_slice(status.canonical_reason().unwrap_or("Error").as_bytes());
    text.extend_from_slice(br#"","message":"#);
    write_json_text(&mut text, &shortened(message));
    text.push(b'}');
    json(status, text)
}

/// Error response for wrong rules: a message, and all diagnostics as text.
pub(crate) fn rules_refused(message: &str, diagnostics: &str) -> Response<ResponseBody> {
    let error = StatusCode::BAD_REQUEST.canonical_reason();
    let document =
        serde_json::json!({ "error": error, "message": message, "diagnostics": diagnostics });
    json(StatusCode::BAD_REQUEST, document.to_string())
}

/// Error response for a method that the path does not take.
pub(crate) fn method_not_allowed(allow: &'static str) -> Response<ResponseBody> {
    let message = format!("This path takes {allow}.");
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, &message);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

/// Error response for a missing or wrong token; it does not say which.
pub(crate) fn unauthorized() -> Response<ResponseBody> {
    let message = "This listener requires a token: send `Authorization: Bearer <token>`, or \
        `X-Tollgate-Token: <token>` if `Authorization` is already in use.";
    let mut response = error(StatusCode::UNAUTHORIZED, message);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Error response after a panic.
pub(crate) fn panicked() -> Response<ResponseBody> {
    error(
        StatusCode::INTERNAL_SERVER_ERROR,
        "The server failed because of a bug; its log says where.",
    )
}

/// Error response for a body that could not be read. The rest of it is not read, so the connection closes.
pub(crate) fn no_body(problem: &BodyError, bytes_max: usize) -> Response<ResponseBody> {
    let mut response = match problem {
        BodyError::TooLarge => {
            let message = format!("The body may have at most {bytes_max} bytes.");
            error(StatusCode::PAYLOAD_TOO_LARGE, &message)
        }
        BodyError::TooSlow | BodyError::DeadlinePassed => {
            error(StatusCode::REQUEST_TIMEOUT, "The body took too long.")
        }
        BodyError::Broken => error(StatusCode::BAD_REQUEST, "The body broke off."),
        BodyError::NoRoom => {
            let message = "Too many large requests are being read: retry in a second.";
            let mut response = error(StatusCode::SERVICE_UNAVAILABLE, message);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            response
        }
    };
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Error response while unread replies take up all the memory for replies.
pub(crate) fn no_room() -> Response<ResponseBody> {
    let message = "Too many replies wait to be read: retry in a second.";
    let mut response = error(StatusCode::SERVICE_UNAVAILABLE, message);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// Marks a response that caches must not store.
pub(crate) fn no_store(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Writes a JSON string.
#[inline]
pub(crate) fn write_json_text(out: &mut Vec<u8>, text: &str) {
    // Nearly all text is plain.
    if plain_prefix_len(text.as_bytes()) < text.len() {
        return serde_json::to_writer(out, text).expect("a vector takes every byte");
    }
    out.reserve(text.len() + 2);
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// Adapter that lets `fmt` write into a byte vector.
struct ByteWriter<'a>(&'a mut Vec<u8>);

impl Write for ByteWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Writes a value as its text.
pub(crate) fn write_display(out: &mut Vec<u8>, value: impl fmt::Display) {
    write!(ByteWriter(out), "{value}").expect("a vector takes every byte");
}

fn shortened(message: &str) -> std::borrow::Cow<'_, str> {
    match message.char_indices().nth(MESSAGE_CHARS_MAX) {
        None => message.into(),
        Some((end, _)) => format!("{}…", &message[..end]).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_where_it_has_to_be() {
        let rows = [
            ("", r#""""#),
            ("10/second burst 2", r#""10/second burst 2""#),
            ("a\"b", r#""a\"b""#),
            ("a\\b", r#""a\\b""#),
            ("a\nb\u{7f}", "\"a\\nb\u{7f}\""),
            ("\u{e9}", "\"\u{e9}\""),
            ("123456\"8", r#""123456\"8""#),
            ("12345678\u{1f}", r#""12345678\u001f""#),
        ];
        for (text, want) in rows {
            let mut out = Vec::new();
            write_json_text(&mut out, text);
            assert_eq!(String::from_utf8(out).unwrap(), want);
        }
    }
}
