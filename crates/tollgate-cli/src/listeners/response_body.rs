//! The body of a response, with the guards that it holds until it is sent.
//!
//! A peer can send requests on all its streams and read none of the responses. So a response keeps the allowance of its
//! request until its last byte has left, and the activity of the connection counts it as unsent.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::{HeaderMap, Version};
use http_body::{Frame, SizeHint};

use super::allowance::Allowance;
use super::watchdog::ConnectionActivity;

/// The whole body of a response.
#[derive(Default)]
pub(crate) struct ResponseBody {
    data: ResponseData,
    /// Trailers, for gRPC.
    trailers: Option<HeaderMap>,
}

impl ResponseBody {
    /// A body with trailers.
    pub(crate) fn with_trailers(data: Bytes, trailers: HeaderMap) -> ResponseBody {
        ResponseBody { data: ResponseData { bytes: data, _guards: None }, trailers: Some(trailers) }
    }

    /// The unsent bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data.bytes
    }

    /// Number of unsent bytes.
    pub(super) fn len(&self) -> usize {
        self.data.bytes.len()
    }

    /// Holds these guards until the last byte has left, or the response is dropped.
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
            // No `Content-Length`: some peers would take it for the end and miss the trailers.
            hint = SizeHint::default();
        }
        hint
    }
}

/// The bytes of a body, here or in hyper's send queue.
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

/// A request that is being answered, or whose response is not sent yet. Dropped also when the peer gives up.
pub(crate) struct InFlightRequest {
    activity: Arc<ConnectionActivity>,
    /// Period in which its response began to wait.
    waiting_since: Option<usize>,
}

impl InFlightRequest {
    pub(crate) fn begin(activity: &Arc<ConnectionActivity>, version: Version) -> InFlightRequest {
        activity.request_started(version == Version::HTTP_2);
        InFlightRequest { activity: activity.clone(), waiting_since: None }
    }

    /// Activity of the connection.
    pub(crate) fn activity(&self) -> &Arc<ConnectionActivity> {
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
