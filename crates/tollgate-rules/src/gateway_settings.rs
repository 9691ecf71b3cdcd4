//! The gateway's settings in a rules file: `upstreams` and `routes`. They are part of the rule set, so a reload replaces
//! rules and routes together.

mod upstream;
mod url;

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::Problem;
use crate::host::normalize_host;
use crate::path::Spellings;
use crate::pattern::{PathIndex, Pattern};

pub use upstream::{
    CaFile, EjectionSettings, HealthProbe, UpstreamHost, UpstreamLimitFields, UpstreamSettings,
    UpstreamVersion,
};
pub use url::UpstreamUrl;
pub(crate) use url::parse_host;

/// The upstreams and routes of all files.
#[derive(Clone, Debug, Default)]
pub struct GatewaySettings {
    /// Bound: [`GatewaySettings::UPSTREAMS_MAX`].
    upstreams: Vec<Arc<UpstreamSettings>>,
    /// Routes in order; the first that matches wins. Bound: [`GatewaySettings::ROUTES_MAX`].
    routes: Vec<GatewayRoute>,
    /// The numbers of the routes by path.
    by_path: PathIndex,
}

/// The index follows from the routes.
impl PartialEq for GatewaySettings {
    fn eq(&self, other: &GatewaySettings) -> bool {
        (&self.upstreams, &self.routes) == (&other.upstreams, &other.routes)
    }
}

impl Eq for GatewaySettings {}

impl GatewaySettings {
    /// The most upstreams.
    pub const UPSTREAMS_MAX: usize = 1_000;
    /// The most routes.
    pub const ROUTES_MAX: usize = 1_000;

    /// Settings of these upstreams and routes.
    pub fn new(
        upstreams: Vec<Arc<UpstreamSettings>>,
        routes: Vec<GatewayRoute>,
    ) -> GatewaySettings {
        let mut by_path = PathIndex::default();
        for (number, route) in (0..).zip(&routes) {
            by_path.insert(&route.path, number);
        }
        GatewaySettings { upstreams, routes, by_path }
    }

    /// Adds an upstream for all requests that no route matches.
    pub fn add_fallback(&mut self, upstream: Arc<UpstreamSettings>) {
        let path = Pattern::parse("/{*rest}").expect("a pattern for every path");
        self.by_path.insert(&path, self.routes.len() as u32);
        self.routes.push(GatewayRoute { host: None, path, upstream: self.upstreams.len() });
        self.upstreams.push(upstream);
    }

    /// The upstreams, in the order of the files.
    pub fn upstreams(&self) -> &[Arc<UpstreamSettings>] {
        &self.upstreams
    }

    /// The routes, in order; the first that matches wins.
    pub fn routes(&self) -> &[GatewayRoute] {
        &self.routes
    }

    /// Finds the upstream of a request. `host` is in its [one spelling](crate::normalize_host).
    pub fn route(&self, host: Option<&str>, path: &str) -> RouteMatch {
        let spellings = Spellings::of(path);
        let mut found = spellings.iter().map(|spelling| self.upstream_of(host, spelling.text()));
        let first = found.next().flatten();
        // Servers read such a path differently, so it is unclear which upstream it is meant for.
        if found.any(|other| other != first) {
            return RouteMatch::Ambiguous;
        }
        first.map_or(RouteMatch::None, RouteMatch::Upstream)
    }

    /// The number of the upstream of a path in normal spelling.
    fn upstream_of(&self, host: Option<&str>, path: &str) -> Option<usize> {
        let mut first: Option<u32> = None;
        self.by_path.each_match(path, &mut |number| {
            let is_earlier = first.is_none_or(|first| number < first);
            if is_earlier && self.routes[number as usize].matches_host(host) {
                first = Some(number);
            }
        });
        first.map(|number| self.routes[number as usize].upstream)
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
    /// The host; `None` matches every host.
    pub host: Option<RouteHost>,
    /// The pattern of the path.
    pub path: Pattern,
    /// The index of the upstream.
    pub upstream: usize,
}

impl GatewayRoute {
    fn matches_host(&self, host: Option<&str>) -> bool {
        match &self.host {
            None => true,
            Some(wanted) => host.is_some_and(|host| wanted.matches(host)),
        }
    }

    /// Returns true if it matches every request that another route matches.
    pub(crate) fn covers(&self, other: &GatewayRoute) -> bool {
        let host = match (&self.host, &other.host) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(other)) => own.covers(other),
        };
        host && self.path.covers(&other.path)
    }
}

/// The host of a route or of a condition, in its one spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteHost {
    /// Exactly this host.
    Exact(Box<str>),
    /// Every host that ends with this text, which begins with a dot: `*.example.com`.
    Suffix(Box<str>),
}

impl RouteHost {
    /// Reads `example.com` or `*.example.com`, also with capitals, letters beyond ASCII and a dot at its end.
    pub fn parse(text: &str) -> Result<RouteHost, Problem> {
        let bad = |what: &str| Problem::new(format!("the host {text:?} {what}"));
        if text.contains("://") {
            return Err(bad("is a URL").hint("write the host alone, such as `api.example.com`"));
        }
        let (wildcard, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        if name.contains('*') {
            return Err(bad("has a star that is not the first label")
                .hint("write `*.example.com`, or leave `host` out for every host"));
        }
        let name = name.strip_suffix('.').unwrap_or(name);
        let ascii = Some(name).filter(|name| !name.is_ascii() && !name.contains([':', '@']));
        let ascii = ascii.and_then(normalize_host).unwrap_or(Cow::Borrowed(name));
        let host = parse_host(&ascii).map_err(|what| {
            bad(what).hint("write a host without port such as `api.example.com` or `*.example.com`")
        })?;
        match (wildcard, host.parse::<IpAddr>()) {
            (true, Ok(_)) => Err(bad("has a star before an address")
                .hint("write the whole address, or a name such as `*.example.com`")),
            (true, Err(_)) => Ok(RouteHost::Suffix(format!(".{host}").into())),
            // Requests have IPv6 addresses in brackets.
            (false, Ok(IpAddr::V6(address))) => Ok(RouteHost::Exact(format!("[{address}]").into())),
            (false, _) => Ok(RouteHost::Exact(host)),
        }
    }

    /// Returns true if a host in its one spelling matches.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            RouteHost::Exact(exact) => **exact == *host,
            RouteHost::Suffix(suffix) => host.len() > suffix.len() && host.ends_with(&**suffix),
        }
    }

    /// Returns true if it matches every host that another one matches.
    fn covers(&self, other: &RouteHost) -> bool {
        match (self, other) {
            (_, RouteHost::Exact(exact)) => self.matches(exact),
            (RouteHost::Exact(_), RouteHost::Suffix(_)) => false,
            (RouteHost::Suffix(own), RouteHost::Suffix(other)) => other.ends_with(&**own),
        }
    }
}

impl fmt::Display for RouteHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RouteHost::Exact(exact) => f.write_str(exact),
            RouteHost::Suffix(suffix) => write!(f, "*{suffix}"),
        }
    }
}

#[cfg(test)]
mod tests;
