//! Logs: refusals in them, what strangers can write into them, and what happens when nobody reads.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::harness::{TestHttpClient, TollgateProcess, file, text, tollgate};
use crate::server::exposition::ParsedExposition;

const REFUSED: &str = "a request was refused";

/// A server with one rule for each user, and these lines beside it.
fn serve(settings: &str, flags: &[&str]) -> (TollgateProcess, TempDir) {
    let directory = tempdir().unwrap();
    let rules =
        format!("{settings}rules:\n  - {{ name: api, key: '{{user|ip}}', limits: [1/hour] }}\n");
    let rules = file(directory.path(), "rules.yaml", rules);
    (TollgateProcess::start(&[&["--rules", text(&rules)], flags].concat()), directory)
}

/// The lines of a log in JSON that tell of this event.
fn events(log: &str, event: &str) -> Vec<Value> {
    let read = |line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{line}"));
    log.lines().map(read).filter(|line| line["event"] == event).collect()
}

fn dropped(server: &TollgateProcess) -> f64 {
    let page = ParsedExposition::of_text(&server.admin_get("/metrics", &[]).body);
    page.value("tollgate_log_lines_dropped_total", &[])
}

#[test]
fn a_refusal_is_told_with_its_rule_and_without_its_caller() {
    let directory = tempdir().unwrap();
    let secret = file(directory.path(), "secret", "0123456789abcdef0123456789abcdef\n");
    let with_secret = ["--log-format", "json", "--key-secret-file", text(&secret)];
    let refuse = |settings: &str, flags: &[&str]| {
        let (server, _rules) = serve(settings, flags);
        for _ in 0..2 {
            server.check(r#"{"user":"canary"}"#);
        }
        let ended = server.stop();
        let line = events(&ended.stderr, REFUSED).remove(0);
        (line, ended.stderr)
    };
    let (line, log) = refuse("", &with_secret);
    assert!(!log.contains("canary"), "{log}");
    let fields = ["level", "rule", "limit", "verdict", "reason"];
    let fields = fields.map(|name| line[name].as_str().unwrap());
    assert_eq!(fields, ["warn", "api", "1/hour", "refused", "over_limit"]);
    assert_eq!(line["refused_since"], 1, "a number");
    let wait_ms = line["retry_after"].as_str().and_then(|wait| wait.strip_suffix("ms"));
    let wait_ms: u64 = wait_ms.unwrap().parse().unwrap();
    assert!(wait_ms <= 3_600_000, "{line}");
    assert_eq!(line["retry_after_ms"], wait_ms, "the same as a number");
    let name = line["key"].as_str().unwrap();
    assert!(name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");

    let (again, _) = refuse("", &with_secret);
    assert_eq!(again["key"], line["key"], "the same caller, after a restart");
    let (other, _) = refuse("", &["--log-format", "json"]);
    assert_ne!(other["key"], line["key"], "under another secret");
    let (plain, _) = refuse("log_keys: plain\n", &with_secret);
    assert_eq!(plain["key"], "user=canary");
}

#[test]
fn the_caller_of_a_line_can_be_found() {
    let (server, _rules) = serve("", &["--log-format", "json"]);
    for user in ["42", "43", "43"] {
        server.check(&format!(r#"{{"user":"{user}"}}"#));
    }
    let top = server.admin_get("/api/top?by=refusals", &[]).json();
    let line = events(&server.stop().stderr, REFUSED).remove(0);
    let found = top["top"].as_array().unwrap().iter().find(|one| one["hash"] == line["key"]);
    assert_eq!(found.expect("the hash of the line")["key"], "user=43");
}

#[test]
fn many_refusals_are_few_lines_that_say_how_many_there_were() {
    let (server, _rules) = serve("", &["--log-format", "json"]);
    let body = format!("[{}]", vec![r#"{"user":"42"}"#; 1_000].join(","));
    for _ in 0..20 {
        assert_eq!(server.post("/v1/check/batch", &body).status, 200);
    }
    let lines = events(&server.stop().stderr, REFUSED);
    let since = |line: &Value| line["refused_since"].as_u64().unwrap();
    // One a second: 19,999 refusals do not take a minute and a half.
    assert!((1..100).contains(&lines.len()), "{}", lines.len());
    assert_eq!(since(&lines[0]), 1);
    assert!(lines.iter().map(since).sum::<u64>() <= 19_999);
}

#[test]
fn what_does_not_refuse_is_told_less_loudly() {
    let directory = tempdir().unwrap();
    let rules = "rules:
  - { name: watch, key: '{user}', limits: [1/hour], mode: shadow }
  - { name: advice, key: '{user}', limits: [1/day], soft: true }
";
    let rules = file(directory.path(), "rules.yaml", rules);
    let server = TollgateProcess::start(&["--rules", text(&rules), "--log-format", "json"]);
    for _ in 0..2 {
        assert_eq!(server.check(r#"{"user":"42"}"#)["allowed"], true);
    }
    let log = server.stop().stderr;
    for (event, rule, verdict) in [
        ("a shadow rule would have refused", "watch", "shadow"),
        ("a soft limit is exceeded", "advice", "soft"),
    ] {
        let line = &events(&log, event)[0];
        let fields = ["level", "rule", "verdict"].map(|name| line[name].as_str().unwrap());
        assert_eq!(fields, ["info", rule, verdict]);
    }
    assert!(events(&log, REFUSED).is_empty(), "{log}");
}

#[test]
fn a_ban_has_its_line_also_in_shadow_and_where_rules_are_read() {
    let directory = tempdir().unwrap();
    let ban = "limits: [1/hour], ban: { after: 2, within: 1m, for: 15m }";
    let rules = format!(
        "rules:
  - {{ name: login, key: '{{user}}', match: {{ path: /login }}, {ban} }}
  - {{ name: trial, key: '{{user}}', match: {{ path: /trial }}, mode: shadow, {ban} }}
  - {{ name: all, key: '{{user}}', limits: [100/hour] }}
"
    );
    let rules = file(directory.path(), "rules.yaml", &rules);
    let server = TollgateProcess::start(&["--rules", text(&rules), "--log-format", "json"]);
    let check = |path: &str| server.check(&format!(r#"{{"user":"canary","path":"{path}"}}"#));
    let allowed = (0..5).filter(|_| check("/trial")["allowed"] == true).count();
    assert_eq!(allowed, 5, "a ban in shadow blocks nobody");
    let answers: Vec<_> = (0..5).map(|_| check("/login")).collect();
    let last = answers.last().unwrap();
    assert_eq!(last["reason"], "blocked");
    let listed = server.admin_get("/api/rules", &[]).json();
    let rule = |name: &str| {
        let rules = listed["rules"].as_array().unwrap();
        rules.iter().find(|rule| rule["name"] == name).unwrap().clone()
    };
    let (login, trial, all) = (rule("login"), rule("trial"), rule("all"));
    assert_eq!(login["ban"], "2 refusals within 60 s block the caller for 15 min");
    assert_eq!([&login["bans"], &login["shadow_bans"], &trial["bans"]], [1, 0, 0]);
    assert_eq!(trial["shadow_bans"], 1);
    assert!(trial["ban"].as_str().unwrap().contains("would block"), "{trial}");
    assert_eq!(all["ban"], Value::Null);
    let tally = &all["tally"];
    assert_eq!([&tally["allowed"], &tally["refused_by_other"]], [6, 4], "of ten requests");
    let explain = r#"{"user":"canary","path":"/login"}"#;
    let header = [("X-Tollgate-Admin", "1")];
    let mut admin = TestHttpClient::connect(server.admin());
    let told = admin.request("POST", "/api/explain", &header, explain).json();
    let why = told["rules"][0]["why"].as_str().unwrap();
    assert!(why.contains("2 refusals within"), "{why}");
    assert_eq!(told["rules"][0]["ban"], login["ban"]);
    let metrics = server.admin_get("/metrics", &[]).body;
    assert!(metrics.contains("\ntollgate_bans_total 1\n"), "{metrics}");
    assert!(metrics.contains("\ntollgate_bans_shadow_total 1\n"), "{metrics}");
    let log = server.stop().stderr;
    assert!(!log.contains("canary"), "{log}");
    for (event, rule, level) in [
        ("a caller was banned", "login", "warn"),
        ("a shadow rule would have banned a caller", "trial", "info"),
    ] {
        let lines = events(&log, event);
        let [line] = &lines[..] else { panic!("{log}") };
        assert_eq!([&line["rule"], &line["level"]], [rule, level]);
        assert_eq!(line["for_ms"], 900_000);
        assert_eq!(line["key"].as_str().map(str::len), Some(16));
        assert!(line["until"].as_str().unwrap().ends_with('Z'), "{line}");
    }
}

/// What somebody may call himself, as it stands in JSON, and what must not be in a log.
fn hostile_names() -> Vec<String> {
    let mut names: Vec<String> = [
        r"a\r\n2026-11-15T00:00:00.000Z error forged",
        r"\u001b[2J\u001b]0;title\u0007",
        r"\u202egnp.exe\u2066\u200f",
        r#"\"}{\"level\":\"error\",\"event\":\"forged\""#,
        r"\u0000\u0008\u007f\u0085\u009b31m",
        r"\u2028\u2029",
        r"'`$(reboot)`' = \\ %s {}",
        r"\ud83d\ude00 ü",
    ]
    .map(String::from)
    .to_vec();
    names.push("x".repeat(10 << 10));
    names
}

/// Characters that move a cursor, end a line or turn the reading direction.
fn is_odd(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[test]
fn hostile_keys_stay_in_their_line() {
    let names = hostile_names();
    // A rule for each, because each may write a line.
    let rule = |index| {
        format!(
            "  - {{ name: r{index}, match: {{ path: /{index} }}, key: '{{user}}', limits: [1/hour] }}\n"
        )
    };
    let rules = (0..names.len()).map(rule).collect::<String>();
    let directory = tempdir().unwrap();
    let rules = format!("log_keys: plain\nrules:\n{rules}");
    let rules = file(directory.path(), "rules.yaml", rules);
    for format in ["text", "json"] {
        let server = TollgateProcess::start(&["--rules", text(&rules), "--log-format", format]);
        for (index, name) in names.iter().enumerate().flat_map(|one| [one, one]) {
            server.check(&format!(r#"{{"user":"{name}","path":"/{index}"}}"#));
        }
        let log = server.stop().stderr;
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(REFUSED)).collect();
        assert_eq!(lines.len(), names.len(), "{log}");
        for line in lines {
            assert!(line.contains("user=") && !line.contains(is_odd), "{line:?}");
            assert!(line.len() < 2_000, "{} bytes", line.len());
        }
        // What looks like a line of its own stands in another.
        assert!(
            log.lines().all(|line| !line.contains("forged") || line.contains(REFUSED)),
            "{log}"
        );
        if format == "json" {
            assert_eq!(events(&log, REFUSED).len(), names.len());
            assert!(events(&log, "forged").is_empty(), "{log}");
        }
    }
}

#[test]
fn header_fields_that_are_no_text_reach_the_log_escaped() {
    let settings =
        "log_keys: plain\nidentify:\n  trusted_peers: [127.0.0.1]\n  user: { header: x-user-id }\n";
    let (server, _rules) = serve(settings, &["--log-format", "json"]);
    let mut client = TestHttpClient::connect(server.http());
    for _ in 0..2 {
        let request = b"GET /v1/forward-auth HTTP/1.1\r\nhost: localhost\r\n\
            x-forwarded-uri: /\xff\xfe\r\nx-forwarded-method: GET\r\nx-user-id: \xff\xfe\x80\r\n\r\n";
        client.send(request).unwrap();
        client.receive(true).unwrap();
    }
    let log = server.stop().stderr;
    let lines = events(&log, REFUSED);
    assert_eq!(lines.len(), 1, "{log}");
    assert_eq!(lines[0]["key"], "user=%FF%FE%80");
}

#[cfg(target_os = "linux")]
#[test]
fn a_log_that_nobody_reads_stops_nobody() {
    // As many rules as lines may be written in a second, each refusing.
    let rule = |index| {
        format!(
            "  - {{ name: r{index}, match: {{ path: /{index} }}, key: '{{user}}', limits: [1/hour] }}\n"
        )
    };
    let rules = (0..40).map(rule).collect::<String>();
    let directory = tempdir().unwrap();
    let rules = file(directory.path(), "rules.yaml", format!("rules:\n{rules}"));
    let (reader, mut writer) = std::io::pipe().unwrap();
    // The pipe is full before the server begins.
    writer.write_all(&[b'x'; 64 << 10]).unwrap();
    let flags = ["--rules", text(&rules), "--log-lines-waiting", "4"];
    let server = TollgateProcess::start_with(&flags, |command| {
        command.stderr(writer);
    });
    let mut client = TestHttpClient::connect(server.http());
    let mut refused = 0;
    for turn in 0..2_000 {
        let body = format!(r#"{{"user":"42","path":"/{}"}}"#, turn % 40);
        refused += u32::from(client.request("POST", "/v1/check", &[], &body).status == 429);
    }
    assert_eq!(refused, 1_960);
    // One line is being written and four wait.
    assert!(dropped(&server) >= 30.0, "{}", dropped(&server));
    assert_eq!(server.stop().code, Some(0), "it does not wait for the reader either");
    drop(reader);
}

#[cfg(target_os = "linux")]
#[test]
fn a_log_that_cannot_be_written_stops_nobody() {
    let full = || Stdio::from(OpenOptions::new().write(true).open("/dev/full").unwrap());
    let gone = || Stdio::from(std::io::pipe().unwrap().1);
    for sink in [full as fn() -> Stdio, gone] {
        let server = TollgateProcess::start_with(&["--limit", "1/hour"], |command| {
            command.stderr(sink());
        });
        for _ in 0..3 {
            server.check(r#"{"user":"42"}"#);
        }
        // Lines are written by a thread of their own: ask until it has tried.
        let mut asked = 0;
        while dropped(&server) < 1.0 {
            asked += 1;
            assert!(asked < 10_000, "the line was not counted");
        }
        assert_eq!(server.stop().code, Some(0));
    }
}

#[cfg(unix)]
#[test]
fn a_closed_standard_error_stops_nobody() {
    let program = tollgate();
    let mut command = Command::new("sh");
    // No listener at a port that a server beside this one may have.
    let listeners = "--http 127.0.0.1:0 --admin 127.0.0.1:0 --grpc none --resp none";
    let flags = format!("serve --limit 1/hour {listeners} --max-keys 10000");
    command.arg("-c").arg(format!("exec \"$0\" {flags} 2>&-")).arg(program.get_program());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let server = TollgateProcess::spawn(command).unwrap();
    for _ in 0..3 {
        server.check(r#"{"user":"42"}"#);
    }
    assert_eq!(server.admin_get("/livez", &[]).status, 200);
    assert_eq!(server.stop().code, Some(0));
}
