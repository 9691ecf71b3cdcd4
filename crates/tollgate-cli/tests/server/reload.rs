//! New rules while the server serves: everything that editors, deployments and accidents do to
//! files. What is wrong never replaces what is right, and what is right again is found.
//!
//! The look from time to time is switched off where events are to be shown, by making it rare:
//! then nothing but an event can be the reason.

mod file_scenarios;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tempfile::tempdir;

use crate::harness::{TestHttpClient, TollgateProcess, file, text, tollgate};

const IN_FORCE: &str = "rules reloaded";
const WRONG: &str = "the new rules are invalid, the old ones stay in force";
const SAME: &str = "the rules are unchanged";

/// Only events can tell.
const EVENTS: [&str; 2] = ["--rules-look-interval", "1h"];

/// Rules with one limit.
fn rules(per_day: u64) -> String {
    rule("api", per_day)
}

/// The same for callers whom a token names; the keys are in a file beside the rules.
fn keyed(per_day: u64) -> String {
    let jwt = "{ claim: sub, keys_file: keys, algorithms: [HS256] }";
    format!("identify: {{ user: {{ jwt: {jwt} }} }}\n{}", rules(per_day))
}

const SECRET: &str = "a secret of at least 32 bytes, one";
const OTHER_SECRET: &str = "a secret of at least 32 bytes, two";

fn rule(name: &str, per_day: u64) -> String {
    format!("rules: [{{ name: {name}, key: '{{user}}', limits: [{per_day}/day] }}]\n")
}

/// The limit in force.
fn in_force(server: &TollgateProcess) -> u64 {
    server.check(r#"{"user":"1","cost":0}"#)["max"].as_u64().expect("a limit")
}

fn plain(root: &Path) {
    file(root, "rules.yaml", rules(10));
}

fn write(root: &Path, name: &str, content: impl AsRef<[u8]>) {
    file(root, name, content);
}

/// Writes beside it and renames, as one should.
fn replace(root: &Path, name: &str, content: impl AsRef<[u8]>) {
    let new = file(root, "new.tmp", content);
    fs::rename(new, root.join(name)).expect("a file can be renamed");
}

/// Every file that the compiler is known to refuse, and some that it never gets to see.
#[test]
fn broken_rules_replace_nothing_and_are_told_of() {
    let directory = tempdir().unwrap();
    let root = directory.path();
    plain(root);
    let path = root.join("rules.yaml");
    let mut server = TollgateProcess::start(&[&["--rules", text(&path)], &EVENTS[..]].concat());
    server.check(r#"{"user":"1","cost":4}"#);
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tollgate-rules/tests/broken");
    let mut broken: Vec<PathBuf> =
        fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    broken.retain(|path| path.extension().is_some_and(|ending| ending == "yaml"));
    broken.sort();
    let mut contents: Vec<(String, Vec<u8>)> =
        broken.iter().map(|path| (path.display().to_string(), fs::read(path).unwrap())).collect();
    contents.push(("5 MiB".into(), vec![b'#'; 5 << 20]));
    contents.push(("random bytes".into(), (0..=255).rev().cycle().take(10_000).collect()));
    assert!(contents.len() >= 40, "{}", contents.len());
    for (name, content) in &contents {
        replace(root, "rules.yaml", content);
        let line = server.wait_for_log(WRONG);
        assert!(line.contains("version=1"), "{name}: {line}");
        assert!(line.contains("rules.yaml"), "{name}: {line}");
    }
    assert_eq!(server.check(r#"{"user":"1","cost":0}"#)["remaining"], 6);
    replace(root, "rules.yaml", rules(20));
    let line = server.wait_for_log(IN_FORCE);
    assert!(line.contains("version=2") && line.contains("changed=1"), "{line}");
    assert_eq!(server.check(r#"{"user":"1","cost":0}"#)["remaining"], 16, "4 of 20 are used");
    let told = server.stop().stderr;
    assert_eq!(told.matches(WRONG).count(), contents.len(), "each is told of once");
}

/// Counters go on where the limit does: same rule, key, algorithm and period.
#[test]
fn changed_numbers_follow_on_change() {
    // on_change, new limit, what remains of it after 40 of 100 were used, whether it starts fresh
    let rows = [
        ("keep", "100/day", 60, false),
        ("keep", "200/day", 160, false),
        ("keep", "20/day", 0, false),
        ("scale", "200/day", 120, false),
        ("scale", "20/day", 12, false),
        ("reset", "200/day", 200, false),
        ("keep", "200/hour", 200, true),
    ];
    for (on_change, new, remaining, fresh) in rows {
        let directory = tempdir().unwrap();
        let rules = |limit: &str, other: u64| {
            format!(
                "rules:
  - name: api
    match: {{ path: /api }}
    key: '{{user}}'
    limits: [{{ rate: {limit}, algorithm: fixed_window, align: first_hit }}]
    on_change: {on_change}
  - {{ name: other, match: {{ path: /other }}, key: '{{user}}', limits: [{other}/day] }}
"
            )
        };
        let path = file(directory.path(), "rules.yaml", rules("100/day", 1));
        let mut server = TollgateProcess::start(&[&["--rules", text(&path)], &EVENTS[..]].concat());
        let spent = server.check(r#"{"user":"1","path":"/api","cost":40}"#);
        assert_eq!(spent["remaining"], 60);
        replace(directory.path(), "rules.yaml", rules(new, 2));
        let line = server.wait_for_log(IN_FORCE);
        let at = format!("{on_change} {new}: {line}");
        assert_eq!(line.contains("start_fresh=api"), fresh, "{at}");
        let left = server.check(r#"{"user":"1","path":"/api","cost":0}"#);
        assert_eq!(left["remaining"], remaining, "{at}");
    }
}

#[cfg(unix)]
#[test]
fn a_file_that_may_not_be_read_changes_nothing() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    const NOBODY: u32 = 65_534;
    let directory = tempdir().unwrap();
    let root = directory.path();
    plain(root);
    let mode = |name: &str, mode: u32| {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("", 0o755);
    // Root may read everything: the server has to be somebody else, with a program of their own.
    fs::copy(tollgate().get_program(), root.join("tollgate")).unwrap();
    mode("tollgate", 0o755);
    let mut command = Command::new(root.join("tollgate"));
    let path = root.join("rules.yaml");
    command.args(["serve", "--http", "127.0.0.1:0", "--max-keys", "1000"]);
    command.args(["--grpc", "none", "--resp", "none", "--admin", "none"]);
    command.args(["--rules", text(&path)]).args(EVENTS);
    command.stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    if Command::new("id").arg("-u").output().unwrap().stdout == b"0\n" {
        command.uid(NOBODY).gid(NOBODY);
    }
    let mut server = TollgateProcess::spawn(command).expect("it starts");
    mode("rules.yaml", 0o000);
    let line = server.wait_for_log(WRONG);
    assert!(line.contains("permission denied"), "{line}");
    mode("rules.yaml", 0o644);
    server.wait_for_log(SAME);
    mode("", 0o000);
    // What cannot be seen tells no events: ask.
    server.signal("HUP");
    let line = server.wait_for_log(WRONG);
    assert!(line.contains("permission denied"), "{line}");
    mode("", 0o755);
    write(root, "rules.yaml", rules(20));
    server.wait_for_log(IN_FORCE);
    assert_eq!(in_force(&server), 20);
}

/// A machine whose watches are used up, as a namespace of users with none of its own.
#[cfg(target_os = "linux")]
#[test]
fn a_system_without_watches_is_told_of_once() {
    let directory = tempdir().unwrap();
    plain(directory.path());
    let path = directory.path().join("rules.yaml");
    let serve = tollgate();
    let script = "echo 0 > /proc/sys/user/max_inotify_watches && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-Ur", "sh", "-c", script, "sh"]).arg(serve.get_program());
    command.args(["serve", "--http", "127.0.0.1:0", "--max-keys", "1000"]);
    command.args(["--grpc", "none", "--resp", "none", "--admin", "none"]);
    command.args(["--rules", text(&path)]).args(EVENTS);
    command.stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut server = match TollgateProcess::spawn(command) {
        Ok(server) => server,
        // Not every machine lets users make namespaces; a unit test has a fake in any case.
        Err(ended) if ended.code != Some(0) && !ended.stderr.contains("tollgate") => return,
        Err(ended) => panic!("{ended:?}"),
    };
    let line = server.wait_for_log("rules files are polled every second instead of watched");
    assert!(line.contains("fs.inotify.max_user_watches"), "{line}");
    for limit in [20, 30] {
        write(directory.path(), "rules.yaml", rules(limit));
        server.wait_for_log(IN_FORCE);
        assert_eq!(in_force(&server), limit);
    }
    assert_eq!(server.stop().stderr.matches("polled every second").count(), 1);
}

#[cfg(unix)]
#[test]
fn a_hangup_reads_the_rules_again() {
    let directory = tempdir().unwrap();
    let path = file(directory.path(), "rules.yaml", rules(10));
    let mut server = TollgateProcess::start(&["--rules", text(&path), "--rules-watch", "off"]);
    server.signal("HUP");
    assert!(server.wait_for_log(SAME).contains("cause=SIGHUP"));
    write(directory.path(), "rules.yaml", rules(20));
    assert_eq!(in_force(&server), 10, "nobody watches");
    server.signal("HUP");
    assert!(server.wait_for_log(IN_FORCE).contains("cause=SIGHUP"));
    assert_eq!(in_force(&server), 20);
    write(directory.path(), "rules.yaml", "rules: 5");
    for _ in 0..2 {
        server.signal("HUP");
        assert!(server.wait_for_log(WRONG).contains("rules.yaml:1:8"), "whoever asks is told");
    }
    assert_eq!(in_force(&server), 20);
}

/// What was put stays while its keys change; and neither the files nor what was put hide what is wrong
/// with the other.
#[test]
fn files_and_what_was_put_are_told_apart() {
    const WRONG_RULES: &str = "rules: 5";
    let directory = tempdir().unwrap();
    let root = directory.path();
    let path = file(root, "rules.yaml", rules(10));
    write(root, "keys", SECRET);
    let mut server = TollgateProcess::start(&[&["--rules", text(&path)], &EVENTS[..]].concat());
    let put = |server: &TollgateProcess, text: &str| {
        let mut admin = TestHttpClient::connect(server.admin());
        admin.request("PUT", "/api/rules", &[("x-tollgate-admin", "1")], text).status
    };
    // Whether the files are wrong, whether what was put last is, and what the gauge says.
    let told = |server: &TollgateProcess| {
        let mut admin = TestHttpClient::connect(server.admin());
        let status = admin.request("GET", "/api/status", &[], "").json();
        let page = admin.request("GET", "/metrics", &[], "").body;
        let is_wrong = |field: &str| !status["rules"][field].is_null();
        let gauge = page.contains("\ntollgate_rules_last_reload_successful 1\n");
        (is_wrong("failed"), is_wrong("put_failed"), gauge)
    };
    assert_eq!(put(&server, WRONG_RULES), 400);
    assert_eq!(told(&server), (false, true, true));
    server.wait_for_log(WRONG);

    assert_eq!(put(&server, &keyed(20)), 200);
    server.wait_for_log(IN_FORCE);
    assert_eq!(told(&server), (false, false, true));
    replace(root, "keys", OTHER_SECRET);
    let line = server.wait_for_log(IN_FORCE);
    assert!(line.contains("version=3") && line.contains("cause=keys"), "{line}");
    assert_eq!(in_force(&server), 20, "what was put stays");

    replace(root, "rules.yaml", WRONG_RULES);
    server.wait_for_log(WRONG);
    assert_eq!(told(&server), (true, false, false));
    assert_eq!(put(&server, &rules(30)), 200);
    assert_eq!(told(&server), (true, false, false), "the file is still wrong");
    assert_eq!(in_force(&server), 30);
    server.wait_for_log(IN_FORCE);
    replace(root, "rules.yaml", rules(40));
    server.wait_for_log(IN_FORCE);
    assert_eq!((told(&server), in_force(&server)), ((false, false, true), 40));
}

#[test]
fn a_look_that_was_asked_for_is_no_warning() {
    let directory = tempdir().unwrap();
    let path = file(directory.path(), "rules.yaml", rules(10));
    let mut server = TollgateProcess::start(&["--rules", text(&path), "--rules-watch", "poll"]);
    let line = server.wait_for_log("rules files are polled every second instead of watched");
    assert!(line.contains(" info "), "{line}");
}

/// Whoever is one too many is not told that the rules are wrong.
#[test]
fn too_many_who_ask_are_told_to_ask_again() {
    // Fewer than the listener lets in from one address, more than may wait.
    const CLIENTS: usize = 30;
    const TRIES: usize = 1_000;
    let directory = tempdir().unwrap();
    // Large, so that reading it takes a while.
    let comment = format!("# {}\n", "x".repeat(3 << 20));
    let path = file(directory.path(), "rules.yaml", comment + &rules(10));
    let server = TollgateProcess::start(&["--rules", text(&path), "--rules-watch", "off"]);
    let listener = server.admin();
    let seen = AtomicBool::new(false);
    let ask = || {
        let mut admin = TestHttpClient::connect(listener);
        for _ in 0..TRIES {
            if seen.load(Ordering::Relaxed) {
                break;
            }
            let answer = admin.request("POST", "/api/reload", &[("x-tollgate-admin", "1")], "");
            match answer.status {
                200 => {}
                503 => {
                    assert!(answer.body.contains("retry in a second"), "{answer:?}");
                    seen.store(true, Ordering::Relaxed);
                }
                _ => panic!("{answer:?}"),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(ask);
        }
    });
    assert!(seen.load(Ordering::Relaxed), "{CLIENTS} at once were never too many");
}
