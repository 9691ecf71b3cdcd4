//! Live rules: how the rules of a run come in, and how they are replaced while it serves.
//!
//! One thread, `rules`, reads, compiles and replaces; whoever wants something of it leaves a note. So
//! two replacements never mix, nobody who serves ever waits, and what happened can be looked at any
//! time in [`Status`]. Rules that are wrong never replace rules that are right.

mod debounce;
mod elsewhere;
mod mounts;
mod origin;
mod places;
mod prints;
mod reloader;
#[cfg(test)]
mod tests;
mod watch;

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
use tollgate_rules::Version;
use tollgate_rules::changes::Changes;

pub(crate) use origin::{check_rate, load};
pub(crate) use watch::WatchMode;

use crate::background;
use crate::credentials::Credentials;
use crate::others::Others;
use crate::store::Gatekeeper;
use crate::telemetry::Logs;
use debounce::{QUIET, QUIET_AFTER_RENAME};
use elsewhere::Heard;
pub(crate) use origin::First;
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
    shared: Arc<Shared>,
}

/// What the thread and its handles share.
struct Shared {
    status: ArcSwap<Status>,
    /// Held while rules and their status change, and by whoever needs to see both as one. Requests
    /// that are decided need neither.
    in_step: Mutex<()>,
    messages: SyncSender<Message>,
    /// What other instances have decided and the thread has not looked at yet.
    heard: Mutex<Heard>,
    /// Hints that the thread has not looked at yet: a hundred of one kind are one.
    hinted: [AtomicBool; 3],
}

/// A note to the thread.
enum Message {
    /// There is a hint to look at.
    Wake,
    Reload(oneshot::Sender<Reloaded>),
    Put(Bytes, oneshot::Sender<Reloaded>),
    /// Somebody wants to know when what other instances have decided is in force.
    Listen(oneshot::Sender<()>),
}

/// A reason to read the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hint {
    /// Something happened to a file, and may go on happening.
    Written,
    /// A file was renamed into place, and is whole.
    Renamed,
    Signal,
}

impl Hint {
    const ALL: [Hint; 3] = [Hint::Written, Hint::Renamed, Hint::Signal];

    fn cause(self) -> Cause {
        match self {
            Hint::Written | Hint::Renamed => Cause::Files,
            Hint::Signal => Cause::Signal,
        }
    }

    /// How long it has to be quiet after it.
    fn quiet(self) -> Wait {
        match self {
            Hint::Renamed => QUIET_AFTER_RENAME,
            // A storm of signals is a few readings.
            Hint::Written | Hint::Signal => QUIET,
        }
    }
}

/// Why the rules are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
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
    PutElsewhere,
    /// A reload at another instance, which ends what was put.
    ReloadElsewhere,
}

impl Cause {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Cause::Files => "files",
            Cause::Signal => "SIGHUP",
            Cause::Reload => "POST /api/reload",
            Cause::Put => "PUT /api/rules",
            Cause::Keys => "keys",
            Cause::PutElsewhere => "PUT /api/rules at another instance",
            Cause::ReloadElsewhere => "a reload at another instance",
        }
    }

    /// Whether somebody asked, and wants to hear of it even if nothing has changed.
    fn is_asked(self) -> bool {
        !matches!(self, Cause::Files | Cause::Keys)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What came of reading the rules again.
#[derive(Clone, Debug)]
pub(crate) enum Reloaded {
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
pub(crate) enum Origin {
    Files(Vec<PathBuf>),
    Limit,
    Demo,
    /// `PUT /api/rules`, here or at another instance: gone at the next change of the files.
    Put,
}

/// How changes of files are noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Watching {
    /// The system tells; a look every few seconds makes sure.
    Events,
    /// A look every second, and why.
    Polling(String),
    /// There is no file, or nobody wants it watched.
    Nothing,
}

/// How it stands with the rules.
#[derive(Clone, Debug)]
pub(crate) struct Status {
    /// Of the rules in force; 1 at the start, one more for each replacement.
    pub(crate) version: u64,
    pub(crate) loaded_at: Micros,
    pub(crate) origin: Origin,
    /// The files, if they are wrong: what stays in force is older, or was put.
    pub(crate) failed: Option<Failed>,
    /// The last text that was put, if it was refused.
    pub(crate) put_failed: Option<Failed>,
    /// What the rules in force name, if that is wrong now and the files say something else.
    pub(crate) keys_failed: Option<Failed>,
    /// Tokens or certificate, if their files were wrong when somebody last asked for them.
    pub(crate) credentials_failed: Option<Failed>,
    /// Replacements, without the start.
    pub(crate) loads: u64,
    /// Attempts that failed. Of files: one for each content that was wrong.
    pub(crate) failures: u64,
    /// Times somebody asked and nothing had changed.
    pub(crate) unchanged: u64,
    pub(crate) watching: Watching,
}

impl Status {
    /// Where a failure is kept. What somebody puts says nothing about the files, nor they about it.
    fn failure_mut(&mut self, cause: Cause) -> &mut Option<Failed> {
        match cause {
            Cause::Files | Cause::Signal | Cause::Reload | Cause::ReloadElsewhere => {
                &mut self.failed
            }
            Cause::Put | Cause::PutElsewhere => &mut self.put_failed,
            Cause::Keys => &mut self.keys_failed,
        }
    }

    /// Whether everything that files say is in force, or would be if nothing had been put.
    pub(crate) fn files_are_right(&self) -> bool {
        self.failed.is_none() && self.keys_failed.is_none()
    }
}

/// An attempt that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) at: Micros,
    pub(crate) cause: Cause,
    pub(crate) errors: usize,
    /// As in [`Reloaded::Refused`].
    pub(crate) diagnostics: String,
}

impl LiveRules {
    /// Watches over the rules that `first` was read from. Whoever asks for them to be read again means the
    /// credentials too.
    pub(crate) fn start(
        gatekeeper: Arc<Gatekeeper>,
        first: First,
        (others, credentials): (Others, Credentials),
        logs: Logs,
    ) -> io::Result<LiveRules> {
        let (live, inbox) = LiveRules::new(first.from.origin(), gatekeeper.now());
        let mut reloader = Reloader::new(gatekeeper.clone(), first, live.clone(), logs);
        reloader.tell_others(others);
        reloader.read_beside(credentials);
        reloader.begin();
        let of_thread = live.clone();
        let run = move || {
            // It goes on after a panic wherever it can. Where not, this is seen from outside.
            let _ = catch_unwind(AssertUnwindSafe(|| reloader.run(inbox)));
            of_thread.tell_of_bug(gatekeeper.now(), ENDED);
        };
        background::spawn("rules", run)?;
        Ok(live)
    }

    /// The handle, and what its thread reads.
    fn new(origin: Origin, now: Micros) -> (LiveRules, Receiver<Message>) {
        let (messages, inbox) = sync_channel(WAITING_MAX);
        let status = Status {
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
            watching: Watching::Nothing,
        };
        let status = ArcSwap::from_pointee(status);
        let (in_step, heard, hinted) = Default::default();
        let shared = Arc::new(Shared { status, in_step, messages, heard, hinted });
        (LiveRules { shared }, inbox)
    }

    /// SIGHUP: rules and credentials may have changed. Never blocks; what comes close together counts once.
    pub(crate) fn hang_up(&self) {
        self.hint(Hint::Signal);
    }

    fn hint(&self, hint: Hint) {
        if !self.shared.hinted[hint as usize].swap(true, Ordering::AcqRel) {
            // If there is no room, the thread has plenty to wake up for, and looks then.
            let _ = self.shared.messages.try_send(Message::Wake);
        }
    }

    /// The hints since the last call.
    fn take_hints(&self) -> impl Iterator<Item = Hint> {
        let take = |hint: &Hint| self.shared.hinted[*hint as usize].swap(false, Ordering::AcqRel);
        Hint::ALL.into_iter().filter(take)
    }

    /// Reads rules and credentials again from where they were read at the start, and waits for the outcome
    /// of the rules; that of the credentials is in the status.
    pub(crate) async fn reload(&self) -> Reloaded {
        self.ask(Message::Reload).await
    }

    /// Replaces the rules by this text, which is written to no file, and waits for the outcome.
    pub(crate) async fn put(&self, text: Bytes) -> Reloaded {
        self.ask(|reply| Message::Put(text, reply)).await
    }

    /// Waits until what was heard of other instances so far is in force.
    pub(crate) async fn listened(&self) {
        let (reply, done) = oneshot::channel();
        if self.shared.messages.try_send(Message::Listen(reply)).is_ok() {
            let _ = done.await;
        }
    }

    async fn ask(&self, message: impl FnOnce(oneshot::Sender<Reloaded>) -> Message) -> Reloaded {
        let (reply, outcome) = oneshot::channel();
        match self.shared.messages.try_send(message(reply)) {
            Ok(()) => outcome.await.unwrap_or(Reloaded::Unable(BUG)),
            Err(TrySendError::Full(_)) => Reloaded::Unable(BUSY),
            Err(TrySendError::Disconnected(_)) => Reloaded::Unable(ENDED),
        }
    }

    /// How it stands, without waiting.
    pub(crate) fn status(&self) -> Arc<Status> {
        self.shared.status.load_full()
    }

    /// The rules in force, and how it stands with just these.
    pub(crate) fn rules_of(&self, gatekeeper: &Gatekeeper) -> (Arc<Status>, Version) {
        self.in_step(|| (self.status(), gatekeeper.rules()))
    }

    /// Does something while nobody else changes or compares rules and status.
    fn in_step<T>(&self, act: impl FnOnce() -> T) -> T {
        // It guards no data that a panic could have left half done.
        let _held = self.shared.in_step.lock().unwrap_or_else(PoisonError::into_inner);
        act()
    }

    /// What the files say is not known to be in force.
    fn tell_of_bug(&self, at: Micros, what: &str) {
        let diagnostics = format!("error: {what}");
        let failed = Failed { at, cause: Cause::Files, errors: 1, diagnostics };
        self.update(|status| status.failed = Some(failed));
    }

    /// For the thread alone: others only look.
    fn update(&self, change: impl FnOnce(&mut Status)) {
        let mut status = Status::clone(&self.status());
        change(&mut status);
        self.shared.status.store(status.into());
    }
}
