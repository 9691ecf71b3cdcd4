//! Hop-by-hop fields (RFC 9110, section 7.6.1): they concern one connection and are not forwarded.

use http::header::{
    CONNECTION, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Version, request};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// The protocol that a client wants to switch to.
#[derive(Clone, Debug)]
pub(super) struct RequestedUpgrade(pub(super) HeaderValue);

/// Removes the hop-by-hop fields of a request. Returns the protocol that it wants to switch to.
pub(super) fn remove(head: &mut request::Parts) -> Result<Option<RequestedUpgrade>, &'static str> {
    let wants_trailers = head.headers.get(TE).is_some_and(|te| te.as_bytes() == b"trailers");
    let upgrade = requested_upgrade(head);
    remove_fields(&mut head.headers);
    if wants_trailers {
        head.headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    Ok(upgrade)
}

fn requested_upgrade(head: &request::Parts) -> Option<RequestedUpgrade> {
    if head.version != Version::HTTP_11 {
        return None;
    }
    let named = connection_options(&head.headers).any(|name| name.eq_ignore_ascii_case("upgrade"));
    let protocol = head.headers.get(UPGRADE).filter(|_| named)?;
    Some(RequestedUpgrade(protocol.clone()))
}

/// Removes the hop-by-hop fields of a message, and those that its `Connection` names.
pub(super) fn remove_fields(fields: &mut HeaderMap) {
    if fields.contains_key(CONNECTION) {
        let named: Vec<HeaderName> =
            connection_options(fields).filter_map(|name| name.parse().ok()).collect();
        for name in named {
            fields.remove(name);
        }
    }
    for name in [
        CONNECTION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ] {
        fields.remove(name);
    }
}

fn connection_options(fields: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = fields.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}
