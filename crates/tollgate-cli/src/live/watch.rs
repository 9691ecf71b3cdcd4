//! Notices changes of files: by events of the system if possible, and by polling in any case. Events get
//! lost (queues overflow, network file systems send none), polls do not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use notify::event::{AccessKind, AccessMode, ModifyKind, RenameMode};
use notify::{ErrorKind, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tollgate::Wait;

use super::file_fingerprints::FileFingerprints;
use super::watched_paths::WatchedPaths;
use super::{ReloadHint, WatchMethod, mounts};

/// Interval of polling without events.
const POLL_EVERY: Wait = Wait::from_micros(1_000_000);

/// Most directories that are watched for events. Rules need one, or two with links; the system has few
/// watches, shared by all programs of a user.
const DIRECTORIES_MAX: usize = 64;

/// The flag `--rules-watch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WatchMode {
    /// Events of the system, and a poll every 5 s
    #[default]
    Events,
    /// A poll every second
    Poll,
    /// Not at all
    Off,
}

/// Settings of watching.
#[derive(Clone, Copy, Debug)]
pub(super) struct WatchSettings {
    pub(super) mode: WatchMode,
    /// Interval of polling beside events.
    pub(super) look_every: Wait,
}

/// Source of events about directories.
pub(super) trait FileWatcher: Send {
    fn watch(&mut self, directory: &Path) -> notify::Result<()>;
    fn unwatch(&mut self, directory: &Path);
}

impl FileWatcher for RecommendedWatcher {
    fn watch(&mut self, directory: &Path) -> notify::Result<()> {
        if let Some(kind) = mounts::kind_without_events(directory) {
            let reason = format!("the file system {kind} does not report all changes");
            return Err(notify::Error::generic(&reason));
        }
        Watcher::watch(self, directory, RecursiveMode::NonRecursive)
    }

    fn unwatch(&mut self, directory: &Path) {
        // It fails only if the directory is gone, and then the watch is gone too.
        let _ = Watcher::unwatch(self, directory);
    }
}

/// Makes a watcher that calls back after a relevant event.
pub(super) type MakeFileWatcher =
    Box<dyn Fn(Arc<ArcSwap<WatchedPaths>>) -> notify::Result<Box<dyn FileWatcher>> + Send>;

/// Makes the watcher of the system.
pub(super) fn system_watcher(
    hint: impl Fn(ReloadHint) + Clone + Send + 'static,
) -> MakeFileWatcher {
    Box::new(move |places| {
        let hint = hint.clone();
        let tell = move |event: notify::Result<Event>| {
            // An error may mean that events were lost: poll.
            if let Some(found) =
                event.map_or(Some(ReloadHint::Written), |event| hint_in(&event, &places.load()))
            {
                hint(found);
            }
        };
        Ok(Box::new(notify::recommended_watcher(tell)?))
    })
}

/// The hint for an event; `None` for reads, and for events of other files.
fn hint_in(event: &Event, places: &WatchedPaths) -> Option<ReloadHint> {
    if event.need_rescan() || event.paths.is_empty() {
        return Some(ReloadHint::Written);
    }
    let concerned = |path: &PathBuf| places.matters(path);
    let any = event.paths.iter().any(concerned);
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) if any => Some(ReloadHint::Written),
        EventKind::Access(_) => None,
        EventKind::Modify(ModifyKind::Name(RenameMode::To | RenameMode::Both))
            if event.paths.last().is_some_and(concerned) =>
        {
            Some(ReloadHint::Renamed)
        }
        _ => any.then_some(ReloadHint::Written),
    }
}

/// Watch on the rules files.
pub(super) struct RulesWatch {
    paths: Vec<PathBuf>,
    /// Files that rules name. Bound: those of the rules in force and of the last content.
    named_files: BTreeSet<PathBuf>,
    settings: WatchSettings,
    make_watcher: MakeFileWatcher,
    watcher: Option<Box<dyn FileWatcher>>,
    watched_paths: Arc<ArcSwap<WatchedPaths>>,
    /// Watched directories and their identities: a directory may be replaced by another of the same name.
    /// Bound: `DIRECTORIES_MAX`.
    watched: BTreeMap<PathBuf, FileFingerprints>,
    fingerprints: FileFingerprints,
    /// True if the files must be read once more: two changes within one tick of the file system's clock have
    /// the same fingerprint.
    look_again: bool,
}

impl RulesWatch {
    /// Makes a watch on these paths; `prints` were taken before they were read.
    pub(super) fn new(
        paths: Vec<PathBuf>,
        how: WatchSettings,
        prints: FileFingerprints,
        make: MakeFileWatcher,
    ) -> RulesWatch {
        RulesWatch {
            paths,
            named_files: BTreeSet::new(),
            settings: how,
            make_watcher: make,
            watcher: None,
            watched_paths: Arc::default(),
            watched: BTreeMap::new(),
            fingerprints: prints,
            look_again: false,
        }
    }

    /// Replaces the named files that are watched. Returns true if some are new.
    pub(super) fn set_named_files(&mut self, files: BTreeSet<PathBuf>) -> bool {
        let is_new = !files.is_subset(&self.named_files);
        self.named_files = files;
        is_new
    }

    /// The mode of watching; off without files.
    fn mode(&self) -> WatchMode {
        let any = !self.paths.is_empty() || !self.named_files.is_empty();
        if any { self.settings.mode } else { WatchMode::Off }
    }

    fn all_paths(&self) -> Vec<PathBuf> {
        self.paths.iter().chain(&self.named_files).cloned().collect()
    }

    /// Updates the watched directories to where the paths lead now. Returns the method in use.
    pub(super) fn follow(&mut self) -> WatchMethod {
        match self.mode() {
            WatchMode::Off => {
                self.watcher = None;
                self.watched.clear();
                WatchMethod::Nothing
            }
            WatchMode::Poll => WatchMethod::Polling("--rules-watch poll".into()),
            WatchMode::Events => match self.ask_for_events() {
                Ok(()) => WatchMethod::Events,
                Err(reason) => {
                    // Events from a part of the directories are of no use.
                    self.watcher = None;
                    self.watched.clear();
                    WatchMethod::Polling(reason)
                }
            },
        }
    }

    fn ask_for_events(&mut self) -> Result<(), String> {
        let places = WatchedPaths::of(&self.all_paths());
        if places.directories.len() > DIRECTORIES_MAX {
            return Err(format!("the rules files are in more than {DIRECTORIES_MAX} directories"));
        }
        if self.watcher.is_none() {
            self.watcher = Some(
                (self.make_watcher)(self.watched_paths.clone()).map_err(|error| reason(&error))?,
            );
        }
        let watcher = self.watcher.as_mut().expect("it has just been made");
        // Before the watches: the first event may come at once.
        self.watched_paths.store(places.clone().into());
        let is_current = |directory: &PathBuf, prints: &FileFingerprints| {
            places.directories.contains(directory)
                && *prints == FileFingerprints::of_directory(directory)
        };
        for (directory, _) in self.watched.extract_if(.., |path, prints| !is_current(path, prints))
        {
            watcher.unwatch(&directory);
        }
        for directory in &places.directories {
            if self.watched.contains_key(directory) {
                continue;
            }
            let which = FileFingerprints::of_directory(directory);
            match watcher.watch(directory) {
                Ok(()) => drop(self.watched.insert(directory.clone(), which)),
                // The directory has just gone: the next poll finds out more.
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(reason(&error)),
            }
        }
        Ok(())
    }

    /// Interval of polling; `None` if watching is off.
    pub(super) fn look_every(&self) -> Option<Wait> {
        match self.mode() {
            WatchMode::Off => None,
            _ if self.watcher.is_none() => Some(POLL_EVERY.min(self.settings.look_every)),
            _ => Some(self.settings.look_every),
        }
    }

    /// Returns true if the files have changed and should be read. Call it before reading, so that changes
    /// during the read are noticed the next time.
    pub(super) fn look(&mut self) -> bool {
        let prints = FileFingerprints::of(&self.all_paths());
        let changed = prints != self.fingerprints;
        let again = std::mem::replace(&mut self.look_again, changed);
        self.fingerprints = prints;
        changed || again
    }
}

fn is_gone(error: &notify::Error) -> bool {
    match &error.kind {
        ErrorKind::PathNotFound => true,
        ErrorKind::Io(error) => error.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}

fn reason(error: &notify::Error) -> String {
    match &error.kind {
        ErrorKind::MaxFilesWatch => {
            "the system has no watches left: raise fs.inotify.max_user_watches".into()
        }
        ErrorKind::Io(error) if error.raw_os_error() == Some(TOO_MANY_INSTANCES) => {
            "the system has no watches left: raise fs.inotify.max_user_instances".into()
        }
        ErrorKind::Io(error) => format!("the system cannot report changes: {error}"),
        ErrorKind::Generic(reason) => reason.clone(),
        kind => format!("the system cannot report changes: {kind:?}"),
    }
}

/// EMFILE: too many file descriptors, or too many inotify instances of this user.
const TOO_MANY_INSTANCES: i32 = 24;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Mutex;

    use notify::event::{CreateKind, DataChange, Flag};

    use super::*;

    const LOOK_EVERY: Wait = Wait::from_micros(5_000_000);

    /// Has a number of watches, and says which are in use.
    struct LimitedWatcher(usize, Arc<Mutex<Vec<PathBuf>>>);

    impl FileWatcher for LimitedWatcher {
        fn watch(&mut self, directory: &Path) -> notify::Result<()> {
            let mut used = self.1.lock().unwrap();
            used.push(directory.into());
            if used.len() > self.0 {
                Err(notify::Error::new(ErrorKind::MaxFilesWatch))
            } else {
                Ok(())
            }
        }

        fn unwatch(&mut self, directory: &Path) {
            self.1.lock().unwrap().retain(|used| used != directory);
        }
    }

    fn watch_with(few: usize, paths: &[PathBuf]) -> (RulesWatch, Arc<Mutex<Vec<PathBuf>>>) {
        let used = Arc::new(Mutex::new(Vec::new()));
        let made = used.clone();
        let make: MakeFileWatcher =
            Box::new(move |_| Ok(Box::new(LimitedWatcher(few, made.clone()))));
        let how = WatchSettings { mode: WatchMode::Events, look_every: LOOK_EVERY };
        (RulesWatch::new(paths.into(), how, FileFingerprints::of(paths), make), used)
    }

    #[test]
    fn without_watches_it_looks_every_second() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.yaml");
        fs::write(&file, "1").unwrap();
        let (mut watch, _) = watch_with(0, std::slice::from_ref(&file));
        let WatchMethod::Polling(reason) = watch.follow() else { panic!("events from nowhere") };
        assert!(reason.contains("fs.inotify.max_user_watches"), "{reason}");
        assert_eq!(watch.look_every(), Some(POLL_EVERY));
        assert!(!watch.look());
        fs::write(&file, "12").unwrap();
        assert!(watch.look());
        assert!(watch.look(), "a change is looked at twice");
        assert!(!watch.look());
    }

    #[test]
    fn directories_come_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let file = root.join("rules/a.yaml");
        let (mut watch, used) = watch_with(9, std::slice::from_ref(&file));
        let mut used_now = || {
            assert_eq!(watch.follow(), WatchMethod::Events);
            used.lock().unwrap().clone()
        };
        assert_eq!(used_now(), std::slice::from_ref(&root), "where the directory will come");
        fs::create_dir(root.join("rules")).unwrap();
        assert_eq!(used_now(), [root.join("rules")]);
        assert_eq!(used_now(), [root.join("rules")], "asked once");
        fs::rename(root.join("rules"), root.join("old")).unwrap();
        fs::create_dir(root.join("rules")).unwrap();
        used.lock().unwrap().push("a mark".into());
        assert_eq!(used_now(), [PathBuf::from("a mark"), root.join("rules")], "asked anew");
        assert_eq!(watch.look_every(), Some(LOOK_EVERY));
    }

    #[test]
    fn files_that_rules_name_are_watched_also_without_rules_files() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let (mut watch, used) = watch_with(9, &[]);
        assert_eq!((watch.follow(), watch.look_every()), (WatchMethod::Nothing, None));
        assert!(watch.set_named_files([root.join("keys")].into()));
        assert!(!watch.set_named_files([root.join("keys")].into()), "known");
        assert_eq!((watch.follow(), watch.look_every()), (WatchMethod::Events, Some(LOOK_EVERY)));
        assert_eq!(*used.lock().unwrap(), std::slice::from_ref(&root));
        assert!(!watch.set_named_files(BTreeSet::new()));
        assert_eq!((watch.follow(), watch.look_every()), (WatchMethod::Nothing, None));
    }

    #[test]
    fn directories_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (0..=DIRECTORIES_MAX)
            .map(|n| directory.path().join(format!("{n}/a.yaml")))
            .inspect(|file| fs::create_dir(file.parent().unwrap()).unwrap())
            .collect();
        let (mut watch, used) = watch_with(1_000, &paths);
        assert!(matches!(watch.follow(), WatchMethod::Polling(reason) if reason.contains("64")));
        assert!(used.lock().unwrap().is_empty());
        let (mut watch, used) = watch_with(1_000, &paths[1..]);
        assert_eq!(watch.follow(), WatchMethod::Events);
        assert_eq!(used.lock().unwrap().len(), DIRECTORIES_MAX);
    }

    #[test]
    fn reading_is_no_change() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let places = WatchedPaths::of(&[root.join("a.yaml")]);
        let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
        let read = EventKind::Access(AccessKind::Open(AccessMode::Any));
        let changed = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        let made = EventKind::Create(CreateKind::File);
        let renamed = |mode| EventKind::Modify(ModifyKind::Name(mode));
        let (written_to, whole) = (Some(ReloadHint::Written), Some(ReloadHint::Renamed));
        let rows: [(EventKind, &[&str], Option<ReloadHint>); 11] = [
            (read, &["a.yaml"], None),
            (written, &["a.yaml"], written_to),
            (written, &["b.yaml"], None),
            (changed, &["a.yaml"], written_to),
            (made, &["b.yaml"], None),
            (made, &["a.yaml"], written_to),
            (renamed(RenameMode::From), &["a.yaml"], written_to),
            (renamed(RenameMode::To), &["a.yaml"], whole),
            (renamed(RenameMode::Both), &["b.yaml", "a.yaml"], whole),
            (renamed(RenameMode::Both), &["a.yaml", "b.yaml"], written_to),
            (EventKind::Other, &[], written_to),
        ];
        for (kind, names, want) in rows {
            let mut event = Event::new(kind);
            event.paths.extend(names.iter().map(|name| root.join(name)));
            assert_eq!(hint_in(&event, &places), want, "{event:?}");
        }
        let lost = Event::new(EventKind::Other).set_flag(Flag::Rescan).add_path("elsewhere".into());
        assert_eq!(hint_in(&lost, &places), Some(ReloadHint::Written));
    }
}
