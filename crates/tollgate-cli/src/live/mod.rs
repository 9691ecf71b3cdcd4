//! Live rules: how the rules of a run come in, and how they are replaced while it serves.
//!
//! One thread, `rules`, reads, compiles and replaces; whoever wants something of it leaves a note. So
//! two replacements never mix, nobody who serves ever waits, and what happened can be looked at any
//! time in [`RulesStatus`]. Rules that are wrong never replace rules that are right.

mod debounce;
mod file_fingerprints;
mod mounts;
mod origin;
mod peer_changes;
mod reloader;
#[cfg(test)]
mod tests;
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

pub(crate) use origin::{check_rate, load};
pub(crate) use watch::WatchMode;

use crate::background;
use crate::credentials::Credentials;
use crate::peer_instances::PeerInstances;
use crate::store::ServerGatekeeper;
use crate::telemetry::Logs;
use debounce::{QUIET, QUIET_AFTER_RENAME};
pub(crate) use origin::InitialRules;
use peer_changes::PeerInbox;
use reloader::Reloader;

/// Those who wait for the outcome of a reload. Bound of the channel; one more is told at once.
const WAITING_MAX: usize = 16;

const BUSY: &str = "Too many wait for new rules: ask again in a second.";
const BUG: &str = "A bug in Tollgate: the log says where. The rules in force may be the old ones.";
const ENDED: &str = "A bug in Tollgate has ended the thread that replaces rules. Those in force \
    stay until a restart; the log says where it happened.";

/// The rules of a run, which may change. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LiveRules {
    state: Arc<LiveRulesState>,
}

/// What the thread and its handles share.
struct LiveRulesState {
    status: ArcSwap<RulesStatus>,
    /// Held while rules and their status change, and by whoever needs to see both as one. Requests
    /// that are decided need neither.
    change_lock: Mutex<()>,
    messages: SyncSender<Message>,
    /// What other instances have decided and the thread has not looked at yet.
    peer_inbox: Mutex<PeerInbox>,
    /// Hints that the thread has not looked at yet: a hundred of one kind are one.
    hinted: [AtomicBool; 3],
}

/// A note to the thread.
enum Message {
    /// There is a hint to look at.
    Wake,
    Reload(oneshot::Sender<ReloadOutcome>),
    Put(Bytes, oneshot::Sender<ReloadOutcome>),
    /// Somebody wants to know when what other instances have decided is in force.
    ApplyPeerChanges(oneshot::Sender<()>),
}

/// A reason to read the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReloadHint {
    /// Something happened to a file, and may go on happening.
    Written,
    /// A file was renamed into place, and is whole.
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

    /// How long it has to be quiet after it.
    fn quiet(self) -> Wait {
        match self {
            ReloadHint::Renamed => QUIET_AFTER_RENAME,
            // A storm of signals is a few readings.
            ReloadHint::Written | ReloadHint::Signal => QUIET,
        }
    }
}

/// Why the rules are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReloadCause {
    /// Something happened to a file.
    Files,
    /// SIGHUP.
    Signal,
    /// `POST /api/reload`.
    Reload,
    /// `PUT /api/rules`.
    Put,
    /// A file that the rules in force name, while the rules files say something else.
    Keys,
    /// `PUT /api/rules` at another instance.
    PutAtPeer,
    /// A reload at another instance, which ends what was put.
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
            ReloadCause::PutAtPeer => "PUT /api/rules at another instance",
            ReloadCause::ReloadAtPeer => "a reload at another instance",
        }
    }

    /// Whether somebody asked, and wants to hear of it even if nothing has changed.
    fn is_requested(self) -> bool {
        !matches!(self, ReloadCause::Files | ReloadCause::Keys)
    }
}

impl fmt::Display for ReloadCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What came of reading the rules again.
#[derive(Clone, Debug)]
pub(crate) enum ReloadOutcome {
    Loaded {
        version: u64,
        changes: Changes,
        /// What to look at, as text; empty if there is nothing.
        warnings: String,
    },
    /// They are what is in force already.
    Unchanged { version: u64 },
    /// They are wrong; what was in force stays.
    Refused {
        /// Every error with its place, its line and a hint. Bound: `DIAGNOSTICS_BYTES_MAX`.
        diagnostics: String,
        errors: usize,
    },
    /// Nobody has looked at them, and why.
    Unable(&'static str),
}

/// Where the rules in force are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RulesOrigin {
    Files(Vec<PathBuf>),
    Limit,
    Demo,
    /// `PUT /api/rules`, here or at another instance: gone at the next change of the files.
    Put,
}

/// How changes of files are noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchMethod {
    /// The system tells; a look every few seconds makes sure.
    Events,
    /// A look every second, and why.
    Polling(String),
    /// There is no file, or nobody wants it watched.
    Nothing,
}

/// How it stands with the rules.
#[derive(Clone, Debug)]
pub(crate) struct RulesStatus {
    /// Of the rules in force; 1 at the start, one more for each replacement.
    pub(crate) version: u64,
    pub(crate) loaded_at: Micros,
    pub(crate) origin: RulesOrigin,
    /// The files, if they are wrong: what stays in force is older, or was put.
    pub(crate) failed: Option<FailedReload>,
    /// The last text that was put, if it was refused.
    pub(crate) put_failed: Option<FailedReload>,
    /// What the rules in force name, if that is wrong now and the files say something else.
    pub(crate) keys_failed: Option<FailedReload>,
    /// Tokens or certificate, if their files were wrong when somebody last asked for them.
    pub(crate) credentials_failed: Option<FailedReload>,
    /// Replacements, without the start.
    pub(crate) loads: u64,
    /// Attempts that failed. Of files: one for each content that was wrong.
    pub(crate) failures: u64,
    /// Times somebody asked and nothing had changed.
    pub(crate) unchanged: u64,
    pub(crate) watching: WatchMethod,
}

impl RulesStatus {
    /// Where a failure is kept. What somebody puts says nothing about the files, nor they about it.
    fn failure_mut(&mut self, cause: ReloadCause) -> &mut Option<FailedReload> {
        match cause {
            ReloadCause::Files
            | ReloadCause::Signal
            | ReloadCause::Reload
            | ReloadCause::ReloadAtPeer => &mut self.failed,
            ReloadCause::Put | ReloadCause::PutAtPeer => &mut self.put_failed,
            ReloadCause::Keys => &mut self.keys_failed,
        }
    }

    /// Whether everything that files say is in force, or would be if nothing had been put.
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
    /// As in [`ReloadOutcome::Refused`].
    pub(crate) diagnostics: String,
}

impl LiveRules {
    /// Watches over the rules that `first` was read from. Whoever asks for them to be read again means the
    /// credentials too.
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
            // It goes on after a panic wherever it can. Where not, this is seen from outside.
            let _ = catch_unwind(AssertUnwindSafe(|| reloader.run(inbox)));
            of_thread.record_bug(gatekeeper.now(), ENDED);
        };
        background::spawn("rules", run)?;
        Ok(live)
    }

    /// The handle, and what its thread reads.
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
        });
        (LiveRules { state: shared }, inbox)
    }

    /// SIGHUP: rules and credentials may have changed. Never blocks; what comes close together counts once.
    pub(crate) fn hint_sighup(&self) {
        self.hint(ReloadHint::Signal);
    }

    fn hint(&self, hint: ReloadHint) {
        if !self.state.hinted[hint as usize].swap(true, Ordering::AcqRel) {
            // If there is no room, the thread has plenty to wake up for, and looks then.
            let _ = self.state.messages.try_send(Message::Wake);
        }
    }

    /// The hints since the last call.
    fn take_hints(&self) -> impl Iterator<Item = ReloadHint> {
        let take =
            |hint: &ReloadHint| self.state.hinted[*hint as usize].swap(false, Ordering::AcqRel);
        ReloadHint::ALL.into_iter().filter(take)
    }

    /// Reads rules and credentials again from where they were read at the start, and waits for the outcome
    /// of the rules; that of the credentials is in the status.
    pub(crate) async fn reload(&self) -> ReloadOutcome {
        self.ask(Message::Reload).await
    }

    /// Replaces the rules by this text, which is written to no file, and waits for the outcome.
    pub(crate) async fn put(&self, text: Bytes) -> ReloadOutcome {
        self.ask(|reply| Message::Put(text, reply)).await
    }

    /// Waits until what was heard of other instances so far is in force.
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

    /// How it stands, without waiting.
    pub(crate) fn status(&self) -> Arc<RulesStatus> {
        self.state.status.load_full()
    }

    /// The rules in force, and how it stands with just these.
    pub(crate) fn status_and_rules(
        &self,
        gatekeeper: &ServerGatekeeper,
    ) -> (Arc<RulesStatus>, RulesVersion) {
        self.with_change_lock(|| (self.status(), gatekeeper.rules()))
    }

    /// Does something while nobody else changes or compares rules and status.
    fn with_change_lock<T>(&self, act: impl FnOnce() -> T) -> T {
        // It guards no data that a panic could have left half done.
        let _held = self.state.change_lock.lock().unwrap_or_else(PoisonError::into_inner);
        act()
    }

    /// What the files say is not known to be in force.
    fn record_bug(&self, at: Micros, what: &str) {
        let diagnostics = format!("error: {what}");
        let failed = FailedReload { at, cause: ReloadCause::Files, errors: 1, diagnostics };
        self.update(|status| status.failed = Some(failed));
    }

    /// For the thread alone: others only look.
    fn update(&self, change: impl FnOnce(&mut RulesStatus)) {
        let mut status = RulesStatus::clone(&self.status());
        change(&mut status);
        self.state.status.store(status.into());
    }
}
