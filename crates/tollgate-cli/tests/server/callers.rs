//! One caller in many spellings: hosts and header fields of forward-auth, stated API keys, and an operator who looks for
//! a caller.

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::harness::{ProcessExit, TollgateProcess, file, run, text};

/// Starts a server with these rules.
fn start(rules: &str) -> (TollgateProcess, TempDir) {
    let directory = tempdir().unwrap();
    let rules = file(directory.path(), "rules.yaml", rules);
    (TollgateProcess::start(&["--rules", text(&rules)]), directory)
}

#[test]
fn forward_auth_takes_the_host_from_trusted_proxies_in_any_spelling() {
    let (server, _directory) = start(
        "rules: [{ name: api, match: { host: api.example }, key: '{host}', limits: [{ rate: 2/hour, algorithm: sliding_window_log }] }]",
    );
    let ask = |hosts: &[&str]| {
        let mut headers = vec![("x-forwarded-method", "GET"), ("x-forwarded-uri", "/")];
        headers.extend(hosts.iter().map(|host| ("x-forwarded-host", *host)));
        server.request("GET", "/v1/forward-auth", &headers, "").status
    };
    assert_eq!(ask(&["other.example"]), 200);
    assert_eq!(ask(&["api.example"]), 200);
    assert_eq!(ask(&["API.example.:443"]), 200, "the second of two");
    for hosts in [&["api.example"][..], &["Api.Example:1"], &["forged, api.example."]] {
        assert_eq!(ask(hosts), 429, "{hosts:?}");
    }
    // Two lines leave the fast lane.
    assert_eq!(ask(&["forged", "API.EXAMPLE"]), 429, "the nearest proxy's");
    assert_eq!(ask(&["api.example", "other"]), 200);
    // Without the field, the host is unknown: `Host` names this server.
    assert_eq!(ask(&[]), 200);
    let explicit = r#"{"host":"API.EXAMPLE:8080"}"#;
    assert_eq!(server.request("POST", "/v1/check", &[], explicit).status, 429);
    let in_headers = r#"{"headers":{"Host":"api.example."}}"#;
    assert_eq!(server.request("POST", "/v1/check", &[], in_headers).status, 429);
}

#[test]
fn forward_auth_refuses_fields_that_are_mistaken_for_counted_ones() {
    let (server, _directory) =
        start("rules: [{ name: api, key: '{header.x-tenant}', limits: [100/hour] }]");
    let ask = |headers: &[(&str, &str)]| server.request("GET", "/v1/forward-auth", headers, "");
    assert_eq!(ask(&[("x-tenant", "a")]).status, 200);
    assert_eq!(ask(&[("x-other_field", "a")]).status, 200);
    for headers in [&[("x-tenant", "a"), ("x_tenant", "b")][..], &[("X_Tenant", "b")]] {
        let refused = ask(headers);
        assert_eq!(refused.status, 400, "{headers:?}");
        assert!(refused.body.contains("mistake"), "{refused:?}");
    }
}

const BY_API_KEY: &str = "
identify:
  user: { api_key: { header: x-api-key } }
  tier: { users: { 'sha256:ba7816bf8f01cfea414140de5dae2223': pro }, default: free }
tiers: { free: 1, pro: 10 }
rules:
  - { name: api, match: { path: /api }, key: '{user|ip}', limits: [{ rate: 5/hour, algorithm: sliding_window_log }], tiered: true }
  - { name: login, match: { path: /login }, key: '{user}', limits: [100/hour] }
  - { name: export, match: { path: '/export/{*rest}' }, key: '{user}:{path}', limits: [10/hour] }
  - { name: addresses, match: { path: /a }, key: '{ip}', limits: [100/hour] }
";

/// The hash of the API key `abc`.
const ABC: &str = "user=sha256:ba7816bf8f01cfea414140de5dae2223";

#[test]
fn a_stated_api_key_is_the_user_in_checks_batches_and_on_the_command_line() {
    let (server, directory) = start(BY_API_KEY);
    let check = server.check(r#"{"path":"/api","ip":"192.0.2.1","api_key":"abc"}"#);
    assert_eq!((check["max"].as_u64(), check["remaining"].as_u64()), (Some(50), Some(49)));
    let batch = r#"[{"path":"/api","ip":"192.0.2.1","api_key":"abc"}]"#;
    let batch = server.request("POST", "/v1/check/batch", &[], batch).json();
    assert_eq!(batch[0]["remaining"], 48);
    let reserved = r#"{"path":"/api","ip":"192.0.2.1","api_key":"abc"}"#;
    let reserved = server.request("POST", "/v1/reserve", &[], reserved).json();
    assert_eq!(reserved["remaining"], 47);
    let key = file(directory.path(), "key", "abc\n");
    let url = format!("http://{}", server.http());
    let admin = format!("http://{}", server.admin());
    let ask = |more: &[&str]| {
        let args = ["ask", "--server", &url, "--path", "/api", "--ip", "192.0.2.1", "--json"];
        run(&[&args, more].concat())
    };
    let asked = ask(&["--api-key-file", text(&key)]);
    assert_eq!((asked.code, &*asked.stderr), (Some(0), ""));
    let answer: Value = serde_json::from_str(&asked.stdout).expect("JSON");
    assert_eq!(answer["remaining"], 46);
    assert_eq!(ask(&["--api-key-file", "/nowhere"]).code, Some(1));
    let explained = ask(&["--api-key-file", text(&key), "--explain", "--admin", &admin]);
    assert!(explained.stdout.contains(ABC), "{explained:?}");
    assert!(!explained.stdout.contains("\"abc\""), "the key is a secret");
}

#[test]
fn an_operator_who_looks_for_a_customer_is_told_when_there_is_none() {
    let (server, _directory) = start(BY_API_KEY);
    let admin = format!("http://{}", server.admin());
    let keys = |args: &[&str]| run(&[&["keys"], args, &["--admin", &admin]].concat());
    let shown = |ended: ProcessExit| {
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{ended:?}");
        ended.stdout
    };
    // A text without a name is the key, which nobody has used yet.
    let unseen = shown(keys(&["show", "api", "cust-42"]));
    assert!(unseen.contains("was never seen by this server"), "{unseen}");
    assert!(unseen.contains("free (current)") && !unseen.contains("cust-42"), "{unseen}");
    // A change that came before any request says so too.
    for change in [
        &["override", "api", "cust-43", "--limit", "9/hour"][..],
        &["block", "api", "cust-44", "--for", "1h"],
    ] {
        let changed = shown(keys(change));
        assert!(changed.contains("was never seen by this server"), "{change:?} {changed}");
    }
    let hidden = keys(&["block", "api", "user=(not shown)", "--for", "1h"]);
    assert!(hidden.stderr.contains("do not show credentials"), "{hidden:?}");
    // A user that is no hash is nobody.
    for args in [
        &["show", "api", "user=cust-42"][..],
        &["override", "api", "user=cust-42", "--limit", "9/hour"],
        &["block", "api", "user=cust-42", "--for", "1h"],
        &["block", "--all-rules", "user=cust-42", "--for", "1h"],
    ] {
        let refused = keys(args);
        assert_eq!(refused.code, Some(1), "{args:?} {refused:?}");
        assert!(refused.stderr.contains("api_key=KEY"), "{args:?} {refused:?}");
    }
    // One that a check has stated is somebody.
    server.check(r#"{"path":"/api","user":"cust-42"}"#);
    let stated = shown(keys(&["show", "api", "user=cust-42"]));
    assert!(!stated.contains("never seen"), "{stated}");
    // A key in use is found by itself, in the tier that is its own.
    server.check(r#"{"path":"/api","api_key":"abc"}"#);
    for name in ["abc", "api_key=abc", ABC] {
        let seen = shown(keys(&["show", "api", name]));
        assert!(seen.starts_with(&format!("{ABC} is allowed: 49 of 50 left")), "{seen}");
    }
    let json = shown(keys(&["show", "api", "abc", "--json"]));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["seen"], &json["tier"]), (&true.into(), &"pro".into()));
}

#[test]
fn a_key_that_was_typed_in_place_of_its_hash_is_shown_nowhere() {
    let rules = "identify: { user: { api_key: { header: x-api-key } } }
rules: [{ name: api, key: '{user}', limits: [5/hour] }]
overrides:
  - { rule: api, key: 'user=typed-secret', limits: [9/hour] }
  - { rule: api, key: abc, limits: [9/hour] }
";
    let (server, _directory) = start(rules);
    let listed = server.admin_get("/api/rules", &[]);
    let overrides = &listed.json()["overrides"];
    let keys = [0, 1].map(|number| overrides[number]["key"].as_str().map(str::to_string));
    assert_eq!(keys, [Some("user=(not shown)".into()), Some(ABC.to_string())]);
    assert!(!listed.body.contains("typed-secret"), "{listed:?}");
    server.check(r#"{"user":"typed-secret"}"#);
    let shown = server.admin_get("/api/keys/api/user=typed-secret", &[]);
    assert_eq!((shown.status, &shown.json()["key"]), (200, &"user=(not shown)".into()));
    assert!(!shown.body.contains("typed-secret"), "{shown:?}");
    // Overrides are told apart by their hashes, which are those of logs.
    assert_eq!(overrides[0]["hash"], shown.json()["hash"]);
    assert_ne!(overrides[0]["hash"], overrides[1]["hash"]);
    let top = server.admin_get("/api/top", &[]);
    assert_eq!(top.json()["top"][0]["key"], "user=(not shown)", "{top:?}");
    assert!(!top.body.contains("typed-secret"), "{top:?}");
}

#[test]
fn a_block_under_all_rules_reaches_every_rule_that_counts_by_the_fact() {
    let (server, _directory) = start(BY_API_KEY);
    let admin = format!("http://{}", server.admin());
    let keys = |args: &[&str]| run(&[&["keys"], args, &["--admin", &admin]].concat());
    let allowed = |path: &str| {
        let body = format!(r#"{{"path":"{path}","ip":"192.0.2.1","api_key":"abc","cost":0}}"#);
        server.request("POST", "/v1/check", &[], &body).status == 200
    };
    let unseen = "user=sha256:ba7816bf8f01cfea414140de5dae2223 was never seen by this server";
    let blocked = keys(&["block", "--all-rules", "api_key=abc", "--for", "1h"]);
    let want = format!(
        "{ABC} is blocked under api, login.\n{unseen}, or so long ago that nothing is kept: is the key right?\n\
         Not under export: its key is {{user}}:{{path}}: block the whole key under this rule.\n"
    );
    assert_eq!((blocked.code, &*blocked.stderr, blocked.stdout), (Some(0), "", want));
    assert_eq!(["/api", "/login", "/export/x", "/a"].map(allowed), [false, false, true, true]);
    let lifted = keys(&["unblock", "--all-rules", ABC]);
    assert!(lifted.stdout.contains("is no longer blocked under api, login."), "{lifted:?}");
    assert!(lifted.stdout.contains("Not under export"), "{lifted:?}");
    assert_eq!(["/api", "/login"].map(allowed), [true, true]);
    assert!(!lifted.stdout.contains("never seen"), "{lifted:?}");
    // Nothing is done for a key that would mean something else under one rule than under the next.
    for (key, want) in [
        ("abc", "write it as in user=42"),
        ("method=GET", "no rule counts by `method`"),
        ("usr=42", "did you mean `user`?"),
        ("api_key=a,b", "write a comma in a value as %2C"),
        ("user=sha256:1,path=/export/x", "block a key of several parts under its own rule"),
        ("ip=192.0.2.999", "is not an address"),
        ("user=(not shown)", "do not show credentials"),
    ] {
        let refused = keys(&["block", "--all-rules", key, "--for", "1h"]);
        assert_eq!((refused.code, &*refused.stdout), (Some(1), ""), "{key}: {refused:?}");
        assert!(refused.stderr.contains(want), "{key}: {refused:?}");
    }
    assert_eq!(keys(&["block", "--all-rules", "api", "abc", "--for", "1h"]).code, Some(2));
    assert_eq!(keys(&["block", "abc", "--for", "1h"]).code, Some(2));
}
