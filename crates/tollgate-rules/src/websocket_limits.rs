//! `WebSocketLimits`: the limits of WebSocket connections, which the gateway enforces.

use std::sync::Arc;
use std::time::Duration;

use tollgate::Limit;

use crate::rule::Concurrency;

/// The limits of WebSocket connections under a rule. Rates count for each connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSocketLimits {
    /// The most connections of one key at the same time.
    pub connections: Option<Concurrency>,
    /// The rate of messages, and its text. Control frames count as messages.
    pub messages: Option<(Arc<Limit>, Box<str>)>,
    /// The rate of bytes on the wire, and its text.
    pub bytes: Option<(Arc<Limit>, Box<str>)>,
    /// The longest message in bytes on the wire.
    pub message_bytes: Option<u64>,
    /// The longest time without a byte in either direction. Not checked while a frame waits for its
    /// rate.
    pub idle: Option<Duration>,
    /// The longest life of a connection.
    pub lifetime: Option<Duration>,
    /// The reaction to frames beyond a rate.
    pub on_excess: ExcessPolicy,
    /// The close code for connections that exceed a rate: 1008 or 1013.
    pub close_code: u16,
    /// The frames that the rates and the longest message limit.
    pub direction: LimitedDirection,
}

/// The reaction to frames beyond a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExcessPolicy {
    /// The gateway closes the connection.
    #[default]
    Close,
    /// The gateway stops reading until the rate has room: back-pressure.
    Wait,
}

/// The frames that rates limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitedDirection {
    /// Frames from the client.
    #[default]
    Client,
    /// Frames from the upstream.
    Server,
    /// Frames of each direction, counted apart.
    Both,
}

impl LimitedDirection {
    /// Returns true if frames from the client are limited.
    pub fn limits_client(self) -> bool {
        self != LimitedDirection::Server
    }

    /// Returns true if frames from the upstream are limited.
    pub fn limits_server(self) -> bool {
        self != LimitedDirection::Client
    }
}
