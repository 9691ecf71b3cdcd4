//! `/v1/forward-auth`: a proxy asks before it passes a request on.
//!
//! The proxy puts the request it has into headers: `X-Forwarded-Method` and `-Uri` (Traefik, Caddy),
//! or `X-Original-Method` and `-URI` (nginx). They count only from peers that the rules trust.
//! Nothing is taken from the query, because some proxies append their client's. A refusal is 429
//! with a problem document; nginx passes on only 401 and 403, so it gets 403 and is told the rest
//! in a header.

use std::net::IpAddr;

use http::{HeaderName, HeaderValue, Response, StatusCode, request};
use tollgate::headers::Problem;
use tollgate_rules::{Ask, Facts, Gatekeeper, Headers};

use super::answer::{Content, respond, write_display};
use super::facts::RequestHeaders;
use crate::doors::connection::Body;
use crate::warnings::Warnings;

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

pub(super) fn answer(
    gatekeeper: &Gatekeeper,
    head: &request::Parts,
    peer: IpAddr,
    style: Style,
    warnings: &Warnings,
) -> Response<Body> {
    let headers = RequestHeaders(&head.headers);
    let rules = gatekeeper.rules();
    let identify = &rules.settings().identify;
    let identity = identify.identify(peer, &headers);
    let original = match identify.trusts(peer.to_canonical()) {
        true => Original::of(&headers, style),
        false => {
            warnings.untrusted_proxy(peer, gatekeeper.now());
            Original::default()
        }
    };
    let facts = Facts {
        method: original.method,
        path: original.path,
        ip: identity.ip,
        user: identity.user.as_deref(),
        tier: identity.tier.as_deref(),
        api_key: identity.api_key.as_deref(),
        headers: Some(&headers as &dyn Headers),
    };
    let answer = gatekeeper.decide(&Ask { facts, cannot_wait: true, ..Ask::default() });
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

/// The request that the proxy has.
#[derive(Debug, Default, PartialEq, Eq)]
struct Original<'a> {
    method: Option<&'a str>,
    path: Option<&'a str>,
}

/// Method and path.
type Pair = [HeaderName; 2];
static FORWARDED: Pair =
    [HeaderName::from_static("x-forwarded-method"), HeaderName::from_static("x-forwarded-uri")];
static ORIGINAL: Pair =
    [HeaderName::from_static("x-original-method"), HeaderName::from_static("x-original-uri")];

impl<'a> Original<'a> {
    /// Both come from one pair of headers, first the one that this kind of proxy writes: the other
    /// may be the client's.
    fn of(headers: &'a RequestHeaders<'_>, style: Style) -> Original<'a> {
        let (own, other) = match style {
            Style::PassedOn => (&FORWARDED, &ORIGINAL),
            Style::Nginx => (&ORIGINAL, &FORWARDED),
        };
        let pair = |names: &Pair| {
            let [method, path] = names.each_ref().map(|name| headers.text(name));
            Original { method, path: path.map(without_query) }
        };
        let first = pair(own);
        if first == Original::default() { pair(other) } else { first }
    }
}

fn without_query(uri: &str) -> &str {
    uri.split_once('?').map_or(uri, |(path, _)| path)
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

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
            assert_eq!(Original::of(&RequestHeaders(&headers), style), Original { method, path });
        }
    }
}
