//! The body of a client's request: asked for when the upstream wants it, with a timeout for clients that stop sending.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep};

use super::caller_fields;
use super::exchange::Exchange;
use crate::listeners::request_body::DISCARD_BYTES_MAX;
use crate::upstream::body::BodyStreamError;

/// Pieces below this size are copied.
const SMALL_PIECE_BYTES: usize = 2 << 10;

/// Bytes that must arrive within each timeout.
const BYTES_PER_TIMEOUT_MIN: usize = 1 << 10;

/// Time after which the client is asked for its body although the upstream has not said `100 Continue`: not all do.
const CONTINUE_WAIT_MAX: Duration = Duration::from_secs(1);

/// The body of a request.
pub(super) struct ClientBody {
    /// `None` only during drop.
    incoming: Option<Incoming>,
    exchange: Arc<Exchange>,
    /// True for HTTP/2, where dropping an incomplete body resets the stream and may lose the response.
    must_discard: bool,
    /// The current timeout; `None` while bytes keep coming.
    timer: Option<Pin<Box<Sleep>>>,
    /// True while the timer is that of `100 Continue`.
    was_held: bool,
    /// Bytes since the timer was set.
    received: usize,
    /// The instant of the last piece, if the timer runs. The client's time stands still until the next piece is asked
    /// for: a rule may hold this one back, or the upstream takes it slowly.
    passed_at: Option<Instant>,
}

impl ClientBody {
    pub(super) fn new(
        incoming: Incoming,
        exchange: &Arc<Exchange>,
        must_discard: bool,
    ) -> ClientBody {
        let (incoming, exchange) = (Some(incoming), exchange.clone());
        ClientBody {
            incoming,
            exchange,
            must_discard,
            timer: None,
            was_held: false,
            received: 0,
            passed_at: None,
        }
    }

    fn incoming(&mut self) -> Pin<&mut Incoming> {
        Pin::new(self.incoming.as_mut().expect("it is there until this is dropped"))
    }

    /// Waits until the body may be asked for.
    fn poll_released(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.exchange.poll_body_released(context).is_ready() {
            if std::mem::take(&mut self.was_held) {
                self.timer = None;
            }
            return Poll::Ready(());
        }
        self.was_held = true;
        ready!(self.poll_timer(context, CONTINUE_WAIT_MAX));
        (self.timer, self.was_held) = (None, false);
        self.exchange.release_body();
        Poll::Ready(())
    }

    fn poll_timer(&mut self, context: &mut Context<'_>, time: Duration) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
        timer.as_mut().poll(context)
    }

    /// Waits for the end of the client's time.
    fn poll_too_slow(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.exchange.requires_pace() {
            self.timer = None;
            return Poll::Pending;
        }
        let timeout = self.exchange.protocol.timeouts.body;
        self.poll_timer(context, timeout)
    }

    fn count(&mut self, data: &Bytes) {
        self.exchange.count_received(data.len());
        self.received += data.len();
        if self.received >= BYTES_PER_TIMEOUT_MIN {
            (self.timer, self.received) = (None, 0);
        }
        self.passed_at = self.timer.is_some().then(Instant::now);
    }

    /// Lets the client's time go on, after a pause in which nobody asked for its bytes.
    fn resume_timer(&mut self) {
        if let (Some(passed_at), Some(timer)) = (self.passed_at.take(), &mut self.timer) {
            let ends_at = timer.deadline() + passed_at.elapsed();
            timer.as_mut().reset(ends_at);
        }
    }

    /// Removes trailers that some servers would take for header fields. No proxy sends those after the body, so it does
    /// not matter who the peer is.
    fn clean_trailers(&self, trailers: &mut HeaderMap) {
        let rules = self.exchange.protocol.parts.gatekeeper.rules();
        caller_fields::remove_from_trailers(trailers, &rules);
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyStreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyStreamError>>> {
        ready!(self.poll_released(context));
        self.resume_timer();
        match self.incoming().poll_frame(context) {
            Poll::Pending => {
                ready!(self.poll_too_slow(context));
                Poll::Ready(Some(Err("the client sends its body too slowly".into())))
            }
            Poll::Ready(Some(Ok(mut frame))) => {
                match frame.trailers_mut() {
                    Some(trailers) => self.clean_trailers(trailers),
                    None => frame.data_ref().into_iter().for_each(|data| self.count(data)),
                }
                Poll::Ready(Some(Ok(frame.map_data(unshared))))
            }
            Poll::Ready(other) => Poll::Ready(other.map(|frame| frame.map_err(Into::into))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(SizeHint::default, Incoming::size_hint)
    }
}

/// A small piece in memory of its own: it may wait until the whole body has been read, and would keep all of the buffer
/// that hyper read it into.
fn unshared(data: Bytes) -> Bytes {
    if data.len() < SMALL_PIECE_BYTES { Bytes::copy_from_slice(&data) } else { data }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        // At most as many tasks as streams. Without a runtime the worker has ended, and the connection with it.
        if self.must_discard
            && !self.is_end_stream()
            && let (Some(rest), Ok(runtime)) = (self.incoming.take(), Handle::try_current())
        {
            let timeout = self.exchange.protocol.timeouts.body;
            runtime.spawn(tokio::time::timeout(timeout, discard(rest)));
        }
    }
}

/// Reads and discards the rest of a body, unless it is too long.
async fn discard(mut rest: Incoming) {
    let mut left = DISCARD_BYTES_MAX;
    while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut rest).poll_frame(context)).await {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        if bytes > left {
            return;
        }
        left -= bytes;
    }
}
