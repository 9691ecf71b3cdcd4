//! Responses that every door has: JSON, and what went wrong in JSON.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};

use crate::doors::connection::{Body, BodyError};

/// The most characters of a message: what a stranger wrote is part of some.
const MESSAGE_CHARS_MAX: usize = 400;

/// A JSON document.
pub(crate) fn json(status: StatusCode, document: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(document.into()));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// `{"error":"Bad Request","message":"…"}`.
pub(crate) fn error(status: StatusCode, message: &str) -> Response<Body> {
    let mut text = br#"{"error":""#.to_vec();
    text.extend_from_slice(status.canonical_reason().unwrap_or("Error").as_bytes());
    text.extend_from_slice(br#"","message":"#);
    write_json_text(&mut text, &shortened(message));
    text.push(b'}');
    json(status, text)
}

/// The path is known, the method is not.
pub(crate) fn method_not_allowed(allow: &'static str) -> Response<Body> {
    let message = format!("This path takes {allow}.");
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, &message);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

/// No token, or a wrong one: which is nobody's business.
pub(crate) fn unauthorized() -> Response<Body> {
    let message = "This door takes a token: send `Authorization: Bearer <token>`, or \
        `X-Tollgate-Token: <token>` where `Authorization` is taken.";
    let mut response = error(StatusCode::UNAUTHORIZED, message);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// A bug of ours.
pub(crate) fn panicked() -> Response<Body> {
    error(StatusCode::INTERNAL_SERVER_ERROR, "The server has a bug here; its log says where.")
}

/// There is no body to work with. What is left of it is not read, so the connection ends.
pub(crate) fn no_body(problem: &BodyError, bytes_max: usize) -> Response<Body> {
    let mut response = match problem {
        BodyError::TooLarge => {
            let message = format!("The body may have at most {bytes_max} bytes.");
            error(StatusCode::PAYLOAD_TOO_LARGE, &message)
        }
        BodyError::TooSlow => error(StatusCode::REQUEST_TIMEOUT, "The body took too long."),
        BodyError::Broken => error(StatusCode::BAD_REQUEST, "The body broke off."),
    };
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Marks an answer that nobody may keep.
pub(crate) fn no_store(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A JSON string.
#[inline]
pub(crate) fn write_json_text(out: &mut Vec<u8>, text: &str) {
    // Nearly all text is plain.
    if plain_bytes(text.as_bytes()) < text.len() {
        return serde_json::to_writer(out, text).expect("a vector takes every byte");
    }
    out.reserve(text.len() + 2);
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// How many bytes stand for themselves in a JSON string, until the first that does not.
#[inline]
pub(crate) fn plain_bytes(text: &[u8]) -> usize {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let (words, rest) = text.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        // Eight at once: a byte below another wraps around in a subtraction, and its top bit
        // shows it. Above the first such byte the others may be wrong, and are not looked at.
        let word = u64::from_le_bytes(*word);
        let (quote, escape) = (word ^ (EACH * 0x22), word ^ (EACH * 0x5c));
        let below = |word: u64, bound: u64| word.wrapping_sub(EACH * bound) & !word;
        let special = (below(word, 0x20) | below(quote, 1) | below(escape, 1)) & (EACH << 7);
        if special != 0 {
            return index * 8 + special.trailing_zeros() as usize / 8;
        }
    }
    let special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    text.len() - rest.len() + rest.iter().position(special).unwrap_or(rest.len())
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

    #[test]
    fn plain_bytes_end_at_the_first_special_one() {
        for byte in 0..=0xff_u8 {
            let special = byte < 0x20 || byte == b'"' || byte == b'\\';
            for at in 0..20 {
                for around in [b' ', b'!', 0x7f, 0x80, 0xff] {
                    let mut text = [around; 20];
                    text[at] = byte;
                    let want = if special { at } else { 20 };
                    assert_eq!(plain_bytes(&text), want, "{byte} at {at} in {around}");
                }
            }
        }
    }
}
