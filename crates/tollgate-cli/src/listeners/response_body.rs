//! The body of a response, and what it takes up until the peer has taken it.
//!
//! A peer may ask on as many streams as it may open and read none of the answers. So the memory of a
//! reply stays within the allowance of its request until its last byte has left, and the pulse of the
//! connection knows that it waits.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::{HeaderMap, Version};
use http_body::{Frame, SizeHint};

use super::allowance::Allowance;
use super::watchdog::ConnectionActivity;

/// The body of a response: all of it, at once.
#[derive(Default)]
pub(crate) struct ResponseBody {
    data: ResponseData,
    /// Header fields that come last, as gRPC has them.
    trailers: Option<HeaderMap>,
}

impl ResponseBody {
    /// A body that has something to say at its end.
    pub(crate) fn with_trailers(data: Bytes, trailers: HeaderMap) -> ResponseBody {
        ResponseBody { data: ResponseData { bytes: data, _guards: None }, trailers: Some(trailers) }
    }

    /// The bytes that wait until the peer takes them.
    pub(super) fn len(&self) -> usize {
        self.data.bytes.len()
    }

    /// Keeps these until the last byte has left, or nobody wants it any longer.
    pub(super) fn hold_until_sent(&mut self, mut answering: InFlightRequest, allowance: Allowance) {
        if self.len() > 0 {
            answering.reply_queued();
            self.data._guards = Some((answering, allowance));
        }
    }
}

impl<T: Into<Bytes>> From<T> for ResponseBody {
    fn from(bytes: T) -> ResponseBody {
        ResponseBody { data: ResponseData { bytes: bytes.into(), _guards: None }, trailers: None }
    }
}

impl http_body::Body for ResponseBody {
    type Data = ResponseData;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<ResponseData>, Infallible>>> {
        if self.len() > 0 {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.data)))));
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.len() == 0 && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::with_exact(self.len() as u64);
        if self.trailers.is_some() {
            // Without a `Content-Length`: some peers would see the end there, and miss what follows.
            hint = SizeHint::default();
        }
        hint
    }
}

/// The bytes of a body, wherever they wait: here, or where the protocol queues what it may not send yet.
#[derive(Default)]
pub(crate) struct ResponseData {
    bytes: Bytes,
    _guards: Option<(InFlightRequest, Allowance)>,
}

impl Buf for ResponseData {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

/// A request that is being answered, or whose answer waits to be taken; it ends also when the peer gives
/// up.
pub(super) struct InFlightRequest {
    activity: Arc<ConnectionActivity>,
    /// Since when its answer waits.
    waiting_since: Option<usize>,
}

impl InFlightRequest {
    pub(super) fn begin(pulse: &Arc<ConnectionActivity>, version: Version) -> InFlightRequest {
        pulse.request_started(version == Version::HTTP_2);
        InFlightRequest { activity: pulse.clone(), waiting_since: None }
    }

    /// What the connection is doing.
    pub(super) fn activity(&self) -> &Arc<ConnectionActivity> {
        &self.activity
    }

    fn reply_queued(&mut self) {
        self.waiting_since = Some(self.activity.reply_queued());
        self.activity.request_ended();
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        match self.waiting_since {
            Some(period) => self.activity.reply_sent(period),
            None => self.activity.request_ended(),
        }
    }
}
