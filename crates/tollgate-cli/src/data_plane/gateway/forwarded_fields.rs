//! The fields that tell an upstream about the client: `X-Forwarded-*`, `Forwarded` and `Via`.

use std::net::IpAddr;

use http::header::{HeaderMap, HeaderName, HeaderValue, VIA};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Writes the fields of a request that came from `peer`.
pub(super) fn write(fields: &mut HeaderMap, peer: IpAddr, is_tls: bool) {
    let peer = peer.to_canonical().to_string();
    if let Ok(value) = HeaderValue::try_from(peer) {
        fields.insert(X_FORWARDED_FOR, value);
    }
    let scheme = if is_tls { "https" } else { "http" };
    fields.insert(X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
    fields.append(VIA, HeaderValue::from_static("1.1 tollgate"));
}
