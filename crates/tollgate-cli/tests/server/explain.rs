//! `/api/explain`: the story of a decision, and its agreement with the decision.

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::harness::{TestHttpClient, TestHttpResponse, TollgateProcess, file, text};

const RULES: &str = "
identify: { user: { header: x-user }, api_key: { header: x-key } }
rules:
  - name: search
    match: { path: /search, method: GET, api_key: [topsecret-one, topsecret-two], not: { user: robot } }
    key: '{user|ip}'
    limits: [{ rate: 10/hour, burst: 3 }]
  - { name: any, key: '{ip}', limits: [100/hour] }
  - { name: idle, match: { path: /idle }, key: '{user}', limits: [1/hour], mode: 'off' }
  - { name: trial, match: { path: /search }, key: '{user|ip}', limits: [1/day], mode: shadow }
  - { name: users, match: { path: /users }, key: '{user}', limits: [5/minute] }
exempt: { user: [boss] }
";

struct ExplainFixture {
    server: TollgateProcess,
    _directory: TempDir,
}

impl ExplainFixture {
    fn start(rules: &str, flags: &[&str]) -> ExplainFixture {
        let directory = tempdir().unwrap();
        let rules = file(directory.path(), "rules.yaml", rules);
        let server = TollgateProcess::start(&[&["--rules", text(&rules)], flags].concat());
        ExplainFixture { server, _directory: directory }
    }

    fn send(&self, method: &str, path: &str, body: &str) -> TestHttpResponse {
        let headers = [("x-tollgate-admin", "1")];
        TestHttpClient::connect(self.server.admin()).request(method, path, &headers, body)
    }

    fn explain(&self, body: &Value) -> Value {
        let answer = self.send("POST", "/api/explain", &body.to_string());
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }
}

fn rule<'a>(told: &'a Value, name: &str) -> &'a Value {
    let rules = told["rules"].as_array().unwrap();
    rules.iter().find(|rule| rule["name"] == name).unwrap_or_else(|| panic!("{name}: {told:#}"))
}

#[test]
fn a_story_names_what_applies_and_what_does_not() {
    let fixture = ExplainFixture::start(RULES, &[]);
    let body = json!({ "path": "//search?q=1", "method": "GET", "ip": "192.0.2.1", "user": "anna",
        "api_key": "topsecret-one", "cost": 3 });
    let told = fixture.explain(&body);
    assert_eq!(told["refusal"], Value::Null);
    assert_eq!(told["decision"]["allowed"], true, "{told:#}");
    let results =
        ["search", "any", "idle", "trial", "users"].map(|name| rule(&told, name)["result"].clone());
    assert_eq!(results, ["allowed", "allowed", "off", "shadow", "not_matched"]);
    let search = rule(&told, "search");
    assert_eq!(search["key"]["text"], "user=anna");
    assert_eq!(search["key"]["template"], "{user|ip}");
    assert_eq!(search["cost"], json!({ "units": 3, "why": "stated by the request" }));
    let texts: Vec<&str> = search["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["text"].as_str().unwrap())
        .collect();
    assert!(texts.contains(&"method is GET") && texts.contains(&"not user is robot"), "{texts:?}");
    let arithmetic = search["limits"][0]["arithmetic"].as_str().unwrap();
    assert!(arithmetic.starts_with("bucket of 3, 3 tokens at "), "{arithmetic}");
    assert!(arithmetic.ends_with("needs 3: fits, 0 left"), "{arithmetic}");
    assert!(rule(&told, "users")["why"].as_str().unwrap().contains("path matches /users"));
    // Nothing was charged, and no secret of the rules or of the request is shown.
    assert_eq!(fixture.explain(&body)["decision"]["allowed"], true);
    assert!(!told.to_string().contains("topsecret"), "{told:#}");
}

#[test]
fn a_refusal_is_told_in_numbers() {
    let fixture = ExplainFixture::start(RULES, &[]);
    let body = json!({ "path": "/search", "method": "GET", "ip": "192.0.2.1", "api_key": "topsecret-two" });
    for _ in 0..3 {
        assert_eq!(fixture.server.check(&body.to_string())["allowed"], true);
    }
    let told = fixture.explain(&body);
    assert_eq!(rule(&told, "search")["result"], "refused");
    let summary = told["summary"].as_str().unwrap();
    assert!(
        summary.starts_with("Refused by search (10/hour burst 3): bucket of 3, 0"),
        "{summary}"
    );
    assert_eq!(told["retry"]["allowed"], true);
    let after = told["retry"]["after_ms"].as_u64().unwrap();
    assert!((300_000..=360_000).contains(&after), "{after}");
    assert_eq!(told["decision"]["retry_after_ms"], after);
    assert_eq!(fixture.server.check(&body.to_string())["reason"], "over_limit");
}

#[test]
fn requests_that_say_too_little_or_too_much_are_answered() {
    let fixture = ExplainFixture::start(RULES, &[]);
    let told = fixture.explain(&json!({ "user": "boss", "ip": "192.0.2.1" }));
    assert_eq!(rule(&told, "any")["result"], "exempt");
    let told = fixture.explain(&json!({ "path": "/users", "ip": "192.0.2.1" }));
    assert_eq!(rule(&told, "users")["result"], "missing_facts");
    let told = fixture.explain(&json!({ "user": "a" }));
    assert_eq!(told["decision"]["reason"], "missing_facts", "{told:#}");
    let bad = [
        ("POST", "/api/explain", "{\"paht\":1}", 400),
        ("POST", "/api/explain", "[", 400),
        ("POST", "/api/explain?x=1", "{}", 400),
        ("PUT", "/api/explain", "{}", 405),
    ];
    for (method, path, body, status) in bad {
        assert_eq!(fixture.send(method, path, body).status, status, "{method} {path} {body}");
    }
}
