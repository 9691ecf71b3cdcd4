//! One request at one server, from its first byte to the last of its response: counts it, and records how it ended.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use tokio::time::{Instant, Sleep};

use super::body::BodyStreamError;
use super::clock;
use super::registry::UpstreamState;
use super::server::UpstreamServer;

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

    pub(super) fn idle_timeout(&self) -> Duration {
        self.upstream.settings.idle_timeout
    }

    /// Records a complete response.
    pub(super) fn record_success(&self) {
        self.server().health.record_success(&clock::now_ms);
    }

    /// Records that the server failed, which may eject it.
    pub(super) fn record_failure(&self) {
        self.upstream.record_failure(self.number, clock::now_ms());
    }
}

impl Drop for UpstreamExchange {
    fn drop(&mut self) {
        self.server().load.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The idle timeout of a response's body. The timer is set when the body first waits, and only looked at when it fires.
pub(super) struct IdleTimer {
    timeout: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// True if something came since the timer was set.
    has_progress: bool,
}

impl IdleTimer {
    pub(super) fn new(timeout: Duration) -> IdleTimer {
        IdleTimer { timeout, timer: None, has_progress: false }
    }

    /// Passes a poll of the body on; an error if it waits for longer than the timeout, at most twice as long.
    pub(super) fn watch(
        &mut self,
        polled: Poll<Option<Result<Frame<Bytes>, hyper::Error>>>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyStreamError>>> {
        if let Poll::Ready(frame) = polled {
            self.has_progress = true;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let timeout = self.timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        while timer.as_mut().poll(context).is_ready() {
            if !std::mem::take(&mut self.has_progress) {
                return Poll::Ready(Some(Err("the upstream stopped sending its response".into())));
            }
            timer.as_mut().reset(Instant::now() + timeout);
        }
        Poll::Pending
    }
}
