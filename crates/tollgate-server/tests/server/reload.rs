//! New rules while the server serves: everything that editors, deployments and accidents do to
//! files. What is wrong never replaces what is right, and what is right again is found.
//!
//! The look from time to time is switched off where events are to be shown, by making it rare:
//! then nothing but an event can be the reason.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tempfile::tempdir;

use crate::harness::{Client, Server, file, text, tollgate};

const IN_FORCE: &str = "new rules are in force";
const WRONG: &str = "the new rules are wrong, the old ones stay in force";
const SAME: &str = "the rules are the ones in force";

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
fn in_force(server: &Server) -> u64 {
    server.check(r#"{"user":"1","cost":0}"#)["max"].as_u64().expect("a limit")
}

/// What comes of something done to files.
#[derive(Clone, Copy)]
enum Want {
    /// This limit is in force.
    Serves(u64),
    /// Nothing changes, and the log says why.
    Stays(&'static str),
    /// What is in force is there again.
    Same,
}

use Want::{Same, Serves, Stays};

type Step = (fn(&Path), Want);

/// A server that reads `path`, and what is done to it.
struct Trick {
    name: &'static str,
    path: &'static str,
    set_up: fn(&Path),
    steps: &'static [Step],
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

fn rename(root: &Path, from: &str, to: &str) {
    fs::rename(root.join(from), root.join(to)).expect("a file can be renamed");
}

fn remove(root: &Path, name: &str) {
    fs::remove_file(root.join(name)).expect("a file can be removed");
}

fn directory(root: &Path, name: &str) {
    fs::create_dir_all(root.join(name)).expect("a directory can be made");
}

#[cfg(unix)]
fn link(root: &Path, target: &str, name: &str) {
    // Whole or not at all, as `ln -sfn` is not and mounted configurations are.
    std::os::unix::fs::symlink(target, root.join("link.tmp")).expect("a link can be made");
    rename(root, "link.tmp", name);
}

fn mkfifo(root: &Path, name: &str) {
    let made = Command::new("mkfifo").arg(root.join(name)).status();
    assert!(made.expect("mkfifo runs").success());
}

const FILES: &[Trick] = &[
    Trick {
        name: "half-written, then completed",
        path: "rules.yaml",
        set_up: plain,
        steps: &[
            (|root| write(root, "rules.yaml", &rules(20)[..30]), Stays("rules.yaml:1:")),
            (
                |root| {
                    let mut file = File::options().append(true).open(root.join("rules.yaml"));
                    file.as_mut().unwrap().write_all(&rules(20).as_bytes()[30..]).unwrap();
                },
                Serves(20),
            ),
        ],
    },
    Trick {
        name: "rewritten in place, twice",
        path: "rules.yaml",
        set_up: plain,
        steps: &[
            (|root| write(root, "rules.yaml", rules(20)), Serves(20)),
            (|root| write(root, "rules.yaml", rules(30)), Serves(30)),
        ],
    },
    Trick {
        name: "replaced by a rename, twice",
        path: "rules.yaml",
        set_up: plain,
        steps: &[
            (|root| replace(root, "rules.yaml", rules(20)), Serves(20)),
            (|root| replace(root, "rules.yaml", rules(30)), Serves(30)),
        ],
    },
    Trick {
        name: "an editor that keeps a backup",
        path: "rules.yaml",
        set_up: plain,
        steps: &[(
            |root| {
                write(root, ".rules.yaml.swp", "x");
                rename(root, "rules.yaml", "rules.yaml~");
                write(root, "rules.yaml", rules(20));
                remove(root, "rules.yaml~");
                remove(root, ".rules.yaml.swp");
            },
            Serves(20),
        )],
    },
    Trick {
        name: "deleted, then made again",
        path: "rules.yaml",
        set_up: plain,
        steps: &[
            (|root| remove(root, "rules.yaml"), Stays("there is no such file")),
            (|root| write(root, "rules.yaml", rules(20)), Serves(20)),
        ],
    },
    Trick {
        name: "renamed away and back",
        path: "rules.yaml",
        set_up: plain,
        steps: &[
            (|root| rename(root, "rules.yaml", "away"), Stays("there is no such file")),
            (|root| rename(root, "away", "rules.yaml"), Same),
            (|root| write(root, "rules.yaml", rules(20)), Serves(20)),
        ],
    },
    Trick {
        name: "a directory in its place",
        path: "rules.yaml",
        set_up: plain,
        steps: &[
            (
                |root| {
                    remove(root, "rules.yaml");
                    directory(root, "rules.yaml");
                },
                Stays("the directory has no `*.yaml`"),
            ),
            (
                |root| {
                    rename(root, "rules.yaml", "away");
                    write(root, "rules.yaml", rules(20));
                },
                Serves(20),
            ),
        ],
    },
    Trick {
        name: "a pipe in its place",
        path: "rules.yaml",
        set_up: plain,
        steps: &[
            (
                |root| {
                    mkfifo(root, "pipe");
                    rename(root, "pipe", "rules.yaml");
                },
                Stays("this is not a regular file"),
            ),
            (|root| replace(root, "rules.yaml", rules(20)), Serves(20)),
        ],
    },
    Trick {
        name: "first the rules, then the keys that they name",
        path: "rules.yaml",
        set_up: plain,
        steps: &[
            (|root| replace(root, "rules.yaml", keyed(20)), Stays("there is no such keys file")),
            (|root| write(root, "keys", "short"), Stays("at least 32 bytes")),
            (|root| write(root, "keys", SECRET), Serves(20)),
            (|root| remove(root, "keys"), Stays("there is no such keys file")),
            (|root| write(root, "keys", SECRET), Same),
            (|root| replace(root, "rules.yaml", "rules: 5"), Stays("rules.yaml:1:8")),
            // They count although the rules are wrong.
            (|root| replace(root, "keys", OTHER_SECRET), Serves(20)),
        ],
    },
    Trick {
        name: "its directory is replaced by another",
        path: "conf/rules.yaml",
        set_up: |root| {
            directory(root, "conf");
            plain(&root.join("conf"));
        },
        steps: &[
            (
                |root| {
                    directory(root, "next");
                    write(root, "next/rules.yaml", rules(20));
                    rename(root, "conf", "old");
                    rename(root, "next", "conf");
                },
                Serves(20),
            ),
            (|root| write(root, "conf/rules.yaml", rules(30)), Serves(30)),
            (|root| rename(root, "conf", "gone"), Stays("there is no such file")),
            (
                |root| {
                    directory(root, "conf");
                    write(root, "conf/rules.yaml", rules(40));
                },
                Serves(40),
            ),
        ],
    },
];

const DIRECTORIES: &[Trick] = &[
    Trick {
        name: "files come and go",
        path: "",
        set_up: plain,
        steps: &[
            (|root| write(root, "more.yml", rule("more", 5)), Serves(5)),
            (|root| write(root, "twice.yaml", rule("api", 20)), Stays("api")),
            (|root| remove(root, "twice.yaml"), Same),
            (|root| write(root, "more.yml", rule("more", 6)), Serves(6)),
            (|root| remove(root, "more.yml"), Serves(10)),
            (|root| remove(root, "rules.yaml"), Stays("the directory has no `*.yaml`")),
            (|root| replace(root, "rules.yaml", rules(20)), Serves(20)),
        ],
    },
    Trick {
        name: "all of it is replaced",
        path: "conf",
        set_up: |root| {
            directory(root, "conf");
            plain(&root.join("conf"));
        },
        steps: &[
            (|root| rename(root, "conf", "gone"), Stays("there is no such file")),
            (
                |root| {
                    directory(root, "next");
                    write(root, "next/rules.yaml", rules(20));
                    rename(root, "next", "conf");
                },
                Serves(20),
            ),
            (|root| write(root, "conf/more.yaml", rule("more", 5)), Serves(5)),
        ],
    },
];

#[cfg(unix)]
const LINKS: &[Trick] = &[
    Trick {
        name: "a link to another file",
        path: "rules.yaml",
        set_up: |root| {
            directory(root, "versions");
            write(root, "versions/1", rules(10));
            write(root, "versions/2", rules(20));
            link(root, "versions/1", "rules.yaml");
        },
        steps: &[
            (|root| link(root, "versions/2", "rules.yaml"), Serves(20)),
            (|root| write(root, "versions/2", rules(30)), Serves(30)),
            (|root| link(root, "versions/3", "rules.yaml"), Stays("versions/3`, which is missing")),
            (|root| write(root, "versions/3", rules(40)), Serves(40)),
            (|root| link(root, "rules.yaml", "rules.yaml"), Stays("rules.yaml")),
            (
                |root| {
                    // As `ln -sfn` does it.
                    remove(root, "rules.yaml");
                    std::os::unix::fs::symlink("versions/2", root.join("rules.yaml")).unwrap();
                },
                Serves(30),
            ),
        ],
    },
    Trick {
        name: "a mounted configuration",
        path: "rules.yaml",
        set_up: mount_first,
        steps: &[(mount_second, Serves(20)), (mount_third, Serves(30))],
    },
    Trick {
        name: "a mounted configuration, named by its directory",
        path: "",
        set_up: mount_first,
        steps: &[(mount_second, Serves(20)), (mount_third, Serves(30))],
    },
    Trick {
        name: "a link above it",
        path: "current/conf/rules.yaml",
        set_up: |root| {
            for (release, limit) in [("1", 10), ("2", 20)] {
                directory(root, &format!("releases/{release}/conf"));
                write(root, &format!("releases/{release}/conf/rules.yaml"), rules(limit));
            }
            link(root, "releases/1", "current");
        },
        steps: &[
            (|root| link(root, "releases/2", "current"), Serves(20)),
            (|root| write(root, "releases/2/conf/rules.yaml", rules(30)), Serves(30)),
        ],
    },
    Trick {
        name: "a broken link in a directory",
        path: "",
        set_up: plain,
        steps: &[
            (|root| link(root, "nowhere", "more.yaml"), Stays("nowhere`, which is missing")),
            (|root| write(root, "nowhere", rule("more", 5)), Serves(5)),
        ],
    },
];

/// A configuration as Kubernetes mounts it: links to a directory that is swapped whole.
#[cfg(unix)]
fn mount_first(root: &Path) {
    directory(root, "..v1");
    write(root, "..v1/rules.yaml", rules(10));
    link(root, "..v1", "..data");
    link(root, "..data/rules.yaml", "rules.yaml");
}

#[cfg(unix)]
fn mount_second(root: &Path) {
    mount(root, ("..v1", "..v2"), 20);
}

#[cfg(unix)]
fn mount_third(root: &Path) {
    mount(root, ("..v2", "..v3"), 30);
}

/// What Kubernetes does to a mounted configuration.
#[cfg(unix)]
fn mount(root: &Path, (old, new): (&str, &str), limit: u64) {
    directory(root, new);
    write(root, &format!("{new}/rules.yaml"), rules(limit));
    link(root, new, "..data");
    fs::remove_dir_all(root.join(old)).unwrap();
}

fn play(tricks: &[Trick], flags: &[&str]) {
    for trick in tricks {
        let directory = tempdir().unwrap();
        let root = directory.path();
        (trick.set_up)(root);
        let path = root.join(trick.path);
        let mut server = Server::start(&[&["--rules", text(&path)], flags].concat());
        let mut limit = in_force(&server);
        assert_eq!(limit, 10, "{}", trick.name);
        for (number, (act, want)) in trick.steps.iter().enumerate() {
            let at = format!("{}, step {number}", trick.name);
            act(root);
            match want {
                Serves(new) => {
                    server.wait_for_log(IN_FORCE);
                    limit = *new;
                }
                Stays(why) => {
                    let line = server.wait_for_log(WRONG);
                    assert!(line.contains(why) && line.contains(" error "), "{at}: {line}");
                }
                Same => drop(server.wait_for_log(SAME)),
            }
            assert_eq!(in_force(&server), limit, "{at}");
        }
        assert_eq!(server.stop().code, Some(0), "{}", trick.name);
    }
}

#[test]
fn whatever_happens_to_a_file_the_right_rules_are_in_force() {
    play(FILES, &EVENTS);
}

#[test]
fn directories_of_rules_are_watched() {
    play(DIRECTORIES, &EVENTS);
}

#[cfg(unix)]
#[test]
fn links_are_followed_wherever_they_change() {
    play(LINKS, &EVENTS);
}

#[test]
fn without_events_files_are_looked_at() {
    let flags = ["--rules-watch", "poll", "--rules-look-interval", "50ms"];
    play(&FILES[..3], &flags);
    play(&DIRECTORIES[..1], &flags);
    #[cfg(unix)]
    play(&LINKS[1..2], &flags);
}

/// Every file that the compiler is known to refuse, and some that it never gets to see.
#[test]
fn broken_rules_replace_nothing_and_are_told_of() {
    let directory = tempdir().unwrap();
    let root = directory.path();
    plain(root);
    let path = root.join("rules.yaml");
    let mut server = Server::start(&[&["--rules", text(&path)], &EVENTS[..]].concat());
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
    limits: [{{ rate: {limit}, algorithm: fixed_window }}]
    on_change: {on_change}
  - {{ name: other, match: {{ path: /other }}, key: '{{user}}', limits: [{other}/day] }}
"
            )
        };
        let path = file(directory.path(), "rules.yaml", rules("100/day", 1));
        let mut server = Server::start(&[&["--rules", text(&path)], &EVENTS[..]].concat());
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
    let mut server = Server::spawn(command).expect("it starts");
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
    let mut server = match Server::spawn(command) {
        Ok(server) => server,
        // Not every machine lets users make namespaces; a unit test has a fake in any case.
        Err(ended) if ended.code != Some(0) && !ended.stderr.contains("tollgate") => return,
        Err(ended) => panic!("{ended:?}"),
    };
    let line = server.wait_for_log("rules files are looked at every second, not watched");
    assert!(line.contains("fs.inotify.max_user_watches"), "{line}");
    for limit in [20, 30] {
        write(directory.path(), "rules.yaml", rules(limit));
        server.wait_for_log(IN_FORCE);
        assert_eq!(in_force(&server), limit);
    }
    assert_eq!(server.stop().stderr.matches("looked at every second").count(), 1);
}

#[cfg(unix)]
#[test]
fn a_hangup_reads_the_rules_again() {
    let directory = tempdir().unwrap();
    let path = file(directory.path(), "rules.yaml", rules(10));
    let mut server = Server::start(&["--rules", text(&path), "--rules-watch", "off"]);
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
    let mut server = Server::start(&[&["--rules", text(&path)], &EVENTS[..]].concat());
    let put = |server: &Server, text: &str| {
        let mut admin = Client::connect(server.admin());
        admin.request("PUT", "/api/rules", &[("x-tollgate-admin", "1")], text).status
    };
    // Whether the files are wrong, whether what was put last is, and what the gauge says.
    let told = |server: &Server| {
        let mut admin = Client::connect(server.admin());
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
    let mut server = Server::start(&["--rules", text(&path), "--rules-watch", "poll"]);
    let line = server.wait_for_log("rules files are looked at every second, not watched");
    assert!(line.contains(" info "), "{line}");
}

/// Whoever is one too many is not told that the rules are wrong.
#[test]
fn too_many_who_ask_are_told_to_ask_again() {
    // Fewer than the door lets in from one address, more than may wait.
    const CLIENTS: usize = 30;
    const TRIES: usize = 1_000;
    let directory = tempdir().unwrap();
    // Large, so that reading it takes a while.
    let comment = format!("# {}\n", "x".repeat(3 << 20));
    let path = file(directory.path(), "rules.yaml", comment + &rules(10));
    let server = Server::start(&["--rules", text(&path), "--rules-watch", "off"]);
    let door = server.admin();
    let seen = AtomicBool::new(false);
    let ask = || {
        let mut admin = Client::connect(door);
        for _ in 0..TRIES {
            if seen.load(Ordering::Relaxed) {
                break;
            }
            let answer = admin.request("POST", "/api/reload", &[("x-tollgate-admin", "1")], "");
            match answer.status {
                200 => {}
                503 => {
                    assert!(answer.body.contains("ask again"), "{answer:?}");
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
