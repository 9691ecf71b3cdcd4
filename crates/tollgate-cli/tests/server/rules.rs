//! Rules files through the server: shown where a listener adds something to what the rules decide.

use serde_json::json;
use tempfile::{TempDir, tempdir};

use crate::harness::{TollgateProcess, file, text};

/// A server with these rules; the directory lives as long as the test needs it.
fn serve(rules: &str) -> (TollgateProcess, TempDir) {
    let directory = tempdir().unwrap();
    let rules = file(directory.path(), "rules.yaml", rules);
    (TollgateProcess::start(&["--rules", text(&rules)]), directory)
}

#[test]
fn a_store_that_a_rule_names_is_not_used_by_memory_and_the_log_says_so() {
    let directory = tempdir().unwrap();
    let rules = "rules: [{ name: api, key: '{user}', limits: [5/hour], store: big }]\n";
    let rules = file(directory.path(), "rules.yaml", rules);
    let flags = ["--rules", text(&rules), "--log-format", "json"];
    let mut server = TollgateProcess::start(&flags);
    let line = server.wait_for_log("warning about the rules");
    assert!(line.contains("big") && line.contains("memory"), "{line}");
}

#[test]
fn every_limit_is_told_and_the_binding_one_decides() {
    let (server, _rules) = serve(
        "rules:
  - name: api
    match: { path: '/api/{*rest}' }
    key: '{user}'
    limits: [3/hour, 5/day]
  - name: watch
    key: '{user}'
    limits: [1/day]
    mode: shadow
  - name: advice
    key: '{user}'
    limits: [1/week]
    soft: true
",
    );
    let body = r#"{"path":"/api/x","user":"42"}"#;
    let first = server.post("/v1/check", body);
    assert_eq!((first.status, first.header("x-ratelimit-warning")), (200, None));
    let second = server.post("/v1/check", body);
    assert_eq!(second.status, 200);
    assert_eq!(second.header("x-ratelimit-warning"), Some("advice-1w"));
    let policies = second.header("ratelimit-policy").unwrap();
    assert_eq!(policies, r#""api-1h";q=3;w=3600, "api-1d";q=5;w=86400"#);
    let decision = second.json();
    assert_eq!((&decision["rule"], &decision["limit"]), (&json!("api"), &json!("3/hour")));
    let column = |name: &str| -> Vec<_> {
        decision["limits"].as_array().unwrap().iter().map(|one| one[name].clone()).collect()
    };
    assert_eq!(column("rule"), ["api", "api", "watch", "advice"]);
    assert_eq!(column("allowed"), [true, true, false, false]);
    assert_eq!(column("remaining"), [1, 3, 0, 0]);
    assert_eq!(column("shadow"), [json!(null), json!(null), json!(true), json!(null)]);
    assert_eq!(column("soft"), [json!(null), json!(null), json!(null), json!(true)]);
}

#[test]
fn only_trusted_peers_speak_for_others() {
    let with_peers = |peers: &str| {
        serve(&format!(
            "identify:
  trusted_peers: [{peers}]
  user: {{ header: x-user-id }}
rules:
  - name: upload
    match: {{ path: /upload, method: POST }}
    key: '{{user|ip}}'
    limits: [1/hour]
"
        ))
    };
    let (trusting, _rules) = with_peers("127.0.0.0/8");
    let (wary, _rules) = with_peers("10.0.0.0/8");
    // headers | of a server that trusts us, of one that does not
    let upload = [("x-forwarded-method", "POST"), ("x-forwarded-uri", "/upload?x=1")];
    let of = |user| [&upload[..], &[("x-user-id", user)]].concat();
    let original = [("x-original-method", "POST"), ("x-original-uri", "/upload")];
    let rows = [
        ("/v1/forward-auth", of("1"), 200),
        ("/v1/forward-auth", of("1"), 429),
        ("/v1/forward-auth", of("2"), 200),
        ("/v1/forward-auth/nginx", of("2"), 403),
        ("/v1/forward-auth/nginx", [&original[..], &[("x-user-id", "2")]].concat(), 403),
        ("/v1/forward-auth", vec![("x-forwarded-uri", "/upload"), ("x-user-id", "2")], 200),
    ];
    for (path, headers, status) in rows {
        assert_eq!(trusting.request("GET", path, &headers, "").status, status, "{headers:?}");
        let ignored = wary.request("GET", path, &headers, "");
        assert_eq!((ignored.status, ignored.header("ratelimit")), (200, None), "{headers:?}");
    }
}

#[test]
fn a_listener_that_cannot_wait_refuses() {
    let (server, _rules) = serve(
        "rules:
  - name: export
    key: '{ip}'
    limits: [{ rate: 1/hour, burst: 5, algorithm: leaky_bucket, queue: true }]
",
    );
    let client = [("x-forwarded-for", "192.0.2.1")];
    assert_eq!(server.request("GET", "/v1/forward-auth", &client, "").status, 200);
    for _ in 0..10 {
        let refused = server.request("GET", "/v1/forward-auth", &client, "");
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("3600")));
    }
    let delayed = server.check(r#"{"ip":"192.0.2.1"}"#);
    assert_eq!(delayed["allowed"], true, "refusals took no place in the queue");
    assert!(delayed["delay_ms"].as_u64().unwrap() > 3_500_000, "{delayed}");
}

#[test]
fn headers_of_a_question_are_facts() {
    let (server, _rules) = serve(
        "identify:
  trusted_peers: [10.0.0.0/8]
  user: { header: x-user-id }
  tier: { header: x-tier }
tiers: { free: 1, pro: 10 }
rules:
  - name: tenant
    match: { header: { x-tenant: acme } }
    key: '{user|ip}'
    limits: [2/hour]
    tiered: true
",
    );
    let ask = |facts: &str, headers: &str| {
        let body = format!(r#"{{{facts}"cost":0,"headers":{{"X-Tenant":"acme"{headers}}}}}"#);
        server.post("/v1/check", &body).json()["max"].as_u64()
    };
    assert_eq!(ask(r#""user":"1","#, ""), Some(2));
    assert_eq!(ask(r#""user":"1","tier":"pro","#, ""), Some(20));
    assert_eq!(ask(r#""ip":"10.1.1.1","#, r#","x-user-id":"1","x-tier":"pro""#), Some(20));
    assert_eq!(ask(r#""ip":"192.0.2.1","#, r#","x-tier":"pro""#), Some(2), "a stranger's claim");
    assert_eq!(ask("", r#","x-user-id":"1""#), None, "nobody to trust");
}

#[test]
fn broken_rules_are_shown_and_nothing_is_served() {
    let directory = tempdir().unwrap();
    let broken = file(directory.path(), "rules.yaml", "rules:\n  - name: a\n    limit: [1/s]\n");
    let missing = directory.path().join("missing.yaml");
    for (path, want) in [(&broken, "rules.yaml:3:5"), (&missing, "missing.yaml")] {
        let Err(ended) = TollgateProcess::try_start(&["--rules", text(path)], |_| {}) else {
            panic!("{want} is served")
        };
        assert_eq!(ended.code, Some(1));
        assert!(ended.stderr.contains(want), "{ended:?}");
        assert!(ended.stderr.contains("the server does not start"), "{ended:?}");
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn directories_and_lists_of_files_are_read() {
    let directory = tempdir().unwrap();
    let rule =
        |name: &str| format!("rules: [{{ name: {name}, key: '{{user}}', limits: [9/hour] }}]");
    let one = file(directory.path(), "one.yaml", rule("one"));
    let two = file(directory.path(), "two.yaml", rule("two"));
    let both = format!("{},{}", text(&one), text(&two));
    let rules_of = |server: TollgateProcess| {
        let limits = server.check(r#"{"user":"1"}"#)["limits"].clone();
        limits.as_array().unwrap().iter().map(|one| one["rule"].to_string()).collect::<String>()
    };
    let want = r#""one""two""#;
    assert_eq!(rules_of(TollgateProcess::start(&["--rules", text(directory.path())])), want);
    assert_eq!(
        rules_of(TollgateProcess::start(&["--rules", text(&one), "--rules", text(&two)])),
        want
    );
    let listed = TollgateProcess::start_with(&[], |command| {
        command.env("TOLLGATE_RULES", &both);
    });
    assert_eq!(rules_of(listed), want);
    let config = format!("rules: [{}, {}]\n", text(&one), text(&two));
    let config = file(directory.path(), "settings.txt", config);
    assert_eq!(rules_of(TollgateProcess::start(&["--config", text(&config)])), want);
}

#[test]
fn a_proxy_that_is_not_trusted_is_told_of_once() {
    let (mut server, _rules) = serve(
        "identify: { trusted_peers: [10.0.0.0/8] }
rules:
  - { name: api, key: '{ip}', limits: [9/hour] }
",
    );
    for _ in 0..5 {
        let headers = [("x-forwarded-for", "192.0.2.1"), ("x-forwarded-uri", "/secret")];
        assert_eq!(server.request("GET", "/v1/forward-auth", &headers, "").status, 200);
    }
    server.wait_for_log("identify.trusted_peers");
    let told = server.stop().stderr;
    assert_eq!(told.matches("identify.trusted_peers").count(), 1, "{told}");
    assert!(told.contains("127.0.0.1") && !told.contains("secret"), "{told}");
}

#[test]
fn a_proxy_that_does_not_say_what_it_asks_about_is_told_of_once() {
    let rule =
        |when: &str| format!("rules: [{{ name: api, {when}key: '{{ip}}', limits: [9/hour] }}]\n");
    let method = ("x-forwarded-method", "GET");
    let uri = ("x-original-uri", "/secret");
    // a condition, what the proxy says, lines
    let rows = [
        ("", &[][..], 0),
        ("match: { header: { x-tenant: acme } }, ", &[], 0),
        ("match: { path: /login }, ", &[], 1),
        ("match: { not: { any: [{ path: /login }] } }, ", &[method], 1),
        ("match: { path: /login }, ", &[uri], 0),
        ("match: { method: POST }, ", &[uri], 1),
        ("match: { method: POST }, ", &[method], 0),
    ];
    for (when, says, lines) in rows {
        let (mut server, _rules) = serve(&rule(when));
        for _ in 0..5 {
            assert_eq!(server.request("GET", "/v1/forward-auth", says, "").status, 200);
        }
        if lines > 0 {
            server.wait_for_log("X-Forwarded-Uri");
        }
        let told = server.stop().stderr;
        assert_eq!(told.matches("X-Forwarded-Uri").count(), lines, "{when}{says:?}: {told}");
        assert!(!told.contains("secret"), "{told}");
    }
}

#[test]
fn limits_that_are_left_out_are_told() {
    let rules: String = (0..17)
        .map(|n| (n, if n < 16 { "enforce" } else { "shadow" }))
        .map(|(n, mode)| {
            format!("  - {{ name: r{n}, key: '{{user}}', limits: [9/hour], mode: {mode} }}\n")
        })
        .collect();
    let (mut server, _rules) = serve(&format!("rules:\n{rules}"));
    assert_eq!(server.check(r#"{"user":"alice"}"#)["limits"].as_array().unwrap().len(), 16);
    server.wait_for_log("more than 16 limits apply to a request");
    assert!(!server.stop().stderr.contains("alice"), "no key is named");
}
