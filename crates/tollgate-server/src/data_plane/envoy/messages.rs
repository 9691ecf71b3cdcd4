//! The messages that callers send, as far as they are read: those of Envoy's rate limit service
//! (`envoy/service/ratelimit/v3/rls.proto`, `envoy/extensions/common/ratelimit/v3/ratelimit.proto`) and of
//! gRPC's health service (`grpc/health/v1/health.proto`).
//!
//! Names are those of the protocol. Fields that are not declared here are skipped, as the format wants
//! it. Texts are borrowed from the message, and lists end one item behind what is allowed: the message is
//! all the memory that a request takes, whatever is in it. What is answered is written field by field,
//! in `response.rs`.

use std::borrow::Cow;

use tollgate_rules::descriptors::{DESCRIPTORS_MAX, ENTRIES_MAX};

use super::reading::{Fields, Unreadable};
use crate::data_plane::facts::spelt;

/// `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RateLimitRequest<'a> {
    pub(crate) domain: Cow<'a, str>,
    /// Bound: one more than [`DESCRIPTORS_MAX`], so that too many are noticed.
    pub(crate) descriptors: Vec<RateLimitDescriptor<'a>>,
    /// For descriptors without their own; 0 counts as not said.
    pub(crate) hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RateLimitDescriptor<'a> {
    /// Bound: one more than [`ENTRIES_MAX`].
    pub(crate) entries: Vec<Entry<'a>>,
    pub(crate) limit: Option<RateLimitOverride>,
    /// `google.protobuf.UInt64Value`: if it is there, 0 is meant: a question that takes nothing.
    pub(crate) hits_addend: Option<u64>,
    pub(crate) is_negative_hits: bool,
}

/// `RateLimitDescriptor.Entry`. Clients of the proxy choose the bytes of values: those that are no text
/// are escaped. An error would let the request pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) key: Cow<'a, str>,
    pub(crate) value: Cow<'a, str>,
}

/// `RateLimitDescriptor.RateLimitOverride`: a limit that the caller brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RateLimitOverride {
    pub(crate) requests_per_unit: u32,
    /// `envoy.type.v3.RateLimitUnit`; any number can be sent.
    pub(crate) unit: i32,
}

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HealthCheckRequest<'a> {
    pub(crate) service: Cow<'a, str>,
}

impl<'a> RateLimitRequest<'a> {
    pub(crate) fn read(message: &'a [u8]) -> Result<Self, Unreadable> {
        let mut request = RateLimitRequest::default();
        let mut fields = Fields::of(message);
        while let Some((field, value)) = fields.next()? {
            match (field, value) {
                (1, value) => request.domain = spelt(value.bytes()?),
                (2, value) => {
                    let bytes = value.bytes()?;
                    if request.descriptors.len() <= DESCRIPTORS_MAX {
                        request.descriptors.push(RateLimitDescriptor::read(bytes)?);
                    }
                }
                (3, value) => request.hits_addend = value.number()? as u32,
                _ => {}
            }
        }
        Ok(request)
    }
}

impl<'a> RateLimitDescriptor<'a> {
    fn read(message: &'a [u8]) -> Result<Self, Unreadable> {
        let mut descriptor = RateLimitDescriptor::default();
        let mut fields = Fields::of(message);
        while let Some((field, value)) = fields.next()? {
            match (field, value) {
                (1, value) => {
                    let bytes = value.bytes()?;
                    if descriptor.entries.len() <= ENTRIES_MAX {
                        descriptor.entries.push(Entry::read(bytes)?);
                    }
                }
                // A message that is sent in two parts is both of them together.
                (2, value) => descriptor.limit.get_or_insert_default().read(value.bytes()?)?,
                (3, value) => {
                    read_wrapped(descriptor.hits_addend.get_or_insert_default(), value.bytes()?)?;
                }
                (4, value) => descriptor.is_negative_hits = value.number()? != 0,
                _ => {}
            }
        }
        Ok(descriptor)
    }
}

impl<'a> Entry<'a> {
    fn read(message: &'a [u8]) -> Result<Self, Unreadable> {
        let mut entry = Entry::default();
        let mut fields = Fields::of(message);
        while let Some((field, value)) = fields.next()? {
            match (field, value) {
                (1, value) => entry.key = spelt(value.bytes()?),
                (2, value) => entry.value = spelt(value.bytes()?),
                _ => {}
            }
        }
        Ok(entry)
    }
}

impl RateLimitOverride {
    fn read(&mut self, message: &[u8]) -> Result<(), Unreadable> {
        let mut fields = Fields::of(message);
        while let Some((field, value)) = fields.next()? {
            match (field, value) {
                (1, value) => self.requests_per_unit = value.number()? as u32,
                (2, value) => self.unit = value.number()? as i32,
                _ => {}
            }
        }
        Ok(())
    }
}

/// `google.protobuf.UInt64Value`.
fn read_wrapped(number: &mut u64, message: &[u8]) -> Result<(), Unreadable> {
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        if field == 1 {
            *number = value.number()?;
        }
    }
    Ok(())
}

impl<'a> HealthCheckRequest<'a> {
    pub(crate) fn read(message: &'a [u8]) -> Result<Self, Unreadable> {
        let mut request = HealthCheckRequest::default();
        let mut fields = Fields::of(message);
        while let Some((field, value)) = fields.next()? {
            if field == 1 {
                request.service = spelt(value.bytes()?);
            }
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use testkit::random::Random;

    /// The same messages as a library reads them.
    mod known {
        use prost::Message;

        #[derive(Clone, PartialEq, Message)]
        pub(super) struct Request {
            #[prost(bytes = "vec", tag = "1")]
            pub(super) domain: Vec<u8>,
            #[prost(message, repeated, tag = "2")]
            pub(super) descriptors: Vec<Descriptor>,
            #[prost(uint32, tag = "3")]
            pub(super) hits_addend: u32,
        }

        #[derive(Clone, PartialEq, Message)]
        pub(super) struct Descriptor {
            #[prost(message, repeated, tag = "1")]
            pub(super) entries: Vec<Entry>,
            #[prost(message, optional, tag = "2")]
            pub(super) limit: Option<Limit>,
            #[prost(message, optional, tag = "3")]
            pub(super) hits_addend: Option<Wrapped>,
            #[prost(bool, tag = "4")]
            pub(super) is_negative_hits: bool,
        }

        #[derive(Clone, PartialEq, Message)]
        pub(super) struct Entry {
            #[prost(bytes = "vec", tag = "1")]
            pub(super) key: Vec<u8>,
            #[prost(bytes = "vec", tag = "2")]
            pub(super) value: Vec<u8>,
        }

        #[derive(Clone, Copy, PartialEq, Message)]
        pub(super) struct Limit {
            #[prost(uint32, tag = "1")]
            pub(super) requests_per_unit: u32,
            #[prost(int32, tag = "2")]
            pub(super) unit: i32,
        }

        #[derive(Clone, Copy, PartialEq, Message)]
        pub(super) struct Wrapped {
            #[prost(uint64, tag = "1")]
            pub(super) value: u64,
        }
    }

    fn as_ours(known: &known::Request) -> RateLimitRequest<'_> {
        let entry = |entry: &known::Entry| Entry {
            key: spelt(&entry.key).into_owned().into(),
            value: spelt(&entry.value).into_owned().into(),
        };
        let descriptor = |one: &known::Descriptor| RateLimitDescriptor {
            entries: one.entries.iter().map(entry).collect(),
            limit: one.limit.map(|limit| RateLimitOverride {
                requests_per_unit: limit.requests_per_unit,
                unit: limit.unit,
            }),
            hits_addend: one.hits_addend.map(|hits| hits.value),
            is_negative_hits: one.is_negative_hits,
        };
        RateLimitRequest {
            domain: spelt(&known.domain),
            descriptors: known.descriptors.iter().map(descriptor).collect(),
            hits_addend: known.hits_addend,
        }
    }

    fn sample() -> known::Request {
        let entry =
            |key: &str, value: &[u8]| known::Entry { key: key.into(), value: value.to_vec() };
        let first = known::Descriptor {
            entries: vec![entry("path", b"/a"), entry("user", b"\xff"), entry("e", b"")],
            limit: Some(known::Limit { requests_per_unit: 7, unit: -1 }),
            hits_addend: Some(known::Wrapped { value: u64::MAX }),
            is_negative_hits: true,
        };
        let peek = known::Descriptor {
            hits_addend: Some(known::Wrapped { value: 0 }),
            ..known::Descriptor::default()
        };
        known::Request { domain: b"edge".to_vec(), descriptors: vec![first, peek], hits_addend: 3 }
    }

    #[test]
    fn bytes_that_are_no_text_are_escaped() {
        let bytes = sample().encode_to_vec();
        let request = RateLimitRequest::read(&bytes).unwrap();
        assert_eq!(request, as_ours(&sample()));
        assert_eq!(request.descriptors[0].entries[1].value, "%FF");
    }

    /// Whatever a library can read is read the same way; whatever it cannot is refused here, too.
    #[test]
    fn messages_are_read_as_others_read_them() {
        let mut random = Random::seeded(11);
        for round in 0..20_000 {
            let mut bytes = sample().encode_to_vec();
            if round % 4 == 0 {
                bytes = (0..random.below(40)).map(|_| random.number() as u8).collect();
            }
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len().max(1) as u64) as usize;
                bytes.get_mut(at).into_iter().for_each(|byte| *byte = random.number() as u8);
            }
            let known = known::Request::decode(&bytes[..]).ok();
            let ours = RateLimitRequest::read(&bytes).ok();
            assert_eq!(ours, known.as_ref().map(as_ours), "{bytes:?}");
        }
    }

    /// A message of nothing but beginnings takes no more than the bound allows.
    #[test]
    fn lists_end_one_behind_what_is_allowed() {
        let descriptors = [0x12, 0].repeat(100_000);
        let request = RateLimitRequest::read(&descriptors).unwrap();
        assert_eq!(request.descriptors.len(), DESCRIPTORS_MAX + 1);
        assert!(request.descriptors.capacity() <= 2 * DESCRIPTORS_MAX);
        let entries = [0x0a, 0].repeat(100_000);
        let descriptor = RateLimitDescriptor::read(&entries).unwrap();
        assert_eq!(descriptor.entries.len(), ENTRIES_MAX + 1);
    }
}
