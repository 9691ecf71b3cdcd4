//! `/v1/forward-auth`: a proxy asks before it passes a request on.
//!
//! What it asks about is in headers, which `forwarded.rs` reads; nothing is taken from the query,
//! because some proxies append their client's. A refusal is 429 with a problem document, or 503 while
//! the store does not answer; nginx passes on only 401 and 403, so it gets 403 and is told the rest in a
//! header.

use std::net::IpAddr;

use http::{HeaderName, HeaderValue, Response, StatusCode, request};
use tollgate::headers::Problem;
use tollgate_rules::{Ask, Facts, Headers};

use super::answer::{Content, respond, status_of, write_display};
use super::facts::RequestHeaders;
use super::forwarded::{Forwarded, SaidTwice, Style};
use super::http::DataPlane;
use crate::listeners::connection::Body;
use crate::reply;

/// Room for most problem documents.
const PROBLEM_BYTES: usize = 480;

pub(super) async fn answer(
    plane: &DataPlane,
    head: &request::Parts,
    peer: IpAddr,
    style: Style,
) -> Response<Body> {
    let headers = RequestHeaders(&head.headers);
    let (rules, now) = (plane.gatekeeper.rules(), plane.gatekeeper.now());
    let forwarded = match Forwarded::read(&headers, &rules, peer, style, now) {
        Ok(forwarded) => forwarded,
        Err(SaidTwice(name)) => return refuse_twice(name),
    };
    if !forwarded.trusted {
        plane.warnings.untrusted_proxy(peer, now);
    }
    let Forwarded { original, identity, trusted } = forwarded;
    let said = [original.method.is_some(), original.path.is_some()];
    if trusted && said != [true, true] {
        plane.warnings.silent_proxy(peer, said, &rules, now);
    }
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
    let Some(refusal) = answer.refusal() else {
        return respond(StatusCode::OK, Content::none(), &answer, |_, _| {});
    };
    let meant = status_of(refusal);
    let status = match style {
        Style::PassedOn => meant,
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
        response.headers_mut().insert(name, meant.as_u16().into());
    }
    response
}

/// A header says two things, and either may be the client's choice.
fn refuse_twice(name: &HeaderName) -> Response<Body> {
    let message = format!("{name} stands twice, with different values.");
    reply::error(StatusCode::BAD_REQUEST, &message)
}
