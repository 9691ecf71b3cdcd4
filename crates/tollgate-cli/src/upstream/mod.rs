//! Upstreams: the servers behind the gateway, and the connections to them.
//!
//! A request finds its upstream in the registry, which follows the rules; the forwarder chooses one of its servers, takes a
//! connection from the pool of this worker or opens one, and sends the request. Nothing here knows limits.

mod balancer;
pub(crate) mod body;
mod clock;
mod connector;
pub(crate) mod counters;
pub(crate) mod error;
mod exchange;
mod first_frame;
pub(crate) mod forwarder;
mod health_check;
mod http1;
mod http2;
mod pool;
pub(crate) mod registry;
mod retry_budget;
mod server;
pub(crate) mod server_state;
#[cfg(test)]
mod tests;
mod tls;
pub(crate) mod upstream_log;

pub(crate) use body::{OutgoingBody, UpstreamBody};
pub(crate) use error::ForwardError;
pub(crate) use forwarder::{ForwardFailure, ForwardedResponse, Forwarder};
pub(crate) use http1::Http1Connection;
pub(crate) use registry::UpstreamRegistry;
