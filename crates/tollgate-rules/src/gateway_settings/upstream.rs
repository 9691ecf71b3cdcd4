//! The settings of one upstream.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::UpstreamUrl;

/// One upstream: servers that do the same, and how to talk to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// Unique in a rule set.
    pub name: Box<str>,
    /// The servers, at least one. Bound: [`UpstreamSettings::ADDRESSES_MAX`].
    pub addresses: Vec<UpstreamUrl>,
    /// The HTTP version.
    pub version: UpstreamVersion,
    /// The certificates that are trusted instead of the system's.
    pub ca_file: Option<CaFile>,
    /// The name in the server's certificate, if it is not the host of the URL.
    pub server_name: Option<Box<str>>,
    /// The `Host` that the upstream sees.
    pub host: UpstreamHost,
    /// The treatment of rate limit header fields in its responses.
    pub limit_fields: UpstreamLimitFields,
    /// Time for a connection to open, with its TLS handshake.
    pub connect_timeout: Duration,
    /// Time from the end of the request to the head of its response.
    pub response_timeout: Duration,
    /// Time without a byte of the body of a request or a response.
    pub idle_timeout: Duration,
    /// The most further attempts of one request.
    pub retries: u8,
    /// The most retries, in percent of requests.
    pub retry_budget_percent: u8,
    /// The most connections of one worker to one address. Further requests wait, at most `connect_timeout`.
    pub connections_max: usize,
    /// The ejection of addresses that fail.
    pub ejection: Option<EjectionSettings>,
    /// The active health check.
    pub health: Option<HealthProbe>,
}

impl UpstreamSettings {
    /// The most addresses.
    pub const ADDRESSES_MAX: usize = 256;
    /// The most further attempts that `retries` can allow.
    pub const RETRIES_MAX: u8 = 10;
    /// The highest `connections_max`.
    pub const CONNECTIONS_MAX: u16 = u16::MAX;

    /// An upstream with the defaults of a file.
    pub fn new(name: &str, addresses: Vec<UpstreamUrl>) -> UpstreamSettings {
        UpstreamSettings {
            name: name.into(),
            addresses,
            version: UpstreamVersion::default(),
            ca_file: None,
            server_name: None,
            host: UpstreamHost::default(),
            limit_fields: UpstreamLimitFields::default(),
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(60),
            retries: 1,
            retry_budget_percent: 10,
            connections_max: 1_024,
            ejection: Some(EjectionSettings { after: 5, duration: Duration::from_secs(10) }),
            health: None,
        }
    }
}

/// A file with certificates of authorities, as it was when the rules were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaFile {
    /// The path.
    pub path: PathBuf,
    /// The contents: at least one certificate in PEM. Bound: [`NamedFile::BYTES_MAX`](crate::NamedFile::BYTES_MAX).
    pub pem: Arc<[u8]>,
}

/// The HTTP version that is spoken to an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpstreamVersion {
    /// Over TLS the version that the server chooses; otherwise HTTP/1.1, and HTTP/2 for gRPC.
    #[default]
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, without TLS by prior knowledge.
    Http2,
}

/// The `Host` that an upstream sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpstreamHost {
    /// The client's.
    #[default]
    Client,
    /// The host and port of the upstream's URL.
    Upstream,
}

/// The treatment of rate limit header fields that an upstream sends, on responses that the gateway adds its own to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpstreamLimitFields {
    /// The gateway's fields replace them.
    #[default]
    Replace,
    /// They stay, and the gateway's fields of the same name are left out.
    Keep,
    /// They are renamed: `X-RateLimit-Limit` becomes `Upstream-X-RateLimit-Limit`.
    Apart,
}

/// The ejection of an address after failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EjectionSettings {
    /// Consecutive failures: no connection, a timeout, a reset, a broken response.
    pub after: u32,
    /// Time without requests, doubled by each further ejection up to ten times as long.
    pub duration: Duration,
}

/// An active health check of each address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthProbe {
    /// The path, requested with GET; a status from 200 to 399 is healthy.
    pub path: Box<str>,
    /// Time between two probes.
    pub interval: Duration,
    /// Time for the response.
    pub timeout: Duration,
    /// Consecutive successes that make an address healthy.
    pub healthy: u32,
    /// Consecutive failures that make it unhealthy.
    pub unhealthy: u32,
}
