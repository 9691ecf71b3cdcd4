//! One server of an upstream: its load, and what is known about its health.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use tollgate_rules::UpstreamUrl;
use tollgate_rules::gateway_settings::HealthProbe;

use super::server_state::{FailureReason, ServerState, StateNotes};

/// The longest ejection, in times of the first.
const EJECTION_FACTOR_MAX: u32 = 10;

/// Time for which a server counts as failing after its last failure, or after an ejection, unless it answers.
const FAILING_MS: u64 = 60_000;

/// Time for which a server that answered HTTP/2 by another protocol is not asked again to speak it.
const LACKS_HTTP2_MS: u64 = 60_000;

/// One server of an upstream. It survives a reload if the name of the upstream and the URL stay.
#[derive(Debug)]
pub(crate) struct UpstreamServer {
    /// Unique in this process; pools find their connections by it.
    pub(super) id: u64,
    pub(crate) url: UpstreamUrl,
    /// The `Host` of requests that come without one.
    pub(super) host: HeaderValue,
    /// True if it chose HTTP/2 in its last TLS handshake, or sent the first frame of HTTP/2 without TLS.
    pub(super) speaks_http2: AtomicBool,
    /// The end of the time for which it is taken to lack HTTP/2; 0 if it never showed that.
    lacks_http2_until_ms: AtomicU64,
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
    /// Health checks that failed.
    pub(super) failed_checks: AtomicU64,
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
    pub(crate) state: ServerState,
    /// The last failure; `None` if the server is available.
    pub(crate) reason: Option<FailureReason>,
    /// The Unix time of the last change of the state, in milliseconds; `None` if it never changed.
    pub(crate) since_unix_ms: Option<u64>,
    pub(crate) in_flight: usize,
    pub(crate) requests: u64,
    /// Requests and health checks that failed.
    pub(crate) failures: u64,
    /// Health checks that failed.
    pub(crate) failed_checks: u64,
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
            lacks_http2_until_ms: AtomicU64::new(0),
            load: ServerLoad::default(),
            health: ServerHealth::default(),
        }
    }
}

impl UpstreamServer {
    pub(super) fn report(&self, now_ms: &impl Fn() -> u64) -> ServerReport {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mean_us = count(&self.load.wait_us).checked_div(count(&self.load.responses));
        let state = self.health.state(now_ms());
        let (reason, since_unix_ms) = {
            let notes = self.health.notes();
            (notes.reason, Some(notes.since_unix_ms).filter(|since| *since > 0))
        };
        let failed_checks = count(&self.load.failed_checks);
        ServerReport {
            url: self.url.clone(),
            state,
            reason: reason.filter(|_| state != ServerState::Available),
            since_unix_ms,
            in_flight: self.load.outstanding.load(Ordering::Relaxed),
            requests: count(&self.load.requests),
            failures: count(&self.load.failures) + failed_checks,
            failed_checks,
            mean_wait: mean_us.map(Duration::from_micros),
        }
    }
}

impl UpstreamServer {
    /// Returns true if the server showed lately that it lacks HTTP/2.
    pub(super) fn lacks_http2(&self, now_ms: &impl Fn() -> u64) -> bool {
        let until = self.lacks_http2_until_ms.load(Ordering::Relaxed);
        until > 0 && now_ms() < until
    }

    /// Remembers that the server lacks HTTP/2.
    pub(super) fn remember_no_http2(&self, now_ms: u64) {
        self.speaks_http2.store(false, Ordering::Relaxed);
        self.lacks_http2_until_ms.store(now_ms + LACKS_HTTP2_MS, Ordering::Relaxed);
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
    /// The time until which the server counts as failing while it gets requests; 0 since its last response.
    failing_until_ms: AtomicU64,
    /// Consecutive ejections without a success between them.
    ejections: AtomicU32,
    /// The end of the ejection; 0 if it was never ejected.
    ejected_until_ms: AtomicU64,
    /// True while active checks fail.
    fails_checks: AtomicBool,
    /// Consecutive results of active checks that differ from the present state.
    other_results: AtomicU32,
    /// Locked when a failure changes the state, and by those who look at it.
    notes: Mutex<StateNotes>,
}

impl ServerHealth {
    /// Returns true if requests may go to the server. Asks for the time only if the server was ejected before.
    pub(super) fn is_available(&self, now_ms: &impl Fn() -> u64) -> bool {
        let until = self.ejected_until_ms.load(Ordering::Relaxed);
        !self.fails_checks.load(Ordering::Relaxed) && (until == 0 || until <= now_ms())
    }

    pub(super) fn notes(&self) -> MutexGuard<'_, StateNotes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state at this time.
    pub(super) fn state(&self, now_ms: u64) -> ServerState {
        if self.fails_checks.load(Ordering::Relaxed) {
            ServerState::Down
        } else if self.is_ejected(now_ms) {
            ServerState::Ejected
        } else if self.failing_until_ms.load(Ordering::Relaxed) > now_ms {
            ServerState::Failing
        } else {
            ServerState::Available
        }
    }

    /// Notes that the server fails although it still gets requests. Returns true if that is new.
    pub(super) fn keep_failing(&self, now_ms: u64) -> bool {
        let until_ms = now_ms.saturating_add(FAILING_MS);
        self.failing_until_ms.swap(until_ms, Ordering::Relaxed) <= now_ms
    }

    pub(super) fn is_ejected(&self, now_ms: u64) -> bool {
        self.ejected_until_ms.load(Ordering::Relaxed) > now_ms
    }

    /// Records a response. Asks for the time only after an ejection. Returns true if that changes the state.
    pub(super) fn record_success(&self, now_ms: &impl Fn() -> u64) -> bool {
        let mut has_recovered = false;
        // Not written without need, because all workers read it.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
            has_recovered = self.failing_until_ms.swap(0, Ordering::Relaxed) != 0;
        }
        // The success of a request from before the ejection says nothing.
        if self.ejections.load(Ordering::Relaxed) != 0 && !self.is_ejected(now_ms()) {
            self.ejections.store(0, Ordering::Relaxed);
            has_recovered |= self.failing_until_ms.swap(0, Ordering::Relaxed) != 0;
        }
        has_recovered
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
        let until_ms = now_ms.saturating_add(duration_ms.max(1));
        self.failing_until_ms.store(until_ms.saturating_add(FAILING_MS), Ordering::Relaxed);
        self.ejected_until_ms.store(until_ms, Ordering::Relaxed);
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
