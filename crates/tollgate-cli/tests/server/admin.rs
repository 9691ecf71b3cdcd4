//! The admin listener: what it tells, what it changes, and whom it refuses.

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::harness::{TestHttpClient, TestHttpResponse, TollgateProcess, file, text};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210";

const RULES: &str = "
tiers: { free: 1, pro: 10 }
rules:
  - { name: api, match: { path: '/api/{*rest}' }, key: '{user|ip}', limits: [4/hour, 100/day] }
  - { name: plans, match: { path: /plans }, key: '{user}', limits: [2/hour], tiered: true }
  - { name: login, match: { path: /login }, key: '{ip}', limits: [1/hour], ban: { after: 2, within: 1h, for: 1d } }
  - { name: trial, match: { path: '/api/{*rest}' }, key: '{user|ip}', limits: [1/hour], mode: shadow }
  - { name: warns, match: { path: /warns }, key: '{user|ip}', limits: [1/hour], soft: true }
  - { name: idle, match: { path: /idle }, key: '{user}', limits: [1/hour], mode: off }
exempt: { user: [boss], ip: [198.51.100.0/24] }
overrides:
  - { rule: api, key: user=vip, limits: [50/hour], until: 2100-01-01T00:00:00Z }
";

/// What a write carries where no token is needed.
const ADMIN_HEADER: (&str, &str) = ("x-tollgate-admin", "1");

struct AdminFixture {
    server: TollgateProcess,
    directory: TempDir,
}

impl AdminFixture {
    fn start(flags: &[&str]) -> AdminFixture {
        let directory = tempdir().unwrap();
        let rules = file(directory.path(), "rules.yaml", RULES);
        let server = TollgateProcess::start(&[&["--rules", text(&rules)], flags].concat());
        AdminFixture { server, directory }
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TestHttpResponse {
        TestHttpClient::connect(self.server.admin()).request(method, path, headers, body)
    }

    /// What has to be answered with 200.
    fn get(&self, path: &str) -> Value {
        let answer = self.send("GET", path, &[], "");
        assert_eq!(answer.status, 200, "{path} {answer:?}");
        answer.json()
    }

    /// A change that has to succeed.
    fn change(&self, method: &str, path: &str, body: &str) -> Value {
        let answer = self.send(method, path, &[ADMIN_HEADER], body);
        assert_eq!(answer.status, 200, "{method} {path} {body} {answer:?}");
        answer.json()
    }

    /// How often a user gets through of so many requests.
    fn admitted(&self, path: &str, user: &str, requests: usize) -> usize {
        let body = json!({ "path": path, "user": user }).to_string();
        (0..requests).filter(|_| self.server.check(&body)["allowed"] == true).count()
    }
}

#[test]
fn a_status_tells_how_it_stands() {
    let admin = AdminFixture::start(&[]);
    assert_eq!(admin.admitted("/api/x", "42", 6), 4);
    let status = admin.get("/api/status");
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        (&status["ready"], &status["decisions"]),
        (&json!(true), &json!({"allowed":4,"refused":2}))
    );
    let rules = &status["rules"];
    assert_eq!((&rules["version"], &rules["count"]), (&json!(1), &json!(6)));
    assert_eq!((&rules["origin"], &rules["watching"]), (&json!("files"), &json!("events")));
    assert_eq!(rules["overrides"], json!({ "file": 1, "run_time": 0 }));
    assert_eq!(rules["failed"], Value::Null);
    assert!(rules["paths"][0].as_str().unwrap().ends_with("rules.yaml"));
    // Four limits of one caller: two of `api`, one of `trial`.
    assert_eq!((&status["store"]["kind"], &status["store"]["keys"]), (&json!("memory"), &json!(3)));
    for time in [&status["started_at"], &rules["loaded_at"]] {
        assert!(time.as_str().is_some_and(|time| time.ends_with('Z')), "{time}");
    }
}

#[test]
fn rules_are_listed_with_what_they_said() {
    let admin = AdminFixture::start(&[]);
    assert_eq!(admin.admitted("/api/x", "42", 6), 4);
    let listed = admin.get("/api/rules");
    assert_eq!((&listed["version"], &listed["tiers"]), (&json!(1), &json!(["free", "pro"])));
    let rule = |name: &str| {
        let rules = listed["rules"].as_array().unwrap();
        rules.iter().find(|rule| rule["name"] == name).unwrap_or_else(|| panic!("no {name}"))
    };
    let api = rule("api");
    assert_eq!((&api["key"], &api["mode"]), (&json!("{user|ip}"), &json!("enforce")));
    assert_eq!(api["limits"], json!(["4/hour", "100/day"]));
    assert_eq!(
        api["tally"],
        json!({ "allowed": 4, "refused": 2, "refused_by_other": 0, "shadow": 0, "soft": 0, "store_unavailable": 0 })
    );
    assert_eq!(
        rule("trial")["tally"],
        json!({ "allowed": 1, "refused": 0, "refused_by_other": 0, "shadow": 5, "soft": 0, "store_unavailable": 0 })
    );
    assert_eq!(rule("plans")["tiers"], json!({ "free": ["2/hour"], "pro": ["20/hour"] }));
    let hash = admin.get("/api/keys/api/user=vip")["hash"].clone();
    assert!(hash.is_string(), "{hash}");
    assert_eq!(
        listed["overrides"],
        json!([{ "rule": "api", "key": "user=vip", "hash": hash, "limits": ["50/hour"],
                 "until": "2100-01-01T00:00:00.000Z", "run_time": false, "applies": true }])
    );
}

#[test]
fn callers_are_looked_at_and_changed() {
    let mut admin = AdminFixture::start(&[]);
    assert_eq!(admin.admitted("/api/x", "42", 6), 4);
    let path = "/api/keys/api/user=42";
    let report = admin.get(path);
    assert_eq!((&report["rule"], &report["key"]), (&json!("api"), &json!("user=42")));
    let hash = report["hash"].as_str().unwrap().to_string();
    assert!(hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hash}");
    let [hour, day] = [&report["limits"][0], &report["limits"][1]];
    assert_eq!(
        (&hour["limit"], &hour["remaining"], &hour["allowed"]),
        (&json!("4/hour"), &json!(0), &json!(false))
    );
    assert_eq!(
        (&day["limit"], &day["max"], &day["remaining"]),
        (&json!("100/day"), &json!(100), &json!(96))
    );
    assert!(hour["retry_after_ms"].as_u64().unwrap() > 0);
    // The same caller, otherwise written.
    for other in ["/api/keys/api/42", "/api/keys/api/user%3D42"] {
        assert_eq!(admin.get(other)["hash"], hash, "{other}");
    }

    let granted = admin.change("POST", path, r#"{"grant":3}"#);
    assert_eq!(granted["limits"][0]["balance"], 3);
    assert_eq!(admin.admitted("/api/x", "42", 9), 3);
    let reset = admin.change("DELETE", path, "");
    assert_eq!((&reset["reset"], &reset["limits"][1]["balance"]), (&json!(true), &json!(100)));
    assert_eq!(admin.change("DELETE", path, "")["reset"], false);
    assert_eq!(admin.admitted("/api/x", "42", 1), 1);

    let blocked = admin.change("POST", path, r#"{"block":"15m"}"#);
    let left_ms = blocked["blocked_for_ms"].as_u64().unwrap();
    assert!((890_000..=900_000).contains(&left_ms), "{left_ms}");
    let refused = admin.server.check(r#"{"path":"/api/x","user":"42"}"#);
    assert_eq!((&refused["allowed"], &refused["decided_by"]), (&json!(false), &json!("block")));
    assert_eq!(admin.admitted("/api/x", "7", 1), 1);
    assert_eq!(admin.change("POST", path, r#"{"block":null}"#)["blocked_for_ms"], Value::Null);
    assert_eq!(admin.admitted("/api/x", "42", 1), 1);

    let fields = r#"{"override":{"limits":["9/hour"],"until":"2100-01-01T00:00:00Z"}}"#;
    let report = admin.change("POST", path, fields);
    assert_eq!(
        report["override"],
        json!({ "limits": ["9/hour"], "until": "2100-01-01T00:00:00.000Z", "run_time": true })
    );
    assert_eq!(admin.admitted("/api/x", "42", 20), 7, "2 of 9 were used");
    assert_eq!(admin.get("/api/status")["rules"]["overrides"]["run_time"], 1);
    assert_eq!(admin.change("POST", path, r#"{"override":null}"#)["override"], Value::Null);

    // Every change left a line that says who and to whom, by hash.
    for event in [
        "was granted units",
        "was reset",
        "was blocked",
        "block was removed",
        "was set",
        "was removed",
    ] {
        admin.server.wait_for_log(event);
    }
    let ended = admin.server.stop();
    let lines: Vec<_> =
        ended.stderr.lines().filter(|line| line.contains("by=127.0.0.1:")).collect();
    assert!(
        lines
            .iter()
            .all(|line| line.contains(&format!("key={hash}")) && line.contains("token=none")),
        "{lines:?}"
    );
    assert!(!ended.stderr.contains("user=42"), "{}", ended.stderr);
}

#[test]
fn wrong_changes_change_nothing_and_say_why() {
    let admin = AdminFixture::start(&[]);
    assert_eq!(admin.admitted("/api/x", "42", 1), 1);
    let key = "/api/keys/api/user=42";
    let rows = [
        ("GET", "/api/keys", "", 404, "There is no such path"),
        ("GET", "/api/keys/api", "", 400, "/api/keys/RULE/KEY"),
        ("GET", "/api/keys/api/", "", 400, "/api/keys/RULE/KEY"),
        ("GET", "/api/keys//42", "", 400, "/api/keys/RULE/KEY"),
        ("GET", "/api/keys/api/%FF", "", 400, "/api/keys/RULE/KEY"),
        ("GET", "/api/keys/apo/42", "", 404, "did you mean `api`?"),
        ("GET", "/api/keys/login/bob", "", 400, "not an address"),
        ("GET", "/api/keys/api/192.0.2.1", "", 400, "ambiguous"),
        ("POST", key, "", 400, "Send one of"),
        ("POST", key, "[]", 400, "Send one of"),
        ("POST", key, "{}", 400, "Send one of"),
        ("POST", key, r#"{"grant":1,"block":"1m"}"#, 400, "Send one of"),
        ("POST", key, r#"{"gift":1}"#, 400, "Send one of"),
        ("POST", key, r#"{"grant":0}"#, 400, "from 1 to"),
        ("POST", key, r#"{"grant":-1}"#, 400, "from 1 to"),
        ("POST", key, r#"{"grant":1.5}"#, 400, "from 1 to"),
        ("POST", key, r#"{"grant":"1"}"#, 400, "Send one of"),
        ("POST", key, r#"{"block":"long"}"#, 400, "block:"),
        ("POST", key, r#"{"block":"0s"}"#, 400, "block"),
        ("POST", key, r#"{"override":{"limits":["x/hour"]}}"#, 400, "The override is wrong"),
        ("POST", key, r#"{"override":{}}"#, 400, "The override is wrong"),
        (
            "POST",
            key,
            r#"{"override":{"limits":["1/hour"],"until":"1999-01-01T00:00:00Z"}}"#,
            400,
            "wrong",
        ),
        ("POST", key, r#"{"override":{"limits":["1/hour"],"rule":"login"}}"#, 400, "wrong"),
        ("POST", key, r#"{"override":{"limits":["1/hour"],"key":"user=7"}}"#, 400, "wrong"),
        ("POST", "/api/keys/warns/user=42", r#"{"block":"1m"}"#, 409, "only warns"),
        ("POST", "/api/keys/trial/user=42", r#"{"block":"1m"}"#, 409, "not enforced"),
        ("POST", "/api/keys/idle/user=42", r#"{"block":"1m"}"#, 409, "is off"),
        ("POST", "/api/keys/api/user=boss", r#"{"block":"1m"}"#, 409, "exempt"),
        ("POST", "/api/keys/api/ip=198.51.100.7", r#"{"block":"1m"}"#, 409, "exempt"),
        ("PATCH", key, "", 405, "GET, HEAD, POST, DELETE"),
        ("POST", "/api/status", "", 405, "GET, HEAD"),
        ("DELETE", "/api/rules", "", 405, "PUT"),
        ("GET", "/api/reload", "", 405, "POST"),
        ("GET", "/api/top?by=luck", "", 400, "by is one of requests"),
        ("GET", "/nothing", "", 404, "/api/status"),
    ];
    for (method, path, body, status, want) in rows {
        let answer = admin.send(method, path, &[ADMIN_HEADER], body);
        assert_eq!(answer.status, status, "{method} {path} {body} {answer:?}");
        assert!(answer.message().contains(want), "{method} {path} {body} {answer:?}");
    }
    let report = admin.get(key);
    assert_eq!((&report["limits"][0]["remaining"], &report["override"]), (&json!(3), &Value::Null));
    let large = "x".repeat(70_000);
    assert_eq!(admin.send("POST", key, &[ADMIN_HEADER], &large).status, 413);
}

#[test]
fn rules_are_put_and_go_with_the_next_reload() {
    let mut admin = AdminFixture::start(&[]);
    assert_eq!(admin.admitted("/api/x", "42", 3), 3);
    let wrong =
        admin.send("PUT", "/api/rules", &[ADMIN_HEADER], "rules: [{ name: api, limit: [1/hour] }]");
    assert_eq!(wrong.status, 400, "{wrong:?}");
    assert!(wrong.message().contains("the rules in force stay"), "{wrong:?}");
    let diagnostics = wrong.json()["diagnostics"].as_str().unwrap().to_string();
    assert!(diagnostics.contains("did you mean `limits`?"), "{diagnostics}");
    assert_eq!(admin.get("/api/status")["rules"]["version"], 1);
    let status = admin.get("/api/status");
    assert!(status["rules"]["put_failed"]["diagnostics"].is_string(), "{status}");
    assert_eq!(status["rules"]["failed"], Value::Null, "the file is right");

    let text = "rules: [{ name: api, key: '{user|ip}', limits: [5/hour] }]";
    let put = admin.change("PUT", "/api/rules", text);
    assert_eq!((&put["version"], &put["changes"]["changed"]), (&json!(2), &json!(["api"])));
    assert_eq!(put["changes"]["removed"], json!(["plans", "login", "trial", "warns", "idle"]));
    assert!(put["message"].as_str().unwrap().contains("not written to any file"));
    assert_eq!(admin.get("/api/rules")["origin"], "api");
    assert_eq!(admin.get("/api/status")["rules"]["put_failed"], Value::Null);
    assert_eq!(admin.admitted("/anything", "42", 5), 2, "what was used stays used");

    let reload = admin.change("POST", "/api/reload", "");
    assert_eq!((&reload["version"], &reload["result"]), (&json!(3), &json!("loaded")));
    assert_eq!(admin.get("/api/rules")["origin"], "files");
    assert_eq!(admin.change("POST", "/api/reload", "")["result"], "unchanged");

    file(admin.directory.path(), "rules.yaml", "rules: 7");
    let broken = admin.send("POST", "/api/reload", &[ADMIN_HEADER], "");
    assert_eq!(broken.status, 400, "{broken:?}");
    assert!(
        broken.json()["diagnostics"].as_str().unwrap().contains("rules.yaml:1:8"),
        "{broken:?}"
    );
    assert_eq!(admin.get("/api/rules")["rules"].as_array().unwrap().len(), 6);
    admin.server.wait_for_log("new rules were sent");
    admin.server.wait_for_log("a reload was requested");
}

#[test]
fn whoever_is_not_refused_is_told_apart() {
    let admin = AdminFixture::start(&[]);
    let seen = |path: &str| {
        let report = admin.get(path);
        let flag = |name: &str| report[name].as_bool().unwrap();
        assert_eq!(report["blocked_for_ms"], Value::Null, "{path}");
        (report["mode"].as_str().unwrap().to_string(), flag("soft"), flag("exempt"))
    };
    for (path, mode, soft, exempt) in [
        ("/api/keys/api/user=42", "enforce", false, false),
        ("/api/keys/api/user=boss", "enforce", false, true),
        ("/api/keys/api/ip=198.51.100.7", "enforce", false, true),
        ("/api/keys/warns/user=42", "enforce", true, false),
        ("/api/keys/idle/user=42", "off", false, false),
        ("/api/keys/trial/user=42", "shadow", false, false),
    ] {
        assert_eq!(seen(path), (mode.to_string(), soft, exempt), "{path}");
    }
}

#[test]
fn overrides_that_ended_or_lost_their_rule_are_shown_as_such() {
    let admin = AdminFixture::start(&[]);
    let set = |key: &str, fields: &str| {
        admin.change(
            "POST",
            &format!("/api/keys/plans/{key}"),
            &format!("{{\"override\":{fields}}}"),
        )
    };
    set("user=1", r#"{"limits":["9/hour"]}"#);
    set("user=2", r#"["8/hour"]"#);
    let run_time = || {
        let listed = admin.get("/api/rules")["overrides"].as_array().unwrap().clone();
        let at_run_time = listed.iter().filter(|one| one["run_time"] == true);
        at_run_time.map(|one| one["applies"].as_bool().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(run_time(), [true, true]);
    admin.change("PUT", "/api/rules", "rules: [{ name: api, key: '{user}', limits: [5/hour] }]");
    assert_eq!(run_time(), [false, false]);
    assert_eq!(admin.get("/api/status")["rules"]["overrides"], json!({ "file": 0, "run_time": 2 }));
    admin.change("POST", "/api/reload", "");
    assert_eq!(run_time(), [true, true]);
    assert_eq!(admin.get("/api/status")["rules"]["overrides"], json!({ "file": 1, "run_time": 2 }));
}

#[test]
fn nobody_alone_can_shut_the_admin_listener() {
    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "token", TOKEN);
    let admin = AdminFixture::start(&["--admin-token-file", text(&tokens)]);
    // From one address more connections than it may have; they say nothing.
    let silent: Vec<_> = (0..40)
        .map(|_| std::net::TcpStream::connect(admin.server.admin()).expect("the listener is open"))
        .collect();
    // Another address of this machine still gets in.
    let probe = std::process::Command::new("curl")
        .args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "20"])
        .args(["--interface", "127.0.0.2", &format!("http://{}/livez", admin.server.admin())])
        .output();
    if let Ok(probe) = probe {
        assert_eq!(String::from_utf8_lossy(&probe.stdout), "200");
    }
    drop(silent);
}

#[test]
fn the_heaviest_callers_are_listed() {
    let admin = AdminFixture::start(&[]);
    for (user, requests) in [("rare", 1), ("heavy", 9), ("some", 5)] {
        admin.admitted("/plans", user, requests);
    }
    let top = admin.get("/api/top?n=2");
    let keys = |top: &Value| -> Vec<(String, u64, u64)> {
        let listed = top["top"].as_array().unwrap().iter();
        let number = |value: &Value| value.as_u64().unwrap();
        let key = |entry: &Value| entry["key"].as_str().unwrap().to_string();
        listed.map(|one| (key(one), number(&one["count"]), number(&one["refused"]))).collect()
    };
    let want = |rows: &[(&str, u64, u64)]| -> Vec<(String, u64, u64)> {
        rows.iter().map(|(key, count, refused)| (key.to_string(), *count, *refused)).collect()
    };
    assert_eq!(keys(&top), want(&[("user=heavy", 9, 7), ("user=some", 5, 3)]));
    let refused = admin.get("/api/top?by=refusals");
    assert_eq!(keys(&refused), want(&[("user=heavy", 7, 7), ("user=some", 3, 3)]));
    assert_eq!(top["top"][0]["hash"], admin.get("/api/keys/plans/heavy")["hash"]);
}

/// Every way in that has to stay shut: method, path, headers; status and reason.
#[test]
fn whoever_may_not_is_refused_with_a_reason() {
    let read = [
        ("GET", "/api/status"),
        ("GET", "/api/rules"),
        ("GET", "/api/top"),
        ("GET", "/api/keys/api/42"),
    ];
    let write = [
        ("POST", "/api/reload"),
        ("PUT", "/api/rules"),
        ("POST", "/api/keys/api/42"),
        ("DELETE", "/api/keys/api/42"),
    ];
    let open = [("GET", "/livez"), ("GET", "/readyz"), ("GET", "/metrics")];

    let admin = AdminFixture::start(&[]);
    assert_eq!(admin.admitted("/api/x", "42", 1), 1);
    let refuse = |admin: &AdminFixture,
                  (method, path): (&str, &str),
                  headers: &[(&str, &str)],
                  status: u16,
                  why: &str| {
        let answer = admin.send(method, path, headers, r#"{"grant":1}"#);
        assert_eq!(answer.status, status, "{method} {path} {headers:?} {answer:?}");
        assert!(answer.message().contains(why), "{method} {path} {headers:?} {answer:?}");
    };
    for listener in read.iter().chain(&write).chain(&open) {
        // A name that resolves to this machine, and one that only begins like it.
        for host in ["rebound.example.com", "localhost.example.com", "192.0.2.1:9190", ""] {
            refuse(
                &admin,
                *listener,
                &[("host", host), ADMIN_HEADER],
                403,
                "only localhost and loopback addresses",
            );
        }
    }
    for listener in write {
        for headers in [&[][..], &[("x-tollgate-admin", "0")], &[("x-tollgate-admin", "")]] {
            refuse(&admin, listener, headers, 403, "X-Tollgate-Admin: 1");
        }
    }
    for listener in read.iter().chain(&write) {
        for sender in [
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("origin", "http://localhost:1"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            refuse(&admin, *listener, &[sender, ADMIN_HEADER], 403, "another site");
        }
    }
    // Whoever is at the wrong listener is told so, not how to knock.
    refuse(&admin, ("POST", "/v1/check"), &[], 404, "There is no such path");
    // No page is told that it may.
    let answer = admin.send("OPTIONS", "/api/reload", &[("origin", "https://evil.example")], "");
    assert_eq!(answer.status, 403);
    assert!(
        answer.headers.iter().all(|(name, _)| !name.starts_with("access-control")),
        "{answer:?}"
    );
    assert_eq!(admin.get("/api/keys/api/42")["limits"][0]["remaining"], 3, "nothing was changed");
    assert_eq!(admin.get("/api/status")["rules"]["version"], 1);

    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "token", format!("{OTHER}\n{TOKEN}\n"));
    let mut admin = AdminFixture::start(&["--admin-token-file", text(&tokens)]);
    let wrong = format!("Bearer {}", &TOKEN[1..]);
    for listener in read.iter().chain(&write) {
        for headers in [
            &[][..],
            &[ADMIN_HEADER],
            &[("authorization", wrong.as_str())],
            &[("authorization", TOKEN)],
            &[("authorization", "Bearer ")],
        ] {
            refuse(&admin, *listener, headers, 401, "Authorization: Bearer");
        }
    }
    let bearer = format!("Bearer {TOKEN}");
    let good = ("authorization", bearer.as_str());
    refuse(&admin, write[0], &[good, ("origin", "https://evil.example")], 403, "another site");
    for (method, path) in open {
        assert_eq!(admin.send(method, path, &[], "").status, 200, "{path} needs no token");
    }
    assert_eq!(admin.send("POST", "/api/reload", &[good], "").status, 200, "no mark is needed");
    admin.server.wait_for_log("a request to the admin listener was refused");
    admin.server.wait_for_log("token=2");
    let ended = admin.server.stop();
    assert!(!ended.stderr.contains(&TOKEN[..8]), "{}", ended.stderr);
}

/// Values that must never come out again: none may be in logs, metrics or help.
#[test]
fn secrets_and_callers_stay_inside() {
    let directory = tempdir().unwrap();
    let [auth, admin_token, secret] =
        ["canary-auth-0123456789", "canary-admin-0123456789", "canary-secret-0123456789"];
    let auth_file = file(directory.path(), "auth", auth);
    let admin_file = file(directory.path(), "admin", admin_token);
    let secret_file = file(directory.path(), "secret", secret);
    let rules = file(
        directory.path(),
        "rules.yaml",
        "
identify: { user: { header: x-user }, api_key: { header: x-api-key } }
rules:
  - { name: user, key: '{user}', limits: [1/hour], ban: { after: 2, within: 1h, for: 1d } }
  - { name: key, key: '{api_key}', limits: [1/hour] }
  - { name: field, key: '{header.x-canary}', limits: [1/hour] }
  - { name: address, key: '{ip}', limits: [1/hour] }
",
    );
    for format in ["text", "json"] {
        let server = TollgateProcess::start(&[
            "--rules",
            text(&rules),
            "--log-format",
            format,
            "--auth-token-file",
            text(&auth_file),
            "--admin-token-file",
            text(&admin_file),
            "--key-secret-file",
            text(&secret_file),
        ]);
        let good = format!("Bearer {auth}");
        let sent =
            json!({ "path": "/canary-path", "user": "canary-user", "api_key": "canary-api-key",
            "ip": "203.0.113.77", "headers": { "x-canary": "canary-header" } })
            .to_string();
        let bad = json!({ "user": "canary-user", "cost": "canary-cost" }).to_string();
        for _ in 0..4 {
            server.request("POST", "/v1/check", &[("authorization", &good)], &sent);
            server.request("POST", "/v1/check", &[("authorization", &good)], &bad);
            let fields = [
                ("x-forwarded-for", "203.0.113.77"),
                ("x-user", "canary-user"),
                ("x-api-key", "canary-api-key"),
                ("x-tollgate-token", auth),
                ("x-canary", "canary-header"),
            ];
            server.request("GET", "/v1/forward-auth", &fields, "");
            server.request("POST", "/v1/check", &[("authorization", "Bearer canary-wrong")], &sent);
        }
        let admin = format!("Bearer {admin_token}");
        let admin = [("authorization", admin.as_str())];
        let mut client = TestHttpClient::connect(server.admin());
        for path in [
            "/api/keys/user/canary-user",
            "/api/keys/key/canary-api-key",
            "/api/keys/user/ip=canary-ip",
        ] {
            for method in ["GET", "DELETE"] {
                client.request(method, path, &admin, "");
            }
            client.request("POST", path, &admin, r#"{"block":"1h"}"#);
        }
        client.request("PUT", "/api/rules", &admin, "canary-rules: [");
        let metrics = server.admin_get("/metrics", &[]).body;
        let top = client.request("GET", "/api/top", &admin, "").body;
        assert!(top.contains("canary-user"), "people who run the server are told: {top}");
        assert!(!top.contains("canary-api-key"), "but not keys that are secrets: {top}");
        let ended = server.stop();
        for (what, output) in
            [("logs", &ended.stderr), ("output", &ended.stdout), ("metrics", &metrics)]
        {
            // Of rules that are wrong the log shows the line: that is what it is for.
            let output = output.replace("canary-rules", "");
            let found = ["canary", "203.0.113.77"].iter().find(|value| output.contains(**value));
            assert_eq!(found, None, "{format} {what}: {output}");
        }
        assert!(ended.stderr.contains("refused"), "there was something to hide: {}", ended.stderr);
    }
    for command in ["serve", "ask", "keys"] {
        let help = crate::harness::tollgate()
            .args([command, "--help"])
            .env("TOLLGATE_AUTH_TOKEN_FILE", "canary-auth-file")
            .env("TOLLGATE_ADMIN_TOKEN_FILE", "canary-admin-file")
            .env("TOLLGATE_STORE", "redis://u:canary-store@h:6379")
            .env("TOLLGATE_SERVER", "http://canary-server")
            .env("TOLLGATE_ADMIN_URL", "http://canary-admin")
            .output()
            .unwrap();
        assert!(help.status.success());
        assert!(!String::from_utf8_lossy(&help.stdout).contains("canary"), "{command} --help");
    }
}
