//! The body of a request: read as far as somebody wants it, within a time, and within what all bodies
//! together may take up.
//!
//! A peer may begin as many bodies as it may open streams, and finish none of them, or not read what they
//! are answered with. What has arrived of them lies in memory, and so do the replies: all requests of a
//! listener share an allowance, which each has from its first byte to the last of its reply.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

use super::allowance::{Allowance, AllowanceLimits};
use super::watchdog::ConnectionActivity;

/// The most bytes of a body that are read only to be thrown away.
pub(super) const DISCARD_BYTES_MAX: usize = 8 << 20;

/// Of bodies that are being read, or answered, and of replies until they are taken.
pub(super) const BODY_ALLOWANCE_LIMITS: AllowanceLimits = AllowanceLimits {
    // Most are smaller, and ask nobody.
    own_bytes: 1 << 10,
    // How long a body may be, each listener says itself.
    each_bytes_max: 64 << 20,
    all_bytes_max: 64 << 20,
    step_bytes: 1 << 10,
};

/// Why a request has no body to work with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    TooLarge,
    TooSlow,
    /// The peer left, or broke the rules of HTTP.
    Broken,
    /// The bodies of other requests take up all there is.
    NoRoom,
}

/// The body of a request.
pub(crate) struct RequestBody {
    unread: UnreadBody,
    /// For what was read, and then for the reply.
    allowance: Allowance,
}

/// What has not been read of a body. All of it has one deadline.
pub(super) struct UnreadBody {
    incoming: Incoming,
    timeout: Duration,
    /// Nearly every body comes with its head: the timer is for the others.
    timer: Option<Pin<Box<Sleep>>>,
    /// Told while the peer is waited for; nobody is once the request has been answered.
    activity: Option<Arc<ConnectionActivity>>,
    is_awaited: bool,
}

impl RequestBody {
    pub(super) fn new(
        incoming: Incoming,
        patience: Duration,
        allowance: Allowance,
        pulse: Arc<ConnectionActivity>,
    ) -> RequestBody {
        let pulse = Some(pulse);
        let rest = UnreadBody {
            incoming,
            timeout: patience,
            timer: None,
            activity: pulse,
            is_awaited: false,
        };
        RequestBody { unread: rest, allowance }
    }

    /// The whole body, at most `bytes_max` of it.
    pub(crate) async fn read(&mut self, bytes_max: usize) -> Result<Bytes, BodyError> {
        if self.unread.incoming.size_hint().lower() > bytes_max as u64 {
            return Err(BodyError::TooLarge);
        }
        let mut parts = Vec::new();
        while let Some(data) = self.unread.next().await {
            let data = data?;
            let bytes = parts.len() + data.len();
            if bytes > bytes_max {
                return Err(BodyError::TooLarge);
            }
            if !self.allowance.try_cover(bytes) {
                return Err(BodyError::NoRoom);
            }
            if parts.is_empty() && self.unread.incoming.is_end_stream() {
                return Ok(data);
            }
            // Copied, the first as well: while others are waited for, a piece would keep all that was
            // received with it.
            parts.extend_from_slice(&data);
        }
        Ok(parts.into())
    }

    /// Whether there is room for a reply of about so many bytes; asked before anything is charged for it.
    /// A reply that is not asked for beforehand may find none, and then nobody hears it.
    pub(crate) fn has_room_for(&mut self, reply_bytes: usize) -> bool {
        self.allowance.try_cover(reply_bytes)
    }

    /// For the reply, and for whoever reads the rest.
    pub(super) fn into_parts(mut self) -> (Allowance, UnreadBody) {
        self.unread.set_awaited(false);
        self.unread.activity = None;
        (self.allowance, self.unread)
    }
}

impl UnreadBody {
    /// Whether there may be more to come.
    pub(super) fn is_open(&self) -> bool {
        !self.incoming.is_end_stream()
    }

    /// Reads what is left for nothing, if that ends soon.
    pub(super) async fn discard(mut self) {
        let mut left = DISCARD_BYTES_MAX;
        if self.incoming.size_hint().lower() > left as u64 {
            return;
        }
        while self.is_open()
            && let Some(Ok(data)) = self.next().await
            && data.len() <= left
        {
            left -= data.len();
        }
    }

    /// The next piece, which is empty if it is no data.
    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        poll_fn(|context| {
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
        })
        .await
    }

    fn set_awaited(&mut self, awaited: bool) {
        if let (Some(pulse), true) = (&self.activity, self.is_awaited != awaited) {
            self.is_awaited = awaited;
            if awaited { pulse.body_wait_started() } else { pulse.body_wait_ended() }
        }
    }
}

/// A peer that goes away leaves nobody waiting.
impl Drop for UnreadBody {
    fn drop(&mut self) {
        self.set_awaited(false);
    }
}
