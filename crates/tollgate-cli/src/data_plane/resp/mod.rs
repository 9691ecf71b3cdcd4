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
//! `connection.rs` is the loop around it: bytes in, bytes out. `command_loop.rs` is what is said between the two,
//! `dispatch.rs` one command of it.

mod audit;
mod command_loop;
mod commands;
mod connection;
mod counters;
mod dispatch;
mod input;
mod replies;
mod reply_allowance;
mod request;
mod reset_log;
mod rule_check_batch;
mod session;
mod tg_commands;
mod throttle;
mod throttle_batch;
mod throttle_limits;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use connection::RespConnection;
use reply_allowance::{REPLY_ALLOWANCE_LIMITS, SharedAllowance};
use throttle_limits::ThrottleLimits;

use crate::listeners::protocol::Protocol;
use crate::listeners::tokens::Tokens;
use crate::listeners::watchdog::{ConnectionActivity, ConnectionTimeouts};
use crate::metrics::DecisionTiming;
use crate::settings::OnMissingFacts;
use crate::store::{ChangeConfirmer, ServerGatekeeper};

pub(crate) use audit::Audit;
pub(crate) use counters::RespCounters;

/// How long a connection may be idle: clients of Redis keep connections that they do not use, and are not
/// ready for one that is closed. The caps on connections have to be enough.
const NO_IDLE_TIMEOUT: Duration = Duration::from_secs(u32::MAX as u64);

/// Answers on the resp listener.
pub(crate) struct RespListener {
    gatekeeper: Arc<ServerGatekeeper>,
    changes: ChangeConfirmer,
    /// Who may ask; `None`: whoever reaches the listener.
    tokens: Option<Arc<Tokens>>,
    timing: Arc<DecisionTiming>,
    timeouts: ConnectionTimeouts,
    audit: Audit,
    /// What becomes of questions that no rule can be asked about.
    missing_facts: OnMissingFacts,
    counters: Arc<RespCounters>,
    /// The numbers that `CL.THROTTLE` is called with.
    throttle_limits: ThrottleLimits,
    /// The replies that wait, of all connections.
    reply_allowance: Arc<SharedAllowance>,
}

impl RespListener {
    pub(crate) fn new(
        (gatekeeper, changes): (Arc<ServerGatekeeper>, ChangeConfirmer),
        tokens: Option<Arc<Tokens>>,
        timing: Arc<DecisionTiming>,
        patience: ConnectionTimeouts,
        audit: Audit,
        missing_facts: OnMissingFacts,
    ) -> RespListener {
        let figures = Arc::<RespCounters>::default();
        RespListener {
            gatekeeper,
            changes,
            tokens,
            timing,
            timeouts: ConnectionTimeouts { idle: NO_IDLE_TIMEOUT, ..patience },
            audit,
            missing_facts,
            throttle_limits: ThrottleLimits::new(figures.clone()),
            counters: figures,
            reply_allowance: SharedAllowance::new(REPLY_ALLOWANCE_LIMITS),
        }
    }

    /// Tells of resets that had no line of their own, as long as the runtime lives.
    pub(crate) async fn log_suppressed_resets(self: Arc<RespListener>) {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.audit.log_due_resets(self.gatekeeper.now());
        }
    }

    /// Tells of those that are left at the end.
    pub(crate) fn log_remaining_resets(&self) {
        self.audit.log_remaining_resets();
    }

    /// What it counts.
    pub(crate) fn counters(&self) -> Arc<RespCounters> {
        self.counters.clone()
    }
}

impl Protocol for RespListener {
    const TOO_MANY_CONNECTIONS_REPLY: &'static [u8] = b"-ERR max number of clients reached\r\n";

    /// Clients of Redis name no protocol.
    const ALPN: &'static [&'static str] = &[];

    fn timeouts(&self) -> &ConnectionTimeouts {
        &self.timeouts
    }

    async fn serve<S>(self: Arc<Self>, stream: S, peer: SocketAddr, pulse: Arc<ConnectionActivity>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        RespConnection::new(&self, stream, peer, pulse).serve().await;
    }
}
