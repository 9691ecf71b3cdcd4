//! `/api/explain`: the story of a decision, and its agreement with the decision.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::harness::{
    ProcessExit, TestHttpClient, TestHttpResponse, TollgateProcess, file, run, text,
};

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
  - name: sessions
    match: { path: /search, header: { x-auth-token: hidden-token, user-agent: { present: true } } }
    key: '{header.authorization}:{header.x-auth-token}:{user}'
    limits: [1/day]
    mode: shadow
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

    fn get(&self, path: &str) -> Value {
        let answer = self.send("GET", path, "");
        assert_eq!(answer.status, 200, "{path} {answer:?}");
        answer.json()
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

/// Sends a check again until it is refused.
fn refuse(fixture: &ExplainFixture, body: &Value) -> Value {
    for _ in 0..1_000 {
        let decision = fixture.server.check(&body.to_string());
        if decision["allowed"] == false {
            return decision;
        }
    }
    panic!("never refused: {body}");
}

#[test]
fn a_refusal_is_recorded_and_explained_later() {
    let fixture = ExplainFixture::start(RULES, &[]);
    let body = json!({ "path": "/search/?token=hidden", "method": "GET", "ip": "192.0.2.1", "user": "anna",
        "api_key": "topsecret-two", "headers": {
            "authorization": "Bearer hidden", "x-auth-token": "hidden-token", "user-agent": "curl", "x-user": "anna" } });
    let decision = refuse(&fixture, &body);
    let told = fixture.get("/api/refusals");
    assert_eq!(told["not_recorded"], 0);
    let [one] = &told["refusals"].as_array().unwrap()[..] else { panic!("{told:#}") };
    for member in ["rule", "limit", "retry_after_ms", "reason", "decided_by"] {
        assert_eq!(one[member], decision[member], "{member}: {one:#}");
    }
    assert_eq!((&one["key"], &one["cost"]), (&json!("user=anna"), &json!(1)));
    assert_eq!((&one["method"], &one["path"]), (&json!("GET"), &json!("/search")));
    let story = fixture.get(&format!("/api/explain?refusal={}", one["id"].as_str().unwrap()));
    assert_eq!(story["refusal"], one["id"]);
    assert_eq!((&story["at"], &story["decision"]["rule"]), (&one["at"], &one["rule"]));
    for member in ["allowed", "remaining", "max", "reset_after_ms", "retry_after_ms"] {
        assert_eq!(story["decision"][member], decision[member], "{member}: {story:#}");
    }
    let search = rule(&story, "search");
    assert_eq!(search["result"], "refused");
    assert_eq!(search["key"]["hash"], one["hash"]);
    assert!(search["conditions"].as_array().unwrap().iter().all(|one| one["holds"] == true));
    assert!(search["limits"][0]["arithmetic"].as_str().unwrap().contains("needs 1: refused, "));
    let asked = fixture.explain(&body);
    for told in [&story, &asked] {
        let text = "header.authorization=(not shown),header.x-auth-token=(not shown),user=anna";
        assert_eq!(rule(told, "sessions")["key"]["text"], text);
    }
    for text in [story.to_string(), told.to_string(), asked.to_string()] {
        assert!(!text.contains("hidden") && !text.contains("topsecret"), "{text}");
    }
    assert_eq!(fixture.get("/api/refusals?rule=any")["refusals"], json!([]));
    assert_eq!(fixture.get("/api/refusals?rule=search&n=1")["refusals"][0]["id"], one["id"]);
}

#[test]
fn a_flood_is_sampled_and_the_rest_is_counted() {
    let rules: String = (0..40)
        .map(|number| format!("  - {{ name: r{number}, match: {{ path: /p{number} }}, key: '{{user}}', limits: [1/day] }}\n"))
        .collect();
    let fixture = ExplainFixture::start(&format!("rules:\n{rules}"), &[]);
    let path = |number: usize| json!({ "path": format!("/p{}", number % 40), "user": "a" });
    let batch = |from: usize| {
        let checks: Vec<Value> = (from..from + 1_000).map(path).collect();
        let answer = fixture.server.post("/v1/check/batch", &Value::from(checks).to_string());
        assert_eq!(answer.status, 200);
    };
    batch(0);
    let told = fixture.get("/api/refusals?n=500");
    let recorded = told["refusals"].as_array().unwrap().len() as u64;
    assert_eq!(recorded + told["not_recorded"].as_u64().unwrap(), 1_000 - 40, "{told:#}");
    assert!((1..=150).contains(&recorded), "{recorded} of a flood of a moment");
}

#[test]
fn questions_about_refusals_are_checked() {
    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "tokens", "0123456789abcdef0123456789abcdef\n");
    let fixture = ExplainFixture::start(RULES, &[]);
    for (path, status) in [
        ("/api/refusals?m=1", 400),
        ("/api/refusals?n=0", 400),
        ("/api/refusals?n=501", 400),
        ("/api/explain", 400),
        ("/api/explain?id=1", 400),
        ("/api/explain?refusal=1-1", 404),
    ] {
        assert_eq!(fixture.send("GET", path, "").status, status, "{path}");
    }
    assert_eq!(fixture.send("POST", "/api/refusals", "").status, 405);
    let fixture = ExplainFixture::start(RULES, &["--admin-token-file", text(&tokens)]);
    for (method, path) in
        [("GET", "/api/refusals"), ("GET", "/api/explain?refusal=1"), ("POST", "/api/explain")]
    {
        assert_eq!(fixture.send(method, path, "").status, 401, "{method} {path}");
    }
}

#[test]
fn the_command_tells_the_story() {
    let fixture = ExplainFixture::start(RULES, &[]);
    let admin = format!("http://{}", fixture.server.admin());
    let ask = |more: &[&str]| -> ProcessExit {
        run(&[&["ask", "--explain", "--admin", &admin], more].concat())
    };
    let told = ask(&["--path", "/users", "--user", "anna", "--cost", "2"]);
    assert_eq!((told.code, &*told.stderr), (Some(0), ""), "{told:?}");
    assert!(told.stdout.starts_with("Allowed: "), "{}", told.stdout);
    assert!(
        told.stdout.contains("\nRule users: allowed. All of its limits have room.\n"),
        "{}",
        told.stdout
    );
    assert!(told.stdout.contains("\n  cost      2: stated by the request\n"), "{}", told.stdout);
    assert!(told.stdout.contains("\n  idle: The rule is switched off.\n"), "{}", told.stdout);
    refuse(&fixture, &json!({ "path": "/users", "user": "anna" }));
    assert_eq!(ask(&["--path", "/users", "--user", "anna"]).code, Some(3));
    let id = fixture.get("/api/refusals")["refusals"][0]["id"].as_str().unwrap().to_string();
    let recorded = ask(&["--refusal", &id]);
    assert_eq!((recorded.code, &*recorded.stderr), (Some(3), ""));
    assert!(
        recorded.stdout.starts_with("Refused by users (5/minute): 5 in the last minute, "),
        "{recorded:?}"
    );
    let json = ask(&["--refusal", &id, "--json"]);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["refusal"], id);
    let unknown = ask(&["--refusal", "1-1"]);
    assert_eq!((unknown.code, &*unknown.stdout), (Some(1), ""));
    assert!(unknown.stderr.contains("no such refusal"), "{unknown:?}");
    assert_eq!(ask(&["--refusal", &id, "--user", "anna"]).code, Some(2));
    assert_eq!(run(&["ask", "--refusal", &id]).code, Some(2), "only with --explain");
    assert_eq!(ask(&["--user", "anna"]).code, Some(1), "no rule could be asked");
}

/// A rule of so many a minute in bursts of two.
fn bucket_rule(per_minute: u64) -> String {
    format!("rules: [{{ name: api, key: '{{user}}', limits: [{per_minute}/minute burst 2] }}]")
}

/// Changes a slow rule under which a user has used everything, looks at the user and waits as it is told.
fn assert_wait_comes_true(flags: &[&str], method: &str, path: &str, change: &str) {
    let fixture = ExplainFixture::start(&bucket_rule(1), flags);
    let body = json!({ "user": "1" });
    let check = || fixture.server.check(&body.to_string())["allowed"].as_bool().unwrap();
    assert_eq!([check(), check(), check()], [true, true, false]);
    let changed = fixture.send(method, path, change);
    assert_eq!(changed.status, 200, "{changed:?}");
    let told = fixture.explain(&body)["retry"]["after_ms"].as_u64().unwrap();
    assert!((1..=500).contains(&told), "{told}");
    let shown = fixture.get("/api/keys/api/user=1")["limits"][0]["retry_after_ms"].clone();
    testkit::wait::pause(Duration::from_millis(shown.as_u64().unwrap()));
    assert!(check(), "after {shown} ms, having been told {told} ms");
}

#[test]
fn a_wait_that_is_told_after_a_change_comes_true() {
    let fields = r#"{ "override": { "limits": ["120/minute burst 2"] } }"#;
    let changes =
        [("PUT", "/api/rules", &*bucket_rule(120)), ("POST", "/api/keys/api/user=1", fields)];
    for (method, path, change) in changes {
        assert_wait_comes_true(&[], method, path, change);
        let redis = testkit::redis::TestRedis::start();
        let flags = ["--store", &redis.url(), "--store-timeout", "1s"];
        assert_wait_comes_true(&flags, method, path, change);
    }
}
