//! The body of a request: read as far as somebody wants it, within a time, and within what all bodies
//! together may take up.
//!
//! A peer may begin as many bodies as it may open streams, and finish none of them. What has arrived of
//! them lies in memory, so all bodies of a door share an allowance.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

use super::allowance::{Allowance, Terms};

/// The most bytes of a body that are read only to be thrown away.
const DISCARD_BYTES_MAX: usize = 8 << 20;

/// Of bodies that are being read, or answered.
pub(super) const BODIES: Terms = Terms {
    // Most are smaller, and ask nobody.
    own_bytes: 1 << 10,
    // No door reads longer ones.
    each_bytes_max: 8 << 20,
    all_bytes_max: 64 << 20,
    step_bytes: 16 << 10,
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

/// The body of a request, as far as it has not been read. All of it has one deadline.
pub(crate) struct RequestBody {
    incoming: Incoming,
    patience: Duration,
    /// Nearly every body comes with its head: the timer is for the others.
    timer: Option<Pin<Box<Sleep>>>,
    /// For what was read, until the request is answered.
    allowance: Allowance,
}

impl RequestBody {
    pub(super) fn new(incoming: Incoming, patience: Duration, allowance: Allowance) -> RequestBody {
        RequestBody { incoming, patience, timer: None, allowance }
    }

    /// The whole body, at most `bytes_max` of it.
    pub(crate) async fn read(&mut self, bytes_max: usize) -> Result<Bytes, BodyError> {
        if self.incoming.size_hint().lower() > bytes_max as u64 {
            return Err(BodyError::TooLarge);
        }
        let mut parts = Vec::new();
        while let Some(data) = self.next().await {
            let data = data?;
            let bytes = parts.len() + data.len();
            if bytes > bytes_max {
                return Err(BodyError::TooLarge);
            }
            if !self.allowance.covers(bytes) {
                return Err(BodyError::NoRoom);
            }
            if parts.is_empty() && self.incoming.is_end_stream() {
                return Ok(data);
            }
            // Copied, the first as well: while others are waited for, a piece would keep all that was
            // received with it.
            parts.extend_from_slice(&data);
        }
        Ok(parts.into())
    }

    /// Whether there may be more to come.
    pub(super) fn is_open(&self) -> bool {
        !self.incoming.is_end_stream()
    }

    /// Reads what is left for nothing, if that ends soon.
    pub(super) async fn discard(mut self) {
        self.allowance.give_back();
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
                return Poll::Ready(frame.map(|frame| match frame {
                    Ok(frame) => Ok(frame.into_data().unwrap_or_default()),
                    Err(_) => Err(BodyError::Broken),
                }));
            }
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.patience)));
            timer.as_mut().poll(context).map(|()| Some(Err(BodyError::TooSlow)))
        })
        .await
    }
}
