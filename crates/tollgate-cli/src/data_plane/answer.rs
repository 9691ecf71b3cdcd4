//! An answer as an HTTP response: the decision in JSON, and the rate limit header fields.

use std::borrow::Cow;

use http::StatusCode;
use serde_json::json;
use tollgate::headers::{Dialect, FieldText, ProblemDetails, RateLimitField, RateLimitReply};
use tollgate::{Refusal, Wait};
use tollgate_rules::{Answer, Enforcement, JudgedLimit, MissingFacts, ReservationId};

use crate::reply::{self, DecisionReply, HttpReply, write_display, write_json_text};

/// Room for the text of most header fields together.
const FIELDS_BYTES: usize = 224;

/// Room for the text of most decisions.
const DECISION_BYTES: usize = 480;

/// The reply to a check: 200 or a refusal; 400 where facts are missing.
pub(super) fn decision_reply(answer: &Answer, reservation: Option<ReservationId>) -> HttpReply {
    if let Some(missing) = answer.unanswered() {
        let mut out = Vec::with_capacity(DECISION_BYTES);
        write_missing_facts(&mut out, &missing);
        return reply::json(StatusCode::BAD_REQUEST, out).into();
    }
    let status = answer.refusal().map_or(StatusCode::OK, status_of);
    let content = ResponseContent {
        media_type: Cow::Borrowed("application/json"),
        bytes_hint: DECISION_BYTES,
    };
    HttpReply::Decision(respond(status, content, answer, |out, reply| {
        write_decision(out, answer, reply, reservation);
    }))
}

/// The status of a refusal.
pub(super) fn status_of(refusal: Refusal) -> StatusCode {
    match refusal {
        Refusal::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::TOO_MANY_REQUESTS,
    }
}

/// Machine-readable reason of the error for missing facts.
const MISSING_FACTS: &str = "missing_facts";

/// Writes the error for missing facts: the rule that was skipped, and the facts that it needs. `allowed` is false,
/// so that a client which reads nothing else does not let the request pass.
#[cold]
pub(super) fn write_missing_facts(out: &mut Vec<u8>, missing: &MissingFacts<'_>) {
    let message = format!(
        "No rule could be applied: {missing}. Send it (an empty string counts as missing), or let such \
         requests pass with --missing-facts allow."
    );
    let document = json!({
        "allowed": false,
        "error": StatusCode::BAD_REQUEST.canonical_reason(),
        "message": message,
        "reason": MISSING_FACTS,
        "rule": &*missing.rule().name,
        "missing": missing.facts().collect::<Vec<_>>(),
    });
    serde_json::to_writer(out, &document).expect("a vector takes every byte");
}

/// Media type and expected size of a response body.
#[derive(Debug)]
pub(super) struct ResponseContent {
    /// Media type; not sent if the body is empty.
    pub(super) media_type: Cow<'static, str>,
    /// Expected length in bytes.
    pub(super) bytes_hint: usize,
}

/// No body.
pub(super) const NO_BODY: ResponseContent =
    ResponseContent { media_type: Cow::Borrowed(""), bytes_hint: 0 };

/// A reply with the header fields of an answer.
pub(super) fn respond(
    status: StatusCode,
    content: ResponseContent,
    answer: &Answer,
    write_body: impl FnOnce(&mut Vec<u8>, &RateLimitReply<'_>),
) -> DecisionReply {
    respond_in_dialects(answer.dialects(), status, content, answer, write_body)
}

/// A reply with the header fields of an answer, in these dialects. The text of fields and body shares one
/// allocation.
pub(super) fn respond_in_dialects(
    dialects: &[Dialect],
    status: StatusCode,
    content: ResponseContent,
    answer: &Answer,
    write_body: impl FnOnce(&mut Vec<u8>, &RateLimitReply<'_>),
) -> DecisionReply {
    let policies = answer.policies();
    let reply = answer.reply(&policies);
    let mut text = FieldText::with_capacity(FIELDS_BYTES + content.bytes_hint);
    for_each_field(answer, dialects, &reply, |field, write_value| text.add(field, write_value));
    let (fields, body) = text.finish_with_body(|out| write_body(out, &reply));
    let media_type = content.media_type;
    DecisionReply { status, media_type, fields, meant_status: None, body, at: answer.at() }
}

/// Calls `tell` with each header field of an answer and a function that writes its value.
#[inline(always)]
pub(super) fn for_each_field(
    answer: &Answer,
    dialects: &[Dialect],
    reply: &RateLimitReply<'_>,
    mut tell: impl FnMut(RateLimitField, &dyn Fn(&mut Vec<u8>)),
) {
    reply.for_each_header(dialects, |field, value| tell(field, &|out| value.write_to(out)));
    if answer.warnings().next().is_some() {
        tell(RateLimitField::XWarning, &|out| write_warnings(out, answer));
    }
}

/// Writes the names of soft limits that are exceeded.
fn write_warnings(text: &mut Vec<u8>, answer: &Answer) {
    for (index, name) in answer.warnings().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        text.extend_from_slice(comma.as_bytes());
        text.extend_from_slice(name.as_str().as_bytes());
    }
}

/// Writes the decision in JSON.
pub(super) fn write_decision(
    out: &mut Vec<u8>,
    answer: &Answer,
    reply: &RateLimitReply<'_>,
    reservation: Option<ReservationId>,
) {
    let binding = answer.binding();
    // While the store is unavailable, the remaining units are unknown.
    let known = answer.is_known();
    out.extend_from_slice(if answer.allowed() {
        b"{\"allowed\":true"
    } else {
        b"{\"allowed\":false"
    });
    write_text(out, ",\"rule\":", binding.map(|binding| binding.rule));
    write_text(out, ",\"limit\":", binding.map(|binding| binding.limit));
    write_number(out, ",\"remaining\":", binding.filter(|_| known).map(|_| answer.remaining()));
    write_wait(out, ",\"retry_after_ms\":", answer.retry_after());
    write_wait(out, ",\"reset_after_ms\":", known_wait(answer.reset_after(), known));
    write_wait(out, ",\"delay_ms\":", answer.delay());
    write_number(out, ",\"max\":", binding.map(|_| answer.capacity()));
    write_number(out, ",\"reset_at\":", binding.filter(|_| known).and_then(|_| reply.reset_at_s()));
    out.extend_from_slice(b",\"decided_by\":\"");
    out.extend_from_slice(answer.decided_by().name().as_bytes());
    out.extend_from_slice(b"\",\"limits\":[");
    for (index, judged) in answer.limits().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_judged(out, &judged);
    }
    out.push(b']');
    if let Some(problem) = reply.problem() {
        write_refusal(out, &problem, reply.retry_after_s());
    }
    if let Some(id) = reservation {
        out.extend_from_slice(b",\"reservation\":\"");
        write_display(out, id);
        out.push(b'"');
    }
    out.push(b'}');
}

fn write_judged(out: &mut Vec<u8>, judged: &JudgedLimit<'_>) {
    let outcome = &judged.outcome;
    out.extend_from_slice(b"{\"rule\":");
    write_json_text(out, judged.rule);
    write_text(out, ",\"limit\":", Some(judged.limit));
    out.extend_from_slice(if outcome.allowed {
        b",\"allowed\":true"
    } else {
        b",\"allowed\":false"
    });
    let known = outcome.is_known();
    write_number(out, ",\"remaining\":", known.then_some(outcome.remaining));
    write_wait(out, ",\"retry_after_ms\":", outcome.retry_after);
    write_wait(out, ",\"reset_after_ms\":", known_wait(outcome.reset_after, known));
    match judged.enforcement {
        Enforcement::Enforced => {}
        Enforcement::Shadow => out.extend_from_slice(b",\"shadow\":true"),
        Enforcement::Soft => out.extend_from_slice(b",\"soft\":true"),
    }
    out.push(b'}');
}

fn write_refusal(out: &mut Vec<u8>, problem: &ProblemDetails<'_>, retry_after_s: Option<u64>) {
    out.extend_from_slice(b",\"reason\":\"");
    out.extend_from_slice(problem.reason().as_bytes());
    out.extend_from_slice(b"\",\"error\":\"");
    out.extend_from_slice(problem.error().as_bytes());
    // Digits and plain words: nothing to escape.
    out.extend_from_slice(b"\",\"message\":\"");
    write_display(out, problem.message());
    out.push(b'"');
    write_number(out, ",\"retryAfter\":", retry_after_s);
}

/// Writes a member of an object. `name` includes its punctuation, so that it is copied in one piece; inlined, so
/// that the length of that piece is known at compile time.
#[inline(always)]
fn write_text(out: &mut Vec<u8>, name: &str, text: Option<&str>) {
    out.extend_from_slice(name.as_bytes());
    match text {
        Some(text) => write_json_text(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

#[inline(always)]
pub(super) fn write_number(out: &mut Vec<u8>, name: &str, number: Option<u64>) {
    out.extend_from_slice(name.as_bytes());
    match number {
        Some(digit @ 0..10) => out.push(b'0' + digit as u8),
        Some(number) => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
}

/// The wait, or `NEVER` (written as null) if it is unknown.
#[inline(always)]
fn known_wait(wait: Wait, known: bool) -> Wait {
    if known { wait } else { Wait::NEVER }
}

/// Writes a wait in milliseconds, rounded up: a client that waits this long is admitted.
#[inline(always)]
fn write_wait(out: &mut Vec<u8>, name: &str, wait: Wait) {
    write_number(out, name, wait.millis());
}
