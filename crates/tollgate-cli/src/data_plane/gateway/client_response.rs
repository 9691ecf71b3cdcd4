//! The body of a response on its way to the client.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tollgate_tower::GatedBody;

use super::overload::RequestPlace;
use crate::listeners::response_body::InFlightRequest;
use crate::upstream::UpstreamBody;
use crate::upstream::body::BodyStreamError;

/// A body, and the hold on its connection until the client has it. A client that takes no byte for two idle timeouts
/// loses its connection: each piece counts as a reply that waits until the next one is asked for.
pub(super) struct ClientResponseBody {
    body: GatedBody<UpstreamBody>,
    in_flight: Option<InFlightRequest>,
    /// The place among the requests in progress.
    place: Option<RequestPlace>,
    /// The period in which the last piece began to wait.
    waiting_since: Option<usize>,
}

impl ClientResponseBody {
    /// A body that passed the layer.
    pub(super) fn gated(body: GatedBody<UpstreamBody>) -> ClientResponseBody {
        ClientResponseBody { body, in_flight: None, place: None, waiting_since: None }
    }

    /// A whole body of the gateway itself.
    pub(super) fn whole(bytes: Bytes) -> ClientResponseBody {
        ClientResponseBody::gated(GatedBody::from(UpstreamBody::Whole(bytes)))
    }

    /// Counts the request as in flight until the body has ended.
    pub(super) fn hold(&mut self, in_flight: InFlightRequest, place: Option<RequestPlace>) {
        self.in_flight = Some(in_flight);
        self.place = place;
    }

    fn piece_taken(&mut self) {
        if let (Some(period), Some(in_flight)) = (self.waiting_since.take(), &self.in_flight) {
            in_flight.activity().reply_sent(period);
        }
    }
}

impl Drop for ClientResponseBody {
    fn drop(&mut self) {
        self.piece_taken();
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
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let (Poll::Ready(Some(Ok(_))), Some(in_flight)) = (&polled, &self.in_flight) {
            self.waiting_since = Some(in_flight.activity().reply_queued());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
