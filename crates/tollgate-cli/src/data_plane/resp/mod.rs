//! The resp listener: commands of Redis clients.
//!
//! ```text
//!   bytes ─▶ request/           commands, parsed in place      input.rs: the read buffer
//!         ─▶ commands.rs        the table of commands
//!         ─▶ throttle_batch.rs  CL.THROTTLE, in batches        throttle.rs, throttle_limits.rs: its arguments;
//!                                                              throttle_repeat.rs: the same ones again
//!            tg_commands.rs     TG.CHECK, TG.PEEK, TG.RESET    rule_check_batch.rs: in batches
//!            session.rs         AUTH, HELLO, CLIENT, INFO …
//!         ─▶ replies.rs         RESP2 and RESP3                reply_allowance.rs: bound of unsent replies
//! ```
//!
//! `connection.rs` reads and writes bytes, `command_loop.rs` runs the commands that have arrived, and `dispatch.rs`
//! runs one command.

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
mod throttle_repeat;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use audit::Audit;
use connection::RespConnection;
use counters::RespCounters;
use reply_allowance::{REPLY_ALLOWANCE_LIMITS, SharedAllowance};
use throttle_limits::ThrottleLimits;

use super::DataContext;
use crate::listeners::protocol::{AgreedVersion, Protocol};
use crate::listeners::service::ListenerService;
use crate::listeners::tokens::Tokens;
use crate::listeners::watchdog::{ConnectionActivity, ConnectionTimeouts};
use crate::metrics::DecisionTiming;
use crate::settings::OnMissingFacts;
use crate::store::{ChangeConfirmer, ServerGatekeeper};

/// Idle timeout: practically none. Redis clients keep unused connections in pools and do not expect the server to
/// close them, so only the caps on connections bound them.
const NO_IDLE_TIMEOUT: Duration = Duration::from_secs(u32::MAX as u64);

/// Answers on the resp listener.
struct RespListener {
    gatekeeper: Arc<ServerGatekeeper>,
    /// Confirms that resets have reached the store.
    changes: ChangeConfirmer,
    /// Accepted tokens; `None` admits every client that reaches the listener.
    tokens: Option<Arc<Tokens>>,
    timing: Arc<DecisionTiming>,
    timeouts: ConnectionTimeouts,
    audit: Audit,
    /// Treatment of checks that lack the facts every rule needs.
    missing_facts: OnMissingFacts,
    counters: Arc<RespCounters>,
    /// Limits made of the arguments of `CL.THROTTLE`.
    throttle_limits: ThrottleLimits,
    /// Bound of the unsent replies of all connections.
    reply_allowance: Arc<SharedAllowance>,
}

/// Builds the resp listener.
pub(crate) fn listener(context: &DataContext<'_>) -> ListenerService {
    let counters = Arc::<RespCounters>::default();
    let listener = RespListener {
        gatekeeper: context.gatekeeper.clone(),
        changes: context.changes.clone(),
        tokens: context.tokens.clone(),
        timing: context.timing.clone(),
        timeouts: ConnectionTimeouts { idle: NO_IDLE_TIMEOUT, ..context.timeouts },
        audit: Audit::new(context.logs, context.names.clone()),
        missing_facts: context.missing_facts,
        throttle_limits: ThrottleLimits::new(counters.clone()),
        counters: counters.clone(),
        reply_allowance: SharedAllowance::new(REPLY_ALLOWANCE_LIMITS),
    };
    ListenerService::new(listener).with_metrics(counters)
}

impl Protocol for RespListener {
    const TOO_MANY_CONNECTIONS_REPLY: &'static [u8] = b"-ERR max number of clients reached\r\n";

    /// Redis clients do not use ALPN.
    const ALPN: &'static [&'static str] = &[];

    fn timeouts(&self) -> &ConnectionTimeouts {
        &self.timeouts
    }

    /// Logs the resets that had no line of their own, every second.
    async fn background(self: Arc<Self>) {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.audit.log_due_resets(self.gatekeeper.now());
        }
    }

    fn drained(&self) {
        self.audit.log_remaining_resets();
    }

    async fn serve<S>(
        self: Arc<Self>,
        stream: S,
        peer: SocketAddr,
        _: AgreedVersion,
        activity: Arc<ConnectionActivity>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        RespConnection::new(&self, stream, peer, activity).serve().await;
    }
}
