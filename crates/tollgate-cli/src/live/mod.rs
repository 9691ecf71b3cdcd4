//! Live rules: loads the rules of a run, and replaces them while it serves.
//!
//! One thread, `rules`, reads, compiles and replaces; others send it messages. Replacements are never
//! concurrent, requests never wait, and [`RulesStatus`] always shows the latest result. Invalid rules never
//! replace valid ones.

mod debounce;
mod file_fingerprints;
mod mounts;
mod origin;
mod peer_changes;
mod reload_log;
mod reloader;
#[cfg(test)]
mod tests;
mod text_diff;
mod watch;
mod watched_paths;

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::oneshot;
use tollgate::{Micros, Wait};
use tollgate_rules::RulesVersion;
use tollgate_rules::changes::Changes;

pub(crate) use origin::{check_rate, folder_of, load};
pub(crate) use watch::WatchMode;

use crate::background;
use crate::credentials::Credentials;
use crate::peer_instances::PeerInstances;
use crate::store::ServerGatekeeper;
use crate::telemetry::Logs;
use debounce::{QUIET, QUIET_AFTER_RENAME};
pub(crate) use origin::InitialRules;
use peer_changes::PeerInbox;
use reload_log::ReloadLog;
pub(crate) use reload_log::{RecordedOutcome, ReloadRecord};
use reloader::Reloader;

/// Most requests that wait for the outcome of a reload; a further one gets [`BUSY`] at once.
const WAITING_MAX: usize = 16;

const BUSY: &str = "Too many reloads are waiting: retry in a second.";
const BUG: &str =
    "Internal error, the log says where. The rules in force may still be the old ones.";
const ENDED: &str = "A bug in Tollgate has ended the thread that replaces rules. Those in force \
    stay until a restart; the log says where it happened.";

/// The rules of a run, which may change. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LiveRules {
    state: Arc<LiveRulesState>,
}

/// State shared by the thread and its handles.
struct LiveRulesState {
    status: ArcSwap<RulesStatus>,
    /// Held while rules and their status change, and to read both consistently. Deciding requests needs
    /// neither.
    change_lock: Mutex<()>,
    messages: SyncSender<Message>,
    /// Changes from other instances that the thread has not applied yet.
    peer_inbox: Mutex<PeerInbox>,
    /// Pending hints, one flag for each kind.
    hinted: [AtomicBool; 3],
    /// The last attempts to replace the rules.
    reloads: ReloadLog,
}

/// A message to the thread.
enum Message {
    /// A hint is pending.
    Wake,
    Reload(oneshot::Sender<ReloadOutcome>),
    Put(Bytes, oneshot::Sender<ReloadOutcome>),
    /// Apply the changes from other instances, then answer.
    ApplyPeerChanges(oneshot::Sender<()>),
}

/// A reason to read the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReloadHint {
    /// A file is being written; more events may follow.
    Written,
    /// A file was renamed into place and is complete.
    Renamed,
    Signal,
}

impl ReloadHint {
    const ALL: [ReloadHint; 3] = [ReloadHint::Written, ReloadHint::Renamed, ReloadHint::Signal];

    fn cause(self) -> ReloadCause {
        match self {
            ReloadHint::Written | ReloadHint::Renamed => ReloadCause::Files,
            ReloadHint::Signal => ReloadCause::Signal,
        }
    }

    /// Time without further hints before the rules are read.
    fn quiet(self) -> Wait {
        match self {
            ReloadHint::Renamed => QUIET_AFTER_RENAME,
            // Many signals cause few reloads.
            ReloadHint::Written | ReloadHint::Signal => QUIET,
        }
    }
}

/// Cause of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReloadCause {
    /// A change of a file.
    Files,
    /// SIGHUP.
    Signal,
    /// `POST /api/reload`.
    Reload,
    /// `PUT /api/rules`.
    Put,
    /// A change of a file that the rules in force name, while the rules files contain other rules.
    Keys,
    /// `PUT /api/rules` at another instance.
    PutAtPeer,
    /// The same, by an instance that did not prove to have our secret: whoever can write to the store may have
    /// done it.
    PutAtUnknownPeer,
    /// A reload at another instance, which withdraws rules that were put.
    ReloadAtPeer,
}

impl ReloadCause {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ReloadCause::Files => "files",
            ReloadCause::Signal => "SIGHUP",
            ReloadCause::Reload => "POST /api/reload",
            ReloadCause::Put => "PUT /api/rules",
            ReloadCause::Keys => "keys",
            ReloadCause::PutAtPeer | ReloadCause::PutAtUnknownPeer => {
                "PUT /api/rules at another instance"
            }
            ReloadCause::ReloadAtPeer => "a reload at another instance",
        }
    }

    /// Returns true if an operator requested it and expects an answer even if nothing has changed.
    fn is_requested(self) -> bool {
        !matches!(self, ReloadCause::Files | ReloadCause::Keys)
    }
}

impl fmt::Display for ReloadCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Outcome of a reload.
#[derive(Clone, Debug)]
pub(crate) enum ReloadOutcome {
    Loaded {
        version: u64,
        changes: Changes,
        /// Warnings about the rules as text; may be empty.
        warnings: String,
    },
    /// The rules are already in force.
    Unchanged { version: u64 },
    /// The rules are invalid; the rules in force stay.
    Refused {
        /// All errors as text. Bound: `DIAGNOSTICS_BYTES_MAX`.
        diagnostics: String,
        errors: usize,
    },
    /// The rules were not read, for this reason.
    Unable(&'static str),
}

/// Origin of the rules in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RulesOrigin {
    Files(Vec<PathBuf>),
    Limit,
    Demo,
    /// `PUT /api/rules`, here or at another instance: in force until the files change.
    Put,
}

/// Method of noticing changes of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchMethod {
    /// Events of the system, with a poll every few seconds to be sure.
    Events,
    /// A poll every second, for this reason.
    Polling(String),
    /// None: there are no files, or watching is off.
    Nothing,
}

/// Status of the rules.
#[derive(Clone, Debug)]
pub(crate) struct RulesStatus {
    /// Version of the rules in force: 1 at the start, one more with each replacement.
    pub(crate) version: u64,
    pub(crate) loaded_at: Micros,
    pub(crate) origin: RulesOrigin,
    /// Failure of the rules files, if they are invalid: the rules in force are older, or were put.
    pub(crate) failed: Option<FailedReload>,
    /// Failure of the last rules that were put.
    pub(crate) put_failed: Option<FailedReload>,
    /// Failure of a file that the rules in force name, while the rules files contain other rules.
    pub(crate) keys_failed: Option<FailedReload>,
    /// Failure of the last reload of tokens or certificate.
    pub(crate) credentials_failed: Option<FailedReload>,
    /// Number of replacements, without the start.
    pub(crate) loads: u64,
    /// Number of failed attempts. Files count once for each invalid content.
    pub(crate) failures: u64,
    /// Number of requested reloads without a change.
    pub(crate) unchanged: u64,
    pub(crate) watching: WatchMethod,
}

impl RulesStatus {
    /// The field for a failure of this cause. Rules that are put and rules files fail separately.
    fn failure_mut(&mut self, cause: ReloadCause) -> &mut Option<FailedReload> {
        match cause {
            ReloadCause::Files
            | ReloadCause::Signal
            | ReloadCause::Reload
            | ReloadCause::ReloadAtPeer => &mut self.failed,
            ReloadCause::Put | ReloadCause::PutAtPeer | ReloadCause::PutAtUnknownPeer => {
                &mut self.put_failed
            }
            ReloadCause::Keys => &mut self.keys_failed,
        }
    }

    /// Returns true if the rules files and the files that the rules name are valid.
    pub(crate) fn files_are_right(&self) -> bool {
        self.failed.is_none() && self.keys_failed.is_none()
    }
}

/// An attempt that failed.
#[derive(Clone, Debug)]
pub(crate) struct FailedReload {
    pub(crate) at: Micros,
    pub(crate) cause: ReloadCause,
    pub(crate) errors: usize,
    /// All errors as text, as in [`ReloadOutcome::Refused`].
    pub(crate) diagnostics: String,
}

impl LiveRules {
    /// Starts the thread, which watches the files that `first` was read from. A reload also reads the
    /// credentials again.
    pub(crate) fn start(
        gatekeeper: Arc<ServerGatekeeper>,
        first: InitialRules,
        (others, credentials): (PeerInstances, Credentials),
        logs: Logs,
    ) -> io::Result<LiveRules> {
        let (live, inbox) = LiveRules::new(first.source.origin(), gatekeeper.now());
        let mut reloader = Reloader::new(gatekeeper.clone(), first, live.clone(), logs);
        reloader.set_peers(others);
        reloader.set_credentials(credentials);
        reloader.begin();
        let of_thread = live.clone();
        let run = move || {
            // The thread survives panics in its steps. If it still ends, the status shows it.
            let _ = catch_unwind(AssertUnwindSafe(|| reloader.run(inbox)));
            of_thread.record_bug(gatekeeper.now(), ENDED);
        };
        background::spawn("rules", run)?;
        Ok(live)
    }

    /// Makes the handle, and the receiver of its thread.
    fn new(origin: RulesOrigin, now: Micros) -> (LiveRules, Receiver<Message>) {
        let (messages, inbox) = sync_channel(WAITING_MAX);
        let status = RulesStatus {
            version: 1,
            loaded_at: now,
            origin,
            failed: None,
            put_failed: None,
            keys_failed: None,
            credentials_failed: None,
            loads: 0,
            failures: 0,
            unchanged: 0,
            watching: WatchMethod::Nothing,
        };
        let status = ArcSwap::from_pointee(status);
        let (in_step, heard, hinted) = Default::default();
        let shared = Arc::new(LiveRulesState {
            status,
            change_lock: in_step,
            messages,
            peer_inbox: heard,
            hinted,
            reloads: ReloadLog::default(),
        });
        (LiveRules { state: shared }, inbox)
    }

    /// Requests a reload after SIGHUP. Never blocks; signals close together count once.
    #[cfg_attr(not(unix), allow(dead_code, reason = "only Unix has this signal"))]
    pub(crate) fn hint_sighup(&self) {
        self.hint(ReloadHint::Signal);
    }

    fn hint(&self, hint: ReloadHint) {
        if !self.state.hinted[hint as usize].swap(true, Ordering::AcqRel) {
            // If the channel is full, the thread is about to wake up anyway and finds the flag.
            let _ = self.state.messages.try_send(Message::Wake);
        }
    }

    /// Takes the pending hints.
    fn take_hints(&self) -> impl Iterator<Item = ReloadHint> {
        let take =
            |hint: &ReloadHint| self.state.hinted[*hint as usize].swap(false, Ordering::AcqRel);
        ReloadHint::ALL.into_iter().filter(take)
    }

    /// Reads rules and credentials again from their files, and waits for the outcome of the rules; that of
    /// the credentials is in the status.
    pub(crate) async fn reload(&self) -> ReloadOutcome {
        self.ask(Message::Reload).await
    }

    /// Replaces the rules by this text, without writing it to a file, and waits for the outcome.
    pub(crate) async fn put(&self, text: Bytes) -> ReloadOutcome {
        self.ask(|reply| Message::Put(text, reply)).await
    }

    /// Waits until the changes received from other instances so far are applied.
    pub(crate) async fn peer_changes_applied(&self) {
        let (reply, done) = oneshot::channel();
        if self.state.messages.try_send(Message::ApplyPeerChanges(reply)).is_ok() {
            let _ = done.await;
        }
    }

    async fn ask(
        &self,
        message: impl FnOnce(oneshot::Sender<ReloadOutcome>) -> Message,
    ) -> ReloadOutcome {
        let (reply, outcome) = oneshot::channel();
        match self.state.messages.try_send(message(reply)) {
            Ok(()) => outcome.await.unwrap_or(ReloadOutcome::Unable(BUG)),
            Err(TrySendError::Full(_)) => ReloadOutcome::Unable(BUSY),
            Err(TrySendError::Disconnected(_)) => ReloadOutcome::Unable(ENDED),
        }
    }

    /// The current status; never blocks.
    pub(crate) fn status(&self) -> Arc<RulesStatus> {
        self.state.status.load_full()
    }

    /// The last attempts to replace the rules after the one with this number, the oldest first.
    pub(crate) fn reloads_after(&self, number: u64) -> Vec<Arc<ReloadRecord>> {
        self.state.reloads.after(number)
    }

    /// Records an attempt for [`reloads_after`](LiveRules::reloads_after).
    fn record_reload(&self, at: Micros, cause: ReloadCause, outcome: &ReloadOutcome, diff: String) {
        if let Some(outcome) = RecordedOutcome::of(outcome, diff) {
            self.state.reloads.add(at, cause, self.status().version, outcome);
        }
    }

    /// The rules in force and their status, consistently.
    pub(crate) fn status_and_rules(
        &self,
        gatekeeper: &ServerGatekeeper,
    ) -> (Arc<RulesStatus>, RulesVersion) {
        self.with_change_lock(|| (self.status(), gatekeeper.rules()))
    }

    /// Runs `act` while no other thread changes or compares rules and status.
    fn with_change_lock<T>(&self, act: impl FnOnce() -> T) -> T {
        // The lock guards no data that a panic could leave inconsistent.
        let _held = self.state.change_lock.lock().unwrap_or_else(PoisonError::into_inner);
        act()
    }

    /// Records a bug as a failure of the files, because they may not be in force.
    fn record_bug(&self, at: Micros, what: &str) {
        let diagnostics = format!("error: {what}");
        let failed = FailedReload { at, cause: ReloadCause::Files, errors: 1, diagnostics };
        self.update(|status| status.failed = Some(failed));
    }

    /// Changes the status. Only the thread calls it.
    fn update(&self, change: impl FnOnce(&mut RulesStatus)) {
        let mut status = RulesStatus::clone(&self.status());
        change(&mut status);
        self.state.status.store(status.into());
    }
}
