//! Commands of Redis clients: the door resp.

mod numbers;
mod reply;
pub(crate) mod request;
mod throttle;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::doors::patrol::{Patience, Pulse};
use crate::doors::protocol::Protocol;
use crate::doors::tokens::Tokens;
use crate::metrics::Timing;
use crate::store::Gatekeeper;

/// Answers on the door resp.
pub(crate) struct RespDoor {
    pub(crate) gatekeeper: Arc<Gatekeeper>,
    /// Who may ask; `None`: whoever reaches the door.
    pub(crate) tokens: Option<Arc<Tokens>>,
    pub(crate) timing: Arc<Timing>,
    pub(crate) patience: Patience,
    /// Set while the server stops: no further commands are read.
    pub(crate) stopping: Arc<AtomicBool>,
}

impl Protocol for RespDoor {
    const TOO_MANY: &'static [u8] = b"-ERR max number of clients reached\r\n";

    fn patience(&self) -> &Patience {
        &self.patience
    }

    async fn serve<S>(self: Arc<Self>, stream: S, _: SocketAddr, _: Arc<Pulse>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        drop(stream);
    }
}
