//! The messages of Envoy's rate limit service, written by hand with the few fields that a usual call has.

use prost::Message;

/// A request to the service.
#[derive(Clone, PartialEq, Message)]
pub struct BenchRateLimitRequest {
    /// The domain, which selects the rules.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The descriptors, each with a status of its own.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<BenchDescriptor>,
    /// Units to charge; 0 means 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// Entries that together select a limit.
#[derive(Clone, PartialEq, Message)]
pub struct BenchDescriptor {
    /// The names and values.
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

/// The service's response.
#[derive(Clone, PartialEq, Message)]
pub struct BenchRateLimitResponse {
    /// [`OK`], or over the limit.
    #[prost(int32, tag = "1")]
    pub overall_code: i32,
    /// One status for each descriptor.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<BenchDescriptorStatus>,
    /// Headers for the caller.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<BenchDescriptorEntry>,
}

/// The status of a descriptor.
#[derive(Clone, PartialEq, Message)]
pub struct BenchDescriptorStatus {
    /// [`OK`], or over the limit.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The limit that decided.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<BenchRateLimit>,
    /// Units left of that limit.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// The wait until that limit is back at its full capacity.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<BenchProtoDuration>,
}

/// A limit.
#[derive(Clone, PartialEq, Message)]
pub struct BenchRateLimit {
    /// Units in each unit of time.
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
    /// The rest in nanoseconds.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// The code of an allowed request or descriptor.
pub const OK: i32 = 1;
