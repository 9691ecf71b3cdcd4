//! The messages of Envoy's rate limit service that are measured: written by hand, the few fields
//! that a usual call has.

use prost::Message;

/// Where calls go.
pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// What is asked.
#[derive(Clone, PartialEq, Message)]
pub struct BenchRateLimitRequest {
    /// Which rules apply.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// Whom it is about.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<BenchDescriptor>,
    /// How much, 0 for 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// Entries that are judged together.
#[derive(Clone, PartialEq, Message)]
pub struct BenchDescriptor {
    /// Names and values.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<BenchDescriptorEntry>,
}

/// A name and its value.
#[derive(Clone, PartialEq, Message)]
pub struct BenchDescriptorEntry {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// The answer.
#[derive(Clone, PartialEq, Message)]
pub struct BenchRateLimitResponse {
    /// [`OK`], or over the limit.
    #[prost(int32, tag = "1")]
    pub overall_code: i32,
    /// One for each descriptor.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<BenchDescriptorStatus>,
    /// Headers for the caller.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<BenchDescriptorEntry>,
}

/// What became of a descriptor.
#[derive(Clone, PartialEq, Message)]
pub struct BenchDescriptorStatus {
    /// [`OK`], or over the limit.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The limit that decided.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<BenchRateLimit>,
    /// What is left of it.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// When it is whole again.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<BenchProtoDuration>,
}

/// A limit.
#[derive(Clone, PartialEq, Message)]
pub struct BenchRateLimit {
    /// How much in a unit of time.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit: 1 is a second.
    #[prost(int32, tag = "2")]
    pub unit: i32,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// A duration.
#[derive(Clone, PartialEq, Message)]
pub struct BenchProtoDuration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// And the rest.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// The code of what is allowed.
pub const OK: i32 = 1;

/// A call about one address, as Envoy's action `remote_address` makes it.
pub fn request(domain: &str, address: &str) -> BenchRateLimitRequest {
    let entries =
        vec![BenchDescriptorEntry { key: "remote_address".into(), value: address.into() }];
    let descriptors = vec![BenchDescriptor { entries }];
    BenchRateLimitRequest { domain: domain.into(), descriptors, hits_addend: 0 }
}

/// A message with the five bytes before it: not compressed, and its length.
pub fn framed(message: &impl Message) -> Vec<u8> {
    let mut bytes = vec![0; 5];
    message.encode(&mut bytes).expect("a Vec grows as needed");
    let length = u32::try_from(bytes.len() - 5).expect("it is short");
    bytes[1..5].copy_from_slice(&length.to_be_bytes());
    bytes
}
