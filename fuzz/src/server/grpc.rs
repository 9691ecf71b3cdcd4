//! Bytes of the grpc listener: frames, and messages read and written, beside Envoy's messages as others
//! generated them.
//!
//! What the others refuse is refused, what they read is read the same; what is written they read back as
//! it was meant.

use envoy_types::pb::envoy::service::ratelimit::v3 as theirs;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus as TheirStatus;
use prost::Message;
use tollgate_rules::descriptors::Unit;

use super::escape_non_utf8;
use super::frame::{self, FrameError, MESSAGE_BYTES_MAX};
use super::messages::RateLimitRequest;
use super::response::{
    DescriptorStatus, RlsCode, RlsLimit, write_body, write_header, write_overall_code, write_status,
};
use super::source::FuzzSource;

/// The bytes as a body, as a message, and as choices of what either is made of.
pub fn grpc(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    match source.below(6) {
        0 => check_frame(source.rest()),
        1 => check_request(source.rest()),
        2 => check_response(&mut source),
        3 => {
            let message = request(&mut source);
            let framed = frame::encode(0, |out| out.extend_from_slice(&message));
            assert_eq!(frame::decode(&framed).as_deref(), Ok(&message[..]));
            check_frame(&damaged(&mut source, framed.to_vec()));
        }
        4 => check_request(&request(&mut source)),
        _ => {
            let message = request(&mut source);
            check_request(&damaged(&mut source, message));
        }
    }
}

/// Five bytes of prefix, and as many behind it as they say.
fn check_frame(body: &[u8]) {
    let got = frame::decode(body);
    let said = body
        .get(1..5)
        .map(|length| length.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte)));
    let want = match (body.first(), said) {
        (_, None) => Err(FrameError::Truncated),
        (Some(1), _) => Err(FrameError::Compressed),
        (Some(2..), _) => Err(FrameError::InvalidFlag),
        (_, Some(said)) if said > MESSAGE_BYTES_MAX => Err(FrameError::TooLong),
        (_, Some(said)) if body.len() < 5 + said => Err(FrameError::Truncated),
        (_, Some(said)) if body.len() > 5 + said => Err(FrameError::TrailingBytes),
        _ => Ok(&body[5..]),
    };
    assert_eq!(got, want, "{body:?}");
}

/// Both refuse, or both read the same; and where texts are text, Envoy's messages are the same, too.
fn check_request(message: &[u8]) {
    let (got, want) =
        (RateLimitRequest::read(message), prost_messages::ProstRequest::decode(message));
    let (got, want) = match (got, want) {
        (Ok(got), Ok(want)) => (got, want),
        (Err(_), Err(_)) => return,
        (got, want) => panic!("{message:?}: {got:?}, not {want:?}"),
    };
    if let Ok(theirs) = theirs::RateLimitRequest::decode(message) {
        assert_eq!((got.domain.as_ref(), got.hits_addend), (&*theirs.domain, theirs.hits_addend));
    }
    assert_eq!((got.domain, got.hits_addend), (escape_non_utf8(&want.domain), want.hits_addend));
    assert_eq!(got.descriptors.len(), want.descriptors.len(), "{message:?}");
    for (got, want) in got.descriptors.iter().zip(&want.descriptors) {
        let ours: Vec<_> = got.entries.iter().map(|one| (&*one.key, &*one.value)).collect();
        let others: Vec<_> = want
            .entries
            .iter()
            .map(|one| (escape_non_utf8(&one.key), escape_non_utf8(&one.value)))
            .collect();
        let others: Vec<_> = others.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(ours, others, "{message:?}");
        let ours = got.limit.map(|limit| (limit.requests_per_unit, limit.unit));
        let others = want.limit.as_ref().map(|limit| (limit.requests_per_unit, limit.unit));
        assert_eq!(ours, others, "{message:?}");
        let others = want.hits_addend.as_ref().map(|hits| hits.value);
        assert_eq!(
            (got.hits_addend, got.is_negative_hits),
            (others, want.is_negative_hits),
            "{message:?}"
        );
    }
}

/// The request as a library reads it, texts as bytes: those that are no text are no mistake here.
mod prost_messages {
    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct ProstRequest {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) domain: Vec<u8>,
        #[prost(message, repeated, tag = "2")]
        pub(super) descriptors: Vec<ProstDescriptor>,
        #[prost(uint32, tag = "3")]
        pub(super) hits_addend: u32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct ProstDescriptor {
        #[prost(message, repeated, tag = "1")]
        pub(super) entries: Vec<ProstEntry>,
        #[prost(message, optional, tag = "2")]
        pub(super) limit: Option<ProstLimit>,
        #[prost(message, optional, tag = "3")]
        pub(super) hits_addend: Option<ProstUInt64Value>,
        #[prost(bool, tag = "4")]
        pub(super) is_negative_hits: bool,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct ProstEntry {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) key: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub(super) value: Vec<u8>,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub(super) struct ProstLimit {
        #[prost(uint32, tag = "1")]
        pub(super) requests_per_unit: u32,
        #[prost(int32, tag = "2")]
        pub(super) unit: i32,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub(super) struct ProstUInt64Value {
        #[prost(uint64, tag = "1")]
        pub(super) value: u64,
    }
}

/// A response of any content, read back.
fn check_response(source: &mut FuzzSource<'_>) {
    const NAMES: [&str; 4] = ["", "api", "a name that is longer than most", "\u{e9}"];
    let over = source.one_in(2);
    let verdict = |over| if over { RlsCode::OverLimit } else { RlsCode::Ok };
    let statuses: Vec<_> = (0..source.below(5))
        .map(|_| DescriptorStatus {
            code: verdict(source.one_in(2)),
            current_limit: source.one_in(2).then(|| RlsLimit {
                name: source.pick(&NAMES),
                requests_per_unit: source.number() as u32,
                unit: source.one_in(2).then(|| source.pick(&Unit::ALL)),
            }),
            limit_remaining: source.number() as u32,
            reset_after_s: source.one_in(2).then(|| source.number() >> 1),
        })
        .collect();
    let value = "v".repeat(source.below(200) * source.below(200));
    let body = vec![source.byte(); source.below(200) * source.below(200)];
    let mut written = Vec::new();
    write_overall_code(&mut written, verdict(over));
    statuses.iter().for_each(|status| write_status(&mut written, status));
    write_header(&mut written, "x-name", |out| out.extend_from_slice(value.as_bytes()));
    write_body(&mut written, |out| out.extend_from_slice(&body));

    let read = theirs::RateLimitResponse::decode(&written[..]).expect("a response");
    assert_eq!(read.overall_code, 1 + i32::from(over));
    assert_eq!(read.statuses.len(), statuses.len());
    for (read, meant) in read.statuses.iter().zip(&statuses) {
        check_status(read, meant);
    }
    let [header] = &read.response_headers_to_add[..] else { panic!("one header: {read:?}") };
    assert_eq!((header.key.as_str(), header.value.as_str()), ("x-name", value.as_str()));
    assert_eq!(read.raw_body, body);
}

fn check_status(read: &TheirStatus, meant: &DescriptorStatus<'_>) {
    assert_eq!(read.code, 1 + i32::from(meant.code == RlsCode::OverLimit));
    assert_eq!(read.limit_remaining, meant.limit_remaining);
    let reset = read.duration_until_reset.as_ref().map(|reset| (reset.seconds as u64, reset.nanos));
    assert_eq!(reset, meant.reset_after_s.map(|seconds| (seconds, 0)));
    assert_eq!(read.current_limit.is_some(), meant.current_limit.is_some());
    if let (Some(read), Some(meant)) = (&read.current_limit, &meant.current_limit) {
        assert_eq!(
            (read.name.as_str(), read.requests_per_unit),
            (meant.name, meant.requests_per_unit)
        );
        let unit = meant.unit.map_or("UNKNOWN".into(), |unit| unit.name().to_uppercase());
        assert_eq!(read.unit().as_str_name(), unit);
    }
}

/// A request of any content, with fields that nobody knows among the others.
fn request(source: &mut FuzzSource<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..source.below(5) {
        match source.below(5) {
            0 => delimited(&mut out, 1, &text(source)),
            1 | 2 => {
                let descriptor = descriptor(source);
                delimited(&mut out, 2, &descriptor);
            }
            3 => varint_field(&mut out, 3, source.number()),
            _ => unknown(source, &mut out),
        }
    }
    out
}

fn descriptor(source: &mut FuzzSource<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..source.below(5) {
        match source.below(6) {
            0 | 1 => {
                let mut entry = Vec::new();
                delimited(&mut entry, 1, &text(source));
                delimited(&mut entry, 2, &text(source));
                delimited(&mut out, 1, &entry);
            }
            2 => {
                let mut limit = Vec::new();
                varint_field(&mut limit, 1, source.number());
                varint_field(&mut limit, 2, source.number());
                delimited(&mut out, 2, &limit);
            }
            3 => {
                let mut hits = Vec::new();
                varint_field(&mut hits, 1, source.number());
                delimited(&mut out, 3, &hits);
            }
            4 => varint_field(&mut out, 4, source.number()),
            _ => unknown(source, &mut out),
        }
    }
    out
}

/// A field of another number or another kind: skipped, or refused.
fn unknown(source: &mut FuzzSource<'_>, out: &mut Vec<u8>) {
    let field = source.pick(&[0, 1, 2, 3, 4, 5, 15, 16, 0x1fff_ffff]);
    let kind = source.below(8) as u64;
    varint(out, field << 3 | kind);
    let length = source.below(12);
    out.extend((0..length).map(|_| source.byte()));
}

fn text(source: &mut FuzzSource<'_>) -> Vec<u8> {
    let length = source.below(6);
    match source.one_in(3) {
        true => (0..length).map(|_| source.byte()).collect(),
        false => b"abcdef"[..length].to_vec(),
    }
}

fn delimited(out: &mut Vec<u8>, field: u64, content: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

fn varint_field(out: &mut Vec<u8>, field: u64, number: u64) {
    varint(out, field << 3);
    varint(out, number);
}

fn varint(out: &mut Vec<u8>, number: u64) {
    match number < 0x80 {
        true => out.push(number as u8),
        false => {
            out.push(number as u8 | 0x80);
            varint(out, number >> 7);
        }
    }
}

/// Some bytes changed, some cut off.
fn damaged(source: &mut FuzzSource<'_>, mut bytes: Vec<u8>) -> Vec<u8> {
    for _ in 0..source.below(4) {
        if !bytes.is_empty() {
            let at = source.below(bytes.len());
            bytes[at] = source.byte();
        }
    }
    if source.one_in(4) {
        bytes.truncate(source.below(bytes.len() + 1));
    }
    bytes
}
