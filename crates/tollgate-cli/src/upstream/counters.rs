//! Counts of the requests to one upstream. They outlive a reload of the rules that keeps the upstream's name.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use http::StatusCode;
use tollgate_rules::stripes::StripedCounters;

/// Outcomes of requests: classes of an upstream's responses, then the codes of errors. Bound of the label: these.
pub(crate) const OUTCOMES: [&str; 31] = [
    "1xx",
    "2xx",
    "3xx",
    "4xx",
    "5xx",
    "bad_request",
    "body_memory",
    "body_timeout",
    "body_too_long",
    "body_unreadable",
    "broken_response",
    "client_gone",
    "connect_failed",
    "connect_timeout",
    "internal_error",
    "invalid_response",
    "lacks_http2",
    "loop_detected",
    "method_not_allowed",
    "no_route",
    "no_upstream",
    "queue_full",
    "queue_timeout",
    "refused",
    "request_body",
    "reset",
    "response_timeout",
    "stopping",
    "tls_failed",
    "upstream_busy",
    "other",
];

/// The outcome of a response that passed without an error.
pub(crate) fn outcome_of(status: StatusCode) -> &'static str {
    let class = usize::from(status.as_u16() / 100);
    OUTCOMES[..5].get(class.wrapping_sub(1)).copied().unwrap_or("other")
}

/// Requests by outcome.
#[derive(Debug, Default)]
pub(crate) struct RequestOutcomes(StripedCounters<{ OUTCOMES.len() }>);

impl RequestOutcomes {
    pub(crate) fn count(&self, outcome: &str) {
        let index = OUTCOMES.iter().position(|one| *one == outcome);
        self.0.add(index.unwrap_or(OUTCOMES.len() - 1), 1);
    }

    /// The outcomes that occurred, and how often. `always` is among them even if it has not occurred.
    pub(crate) fn sums(&self, always: &str) -> impl Iterator<Item = (&'static str, u64)> {
        let sums = OUTCOMES.into_iter().zip(self.0.sums());
        sums.filter(move |(outcome, count)| *count > 0 || *outcome == always)
    }
}

const RESPONSES: usize = 0;
const WAIT_US: usize = 1;

/// Counts of one upstream.
#[derive(Debug, Default)]
pub(crate) struct UpstreamCounters {
    pub(crate) outcomes: RequestOutcomes,
    /// Responses, and the time that they were waited for.
    waits: StripedCounters<2>,
    /// Requests that were sent again.
    pub(crate) retries: AtomicU64,
    /// Requests that were not sent again because the budget was spent.
    pub(crate) retries_refused: AtomicU64,
    /// Ejections of a server.
    pub(crate) ejections: AtomicU64,
    /// Requests for which no server was available, so that any was tried.
    pub(crate) panics: AtomicU64,
}

impl UpstreamCounters {
    /// Counts a response whose head came after this time.
    pub(crate) fn count_response(&self, wait: Duration) {
        self.waits.add(RESPONSES, 1);
        self.waits.add(WAIT_US, u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
    }

    /// Number of responses, and the sum of their waits in microseconds.
    pub(crate) fn waits(&self) -> (u64, u64) {
        let sums = self.waits.sums();
        (sums[RESPONSES], sums[WAIT_US])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_a_closed_set() {
        let counts = RequestOutcomes::default();
        for status in [101, 200, 204, 404, 503, 999] {
            counts.count(outcome_of(StatusCode::from_u16(status).unwrap()));
        }
        counts.count("reset");
        counts.count("never heard of");
        let want = [
            ("1xx", 1),
            ("2xx", 2),
            ("3xx", 0),
            ("4xx", 1),
            ("5xx", 1),
            ("reset", 1),
            ("other", 2),
        ];
        assert_eq!(counts.sums("3xx").collect::<Vec<_>>(), want);
    }
}
