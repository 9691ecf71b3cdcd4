//! Hop-by-hop fields (RFC 9110, section 7.6.1): they concern one connection and are not forwarded.

use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION,
    TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Version, request};
use tollgate_rules::Identify;

use super::caller_fields;
use super::request_check::RequestProblem;

const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

const NOMINATION: RequestProblem =
    RequestProblem::malformed("`Connection` names a field that is not for the connection alone.");
const UPGRADE_WITH_BODY: RequestProblem =
    RequestProblem::malformed("A request that switches protocols has no body.");

/// The protocol that a client wants to switch to.
#[derive(Clone, Debug)]
pub(super) struct RequestedUpgrade(pub(super) HeaderValue);

impl RequestedUpgrade {
    /// Returns true if the client offered this protocol.
    pub(super) fn offers(&self, protocol: &HeaderValue) -> bool {
        let chosen = protocol.to_str().unwrap_or_default();
        list_items(&self.0).any(|offered| offered.eq_ignore_ascii_case(chosen))
    }
}

/// Returns true if a protocol is WebSocket, in any version and spelling.
pub(super) fn names_websocket(protocol: &HeaderValue) -> bool {
    let name = protocol.as_bytes().split(|byte| *byte == b'/').next().unwrap_or_default();
    name.trim_ascii().eq_ignore_ascii_case(b"websocket")
}

/// Removes the hop-by-hop fields of a request, but for `TE: trailers` and the `Upgrade` that is forwarded. Returns the
/// protocol that it wants to switch to.
pub(super) fn remove_from_request(
    head: &mut request::Parts,
    identify: &Identify,
    has_body: bool,
) -> Result<Option<RequestedUpgrade>, RequestProblem> {
    let is_protected =
        |name: &str| caller_fields::is_protected(&name.to_ascii_lowercase(), identify);
    if options(&head.headers).any(is_protected) {
        return Err(NOMINATION);
    }
    let upgrade = requested_upgrade(head);
    if upgrade.is_some() && has_body {
        return Err(UPGRADE_WITH_BODY);
    }
    let wants_trailers = head.headers.get_all(TE).iter().flat_map(list_items).any(is_trailers);
    remove_hop_fields(&mut head.headers, |_| true);
    if wants_trailers {
        head.headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(RequestedUpgrade(protocols)) = &upgrade {
        // Rules for WebSockets match by it.
        head.headers.insert(UPGRADE, protocols.clone());
    }
    Ok(upgrade)
}

/// Removes the hop-by-hop fields of a response.
pub(super) fn remove_from_response(fields: &mut HeaderMap) {
    // hyper has read the chunks; a length beside them is wrong.
    if fields.contains_key(TRANSFER_ENCODING) {
        fields.remove(CONTENT_LENGTH);
    }
    // No server means these, and without them the client could not read the response.
    remove_hop_fields(fields, |name| !name.as_str().starts_with("content-"));
}

/// Removes the hop-by-hop fields of a message, and those that its `Connection` names if they may be removed.
fn remove_hop_fields(fields: &mut HeaderMap, may_remove: impl Fn(&HeaderName) -> bool) {
    let mut removed: Vec<HeaderName> =
        fields.keys().filter(|name| is_hop_field(name)).cloned().collect();
    if removed.contains(&CONNECTION) {
        let named = options(fields).filter_map(|name| name.parse().ok());
        removed.extend(named.filter(|name| may_remove(name)));
    }
    for name in removed {
        fields.remove(name);
    }
}

fn is_hop_field(name: &HeaderName) -> bool {
    [
        CONNECTION,
        HTTP2_SETTINGS,
        KEEP_ALIVE,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        PROXY_CONNECTION,
        TE,
        TRANSFER_ENCODING,
        UPGRADE,
    ]
    .contains(name)
}

/// The protocol to switch to. Other versions of HTTP are not for the upstream, which has a connection of its own.
fn requested_upgrade(head: &request::Parts) -> Option<RequestedUpgrade> {
    let mut lines = head.headers.get_all(UPGRADE).iter();
    let protocols = lines.next()?;
    let is_named = options(&head.headers).any(|name| name.eq_ignore_ascii_case("upgrade"));
    if head.version != Version::HTTP_11 || !is_named || lines.next().is_some() {
        return None;
    }
    let is_other =
        list_items(protocols).next().is_some() && list_items(protocols).all(is_other_protocol);
    is_other.then(|| RequestedUpgrade(protocols.clone()))
}

/// Returns true for the name of a protocol, with or without a version, that is not HTTP. Servers may find `h2c` in what is not a
/// name: in quotes, or among several words.
fn is_other_protocol(protocol: &str) -> bool {
    let (name, version) = protocol.split_once('/').unwrap_or((protocol, "1"));
    let is_token = |text: &str| {
        let is_letter =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        !text.is_empty() && text.bytes().all(is_letter)
    };
    let is_http = ["h2c", "h2", "http", "tls"].iter().any(|http| name.eq_ignore_ascii_case(http));
    is_token(name) && is_token(version) && !is_http
}

fn is_trailers(item: &str) -> bool {
    item.eq_ignore_ascii_case("trailers")
}

/// The options of `Connection`: names of fields, and `close`.
fn options(fields: &HeaderMap) -> impl Iterator<Item = &str> {
    fields.get_all(CONNECTION).iter().flat_map(list_items)
}

/// The items of a list, none if it is not text.
fn list_items(value: &HeaderValue) -> impl Iterator<Item = &str> {
    let items = value.to_str().unwrap_or_default().split(',');
    items.map(str::trim).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn head(version: Version, fields: &[(&'static str, &'static str)]) -> request::Parts {
        let mut request = Request::builder().version(version);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn names(fields: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = fields.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn only_end_to_end_fields_are_forwarded() {
        let mut head = head(
            Version::HTTP_11,
            &[
                ("host", "h"),
                ("connection", "close, X-Hop"),
                ("connection", "te,, x-other"),
                ("keep-alive", "timeout=5"),
                ("proxy-connection", "keep-alive"),
                ("proxy-authorization", "Basic eA=="),
                ("http2-settings", "AAMAAABk"),
                ("te", "gzip, Trailers"),
                ("trailer", "x-sum"),
                ("transfer-encoding", "chunked"),
                ("upgrade", "websocket"),
                ("x-hop", "1"),
                ("x-other", "2"),
                ("x-end", "3"),
            ],
        );
        let upgrade = remove_from_request(&mut head, &Identify::default(), true).unwrap();
        assert!(upgrade.is_none(), "not named in Connection");
        assert_eq!(names(&head.headers), ["host", "te", "trailer", "x-end"]);
        assert_eq!(head.headers[TE], "trailers");
    }

    #[test]
    fn connection_cannot_remove_what_identifies_the_caller_or_frames_the_message() {
        let identify = Identify { tier_header: Some("x-tier".into()), ..Identify::default() };
        let rows = [
            ("keep-alive, x-custom", true),
            ("host", false),
            ("Content-Length", false),
            ("close, X-Forwarded-For", false),
            ("close,\tauthorization", false),
            ("cookie", false),
            ("x-tier", false),
            ("x-user-id", true),
        ];
        for (connection, accepted) in rows {
            let mut head = head(Version::HTTP_11, &[("host", "h"), ("connection", connection)]);
            let got = remove_from_request(&mut head, &identify, false);
            assert_eq!(got.is_ok(), accepted, "{connection}");
        }
    }

    #[test]
    fn an_upgrade_is_forwarded_unless_it_is_to_http_or_has_a_body() {
        let (http11, http2) = (Version::HTTP_11, Version::HTTP_2);
        // Version, Connection, Upgrade, body | upgrade
        let rows = [
            (http11, "Upgrade", "websocket", false, Ok(true)),
            (http11, "keep-alive, upgrade", "WebSocket", false, Ok(true)),
            (http11, "upgrade", "websocket", true, Err(UPGRADE_WITH_BODY)),
            (http11, "upgrade, http2-settings", "h2c", false, Ok(false)),
            (http11, "upgrade", "h2c", true, Ok(false)),
            (http11, "upgrade", "websocket, H2C", false, Ok(false)),
            (http11, "upgrade", "HTTP/2.0", false, Ok(false)),
            (http11, "upgrade", "\"h2c\"", false, Ok(false)),
            (http11, "upgrade", "h2c websocket", false, Ok(false)),
            (http11, "upgrade", "websocket h2c", false, Ok(false)),
            (http11, "upgrade", "websocket;h2c", false, Ok(false)),
            (http11, "upgrade", "websocket, (h2c)", false, Ok(false)),
            (http11, "upgrade", "websocket/", false, Ok(false)),
            (http11, "upgrade", "websocket/13", false, Ok(true)),
            (http11, "upgrade", "TLS/1.0", false, Ok(false)),
            (http11, "upgrade", "", false, Ok(false)),
            (http11, "close", "websocket", false, Ok(false)),
            (http2, "upgrade", "websocket", false, Ok(false)),
            (Version::HTTP_10, "upgrade", "websocket", false, Ok(false)),
        ];
        for (version, connection, upgrade, has_body, want) in rows {
            let fields = [("connection", connection), ("upgrade", upgrade)];
            let mut head = head(version, &fields);
            let got = remove_from_request(&mut head, &Identify::default(), has_body);
            assert_eq!(got.map(|upgrade| upgrade.is_some()), want, "{connection} {upgrade}");
        }
    }

    #[test]
    fn a_server_switches_only_to_an_offered_protocol() {
        let offered = RequestedUpgrade(HeaderValue::from_static("websocket, other/1"));
        let rows = [("WebSocket", true), ("other/1", true), ("other", false), ("", false)];
        for (protocol, offers) in rows {
            assert_eq!(offered.offers(&HeaderValue::from_static(protocol)), offers, "{protocol}");
        }
    }

    #[test]
    fn a_response_keeps_its_length() {
        let head = head(
            Version::HTTP_11,
            &[
                ("connection", "x-hop, content-length, date"),
                ("content-length", "5"),
                ("date", "today"),
                ("x-hop", "1"),
                ("keep-alive", "timeout=5"),
                ("server", "s"),
            ],
        );
        let mut fields = head.headers;
        remove_from_response(&mut fields);
        assert_eq!(names(&fields), ["content-length", "server"]);
    }

    #[test]
    fn a_length_beside_chunks_is_wrong() {
        let fields = [("transfer-encoding", "chunked"), ("content-length", "5"), ("server", "s")];
        let mut fields = head(Version::HTTP_11, &fields).headers;
        remove_from_response(&mut fields);
        assert_eq!(names(&fields), ["server"]);
    }
}
