//! What operators can do to the rules of a running server, without its doors.

use std::fs;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, Waker};

use tollgate::{Clock, Limiter, SystemClock, Wait};

use super::origin::RulesFrom;
use super::prints::Prints;
use super::watch::HowToWatch;
use super::*;
use crate::telemetry::LogFormat;

/// Live rules that are read from a file.
struct Run {
    directory: tempfile::TempDir,
    gatekeeper: Arc<Gatekeeper>,
    live: LiveRules,
}

fn rules(limit: &str) -> String {
    format!("rules: [{{ name: api, key: '{{user}}', limits: [{limit}] }}]\n")
}

impl Run {
    fn start(mode: WatchMode) -> Run {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rules.yaml");
        fs::write(&path, rules("1/hour")).unwrap();
        let watch = HowToWatch { mode, look_every: Wait::from_micros(5_000_000) };
        let from = RulesFrom { paths: vec![path], limit: None, watch };
        let (prints, found) = (Prints::of(&from.paths), from.read());
        let compiled = found.compile().rules.expect("they are right");
        let gatekeeper = Arc::new(Gatekeeper::new(compiled, Limiter::with_capacity(100)));
        let logs = Logs::to_stderr(LogFormat::Text, 1_024);
        let first = First { from, found, prints };
        let live = LiveRules::start(gatekeeper.clone(), first, logs).unwrap();
        Run { directory, gatekeeper, live }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("rules.yaml")
    }

    fn put(&self, text: &str) -> Reloaded {
        wait(self.live.put(Bytes::copy_from_slice(text.as_bytes())))
    }

    /// The limit of the only rule in force.
    fn in_force(&self) -> String {
        let rules = self.gatekeeper.rules();
        let rule = rules.rules().next().expect("a rule");
        rule.limits.plain()[0].text.to_string()
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn version_of(reloaded: &Reloaded) -> (&'static str, u64) {
    match reloaded {
        Reloaded::Loaded { version, .. } => ("loaded", *version),
        Reloaded::Unchanged { version } => ("unchanged", *version),
        Reloaded::Refused { errors, .. } => ("refused", *errors as u64),
    }
}

#[test]
fn a_text_that_was_put_stays_until_somebody_asks_for_the_files() {
    let run = Run::start(WatchMode::Off);
    assert_eq!(run.live.status().origin, Origin::Files(vec![run.path()]));
    assert_eq!(version_of(&wait(run.live.reload())), ("unchanged", 1));
    assert_eq!(version_of(&run.put(&rules("2/hour"))), ("loaded", 2));
    assert_eq!((run.in_force(), run.live.status().origin.clone()), ("2/hour".into(), Origin::Put));
    assert_eq!(version_of(&run.put(&rules("2/hour"))), ("unchanged", 2));
    assert_eq!(fs::read_to_string(run.path()).unwrap(), rules("1/hour"), "no file is written");
    assert_eq!(version_of(&wait(run.live.reload())), ("loaded", 3));
    assert_eq!(run.in_force(), "1/hour");
    assert_eq!(run.live.status().origin, Origin::Files(vec![run.path()]));
    let status = run.live.status();
    assert_eq!((status.version, status.loads, status.failures, status.unchanged), (3, 2, 0, 2));
}

#[test]
fn wrong_rules_are_told_of_and_replace_nothing() {
    let run = Run::start(WatchMode::Off);
    let rows: [(&[u8], usize, &str); 4] = [
        (b"rules: [{ name: api, key: '{user}', limit: [1/s] }]", 1, "--> PUT /api/rules:1:"),
        (b"rules: [", 1, "--> PUT /api/rules:1:"),
        (b"", 1, "--> PUT /api/rules"),
        (b"a\0\0", 1, "this is a binary file"),
    ];
    for (attempt, (text, count, place)) in rows.into_iter().enumerate() {
        let Reloaded::Refused { diagnostics, errors } =
            wait(run.live.put(Bytes::from_static(text)))
        else {
            panic!("{} is right", String::from_utf8_lossy(text))
        };
        assert!(diagnostics.contains(place), "{diagnostics}");
        assert_eq!(errors, count, "{diagnostics}");
        let status = run.live.status();
        let failed = status.failed.as_ref().expect("it failed");
        assert_eq!(
            (failed.cause, failed.errors, &failed.diagnostics),
            (Cause::Put, count, &diagnostics)
        );
        assert_eq!((status.version, status.failures), (1, attempt as u64 + 1));
        assert!(failed.at >= status.loaded_at);
        assert_eq!(run.in_force(), "1/hour");
    }
    fs::write(run.path(), "rules: 5").unwrap();
    assert_eq!(version_of(&wait(run.live.reload())).0, "refused");
    assert_eq!(run.live.status().failed.as_ref().map(|failed| failed.cause), Some(Cause::Reload));
    fs::write(run.path(), rules("1/hour")).unwrap();
    assert_eq!(version_of(&wait(run.live.reload())), ("unchanged", 1));
    assert!(run.live.status().failed.is_none(), "mended");
}

#[test]
fn what_is_kept_of_a_failure_is_bounded() {
    let run = Run::start(WatchMode::Off);
    let wrong = "ü".repeat(400);
    let rule = |n| format!("  - {{ name: r{n}, key: '{{user}}', limits: [{wrong}] }}\n");
    let text = format!("rules:\n{}", (0..2_000).map(rule).collect::<String>());
    let Reloaded::Refused { diagnostics, errors } = run.put(&text) else { panic!("it is right") };
    assert_eq!(errors, 2_000);
    assert!(diagnostics.len() > 60 << 10, "the bound was not reached: {}", diagnostics.len());
    assert!(diagnostics.len() < (64 << 10) + 100, "{}", diagnostics.len());
    assert_eq!(run.live.status().failed.as_ref().unwrap().diagnostics, diagnostics);
}

#[test]
fn hints_and_questions_are_bounded() {
    let (live, inbox) = LiveRules::new(Origin::Demo, SystemClock.now());
    for _ in 0..100 {
        live.hang_up();
        live.hint(Hint::Written);
    }
    assert_eq!(inbox.try_iter().count(), 2, "a hundred of one kind are one");
    assert!(live.take_hints().eq([Hint::Written, Hint::Signal]));
    assert!(live.take_hints().eq([]));
    let mut context = Context::from_waker(Waker::noop());
    let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| Box::pin(live.reload())).collect();
    for question in &mut waiting {
        assert!(question.as_mut().poll(&mut context).is_pending());
    }
    let Poll::Ready(Reloaded::Refused { diagnostics, .. }) =
        Box::pin(live.reload()).as_mut().poll(&mut context)
    else {
        panic!("one too many is not told")
    };
    assert!(diagnostics.contains("ask again"), "{diagnostics}");
    live.hint(Hint::Renamed);
    assert!(live.take_hints().eq([Hint::Renamed]), "a hint needs no room");
}

#[test]
fn the_same_bytes_are_no_change() {
    let run = Run::start(WatchMode::Off);
    let same = |path: &Path| fs::write(path, rules("1/hour")).unwrap();
    same(&run.path());
    for _ in 0..3 {
        assert_eq!(version_of(&wait(run.live.reload())), ("unchanged", 1));
    }
    // A byte order mark says nothing.
    fs::write(run.path(), format!("\u{feff}{}", rules("1/hour"))).unwrap();
    assert_eq!(version_of(&wait(run.live.reload())), ("unchanged", 1));
    fs::write(run.path(), format!("{}\n", rules("1/hour"))).unwrap();
    assert_eq!(version_of(&wait(run.live.reload())), ("loaded", 2));
}
