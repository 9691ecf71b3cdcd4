//! The gateway's settings in a rules file: `upstreams` and `routes`. They are part of the rule set, so a reload replaces
//! rules and routes together.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::Problem;
use crate::path::Spellings;
use crate::pattern::Pattern;

/// The upstreams and routes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewaySettings {
    /// The upstreams. Bound: [`GatewaySettings::UPSTREAMS_MAX`].
    pub upstreams: Vec<Arc<UpstreamSettings>>,
    /// The routes, in order; the first that matches wins. Bound: [`GatewaySettings::ROUTES_MAX`].
    pub routes: Vec<GatewayRoute>,
}

impl GatewaySettings {
    /// The most upstreams.
    pub const UPSTREAMS_MAX: usize = 1_000;
    /// The most routes.
    pub const ROUTES_MAX: usize = 1_000;

    /// Adds an upstream for all requests that no route matches: that of `--upstream URL`.
    pub fn add_fallback(&mut self, address: UpstreamUrl) {
        let upstream = self.upstreams.len();
        self.upstreams.push(Arc::new(UpstreamSettings::new("default", vec![address])));
        let everything = Pattern::parse("/{*rest}").expect("a pattern for every path");
        self.routes.push(GatewayRoute { host: None, path: everything, upstream });
    }

    /// Finds the upstream of a request. `host` is without its port and in small letters.
    pub fn route(&self, host: Option<&str>, path: &str) -> RouteMatch {
        let spellings = Spellings::of(path);
        let mut found = spellings.iter().map(|spelling| {
            let matches = |route: &&GatewayRoute| route.matches(host, spelling.text());
            self.routes.iter().find(matches).map(|route| route.upstream)
        });
        let first = found.next().flatten();
        // Servers read such a path differently, so it is unclear which upstream it is meant for.
        if found.any(|other| other != first) {
            return RouteMatch::Ambiguous;
        }
        first.map_or(RouteMatch::None, RouteMatch::Upstream)
    }
}

/// The result of looking for a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteMatch {
    /// The index of the upstream to send the request to.
    Upstream(usize),
    /// No route matches.
    None,
    /// Servers disagree about the meaning of the path, and its readings have different routes.
    Ambiguous,
}

/// One route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayRoute {
    /// The host in small letters; `None` matches every host.
    pub host: Option<RouteHost>,
    /// The pattern of the path.
    pub path: Pattern,
    /// The index of the upstream.
    pub upstream: usize,
}

impl GatewayRoute {
    fn matches(&self, host: Option<&str>, path: &str) -> bool {
        let host_matches = match &self.host {
            None => true,
            Some(wanted) => host.is_some_and(|host| wanted.matches(host)),
        };
        host_matches && self.path.matches(path)
    }
}

/// The host of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteHost {
    /// Exactly this host.
    Exact(Box<str>),
    /// Every host that ends with this text, which begins with a dot: `*.example.com`.
    Suffix(Box<str>),
}

impl RouteHost {
    /// Returns true if a host in small letters matches.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            RouteHost::Exact(exact) => **exact == *host,
            RouteHost::Suffix(suffix) => host.len() > suffix.len() && host.ends_with(&**suffix),
        }
    }
}

/// The URL of an upstream server: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamUrl {
    /// True for `https`.
    pub tls: bool,
    /// The host name or address, without brackets.
    pub host: Box<str>,
    /// The port.
    pub port: u16,
}

impl UpstreamUrl {
    /// Parses `http://127.0.0.1:3000` or `https://app.example`.
    pub fn parse(text: &str) -> Result<UpstreamUrl, Problem> {
        let wrong = || {
            // The text may hold a password, so it is not repeated.
            Problem::new("this is not the address of an upstream")
                .hint("write `http://127.0.0.1:3000` or `https://app.example`")
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let tls = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(wrong()),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
                host.parse::<Ipv6Addr>().map_err(|_| wrong())?;
                (host, port.strip_prefix(':').or(port.is_empty().then_some("")).ok_or_else(wrong)?)
            }
            None => authority.split_once(':').unwrap_or((authority, "")),
        };
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_host) {
            return Err(wrong());
        }
        let default = if tls { 443 } else { 80 };
        let port = match port {
            "" => default,
            text => text.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?,
        };
        Ok(UpstreamUrl { tls, host: host.to_ascii_lowercase().into(), port })
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

/// One upstream: servers that do the same, and how to talk to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// Unique in a rule set.
    pub name: Box<str>,
    /// The servers, at least one. Bound: [`UpstreamSettings::ADDRESSES_MAX`].
    pub addresses: Vec<UpstreamUrl>,
    /// The HTTP version.
    pub version: UpstreamVersion,
    /// The file with the certificates that are trusted instead of the system's.
    pub ca_file: Option<PathBuf>,
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
    /// The most connections to one address, of one worker. Further requests wait, at most `connect_timeout`.
    pub connections_max: usize,
    /// The ejection of addresses that fail.
    pub ejection: Option<EjectionSettings>,
    /// The active health check.
    pub health: Option<HealthProbe>,
}

impl UpstreamSettings {
    /// The most addresses.
    pub const ADDRESSES_MAX: usize = 256;

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
