//! Signals: the first SIGTERM or SIGINT starts a graceful shutdown, the second ends the process at once.
//! SIGHUP reloads rules and credentials, and opens log files again.

use std::io;
use std::sync::Arc;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::live::LiveRules;
use crate::recording::TrafficRecorder;
use crate::telemetry::Logs;

/// Parts of the server that SIGHUP concerns.
pub(crate) struct HangupTargets {
    pub(crate) rules: LiveRules,
    pub(crate) access_log: Option<Logs>,
    pub(crate) recorder: Option<Arc<TrafficRecorder>>,
}

impl HangupTargets {
    /// Requests a reload, and opens files again that a program may have rotated. Never blocks.
    #[cfg_attr(not(unix), allow(dead_code, reason = "only Unix has this signal"))]
    fn hang_up(&self) {
        self.rules.hint_sighup();
        self.access_log.iter().for_each(Logs::reopen);
        self.recorder.iter().for_each(|recorder| recorder.reopen_file());
    }
}

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

    /// Waits for the next signal to stop and returns its name. SIGHUPs before it go to these targets.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self, targets: &HangupTargets) -> &'static str {
        std::future::poll_fn(|context| {
            while self.hangup.poll_recv(context).is_ready() {
                targets.hang_up();
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
    pub(crate) async fn next(&mut self, _: &HangupTargets) -> &'static str {
        // Without the handler only the end of the process stops the server.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        "Ctrl-C"
    }
}
