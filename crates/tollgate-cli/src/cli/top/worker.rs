//! The thread that asks the server: a look each second, and the acts of the user in between.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::Args;
use super::key_action::{KeyAction, NamedCaller};
use super::snapshot::ServerSnapshot;
use crate::cli::Report;
use crate::cli::client::listener::ListenerClient;

/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Most acts, and most updates, that wait.
const QUEUE_MAX: usize = 8;

/// An act that the user has confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WorkerCommand {
    pub(super) action: KeyAction,
    pub(super) caller: NamedCaller,
    /// The value that the act needs, such as the length of a block.
    pub(super) value: String,
}

/// News for the screen.
#[derive(Debug)]
pub(super) enum TopUpdate {
    /// A look, and the seconds since the last one; zero at the first and after the server was away.
    Look(Box<ServerSnapshot>, f64),
    /// The server did not answer, or not like Tollgate.
    Away(String),
    /// The result of an act.
    Acted(String),
    /// A signal asks the program to end.
    Stop,
}

/// Starts the thread, and one that waits for signals. Both end with the process: a request under way must not hold up
/// the user who quits.
pub(super) fn start(args: Arc<Args>) -> (SyncSender<WorkerCommand>, Receiver<TopUpdate>) {
    let (commands, ordered) = sync_channel(QUEUE_MAX);
    let (updates, received) = sync_channel(QUEUE_MAX);
    let signals = updates.clone();
    thread::spawn(move || run(&args, &ordered, &updates));
    thread::spawn(move || wait_for_signal(&signals));
    (commands, received)
}

fn run(args: &Args, commands: &Receiver<WorkerCommand>, updates: &SyncSender<TopUpdate>) {
    let Ok(listener) = args.listener.listener() else { return };
    let mut last_look = None;
    loop {
        let begun = Instant::now();
        let update = match ServerSnapshot::fetch(&listener) {
            Ok(snapshot) => {
                let since = last_look.replace(begun).map_or(0.0, |last: Instant| {
                    begun.saturating_duration_since(last).as_secs_f64()
                });
                TopUpdate::Look(Box::new(snapshot), since)
            }
            Err(report) => {
                last_look = None;
                TopUpdate::Away(report.to_string())
            }
        };
        if updates.send(update).is_err() {
            return;
        }
        match commands.recv_timeout(LOOK_INTERVAL.saturating_sub(begun.elapsed())) {
            Ok(command) => {
                let text = act(&listener, &command).unwrap_or_else(|report| report.to_string());
                if updates.send(TopUpdate::Acted(text)).is_err() {
                    return;
                }
                // The next look, at once, shows the effect.
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Sends the request of an act, and returns a sentence about it.
fn act(listener: &ListenerClient<'_>, command: &WorkerCommand) -> Result<String, Report> {
    let WorkerCommand { action, caller, value } = command;
    let request = action.request(caller, value).map_err(Report::new)?;
    let response = listener.ask(&request)?;
    match response.status {
        200 => Ok(action.done(caller, value)),
        _ => Err(listener.refused(&response)),
    }
}

/// Longest time that the screen may take to end after a signal.
const SCREEN_END_MAX: Duration = Duration::from_millis(500);

/// Tells the screen when a signal asks the program to end, so that the terminal is restored.
///
/// When the terminal itself is gone, the screen cannot end: crossterm then reads the end of the input forever
/// and never returns. So the process ends here if the screen has not ended it.
fn wait_for_signal(updates: &SyncSender<TopUpdate>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    runtime.block_on(async {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
            let [Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)] = kinds.map(signal) else {
                return std::future::pending().await;
            };
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hangup.recv() => {}
            }
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
        // A screen that is stuck may have left the queue full: do not wait for room in it.
        let _ = updates.try_send(TopUpdate::Stop);
        tokio::time::sleep(SCREEN_END_MAX).await;
    });
    ratatui::restore();
    std::process::exit(1);
}
