//! Flags, environment, file: who wins, and what is wrong with them.

use tempfile::tempdir;

use crate::harness::{Server, file, run, text};

/// The limit that a server has, as `X-RateLimit-Limit` tells it.
fn limit_of(server: &Server) -> String {
    let answer = server.post("/v1/check", r#"{"user":"42"}"#);
    answer.header("x-ratelimit-limit").expect("a limit").to_string()
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let directory = tempdir().unwrap();
    let config =
        file(directory.path(), "tollgate.yaml", "# mine\nlimit: 1/hour # one\nmax_keys: 100\n");
    let config = ["--config", text(&config)];
    let flag = [&config[..], &["--limit", "3/hour"]].concat();
    // flags, environment | limit
    let rows = [
        (&config[..], None, "1"),
        (&config[..], Some("2/hour"), "2"),
        (&flag[..], Some("2/hour"), "3"),
        (&flag[..], None, "3"),
    ];
    for (flags, environment, want) in rows {
        let server = Server::start_with(flags, |command| {
            if let Some(limit) = environment {
                command.env("TOLLGATE_LIMIT", limit);
            }
        });
        assert_eq!(limit_of(&server), want, "{flags:?} {environment:?}");
    }
    let server = Server::start_with(&[], |command| {
        command.env("TOLLGATE_CONFIG", config[1]);
    });
    assert_eq!(limit_of(&server), "1");
}

#[test]
fn wrong_settings_are_told_with_their_line() {
    let directory = tempdir().unwrap();
    let rows = [
        (
            "http: 127.0.0.1:0\nhtpp: x\n",
            ":2: there is no setting \"htpp\"",
            "write any of rules, limit, rules-watch, http",
        ),
        ("limit: 5\n", ":1: ", "write `100/minute`"),
        ("max-keys: 0\n", ":1: ", "max-keys"),
        ("log_format: xml\n", ":1: ", "text, json"),
        ("admin: 1\nadmin: 2\n", ":2: \"admin\" stands here and in line 1", ""),
        ("limit:\n", ":1: \"limit\" has no value", ""),
        ("http:\n  addr: x\n", ":2: ", ""),
    ];
    for (content, want, hint) in rows {
        let config = file(directory.path(), "tollgate.yaml", content);
        let flags = ["--config", text(&config)];
        let Err(ended) = Server::try_start(&flags, |_| {}) else { panic!("{content} is taken") };
        assert_eq!(ended.code, Some(1), "{content}: {ended:?}");
        assert!(ended.stderr.contains(&format!("tollgate.yaml{want}")), "{content}: {ended:?}");
        assert!(ended.stderr.contains(hint), "{content}: {ended:?}");
    }
    let ended = run(&["serve", "--config", "no-such-file.yaml"]);
    assert!(ended.stderr.contains("cannot read the settings file no-such-file.yaml"), "{ended:?}");
}

#[test]
fn wrong_flags_say_what_to_write() {
    let rows: [(&[&str], &str); 8] = [
        (&["--http", "here"], "such as 127.0.0.1:8080"),
        (&["--grpc", "127.0.0.1:8081"], "this version has no such door"),
        (&["--resp", "127.0.0.1:6380"], "this version has no such door"),
        (&["--store", "redis://localhost"], "comes with a later version"),
        (&["--store", "disk"], "there is no such store"),
        (&["--limit", "fast"], "fast"),
        (&["--limit", "1/s", "--rules", "x"], "exclude each other"),
        (&["--snapshot-interval", "60"], "write a number and a unit"),
    ];
    for (flags, want) in rows {
        let ended = run(&[&["serve"], flags].concat());
        assert_eq!(ended.code, Some(2), "{flags:?}: {ended:?}");
        assert!(ended.stderr.contains(want), "{flags:?}: {ended:?}");
    }
}

#[test]
fn accepted_as_they_are() {
    let flags = ["--grpc", "none", "--resp", "none", "--store", "memory", "--workers", "1"];
    let server = Server::start(&[&flags[..], &["--limit", "7/hour"]].concat());
    assert_eq!(limit_of(&server), "7");
}

#[test]
fn help_teaches() {
    let help = run(&["serve", "--help"]);
    assert_eq!(help.code, Some(0));
    for want in ["Run the server", "Examples", "TOLLGATE_HTTP", "tollgate serve --limit"] {
        assert!(help.stdout.contains(want), "{want}");
    }
    assert!(!help.stdout.contains("header-timeout"), "for tests only");
}

#[test]
fn logs_can_be_json() {
    let server = Server::start(&["--limit", "7/hour", "--log-format", "json"]);
    let ended = server.stop();
    assert!(!ended.stderr.is_empty());
    for line in ended.stderr.lines() {
        let event: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(
            event["event"].is_string() && event["level"].is_string() && event["at"].is_string()
        );
    }
}

#[test]
fn without_flags_there_is_a_demo() {
    let server = Server::start(&[]);
    // facts | rule's limit
    let rows = [
        (r#"{"path":"/api/search","user":"42"}"#, 30),
        (r#"{"path":"/api/upload","user":"42","tier":"pro"}"#, 100),
        (r#"{"path":"/elsewhere","user":"42"}"#, 100),
        (r#"{"path":"/login","method":"POST","ip":"192.0.2.1"}"#, 5),
    ];
    for (facts, max) in rows {
        assert_eq!(server.check(facts)["max"], max, "{facts}");
    }
    let ended = server.stop();
    assert!(
        ended.stderr.contains("curl -i -d") && ended.stderr.contains("tollgate ask"),
        "{ended:?}"
    );
}
