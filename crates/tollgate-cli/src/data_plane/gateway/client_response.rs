//! The body of a response on its way to the client.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tollgate_tower::GatedBody;

use super::exchange::{Exchange, ResponseSummary};
use crate::listeners::response_body::InFlightRequest;
use crate::upstream::UpstreamBody;
use crate::upstream::body::BodyStreamError;

/// A body, and the hold on its connection until the client has it. A client that takes no byte for two idle timeouts
/// loses its connection: each piece counts as a reply that waits until the next one is asked for. An upstream that sends
/// no byte, while the client sends none either, loses the exchange after its own idle timeout. Time in which a rule holds
/// a piece back does not count.
pub(super) struct ClientResponseBody {
    body: GatedBody<UpstreamBody>,
    /// The request; `None` until the response is complete but for its body.
    request: Option<AnsweredRequest>,
    /// The period in which the last piece began to wait.
    waiting_since: Option<usize>,
    /// The idle timeout; `None` for a body that was there when it was asked for.
    timer: Option<IdleTimer>,
}

/// A request whose response is being sent.
pub(super) struct AnsweredRequest {
    pub(super) exchange: Arc<Exchange>,
    pub(super) summary: ResponseSummary,
    pub(super) in_flight: InFlightRequest,
}

struct IdleTimer {
    sleep: Pin<Box<Sleep>>,
    /// Bytes of both bodies when it was set.
    bytes: [u64; 2],
}

impl ClientResponseBody {
    /// A body that passed the layer.
    pub(super) fn gated(body: GatedBody<UpstreamBody>) -> ClientResponseBody {
        ClientResponseBody { body, request: None, waiting_since: None, timer: None }
    }

    /// A whole body of the gateway itself.
    pub(super) fn whole(bytes: Bytes) -> ClientResponseBody {
        ClientResponseBody::gated(GatedBody::from(UpstreamBody::Whole(bytes)))
    }

    /// Counts the request as in flight until the body has ended.
    pub(super) fn hold(&mut self, request: AnsweredRequest) {
        self.request = Some(request);
    }

    fn piece_taken(&mut self) {
        if let (Some(period), Some(request)) = (self.waiting_since.take(), &self.request) {
            request.in_flight.activity().reply_sent(period);
        }
    }

    /// Counts a piece that hyper takes.
    fn piece_queued(&mut self, frame: &Frame<Bytes>) {
        let Some(request) = &self.request else { return };
        request.exchange.count_sent(frame.data_ref().map_or(0, Bytes::len));
        self.waiting_since = Some(request.in_flight.activity().reply_queued());
    }

    /// Ends the request, with the code of the error that broke its response.
    fn end(&mut self, broken: Option<&'static str>) {
        self.piece_taken();
        if let Some(AnsweredRequest { exchange, summary, in_flight }) = self.request.take() {
            exchange.end(&summary, broken);
            drop(in_flight);
        }
    }

    /// Waits until the exchange has been idle for too long.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(request) = &self.request else { return Poll::Pending };
        let Some(timeout) = request.exchange.idle_timeout() else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| IdleTimer {
            sleep: Box::pin(tokio::time::sleep(timeout)),
            bytes: request.exchange.bytes(),
        });
        loop {
            ready!(timer.sleep.as_mut().poll(context));
            let bytes = request.exchange.bytes();
            if bytes == timer.bytes && !self.body.is_held_back() {
                return Poll::Ready(());
            }
            timer.bytes = bytes;
            timer.sleep.as_mut().reset(Instant::now() + timeout);
        }
    }
}

impl Drop for ClientResponseBody {
    fn drop(&mut self) {
        let is_head = self.request.as_ref().is_some_and(|request| request.exchange.is_head);
        let is_complete = is_head || self.body.is_end_stream();
        self.end((!is_complete).then_some("client_gone"));
    }
}

impl Body for ClientResponseBody {
    type Data = Bytes;
    type Error = BodyStreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyStreamError>>> {
        self.piece_taken();
        let body = Pin::new(&mut self.body);
        let polled = catch_unwind(AssertUnwindSafe(|| body.poll_frame(context)));
        match polled {
            Err(_) => {
                self.end(Some("internal_error"));
                Poll::Ready(Some(Err("internal error".into())))
            }
            Ok(Poll::Pending) => {
                ready!(self.poll_idle(context));
                self.end(Some("body_timeout"));
                Poll::Ready(Some(Err("no byte came for too long".into())))
            }
            Ok(Poll::Ready(Some(Ok(frame)))) => {
                self.piece_queued(&frame);
                Poll::Ready(Some(Ok(frame)))
            }
            Ok(Poll::Ready(Some(Err(error)))) => {
                self.end(Some("broken_response"));
                Poll::Ready(Some(Err(error)))
            }
            Ok(Poll::Ready(None)) => {
                self.end(None);
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
