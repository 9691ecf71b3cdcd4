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
use super::server_state::{FailureReason, ServerState};
use super::tls::UpstreamTls;
use super::upstream_log::UpstreamLog;
use super::{clock, health_check};

/// Interval between two looks at the states of all servers.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
    /// True while no server is available.
    is_without_server: AtomicBool,
    log: UpstreamLog,
}

/// Consecutive failures after which a server counts as failing where none is ejected.
const FAILING_AFTER: u32 = 5;

impl UpstreamState {
    /// Number of servers in a state.
    pub(crate) fn servers_in(&self, state: ServerState) -> usize {
        let now_ms = clock::now_ms();
        self.servers.iter().filter(|server| server.health.state(now_ms) == state).count()
    }

    /// Returns true if it has servers and none of them is available: requests are tried, and fail.
    pub(crate) fn is_without_server(&self) -> bool {
        !self.servers.is_empty() && self.servers_in(ServerState::Available) == 0
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
        log: &UpstreamLog,
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
        let was_without = before.is_some_and(|it| it.is_without_server.load(Ordering::Relaxed));
        UpstreamState {
            settings,
            servers,
            tls,
            counters,
            budget,
            ejecting,
            is_replaced: AtomicBool::new(false),
            is_without_server: AtomicBool::new(was_without),
            log: log.clone(),
        }
    }

    /// Returns true once a reload has replaced it.
    pub(super) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    /// Takes a retry from the budget. One after an idle connection that the server closed is free, unless there are no
    /// retries at all: it adds no load to a server that fails.
    pub(super) fn take_retry(&self, has_closed_idle: bool) -> bool {
        let percent = self.settings.retry_budget_percent;
        let take = || self.budget.take(percent, requests_of(&self.servers), clock::now_ms());
        let is_allowed = has_closed_idle && percent > 0 || take();
        let count =
            if is_allowed { &self.counters.retries } else { &self.counters.retries_refused };
        count.fetch_add(1, Ordering::Relaxed);
        is_allowed
    }

    /// Records that a server failed. Ejects it after several failures, unless half of the servers are ejected.
    pub(super) fn record_failure(&self, number: usize, reason: FailureReason, now_ms: u64) {
        let server = &self.servers[number];
        server.load.failures.fetch_add(1, Ordering::Relaxed);
        let failures = server.health.record_failure();
        let after = self.settings.ejection.map_or(FAILING_AFTER, |ejection| ejection.after);
        if failures < after {
            return;
        }
        server.health.notes().reason = Some(reason);
        let is_ejected = self.eject(server, now_ms);
        if is_ejected || server.health.keep_failing(now_ms) {
            self.look_at(number, now_ms);
        }
    }

    /// Ejects a server if the settings and the state of the others allow it.
    fn eject(&self, server: &UpstreamServer, now_ms: u64) -> bool {
        let Some(ejection) = self.settings.ejection else { return false };
        let _ejecting = self.ejecting.lock().unwrap_or_else(PoisonError::into_inner);
        let ejected = self.servers.iter().filter(|one| one.health.is_ejected(now_ms)).count();
        if server.health.is_ejected(now_ms) || ejected + 1 > self.servers.len() / 2 {
            return false;
        }
        server.health.eject(ejection.duration, now_ms);
        self.counters.ejections.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Records a response of a server.
    pub(super) fn record_success(&self, number: usize) {
        if self.servers[number].health.record_success(&clock::now_ms) {
            self.look_at(number, clock::now_ms());
        }
    }

    /// Records the result of a health check.
    pub(super) fn record_check(&self, number: usize, failure: Option<FailureReason>) {
        let (server, Some(probe)) = (&self.servers[number], &self.settings.health) else { return };
        if failure.is_some() {
            server.load.failed_checks.fetch_add(1, Ordering::Relaxed);
            server.health.notes().reason = failure;
        }
        server.health.record_check(failure.is_none(), probe);
        self.look_at(number, clock::now_ms());
    }

    /// Logs the changes of the states that time alone has made, and those that came too soon after another line.
    pub(super) fn look_at_all(&self) {
        let now_ms = clock::now_ms();
        (0..self.servers.len()).for_each(|number| self.look_at(number, now_ms));
    }

    /// Notes the state of a server, and logs it if it has changed.
    fn look_at(&self, number: usize, now_ms: u64) {
        let server = &self.servers[number];
        let state = server.health.state(now_ms);
        let (logged_before, reason) = {
            let mut notes = server.health.notes();
            (notes.look(state, now_ms, clock::unix_ms()), notes.reason)
        };
        let Some(before) = logged_before.filter(|_| !self.is_replaced()) else { return };
        self.log.server_changed(self, &server.url, (before, state), reason);
        let is_without = self.is_without_server();
        if self.is_without_server.swap(is_without, Ordering::Relaxed) != is_without {
            self.log.upstream_changed(self, is_without, reason);
        }
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
    log: UpstreamLog,
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
        log: UpstreamLog,
    ) -> UpstreamRegistry {
        let first = RegistryVersion::new(settings, fallback.as_ref(), &[], &log);
        let (current, building) = (ArcSwap::from_pointee(first), Mutex::default());
        UpstreamRegistry { fallback, current, building, log }
    }

    /// Finds the upstream of a request. `host` is in its one spelling.
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
            let known = &before.upstreams;
            let version = RegistryVersion::new(settings, self.fallback.as_ref(), known, &self.log);
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

    /// Logs the changes of servers' states that no request or check shows, for as long as the server runs.
    pub(crate) async fn watch_states(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.current.load().upstreams.iter().for_each(|upstream| upstream.look_at_all());
        }
    }
}

impl RegistryVersion {
    /// Creates a version, which keeps the servers of the version before it.
    fn new(
        source: &Arc<GatewaySettings>,
        fallback: Option<&UpstreamUrl>,
        before: &[Arc<UpstreamState>],
        log: &UpstreamLog,
    ) -> RegistryVersion {
        let mut settings = GatewaySettings::clone(source);
        if let Some(url) = fallback {
            settings.add_fallback(Arc::new(UpstreamSettings::new("default", vec![url.clone()])));
        }
        before.iter().for_each(|state| state.is_replaced.store(true, Ordering::Relaxed));
        let state = |upstream: &Arc<UpstreamSettings>| {
            let known = before.iter().find(|state| state.settings.name == upstream.name);
            Arc::new(UpstreamState::new(upstream, known.map(|state| &**state), log))
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
    use crate::upstream::ForwardError;

    const RESET: FailureReason = FailureReason::Request(ForwardError::Reset);

    fn upstream(addresses: usize) -> UpstreamState {
        let url = |number| UpstreamUrl::parse(&format!("http://127.0.0.1:{}", 3_000 + number));
        let urls = (0..addresses).map(|number| url(number).unwrap()).collect();
        let settings = Arc::new(UpstreamSettings::new("app", urls));
        UpstreamState::new(&settings, None, &UpstreamLog::default())
    }

    #[test]
    fn at_most_half_of_the_servers_are_ejected() {
        // Servers of the upstream; ejected ones when all fail
        for (servers, want) in [(1, 0), (2, 1), (3, 1), (4, 2), (7, 3)] {
            let upstream = upstream(servers);
            for _ in 0..20 {
                (0..servers).for_each(|number| upstream.record_failure(number, RESET, 7));
            }
            let ejected = upstream.servers.iter().filter(|one| one.health.is_ejected(7)).count();
            assert_eq!(ejected, want, "of {servers}");
            assert_eq!(upstream.counters.ejections.load(Ordering::Relaxed), want as u64);
        }
    }

    #[test]
    fn a_server_fails_until_it_answers_or_nothing_is_known_any_more() {
        use ServerState::{Available, Ejected, Failing};
        let upstream = upstream(2);
        let states = |now_ms| {
            upstream.servers.iter().map(|one| one.health.state(now_ms)).collect::<Vec<_>>()
        };
        for number in [0, 1] {
            (0..5).for_each(|_| upstream.record_failure(number, RESET, 7));
        }
        // The first is ejected for ten seconds, and then tried.
        assert_eq!(states(7), [Ejected, Failing]);
        assert_eq!(states(10_007), [Failing, Failing]);
        assert_eq!(states(60_006), [Failing, Failing]);
        assert_eq!(states(60_007), [Failing, Available]);
        assert_eq!(states(70_007), [Available, Available]);
        upstream.record_failure(1, RESET, 60_000);
        assert_eq!(states(70_007), [Available, Failing]);
        assert!(upstream.servers[0].health.record_success(&|| 70_007));
        assert!(upstream.servers[1].health.record_success(&|| 70_007));
        assert_eq!(states(70_007), [Available, Available]);
        assert!(!upstream.servers[1].health.record_success(&|| 70_007));
    }

    #[test]
    fn only_consecutive_failures_eject() {
        let upstream = upstream(2);
        let fail = |times: u32| (0..times).for_each(|_| upstream.record_failure(0, RESET, 7));
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
        let settings = Arc::new(UpstreamSettings::new("app", urls));
        let after = UpstreamState::new(&settings, Some(&before), &UpstreamLog::default());
        let ids = |state: &UpstreamState| -> Vec<u64> {
            state.servers.iter().map(|server| server.id).collect()
        };
        let (old, new) = (ids(&before), ids(&after));
        assert_eq!((new[0], new[2]), (old[2], old[0]));
        assert!(!old.contains(&new[1]));
        assert!(after.servers[0].health.is_ejected(7));
    }
}
