//! Signals: the first SIGTERM or SIGINT starts a graceful shutdown, the second ends the process at once.
//! SIGHUP reloads rules and credentials.

use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::live::LiveRules;

/// Waits for signals. Created before anything else, so that none is missed.
pub(crate) struct Signals {
    #[cfg(unix)]
    terminate: Signal,
    #[cfg(unix)]
    interrupt: Signal,
    #[cfg(unix)]
    hangup: Signal,
}

impl Signals {
    /// Takes over SIGTERM, SIGINT and SIGHUP.
    #[cfg(unix)]
    pub(crate) fn install() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Takes over Ctrl-C.
    #[cfg(not(unix))]
    pub(crate) fn install() -> io::Result<Signals> {
        Ok(Signals {})
    }

    /// Waits for the next signal to stop and returns its name. SIGHUPs before it reload the rules.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self, rules: &LiveRules) -> &'static str {
        std::future::poll_fn(|context| {
            while self.hangup.poll_recv(context).is_ready() {
                rules.hint_sighup();
            }
            if self.terminate.poll_recv(context).is_ready() {
                return std::task::Poll::Ready("SIGTERM");
            }
            self.interrupt.poll_recv(context).map(|_| "SIGINT")
        })
        .await
    }

    /// Waits for the next signal to stop and returns its name.
    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self, _: &LiveRules) -> &'static str {
        // Without the handler only the end of the process stops the server.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        "Ctrl-C"
    }
}
