//! `/v1/forward-auth`: a proxy sends a check before it forwards a request.
//!
//! The original request is described in headers, which `forwarded.rs` reads. The query is ignored, because some
//! proxies append their client's. A refusal is 429 with a problem document, the rule's own response, or 503 while the
//! store is unavailable. nginx forwards only 401 and 403, so it gets 403, and the actual status in a header.

use std::net::IpAddr;

use http::StatusCode;
use tollgate::headers::ProblemDetails;
use tollgate_rules::{Answer, Ask, Facts, Headers, OwnRefusal};

use super::answer::{NO_BODY, ResponseContent, respond, status_of};
use super::check_service::CheckService;
use super::facts::RequestHeaders;
use super::forwarded::{ConflictingHeader, ForwardAuthProxy, ForwardedRequest};
use super::header_fields::HeaderFields;
use crate::reply::{self, DecisionReply, HttpReply, write_display};

/// Bytes reserved for a problem document.
const PROBLEM_BYTES: usize = 480;

pub(super) async fn answer(
    checks: &CheckService,
    headers: &impl HeaderFields,
    peer: IpAddr,
    proxy: ForwardAuthProxy,
) -> HttpReply {
    let headers = RequestHeaders(headers);
    let (rules, now) = (checks.gatekeeper.rules(), checks.gatekeeper.now());
    let forwarded = match ForwardedRequest::read(&headers, &rules, peer, proxy, now) {
        Ok(forwarded) => forwarded,
        Err(ConflictingHeader(name)) => return reject_conflicting_header(name),
    };
    if !forwarded.trusted {
        checks.warnings.untrusted_proxy(peer, now);
    }
    let ForwardedRequest { original, host, identity, trusted } = forwarded;
    let said = [original.method.is_some(), original.path.is_some()];
    if trusted && said != [true, true] {
        checks.warnings.silent_proxy(peer, said, &rules, now);
    }
    let facts = Facts {
        method: original.method.as_deref(),
        path: original.path.as_deref(),
        // The field `Host` of this request names Tollgate.
        host: Some(&*host),
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
        return HttpReply::Decision(respond(StatusCode::OK, NO_BODY, &answer, |_, _| {}));
    };
    if proxy == ForwardAuthProxy::Standard
        && let Some(own) = answer.own_refusal()
    {
        return HttpReply::Decision(own_refusal(&answer, own));
    }
    let meant = status_of(refusal);
    let status = match proxy {
        ForwardAuthProxy::Standard => meant,
        ForwardAuthProxy::Nginx => StatusCode::FORBIDDEN,
    };
    let content = ResponseContent {
        media_type: ProblemDetails::CONTENT_TYPE.into(),
        bytes_hint: PROBLEM_BYTES,
    };
    let mut reply = respond(status, content, &answer, |out, reply| {
        if let Some(problem) = reply.problem() {
            write_display(out, problem);
        }
    });
    reply.meant_status = (proxy == ForwardAuthProxy::Nginx).then_some(meant);
    HttpReply::Decision(reply)
}

/// The response that a rule gives to refused clients. nginx sends no body of a check on, so it gets none.
fn own_refusal(answer: &Answer, own: &OwnRefusal) -> DecisionReply {
    // The compiler of rules lets only these statuses through.
    let status = StatusCode::from_u16(own.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let media_type = own.content_type.to_string().into();
    let content = ResponseContent { media_type, bytes_hint: own.body.len() };
    respond(status, content, answer, |out, _| out.extend_from_slice(&own.body))
}

/// The error for a header with two values, either of which the client may have chosen.
fn reject_conflicting_header(name: &str) -> HttpReply {
    let message = format!(
        "{name} appears twice, with different values, or servers mistake it for another header."
    );
    reply::error(StatusCode::BAD_REQUEST, &message).into()
}
