//! `/v1/forward-auth`: a proxy asks before it passes a request on.
//!
//! The proxy puts the request it has into headers: `X-Forwarded-Method` and `-Uri` (Traefik, Caddy),
//! or `X-Original-Method` and `-URI` (nginx). They count only from peers that the rules trust.
//! Nothing is taken from the query, because some proxies append their client's. A refusal is 429
//! with a problem document; nginx passes on only 401 and 403, so it gets 403 and is told the rest
//! in a header.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, request};
use tollgate::headers::Problem;
use tollgate_rules::{Ask, Facts, Headers};

use super::answer::{Content, respond, write_display};
use super::facts::{RequestHeaders, spelt};
use super::http::DataPlane;
use crate::doors::connection::Body;
use crate::reply;

/// Room for most problem documents.
const PROBLEM_BYTES: usize = 480;

/// What the proxy does with a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Passes it on as it is.
    PassedOn,
    /// Knows 401 and 403 only.
    Nginx,
}

pub(super) async fn answer(
    plane: &DataPlane,
    head: &request::Parts,
    peer: IpAddr,
    style: Style,
) -> Response<Body> {
    let headers = RequestHeaders(&head.headers);
    let (rules, now) = (plane.gatekeeper.rules(), plane.gatekeeper.now());
    if let Some(name) = headers.said_twice(&rules) {
        return refuse_twice(name);
    }
    let identify = &rules.settings().identify;
    let identity = identify.identify(peer, &headers, now);
    let original = match identify.trusts(peer.to_canonical()) {
        true => match Original::of(&head.headers, style) {
            Ok(original) => original,
            Err(SaidTwice(name)) => return refuse_twice(name),
        },
        false => {
            plane.warnings.untrusted_proxy(peer, now);
            Original::default()
        }
    };
    let facts = Facts {
        method: original.method.as_deref(),
        path: original.path.as_deref(),
        ip: identity.ip,
        user: identity.user.as_deref(),
        tier: identity.tier.as_deref(),
        api_key: identity.api_key.as_deref(),
        headers: Some(&headers as &dyn Headers),
        ..Facts::default()
    };
    let ask = Ask { facts, cannot_wait: true, ..Ask::default() };
    let answer = plane.decide(rules, &ask, now).await;
    if answer.allowed() {
        return respond(StatusCode::OK, Content::none(), &answer, |_, _| {});
    }
    let status = match style {
        Style::PassedOn => StatusCode::TOO_MANY_REQUESTS,
        Style::Nginx => StatusCode::FORBIDDEN,
    };
    let kind = const { HeaderValue::from_static(Problem::CONTENT_TYPE) };
    let content = Content { kind, bytes: PROBLEM_BYTES };
    let mut response = respond(status, content, &answer, |out, reply| {
        if let Some(problem) = reply.problem() {
            write_display(out, problem);
        }
    });
    if style == Style::Nginx {
        let name = const { HeaderName::from_static("x-tollgate-status") };
        response.headers_mut().insert(name, HeaderValue::from_static("429"));
    }
    response
}

/// A header says two things, and either may be the client's choice.
fn refuse_twice(name: &HeaderName) -> Response<Body> {
    let message = format!("{name} stands twice, with different values.");
    reply::error(StatusCode::BAD_REQUEST, &message)
}

/// The request that the proxy has.
#[derive(Debug, Default, PartialEq, Eq)]
struct Original<'a> {
    method: Option<Cow<'a, str>>,
    path: Option<Cow<'a, str>>,
}

/// A header that says what the request is stands twice, with different values: whichever was
/// believed, a client might have chosen it.
#[derive(Debug, PartialEq, Eq)]
struct SaidTwice(&'static HeaderName);

/// Method and path.
type Pair = [HeaderName; 2];
static FORWARDED: Pair =
    [HeaderName::from_static("x-forwarded-method"), HeaderName::from_static("x-forwarded-uri")];
static ORIGINAL: Pair =
    [HeaderName::from_static("x-original-method"), HeaderName::from_static("x-original-uri")];

impl<'a> Original<'a> {
    /// Both come from one pair of headers, first the one that this kind of proxy writes: the other
    /// may be the client's.
    fn of(headers: &'a HeaderMap, style: Style) -> Result<Original<'a>, SaidTwice> {
        let (own, other) = match style {
            Style::PassedOn => (&FORWARDED, &ORIGINAL),
            Style::Nginx => (&ORIGINAL, &FORWARDED),
        };
        let first = Original::of_pair(headers, own)?;
        if first == Original::default() { Original::of_pair(headers, other) } else { Ok(first) }
    }

    fn of_pair(headers: &'a HeaderMap, names: &'static Pair) -> Result<Original<'a>, SaidTwice> {
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
) -> Result<Option<&'a HeaderValue>, SaidTwice> {
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
