//! What editors, deployments and accidents do to files, step by step, and what has to come of it.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use tempfile::tempdir;

use super::{
    EVENTS, IN_FORCE, OTHER_SECRET, SAME, SECRET, WRONG, in_force, keyed, plain, replace, rule,
    rules, write,
};
use crate::harness::{TollgateProcess, text};

/// What comes of something done to files.
#[derive(Clone, Copy)]
enum ExpectedRules {
    /// This limit is in force.
    Serves(u64),
    /// Nothing changes, and the log says why.
    Stays(&'static str),
    /// What is in force is there again.
    Same,
}

use ExpectedRules::{Same, Serves, Stays};

type FileStep = (fn(&Path), ExpectedRules);

/// A server that reads `path`, and what is done to it.
struct FileScenario {
    name: &'static str,
    path: &'static str,
    set_up: fn(&Path),
    steps: &'static [FileStep],
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

const FILES: &[FileScenario] = &[
    FileScenario {
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
    FileScenario {
        name: "rewritten in place, twice",
        path: "rules.yaml",
        set_up: plain,
        steps: &[
            (|root| write(root, "rules.yaml", rules(20)), Serves(20)),
            (|root| write(root, "rules.yaml", rules(30)), Serves(30)),
        ],
    },
    FileScenario {
        name: "replaced by a rename, twice",
        path: "rules.yaml",
        set_up: plain,
        steps: &[
            (|root| replace(root, "rules.yaml", rules(20)), Serves(20)),
            (|root| replace(root, "rules.yaml", rules(30)), Serves(30)),
        ],
    },
    FileScenario {
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
    FileScenario {
        name: "deleted, then made again",
        path: "rules.yaml",
        set_up: plain,
        steps: &[
            (|root| remove(root, "rules.yaml"), Stays("there is no such file")),
            (|root| write(root, "rules.yaml", rules(20)), Serves(20)),
        ],
    },
    FileScenario {
        name: "renamed away and back",
        path: "rules.yaml",
        set_up: plain,
        steps: &[
            (|root| rename(root, "rules.yaml", "away"), Stays("there is no such file")),
            (|root| rename(root, "away", "rules.yaml"), Same),
            (|root| write(root, "rules.yaml", rules(20)), Serves(20)),
        ],
    },
    FileScenario {
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
    FileScenario {
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
    FileScenario {
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
    FileScenario {
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

const DIRECTORIES: &[FileScenario] = &[
    FileScenario {
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
    FileScenario {
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
const LINKS: &[FileScenario] = &[
    FileScenario {
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
    FileScenario {
        name: "a mounted configuration",
        path: "rules.yaml",
        set_up: mount_first,
        steps: &[(mount_second, Serves(20)), (mount_third, Serves(30))],
    },
    FileScenario {
        name: "a mounted configuration, named by its directory",
        path: "",
        set_up: mount_first,
        steps: &[(mount_second, Serves(20)), (mount_third, Serves(30))],
    },
    FileScenario {
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
    FileScenario {
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

fn run_scenarios(tricks: &[FileScenario], flags: &[&str]) {
    for trick in tricks {
        let directory = tempdir().unwrap();
        let root = directory.path();
        (trick.set_up)(root);
        let path = root.join(trick.path);
        let mut server = TollgateProcess::start(&[&["--rules", text(&path)], flags].concat());
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
    run_scenarios(FILES, &EVENTS);
}

#[test]
fn directories_of_rules_are_watched() {
    run_scenarios(DIRECTORIES, &EVENTS);
}

#[cfg(unix)]
#[test]
fn links_are_followed_wherever_they_change() {
    run_scenarios(LINKS, &EVENTS);
}

#[test]
fn without_events_files_are_looked_at() {
    let flags = ["--rules-watch", "poll", "--rules-look-interval", "50ms"];
    run_scenarios(&FILES[..3], &flags);
    run_scenarios(&DIRECTORIES[..1], &flags);
    #[cfg(unix)]
    run_scenarios(&LINKS[1..2], &flags);
}
