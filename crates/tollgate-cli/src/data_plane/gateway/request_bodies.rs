//! `GatewayBodyHost`: bodies that are read before the decision. Requests that wait for theirs hold no place meanwhile, their memory is
//! bounded, and all of a body has to arrive within the timeout for bodies.

use std::future::{Future as _, ready};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, Version, request};
use tokio::time::Sleep;
use tollgate_rules::Identify;
use tollgate_tower::gate::BoxFuture;
use tollgate_tower::{
    BodyReadFailure, IdentifiedCaller, RequestBodyHost, RequestBodyMemory, SendMark,
};

use super::body_memory::{BodyMemory, HeldMemory};
use super::error_reply;
use super::exchange::Exchange;
use super::gateway_service::ClientConnection;

/// The gateway's part in reading bodies.
pub(super) struct GatewayBodyHost {
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
    /// The wait of a body whose connection has requests of other clients.
    shared: Option<SharedConnectionWait>,
}

/// The wait for memory of a body on an HTTP/2 connection of a proxy: what is unread takes window from the proxy's other clients.
struct SharedConnectionWait {
    client: Arc<ClientConnection>,
    is_waiting: bool,
}

impl SharedConnectionWait {
    /// Begins to wait; false if too many bodies of the connection do.
    fn begin(&mut self) -> bool {
        self.is_waiting = self.is_waiting || self.client.begin_unread();
        self.is_waiting
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            self.client.end_unread();
        }
    }
}

impl Drop for SharedConnectionWait {
    fn drop(&mut self) {
        self.end();
    }
}

/// The address whose share a body takes: that of the client, if a trusted proxy states it.
fn address_of(exchange: &Exchange, head: &request::Parts) -> IpAddr {
    let caller = head.extensions.get::<IdentifiedCaller>();
    caller.and_then(IdentifiedCaller::address).unwrap_or(exchange.peer())
}

/// Returns true if a connection has requests of several clients: it is one of HTTP/2, from a trusted proxy.
fn is_shared(version: Version, peer: IpAddr, identify: &Identify) -> bool {
    version == Version::HTTP_2 && identify.trusts(peer)
}

impl RequestBodyHost for GatewayBodyHost {
    fn begin(&self, head: &request::Parts) -> Box<dyn RequestBodyMemory> {
        let exchange = Exchange::of(&head.extensions);
        let (timeout, address) = (exchange.protocol.timeouts.body, address_of(exchange, head));
        let rules = exchange.protocol.parts.gatekeeper.rules();
        let is_shared = is_shared(head.version, exchange.peer(), &rules.settings().identify);
        Box::new(GatewayBodyMemory {
            held: self.memory.begin(address),
            shared: is_shared.then(|| SharedConnectionWait {
                client: Arc::clone(&exchange.client),
                is_waiting: false,
            }),
            deadline: Some(Box::pin(tokio::time::sleep(timeout))),
            has_waited: false,
        })
    }

    fn resume(&self, head: &request::Parts) -> Option<BoxFuture<Result<(), Response<Bytes>>>> {
        let exchange = Exchange::of(&head.extensions);
        if exchange.has_place() {
            return None;
        }
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

    fn send_mark(&self, head: &request::Parts) -> Option<SendMark> {
        Some(Exchange::of(&head.extensions).send_mark())
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
        let Some(shared) = &mut self.shared else { return room.map(Ok) };
        match room {
            Poll::Ready(()) => shared.end(),
            Poll::Pending if shared.begin() => {}
            Poll::Pending => return Poll::Ready(Err(BodyReadFailure::NoMemory)),
        }
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

#[cfg(test)]
mod tests {
    use tollgate_rules::{Source, compile};

    use super::*;

    #[test]
    fn only_connections_of_trusted_proxies_are_shared() {
        let text =
            "identify: { trusted_peers: [192.0.2.1], ip: { header: x-forwarded-for, nat64: true } }
rules: [{ name: all, key: '{ip}', limits: [5/minute] }]";
        let rules = compile(&[Source::from_text("rules.yaml", text)]).rules.unwrap();
        let rows = [
            ("192.0.2.1", Version::HTTP_2, true),
            ("192.0.2.1", Version::HTTP_11, false),
            // The same client in the rules' view, on a connection of its own.
            ("64:ff9b::c000:201", Version::HTTP_2, false),
            ("64:ff9b::c000:202", Version::HTTP_2, false),
            ("192.0.2.2", Version::HTTP_2, false),
        ];
        for (peer, version, want) in rows {
            let peer = peer.parse().unwrap();
            assert_eq!(is_shared(version, peer, &rules.settings().identify), want, "{peer}");
        }
    }
}
