//! `GatewayBodyHost`: bodies that are read before the decision. Their requests hold no place meanwhile, their memory is bounded,
//! and all of a body has to arrive within the timeout for bodies.

use std::future::{Future as _, ready};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, request};
use tokio::time::Sleep;
use tollgate_tower::gate::BoxFuture;
use tollgate_tower::{BodyReadFailure, RequestBodyHost, RequestBodyMemory};

use super::GatewayParts;
use super::body_memory::{BodyMemory, HeldMemory};
use super::error_reply;
use super::exchange::Exchange;
use crate::data_plane::facts::RequestHeaders;

/// The gateway's part in reading bodies.
pub(super) struct GatewayBodyHost {
    pub(super) parts: Arc<GatewayParts>,
    pub(super) memory: Arc<BodyMemory>,
}

/// The memory and the time of one body.
struct GatewayBodyMemory {
    /// `None` if there are too many bodies.
    held: Option<HeldMemory>,
    /// The end of the time for the body; `None` once it has been read.
    deadline: Option<Pin<Box<Sleep>>>,
    /// True if the body had to wait for memory.
    has_waited: bool,
}

impl GatewayBodyHost {
    /// The address whose share a body takes: that of the client, if a trusted proxy states it.
    fn address(&self, exchange: &Exchange, head: &request::Parts) -> IpAddr {
        let (peer, rules) = (exchange.peer(), self.parts.gatekeeper.rules());
        let identify = &rules.settings().identify;
        if !identify.trusts(peer) {
            return peer;
        }
        let now = self.parts.gatekeeper.now();
        identify.identify(peer, &RequestHeaders(&head.headers), now).ip.unwrap_or(peer)
    }
}

impl RequestBodyHost for GatewayBodyHost {
    fn begin(&self, head: &request::Parts) -> Box<dyn RequestBodyMemory> {
        let exchange = Exchange::of(&head.extensions);
        exchange.leave_place();
        let timeout = exchange.protocol.timeouts.body;
        Box::new(GatewayBodyMemory {
            held: self.memory.begin(self.address(exchange, head)),
            deadline: Some(Box::pin(tokio::time::sleep(timeout))),
            has_waited: false,
        })
    }

    fn resume(&self, head: &request::Parts) -> Option<BoxFuture<Result<(), Response<Bytes>>>> {
        let exchange = Exchange::of(&head.extensions);
        match exchange.enter() {
            Ok(()) => None,
            Err(Ok(queued)) => {
                let exchange = Arc::clone(exchange);
                Some(Box::pin(async move {
                    let place = queued.await.map_err(error_reply::overloaded)?;
                    exchange.keep_place(place);
                    Ok(())
                }))
            }
            Err(Err(refusal)) => Some(Box::pin(ready(Err(error_reply::overloaded(refusal))))),
        }
    }

    fn respond(&self, _: &request::Parts, reason: BodyReadFailure) -> Response<Bytes> {
        error_reply::unread_body(reason)
    }
}

impl RequestBodyMemory for GatewayBodyMemory {
    fn bytes_max(&self) -> u64 {
        self.held.as_ref().map_or(u64::MAX, |held| held.bytes_max() as u64)
    }

    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BodyReadFailure>> {
        let Some(held) = &mut self.held else { return Poll::Ready(Err(BodyReadFailure::NoMemory)) };
        let is_late =
            self.deadline.as_mut().is_some_and(|end| end.as_mut().poll(context).is_ready());
        if is_late {
            // A body that had to wait for memory at any time is not late by its client's fault.
            let reason =
                if self.has_waited { BodyReadFailure::NoMemory } else { BodyReadFailure::Missing };
            return Poll::Ready(Err(reason));
        }
        let room = held.poll_room(context);
        self.has_waited |= room.is_pending();
        room.map(Ok)
    }

    fn hold(&mut self, bytes: usize) {
        if let Some(held) = &mut self.held {
            held.hold(bytes);
        }
    }

    fn end_reading(&mut self) {
        self.deadline = None;
    }

    fn release(&mut self, bytes: usize) {
        if let Some(held) = &mut self.held {
            held.release(bytes);
        }
    }
}
