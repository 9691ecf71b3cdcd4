//! `POST /json`: Envoy's request and response as JSON, as in envoyproxy/ratelimit, to try a rule with curl.
//!
//! This is the JSON mapping of protocol buffers: names in either spelling, numbers also as strings, `null` as absent,
//! unknown fields as errors. Responses omit fields that have their default value.

use std::borrow::Cow;

use http::{Response, StatusCode};

use super::escape_non_utf8;
use super::messages::{RateLimitDescriptor, RateLimitEntry, RateLimitOverride, RateLimitRequest};
use super::response::{DescriptorStatus, RlsCode, unit_name, unit_number_of_name};
use super::service::{REFUSED_STATUS, RlsDecision, decide, descriptor_status};
use crate::data_plane::answer::{ResponseContent, respond_in_dialects, write_number};
use crate::data_plane::check_service::CheckService;
use crate::data_plane::json::reader::{self, JsonError, JsonReader};
use crate::listeners::response_body::ResponseBody;
use crate::reply::{self, write_json_text};
use tollgate_rules::descriptors::{DESCRIPTORS_MAX, DescriptorAnswer, ENTRIES_MAX};

/// Bytes reserved for a response.
const ANSWER_BYTES: usize = 320;

/// Responds with 200, 429 or 400.
pub(in crate::data_plane) async fn answer(
    checks: &CheckService,
    body: &[u8],
) -> Response<ResponseBody> {
    let body = escape_invalid_utf8(body);
    let request = match reader::read(&body, request) {
        Ok(request) => request,
        Err(problem) => return reply::error(StatusCode::BAD_REQUEST, &problem),
    };
    let described = match decide(checks, &request).await {
        Ok(RlsDecision::Decided(described)) => described,
        Ok(RlsDecision::TooManyLimits(descriptors)) => {
            return too_many_limits_response(descriptors);
        }
        Err(problem) => return reply::error(StatusCode::BAD_REQUEST, &problem),
    };
    let status = match described.allowed() {
        true => StatusCode::OK,
        false => StatusCode::TOO_MANY_REQUESTS,
    };
    let content =
        ResponseContent { media_type: Cow::Borrowed("application/json"), bytes_hint: ANSWER_BYTES };
    let (dialects, answer) = (described.dialects(), described.answer());
    respond_in_dialects(dialects, status, content, answer, |out, _| {
        write_described(out, &described)
    })
    .into_response()
}

/// The response if more limits apply than one decision holds.
fn too_many_limits_response(descriptors: usize) -> Response<ResponseBody> {
    let mut out = Vec::with_capacity(ANSWER_BYTES);
    write_response(&mut out, RlsCode::OverLimit, (0..descriptors).map(|_| REFUSED_STATUS));
    reply::json(StatusCode::TOO_MANY_REQUESTS, out)
}

/// Escapes invalid UTF-8 inside quotes, as in gRPC calls. Applications pass on arbitrary bytes of their clients, and let
/// requests pass on an error.
fn escape_invalid_utf8(body: &[u8]) -> Cow<'_, [u8]> {
    if std::str::from_utf8(body).is_ok() {
        return Cow::Borrowed(body);
    }
    let mut whole = Vec::with_capacity(2 * body.len());
    let (mut start, mut escaped) = (0, false);
    for (at, byte) in body.iter().enumerate() {
        if *byte == b'"' && !escaped {
            whole.extend_from_slice(escape_non_utf8(&body[start..at]).as_bytes());
            whole.push(b'"');
            start = at + 1;
        }
        escaped = *byte == b'\\' && !escaped;
    }
    whole.extend_from_slice(escape_non_utf8(&body[start..]).as_bytes());
    Cow::Owned(whole)
}

fn request<'a>(reader: &mut JsonReader<'a>) -> Result<RateLimitRequest<'a>, JsonError> {
    const FIELDS: [&str; 3] = ["domain", "descriptors", "hitsAddend"];
    let mut request = RateLimitRequest::default();
    reader.object(&FIELDS, |reader, field| {
        match field {
            0 => request.domain = text(reader, "domain")?,
            1 => {
                let many = format!("an array of at most {DESCRIPTORS_MAX} descriptors");
                request.descriptors = reader.list(&many, DESCRIPTORS_MAX, descriptor)?;
            }
            _ => request.hits_addend = number(reader, "hitsAddend")?,
        }
        Ok(())
    })?;
    Ok(request)
}

fn descriptor<'a>(reader: &mut JsonReader<'a>) -> Result<RateLimitDescriptor<'a>, JsonError> {
    const FIELDS: [&str; 4] = ["entries", "limit", "hitsAddend", "isNegativeHits"];
    let mut descriptor = RateLimitDescriptor::default();
    reader.object(&FIELDS, |reader, field| {
        match field {
            0 => {
                let many = format!("an array of at most {ENTRIES_MAX} entries");
                descriptor.entries = reader.list(&many, ENTRIES_MAX, entry)?;
            }
            1 => descriptor.limit = if reader.take_null() { None } else { Some(limit(reader)?) },
            2 => {
                descriptor.hits_addend = reader.number_or_text_or_null("hitsAddend", u64::MAX)?;
            }
            _ => {
                let negative = reader.boolean_or_null("isNegativeHits")?;
                descriptor.is_negative_hits = negative.unwrap_or_default();
            }
        }
        Ok(())
    })?;
    Ok(descriptor)
}

fn entry<'a>(reader: &mut JsonReader<'a>) -> Result<RateLimitEntry<'a>, JsonError> {
    let mut entry = RateLimitEntry::default();
    reader.object(&["key", "value"], |reader, field| {
        match field {
            0 => entry.key = text(reader, "key")?,
            _ => entry.value = text(reader, "value")?,
        }
        Ok(())
    })?;
    Ok(entry)
}

fn limit(reader: &mut JsonReader<'_>) -> Result<RateLimitOverride, JsonError> {
    let mut limit = RateLimitOverride::default();
    reader.object(&["requestsPerUnit", "unit"], |reader, field| {
        match field {
            0 => limit.requests_per_unit = number(reader, "requestsPerUnit")?,
            _ => limit.unit = unit(reader)?,
        }
        Ok(())
    })?;
    Ok(limit)
}

/// Reads a unit: a name such as `MINUTE`, or its number.
fn unit(reader: &mut JsonReader<'_>) -> Result<i32, JsonError> {
    let at = reader.next_offset();
    if !reader.is_string() {
        let number = reader.number_or_text_or_null("unit", i32::MAX as u64)?;
        return Ok(i32::try_from(number.unwrap_or_default()).unwrap_or_default());
    }
    let name = reader.text_or_null("unit")?.unwrap_or_default();
    unit_number_of_name(&name).ok_or_else(|| {
        reader.rewind_to(at);
        reader.expected_error("SECOND, MINUTE, HOUR, DAY, MONTH or YEAR for \"unit\"")
    })
}

fn text<'a>(reader: &mut JsonReader<'a>, name: &str) -> Result<Cow<'a, str>, JsonError> {
    Ok(reader.text_or_null(name)?.unwrap_or_default())
}

fn number(reader: &mut JsonReader<'_>, name: &str) -> Result<u32, JsonError> {
    let number = reader.number_or_text_or_null(name, u32::MAX.into())?;
    Ok(number.and_then(|number| u32::try_from(number).ok()).unwrap_or_default())
}

fn write_described(out: &mut Vec<u8>, described: &DescriptorAnswer) {
    let verdict = RlsCode::from_over_limit(!described.allowed());
    write_response(out, verdict, described.statuses().map(|status| descriptor_status(&status)));
}

fn write_response<'a>(
    out: &mut Vec<u8>,
    verdict: RlsCode,
    statuses: impl Iterator<Item = DescriptorStatus<'a>>,
) {
    out.extend_from_slice(b"{\"overallCode\":\"");
    out.extend_from_slice(verdict.name().as_bytes());
    out.extend_from_slice(b"\",\"statuses\":[");
    for (index, status) in statuses.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_status(out, &status);
    }
    out.extend_from_slice(b"]}");
}

fn write_status(out: &mut Vec<u8>, status: &DescriptorStatus<'_>) {
    out.extend_from_slice(b"{\"code\":\"");
    out.extend_from_slice(status.code.name().as_bytes());
    out.push(b'"');
    if let Some(limit) = &status.current_limit {
        out.extend_from_slice(b",\"currentLimit\":{");
        if !limit.name.is_empty() {
            out.extend_from_slice(b"\"name\":");
            write_json_text(out, limit.name);
            out.push(b',');
        }
        write_number(out, "\"requestsPerUnit\":", Some(limit.requests_per_unit.into()));
        if let Some(unit) = limit.unit {
            out.extend_from_slice(b",\"unit\":\"");
            out.extend_from_slice(unit_name(unit).as_bytes());
            out.push(b'"');
        }
        out.push(b'}');
    }
    if status.limit_remaining > 0 {
        write_number(out, ",\"limitRemaining\":", Some(status.limit_remaining.into()));
    }
    if let Some(seconds) = status.reset_after_s {
        write_number(out, ",\"durationUntilReset\":\"", Some(seconds));
        out.extend_from_slice(b"s\"");
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<RateLimitRequest<'_>, String> {
        reader::read(body.as_bytes(), request)
    }

    #[test]
    fn either_spelling_of_a_name_is_read_and_numbers_may_be_strings() {
        let camel = r#"{"domain":"d","hitsAddend":3,"descriptors":[{"entries":[{"key":"a","value":"b"},
            {"key":"c"}],"limit":{"requestsPerUnit":7,"unit":"MINUTE"},"hitsAddend":"18446744073709551615",
            "isNegativeHits":true},{"entries":null,"limit":null,"hitsAddend":0,"isNegativeHits":false}]}"#;
        let snake = camel.replace("hitsAddend", "hits_addend");
        let snake = snake.replace("requestsPerUnit", "requests_per_unit");
        let snake = snake.replace("isNegativeHits", "is_negative_hits");
        let other =
            camel.replace("\"MINUTE\"", "2").replace(":3,", ":\"3\",").replace(":7,", ":\"7\",");
        let entry = |key: &'static str, value: &'static str| RateLimitEntry {
            key: key.into(),
            value: value.into(),
        };
        let first = RateLimitDescriptor {
            entries: vec![entry("a", "b"), entry("c", "")],
            limit: Some(RateLimitOverride { requests_per_unit: 7, unit: 2 }),
            hits_addend: Some(u64::MAX),
            is_negative_hits: true,
        };
        let peek = Some(0);
        let second = RateLimitDescriptor { hits_addend: peek, ..RateLimitDescriptor::default() };
        let want = RateLimitRequest {
            domain: "d".into(),
            descriptors: vec![first, second],
            hits_addend: 3,
        };
        for body in [camel, &snake, &other] {
            assert_eq!(read(body), Ok(want.clone()), "{body}");
        }
        assert_eq!(read("{}"), Ok(RateLimitRequest::default()));
    }

    #[test]
    fn errors_name_their_position() {
        let many = format!("{{\"descriptors\":[{}]}}", vec!["{}"; 65].join(","));
        let rows = [
            (
                "",
                "column 1: expected an object with any of domain, descriptors, hitsAddend, found the end",
            ),
            ("[]", "column 1: expected an object with any of domain"),
            (r#"{"domian":"d"}"#, "column 2: there is no field \"domian\": write any of domain"),
            (r#"{"domain":"a","domain":"b"}"#, "column 15: \"domain\" appears twice"),
            (r#"{"hitsAddend":1,"hits_addend":1}"#, "column 17: \"hits_addend\" appears twice"),
            (
                r#"{"hitsAddend":4294967296}"#,
                "column 15: expected a whole number from 0 to 4294967295",
            ),
            (r#"{"hitsAddend":"1x"}"#, "column 15: expected a whole number"),
            (r#"{"hitsAddend":-1}"#, "column 15: expected a whole number"),
            (
                r#"{"descriptors":{}}"#,
                "column 16: expected an array of at most 64 descriptors, found an object",
            ),
            (
                r#"{"descriptors":[{"limit":{"unit":"minute"}}]}"#,
                "column 34: expected SECOND, MINUTE",
            ),
            (r#"{"descriptors":[{"isNegativeHits":1}]}"#, "column 35: expected true or false"),
            (r#"{"descriptors":[{} {}]}"#, "column 20: expected `,` or `]`"),
            (&many, "column 209: there are more than 64"),
        ];
        for (body, want) in rows {
            let problem = read(body).expect_err(body);
            assert!(problem.starts_with(&format!("Line 1, {want}")), "{body}:\n{problem}\n{want}");
        }
    }
}
