//! Plain requests: the few forms of an HTTP/1.1 request that nearly all clients of the check API and all proxies send.
//!
//! The parser is a pure function. It uses the same httparse as hyper, with the same settings, and takes a request only
//! if it leaves nothing to decide about framing: then both read the same request from the same bytes. Everything else is
//! unusual, and hyper reads it.

use httparse::{EMPTY_HEADER, Header, Status};

/// Maximum header fields of a plain request; hyper takes 100.
pub(crate) const FIELDS_MAX: usize = 32;

/// Maximum bytes of a plain request with its body; hyper takes 16 KiB for the head alone.
pub(crate) const REQUEST_BYTES_MAX: usize = 8 << 10;

/// Maximum bytes of its body: less than each request may keep without asking for memory.
const BODY_BYTES_MAX: usize = 1_000;

/// Result of parsing the bytes that have arrived.
#[derive(Debug)]
pub(crate) enum ParsedRequest<'h, 'b> {
    Plain(PlainRequest<'h, 'b>),
    /// The head has not arrived completely.
    Incomplete,
    /// Anything else, correct or not.
    Unusual,
}

/// A plain request. Each field appears once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainRequest<'h, 'b> {
    pub(crate) method: PlainMethod,
    /// The path, without the query.
    pub(crate) path: &'b str,
    pub(crate) fields: &'h [Header<'b>],
    /// The body; empty for [`PlainMethod::Get`].
    pub(crate) body: &'b [u8],
    /// Bytes of head and body.
    pub(crate) bytes: usize,
}

/// Method of a plain request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainMethod {
    /// `GET`, without a body.
    Get,
    /// `POST`, with a `Content-Length`.
    Post,
}

/// Room for the fields of a request.
pub(crate) type FieldRoom<'b> = [Header<'b>; FIELDS_MAX];

/// Empty room for fields.
pub(crate) const fn field_room<'b>() -> FieldRoom<'b> {
    [EMPTY_HEADER; FIELDS_MAX]
}

/// Parses the request at the beginning of these bytes.
pub(crate) fn parse<'h, 'b>(bytes: &'b [u8], room: &'h mut FieldRoom<'b>) -> ParsedRequest<'h, 'b> {
    let mut request = httparse::Request::new(room);
    let head_bytes = match request.parse(bytes) {
        Ok(Status::Complete(head_bytes)) => head_bytes,
        Ok(Status::Partial) if bytes.len() < REQUEST_BYTES_MAX => return ParsedRequest::Incomplete,
        Ok(Status::Partial) | Err(_) => return ParsedRequest::Unusual,
    };
    plain(request, bytes, head_bytes).map_or(ParsedRequest::Unusual, ParsedRequest::Plain)
}

fn plain<'h, 'b>(
    request: httparse::Request<'h, 'b>,
    bytes: &'b [u8],
    head_bytes: usize,
) -> Option<PlainRequest<'h, 'b>> {
    let method = match (request.version?, request.method?) {
        (1, "GET") => PlainMethod::Get,
        (1, "POST") => PlainMethod::Post,
        _ => return None,
    };
    let path = plain_path(request.path?)?;
    let fields: &'h [Header<'b>] = request.headers;
    let body_bytes = match (method, framing(fields)?) {
        (PlainMethod::Get, None) => 0,
        (PlainMethod::Post, Some(body_bytes)) => body_bytes,
        _ => return None,
    };
    // A body that follows later has a timeout of its own, which hyper's way keeps.
    let body = bytes.get(head_bytes..head_bytes + body_bytes)?;
    let bytes = head_bytes + body_bytes;
    (bytes <= REQUEST_BYTES_MAX).then_some(PlainRequest { method, path, fields, body, bytes })
}

/// The path in the first line, if it begins with `/` and its query has only bytes that every parser takes.
fn plain_path(target: &str) -> Option<&str> {
    let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/?&=%-._~+,:;@!$*".contains(&byte);
    (path.starts_with('/') && query.bytes().all(is_plain)).then_some(path)
}

/// The value of `Content-Length`, if there is one. `None` if a field appears twice, `Host` is missing, or a field changes
/// how the connection or the body is used.
fn framing(fields: &[Header<'_>]) -> Option<Option<usize>> {
    let (mut has_host, mut body_bytes) = (false, None);
    for (index, field) in fields.iter().enumerate() {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        if fields[..index].iter().any(|before| is(before.name)) {
            return None;
        }
        match field.name.len() {
            4 if is("host") => has_host = true,
            6 if is("expect") => return None,
            7 if is("upgrade") => return None,
            10 if is("connection") && !field.value.eq_ignore_ascii_case(b"keep-alive") => {
                return None;
            }
            14 if is("content-length") => body_bytes = Some(plain_length(field.value)?),
            17 if is("transfer-encoding") => return None,
            _ => {}
        }
    }
    has_host.then_some(body_bytes)
}

/// A length of at most [`BODY_BYTES_MAX`], in digits only.
fn plain_length(digits: &[u8]) -> Option<usize> {
    if !(1..=4).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let length = digits.iter().fold(0, |length, digit| length * 10 + usize::from(digit - b'0'));
    (length <= BODY_BYTES_MAX).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method, path, body and length of a plain request, or the reason why it is none.
    fn shown(bytes: &[u8]) -> String {
        let mut room = field_room();
        match parse(bytes, &mut room) {
            ParsedRequest::Plain(PlainRequest { method, path, fields, body, bytes }) => {
                let body = String::from_utf8_lossy(body);
                format!("{method:?} {path} {} {body:?} {bytes}", fields.len())
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn only_requests_without_doubt_are_plain() {
        let get = "GET /v1/forward-auth HTTP/1.1\r\nhost: a\r\n";
        let post = "POST /v1/check HTTP/1.1\r\nHost: a\r\n";
        let many = (0..FIELDS_MAX).map(|index| format!("x-{index}: 1\r\n")).collect::<String>();
        let large = "x".repeat(BODY_BYTES_MAX + 1);
        let rows = [
            (format!("{get}\r\n"), "Get /v1/forward-auth 1 \"\" 42"),
            (format!("\r\n{get}\r\n"), "Get /v1/forward-auth 1 \"\" 44"),
            (format!("{get}\r\nGET / HT"), "Get /v1/forward-auth 1 \"\" 42"),
            (get.replace("\r\n", "\n") + "\n", "Get /v1/forward-auth 1 \"\" 39"),
            (get.replace(" HTTP", "?a=/b&c HTTP") + "\r\n", "Get /v1/forward-auth 1 \"\" 49"),
            (format!("{get}connection: Keep-Alive\r\n\r\n"), "Get /v1/forward-auth 2 \"\" 66"),
            (format!("{post}content-length: 2\r\n\r\n{{}}"), "Post /v1/check 2 \"{}\" 57"),
            (format!("{post}content-length: 02\r\n\r\n{{}}GET"), "Post /v1/check 2 \"{}\" 58"),
            (format!("{post}Content-Length: 0\r\n\r\n"), "Post /v1/check 2 \"\" 55"),
            ("".into(), "Incomplete"),
            ("PRI * HTTP".into(), "Incomplete"),
            (get.into(), "Incomplete"),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), "Unusual"),
            (format!("{get}x: {}", "y".repeat(REQUEST_BYTES_MAX)), "Unusual"),
            (format!("{get}x: {}\r\n\r\n", "y".repeat(REQUEST_BYTES_MAX)), "Unusual"),
            (format!("{get}{many}\r\n"), "Unusual"),
            (get.replace("1.1", "1.0") + "\r\n", "Unusual"),
            (get.replace("GET", "HEAD") + "\r\n", "Unusual"),
            (get.replace("GET", "get") + "\r\n", "Unusual"),
            (get.replace("/v1", "http://a/v1") + "\r\n", "Unusual"),
            (get.replace(" HTTP", "?\" HTTP") + "\r\n", "Unusual"),
            (get.replace(" HTTP", "?a#b HTTP") + "\r\n", "Unusual"),
            ("GET * HTTP/1.1\r\nhost: a\r\n\r\n".into(), "Unusual"),
            ("GET / HTTP/1.1\r\n\r\n".into(), "Unusual"),
            (format!("{get}Host: a\r\n\r\n"), "Unusual"),
            (format!("{get}x-a: 1\r\nX-A: 1\r\n\r\n"), "Unusual"),
            (format!("{get} folded\r\n\r\n"), "Unusual"),
            (format!("{get}a : b\r\n\r\n"), "Unusual"),
            (format!("{get}content-length: 0\r\n\r\n"), "Unusual"),
            (format!("{get}connection: close\r\n\r\n"), "Unusual"),
            (format!("{get}connection: keep-alive, te\r\n\r\n"), "Unusual"),
            (format!("{get}connection: upgrade\r\nupgrade: h2c\r\n\r\n"), "Unusual"),
            (format!("{get}upgrade: websocket\r\n\r\n"), "Unusual"),
            (format!("{post}\r\n"), "Unusual"),
            (format!("{post}content-length: 2\r\n\r\n{{"), "Unusual"),
            (format!("{post}content-length: 2\r\ncontent-length: 2\r\n\r\n{{}}"), "Unusual"),
            (format!("{post}content-length: +2\r\n\r\n{{}}"), "Unusual"),
            (format!("{post}content-length: 2,2\r\n\r\n{{}}"), "Unusual"),
            (format!("{post}content-length: 00002\r\n\r\n{{}}"), "Unusual"),
            (format!("{post}content-length:\r\n\r\n{{}}"), "Unusual"),
            (format!("{post}content-length: 1001\r\n\r\n{large}"), "Unusual"),
            (format!("{post}expect: 100-continue\r\ncontent-length: 2\r\n\r\n{{}}"), "Unusual"),
            (format!("{post}transfer-encoding: chunked\r\n\r\n0\r\n\r\n"), "Unusual"),
            (
                format!("{post}content-length: 2\r\ntransfer-encoding: identity\r\n\r\n{{}}"),
                "Unusual",
            ),
        ];
        for (bytes, want) in rows {
            assert_eq!(shown(bytes.as_bytes()), want, "{bytes:?}");
        }
    }

    #[test]
    fn a_prefix_of_a_plain_request_is_incomplete_or_waits_for_its_body() {
        let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n";
        for end in 0..head.len() {
            assert_eq!(shown(&head.as_bytes()[..end]), "Incomplete", "{end}");
        }
        assert_eq!(shown(head.as_bytes()), "Unusual");
    }
}
