//! The bodies that pass through the forwarder: the client's on its way to an upstream, and the upstream's response.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::http1::Http1Body;
use super::http2::Http2Body;

/// An error of a body.
pub(crate) type BodyStreamError = Box<dyn Error + Send + Sync>;

/// The body of a request to an upstream.
pub(crate) enum OutgoingBody {
    /// No body: nothing is allocated for it.
    Empty,
    /// A body that is passed on while it arrives.
    Stream { body: BoxedBody, progress: Arc<BodyProgress> },
}

/// The progress of a request's body, for those who wait for its response.
#[derive(Debug, Default)]
pub(crate) struct BodyProgress {
    /// Pieces that were sent.
    pieces: AtomicU64,
    has_ended: AtomicBool,
    /// True while the next piece is awaited from the client.
    is_waiting: AtomicBool,
    /// True if the client's body failed.
    has_failed: AtomicBool,
}

impl BodyProgress {
    pub(super) fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Relaxed)
    }

    /// Returns true if the client is to blame that the request is not complete.
    pub(super) fn is_held_up_by_client(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed) || self.is_waiting.load(Ordering::Relaxed)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }
}

/// A body of any type.
type BoxedBody = Pin<Box<dyn Body<Data = Bytes, Error = BodyStreamError> + Send>>;

impl OutgoingBody {
    /// Passes a body on.
    pub(crate) fn new<B>(body: B) -> OutgoingBody
    where
        B: Body<Data = Bytes, Error = BodyStreamError> + Send + 'static,
    {
        match body.is_end_stream() {
            true => OutgoingBody::Empty,
            false => OutgoingBody::Stream { body: Box::pin(body), progress: Arc::default() },
        }
    }

    /// The progress of the body; `None` without a body.
    pub(super) fn progress(&self) -> Option<Arc<BodyProgress>> {
        match self {
            OutgoingBody::Empty => None,
            OutgoingBody::Stream { progress, .. } => Some(progress.clone()),
        }
    }
}

impl Body for OutgoingBody {
    type Data = Bytes;
    type Error = BodyStreamError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyStreamError>>> {
        match self.get_mut() {
            OutgoingBody::Empty => Poll::Ready(None),
            OutgoingBody::Stream { body, progress } => {
                let polled = body.as_mut().poll_frame(context);
                progress.is_waiting.store(polled.is_pending(), Ordering::Relaxed);
                if matches!(polled, Poll::Ready(Some(Err(_)))) {
                    progress.has_failed.store(true, Ordering::Relaxed);
                }
                let is_over = match &polled {
                    Poll::Ready(Some(Ok(_))) => body.is_end_stream(),
                    Poll::Ready(None) => true,
                    Poll::Ready(Some(Err(_))) | Poll::Pending => false,
                };
                if polled.is_ready() {
                    progress.pieces.fetch_add(1, Ordering::Relaxed);
                    progress.has_ended.store(is_over, Ordering::Relaxed);
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            OutgoingBody::Empty => true,
            OutgoingBody::Stream { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            OutgoingBody::Empty => SizeHint::with_exact(0),
            OutgoingBody::Stream { body, .. } => body.size_hint(),
        }
    }
}

/// The body of an upstream's response, or of a response that the gateway makes in its place.
pub(crate) enum UpstreamBody {
    /// A whole body; empty once it was sent.
    Whole(Bytes),
    /// A body that arrives over HTTP/1.1.
    Http1(Http1Body),
    /// A body that arrives over HTTP/2.
    Http2(Http2Body),
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BodyStreamError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyStreamError>>> {
        match self.get_mut() {
            UpstreamBody::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            UpstreamBody::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            UpstreamBody::Http1(body) => body.poll_frame(context),
            UpstreamBody::Http2(body) => body.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            UpstreamBody::Whole(bytes) => bytes.is_empty(),
            UpstreamBody::Http1(body) => body.is_end_stream(),
            UpstreamBody::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            UpstreamBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            UpstreamBody::Http1(body) => body.size_hint(),
            UpstreamBody::Http2(body) => body.size_hint(),
        }
    }
}
