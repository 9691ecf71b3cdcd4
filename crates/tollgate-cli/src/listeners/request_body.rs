//! The body of a request: read on demand, with a timeout, and within the memory budget of all bodies.
//!
//! A peer can begin a body on every stream and finish none, or never read the replies. Received bytes and replies take
//! memory, so all requests of a listener share an allowance; each holds its part from its first byte to the last byte of
//! its reply.

use std::future::poll_fn;
use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

use super::allowance::{Allowance, AllowanceLimits};
use super::watchdog::ConnectionActivity;

/// Maximum bytes of a body that are read only to be discarded.
pub(crate) const DISCARD_BYTES_MAX: usize = 8 << 20;

/// Bounds of request bodies and unsent replies.
pub(super) const BODY_ALLOWANCE_LIMITS: AllowanceLimits = AllowanceLimits {
    // Most bodies are smaller and need nothing of the shared part.
    own_bytes: 1 << 10,
    // Each listener has its own, smaller limit for a body.
    each_bytes_max: 64 << 20,
    all_bytes_max: 64 << 20,
    step_bytes: 1 << 10,
};

/// Error while reading a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    TooLarge,
    TooSlow,
    /// The peer left or violated HTTP.
    Broken,
    /// The bodies of other requests use up the allowance.
    NoRoom,
    /// The deadline that the client set has passed.
    DeadlinePassed,
}

/// The body of a request.
pub(crate) struct RequestBody {
    unread: UnreadBody,
    /// Pieces of a body that did not arrive at once. Bound: the `bytes_max` of the endpoint.
    received: Vec<u8>,
    /// Covers the bytes that were read, then the reply.
    allowance: Allowance,
}

/// The unread rest of a body. The whole body has one deadline.
pub(super) struct UnreadBody {
    incoming: Incoming,
    timeout: Duration,
    /// Timer, set only if the body does not arrive with its head.
    timer: Option<Pin<Box<Sleep>>>,
    /// Activity to report waits to; `None` once the request has been answered.
    activity: Option<Arc<ConnectionActivity>>,
    is_awaited: bool,
}

impl RequestBody {
    pub(super) fn new(
        incoming: Incoming,
        timeout: Duration,
        allowance: Allowance,
        activity: Arc<ConnectionActivity>,
    ) -> RequestBody {
        let activity = Some(activity);
        let rest = UnreadBody { incoming, timeout, timer: None, activity, is_awaited: false };
        RequestBody { unread: rest, received: Vec::new(), allowance }
    }

    /// Receives the whole body, at most `bytes_max` bytes.
    pub(super) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        bytes_max: usize,
    ) -> Poll<Result<Bytes, BodyError>> {
        if self.unread.incoming.size_hint().lower() > bytes_max as u64 {
            return Poll::Ready(Err(BodyError::TooLarge));
        }
        while let Some(data) = ready!(self.unread.poll_next(context)) {
            let data = data?;
            let bytes = self.received.len() + data.len();
            if bytes > bytes_max {
                return Poll::Ready(Err(BodyError::TooLarge));
            }
            if !self.allowance.try_cover(bytes) {
                return Poll::Ready(Err(BodyError::NoRoom));
            }
            if self.received.is_empty() && self.unread.incoming.is_end_stream() {
                return Poll::Ready(Ok(data));
            }
            // Every piece is copied, even the first: a piece would keep the whole read buffer alive while the rest
            // arrives.
            self.received.extend_from_slice(&data);
        }
        Poll::Ready(Ok(take(&mut self.received).into()))
    }

    /// Covers the bytes that were received, then the reply.
    pub(super) fn allowance(&mut self) -> &mut Allowance {
        &mut self.allowance
    }

    /// The allowance, for the reply, and the unread rest.
    pub(super) fn into_parts(mut self) -> (Allowance, UnreadBody) {
        self.unread.set_awaited(false);
        self.unread.activity = None;
        (self.allowance, self.unread)
    }
}

impl UnreadBody {
    /// Returns true if more of the body may follow.
    pub(super) fn is_open(&self) -> bool {
        !self.incoming.is_end_stream()
    }

    /// Reads and discards the rest, unless it is too long.
    pub(super) async fn discard(mut self) {
        let mut left = DISCARD_BYTES_MAX;
        if self.incoming.size_hint().lower() > left as u64 {
            return;
        }
        while self.is_open()
            && let Some(Ok(data)) = poll_fn(|context| self.poll_next(context)).await
            && data.len() <= left
        {
            left -= data.len();
        }
    }

    /// The next piece; empty for a frame without data.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.timer.as_ref().is_some_and(|timer| timer.is_elapsed()) {
            return Poll::Ready(Some(Err(BodyError::TooSlow)));
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(context) {
            self.set_awaited(false);
            return Poll::Ready(frame.map(|frame| match frame {
                Ok(frame) => Ok(frame.into_data().unwrap_or_default()),
                Err(_) => Err(BodyError::Broken),
            }));
        }
        self.set_awaited(true);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
        timer.as_mut().poll(context).map(|()| Some(Err(BodyError::TooSlow)))
    }

    fn set_awaited(&mut self, awaited: bool) {
        if let (Some(activity), true) = (&self.activity, self.is_awaited != awaited) {
            self.is_awaited = awaited;
            if awaited { activity.body_wait_started() } else { activity.body_wait_ended() }
        }
    }
}

/// Ends the wait, if the peer leaves meanwhile.
impl Drop for UnreadBody {
    fn drop(&mut self) {
        self.set_awaited(false);
    }
}
