//! The resp listener: commands of Redis clients.
//!
//! ```text
//!   bytes ─▶ request/   commands and lines, read in place      input.rs: where they wait
//!         ─▶ commands.rs which command it is
//!         ─▶ batch.rs   CL.THROTTLE, decided together          throttle.rs, numbers.rs: what it means
//!            rules.rs   TG.CHECK, TG.PEEK, TG.RESET             questions.rs: several at once
//!            session.rs what clients send beside questions
//!         ─▶ reply.rs   RESP2 and RESP3                        allowance.rs: how much may wait
//! ```
//!
//! `connection.rs` is the loop around it: bytes in, bytes out. `talk.rs` is what is said between the two,
//! `dispatch.rs` one command of it.

mod allowance;
mod audit;
mod batch;
mod commands;
mod connection;
mod dispatch;
mod figures;
mod input;
mod numbers;
mod questions;
mod reply;
mod request;
mod resets;
mod rules;
mod session;
mod talk;
mod throttle;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use allowance::{Common, REPLIES};
use connection::Connection;
use numbers::Book;

use crate::listeners::patrol::{Patience, Pulse};
use crate::listeners::protocol::Protocol;
use crate::listeners::tokens::Tokens;
use crate::metrics::Timing;
use crate::settings::OnMissingFacts;
use crate::store::Gatekeeper;

pub(crate) use audit::Audit;
pub(crate) use figures::RespFigures;

/// How long a connection may be idle: clients of Redis keep connections that they do not use, and are not
/// ready for one that is closed. The caps on connections have to be enough.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Answers on the resp listener.
pub(crate) struct RespListener {
    gatekeeper: Arc<Gatekeeper>,
    /// Who may ask; `None`: whoever reaches the listener.
    tokens: Option<Arc<Tokens>>,
    timing: Arc<Timing>,
    patience: Patience,
    audit: Audit,
    /// What becomes of questions that no rule can be asked about.
    missing_facts: OnMissingFacts,
    figures: Arc<RespFigures>,
    /// The numbers that `CL.THROTTLE` is called with.
    book: Book,
    /// The replies that wait, of all connections.
    waiting: Arc<Common>,
}

impl RespListener {
    pub(crate) fn new(
        gatekeeper: Arc<Gatekeeper>,
        tokens: Option<Arc<Tokens>>,
        timing: Arc<Timing>,
        patience: Patience,
        audit: Audit,
        missing_facts: OnMissingFacts,
    ) -> RespListener {
        let figures = Arc::<RespFigures>::default();
        RespListener {
            gatekeeper,
            tokens,
            timing,
            patience: Patience { idle: FOR_EVER, ..patience },
            audit,
            missing_facts,
            book: Book::new(figures.clone()),
            figures,
            waiting: Common::new(REPLIES),
        }
    }

    /// Tells of resets that had no line of their own, as long as the runtime lives.
    pub(crate) async fn watch_resets(self: Arc<RespListener>) {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.audit.tell_of_resets(self.gatekeeper.now());
        }
    }

    /// Tells of those that are left at the end.
    pub(crate) fn finish(&self) {
        self.audit.tell_of_last_resets();
    }

    /// What it counts.
    pub(crate) fn figures(&self) -> Arc<RespFigures> {
        self.figures.clone()
    }
}

impl Protocol for RespListener {
    const TOO_MANY: &'static [u8] = b"-ERR max number of clients reached\r\n";

    /// Clients of Redis name no protocol.
    const ALPN: &'static [&'static str] = &[];

    fn patience(&self) -> &Patience {
        &self.patience
    }

    async fn serve<S>(self: Arc<Self>, stream: S, peer: SocketAddr, pulse: Arc<Pulse>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Connection::new(&self, stream, peer, pulse).serve().await;
    }
}
