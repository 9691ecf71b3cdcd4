//! `/v1/forward-auth`: a proxy sends a check before it forwards a request.
//!
//! The original request is described in headers, which `forwarded.rs` reads. The query is ignored, because some
//! proxies append their client's. A refusal is 429 with a problem document, or 503 while the store is
//! unavailable. nginx forwards only 401 and 403, so it gets 403, and the actual status in a header.

use std::net::IpAddr;

use http::{HeaderName, HeaderValue, Response, StatusCode, request};
use tollgate::headers::ProblemDetails;
use tollgate_rules::{Ask, Facts, Headers};

use super::answer::{ResponseContent, respond, status_of};
use super::check_service::CheckService;
use super::facts::RequestHeaders;
use super::forwarded::{ConflictingHeader, ForwardAuthProxy, ForwardedRequest};
use crate::listeners::response_body::ResponseBody;
use crate::reply::{self, write_display};

/// Bytes reserved for a problem document.
const PROBLEM_BYTES: usize = 480;

pub(super) async fn answer(
    checks: &CheckService,
    head: &request::Parts,
    peer: IpAddr,
    proxy: ForwardAuthProxy,
) -> Response<ResponseBody> {
    let headers = RequestHeaders(&head.headers);
    let (rules, now) = (checks.gatekeeper.rules(), checks.gatekeeper.now());
    let forwarded = match ForwardedRequest::read(&headers, &rules, peer, proxy, now) {
        Ok(forwarded) => forwarded,
        Err(ConflictingHeader(name)) => return reject_conflicting_header(name),
    };
    if !forwarded.trusted {
        checks.warnings.untrusted_proxy(peer, now);
    }
    let ForwardedRequest { original, identity, trusted } = forwarded;
    let said = [original.method.is_some(), original.path.is_some()];
    if trusted && said != [true, true] {
        checks.warnings.silent_proxy(peer, said, &rules, now);
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
    let answer = checks.decide(rules, &ask, now).await;
    let Some(refusal) = answer.refusal() else {
        return respond(StatusCode::OK, ResponseContent::empty(), &answer, |_, _| {});
    };
    let meant = status_of(refusal);
    let status = match proxy {
        ForwardAuthProxy::Standard => meant,
        ForwardAuthProxy::Nginx => StatusCode::FORBIDDEN,
    };
    let kind = const { HeaderValue::from_static(ProblemDetails::CONTENT_TYPE) };
    let content = ResponseContent { media_type: kind, bytes_hint: PROBLEM_BYTES };
    let mut response = respond(status, content, &answer, |out, reply| {
        if let Some(problem) = reply.problem() {
            write_display(out, problem);
        }
    });
    if proxy == ForwardAuthProxy::Nginx {
        let name = const { HeaderName::from_static("x-tollgate-status") };
        response.headers_mut().insert(name, meant.as_u16().into());
    }
    response
}

/// The error for a header with two values, either of which the client may have chosen.
fn reject_conflicting_header(name: &HeaderName) -> Response<ResponseBody> {
    let message = format!("{name} appears twice, with different values.");
    reply::error(StatusCode::BAD_REQUEST, &message)
}
