//! One request at one server, from its first byte to the last of its response: counts it, and records how it ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::clock;
use super::registry::UpstreamState;
use super::server::UpstreamServer;
use super::server_state::FailureReason;

/// A request under way at a server. Dropping it ends the count.
pub(crate) struct UpstreamExchange {
    upstream: Arc<UpstreamState>,
    number: usize,
}

impl UpstreamExchange {
    /// Counts a request, or a further attempt of one.
    pub(super) fn begin(
        upstream: &Arc<UpstreamState>,
        number: usize,
        is_retry: bool,
    ) -> UpstreamExchange {
        let load = &upstream.servers[number].load;
        load.outstanding.fetch_add(1, Ordering::Relaxed);
        if !is_retry {
            load.requests.fetch_add(1, Ordering::Relaxed);
        }
        UpstreamExchange { upstream: upstream.clone(), number }
    }

    pub(super) fn server(&self) -> &Arc<UpstreamServer> {
        &self.upstream.servers[self.number]
    }

    /// Number of the server in its upstream.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Records a complete response.
    pub(super) fn record_success(&self) {
        self.upstream.record_success(self.number);
    }

    /// Records that the body of the response broke off, which may eject the server.
    pub(super) fn record_broken_body(&self) {
        self.upstream.record_failure(self.number, FailureReason::BrokenBody, clock::now_ms());
    }
}

impl Drop for UpstreamExchange {
    fn drop(&mut self) {
        self.server().load.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}
