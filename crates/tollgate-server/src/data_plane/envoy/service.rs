//! `ShouldRateLimit`: a request of Envoy's becomes descriptors, the answer becomes a response.

use std::borrow::Cow;

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

/// The most bytes of the key or the value of an entry.
const TEXT_BYTES_MAX: usize = 4 << 10;

/// Room for most responses.
const RESPONSE_BYTES: usize = 480;

/// What is wrong with a request, for whoever sent it.
pub(in crate::data_plane) type Wrong = Cow<'static, str>;

/// Answers a call.
pub(super) async fn answer(
    gatekeeper: &Gatekeeper,
    timing: &Timing,
    request: &RateLimitRequest,
) -> Outcome {
    let described = decide(gatekeeper, timing, request).await;
    let described = described.map_err(|message| Failed { code: Code::InvalidArgument, message })?;
    Ok(frame::close(RESPONSE_BYTES, |out| write(out, &described)))
}

/// Decides a request, however it was sent.
pub(in crate::data_plane) async fn decide(
    gatekeeper: &Gatekeeper,
    timing: &Timing,
    request: &RateLimitRequest,
) -> Result<Described, Wrong> {
    check_texts(request)?;
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
        None => at_once(timing.of(gatekeeper.decide_descriptors_by(rules, &ask, now))),
        Some(_) => {
            let deciding = Box::pin(gatekeeper.decide_descriptors_by(rules, &ask, now));
            timing.of(deciding).await
        }
    };
    decided.map_err(|error| sentence(error).into())
}

/// Lengths are bounded here and numbers where the request is decided.
fn check_texts(request: &RateLimitRequest) -> Result<(), Wrong> {
    let entries = request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    let mut texts = entries.flat_map(|entry| [&entry.key, &entry.value]).chain([&request.domain]);
    match texts.all(|text| text.len() <= TEXT_BYTES_MAX) {
        true => Ok(()),
        false => {
            Err("A domain, a key and a value may have at most 4096 bytes each: shorten it.".into())
        }
    }
}

/// What a descriptor asks for: its own hits if it has any, else the request's; `None`: neither says.
fn hits(request: &RateLimitRequest, asked: &RateLimitDescriptor) -> Option<Hits> {
    let of_all = (request.hits_addend > 0).then_some(request.hits_addend.into());
    let said = asked.hits_addend.map(|own| own.value).or(of_all);
    // More than any limit has: it is refused, forced or given back as far as there is anything.
    let said = said.map(|number| number.min(MAX_EXACT));
    match asked.is_negative_hits {
        true => Some(Hits::Refund(said.unwrap_or(1))),
        false => said.map(Hits::Take),
    }
}

/// The limit that the caller brings.
fn stated(asked: &RateLimitDescriptor) -> Result<Option<StatedLimit>, Wrong> {
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
    let reset = status.reset_after.max(status.retry_after).seconds();
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

fn write(out: &mut Vec<u8>, described: &Described) {
    write_overall(out, Verdict::of(!described.allowed()));
    for status in described.statuses() {
        write_status(out, &told(&status));
    }
    let answer = described.answer();
    let policies = answer.policies();
    let reply = answer.reply(&policies);
    for_each_field(answer, &reply, |name, write_value| {
        write_header(out, name.as_str(), write_value);
    });
    if let Some(problem) = reply.problem() {
        let kind = Problem::CONTENT_TYPE.as_bytes();
        write_header(out, "content-type", |out| out.extend_from_slice(kind));
        write_body(out, |out| write_display(out, problem));
    }
}
