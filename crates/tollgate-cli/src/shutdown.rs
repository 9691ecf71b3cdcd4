//! Signals: the first asks the server to finish what it has begun, the second ends it at once. A
//! hangup asks for neither: rules and credentials are read again.

use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::live::LiveRules;

/// Waits for requests to stop. Made before anything else, so that no signal is missed.
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

    /// The next request to stop; its name. Hangups on the way are passed on.
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

    /// The next request to stop; its name.
    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self, _: &LiveRules) -> &'static str {
        // Without the handler only the end of the process stops the server.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        "Ctrl-C"
    }
}
