//! The registry: the upstreams of the rules in force, with what is known about their servers. It follows the rules: a
//! request that finds newer settings builds the registry again and keeps the servers whose URL stays.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tollgate_rules::{GatewaySettings, RouteMatch, UpstreamSettings, UpstreamUrl};

use super::counters::UpstreamCounters;
use super::retry_budget::RetryBudget;
use super::server::{ServerReport, UpstreamServer};
use super::tls::UpstreamTls;
use super::{clock, health_check};

/// An upstream, its settings and its servers.
#[derive(Debug)]
pub(crate) struct UpstreamState {
    pub(crate) settings: Arc<UpstreamSettings>,
    /// Bound: [`UpstreamSettings::ADDRESSES_MAX`].
    pub(super) servers: Vec<Arc<UpstreamServer>>,
    pub(super) tls: Option<Arc<UpstreamTls>>,
    pub(crate) counters: Arc<UpstreamCounters>,
    budget: RetryBudget,
    /// Held while a server is ejected, so that at most half of them are.
    ejecting: Mutex<()>,
    /// True once a reload has replaced it.
    is_replaced: AtomicBool,
}

impl UpstreamState {
    /// Number of servers, and of those that get requests now.
    pub(crate) fn server_counts(&self) -> (usize, usize) {
        let is_available =
            |server: &&Arc<UpstreamServer>| server.health.is_available(&clock::now_ms);
        (self.servers.len(), self.servers.iter().filter(is_available).count())
    }

    /// All servers at this instant.
    pub(crate) fn server_reports(&self) -> Vec<ServerReport> {
        self.servers.iter().map(|server| server.report(&clock::now_ms)).collect()
    }

    /// Counts the head of a response that a server gave after this time.
    pub(crate) fn count_response(&self, server: usize, wait: Duration) {
        self.counters.count_response(wait);
        if let Some(server) = self.servers.get(server) {
            server.load.count_response(wait);
        }
    }

    /// Creates an upstream, which keeps the servers, the counts and the TLS configuration of the one before it.
    pub(super) fn new(
        settings: &Arc<UpstreamSettings>,
        before: Option<&UpstreamState>,
    ) -> UpstreamState {
        // Connections that were verified by other settings must not be used any more.
        let same_trust = before.filter(|state| {
            let old = &state.settings;
            (&old.ca_file, &old.server_name) == (&settings.ca_file, &settings.server_name)
        });
        let server = |url: &UpstreamUrl| {
            let known =
                same_trust.and_then(|state| state.servers.iter().find(|one| one.url == *url));
            known.cloned().unwrap_or_else(|| Arc::new(UpstreamServer::new(url.clone())))
        };
        let servers: Vec<_> = settings.addresses.iter().map(server).collect();
        let same_tls = before.filter(|state| {
            let old = &state.settings;
            state.tls.is_some()
                && (&old.ca_file, &old.addresses) == (&settings.ca_file, &settings.addresses)
        });
        let tls = match same_tls {
            Some(state) => state.tls.clone(),
            None => UpstreamTls::new(settings).map(Arc::new),
        };
        let budget = RetryBudget::new(requests_of(&servers), clock::now_ms());
        let counters = before.map(|state| state.counters.clone()).unwrap_or_default();
        let (settings, ejecting) = (settings.clone(), Mutex::default());
        let is_replaced = AtomicBool::new(false);
        UpstreamState { settings, servers, tls, counters, budget, ejecting, is_replaced }
    }

    /// Returns true once a reload has replaced it.
    pub(super) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    /// Takes a retry from the budget.
    pub(super) fn take_retry(&self) -> bool {
        let percent = self.settings.retry_budget_percent;
        let is_allowed = self.budget.take(percent, requests_of(&self.servers), clock::now_ms());
        let count =
            if is_allowed { &self.counters.retries } else { &self.counters.retries_refused };
        count.fetch_add(1, Ordering::Relaxed);
        is_allowed
    }

    /// Records that a server failed. Ejects it after several failures, unless half of the servers are ejected.
    pub(super) fn record_failure(&self, number: usize, now_ms: u64) {
        let server = &self.servers[number];
        server.load.failures.fetch_add(1, Ordering::Relaxed);
        let failures = server.health.record_failure();
        let Some(ejection) = self.settings.ejection.filter(|it| failures >= it.after) else {
            return;
        };
        let _ejecting = self.ejecting.lock().unwrap_or_else(PoisonError::into_inner);
        let ejected = self.servers.iter().filter(|one| one.health.is_ejected(now_ms)).count();
        if server.health.is_ejected(now_ms) || ejected + 1 > self.servers.len() / 2 {
            return;
        }
        server.health.eject(ejection.duration, now_ms);
        self.counters.ejections.fetch_add(1, Ordering::Relaxed);
    }
}

/// Number of requests begun at all servers.
fn requests_of(servers: &[Arc<UpstreamServer>]) -> u64 {
    servers.iter().map(|server| server.load.requests.load(Ordering::Relaxed)).sum()
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
    /// Held while a version is built, so that no server is made twice. True once health checks run.
    building: Mutex<bool>,
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

    /// All upstreams of the version in use.
    pub(crate) fn upstreams(&self) -> Vec<Arc<UpstreamState>> {
        self.current.load().upstreams.clone()
    }

    /// Builds the version for newer settings.
    #[cold]
    fn follow(&self, settings: &Arc<GatewaySettings>) {
        let has_checks = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.current.load();
        if !Arc::ptr_eq(&before.source, settings) {
            let version = RegistryVersion::new(settings, self.fallback.as_ref(), &before.upstreams);
            if *has_checks {
                version.upstreams.iter().for_each(health_check::start);
            }
            self.current.store(Arc::new(version));
        }
    }

    /// Starts the active health checks on the runtime of this thread, now and after each reload.
    pub(crate) fn start_checks(&self) {
        let mut has_checks = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *has_checks, true) {
            self.current.load().upstreams.iter().for_each(health_check::start);
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
        before.iter().for_each(|state| state.is_replaced.store(true, Ordering::Relaxed));
        let state = |upstream: &Arc<UpstreamSettings>| {
            let known = before.iter().find(|state| state.settings.name == upstream.name);
            Arc::new(UpstreamState::new(upstream, known.map(|state| &**state)))
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

    fn upstream(addresses: usize) -> UpstreamState {
        let url = |number| UpstreamUrl::parse(&format!("http://127.0.0.1:{}", 3_000 + number));
        let urls = (0..addresses).map(|number| url(number).unwrap()).collect();
        UpstreamState::new(&Arc::new(UpstreamSettings::new("app", urls)), None)
    }

    #[test]
    fn at_most_half_of_the_servers_are_ejected() {
        // Servers of the upstream; ejected ones when all fail
        for (servers, want) in [(1, 0), (2, 1), (3, 1), (4, 2), (7, 3)] {
            let upstream = upstream(servers);
            for _ in 0..20 {
                (0..servers).for_each(|number| upstream.record_failure(number, 7));
            }
            let ejected = upstream.servers.iter().filter(|one| one.health.is_ejected(7)).count();
            assert_eq!(ejected, want, "of {servers}");
            assert_eq!(upstream.counters.ejections.load(Ordering::Relaxed), want as u64);
        }
    }

    #[test]
    fn only_consecutive_failures_eject() {
        let upstream = upstream(2);
        let fail = |times: u32| (0..times).for_each(|_| upstream.record_failure(0, 7));
        fail(4);
        upstream.servers[0].health.record_success(&|| 7);
        fail(4);
        assert!(!upstream.servers[0].health.is_ejected(7));
        fail(1);
        assert!(upstream.servers[0].health.is_ejected(7));
        // The default is ten seconds.
        let available = |now: u64| upstream.servers[0].health.is_available(&|| now);
        assert!(!available(10_006) && available(10_007));
    }

    #[test]
    fn a_server_survives_a_reload_if_its_url_stays() {
        let before = upstream(3);
        before.servers[2].health.eject(Duration::from_secs(9), 7);
        let urls = ["http://127.0.0.1:3002", "http://127.0.0.1:9", "http://127.0.0.1:3000"];
        let urls = urls.map(|url| UpstreamUrl::parse(url).unwrap()).to_vec();
        let after =
            UpstreamState::new(&Arc::new(UpstreamSettings::new("app", urls)), Some(&before));
        let ids = |state: &UpstreamState| -> Vec<u64> {
            state.servers.iter().map(|server| server.id).collect()
        };
        let (old, new) = (ids(&before), ids(&after));
        assert_eq!((new[0], new[2]), (old[2], old[0]));
        assert!(!old.contains(&new[1]));
        assert!(after.servers[0].health.is_ejected(7));
    }
}
