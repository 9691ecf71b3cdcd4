//! Who is calling, through the server: signed tokens and API keys, whoever passes them on.

use std::fs;

use tempfile::{TempDir, tempdir};

use crate::harness::{TollgateProcess, file, text};

const SECRET: &str = "a secret of at least 32 bytes, one";
const OTHER_SECRET: &str = "a secret of at least 32 bytes, two";
/// Of `{"sub":"anna","plan":"pro"}` until 2100, by `SECRET` with HS256.
const GOOD: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm5hIiwicGxhbiI6InBybyIsImV4cCI6NDEwMjQ0NDgwMH0.I1g6KWbmUgiDt9Ne1kmWlJXzeL6siE0mtZN5I9CogpQ";
/// The same by `OTHER_SECRET`.
const OTHER: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm5hIiwicGxhbiI6InBybyIsImV4cCI6NDEwMjQ0NDgwMH0.cJSTDtj7Xdbmtq-_fAEacbLQ6DCGCZRp0MYvYalktwY";
/// The same by `SECRET`, until 2001.
const EXPIRED: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm5hIiwicGxhbiI6InBybyIsImV4cCI6MTAwMDAwMDAwMH0.Dbn_X8eQTfXj_VtImqBR5HSc58GBTu8pYE_rWivwHUc";

const RULES: &str = "identify:
  trusted_peers: [10.0.0.0/8]
  user: { jwt: { claim: sub, keys_file: keys/secret, algorithms: [HS256] } }
  tier: { claim: plan }
tiers: { free: 1, pro: 10 }
rules:
  - { name: users, match: { user: { present: true } }, key: '{user}', limits: [3/hour], tiered: true }
  - { name: strangers, fallback: true, key: '{ip}', limits: [7/hour] }
";

/// A server with these rules and a secret below the directory of the rules file.
fn serve(rules: &str) -> (TollgateProcess, TempDir) {
    let directory = tempdir().unwrap();
    fs::create_dir(directory.path().join("keys")).unwrap();
    file(&directory.path().join("keys"), "secret", SECRET);
    let rules = file(directory.path(), "rules.yaml", rules);
    (TollgateProcess::start(&["--rules", text(&rules)]), directory)
}

#[test]
fn a_token_names_its_user_from_any_peer_and_no_other_does() {
    let (server, _directory) = serve(RULES);
    let bearer = |token: &str| format!("Bearer {token}");
    // Where the token is, and how much its caller may do.
    let rows = [(GOOD, Some(30)), (OTHER, Some(7)), (EXPIRED, Some(7)), ("garbage", Some(7))];
    for (token, most) in rows {
        let body = format!(
            r#"{{"ip":"192.0.2.1","cost":0,"headers":{{"Authorization":"{}"}}}}"#,
            bearer(token)
        );
        assert_eq!(server.check(&body)["max"].as_u64(), most, "{token}");
    }
    // The peer of these is not trusted, and is known by its address.
    let ask = |token: &str| {
        let headers = [("authorization", &*bearer(token)), ("x-forwarded-for", "192.0.2.1")];
        server.request("GET", "/v1/forward-auth", &headers, "")
    };
    let passing = |token, tries| (0..tries).filter(|_| ask(token).status == 200).count();
    assert_eq!((passing(GOOD, 40), passing(OTHER, 5), passing(EXPIRED, 5)), (30, 5, 2));
    // Whoever states the user is believed more than any token.
    let stated = format!(
        r#"{{"user":"otto","cost":0,"headers":{{"Authorization":"{}"}}}}"#,
        bearer(EXPIRED)
    );
    assert_eq!(server.check(&stated)["max"].as_u64(), Some(3));
    // And the tier of one user is not that of another.
    for (user, most) in [("anna", Some(30)), ("otto", Some(3))] {
        let token = bearer(GOOD);
        let body =
            format!(r#"{{"user":"{user}","cost":0,"headers":{{"Authorization":"{token}"}}}}"#);
        assert_eq!(server.check(&body)["max"].as_u64(), most, "{user}");
    }
    let said = server.stop();
    for secret in [SECRET, GOOD, OTHER, EXPIRED] {
        assert!(!said.stderr.contains(secret) && !said.stdout.contains(secret));
    }
}

#[test]
fn a_changed_key_counts_without_a_restart() {
    let (mut server, directory) = serve(RULES);
    let most = |server: &TollgateProcess, token: &str| {
        let body = format!(
            r#"{{"ip":"192.0.2.1","cost":0,"headers":{{"Authorization":"Bearer {token}"}}}}"#
        );
        server.check(&body)["max"].as_u64()
    };
    assert_eq!((most(&server, GOOD), most(&server, OTHER)), (Some(30), Some(7)));
    file(&directory.path().join("keys"), "secret", OTHER_SECRET);
    server.wait_for_log("rules reloaded");
    assert_eq!((most(&server, GOOD), most(&server, OTHER)), (Some(7), Some(30)));
    file(&directory.path().join("keys"), "secret", "too short");
    server.wait_for_log("at least 32 bytes");
    assert_eq!((most(&server, GOOD), most(&server, OTHER)), (Some(7), Some(30)), "the old stays");
    let said = server.stop();
    assert!(!said.stderr.contains(OTHER_SECRET) && !said.stderr.contains("too short"), "{said:?}");
}

#[test]
fn an_api_key_is_a_user_whose_name_is_a_hash() {
    let (server, _directory) = serve(
        "identify:
  user: { api_key: { header: x-api-key } }
  tier: { users: { 'sha256:ba7816bf8f01cfea414140de5dae2223': pro }, default: free }
tiers: { free: 1, pro: 10 }
rules:
  - { name: users, key: '{user|ip}', limits: [3/hour], tiered: true }
  - { name: keys, key: '{api_key}', limits: [5/hour] }
overrides:
  - { rule: keys, key: abc, limits: [20/hour] }
",
    );
    let passing = |key: &str, tries| {
        let ask = || server.request("GET", "/v1/forward-auth", &[("x-api-key", key)], "");
        (0..tries).filter(|_| ask().status == 200).count()
    };
    assert_eq!(passing("abc", 40), 20, "the override, which is less than the tier");
    assert_eq!(passing("def", 40), 3);
    assert_eq!(
        passing("sha256:ba7816bf8f01cfea414140de5dae2223", 40),
        3,
        "not the key of the hash"
    );
}

#[test]
fn a_second_api_key_beside_the_first_buys_nothing() {
    let (server, _directory) = serve(
        "identify: { user: { api_key: { header: x-api-key } } }
rules:
  - { name: users, key: '{user}', limits: [3/hour] }
  - { name: tenants, match: { header: { x-tenant: { present: true } } }, key: '{header.x-tenant}', limits: [3/hour] }
",
    );
    for name in ["x-api-key", "x-tenant"] {
        let statuses = |fields: &dyn Fn(usize) -> Vec<String>| -> Vec<u16> {
            let ask = |n: usize| {
                let fields = fields(n);
                let fields: Vec<_> = fields.iter().map(|value| (name, value.as_str())).collect();
                server.request("GET", "/v1/forward-auth", &fields, "").status
            };
            (0..5).map(ask).collect()
        };
        let real = || "real".to_string();
        assert_eq!(statuses(&|n| vec![format!("g{n}"), real()]), [400; 5], "{name}");
        assert_eq!(statuses(&|n| vec![real(), format!("g{n}")]), [400; 5], "{name}");
        assert_eq!(statuses(&|_| vec![String::new(), real()]), [400; 5], "{name}");
        assert_eq!(statuses(&|_| vec![real(), real()]), [200, 200, 200, 429, 429], "{name}");
    }
}
