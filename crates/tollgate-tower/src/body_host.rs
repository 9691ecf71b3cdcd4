//! `RequestBodyHost`: the server's part in reading bodies before the decision, such as the memory for them, and the room for
//! requests that have waited.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, StatusCode, request};

use crate::gate::BoxFuture;

/// The server around a [`RequestBodyLayer`](crate::RequestBodyLayer).
pub trait RequestBodyHost: Send + Sync {
    /// Called when the body of a request is about to be read. Returns the memory for it. If the body has yet to arrive, the layer
    /// calls [`on_wait`](crate::RateLimitLayer::on_wait).
    fn begin(&self, head: &request::Parts) -> Box<dyn RequestBodyMemory>;

    /// Called when a request goes on that may have waited: before it is decided, when its body has been read, and before the inner
    /// service is called. The layer waits for the returned future; its error answers the request. Nothing is charged
    /// for the request then, nor if the client leaves meanwhile.
    fn resume(&self, head: &request::Parts) -> Option<BoxFuture<Result<(), Response<Bytes>>>>;

    /// The mark of an admitted request, for a client that leaves before there is a response. `None` if the work begins when the
    /// inner service is called.
    fn send_mark(&self, head: &request::Parts) -> Option<SendMark> {
        let _ = head;
        None
    }

    /// The response to a request whose body was not read. Nothing is charged for it.
    fn respond(&self, head: &request::Parts, reason: BodyReadFailure) -> Response<Bytes>;
}

/// The mark of a request that a server sends on. Until some of it may have been sent, its client leaves without paying. Copies
/// share one mark.
#[derive(Clone, Debug, Default)]
pub struct SendMark(Arc<AtomicBool>);

impl SendMark {
    /// Notes that the request is about to be sent.
    pub fn note_sent(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if some of the request may have been sent.
    pub fn is_sent(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The memory of one body that is read before the decision. Dropping it releases all of it.
pub trait RequestBodyMemory: Send {
    /// The most bytes of the body that are read.
    fn bytes_max(&self) -> u64;

    /// Waits until more of the body may be read. It is asked before each frame, and keeps the waker to be woken at the end of
    /// the time for the body.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyReadFailure>>;

    /// Counts bytes that the body takes now.
    fn hold(&mut self, bytes: usize);

    /// Called when the reading ends. The body still takes its memory, until it passes on.
    fn end_reading(&mut self) {}

    /// Counts bytes that have passed on.
    fn release(&mut self, bytes: usize);
}

/// The end of a body that was read before the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyReadEnd {
    /// All of it has been read.
    Complete,
    /// It is too long; the rest of it has not been read.
    TooLong,
    /// Its reader needs no more of it.
    Skipped,
}

/// The reason why a request is answered because of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyReadFailure {
    /// The body did not arrive, or not in time.
    Missing,
    /// There was no memory to read it.
    NoMemory,
    /// A rule refuses it, because it is too long to be read.
    TooLong,
    /// A rule refuses it, because it is not JSON.
    NoJson,
}

impl BodyReadFailure {
    /// The status of the response.
    pub fn status(self) -> StatusCode {
        match self {
            BodyReadFailure::Missing => StatusCode::REQUEST_TIMEOUT,
            BodyReadFailure::NoMemory => StatusCode::SERVICE_UNAVAILABLE,
            BodyReadFailure::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
            BodyReadFailure::NoJson => StatusCode::BAD_REQUEST,
        }
    }

    /// A sentence for people.
    pub fn message(self) -> &'static str {
        match self {
            BodyReadFailure::Missing => {
                "The client did not send the body of its request, or too slowly."
            }
            BodyReadFailure::NoMemory => "Too many bodies of requests are waiting.",
            BodyReadFailure::TooLong => {
                "The body of the request is too long: its cost is estimated by it, so it must be read first."
            }
            BodyReadFailure::NoJson => {
                "The body of the request is not JSON: its cost is estimated by it, so it must be readable."
            }
        }
    }
}
