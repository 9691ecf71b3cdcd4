//! What operators can do to the rules of a running server, without its listeners.

use std::fs;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, Waker};

use tollgate::{Clock, MemoryStore, SystemClock, Wait};
use tollgate_redis::instances::{OVERRIDES_MAX, SharedOverride, SharedRules};
use tollgate_rules::{Compilation, Source};

use super::file_fingerprints::FileFingerprints;
use super::origin::{RulesContent, RulesInput, RulesSource};
use super::watch::WatchSettings;
use super::*;
use crate::store::ServerStore;
use crate::telemetry::LogFormat;

/// Live rules that are read from a file.
struct LiveRulesRun {
    directory: tempfile::TempDir,
    gatekeeper: Arc<ServerGatekeeper>,
    live: LiveRules,
}

fn rules(limit: &str) -> String {
    format!("rules: [{{ name: api, key: '{{user}}', limits: [{limit}] }}]\n")
}

/// The same rules for callers whom a token names; the keys are in a file beside the rules.
fn keyed(limit: &str) -> String {
    let jwt = "{ claim: sub, keys_file: keys, algorithms: [HS256] }";
    format!("identify: {{ user: {{ jwt: {jwt} }} }}\n{}", rules(limit))
}

/// The contents of a keys file: right, if they are long enough.
fn secret(number: u32) -> String {
    format!("a secret of at least 32 bytes, number {number}")
}

/// Rules from a file with this text.
fn first(directory: &Path, text: &str) -> (Arc<ServerGatekeeper>, InitialRules, Logs) {
    let path = directory.join("rules.yaml");
    fs::write(&path, text).unwrap();
    let watch = WatchSettings { mode: WatchMode::Off, look_every: Wait::from_micros(5_000_000) };
    let from = RulesSource { paths: vec![path], limit: None, watch, stores: None };
    let (prints, found) = (FileFingerprints::of(&from.paths), from.read());
    let Compilation { rules, diagnostics, named_files: named } = from.compile(&found);
    let rules = rules.unwrap_or_else(|| panic!("{diagnostics}"));
    let gatekeeper = Arc::new(ServerGatekeeper::new(
        rules,
        ServerStore::Memory(Arc::new(MemoryStore::new(100))).for_decisions(),
        SystemClock,
    ));
    let logs = Logs::to_stderr(LogFormat::Text, 1_024);
    (
        gatekeeper,
        InitialRules {
            source: from,
            input: RulesInput { content: found, named_files: named },
            fingerprints: prints,
        },
        logs,
    )
}

/// The limit of the only rule.
fn limit_of(rules: &RulesVersion) -> String {
    rules.rules().next().expect("a rule").limits.plain()[0].text.to_string()
}

impl LiveRulesRun {
    fn start() -> LiveRulesRun {
        let directory = tempfile::tempdir().unwrap();
        let (gatekeeper, first, logs) = first(directory.path(), &rules("1/hour"));
        let beside = Default::default();
        let live = LiveRules::start(gatekeeper.clone(), first, beside, logs).unwrap();
        LiveRulesRun { directory, gatekeeper, live }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("rules.yaml")
    }

    fn put(&self, text: &str) -> ReloadOutcome {
        wait(self.live.put(Bytes::copy_from_slice(text.as_bytes())))
    }

    fn in_force(&self) -> String {
        limit_of(&self.gatekeeper.rules())
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn version_of(reloaded: &ReloadOutcome) -> (&'static str, u64) {
    match reloaded {
        ReloadOutcome::Loaded { version, .. } => ("loaded", *version),
        ReloadOutcome::Unchanged { version } => ("unchanged", *version),
        ReloadOutcome::Refused { errors, .. } => ("refused", *errors as u64),
        ReloadOutcome::Unable(why) => panic!("{why}"),
    }
}

#[test]
fn a_text_that_was_put_stays_until_somebody_asks_for_the_files() {
    let run = LiveRulesRun::start();
    assert_eq!(run.live.status().origin, RulesOrigin::Files(vec![run.path()]));
    assert_eq!(version_of(&wait(run.live.reload())), ("unchanged", 1));
    assert_eq!(version_of(&run.put(&rules("2/hour"))), ("loaded", 2));
    assert_eq!(
        (run.in_force(), run.live.status().origin.clone()),
        ("2/hour".into(), RulesOrigin::Put)
    );
    assert_eq!(version_of(&run.put(&rules("2/hour"))), ("unchanged", 2));
    assert_eq!(fs::read_to_string(run.path()).unwrap(), rules("1/hour"), "no file is written");
    assert_eq!(version_of(&wait(run.live.reload())), ("loaded", 3));
    assert_eq!(run.in_force(), "1/hour");
    assert_eq!(run.live.status().origin, RulesOrigin::Files(vec![run.path()]));
    let status = run.live.status();
    assert_eq!((status.version, status.loads, status.failures, status.unchanged), (3, 2, 0, 2));
}

#[test]
fn wrong_rules_are_told_of_and_replace_nothing() {
    let run = LiveRulesRun::start();
    let rows: [(&[u8], usize, &str); 4] = [
        (b"rules: [{ name: api, key: '{user}', limit: [1/s] }]", 1, "--> PUT /api/rules:1:"),
        (b"rules: [", 1, "--> PUT /api/rules:1:"),
        (b"", 1, "--> PUT /api/rules"),
        (b"a\0\0", 1, "this is a binary file"),
    ];
    for (attempt, (text, count, place)) in rows.into_iter().enumerate() {
        let ReloadOutcome::Refused { diagnostics, errors } =
            wait(run.live.put(Bytes::from_static(text)))
        else {
            panic!("{} is right", String::from_utf8_lossy(text))
        };
        assert!(diagnostics.contains(place), "{diagnostics}");
        assert_eq!(errors, count, "{diagnostics}");
        let status = run.live.status();
        let failed = status.put_failed.as_ref().expect("it failed");
        assert!(status.files_are_right(), "a text that was put says nothing about files");
        assert_eq!(
            (failed.cause, failed.errors, &failed.diagnostics),
            (ReloadCause::Put, count, &diagnostics)
        );
        assert_eq!((status.version, status.failures), (1, attempt as u64 + 1));
        assert!(failed.at >= status.loaded_at);
        assert_eq!(run.in_force(), "1/hour");
    }
    fs::write(run.path(), "rules: 5").unwrap();
    assert_eq!(version_of(&wait(run.live.reload())).0, "refused");
    assert_eq!(
        run.live.status().failed.as_ref().map(|failed| failed.cause),
        Some(ReloadCause::Reload)
    );
    fs::write(run.path(), rules("1/hour")).unwrap();
    assert_eq!(version_of(&wait(run.live.reload())), ("unchanged", 1));
    assert!(run.live.status().failed.is_none(), "mended");
    assert!(run.live.status().put_failed.is_some(), "a file says nothing about what was put");
    fs::write(run.path(), "rules: 5").unwrap();
    assert_eq!(version_of(&wait(run.live.reload())).0, "refused");
    assert_eq!(version_of(&run.put(&rules("2/hour"))), ("loaded", 2));
    assert!(run.live.status().put_failed.is_none(), "mended");
    assert!(!run.live.status().files_are_right(), "it still is wrong");
}

#[test]
fn what_is_kept_of_a_failure_is_bounded() {
    let run = LiveRulesRun::start();
    let wrong = "ü".repeat(400);
    let rule = |n| format!("  - {{ name: r{n}, key: '{{user}}', limits: [{wrong}] }}\n");
    let text = format!("rules:\n{}", (0..2_000).map(rule).collect::<String>());
    let ReloadOutcome::Refused { diagnostics, errors } = run.put(&text) else {
        panic!("it is right")
    };
    assert_eq!(errors, 2_000);
    assert!(diagnostics.len() > 60 << 10, "the bound was not reached: {}", diagnostics.len());
    assert!(diagnostics.len() < (64 << 10) + 100, "{}", diagnostics.len());
    assert_eq!(run.live.status().put_failed.as_ref().unwrap().diagnostics, diagnostics);
}

#[test]
fn hints_and_questions_are_bounded() {
    let (live, inbox) = LiveRules::new(RulesOrigin::Demo, SystemClock.now());
    for _ in 0..100 {
        live.hint_sighup();
        live.hint(ReloadHint::Written);
    }
    assert_eq!(inbox.try_iter().count(), 2, "a hundred of one kind are one");
    assert!(live.take_hints().eq([ReloadHint::Written, ReloadHint::Signal]));
    assert!(live.take_hints().eq([]));
    let mut context = Context::from_waker(Waker::noop());
    let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| Box::pin(live.reload())).collect();
    for question in &mut waiting {
        assert!(question.as_mut().poll(&mut context).is_pending());
    }
    let one_more = Box::pin(live.reload()).as_mut().poll(&mut context);
    assert!(matches!(one_more, Poll::Ready(ReloadOutcome::Unable(BUSY))), "{one_more:?}");
    live.hint(ReloadHint::Renamed);
    assert!(live.take_hints().eq([ReloadHint::Renamed]), "a hint needs no room");
    drop(inbox);
    let nobody = Box::pin(live.reload()).as_mut().poll(&mut context);
    assert!(matches!(nobody, Poll::Ready(ReloadOutcome::Unable(ENDED))), "{nobody:?}");
}

#[test]
fn the_same_bytes_are_no_change() {
    let run = LiveRulesRun::start();
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

/// Something that happens.
enum RulesEvent {
    /// The rules file is written.
    Rules(String),
    /// The keys file is written.
    Keys(String),
    /// The rules are read for this reason.
    Read(ReloadCause),
    Put(String),
}

use RulesEvent::{Keys, Put, Read};

/// State after a reload: the outcome with its version or errors; the rules in force, by their limit and
/// origin; and which failures the status has.
type ExpectedReload = ((&'static str, u64), (&'static str, &'static str), &'static [&'static str]);

/// Acts, and what comes of those after which something is read.
fn play(text: &str, acts: Vec<(RulesEvent, Option<ExpectedReload>)>) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("keys"), secret(1)).unwrap();
    let (gatekeeper, first, logs) = first(directory.path(), text);
    let (live, _inbox) = LiveRules::new(first.source.origin(), gatekeeper.now());
    let mut reloader = Reloader::new(gatekeeper.clone(), first, live.clone(), logs);
    for (number, (act, then)) in acts.into_iter().enumerate() {
        let outcome = match act {
            RulesEvent::Rules(text) => {
                fs::write(path("rules.yaml"), text).unwrap();
                continue;
            }
            Keys(text) if text.is_empty() => {
                fs::remove_file(path("keys")).unwrap();
                continue;
            }
            Keys(text) => {
                fs::write(path("keys"), text).unwrap();
                continue;
            }
            Read(cause) => reloader.reload(cause),
            Put(text) => reloader.put(text.as_bytes()),
        };
        let status = live.status();
        let origin = match status.origin {
            RulesOrigin::Files(_) => "files",
            _ => "put",
        };
        let failures = [
            ("failed", &status.failed),
            ("put_failed", &status.put_failed),
            ("keys_failed", &status.keys_failed),
        ];
        let failures = failures.iter().filter(|(_, failure)| failure.is_some());
        let failures: Vec<&str> = failures.map(|(name, _)| *name).collect();
        let (want, (limit, from), failed) = then.expect("something is read");
        assert_eq!(version_of(&outcome), want, "step {number}");
        let in_force = limit_of(&gatekeeper.rules());
        assert_eq!((&*in_force, origin), (limit, from), "step {number}");
        assert_eq!(failures, failed, "step {number}");
    }
}

#[test]
fn what_was_put_ends_with_the_text_it_was_put_over() {
    let put = ("2/hour", "put");
    let rows = vec![
        (Put(rules("2/hour")), Some((("loaded", 2), put, &[][..]))),
        // Broken and mended is not changed.
        (RulesEvent::Rules("rules: [".into()), None),
        (Read(ReloadCause::Files), Some((("refused", 1), put, &["failed"]))),
        (RulesEvent::Rules(rules("1/hour")), None),
        (Read(ReloadCause::Files), Some((("unchanged", 2), put, &[]))),
        // Changed is changed, also if it was wrong at first.
        (Keys(String::new()), None),
        (RulesEvent::Rules(keyed("3/hour")), None),
        (Read(ReloadCause::Files), Some((("refused", 1), put, &["failed"]))),
        (Keys(secret(1)), None),
        (Read(ReloadCause::Files), Some((("loaded", 3), ("3/hour", "files"), &[]))),
    ];
    play(&rules("1/hour"), rows);
}

#[test]
fn what_was_put_stays_when_keys_change() {
    let put = ("2/hour", "put");
    let loaded = |version| ("loaded", version);
    let same = |version| ("unchanged", version);
    let rows = vec![
        // It stands beside the rules file, and so do its keys.
        (Put(keyed("2/hour")), Some((loaded(2), put, &[][..]))),
        (Read(ReloadCause::Files), Some((same(2), put, &[]))),
        (Put(keyed("2/hour")), Some((same(2), put, &[]))),
        (Keys(secret(2)), None),
        (Read(ReloadCause::Files), Some((same(2), put, &[]))),
        (Put(keyed("2/hour")), Some((same(3), put, &[]))),
        (Keys("short".into()), None),
        (Read(ReloadCause::Files), Some((same(3), put, &["keys_failed"]))),
        (Read(ReloadCause::Files), Some((same(3), put, &["keys_failed"]))),
        (Put(keyed("2/hour")), Some((("refused", 1), put, &["put_failed", "keys_failed"]))),
        (Keys(secret(2)), None),
        (Read(ReloadCause::Files), Some((same(3), put, &["put_failed"]))),
        (Keys(secret(3)), None),
        (Put(keyed("2/hour")), Some((loaded(4), put, &[]))),
        (RulesEvent::Rules(rules("3/hour")), None),
        (Read(ReloadCause::Files), Some((loaded(5), ("3/hour", "files"), &[]))),
    ];
    play(&rules("1/hour"), rows);
}

#[test]
fn keys_that_both_the_files_and_the_put_name_undo_nothing() {
    let (put, files) = (("2/hour", "put"), ("1/hour", "files"));
    let same = |version| ("unchanged", version);
    let wrong = ("refused", 1);
    let rows = vec![
        (Put(keyed("2/hour")), Some((("loaded", 2), put, &[][..]))),
        (Keys(secret(2)), None),
        (Read(ReloadCause::Files), Some((same(2), put, &[]))),
        (Put(keyed("2/hour")), Some((same(3), put, &[]))),
        (Keys("short".into()), None),
        (Read(ReloadCause::Files), Some((wrong, put, &["failed", "keys_failed"]))),
        (Keys(secret(2)), None),
        (Read(ReloadCause::Files), Some((same(3), put, &[]))),
        (Read(ReloadCause::Reload), Some((("loaded", 4), files, &[]))),
    ];
    play(&keyed("1/hour"), rows);
}

#[test]
fn keys_are_wrong_until_they_are_mended() {
    let (old, new) = (("1/hour", "files"), ("2/hour", "files"));
    let same = |version| ("unchanged", version);
    let wrong = ("refused", 1);
    let rows = vec![
        (Keys("short".into()), None),
        (Read(ReloadCause::Files), Some((wrong, old, &["failed"][..]))),
        // Nobody asked, and it has been said.
        (Read(ReloadCause::Files), Some((same(1), old, &["failed"]))),
        (Read(ReloadCause::Reload), Some((wrong, old, &["failed"]))),
        (Read(ReloadCause::Reload), Some((wrong, old, &["failed"]))),
        (Keys(secret(1)), None),
        (Read(ReloadCause::Files), Some((same(1), old, &[]))),
        // First the rules, then the keys.
        (Keys(String::new()), None),
        (RulesEvent::Rules(keyed("2/hour")), None),
        (Read(ReloadCause::Files), Some((wrong, old, &["failed", "keys_failed"]))),
        (Keys(secret(2)), None),
        (Read(ReloadCause::Files), Some((("loaded", 2), new, &[]))),
        // New keys count although somebody has spoilt the rules.
        (RulesEvent::Rules("rules: 5".into()), None),
        (Read(ReloadCause::Files), Some((wrong, new, &["failed"]))),
        (Keys(secret(3)), None),
        (Read(ReloadCause::Files), Some((same(2), new, &["failed"]))),
        (RulesEvent::Rules(keyed("2/hour")), None),
        (Read(ReloadCause::Files), Some((same(3), new, &[]))),
    ];
    play(&keyed("1/hour"), rows);
}

#[test]
fn a_hint_says_where_keys_are_looked_for() {
    let run = LiveRulesRun::start();
    let ReloadOutcome::Refused { diagnostics, .. } = run.put(&keyed("1/hour")) else {
        panic!("no keys")
    };
    let folder = run.directory.path().display();
    assert!(diagnostics.contains(&format!("relative to `{folder}`")), "{diagnostics}");
}

#[test]
fn a_bug_is_seen_and_is_not_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let (gatekeeper, first, logs) = first(directory.path(), &rules("1/hour"));
    let (live, _inbox) = LiveRules::new(first.source.origin(), gatekeeper.now());
    let mut reloader = Reloader::new(gatekeeper, first, live.clone(), logs);
    reloader.catch_bug(|_| panic!("a belief was wrong"));
    let status = live.status();
    assert!(status.failed.as_ref().is_some_and(|failed| failed.diagnostics.contains(BUG)));
    reloader.catch_bug(|this| drop(this.reload(ReloadCause::Signal)));
    assert!(live.status().files_are_right());
}

#[test]
fn a_version_is_never_seen_with_the_rules_of_another() {
    const LAST: u64 = 300;
    let run = LiveRulesRun::start();
    let (live, gatekeeper) = (run.live.clone(), run.gatekeeper.clone());
    let looking = std::thread::spawn(move || {
        loop {
            let (status, rules) = live.status_and_rules(&gatekeeper);
            assert_eq!(limit_of(&rules), format!("{}/hour", status.version));
            if status.version == LAST {
                break;
            }
        }
    });
    for version in 2..=LAST {
        assert_eq!(version_of(&run.put(&rules(&format!("{version}/hour")))), ("loaded", version));
    }
    looking.join().expect("every version was seen with its rules");
}

fn peer_override(id: u64, rule: &str, gone: bool) -> SharedOverride {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    let text = format!(r#"{{"rule":"{rule}","key":"user={id}","set":["5/hour"]}}"#);
    SharedOverride { id: bytes, text: text.into(), removed: gone }
}

impl LiveRulesRun {
    /// The same without reading the files, which would end what was put.
    fn listen_quietly(&self) {
        // Nothing that can be put: it is refused, and the thread looks after that.
        self.put("rules: 5");
        self.put("rules: 6");
    }

    /// Lets the thread look at what it has heard.
    fn listen(&self) {
        // It looks after each answer: the second comes after a look.
        wait(self.live.reload());
        wait(self.live.reload());
    }
}

#[test]
fn an_override_of_a_rule_that_only_others_have_waits_for_it() {
    let run = LiveRulesRun::start();
    run.live
        .receive_overrides(vec![peer_override(1, "later", false), peer_override(2, "api", false)]);
    run.live
        .receive_overrides(vec![peer_override(3, "later", false), peer_override(4, "api", false)]);
    run.live
        .receive_overrides(vec![peer_override(3, "later", true), peer_override(4, "api", true)]);
    run.listen();
    assert_eq!(run.gatekeeper.overrides().len(), 1, "of the rule that there is");
    fs::write(run.path(), rules("1/hour").replace("api", "later")).unwrap();
    wait(run.live.reload());
    let rules_of = || run.gatekeeper.overrides().iter().map(|one| one.rule.to_string()).collect();
    let mut named: Vec<String> = rules_of();
    named.sort();
    assert_eq!(named, ["api", "later"], "one that was taken back waits no more");
    run.live.receive_overrides(vec![peer_override(1, "later", true)]);
    run.listen();
    assert_eq!(rules_of(), ["api"]);
}

#[test]
fn what_others_tell_is_bounded() {
    let run = LiveRulesRun::start();
    // Of a rule that there is not: all of them wait, as far as there is room.
    for chunk in 0..5 {
        let first = chunk * 5_000;
        let told = (first..first + 5_000).map(|id| peer_override(id, "later", false));
        run.live.receive_overrides(told.collect());
    }
    run.listen();
    fs::write(run.path(), rules("1/hour").replace("api", "later")).unwrap();
    wait(run.live.reload());
    assert_eq!(run.gatekeeper.overrides().len(), OVERRIDES_MAX);
}

#[test]
fn rules_that_others_put_hold_for_the_same_files_only() {
    let run = LiveRulesRun::start();
    let put = |text: &str, over: &str| {
        let (text, over) = (text.into(), over.into());
        run.live.receive_rules(Some(SharedRules {
            text,
            replaced_fingerprint: over,
            version: 1,
            verified: false,
        }));
        run.listen_quietly();
    };
    put(&rules("7/hour"), "another fingerprint");
    assert_eq!(run.in_force(), "1/hour");
    let files = RulesContent::Texts(vec![Source::from_text("any", &rules("1/hour"))]);
    let over = peer_changes::content_fingerprint(&files).unwrap();
    put(&rules("7/hour"), &over);
    assert_eq!(run.in_force(), "7/hour");
    assert_eq!(run.live.status().origin, RulesOrigin::Put);
    put("nonsense", &over);
    assert_eq!(run.in_force(), "7/hour", "what is wrong replaces nothing");
    run.live.receive_rules(None);
    run.listen_quietly();
    assert_eq!(run.in_force(), "1/hour");
}

#[test]
fn rules_that_nobody_proved_to_have_put_never_bring_upstreams_routes_or_identify() {
    let gateway =
        "upstreams: { app: 'http://127.0.0.1:9' }\nroutes: [{ path: '/{*rest}', upstream: app }]\n";
    let identify = "identify: { trusted_peers: [10.0.0.0/8], user: { header: x-user-id } }\n";
    for more in [gateway, identify] {
        let run = LiveRulesRun::start();
        let files = RulesContent::Texts(vec![Source::from_text("any", &rules("1/hour"))]);
        let over = peer_changes::content_fingerprint(&files).unwrap();
        let put = |verified| {
            let (text, over) = (format!("{}\n{more}", rules("7/hour")).into(), over.clone().into());
            let put = SharedRules { text, replaced_fingerprint: over, version: 1, verified };
            run.live.receive_rules(Some(put));
            run.listen_quietly();
        };
        put(false);
        assert_eq!(run.in_force(), "1/hour", "{more}");
        put(true);
        assert_eq!(run.in_force(), "7/hour", "{more}");
        // What is in force already is no change of it.
        put(false);
        assert_eq!(run.in_force(), "7/hour", "{more}");
    }
}
