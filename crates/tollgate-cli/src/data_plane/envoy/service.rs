//! `ShouldRateLimit`: turns Envoy's request into descriptors, and the gatekeeper's answer into a response.

use std::borrow::Cow;

use bytes::Bytes;
use tollgate::headers::ProblemDetails;
use tollgate::time::MAX_EXACT;
use tollgate_rules::descriptors::{
    Descriptor, DescriptorAnswer, DescriptorAsk, DescriptorEntry, DescriptorError, Hits,
    StatedLimit, Status,
};

use super::call::{GrpcError, GrpcResult};
use super::code::GrpcCode;
use super::frame;
use super::messages::{RateLimitDescriptor, RateLimitRequest};
use super::response::{
    DescriptorStatus, RlsCode, RlsLimit, unit_of_number, write_body, write_header,
    write_overall_code, write_status,
};
use crate::data_plane::answer::for_each_field;
use crate::data_plane::check_service::CheckService;
use crate::reply::write_display;

/// Bytes reserved for a response.
const RESPONSE_BYTES: usize = 480;

/// Message about an invalid request, for the client.
pub(in crate::data_plane) type InvalidRequestText = Cow<'static, str>;

/// Result of a valid request.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every request has the large one")]
pub(in crate::data_plane) enum RlsDecision {
    Decided(DescriptorAnswer),
    /// More limits apply than one decision holds, or more are stated than there is room for: all descriptors, this
    /// many, are refused. It is not an error, because Envoy lets requests pass on errors, and clients of the proxy
    /// influence which limits apply.
    TooManyLimits(usize),
}

/// Answers a call.
pub(super) async fn answer(checks: &CheckService, request: &RateLimitRequest<'_>) -> GrpcResult {
    let decided = decide(checks, request).await;
    let decided =
        decided.map_err(|message| GrpcError { code: GrpcCode::InvalidArgument, message })?;
    Ok(frame::encode(RESPONSE_BYTES, |out| match &decided {
        RlsDecision::Decided(described) => write_described(out, described),
        RlsDecision::TooManyLimits(descriptors) => write_refused(out, *descriptors),
    }))
}

/// The response to a message that is too long to be read: a refusal, because clients of the proxy can make messages
/// long, and on an error Envoy would let them pass.
pub(super) fn refuse_oversized_message(checks: &CheckService) -> Bytes {
    let CheckService { gatekeeper, warnings, .. } = checks;
    let (why, now) = (DescriptorError::TooLong, gatekeeper.now());
    gatekeeper.notify_undecided(&gatekeeper.rules(), why, now);
    warnings.too_many_limits(why, now);
    frame::encode(RESPONSE_BYTES, |out| write_refused(out, 0))
}

/// Decides a request that was sent as protocol buffers or as JSON.
pub(in crate::data_plane) async fn decide(
    checks: &CheckService,
    request: &RateLimitRequest<'_>,
) -> Result<RlsDecision, InvalidRequestText> {
    let CheckService { gatekeeper, timing, warnings, .. } = checks;
    let each = request.descriptors.iter().flat_map(|one| &one.entries);
    let entries: Vec<_> =
        each.map(|entry| DescriptorEntry { name: &entry.key, value: &entry.value }).collect();
    let mut rest = &entries[..];
    let mut descriptors = Vec::with_capacity(request.descriptors.len());
    for asked in &request.descriptors {
        let (entries, behind) = rest.split_at(asked.entries.len());
        rest = behind;
        let (hits, limit) = (hits(request, asked), stated_limit(asked)?);
        descriptors.push(Descriptor { entries, hits, limit });
    }
    let ask = DescriptorAsk { domain: &request.domain, descriptors: &descriptors };
    let (rules, now) = (gatekeeper.rules(), gatekeeper.now());
    let at = gatekeeper.clock_instant(now);
    let decided =
        match timing.measure_at_once(|| gatekeeper.decide_descriptors_at_once(rules, &ask, at)) {
            Ok(decided) => decided,
            Err(rules) => timing.measure(gatekeeper.decide_descriptors_by(rules, &ask, at)).await,
        };
    match decided {
        Ok(described) => Ok(RlsDecision::Decided(described)),
        Err(error) if error.is_refusal() => {
            warnings.too_many_limits(error, now);
            Ok(RlsDecision::TooManyLimits(request.descriptors.len()))
        }
        Err(error) => Err(error_sentence(error).into()),
    }
}

/// Hits of a descriptor: its own, else those of the request; `None` if both are absent.
fn hits(request: &RateLimitRequest<'_>, asked: &RateLimitDescriptor<'_>) -> Option<Hits> {
    let of_all = (request.hits_addend > 0).then_some(request.hits_addend.into());
    let said = asked.hits_addend.or(of_all);
    // More than any limit can hold, so the result is the same.
    let said = said.map(|number| number.min(MAX_EXACT));
    match asked.is_negative_hits {
        true => Some(Hits::Refund(said)),
        false => said.map(Hits::Take),
    }
}

/// The limit that the descriptor states.
fn stated_limit(
    asked: &RateLimitDescriptor<'_>,
) -> Result<Option<StatedLimit>, InvalidRequestText> {
    let Some(limit) = &asked.limit else { return Ok(None) };
    let Some(unit) = unit_of_number(limit.unit) else {
        let wrong =
            "A limit of a descriptor has no unit: send SECOND, MINUTE, HOUR, DAY, MONTH or YEAR.";
        return Err(wrong.into());
    };
    Ok(Some(StatedLimit { units: limit.requests_per_unit, unit }))
}

/// The error as a sentence: capital letter and full stop.
fn error_sentence(error: DescriptorError) -> String {
    let text = error.to_string();
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).chain(['.']).collect()
}

/// The status of a descriptor in the terms of the protocol.
pub(in crate::data_plane) fn descriptor_status<'a>(status: &Status<'a>) -> DescriptorStatus<'a> {
    let least = u64::from(status.over);
    // Not before a retry can succeed; if it never can, the time until the use has expired.
    let wait = Some(status.retry_after).filter(|wait| !wait.is_never()).unwrap_or_default();
    let reset = status.reset_after.max(wait).seconds();
    let limit = status.limit.as_ref();
    DescriptorStatus {
        code: RlsCode::from_over_limit(status.over),
        current_limit: limit.map(|limit| RlsLimit {
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

/// Writes a refusal of each descriptor, without limits.
fn write_refused(out: &mut Vec<u8>, descriptors: usize) {
    write_overall_code(out, RlsCode::OverLimit);
    for _ in 0..descriptors {
        write_status(out, &REFUSED_STATUS);
    }
}

/// The status of a descriptor that was refused without a decision.
pub(in crate::data_plane) const REFUSED_STATUS: DescriptorStatus<'static> = DescriptorStatus {
    code: RlsCode::OverLimit,
    current_limit: None,
    limit_remaining: 0,
    reset_after_s: None,
};

fn write_described(out: &mut Vec<u8>, described: &DescriptorAnswer) {
    write_overall_code(out, RlsCode::from_over_limit(!described.allowed()));
    for status in described.statuses() {
        write_status(out, &descriptor_status(&status));
    }
    let answer = described.answer();
    let policies = answer.policies();
    let reply = answer.reply(&policies);
    for_each_field(answer, described.dialects(), &reply, |field, write_value| {
        write_header(out, field.header_name().as_str(), write_value);
    });
    if let Some(problem) = reply.problem() {
        let kind = ProblemDetails::CONTENT_TYPE.as_bytes();
        write_header(out, "content-type", |out| out.extend_from_slice(kind));
        write_body(out, |out| write_display(out, problem));
    }
}
