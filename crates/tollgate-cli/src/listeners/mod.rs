//! Listeners: accept connections and serve them, in any protocol.
//!
//! One acceptor hands each connection to the worker with the fewest. A worker is a thread with a runtime of its own, so
//! that no request crosses threads and connections share no lock. (Sockets balanced by the kernel, with `SO_REUSEPORT`,
//! would save one wake-up per connection, but they spread few connections unevenly, and two servers started on one
//! port by mistake would not notice each other.)

pub(crate) mod accept;
pub(crate) mod allowance;
mod answering;
mod call_deadline;
pub(crate) mod connection;
pub(crate) mod connection_caps;
pub(crate) mod fast_lane;
pub(crate) mod graceful_close;
pub(crate) mod handler;
pub(crate) mod header_fields;
pub(crate) mod host;
pub(crate) mod protocol;
pub(crate) mod request_body;
pub(crate) mod response_body;
pub(crate) mod service;
pub(crate) mod tls;
pub(crate) mod tokens;
pub(crate) mod watchdog;
pub(crate) mod workers;

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// Address of a listener, or none if it is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerAddress {
    /// Switched off.
    None,
    /// Open at this address. Port 0 is any free one.
    At(SocketAddr),
}

impl FromStr for ListenerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenerAddress, String> {
        if text == "none" {
            return Ok(ListenerAddress::None);
        }
        // A port alone means loopback.
        let port = text.strip_prefix(':').unwrap_or(text).parse::<u16>().ok();
        if let Some(port) = port {
            return Ok(ListenerAddress::At(SocketAddr::from(([127, 0, 0, 1], port))));
        }
        let spelled = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        spelled.as_deref().unwrap_or(text).parse().map(ListenerAddress::At).map_err(|_| {
            "write an address and a port, such as 127.0.0.1:8080 or [::1]:8080, or `none`".into()
        })
    }
}

impl fmt::Display for ListenerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenerAddress::None => f.write_str("none"),
            ListenerAddress::At(address) => address.fmt(f),
        }
    }
}
