//! Listeners: accept connections and serve them, in any protocol.
//!
//! One acceptor hands each connection to the worker with the fewest. A worker is a thread with a runtime of its own, so
//! that no request crosses threads and connections share no lock. (Sockets balanced by the kernel, with `SO_REUSEPORT`,
//! would save one wake-up per connection, but they spread few connections unevenly, and two servers started on one
//! port by mistake would not notice each other.)

pub(crate) mod accept;
pub(crate) mod activity_stream;
pub(crate) mod address;
pub(crate) mod allowance;
pub(crate) mod answering;
mod call_deadline;
pub(crate) mod connection;
pub(crate) mod connection_caps;
pub(crate) mod fast_lane;
pub(crate) mod graceful_close;
pub(crate) mod handler;
pub(crate) mod header_fields;
pub(crate) mod host;
pub(crate) mod inherited;
pub(crate) mod protocol;
pub(crate) mod request_body;
pub(crate) mod response_body;
pub(crate) mod service;
pub(crate) mod socket;
pub(crate) mod tls;
pub(crate) mod tokens;
pub(crate) mod watchdog;
pub(crate) mod workers;

pub(crate) use address::{BindAddress, ListenerAddress};
