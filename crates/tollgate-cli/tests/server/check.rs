//! `/v1/check` and `/v1/check/batch`: bodies, answers, errors.

use serde_json::json;

use crate::harness::{TestHttpClient, TollgateProcess, file, text};

#[test]
fn a_decision_has_its_fields_in_order_and_its_headers() {
    let server = TollgateProcess::start(&["--limit", "2/hour burst 2"]);
    let first = server.post("/v1/check", r#"{"user":"42"}"#);
    assert_eq!(first.status, 200);
    assert_eq!(first.header("x-ratelimit-limit"), Some("2"));
    assert_eq!(first.header("x-ratelimit-remaining"), Some("1"));
    assert_eq!(first.header("ratelimit-policy"), Some(r#""default-1h";q=2;w=3600"#));
    assert_eq!(first.header("ratelimit"), Some(r#""default-1h";r=1;t=1800"#));
    assert_eq!(first.header("content-type"), Some("application/json"));
    assert_eq!(first.header("retry-after"), None);
    let reset_at = first.json()["reset_at"].to_string();
    assert_eq!(first.header("x-ratelimit-reset"), Some(&*reset_at));
    let want = format!(
        r#"{{"allowed":true,"rule":"default","limit":"2/hour burst 2","remaining":1,"retry_after_ms":0,"reset_after_ms":1800000,"delay_ms":0,"max":2,"reset_at":{reset_at},"decided_by":"memory","limits":[{{"rule":"default","limit":"2/hour burst 2","allowed":true,"remaining":1,"retry_after_ms":0,"reset_after_ms":1800000}}]}}"#
    );
    assert_eq!(first.body, want);

    server.check(r#"{"user":"42"}"#);
    let refused = server.post("/v1/check", r#"{"user":"42"}"#);
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    let decision = refused.json();
    assert_eq!(decision["allowed"], false);
    assert_eq!(decision["error"], "Too Many Requests");
    let retry_after = decision["retryAfter"].as_u64().expect("a number");
    assert_eq!(refused.header("retry-after"), Some(&*retry_after.to_string()));
    assert_eq!(decision["message"], format!("Rate limit exceeded. Retry in {retry_after} s."));
    let retry_after_ms = decision["retry_after_ms"].as_u64().expect("a number");
    assert_eq!(retry_after_ms.div_ceil(1_000), retry_after);
    assert!(server.check(r#"{"user":"43"}"#)["allowed"].as_bool().unwrap(), "somebody else");
}

#[test]
fn no_wait_helps_a_cost_above_the_limit() {
    let server = TollgateProcess::start(&["--limit", "2/hour"]);
    let refused = server.post("/v1/check", r#"{"user":"42","cost":3}"#);
    assert_eq!((refused.status, refused.header("retry-after")), (429, None));
    let decision = refused.json();
    assert_eq!(
        (&decision["retry_after_ms"], &decision["retryAfter"]),
        (&json!(null), &json!(null))
    );
    assert_eq!(decision["message"], "Rate limit exceeded. Waiting does not help.");
    assert_eq!(server.check(r#"{"user":"42","cost":0}"#)["remaining"], 2, "nothing was charged");
}

#[test]
fn without_a_rule_there_are_no_headers() {
    let directory = tempfile::tempdir().unwrap();
    let rules = "rules: [{ name: api, match: { path: /api }, key: '{user}', limits: [2/hour] }]";
    let rules = file(directory.path(), "rules.yaml", rules);
    let server = TollgateProcess::start(&["--rules", text(&rules)]);
    for body in ["", "{}", r#"{"path":"/"}"#] {
        let answer = server.post("/v1/check", body);
        assert_eq!(answer.status, 200);
        let names: Vec<_> = answer.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["content-type", "content-length", "date"]);
        assert_eq!(
            answer.body,
            r#"{"allowed":true,"rule":null,"limit":null,"remaining":null,"retry_after_ms":0,"reset_after_ms":0,"delay_ms":0,"max":null,"reset_at":null,"decided_by":"memory","limits":[]}"#
        );
    }
}

#[test]
fn wrong_bodies_are_told_what_is_wrong() {
    let server = TollgateProcess::start(&["--limit", "2/hour"]);
    // path, body | status, message
    let rows = [
        ("/v1/check", "x", 400, "Line 1, column 1: expected an object with any of method"),
        ("/v1/check", "[]", 400, "expected an object with any of method, path"),
        (
            "/v1/check",
            r#"{"usr":"1"}"#,
            400,
            "there is no field \"usr\": write any of method, path",
        ),
        (
            "/v1/check",
            r#"{"cost":-1}"#,
            400,
            "expected a whole number from 0 to 9007199254740991 for \"cost\", found `-1`",
        ),
        ("/v1/check", r#"{"ip":"1.2.3"}"#, 400, "expected an address for \"ip\""),
        ("/v1/check", r#"{"user":"a","user":"b"}"#, 400, "\"user\" appears twice"),
        ("/v1/check", "{\"user\":\"\u{0}\"}", 400, "control character"),
        ("/v1/check/batch", "{}", 400, "expected an array of at most 1000 checks"),
        ("/v1/check/batch", "", 400, "checks, found the end of the body."),
        ("/v1/check/batch", r#"[{},{"x":1}]"#, 400, "in check 1, there is no field \"x\""),
        ("/v1/reserve", r#"{"expires_in_ms":0}"#, 400, "\"expires_in_ms\" must be from 1 to"),
        ("/v1/commit", r#"{"cost":1}"#, 400, "A commit needs both \"reservation\" and \"cost\"."),
        ("/v1/refund", r#"{"reservation":"x","user":"1"}"#, 400, "\"reservation\" alone"),
        ("/v1/chek", "{}", 404, "There is no such path. There are: POST /v1/check"),
    ];
    for (path, body, status, want) in rows {
        let answer = server.post(path, body);
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        assert!(answer.message().contains(want), "{body}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    let binary = {
        let mut client = TestHttpClient::connect(server.http());
        client.send(b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 14\r\n\r\n{\"user\":\"\xff\xfe\"} ").unwrap();
        client.receive(true).unwrap()
    };
    assert_eq!(binary.status, 400, "{binary:?}");
    let answer = server.get("/v1/check");
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
    let answer = server.post("/openapi.json", "");
    assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, HEAD")));
    assert_eq!(server.check(r#"{"user":"1","cost":0}"#)["remaining"], 2, "nothing was charged");
}

#[test]
fn long_messages_are_cut() {
    let server = TollgateProcess::start(&["--limit", "2/hour"]);
    let answer = server.post("/v1/check", &format!(r#"{{"{}":1}}"#, "x".repeat(60_000)));
    assert_eq!(answer.status, 400);
    assert!(answer.body.len() < 600, "{} bytes", answer.body.len());
}

#[test]
fn bodies_have_a_cap() {
    let server = TollgateProcess::start(&["--limit", "2/hour"]);
    let spaces = |bytes: usize| " ".repeat(bytes - 12) + r#"{"user":"1"}"#;
    assert_eq!(server.post("/v1/check", &spaces(65_536)).status, 200);
    let answer = server.post("/v1/check", &spaces(65_537));
    assert_eq!((answer.status, answer.header("connection")), (413, Some("close")));
    assert_eq!(answer.message(), "The body may have at most 65536 bytes.");
    let batch = |bytes: usize| " ".repeat(bytes - 2) + "[]";
    assert_eq!(server.post("/v1/check/batch", &batch(1 << 20)).status, 200);
    let headers = [("content-length", "1048577")];
    let mut client = TestHttpClient::connect(server.http());
    let head = format!(
        "POST /v1/check/batch HTTP/1.1\r\nhost: a\r\n{}: {}\r\n\r\n",
        headers[0].0, headers[0].1
    );
    client.send(head.as_bytes()).unwrap();
    assert_eq!(client.receive(true).unwrap().status, 413, "before any of it is sent");

    // Without a length the server counts.
    let mut client = TestHttpClient::connect(server.http());
    client
        .send(b"POST /v1/check HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        .unwrap();
    let chunk = format!("8000\r\n{}\r\n", " ".repeat(0x8000));
    for _ in 0..3 {
        // It may answer and close before it has read all of them.
        let _ = client.send(chunk.as_bytes());
    }
    assert_eq!(client.receive(true).unwrap().status, 413);
}

#[test]
fn a_batch_is_decided_in_order_at_one_instant() {
    let server = TollgateProcess::start(&["--limit", "2/hour burst 2"]);
    let answer = server
        .post("/v1/check/batch", r#"[{"user":"1"},{"user":"1"},{"user":"2"},{"user":"1"},{}]"#);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-ratelimit-limit"), None);
    let answers = answer.json();
    let column = |name: &str| -> Vec<_> {
        answers.as_array().unwrap().iter().map(|one| one[name].clone()).collect()
    };
    assert_eq!(
        column("allowed"),
        [json!(true), json!(true), json!(true), json!(false), json!(false)]
    );
    assert_eq!(column("remaining"), [json!(1), json!(0), json!(1), json!(0), json!(null)]);
    assert_eq!(answers[3]["retry_after_ms"], 1_800_000, "no time has passed between them");
    assert_eq!(answers[3]["error"], "Too Many Requests");
    assert_eq!(server.post("/v1/check/batch", "[]").body, "[]");
}

#[test]
fn one_connection_serves_many_requests() {
    let server = TollgateProcess::start(&["--limit", "1000/hour"]);
    let mut client = TestHttpClient::connect(server.http());
    for left in (900..1_000).rev() {
        let answer = client.request("POST", "/v1/check", &[], r#"{"user":"42"}"#);
        assert_eq!(answer.json()["remaining"], left);
    }
    // All at once: answered in order.
    let one = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 13\r\n\r\n{\"user\":\"42\"}";
    client.send(one.repeat(50).as_bytes()).unwrap();
    for left in (850..900).rev() {
        assert_eq!(client.receive(true).unwrap().json()["remaining"], left);
    }
}

#[test]
fn the_openapi_document_is_served() {
    let server = TollgateProcess::start(&["--limit", "1/hour"]);
    let document = server.get("/openapi.json");
    assert_eq!(document.status, 200);
    assert_eq!(document.json()["openapi"], "3.1.0");
    let head = server.request("HEAD", "/openapi.json", &[], "");
    assert_eq!(head.header("content-length"), Some(&*document.body.len().to_string()));
}
