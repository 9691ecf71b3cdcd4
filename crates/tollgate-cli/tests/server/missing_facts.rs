//! Questions that name nobody: an error that says what is missing, unless the operator lets them pass.

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::harness::{TollgateProcess, file, run, text};
use crate::server::shared::metric;

const RULES: &str = "
identify: { user: { header: x-user } }
rules:
  - { name: api, match: { path: /api }, key: '{user|ip}', limits: [1000/hour] }
  - { name: daily, match: { path: /daily }, key: '{user}:{header.x-tenant}', limits: [1000/hour] }
  - { name: open, match: { path: /open }, key: global, limits: [1000/hour] }
";

fn serve(flags: &[&str]) -> (TollgateProcess, TempDir) {
    let directory = tempdir().unwrap();
    let rules = file(directory.path(), "rules.yaml", RULES);
    (TollgateProcess::start(&[&["--rules", text(&rules)], flags].concat()), directory)
}

#[test]
fn a_question_that_names_nobody_is_an_error() {
    let (mut server, _rules) = serve(&[]);
    let want = json!({
        "allowed": false,
        "error": "Bad Request",
        "message": "No rule could be applied: the rule api counts by {user|ip}, and this request has no \
            user or ip. Send it (an empty string counts as missing), or let such requests pass with --missing-facts \
            allow.",
        "reason": "missing_facts",
        "rule": "api",
        "missing": [["user", "ip"]],
    });
    for path in ["/v1/check", "/v1/reserve", "/v1/refund"] {
        for body in [r#"{"path":"/api"}"#, r#"{"path":"/api","user":""}"#] {
            let answer = server.post(path, body);
            assert_eq!((answer.status, answer.json()), (400, want.clone()), "{path} {body}");
            assert_eq!(answer.header("x-ratelimit-limit"), None);
        }
    }
    let daily = server.post("/v1/check", r#"{"path":"/daily","ip":"192.0.2.1"}"#);
    assert_eq!(
        (daily.status, &daily.json()["missing"]),
        (400, &json!([["user"], ["header.x-tenant"]]))
    );
    for body in [
        r#"{"path":"/api","ip":"192.0.2.1"}"#,
        r#"{"path":"/daily","user":"1","headers":{"x-tenant":"a"}}"#,
        r#"{"path":"/open"}"#,
        r#"{"path":"/other"}"#,
    ] {
        assert_eq!(server.post("/v1/check", body).status, 200, "{body}");
    }
    let batch = r#"[{"path":"/api","user":"1"},{"path":"/api"},{"path":"/api","user":"1"}]"#;
    let batch = server.post("/v1/check/batch", batch);
    let Value::Array(answers) = batch.json() else { panic!("{batch:?}") };
    assert_eq!((batch.status, &answers[1]), (200, &want), "in its place");
    assert_eq!((&answers[0]["remaining"], &answers[2]["remaining"]), (&999.into(), &998.into()));
    assert_eq!(metric(&server, "tollgate_unanswered_total"), 8.0);
    // One line a minute and rule.
    let line = server.wait_for_log("rule=api");
    assert!(line.contains("lacks facts") && line.contains("user|ip"), "{line}");
    let line = server.wait_for_log("rule=daily");
    assert!(line.contains("user,header.x-tenant"), "{line}");
    let log = server.stop().stderr;
    assert_eq!(log.matches("lacks facts").count(), 2, "{log}");
}

#[test]
fn proxies_are_answered_as_ever_and_the_log_warns() {
    let (mut server, _rules) = serve(&[]);
    let headers = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/daily")];
    let passes = server.request("GET", "/v1/forward-auth", &headers, "");
    assert_eq!(passes.status, 200);
    server.wait_for_log("rule=daily");
    let json = r#"{"domain":"d","descriptors":[{"entries":[{"key":"path","value":"/api"}]}]}"#;
    assert_eq!(server.post("/json", json).status, 200);
    server.wait_for_log("rule=api");
    assert_eq!(metric(&server, "tollgate_missing_facts_total"), 2.0);
    assert_eq!(metric(&server, "tollgate_unanswered_total"), 0.0);
}

#[test]
fn an_operator_can_let_them_pass() {
    let directory = tempdir().unwrap();
    let config = file(directory.path(), "settings.yaml", "missing-facts: allow\n");
    for flags in [["--missing-facts", "allow"], ["--config", text(&config)]] {
        let (mut server, _rules) = serve(&flags);
        let answer = server.check(r#"{"path":"/api"}"#);
        assert_eq!((&answer["allowed"], &answer["rule"]), (&true.into(), &Value::Null));
        let reserved = server.post("/v1/reserve", r#"{"path":"/api"}"#);
        assert_eq!(reserved.status, 200);
        let id = reserved.json()["reservation"].as_str().expect("a name").to_string();
        let commit = format!(r#"{{"reservation":"{id}","cost":15}}"#);
        assert_eq!(server.post("/v1/commit", &commit).status, 200);
        server.wait_for_log("rule=api");
    }
    let wrong = run(&["serve", "--missing-facts", "maybe"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.contains("refuse") && wrong.stderr.contains("allow"), "{wrong:?}");
}

#[test]
fn ask_says_which_flags_are_missing() {
    let (server, _rules) = serve(&[]);
    let url = format!("http://{}", server.http());
    let asked = run(&["ask", "--server", &url, "--path", "/api"]);
    assert_eq!(asked.code, Some(1));
    assert!(asked.stderr.contains("the rule api counts by {user|ip}"), "{asked:?}");
    assert!(asked.stderr.contains("hint: add --user VALUE or --ip ADDR"), "{asked:?}");
}
