//! The registry: the upstreams of the rules in force, with what is known about their servers. It follows the rules: a
//! request that finds newer settings builds the registry again and keeps the servers whose URL stays.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use http::HeaderValue;
use tollgate_rules::{GatewaySettings, RouteMatch, UpstreamSettings, UpstreamUrl};

/// One server of an upstream.
#[derive(Debug)]
pub(crate) struct UpstreamServer {
    /// Unique in this process; pools find their connections by it.
    pub(super) id: u64,
    pub(crate) url: UpstreamUrl,
    /// The `Host` of requests that come without one.
    pub(super) host: HeaderValue,
}

impl UpstreamServer {
    fn new(url: UpstreamUrl) -> UpstreamServer {
        static SERVERS: AtomicU64 = AtomicU64::new(0);
        let host = HeaderValue::try_from(host_of(&url)).expect("the host of a URL is visible text");
        UpstreamServer { id: SERVERS.fetch_add(1, Ordering::Relaxed), url, host }
    }
}

/// The `Host` of requests to this URL.
fn host_of(url: &UpstreamUrl) -> String {
    let host = match url.host.contains(':') {
        true => format!("[{}]", url.host),
        false => url.host.to_string(),
    };
    match (url.tls, url.port) {
        (false, 80) | (true, 443) => host,
        (_, port) => format!("{host}:{port}"),
    }
}

/// An upstream, its settings and its servers.
#[derive(Debug)]
pub(crate) struct UpstreamState {
    pub(crate) settings: Arc<UpstreamSettings>,
    pub(super) servers: Vec<Arc<UpstreamServer>>,
}

/// The upstreams of one version of the settings.
#[derive(Debug)]
pub(crate) struct RegistryVersion {
    /// The settings of the rules, by which a newer version is noticed.
    source: Arc<GatewaySettings>,
    /// The same with the upstream of `--upstream`.
    settings: GatewaySettings,
    /// Bound: [`GatewaySettings::UPSTREAMS_MAX`], and one.
    upstreams: Vec<Arc<UpstreamState>>,
}

/// All upstreams.
pub(crate) struct UpstreamRegistry {
    /// The upstream of `--upstream`, for requests that no route matches.
    fallback: Option<UpstreamUrl>,
    current: ArcSwap<RegistryVersion>,
    /// Held while a version is built, so that no server is made twice.
    building: Mutex<()>,
}

/// The upstream of a request.
pub(crate) enum UpstreamMatch {
    /// Found.
    Found(Arc<UpstreamState>),
    /// No route matches.
    NoRoute,
    /// Servers disagree about the path, and its readings have different routes.
    AmbiguousPath,
}

impl UpstreamRegistry {
    pub(crate) fn new(
        settings: &Arc<GatewaySettings>,
        fallback: Option<UpstreamUrl>,
    ) -> UpstreamRegistry {
        let first = RegistryVersion::new(settings, fallback.as_ref(), &[]);
        let (current, building) = (ArcSwap::from_pointee(first), Mutex::default());
        UpstreamRegistry { fallback, current, building }
    }

    /// Finds the upstream of a request. `host` is without its port and in small letters.
    pub(crate) fn find(
        &self,
        settings: &Arc<GatewaySettings>,
        host: Option<&str>,
        path: &str,
    ) -> UpstreamMatch {
        let mut version = self.current.load();
        if !Arc::ptr_eq(&version.source, settings) {
            self.follow(settings);
            version = self.current.load();
        }
        version.find(host, path)
    }

    /// Builds the version for newer settings.
    #[cold]
    fn follow(&self, settings: &Arc<GatewaySettings>) {
        let _building = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.current.load();
        if !Arc::ptr_eq(&before.source, settings) {
            let version = RegistryVersion::new(settings, self.fallback.as_ref(), &before.upstreams);
            self.current.store(Arc::new(version));
        }
    }
}

impl RegistryVersion {
    /// Creates a version, which keeps the servers of the version before it.
    fn new(
        source: &Arc<GatewaySettings>,
        fallback: Option<&UpstreamUrl>,
        before: &[Arc<UpstreamState>],
    ) -> RegistryVersion {
        let mut settings = GatewaySettings::clone(source);
        if let Some(url) = fallback {
            settings.add_fallback(Arc::new(UpstreamSettings::new("default", vec![url.clone()])));
        }
        let state = |upstream: &Arc<UpstreamSettings>| {
            let known = before.iter().find(|state| state.settings.name == upstream.name);
            let server = |url: &UpstreamUrl| {
                let mut known = known.iter().flat_map(|state| &state.servers);
                let known = known.find(|server| server.url == *url).cloned();
                known.unwrap_or_else(|| Arc::new(UpstreamServer::new(url.clone())))
            };
            let servers = upstream.addresses.iter().map(server).collect();
            Arc::new(UpstreamState { settings: upstream.clone(), servers })
        };
        let upstreams = settings.upstreams().iter().map(state).collect();
        RegistryVersion { source: source.clone(), settings, upstreams }
    }

    fn find(&self, host: Option<&str>, path: &str) -> UpstreamMatch {
        match self.settings.route(host, path) {
            RouteMatch::Upstream(number) => match self.upstreams.get(number) {
                Some(state) => UpstreamMatch::Found(state.clone()),
                None => UpstreamMatch::NoRoute,
            },
            RouteMatch::None => UpstreamMatch::NoRoute,
            RouteMatch::Ambiguous => UpstreamMatch::AmbiguousPath,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_server_has_no_default_port() {
        let rows = [
            ("http://app", "app"),
            ("http://app:80", "app"),
            ("https://app", "app"),
            ("https://app:80", "app:80"),
            ("http://127.0.0.1:3000", "127.0.0.1:3000"),
            ("http://[::1]", "[::1]"),
            ("http://[::1]:3000", "[::1]:3000"),
        ];
        for (url, host) in rows {
            let server = UpstreamServer::new(UpstreamUrl::parse(url).unwrap());
            assert_eq!(server.host, host, "{url}");
        }
    }
}
