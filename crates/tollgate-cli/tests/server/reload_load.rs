//! New rules under load: nobody is turned away, nothing that was used is forgotten, no answer mixes
//! two versions, and memory does not grow.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use serde_json::Value;
use tempfile::tempdir;

use crate::harness::{TestHttpClient, TollgateProcess, text};

const RULES: u64 = 1_000;
const RELOADS: u64 = 200;
const CLIENTS: usize = 3;

/// So much that a test does not use it up.
const PLENTY: u64 = 1_000_000_000;

/// 1,000 rules, of which one changes with the version. Under /api two rules have a limit of the
/// same number, the version's: an answer that mixes versions shows two numbers. And who is calling
/// is read from another header in every other version, while a rule is only for that caller: an
/// answer without that rule has mixed what one version said about the caller with what another
/// says about rules.
fn version(number: u64) -> String {
    let (header, user) = if number.is_multiple_of(2) { ("x-a", "alice") } else { ("x-b", "bob") };
    let limit = PLENTY + number;
    let mut text = format!(
        "identify: {{ trusted_peers: [192.0.2.0/24], user: {{ header: {header} }} }}
rules:
  - {{ name: steady, key: '{{ip}}', limits: [{{ rate: {PLENTY}/day, algorithm: fixed_window }}] }}
  - {{ name: one, match: {{ path: /api, user: {user} }}, key: '{{ip}}', limits: [{limit}/day] }}
  - {{ name: two, match: {{ path: /api }}, key: '{{ip}}', limits: [{limit}/day] }}
"
    );
    for n in 3..RULES {
        text += &format!(
            "  - {{ name: r{n}, match: {{ path: '/r/{n}' }}, key: '{{ip}}', limits: [9/day] }}\n"
        );
    }
    text
}

/// Asks until told to stop; how many were allowed.
fn ask(listener: SocketAddr, client: usize, stop: &AtomicBool, asked: &AtomicU64) -> u64 {
    let body = format!(
        r#"{{"path":"/api","ip":"192.0.2.{client}","headers":{{"x-a":"alice","x-b":"bob"}}}}"#
    );
    let mut connection = TestHttpClient::connect(listener);
    let mut allowed = 0;
    while !stop.load(Ordering::Relaxed) {
        let answer = connection.request("POST", "/v1/check", &[], &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        let answer = answer.json();
        check_is_of_one_version(&answer);
        allowed += 1;
        asked.fetch_add(1, Ordering::Relaxed);
    }
    allowed
}

/// The same in batches, each of one version.
fn ask_in_batches(
    listener: SocketAddr,
    client: usize,
    stop: &AtomicBool,
    asked: &AtomicU64,
) -> u64 {
    const ENTRIES: usize = 200;
    let entry = format!(
        r#"{{"path":"/api","ip":"192.0.2.{client}","headers":{{"x-a":"alice","x-b":"bob"}}}}"#
    );
    let body = format!("[{}]", vec![entry; ENTRIES].join(","));
    let mut connection = TestHttpClient::connect(listener);
    let mut allowed = 0;
    while !stop.load(Ordering::Relaxed) {
        let answer = connection.request("POST", "/v1/check/batch", &[], &body).json();
        let answers = answer.as_array().expect("a list");
        assert_eq!(answers.len(), ENTRIES);
        answers.iter().for_each(check_is_of_one_version);
        let limit = |answer: &Value| answer["limits"][1]["limit"].clone();
        let first = limit(&answers[0]);
        assert!(answers.iter().all(|one| limit(one) == first), "two versions in one batch");
        allowed += ENTRIES as u64;
        asked.fetch_add(1, Ordering::Relaxed);
    }
    allowed
}

fn check_is_of_one_version(answer: &Value) {
    let limits = answer["limits"].as_array().expect("limits");
    let limit = |rule: &str| limits.iter().find(|one| one["rule"] == rule).map(|one| &one["limit"]);
    assert_eq!(limits.len(), 3, "a rule is missing: {answer}");
    assert!(limit("one").is_some(), "{answer}");
    assert_eq!(limit("one"), limit("two"), "two versions: {answer}");
}

/// The memory of the process that is not in a file, in KiB.
#[cfg(target_os = "linux")]
fn memory_kib(server: &TollgateProcess) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

fn replace(path: &Path, number: u64) {
    let new = path.with_extension("tmp");
    fs::write(&new, version(number)).expect("a file can be written");
    fs::rename(new, path).expect("a file can be renamed");
}

/// Two hundred versions, one after the other, while clients ask without a pause.
#[cfg(target_os = "linux")]
#[test]
fn two_hundred_versions_under_load_lose_nothing() {
    // What a version needs twice is there after some of them; what is lost with each would be
    // 180 times something after that. 1,000 rules take about 1 MiB, so a version that is not
    // freed adds 180 MiB; a tenth of that is what an allocator may hold back.
    const WARM: u64 = 20;
    const GROWTH_KIB_MAX: u64 = 16 << 10;

    let directory = tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    fs::write(&path, version(0)).unwrap();
    // Few connections: not every machine has the descriptors for as many as are usual, and a start says so.
    let few = ["--max-connections", "100"];
    let flags = ["--rules", text(&path), "--rules-look-interval", "1h"];
    let mut server = TollgateProcess::start(&[&flags[..], &few].concat());
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut memory = (0, 0);
    let allowed: Vec<u64> = thread::scope(|scope| {
        let (listener, stop, asked) = (server.http(), &stop, &asked);
        let mut clients: Vec<_> =
            (0..CLIENTS).map(|n| scope.spawn(move || ask(listener, n, stop, asked))).collect();
        clients.push(scope.spawn(move || ask_in_batches(listener, CLIENTS, stop, asked)));
        for number in 1..=RELOADS {
            replace(&path, number);
            let line = server.wait_for_log("rules reloaded");
            assert!(line.contains(&format!(" version={} ", number + 1)), "{line}");
            let changes = "added=0 removed=0 changed=2 unchanged=998";
            assert!(line.contains(changes), "{line}");
            match number {
                WARM => memory.0 = memory_kib(&server),
                RELOADS => memory.1 = memory_kib(&server),
                _ => {}
            }
        }
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("nobody failed")).collect()
    });
    assert!(asked.into_inner() > RELOADS, "there was load");
    for (client, allowed) in allowed.iter().enumerate() {
        let body = format!(r#"{{"ip":"192.0.2.{client}","cost":0}}"#);
        let left = server.check(&body)["remaining"].as_u64();
        assert_eq!(left, Some(PLENTY - allowed), "client {client}: all that was used, and no more");
    }
    eprintln!("memory in KiB: {memory:?}, requests: {allowed:?}");
    assert!(memory.1 <= memory.0 + GROWTH_KIB_MAX, "memory in KiB: {memory:?}");
    let told = server.stop().stderr;
    assert!(!told.contains(" error ") && !told.contains(" warn "), "{told}");
}

/// A hundred hangups without a pause are a few readings, and nobody notices.
#[cfg(unix)]
#[test]
fn a_storm_of_hangups_is_harmless() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    fs::write(&path, version(0)).unwrap();
    let mut server = TollgateProcess::start(&["--rules", text(&path), "--rules-watch", "off"]);
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let allowed: Vec<u64> = thread::scope(|scope| {
        let (listener, stop, asked) = (server.http(), &stop, &asked);
        let clients: Vec<_> =
            (0..CLIENTS).map(|n| scope.spawn(move || ask(listener, n, stop, asked))).collect();
        for _ in 0..100 {
            server.signal("HUP");
        }
        replace(&path, 1);
        server.signal("HUP");
        server.wait_for_log("rules reloaded");
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("nobody failed")).collect()
    });
    for (client, allowed) in allowed.iter().enumerate() {
        let left = server.check(&format!(r#"{{"ip":"192.0.2.{client}","cost":0}}"#));
        assert_eq!(left["remaining"].as_u64(), Some(PLENTY - allowed), "client {client}");
    }
    let ended = server.stop();
    assert_eq!(ended.code, Some(0));
    let read = ended.stderr.matches("cause=SIGHUP").count();
    assert!((1..=20).contains(&read), "{read} readings for 101 hangups");
}
