//! Requests that are not forwarded, because servers could read them in different ways or because they are meant for a
//! proxy and not for a server behind it.

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING, VIA};
use http::{HeaderValue, Method, StatusCode, Version, request};

use crate::listeners::header_fields::RequestHead;
use crate::listeners::host::{Host, requested_host};

/// Most passes of one request through gateways. More are a loop.
const PASSES_MAX: usize = 8;

/// The name of this gateway in `Via`.
pub(super) const VIA_NAME: &str = "tollgate";

/// The reason not to forward a request: a status, a code for metrics and logs, and a sentence for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestProblem {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) message: &'static str,
}

impl RequestProblem {
    /// A request that breaks a rule of HTTP.
    pub(super) const fn malformed(message: &'static str) -> RequestProblem {
        RequestProblem { status: StatusCode::BAD_REQUEST, code: "bad_request", message }
    }
}

const METHOD: RequestProblem = RequestProblem {
    status: StatusCode::METHOD_NOT_ALLOWED,
    code: "method_not_allowed",
    message: "The gateway does not forward this method.",
};
const LOOP: RequestProblem = RequestProblem {
    status: StatusCode::LOOP_DETECTED,
    code: "loop_detected",
    message: "The request has passed this gateway too often: an upstream leads back to it.",
};
const TARGET: RequestProblem =
    RequestProblem::malformed("The target of the request is not a path or an http URL.");
const HOST_COUNT: RequestProblem =
    RequestProblem::malformed("A request has exactly one header field `Host`.");
const HOST_VALUE: RequestProblem = RequestProblem::malformed(
    "The host of the request is not valid, or there are two that differ.",
);
/// A body whose end servers may find at different places.
pub(super) const FRAMING: RequestProblem =
    RequestProblem::malformed("The length of the body is not stated clearly.");

/// Checks the head of a request. `has_body` says if a body may follow.
pub(super) fn check(head: &request::Parts, has_body: bool) -> Result<(), RequestProblem> {
    // First: nobody knows where the next request begins, so the connection ends whatever else is wrong.
    check_framing(head, has_body)?;
    check_target(head)?;
    check_host(head)?;
    match passes(head) {
        0..PASSES_MAX => Ok(()),
        _ => Err(LOOP),
    }
}

/// Refuses a request without a host, which HTTP/1.0 allows: a rule that counts by hosts would not see it.
pub(super) fn check_has_host(head: &request::Parts) -> Result<(), RequestProblem> {
    requested_host(&RequestHead::from(head)).map_or(Err(HOST_COUNT), |_| Ok(()))
}

fn check_target(head: &request::Parts) -> Result<(), RequestProblem> {
    // TRACE would show the client the fields that the gateway adds.
    if matches!(head.method, Method::CONNECT | Method::TRACE) {
        return Err(METHOD);
    }
    let is_url = head.uri.scheme_str().is_none_or(|scheme| matches!(scheme, "http" | "https"));
    let path = head.uri.path();
    // Servers decode other bytes differently, and some refuse the whole connection.
    let is_ascii = head.uri.path_and_query().is_none_or(|target| target.as_str().is_ascii());
    let is_path = path.starts_with('/') || (path == "*" && head.method == Method::OPTIONS);
    if is_url && is_path && is_ascii { Ok(()) } else { Err(TARGET) }
}

fn check_host(head: &request::Parts) -> Result<(), RequestProblem> {
    let mut fields = head.headers.get_all(HOST).iter();
    match (fields.next(), fields.next()) {
        (_, Some(_)) => return Err(HOST_COUNT),
        (None, _) if head.version == Version::HTTP_11 => return Err(HOST_COUNT),
        (None, _) if head.uri.authority().is_none() => return Ok(()),
        _ => {}
    }
    let host = requested_host(&RequestHead::from(head));
    if host.and_then(Host::parse).is_some() { Ok(()) } else { Err(HOST_VALUE) }
}

/// Accepts a body with one `Content-Length` or with the transfer coding `chunked`. hyper has checked their values, and
/// removed `Content-Length` if there are both.
fn check_framing(head: &request::Parts, has_body: bool) -> Result<(), RequestProblem> {
    let mut lengths = head.headers.get_all(CONTENT_LENGTH).iter();
    let (length, has_two) = (lengths.next(), lengths.next().is_some());
    let mut codings = head.headers.get_all(TRANSFER_ENCODING).iter().map(HeaderValue::as_bytes);
    let coding = codings.next();
    let is_clear = match (length, coding) {
        (None, None) => true,
        (None, Some(coding)) => coding.eq_ignore_ascii_case(b"chunked") && codings.next().is_none(),
        (Some(length), None) => {
            let is_number = length.as_bytes().iter().all(u8::is_ascii_digit);
            let is_zero = length.as_bytes().iter().all(|digit| *digit == b'0');
            is_number && !length.is_empty() && (has_body || is_zero)
        }
        (Some(_), Some(_)) => false,
    };
    if is_clear && !has_two { Ok(()) } else { Err(FRAMING) }
}

/// Number of times that the request has passed a gateway of this name.
fn passes(head: &request::Parts) -> usize {
    let lines = head.headers.get_all(VIA).iter().filter_map(|line| line.to_str().ok());
    let passed = lines.flat_map(|line| line.split(','));
    passed.filter(|entry| entry.split_whitespace().nth(1) == Some(VIA_NAME)).count()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    /// Checks a request, whose fields are `name: value` in lines.
    fn checked(
        method: &str,
        target: &str,
        version: Version,
        fields: &str,
        has_body: bool,
    ) -> Result<(), RequestProblem> {
        let mut request = Request::builder().method(method).uri(target).version(version);
        for (name, value) in fields.lines().filter_map(|line| line.trim().split_once(": ")) {
            request = request.header(name, value);
        }
        check(&request.body(()).unwrap().into_parts().0, has_body)
    }

    #[test]
    fn methods_and_targets() {
        let rows = [
            ("GET", "/a?b", Ok(())),
            ("GET", "http://h/a", Ok(())),
            ("GET", "https://h", Ok(())),
            ("OPTIONS", "*", Ok(())),
            ("GET", "/ä", Err(TARGET)),
            ("GET", "/a?ä", Err(TARGET)),
            ("PURGE", "/", Ok(())),
            ("GET", "*", Err(TARGET)),
            ("GET", "ftp://h/a", Err(TARGET)),
            ("GET", "h", Err(TARGET)),
            ("GET", "/caf\u{e9}", Err(TARGET)),
            ("GET", "/?caf\u{e9}", Err(TARGET)),
            ("CONNECT", "h:80", Err(METHOD)),
            ("TRACE", "/", Err(METHOD)),
        ];
        for (method, target, want) in rows {
            let got = checked(method, target, Version::HTTP_11, "host: h", false);
            assert_eq!(got, want, "{method} {target}");
        }
    }

    #[test]
    fn one_host() {
        let (http10, http11, http2) = (Version::HTTP_10, Version::HTTP_11, Version::HTTP_2);
        let rows = [
            (http11, "/", "host: h", Ok(())),
            (http11, "/", "host: H:8000", Ok(())),
            (http11, "/", "host: [::1]:8000", Ok(())),
            (http11, "/", "", Err(HOST_COUNT)),
            (http11, "/", "host: h\nhost: h", Err(HOST_COUNT)),
            (http11, "/", "host: h, g", Err(HOST_VALUE)),
            (http11, "/", "host: user@h", Err(HOST_VALUE)),
            (http11, "/", "host: h/a", Err(HOST_VALUE)),
            (http11, "/", "host: h:80:80", Err(HOST_VALUE)),
            (http11, "http://h/", "host: H", Ok(())),
            (http11, "http://h/", "host: g", Err(HOST_VALUE)),
            (http11, "http://h:80/", "host: h", Err(HOST_VALUE)),
            (http11, "http://user@h/", "host: h", Err(HOST_VALUE)),
            (http11, "http://h/", "", Err(HOST_COUNT)),
            (http10, "/", "", Ok(())),
            (http10, "/", "host: h", Ok(())),
            (http10, "/", "host: h\nhost: g", Err(HOST_COUNT)),
            (http2, "http://h/", "", Ok(())),
            (http2, "http://h/", "host: h", Ok(())),
            (http2, "http://h/", "host: g", Err(HOST_VALUE)),
            (http2, "/", "host: h", Ok(())),
        ];
        for (version, target, fields, want) in rows {
            let got = checked("GET", target, version, fields, false);
            assert_eq!(got, want, "{version:?} {target} {fields:?}");
        }
    }

    #[test]
    fn one_statement_of_length() {
        let rows = [
            ("", false, Ok(())),
            // HTTP/2 needs none.
            ("", true, Ok(())),
            ("content-length: 5", true, Ok(())),
            ("content-length: 0", false, Ok(())),
            ("content-length: 5", false, Err(FRAMING)),
            ("content-length: 5\ncontent-length: 5", true, Err(FRAMING)),
            ("content-length: +5", true, Err(FRAMING)),
            ("content-length: 5, 5", true, Err(FRAMING)),
            ("transfer-encoding: chunked", true, Ok(())),
            ("transfer-encoding: Chunked", true, Ok(())),
            ("transfer-encoding: gzip, chunked", true, Err(FRAMING)),
            ("transfer-encoding: identity\ntransfer-encoding: chunked", true, Err(FRAMING)),
            ("transfer-encoding: chunked\ncontent-length: 5", true, Err(FRAMING)),
        ];
        for (fields, has_body, want) in rows {
            let fields = format!("host: h\n{fields}");
            let got = checked("POST", "/", Version::HTTP_11, &fields, has_body);
            assert_eq!(got, want, "{fields:?}");
        }
    }

    #[test]
    fn a_loop_ends() {
        let via =
            |passes: usize| format!("host: h\nvia: 1.1 other, {}", "2.0 tollgate,".repeat(passes));
        for (passes, want) in [(0, Ok(())), (7, Ok(())), (8, Err(LOOP)), (9, Err(LOOP))] {
            assert_eq!(checked("GET", "/", Version::HTTP_11, &via(passes), false), want);
        }
        let lines = format!("host: h\n{}", "via: 1.1 tollgate\n".repeat(8));
        assert_eq!(checked("GET", "/", Version::HTTP_11, &lines, false), Err(LOOP));
    }
}
