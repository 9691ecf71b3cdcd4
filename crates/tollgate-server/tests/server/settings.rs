//! Flags, environment, file: who wins, and what is wrong with them.

use tempfile::tempdir;

use crate::harness::{Server, file, run, text, tollgate};

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
            "write any of rules, limit, rules-watch, missing-facts, http",
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
    let rows: [(&[&str], &str); 15] = [
        (&["--http", "here"], "such as 127.0.0.1:8080"),
        (&["--grpc", "here"], "such as 127.0.0.1:8080"),
        (&["--resp", "127.0.0.1"], "such as 127.0.0.1:8080"),
        (&["--store", "redis://"], "write"),
        (&["--store", "mysql://h"], "there is no store"),
        (&["--store", "redis://h", "--snapshot", "x"], "leave out --snapshot"),
        (&["--second-store", "big=redis://h"], "write --store redis://"),
        (&["--store", "redis://h", "--second-store", "redis://h"], "write NAME=URL"),
        (&["--store-timeout", "2s"], "write 1ms to 1s"),
        (&["--key-prefix", "a b"], "without spaces"),
        (&["--key-prefix", "a{b}"], "without spaces and braces"),
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
fn passwords_of_urls_are_not_repeated() {
    let directory = tempdir().unwrap();
    const STORE: &str = "redis://u:canary@h:6379/x";
    const SERVER: &str = "http://u:canary@h:6379";
    let config = file(directory.path(), "tollgate.yaml", format!("store: {STORE}\n"));
    // command, environment, exit code
    type Row<'a> = (&'a [&'a str], Option<(&'a str, &'a str)>, i32);
    let rows: [Row<'_>; 6] = [
        (&["serve", "--store", STORE], None, 2),
        (&["serve"], Some(("TOLLGATE_STORE", STORE)), 2),
        (&["serve", "--config", text(&config)], None, 1),
        (&["ask", "--server", SERVER], None, 2),
        (&["ask"], Some(("TOLLGATE_SERVER", SERVER)), 2),
        (&["keys", "top"], Some(("TOLLGATE_ADMIN_URL", SERVER)), 2),
    ];
    for (args, environment, code) in rows {
        let ended = tollgate().args(args).envs(environment).output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(code), "{args:?}: {told}");
        assert!(told.contains("invalid value for '--"), "{args:?}: {told}");
        assert!(!told.contains("canary"), "{args:?}: {told}");
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
fn the_reference_has_every_setting() {
    let reference = include_str!("../../../../docs/reference/command-line.md");
    let help = run(&["serve", "--help"]).stdout;
    let flags = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    let flags: Vec<_> = flags.filter_map(|line| line.split_once(" <")).collect();
    assert!(flags.len() > 20, "{flags:?}");
    for (flag, _) in flags {
        let variable = format!("`TOLLGATE_{}`", flag.replace('-', "_").to_uppercase());
        let row = reference.lines().find(|line| line.starts_with(&format!("| `--{flag} ")));
        assert!(row.is_some_and(|row| row.contains(&variable)), "--{flag}: {row:?}");
    }
}

#[test]
fn prometheus_scrapes_the_server_of_the_guide() {
    let guide = include_str!("../../../../docs/guides/monitoring.md");
    let scraped = include_str!("../../../../examples/prometheus/prometheus.yml");
    let (_, after) = guide.split_once("tollgate serve --rules rules.yaml --admin ").unwrap();
    let address = after.lines().next().unwrap();
    assert!(scraped.contains(&format!("targets: [\"{address}\"]")), "{address}");
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
