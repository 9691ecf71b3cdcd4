//! The bodies that pass through the forwarder: the client's on its way to an upstream, and the upstream's response.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::http1::Http1Body;

/// An error of a body.
pub(crate) type BodyStreamError = Box<dyn Error + Send + Sync>;

/// The body of a request to an upstream.
pub(crate) enum OutgoingBody {
    /// No body: nothing is allocated for it.
    Empty,
    /// A body that is passed on while it arrives.
    Stream { body: BoxedBody, ended: Option<Arc<AtomicBool>> },
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
            false => OutgoingBody::Stream { body: Box::pin(body), ended: None },
        }
    }

    /// Returns a flag that is set when the body has been sent; `None` without a body.
    pub(super) fn watch_end(&mut self) -> Option<Arc<AtomicBool>> {
        match self {
            OutgoingBody::Empty => None,
            OutgoingBody::Stream { ended, .. } => Some(ended.insert(Arc::default()).clone()),
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
            OutgoingBody::Stream { body, ended } => {
                let polled = body.as_mut().poll_frame(context);
                let is_over = match &polled {
                    Poll::Ready(Some(Ok(_))) => body.is_end_stream(),
                    Poll::Ready(None) => true,
                    Poll::Ready(Some(Err(_))) | Poll::Pending => false,
                };
                if let (true, Some(ended)) = (is_over, ended) {
                    ended.store(true, Ordering::Relaxed);
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
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            UpstreamBody::Whole(bytes) => bytes.is_empty(),
            UpstreamBody::Http1(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            UpstreamBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            UpstreamBody::Http1(body) => body.size_hint(),
        }
    }
}
