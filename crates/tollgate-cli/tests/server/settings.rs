//! Flags, environment, file: who wins, and what is wrong with them.

use tempfile::tempdir;

use crate::harness::{TollgateProcess, file, run, text, tollgate};

/// The limit that a server has, as `X-RateLimit-Limit` tells it.
fn limit_of(server: &TollgateProcess) -> String {
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
        let server = TollgateProcess::start_with(flags, |command| {
            if let Some(limit) = environment {
                command.env("TOLLGATE_LIMIT", limit);
            }
        });
        assert_eq!(limit_of(&server), want, "{flags:?} {environment:?}");
    }
    let server = TollgateProcess::start_with(&[], |command| {
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
            ":2: unknown setting \"htpp\"",
            "write any of rules, limit, rules-watch, missing-facts, http",
        ),
        ("limit: 5\n", ":1: ", "write `100/minute`"),
        ("max-keys: 0\n", ":1: ", "max-keys"),
        ("log_format: xml\n", ":1: ", "text, json"),
        ("admin: 1\nadmin: 2\n", ":2: `admin` is given twice", ""),
        ("max-keys: 1\nmax_keys: 2\n", ":2: \"max-keys\" is given twice, first in line 1", ""),
        ("limit:\n", ":1: \"limit\" has no value", ""),
        ("http:\n  addr: x\n", ":2: ", ""),
    ];
    for (content, want, hint) in rows {
        let config = file(directory.path(), "tollgate.yaml", content);
        let flags = ["--config", text(&config)];
        let Err(ended) = TollgateProcess::try_start(&flags, |_| {}) else {
            panic!("{content} is taken")
        };
        assert_eq!(ended.code, Some(1), "{content}: {ended:?}");
        assert!(ended.stderr.contains(&format!("tollgate.yaml{want}")), "{content}: {ended:?}");
        assert!(ended.stderr.contains(hint), "{content}: {ended:?}");
    }
    let ended = run(&["serve", "--config", "no-such-file.yaml"]);
    assert!(ended.stderr.contains("cannot read the settings file no-such-file.yaml"), "{ended:?}");
}

#[test]
fn wrong_flags_say_what_to_write() {
    let rows: [(&[&str], &str); 19] = [
        (&["--limit", "-5/minute"], "invalid value '-5/minute' for '--limit <RATE>'"),
        (&["--store-timeout", "-5ms"], "invalid value '-5ms' for '--store-timeout <TIME>'"),
        (&["--max-keys", "-5"], "invalid value '-5' for '--max-keys <N>'"),
        (&["--workers", "-1"], "invalid value '-1' for '--workers <N>'"),
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
        (&["--store", "disk"], "unknown store"),
        (&["--limit", "fast"], "fast"),
        (&["--limit", "1/s", "--rules", "x"], "cannot be used together"),
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
    type PasswordRow<'a> = (&'a [&'a str], Option<(&'a str, &'a str)>, i32);
    let rows: [PasswordRow<'_>; 6] = [
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
        let blamed = environment.map_or("--", |(name, _)| name);
        assert!(told.contains(&format!("invalid value for '{blamed}")), "{args:?}: {told}");
        assert!(!told.contains("canary"), "{args:?}: {told}");
    }
}

#[test]
fn accepted_as_they_are() {
    let flags = ["--grpc", "none", "--resp", "none", "--store", "memory", "--workers", "1"];
    let server = TollgateProcess::start(&[&flags[..], &["--limit", "7/hour"]].concat());
    assert_eq!(limit_of(&server), "7");
}

#[test]
fn help_teaches() {
    let help = run(&["serve", "--help"]);
    assert_eq!(help.code, Some(0));
    for want in ["Run the server", "Examples", "TOLLGATE_HTTP", "tollgate serve --limit"] {
        assert!(help.stdout.contains(want), "{want}");
    }
    assert!(help.stdout.contains("--header-timeout"), "the reference names it");
    assert!(!help.stdout.contains("log-lines-waiting"), "for tests only");
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
    let (_, after) = guide.split_once("curl http://").unwrap();
    let (address, _) = after.split_once("/metrics").unwrap();
    assert!(run(&["serve", "--help"]).stdout.contains(&format!("[default: {address}]")));
    assert!(scraped.contains(&format!("targets: [\"{address}\"]")), "{address}");
}

#[test]
fn logs_can_be_json() {
    let server = TollgateProcess::start(&["--limit", "7/hour", "--log-format", "json"]);
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
    let server = TollgateProcess::start(&[]);
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

/// A value is wrong where it stands: in the environment, whose variable is named, or on the command line.
#[test]
fn wrong_variables_are_blamed_and_not_their_flags() {
    let rows: [(&[&str], (&str, &str), &str); 6] = [
        (&["serve"], ("TOLLGATE_LIMIT", "fast"), "invalid value 'fast' for 'TOLLGATE_LIMIT'"),
        (&["serve"], ("TOLLGATE_MAX_KEYS", "0"), "for 'TOLLGATE_MAX_KEYS'"),
        (&["serve"], ("TOLLGATE_LOG_FORMAT", "xml"), "for 'TOLLGATE_LOG_FORMAT'"),
        (&["serve"], ("TOLLGATE_STORE", "disk"), "invalid value for 'TOLLGATE_STORE'"),
        (&["ask"], ("TOLLGATE_SERVER", "http://8080"), "invalid value for 'TOLLGATE_SERVER'"),
        (&["serve", "--limit", "slow"], ("TOLLGATE_LIMIT", "fast"), "for '--limit <RATE>'"),
    ];
    for (args, variable, want) in rows {
        let ended = tollgate().args(args).envs([variable]).output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{args:?}: {told}");
        assert!(told.contains(want), "{args:?} {variable:?}: {told}");
    }
}

#[test]
fn misspelt_variables_are_told() {
    let server = TollgateProcess::start_with(&["--limit", "7/hour"], |command| {
        command.env("TOLLGATE_LMIT", "1/hour").env("TOLLGATE_PORT_8080_TCP", "tcp://10.0.0.1:8080");
    });
    let told = server.stop().stderr;
    let line = "an environment variable names an unknown setting and is ignored \
                variable=TOLLGATE_LMIT did_you_mean=TOLLGATE_LIMIT";
    assert!(told.contains(line), "{told}");
    assert!(!told.contains("TOLLGATE_PORT"), "Kubernetes sets it: {told}");
}

/// What the guides show of a start is what a start shows.
#[test]
fn the_guide_shows_the_lines_of_a_start() {
    let guide = include_str!("../../../../docs/guides/running.md");
    let (_, after) = guide.split_once("On standard output:\n\n```text\n").expect("the lines");
    let (shown, _) = after.split_once("```").expect("their end");
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let listeners = [
        ("http", server.http()),
        ("grpc", server.grpc()),
        ("resp", server.resp()),
        ("admin", server.admin()),
    ];
    let help = run(&["serve", "--help"]).stdout;
    let default = |listener: &str| {
        let (_, after) = help.split_once(&format!("--{listener} <ADDR>")).expect(listener);
        let (_, after) = after.split_once("[default: ").expect(listener);
        after.split(']').next().unwrap_or_default().to_string()
    };
    let lines =
        listeners.map(|(listener, _)| format!("listening {listener} {}\n", default(listener)));
    assert_eq!(shown, format!("{}ready\n", lines.concat()));
}

/// The page about HTTP explains every word that `decided_by` can be.
#[test]
fn the_reference_has_everybody_who_decides() {
    let reference = include_str!("../../../../docs/reference/http.md");
    let (_, section) = reference.split_once("### Who decided\n").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("its end");
    let document = TollgateProcess::start(&["--limit", "9/hour"]).get("/openapi.json").json();
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    let words = schemas
        .values()
        .find_map(|schema| schema["properties"]["decided_by"]["enum"].as_array().cloned());
    let words = words.expect("the words");
    assert!(words.len() >= 9, "{words:?}");
    for word in words {
        let word = word.as_str().expect("text").to_string();
        assert!(section.contains(&format!("`{word}`")), "{word}");
    }
}
