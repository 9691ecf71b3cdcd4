//! `ShouldRateLimit`: a request of Envoy's becomes descriptors, the answer becomes a response.

use std::borrow::Cow;

use bytes::Bytes;
use tollgate::headers::Problem;
use tollgate::time::MAX_EXACT;
use tollgate_rules::at_once;
use tollgate_rules::descriptors::{
    Described, Descriptor, DescriptorAsk, DescriptorError, Entry, Hits, StatedLimit, Status,
};

use super::call::{Failed, Outcome};
use super::code::Code;
use super::frame;
use super::messages::{RateLimitDescriptor, RateLimitRequest};
use super::response::{
    DescriptorStatus, RateLimit, Verdict, unit_of_number, write_body, write_header, write_overall,
    write_status,
};
use crate::data_plane::answer::{for_each_field, write_display};
use crate::metrics::Timing;
use crate::store::Gatekeeper;
use crate::warnings::Warnings;

/// Room for most responses.
const RESPONSE_BYTES: usize = 480;

/// What is wrong with a request, for whoever sent it.
pub(in crate::data_plane) type Wrong = Cow<'static, str>;

/// What comes of a request.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every request has the large one")]
pub(in crate::data_plane) enum Decided {
    Described(Described),
    /// More limits apply than one decision holds, or more are stated than there is room for: so many
    /// descriptors are refused. It is no error, on which Envoy would let the request pass: what clients
    /// send decides which limits apply.
    TooManyLimits(usize),
}

/// Answers a call.
pub(super) async fn answer(
    gatekeeper: &Gatekeeper,
    (timing, warnings): (&Timing, &Warnings),
    request: &RateLimitRequest<'_>,
) -> Outcome {
    let decided = decide(gatekeeper, (timing, warnings), request).await;
    let decided = decided.map_err(|message| Failed { code: Code::InvalidArgument, message })?;
    Ok(frame::close(RESPONSE_BYTES, |out| match &decided {
        Decided::Described(described) => write(out, described),
        Decided::TooManyLimits(descriptors) => write_refused(out, *descriptors),
    }))
}

/// The answer to a message that is too long to be read. Clients make messages long, and on an error Envoy
/// would let them pass.
pub(super) fn refused_unread(gatekeeper: &Gatekeeper, warnings: &Warnings) -> Bytes {
    let (why, now) = (DescriptorError::TooLong, gatekeeper.now());
    gatekeeper.tell_undecided(&gatekeeper.rules(), why, now);
    warnings.too_many_limits(why, now);
    frame::close(RESPONSE_BYTES, |out| write_refused(out, 0))
}

/// Decides a request, however it was sent.
pub(in crate::data_plane) async fn decide(
    gatekeeper: &Gatekeeper,
    (timing, warnings): (&Timing, &Warnings),
    request: &RateLimitRequest<'_>,
) -> Result<Decided, Wrong> {
    let each = request.descriptors.iter().flat_map(|one| &one.entries);
    let entries: Vec<_> =
        each.map(|entry| Entry { name: &entry.key, value: &entry.value }).collect();
    let mut rest = &entries[..];
    let mut descriptors = Vec::with_capacity(request.descriptors.len());
    for asked in &request.descriptors {
        let (entries, behind) = rest.split_at(asked.entries.len());
        rest = behind;
        let (hits, limit) = (hits(request, asked), stated(asked)?);
        descriptors.push(Descriptor { entries, hits, limit });
    }
    let ask = DescriptorAsk { domain: &request.domain, descriptors: &descriptors };
    let (rules, now) = (gatekeeper.rules(), gatekeeper.now());
    // What a decision needs on its way is large, and all that a call keeps while it waits is copied when
    // its task is made. In memory nothing waits; otherwise the decision has a place of its own.
    let decided = match gatekeeper.limiter().store().shared() {
        None => at_once(timing.of(gatekeeper.decide_descriptors_by(
            rules,
            &ask,
            gatekeeper.as_read(now),
        ))),
        Some(_) => {
            let deciding =
                Box::pin(gatekeeper.decide_descriptors_by(rules, &ask, gatekeeper.as_read(now)));
            timing.of(deciding).await
        }
    };
    match decided {
        Ok(described) => Ok(Decided::Described(described)),
        Err(error) if error.is_refusal() => {
            warnings.too_many_limits(error, now);
            Ok(Decided::TooManyLimits(request.descriptors.len()))
        }
        Err(error) => Err(sentence(error).into()),
    }
}

/// What a descriptor asks for: its own hits if it has any, else the request's; `None`: neither says.
fn hits(request: &RateLimitRequest<'_>, asked: &RateLimitDescriptor<'_>) -> Option<Hits> {
    let of_all = (request.hits_addend > 0).then_some(request.hits_addend.into());
    let said = asked.hits_addend.or(of_all);
    // More than any limit has: it is refused, forced or given back as far as there is anything.
    let said = said.map(|number| number.min(MAX_EXACT));
    match asked.is_negative_hits {
        true => Some(Hits::Refund(said)),
        false => said.map(Hits::Take),
    }
}

/// The limit that the caller brings.
fn stated(asked: &RateLimitDescriptor<'_>) -> Result<Option<StatedLimit>, Wrong> {
    let Some(limit) = &asked.limit else { return Ok(None) };
    let Some(unit) = unit_of_number(limit.unit) else {
        let wrong =
            "A limit of a descriptor has no unit: send SECOND, MINUTE, HOUR, DAY, MONTH or YEAR.";
        return Err(wrong.into());
    };
    Ok(Some(StatedLimit { units: limit.requests_per_unit, unit }))
}

/// As a sentence of its own.
fn sentence(error: DescriptorError) -> String {
    let text = error.to_string();
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).chain(['.']).collect()
}

/// What is said of a descriptor, in the protocol's numbers.
pub(in crate::data_plane) fn told<'a>(status: &Status<'a>) -> DescriptorStatus<'a> {
    let least = u64::from(status.over);
    // Not before it helps to come back; where no wait helps, there is still an end of what was used.
    let wait = Some(status.retry_after).filter(|wait| !wait.is_never()).unwrap_or_default();
    let reset = status.reset_after.max(wait).seconds();
    let limit = status.limit.as_ref();
    DescriptorStatus {
        verdict: Verdict::of(status.over),
        current_limit: limit.map(|limit| RateLimit {
            name: limit.name.unwrap_or_default(),
            requests_per_unit: saturated(limit.units),
            unit: limit.unit,
        }),
        limit_remaining: saturated(status.remaining),
        reset_after_s: reset.filter(|_| limit.is_some()).map(|seconds| seconds.max(least)),
    }
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Says of each descriptor that it is refused, and nothing of limits.
fn write_refused(out: &mut Vec<u8>, descriptors: usize) {
    write_overall(out, Verdict::OverLimit);
    for _ in 0..descriptors {
        write_status(out, &REFUSED);
    }
}

/// What is said of a descriptor that was not decided.
pub(in crate::data_plane) const REFUSED: DescriptorStatus<'static> = DescriptorStatus {
    verdict: Verdict::OverLimit,
    current_limit: None,
    limit_remaining: 0,
    reset_after_s: None,
};

fn write(out: &mut Vec<u8>, described: &Described) {
    write_overall(out, Verdict::of(!described.allowed()));
    for status in described.statuses() {
        write_status(out, &told(&status));
    }
    let answer = described.answer();
    let policies = answer.policies();
    let reply = answer.reply(&policies);
    for_each_field(answer, described.dialects(), &reply, |field, write_value| {
        write_header(out, field.header_name().as_str(), write_value);
    });
    if let Some(problem) = reply.problem() {
        let kind = Problem::CONTENT_TYPE.as_bytes();
        write_header(out, "content-type", |out| out.extend_from_slice(kind));
        write_body(out, |out| write_display(out, problem));
    }
}
