//! One server of an upstream: its load, and what is known about its health.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderValue;
use tollgate_rules::UpstreamUrl;
use tollgate_rules::gateway_settings::HealthProbe;

/// The longest ejection, in times of the first.
const EJECTION_FACTOR_MAX: u32 = 10;

/// One server of an upstream. It survives a reload if the name of the upstream and the URL stay.
#[derive(Debug)]
pub(crate) struct UpstreamServer {
    /// Unique in this process; pools find their connections by it.
    pub(super) id: u64,
    pub(crate) url: UpstreamUrl,
    /// The `Host` of requests that come without one.
    pub(super) host: HeaderValue,
    /// True if it chose HTTP/2 in its last TLS handshake.
    pub(super) speaks_http2: AtomicBool,
    pub(super) load: ServerLoad,
    pub(super) health: ServerHealth,
}

/// Counts that every request changes, on cache lines of their own: workers that only read the health of a server are
/// not slowed down by those that use it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ServerLoad {
    /// Requests under way.
    pub(super) outstanding: AtomicUsize,
    /// Requests begun, without retries.
    pub(super) requests: AtomicU64,
    /// Heads of responses, and the sum of the times that they took, in microseconds.
    responses: AtomicU64,
    wait_us: AtomicU64,
    /// Requests that failed by the server's fault, of which consecutive ones eject it.
    pub(super) failures: AtomicU64,
}

impl ServerLoad {
    /// Counts the head of a response that came after this time.
    pub(super) fn count_response(&self, wait: Duration) {
        self.responses.fetch_add(1, Ordering::Relaxed);
        let wait_us = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        self.wait_us.fetch_add(wait_us, Ordering::Relaxed);
    }
}

/// A server at one instant, for people.
#[derive(Clone, Debug)]
pub(crate) struct ServerReport {
    pub(crate) url: UpstreamUrl,
    /// True if it gets requests.
    pub(crate) is_available: bool,
    pub(crate) in_flight: usize,
    pub(crate) requests: u64,
    pub(crate) failures: u64,
    /// Mean time to the head of a response; `None` without one.
    pub(crate) mean_wait: Option<Duration>,
}

impl UpstreamServer {
    pub(super) fn new(url: UpstreamUrl) -> UpstreamServer {
        static SERVERS: AtomicU64 = AtomicU64::new(0);
        let host = HeaderValue::try_from(host_of(&url)).expect("the host of a URL is visible text");
        UpstreamServer {
            id: SERVERS.fetch_add(1, Ordering::Relaxed),
            url,
            host,
            speaks_http2: AtomicBool::new(false),
            load: ServerLoad::default(),
            health: ServerHealth::default(),
        }
    }
}

impl UpstreamServer {
    pub(super) fn report(&self, now_ms: &impl Fn() -> u64) -> ServerReport {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mean_us = count(&self.load.wait_us).checked_div(count(&self.load.responses));
        ServerReport {
            url: self.url.clone(),
            is_available: self.health.is_available(now_ms),
            in_flight: self.load.outstanding.load(Ordering::Relaxed),
            requests: count(&self.load.requests),
            failures: count(&self.load.failures),
            mean_wait: mean_us.map(Duration::from_micros),
        }
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

/// The health of a server: ejections by failed requests, and the results of active checks. Times are milliseconds of
/// the upstreams' clock.
#[derive(Debug, Default)]
pub(super) struct ServerHealth {
    /// Consecutive failures of requests.
    failures: AtomicU32,
    /// Consecutive ejections without a success between them.
    ejections: AtomicU32,
    /// The end of the ejection; 0 if it was never ejected.
    ejected_until_ms: AtomicU64,
    /// True while active checks fail.
    fails_checks: AtomicBool,
    /// Consecutive results of active checks that differ from the present state.
    other_results: AtomicU32,
}

impl ServerHealth {
    /// Returns true if requests may go to the server. Asks for the time only if the server was ejected before.
    pub(super) fn is_available(&self, now_ms: &impl Fn() -> u64) -> bool {
        let until = self.ejected_until_ms.load(Ordering::Relaxed);
        !self.fails_checks.load(Ordering::Relaxed) && (until == 0 || until <= now_ms())
    }

    pub(super) fn is_ejected(&self, now_ms: u64) -> bool {
        self.ejected_until_ms.load(Ordering::Relaxed) > now_ms
    }

    /// Records a response. Asks for the time only after an ejection.
    pub(super) fn record_success(&self, now_ms: &impl Fn() -> u64) {
        // Not written without need, because all workers read it.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        // The success of a request from before the ejection says nothing.
        if self.ejections.load(Ordering::Relaxed) != 0 && !self.is_ejected(now_ms()) {
            self.ejections.store(0, Ordering::Relaxed);
        }
    }

    /// Records a failure. Returns the number of consecutive ones.
    pub(super) fn record_failure(&self) -> u32 {
        self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Ejects the server: each time for twice as long, up to [`EJECTION_FACTOR_MAX`] times as long.
    pub(super) fn eject(&self, first: Duration, now_ms: u64) {
        let before = self.ejections.fetch_add(1, Ordering::Relaxed);
        let factor = 1_u32.checked_shl(before).unwrap_or(u32::MAX).min(EJECTION_FACTOR_MAX);
        let duration_ms = u64::try_from((first * factor).as_millis()).unwrap_or(u64::MAX);
        self.failures.store(0, Ordering::Relaxed);
        self.ejected_until_ms.store(now_ms.saturating_add(duration_ms.max(1)), Ordering::Relaxed);
    }

    /// Records the result of an active check. Only one task checks a server.
    pub(super) fn record_check(&self, is_good: bool, probe: &HealthProbe) {
        let fails = self.fails_checks.load(Ordering::Relaxed);
        if is_good != fails {
            self.other_results.store(0, Ordering::Relaxed);
            return;
        }
        let enough = if fails { probe.healthy } else { probe.unhealthy };
        if self.other_results.fetch_add(1, Ordering::Relaxed) + 1 >= enough {
            self.other_results.store(0, Ordering::Relaxed);
            self.fails_checks.store(!fails, Ordering::Relaxed);
        }
    }

    /// Forgets the results of active checks, because there are none any more.
    pub(super) fn forget_checks(&self) {
        self.other_results.store(0, Ordering::Relaxed);
        self.fails_checks.store(false, Ordering::Relaxed);
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

    #[test]
    fn ejections_double_up_to_ten_times_and_a_success_afterwards_resets_them() {
        let health = ServerHealth::default();
        let mut now = 1_000;
        for factor in [1, 2, 4, 8, 10, 10] {
            health.eject(Duration::from_secs(1), now);
            now += factor * 1_000;
            assert!(health.is_ejected(now - 1) && !health.is_ejected(now), "{factor}");
            assert!(!health.is_available(&|| now - 1) && health.is_available(&|| now), "{factor}");
        }
        // A late response to a request from before the ejection does not count.
        health.eject(Duration::from_secs(1), now);
        health.record_success(&|| now);
        health.eject(Duration::from_secs(1), now);
        assert!(health.is_ejected(now + 9_999));
        health.record_success(&|| now + 10_000);
        health.eject(Duration::from_secs(1), now + 10_000);
        assert!(!health.is_ejected(now + 11_000));
    }

    #[test]
    fn active_checks_need_several_equal_results() {
        let probe = HealthProbe {
            path: "/".into(),
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            healthy: 2,
            unhealthy: 3,
        };
        let health = ServerHealth::default();
        // Results of checks, each with the state after it
        let results = [
            (false, true),
            (false, true),
            (true, true),
            (false, true),
            (false, true),
            (false, false),
            (true, false),
            (false, false),
            (true, false),
            (true, true),
            (true, true),
        ];
        for (number, (result, is_available)) in results.into_iter().enumerate() {
            health.record_check(result, &probe);
            assert_eq!(health.is_available(&|| 0), is_available, "check {number}");
        }
        (0..3).for_each(|_| health.record_check(false, &probe));
        assert!(!health.is_available(&|| 0));
        health.forget_checks();
        assert!(health.is_available(&|| 0));
    }
}
