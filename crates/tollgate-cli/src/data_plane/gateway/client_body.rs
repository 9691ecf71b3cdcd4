//! The body of a client's request, with a timeout for clients that stop sending.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::caller_fields;
use super::protocol::GatewayProtocol;
use crate::upstream::body::BodyStreamError;

/// Bytes that must arrive within each timeout.
const BYTES_PER_TIMEOUT_MIN: usize = 1 << 10;

/// The body of a request.
pub(super) struct ClientBody {
    incoming: Incoming,
    protocol: Arc<GatewayProtocol>,
    /// The current timeout; `None` while bytes keep coming.
    timer: Option<Pin<Box<Sleep>>>,
    /// Bytes since the timer was set.
    received: usize,
}

impl ClientBody {
    pub(super) fn new(incoming: Incoming, protocol: &Arc<GatewayProtocol>) -> ClientBody {
        ClientBody { incoming, protocol: protocol.clone(), timer: None, received: 0 }
    }

    /// Removes trailers that some servers would take for header fields. No proxy sends those after the body, so it does
    /// not matter who the peer is.
    fn clean_trailers(&self, trailers: &mut HeaderMap) {
        let rules = self.protocol.parts.gatekeeper.rules();
        caller_fields::remove_from_trailers(trailers, &rules.settings().identify);
    }

    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<BodyStreamError> {
        let timeout = self.protocol.timeouts.body;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        timer.as_mut().poll(context).map(|()| "the client sends its body too slowly".into())
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyStreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyStreamError>>> {
        match Pin::new(&mut self.incoming).poll_frame(context) {
            Poll::Pending => self.poll_timer(context).map(|error| Some(Err(error))),
            Poll::Ready(Some(Ok(mut frame))) => {
                if let Some(trailers) = frame.trailers_mut() {
                    self.clean_trailers(trailers);
                }
                self.received += frame.data_ref().map_or(0, Bytes::len);
                if self.received >= BYTES_PER_TIMEOUT_MIN {
                    (self.timer, self.received) = (None, 0);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(other) => Poll::Ready(other.map(|frame| frame.map_err(Into::into))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
