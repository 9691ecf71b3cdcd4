//! The original request and its caller, read from the headers that a proxy sends to forward-auth.
//!
//! A proxy describes the original request in `X-Forwarded-Method` and `X-Forwarded-Uri` (Traefik, Caddy) or in
//! `X-Original-Method` and `X-Original-URI` (nginx). Like all forwarded headers, they count only from peers that
//! the rules trust.

use std::borrow::Cow;
use std::net::IpAddr;

use tollgate::Micros;
use tollgate_rules::{Identity, RuleSet};

use super::facts::{RequestHeaders, escape_non_utf8};
use super::header_fields::HeaderFields;

/// Kind of proxy, by its treatment of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardAuthProxy {
    /// Forwards any status to the client.
    Standard,
    /// Forwards only 401 and 403.
    Nginx,
}

/// The trusted part of a forward-auth request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ForwardedRequest<'a> {
    /// The original request; empty if the peer is not trusted.
    pub(super) original: OriginalRequest<'a>,
    /// The host of the original request; empty if no trusted peer names one, or no rule looks at it.
    pub(super) host: Cow<'a, str>,
    pub(super) identity: Identity<'a>,
    pub(super) trusted: bool,
}

impl<'a> ForwardedRequest<'a> {
    /// Reads the headers of a request from this peer.
    pub(super) fn read(
        headers: &'a RequestHeaders<'a, impl HeaderFields>,
        rules: &RuleSet,
        peer: IpAddr,
        proxy: ForwardAuthProxy,
        now: Micros,
    ) -> Result<ForwardedRequest<'a>, ConflictingHeader<'a>> {
        let identify = &rules.settings().identify;
        let trusted = identify.trusts(peer.to_canonical());
        if let Some(name) = headers.conflicting_header(rules, trusted) {
            return Err(ConflictingHeader(name));
        }
        let original = match trusted {
            true => OriginalRequest::from_headers(headers.0, proxy)?,
            false => OriginalRequest::default(),
        };
        let host = match trusted && rules.reads_host() {
            true => forwarded_host(headers.0),
            false => Cow::Borrowed(""),
        };
        Ok(ForwardedRequest {
            original,
            host,
            identity: identify.identify(peer, headers, now),
            trusted,
        })
    }
}

/// The request that the proxy received.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OriginalRequest<'a> {
    pub(super) method: Option<Cow<'a, str>>,
    pub(super) path: Option<Cow<'a, str>>,
}

/// A header that appears twice with different values: the client may have added either of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConflictingHeader<'a>(pub(super) &'a str);

/// Names of the headers that carry method and path.
type HeaderNamePair = [&'static str; 2];
const FORWARDED_HEADERS: HeaderNamePair = ["x-forwarded-method", "x-forwarded-uri"];
const ORIGINAL_HEADERS: HeaderNamePair = ["x-original-method", "x-original-uri"];

impl<'a> OriginalRequest<'a> {
    /// Reads method and path from one pair of headers. The pair that this kind of proxy writes comes first, because
    /// the client may have sent the other.
    fn from_headers(
        headers: &'a impl HeaderFields,
        proxy: ForwardAuthProxy,
    ) -> Result<OriginalRequest<'a>, ConflictingHeader<'static>> {
        let (own, other) = match proxy {
            ForwardAuthProxy::Standard => (FORWARDED_HEADERS, ORIGINAL_HEADERS),
            ForwardAuthProxy::Nginx => (ORIGINAL_HEADERS, FORWARDED_HEADERS),
        };
        let first = OriginalRequest::from_pair(headers, own)?;
        if first == OriginalRequest::default() {
            OriginalRequest::from_pair(headers, other)
        } else {
            Ok(first)
        }
    }

    fn from_pair(
        headers: &'a impl HeaderFields,
        [method, uri]: HeaderNamePair,
    ) -> Result<OriginalRequest<'a>, ConflictingHeader<'static>> {
        let method = single_header(headers, method)?;
        let uri = single_header(headers, uri)?;
        Ok(OriginalRequest {
            method: method.map(escape_non_utf8),
            path: uri.map(without_query).map(escape_non_utf8),
        })
    }
}

/// The last entry of `X-Forwarded-Host`: the nearest proxy wrote it, and those before it may be the client's.
fn forwarded_host(headers: &impl HeaderFields) -> Cow<'_, str> {
    let last = headers.values("x-forwarded-host").last().unwrap_or_default();
    let entry = last.rsplit(|byte| *byte == b',').next().unwrap_or_default();
    escape_non_utf8(entry.trim_ascii())
}

/// The value of a header, if all its values are the same.
fn single_header<'a>(
    headers: &'a impl HeaderFields,
    name: &'static str,
) -> Result<Option<&'a [u8]>, ConflictingHeader<'static>> {
    let mut values = headers.values(name);
    let first = values.next();
    match values.all(|other| Some(other) == first) {
        true => Ok(first),
        false => Err(ConflictingHeader(name)),
    }
}

fn without_query(uri: &[u8]) -> &[u8] {
    uri.split(|byte| *byte == b'?').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, HeaderName, HeaderValue};

    #[test]
    fn the_pair_of_the_proxy_wins_and_pairs_do_not_mix() {
        let both = [
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/a?b"),
            ("x-original-method", "POST"),
            ("x-original-uri", "/c"),
        ];
        let rows = [
            (ForwardAuthProxy::Standard, &both[..], Some("GET"), Some("/a")),
            (ForwardAuthProxy::Nginx, &both[..], Some("POST"), Some("/c")),
            (ForwardAuthProxy::Standard, &both[2..], Some("POST"), Some("/c")),
            (ForwardAuthProxy::Nginx, &both[..2], Some("GET"), Some("/a")),
            (ForwardAuthProxy::Nginx, &both[..3], Some("POST"), None),
            (ForwardAuthProxy::Standard, &both[..0], None, None),
        ];
        for (proxy, fields, method, path) in rows {
            let fields = fields.iter().map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            let headers: HeaderMap = fields.collect();
            let want = OriginalRequest {
                method: method.map(Cow::Borrowed),
                path: path.map(Cow::Borrowed),
            };
            assert_eq!(OriginalRequest::from_headers(&headers, proxy), Ok(want));
        }
    }

    #[test]
    fn odd_is_not_absent_and_twice_is_not_once() {
        let of = |values: &[&[u8]]| {
            let value = |bytes: &&[u8]| HeaderValue::from_bytes(bytes).expect("a value");
            let fields = values
                .iter()
                .map(|bytes| (HeaderName::from_static(FORWARDED_HEADERS[1]), value(bytes)));
            let headers: HeaderMap = fields.collect();
            OriginalRequest::from_headers(&headers, ForwardAuthProxy::Standard)
                .map(|original| original.path.map(String::from))
        };
        let path = |path: &str| Ok(Some(path.to_string()));
        assert_eq!(of(&[b"/login?\xff"]), path("/login"));
        assert_eq!(of(&[b"/log\xffin"]), path("/log%FFin"));
        assert_eq!(of(&["/caf\u{e9}?x".as_bytes()]), path("/caf\u{e9}"));
        assert_eq!(of(&[b"/a", b"/a"]), path("/a"));
        assert_eq!(of(&[b"/a", b"/login"]), Err(ConflictingHeader(FORWARDED_HEADERS[1])));
        assert_eq!(of(&[]), Ok(None));
    }
}
