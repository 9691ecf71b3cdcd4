//! Snapshots: counters that outlive a restart. A thread of its own writes them, so that no request
//! waits for a disk.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::store::ServerStore;
use tollgate::store::memory::SnapshotError;
use tollgate::{Clock, MemoryStore, SystemClock};

use crate::background;
use crate::cli::Report;
use crate::telemetry::{LogField, Logs};

/// Keeps other servers away from a snapshot as long as it lives, or the process does.
#[derive(Debug)]
pub(crate) struct SnapshotLock {
    _locked_file: Option<File>,
}

impl SnapshotLock {
    /// Two servers that write one file would take turns in forgetting what the other has counted.
    pub(crate) fn take(path: Option<&Path>) -> Result<SnapshotLock, Report> {
        let Some(path) = path else { return Ok(SnapshotLock { _locked_file: None }) };
        check_directory(path)?;
        // Beside it: the snapshot itself is another file each time it is written.
        let mut beside = path.as_os_str().to_owned();
        beside.push(".lock");
        let file = open_lock(Path::new(&beside)).map_err(|error| cannot_write(path, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(SnapshotLock { _locked_file: Some(file) }),
            Err(TryLockError::WouldBlock) => {
                let shown = path.display();
                Err(Report::new(format!("another server uses the snapshot {shown}"))
                    .hint("give each server a --snapshot of its own, or stop the other one"))
            }
            // Some network file systems have no locks; the snapshot is worth more.
            Err(TryLockError::Error(_)) => Ok(SnapshotLock { _locked_file: None }),
        }
    }
}

/// Opens or makes the file that is locked, and only that: a link in its place may lead to something
/// that matters.
fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    if path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
        let problem = format!("{} is there and is no ordinary file", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
    }
    options.open(path)
}

/// An empty store, or what a snapshot of an earlier run holds.
pub(crate) fn load(
    empty: MemoryStore,
    path: Option<&Path>,
    logs: &Logs,
) -> Result<MemoryStore, Report> {
    let Some(path) = path else { return Ok(empty) };
    let shown = path.display();
    // Found before anything is counted, not an hour later.
    check_directory(path)?;
    check_writable(path)?;
    // Only what is not there is absent: what cannot be read may be what somebody has used up.
    if path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        logs.info("there is no snapshot yet, starting fresh", &[("file", &shown)]);
        return Ok(empty);
    }
    match empty.load(path, SystemClock.now()) {
        Ok((store, restored)) => {
            let fields: [LogField<'_>; 3] =
                [("file", &shown), ("keys", &restored.keys), ("dropped", &restored.dropped)];
            logs.info("counters are back from the snapshot", &fields);
            Ok(store)
        }
        // Starting without it would forget who has used up what: that is for a person to decide.
        Err(error) => Err(cannot_load(path, &error)),
    }
}

fn check_directory(path: &Path) -> Result<(), Report> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    if path.file_name().is_some() && directory.is_dir() && !path.is_dir() {
        return Ok(());
    }
    Err(Report::new(format!("{} cannot be a snapshot file", path.display()))
        .hint("--snapshot names a file in a directory that exists and can be written"))
}

/// Makes a file beside it, as saving will, and removes it again.
fn check_writable(path: &Path) -> Result<(), Report> {
    let mut probe = path.as_os_str().to_owned();
    probe.push(format!(".probe-{}", std::process::id()));
    let made = File::create_new(&probe).and_then(|_| fs::remove_file(&probe));
    made.map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &io::Error) -> Report {
    Report::new(format!("no snapshot can be written beside {}: {error}", path.display()))
        .hint("--snapshot names a file in a directory that exists and can be written")
}

fn cannot_load(path: &Path, error: &SnapshotError) -> Report {
    let shown = path.display();
    Report::new(format!("cannot use the snapshot {shown}: {error}"))
        .hint(format!("to start with empty counters move it away: mv {shown} {shown}.broken"))
}

/// Writes snapshots until it is finished.
pub(crate) struct SnapshotThread {
    finish: Sender<()>,
    thread: thread::JoinHandle<Result<(), SnapshotError>>,
}

impl SnapshotThread {
    /// Writes one every `interval`.
    pub(crate) fn start(
        store: Arc<ServerStore>,
        path: PathBuf,
        interval: Duration,
        logs: Logs,
    ) -> io::Result<SnapshotThread> {
        let (finish, finished) = channel::<()>();
        let keep = move || {
            let mut failing = false;
            while let Err(RecvTimeoutError::Timeout) = finished.recv_timeout(interval) {
                let saved = save(&store, &path);
                if let (Err(error), false) = (&saved, failing) {
                    logs.error("cannot write the snapshot, trying on", &[("error", error)]);
                }
                failing = saved.is_err();
            }
            save(&store, &path)
        };
        let thread = background::spawn("snapshot", keep)?;
        Ok(SnapshotThread { finish, thread })
    }

    /// Writes the last one.
    pub(crate) fn finish(self) -> Result<(), Report> {
        drop(self.finish);
        let saved = self.thread.join();
        let problem = match saved {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_panic) => "its thread has ended with a bug".into(),
        };
        Err(Report::new(format!("cannot write the last snapshot: {problem}"))
            .hint("counters since the one before are lost"))
    }
}

fn save(store: &ServerStore, path: &Path) -> Result<(), SnapshotError> {
    store.memory().save(path, SystemClock.now())
}
