//! `/v1/forward-auth`: what proxies send, and what they get.

use tempfile::tempdir;

use crate::harness::{TestHttpClient, TollgateProcess, file, text};

#[test]
fn a_proxy_asks_for_its_client() {
    let server = TollgateProcess::start(&["--limit", "1/hour"]);
    let ask = |method: &str, path: &str, client: &str| {
        let headers = [
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/api/search?q=1"),
            ("x-forwarded-for", client),
        ];
        server.request(method, path, &headers, "")
    };
    let allowed = ask("GET", "/v1/forward-auth", "192.0.2.1");
    assert_eq!((allowed.status, &*allowed.body), (200, ""));
    assert_eq!(allowed.header("content-length"), Some("0"));
    assert_eq!(allowed.header("x-ratelimit-remaining"), Some("0"));

    let refused = ask("PUT", "/v1/forward-auth", "192.0.2.1");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    assert!(refused.header("retry-after").is_some() && refused.header("ratelimit").is_some());
    assert_eq!(refused.json()["error"], "Too Many Requests");
    assert_eq!(refused.json()["status"], 429);
    assert_eq!(refused.header("location"), None);

    let nginx = ask("GET", "/v1/forward-auth/nginx", "192.0.2.1");
    assert_eq!((nginx.status, nginx.header("x-tollgate-status")), (403, Some("429")));
    assert_eq!(nginx.header("retry-after"), refused.header("retry-after"));
    assert_eq!(ask("GET", "/v1/forward-auth/nginx", "192.0.2.2").status, 200);
}

#[test]
fn a_rule_refuses_in_its_own_words() {
    let folder = tempdir().unwrap();
    let rules = file(
        folder.path(),
        "rules.yaml",
        "rules:
  - name: api
    key: '{ip}'
    limits: [1/hour]
    refusal: { status: 503, body: '{\"later\":true}', content_type: application/json }
",
    );
    let server = TollgateProcess::start(&["--rules", text(&rules)]);
    let ask = |path: &str| server.request("GET", path, &[("x-forwarded-for", "192.0.2.1")], "");
    assert_eq!(ask("/v1/forward-auth").status, 200);
    let refused = ask("/v1/forward-auth");
    assert_eq!((refused.status, &*refused.body), (503, "{\"later\":true}"));
    assert_eq!(refused.header("content-type"), Some("application/json"));
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    assert!(refused.header("retry-after").is_some() && refused.header("ratelimit").is_some());
    // nginx sends no body of a check on; a check is for programs.
    let nginx = ask("/v1/forward-auth/nginx");
    assert_eq!((nginx.status, nginx.header("x-tollgate-status")), (403, Some("429")));
    let check = server.request("POST", "/v1/check", &[], "{\"ip\":\"192.0.2.1\"}");
    assert_eq!((check.status, check.json()["reason"].as_str()), (429, Some("over_limit")));
}

#[test]
fn nothing_is_taken_from_the_query() {
    let server = TollgateProcess::start(&["--limit", "1/hour"]);
    for (query, status) in [("", 200), ("?user=2", 429), ("?deny=403&ip=192.0.2.9", 429)] {
        let path = format!("/v1/forward-auth{query}");
        let headers = [("x-forwarded-for", "192.0.2.1")];
        assert_eq!(server.request("GET", &path, &headers, "").status, status, "{query}");
    }
}

#[test]
fn a_user_whose_name_is_no_text_is_a_user() {
    let directory = tempdir().unwrap();
    let rules = "identify: { user: { header: x-user }, tier: { header: x-tier } }\n\
        rules: [{ name: users, key: '{user}', limits: [2/hour] }]";
    let rules = file(directory.path(), "rules.yaml", rules);
    let server = TollgateProcess::start(&["--rules", text(&rules)]);
    let mut client = TestHttpClient::connect(server.http());
    let mut ask = |user: &[u8]| {
        let head = b"GET /v1/forward-auth HTTP/1.1\r\nhost: a\r\nx-tier: \xfc\r\nx-user: ";
        client.send(&[head, user, b"\r\n\r\n"].concat()).unwrap();
        client.receive(true).unwrap().status
    };
    assert_eq!([ask(b"m\xfcller"), ask(b"m\xfcller"), ask(b"m\xfcller")], [200, 200, 429]);
    assert_eq!(ask(b"m\xf6ller"), 200, "somebody else");
    // By every listener the same.
    let user = server.check(r#"{"user":"m%FCller"}"#);
    assert_eq!(user["allowed"], false);
}

#[test]
fn odd_bytes_and_second_values_do_not_escape() {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/rules/login.yaml");
    let server = TollgateProcess::start(&["--rules", rules]);
    let mut client = TestHttpClient::connect(server.http());
    let mut ask = |uri: &[u8]| {
        let mut bytes =
            b"GET /v1/forward-auth HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.1\r\n\
            x-forwarded-method: POST\r\nx-forwarded-uri: "
                .to_vec();
        bytes.extend_from_slice(uri);
        bytes.extend_from_slice(b"\r\n\r\n");
        client.send(&bytes).unwrap();
        client.receive(true).unwrap().status
    };
    let statuses: Vec<u16> = (0..6).map(|_| ask(b"/login?\xff")).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    assert_eq!(ask(b"/other\r\nx-forwarded-uri: /login"), 400);
}

/// A page whose name resolves to this machine may set every header but `Host` and a few others, and so
/// could ask for anybody.
#[test]
fn a_page_under_a_name_of_its_own_asks_for_nobody() {
    let directory = tempdir().unwrap();
    let token = "0123456789abcdef0123456789abcdef";
    let tokens = file(directory.path(), "token", token);
    let flags = ["--limit", "1000/hour burst 1000", "--auth-token-file", text(&tokens)];
    let (mut server, guarded) =
        (TollgateProcess::start(&flags[..2]), TollgateProcess::start(&flags));
    // Host | whether a page may have it
    let rows = [
        ("127.0.0.1:8080", false),
        ("localhost:8080", false),
        ("[::1]:8080", false),
        ("192.0.2.7", false),
        ("tollgate", false),
        ("evil.example:8080", true),
        ("www.evil.example", true),
        ("127.0.0.1.evil.example", true),
        ("[::1].evil.example", true),
    ];
    let victim = ("x-forwarded-for", "192.0.2.1");
    let mut taken = 0;
    for path in ["/v1/forward-auth", "/v1/forward-auth/nginx", "/v1/check"] {
        for (host, rebound) in rows {
            let headers = [victim, ("host", host)];
            let answer = server.request("POST", path, &headers, r#"{"ip":"192.0.2.1"}"#);
            assert_eq!(answer.status, if rebound { 403 } else { 200 }, "{path} {host}");
            assert!(!rebound || answer.message().contains("--auth-token-file"), "{answer:?}");
            taken += u64::from(!rebound);
        }
    }
    let left = server.check(r#"{"ip":"192.0.2.1","cost":0}"#)["remaining"].as_u64();
    assert_eq!(left, Some(1_000 - taken), "what was refused has taken nothing");
    let line = server.wait_for_log("configure the proxy to send Tollgate's own address as");
    assert!(line.contains("host=evil.example:8080"), "{line}");
    // Browsers let no page send Via, and no page has a token.
    let page = [victim, ("host", "www.example.com")];
    let with = |server: &TollgateProcess, field| {
        server.request("GET", "/v1/forward-auth", &[&page[..], &[field]].concat(), "").status
    };
    assert_eq!(with(&server, ("via", "1.1 proxy")), 200);
    assert_eq!(with(&server, ("x-other", "1.1 proxy")), 403);
    assert_eq!(with(&guarded, ("x-tollgate-token", token)), 200);
}
