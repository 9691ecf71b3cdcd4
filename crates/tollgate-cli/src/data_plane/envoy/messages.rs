//! Request messages, as far as they are read: those of Envoy's rate limit service
//! (`envoy/service/ratelimit/v3/rls.proto`, `envoy/extensions/common/ratelimit/v3/ratelimit.proto`) and of
//! gRPC's health service (`grpc/health/v1/health.proto`).
//!
//! Names are those of the protocol. Fields that are not declared here are skipped, as the format requires. Texts are
//! borrowed from the message, and lists stop one item after the maximum, so that a request takes little more memory
//! than its message. `response.rs` writes the response field by field.

use std::borrow::Cow;

use tollgate_rules::descriptors::{DESCRIPTORS_MAX, ENTRIES_MAX};

use super::escape_non_utf8;
use super::protobuf_reader::{ProtobufError, ProtobufFields};

/// `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RateLimitRequest<'a> {
    pub(crate) domain: Cow<'a, str>,
    /// Bound: [`DESCRIPTORS_MAX`] and one more, by which too many are noticed.
    pub(crate) descriptors: Vec<RateLimitDescriptor<'a>>,
    /// Hits of descriptors without `hits_addend` of their own; 0 counts as absent.
    pub(crate) hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RateLimitDescriptor<'a> {
    /// Bound: [`ENTRIES_MAX`] and one more.
    pub(crate) entries: Vec<RateLimitEntry<'a>>,
    pub(crate) limit: Option<RateLimitOverride>,
    /// `google.protobuf.UInt64Value`: unlike an absent value, 0 is a request that takes nothing.
    pub(crate) hits_addend: Option<u64>,
    pub(crate) is_negative_hits: bool,
}

/// `RateLimitDescriptor.Entry`. Clients of the proxy choose the bytes of values: those that are not UTF-8 are escaped,
/// because on an error Envoy would let the request pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RateLimitEntry<'a> {
    pub(crate) key: Cow<'a, str>,
    pub(crate) value: Cow<'a, str>,
}

/// `RateLimitDescriptor.RateLimitOverride`: a limit that the request states.
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
    pub(crate) fn read(message: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut request = RateLimitRequest::default();
        let mut fields = ProtobufFields::new(message);
        while let Some((field, value)) = fields.next()? {
            match (field, value) {
                (1, value) => request.domain = escape_non_utf8(value.bytes()?),
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
    fn read(message: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut descriptor = RateLimitDescriptor::default();
        let mut fields = ProtobufFields::new(message);
        while let Some((field, value)) = fields.next()? {
            match (field, value) {
                (1, value) => {
                    let bytes = value.bytes()?;
                    if descriptor.entries.len() <= ENTRIES_MAX {
                        descriptor.entries.push(RateLimitEntry::read(bytes)?);
                    }
                }
                // A message field that appears twice is merged.
                (2, value) => descriptor.limit.get_or_insert_default().read(value.bytes()?)?,
                (3, value) => {
                    read_uint64_value(
                        descriptor.hits_addend.get_or_insert_default(),
                        value.bytes()?,
                    )?;
                }
                (4, value) => descriptor.is_negative_hits = value.number()? != 0,
                _ => {}
            }
        }
        Ok(descriptor)
    }
}

impl<'a> RateLimitEntry<'a> {
    fn read(message: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut entry = RateLimitEntry::default();
        let mut fields = ProtobufFields::new(message);
        while let Some((field, value)) = fields.next()? {
            match (field, value) {
                (1, value) => entry.key = escape_non_utf8(value.bytes()?),
                (2, value) => entry.value = escape_non_utf8(value.bytes()?),
                _ => {}
            }
        }
        Ok(entry)
    }
}

impl RateLimitOverride {
    fn read(&mut self, message: &[u8]) -> Result<(), ProtobufError> {
        let mut fields = ProtobufFields::new(message);
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
fn read_uint64_value(number: &mut u64, message: &[u8]) -> Result<(), ProtobufError> {
    let mut fields = ProtobufFields::new(message);
    while let Some((field, value)) = fields.next()? {
        if field == 1 {
            *number = value.number()?;
        }
    }
    Ok(())
}

impl<'a> HealthCheckRequest<'a> {
    pub(crate) fn read(message: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut request = HealthCheckRequest::default();
        let mut fields = ProtobufFields::new(message);
        while let Some((field, value)) = fields.next()? {
            if field == 1 {
                request.service = escape_non_utf8(value.bytes()?);
            }
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_utf8_are_escaped() {
        let message = b"\x0a\x01d\x12\x08\x0a\x06\x0a\x01k\x12\x01\xff\x12\x02\x1a\x00\x18\x03";
        let entry = RateLimitEntry { key: "k".into(), value: "%FF".into() };
        let first = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
        // An empty wrapper is 0, unlike an absent one.
        let peek = RateLimitDescriptor { hits_addend: Some(0), ..RateLimitDescriptor::default() };
        let want =
            RateLimitRequest { domain: "d".into(), descriptors: vec![first, peek], hits_addend: 3 };
        assert_eq!(RateLimitRequest::read(message), Ok(want));
        let wrong = RateLimitRequest::read(&message[..message.len() - 1]);
        assert_eq!(wrong, Err(ProtobufError));
    }

    #[test]
    fn lists_stop_one_after_the_maximum() {
        let descriptors = [0x12, 0].repeat(100_000);
        let request = RateLimitRequest::read(&descriptors).unwrap();
        assert_eq!(request.descriptors.len(), DESCRIPTORS_MAX + 1);
        assert!(request.descriptors.capacity() <= 2 * DESCRIPTORS_MAX);
        let entries = [0x0a, 0].repeat(100_000);
        let descriptor = RateLimitDescriptor::read(&entries).unwrap();
        assert_eq!(descriptor.entries.len(), ENTRIES_MAX + 1);
    }
}
