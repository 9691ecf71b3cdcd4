//! `GET /api/history`: what is counted is in it, exactly once.

use serde_json::{Value, json};
use tempfile::tempdir;
use testkit::wait::until_true;

use crate::harness::{TollgateProcess, file, text};

const RULES: &str = "
rules:
  - { name: api, match: { path: '/api/{*rest}' }, key: '{user}', limits: [5/hour] }
  - { name: trial, match: { path: '/api/{*rest}' }, key: '{user}', limits: [2/hour], mode: shadow }
  - { name: warns, match: { path: /warns }, key: '{user}', limits: [1/hour], soft: true }
  - { name: idle, match: { path: /idle }, key: '{user}', limits: [1/hour] }
";

const OUTCOMES: [&str; 7] =
    ["allowed", "refused", "shadow", "soft", "delayed", "unavailable", "refused_by_other"];

fn history(server: &TollgateProcess, query: &str) -> Value {
    let answer = server.admin_get(&format!("/api/history{query}"), &[]);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// The sum of all steps of each outcome.
fn sums(history: &Value) -> Vec<u64> {
    let sum = |name: &&str| {
        let steps = history[name].as_array().unwrap_or_else(|| panic!("no {name}: {history}"));
        steps.iter().filter_map(Value::as_u64).sum()
    };
    OUTCOMES.iter().map(sum).collect()
}

/// Waits until the history has these sums. More than them is an error at once.
fn wait_for(server: &TollgateProcess, query: &str, want: [u64; 7]) {
    until_true(&format!("{want:?} of {query}"), || {
        let got = sums(&history(server, query));
        assert!(got.iter().zip(want).all(|(got, want)| *got <= want), "{query}: {got:?}");
        got == want
    });
}

#[test]
fn a_history_sums_to_the_counters_of_the_server() {
    let directory = tempdir().unwrap();
    let rules = file(directory.path(), "rules.yaml", RULES);
    let server = TollgateProcess::start(&["--rules", text(&rules)]);
    let send = |path: &str, times: usize| {
        let body = json!({ "path": path, "user": "42" }).to_string();
        (0..times).for_each(|_| drop(server.check(&body)));
    };
    send("/api/x", 9);
    send("/warns", 3);
    for range in ["5m", "1h", "24h"] {
        // Requests: 5 + 3 allowed, 4 refused. Of the shadow rule: 2 of 9 have room.
        wait_for(&server, &format!("?range={range}"), [8, 4, 7, 2, 0, 0, 0]);
        wait_for(&server, &format!("?range={range}&rule=api"), [5, 4, 0, 0, 0, 0, 0]);
        wait_for(&server, &format!("?range={range}&rule=trial"), [2, 0, 7, 0, 0, 0, 0]);
        wait_for(&server, &format!("?rule=idle&range={range}"), [0; 7]);
    }
    // A rule that is gone keeps its past, and one that stays goes on.
    let put = "rules: [{ name: api, key: '{user}', limits: [5/hour] }]";
    let admin = crate::harness::TestHttpClient::connect(server.admin()).request(
        "PUT",
        "/api/rules",
        &[("x-tollgate-admin", "1")],
        put,
    );
    assert_eq!(admin.status, 200, "{admin:?}");
    send("/api/x", 2);
    wait_for(&server, "?range=1h", [8, 6, 7, 2, 0, 0, 0]);
    wait_for(&server, "?range=1h&rule=api", [5, 6, 0, 0, 0, 0, 0]);
    wait_for(&server, "?range=1h&rule=trial", [2, 0, 7, 0, 0, 0, 0]);

    let shown = history(&server, "");
    assert_eq!((&shown["step_s"], &shown["rule"]), (&json!(1), &Value::Null));
    for name in OUTCOMES.iter().chain(&["p50_us", "p99_us"]) {
        assert_eq!(shown[name].as_array().unwrap().len(), 300, "{name}");
    }
    let measured = shown["p99_us"].as_array().unwrap().iter().filter_map(Value::as_f64);
    assert!(measured.fold(0.0, f64::max) > 0.0, "{shown}");
}

#[test]
fn a_wrong_query_is_refused_with_what_there_is() {
    let server = TollgateProcess::start(&["--limit", "1/hour"]);
    // Path; status; part of the message
    let rows = [
        ("/api/history?range=2h", 400, "range is one of 5m, 1h, 24h."),
        ("/api/history?rang=5m", 400, "There is no parameter `rang`: there are range, rule."),
        ("/api/history?range=5m&range=5m", 400, "appears twice"),
        ("/api/history?rule=none", 404, "There is no such rule"),
        ("/api/top?by=luck", 400, "by is one of requests, refusals."),
        ("/api/top?n=0", 400, "n is a number from 1 to 100."),
        ("/api/top?x", 400, "There is no parameter `x`: there are by, n."),
    ];
    for (path, status, message) in rows {
        let answer = server.admin_get(path, &[]);
        assert_eq!(answer.status, status, "{path} {answer:?}");
        assert!(answer.message().contains(message), "{path} {answer:?}");
    }
}
