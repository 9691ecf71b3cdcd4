//! What a proxy says in the headers of its question: the request that it has, and who is calling.
//!
//! The proxy puts the request it has into headers: `X-Forwarded-Method` and `-Uri` (Traefik, Caddy),
//! or `X-Original-Method` and `-URI` (nginx). They count only from peers that the rules trust, as
//! everything does that is said about somebody else.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate::Micros;
use tollgate_rules::{Identity, RuleSet};

use super::facts::{RequestHeaders, spelt};

/// What the proxy does with a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Passes it on as it is.
    PassedOn,
    /// Knows 401 and 403 only.
    Nginx,
}

/// What a question says that counts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Forwarded<'a> {
    /// Nothing, if the peer is not trusted.
    pub(super) original: Original<'a>,
    pub(super) identity: Identity<'a>,
    pub(super) trusted: bool,
}

impl<'a> Forwarded<'a> {
    /// Reads the headers of a question from this peer.
    pub(super) fn read(
        headers: &'a RequestHeaders<'a>,
        rules: &RuleSet,
        peer: IpAddr,
        style: Style,
        now: Micros,
    ) -> Result<Forwarded<'a>, SaidTwice<'a>> {
        let identify = &rules.settings().identify;
        let trusted = identify.trusts(peer.to_canonical());
        if let Some(name) = headers.said_twice(rules, trusted) {
            return Err(SaidTwice(name));
        }
        let original = match trusted {
            true => Original::of(headers.0, style)?,
            false => Original::default(),
        };
        Ok(Forwarded { original, identity: identify.identify(peer, headers, now), trusted })
    }
}

/// The request that the proxy has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Original<'a> {
    pub(super) method: Option<Cow<'a, str>>,
    pub(super) path: Option<Cow<'a, str>>,
}

/// A header that says what the request is stands twice, with different values: whichever was
/// believed, a client might have chosen it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SaidTwice<'a>(pub(super) &'a HeaderName);

/// Method and path.
type Pair = [HeaderName; 2];
static FORWARDED: Pair =
    [HeaderName::from_static("x-forwarded-method"), HeaderName::from_static("x-forwarded-uri")];
static ORIGINAL: Pair =
    [HeaderName::from_static("x-original-method"), HeaderName::from_static("x-original-uri")];

impl<'a> Original<'a> {
    /// Both come from one pair of headers, first the one that this kind of proxy writes: the other
    /// may be the client's.
    fn of(headers: &'a HeaderMap, style: Style) -> Result<Original<'a>, SaidTwice<'static>> {
        let (own, other) = match style {
            Style::PassedOn => (&FORWARDED, &ORIGINAL),
            Style::Nginx => (&ORIGINAL, &FORWARDED),
        };
        let first = Original::of_pair(headers, own)?;
        if first == Original::default() { Original::of_pair(headers, other) } else { Ok(first) }
    }

    fn of_pair(
        headers: &'a HeaderMap,
        names: &'static Pair,
    ) -> Result<Original<'a>, SaidTwice<'static>> {
        let [method, uri] = names;
        let method = only(headers, method)?.map(HeaderValue::as_bytes);
        let uri = only(headers, uri)?.map(HeaderValue::as_bytes);
        Ok(Original { method: method.map(spelt), path: uri.map(without_query).map(spelt) })
    }
}

/// The one value of a header.
fn only<'a>(
    headers: &'a HeaderMap,
    name: &'static HeaderName,
) -> Result<Option<&'a HeaderValue>, SaidTwice<'static>> {
    let mut values = headers.iter().filter(|(field, _)| *field == name).map(|(_, value)| value);
    let first = values.next();
    match values.all(|other| Some(other) == first) {
        true => Ok(first),
        false => Err(SaidTwice(name)),
    }
}

fn without_query(uri: &[u8]) -> &[u8] {
    uri.split(|byte| *byte == b'?').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pair_of_the_proxy_wins_and_pairs_do_not_mix() {
        let both = [
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/a?b"),
            ("x-original-method", "POST"),
            ("x-original-uri", "/c"),
        ];
        let rows = [
            (Style::PassedOn, &both[..], Some("GET"), Some("/a")),
            (Style::Nginx, &both[..], Some("POST"), Some("/c")),
            (Style::PassedOn, &both[2..], Some("POST"), Some("/c")),
            (Style::Nginx, &both[..2], Some("GET"), Some("/a")),
            (Style::Nginx, &both[..3], Some("POST"), None),
            (Style::PassedOn, &both[..0], None, None),
        ];
        for (style, fields, method, path) in rows {
            let fields = fields.iter().map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            let headers: HeaderMap = fields.collect();
            let want =
                Original { method: method.map(Cow::Borrowed), path: path.map(Cow::Borrowed) };
            assert_eq!(Original::of(&headers, style), Ok(want));
        }
    }

    #[test]
    fn odd_is_not_absent_and_twice_is_not_once() {
        let of = |values: &[&[u8]]| {
            let value = |bytes: &&[u8]| HeaderValue::from_bytes(bytes).expect("a value");
            let fields = values.iter().map(|bytes| (FORWARDED[1].clone(), value(bytes)));
            let headers: HeaderMap = fields.collect();
            Original::of(&headers, Style::PassedOn).map(|original| original.path.map(String::from))
        };
        let path = |path: &str| Ok(Some(path.to_string()));
        assert_eq!(of(&[b"/login?\xff"]), path("/login"));
        assert_eq!(of(&[b"/log\xffin"]), path("/log%FFin"));
        assert_eq!(of(&["/caf\u{e9}?x".as_bytes()]), path("/caf\u{e9}"));
        assert_eq!(of(&[b"/a", b"/a"]), path("/a"));
        assert_eq!(of(&[b"/a", b"/login"]), Err(SaidTwice(&FORWARDED[1])));
        assert_eq!(of(&[]), Ok(None));
    }
}
