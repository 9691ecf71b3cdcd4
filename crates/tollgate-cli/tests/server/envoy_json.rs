//! `POST /json`: what the reference server has under this path and what curl sees.

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::harness::{TestHttpClient, TollgateProcess, file, text};

const RULES: &str = "
domain: classic
descriptors:
  - { key: two, rate_limit: { name: of-two, unit: year, requests_per_unit: 2 } }
  - { key: free, rate_limit: { unlimited: true } }
";

#[test]
fn questions_and_answers_are_those_of_the_reference_server() {
    let directory = tempdir().unwrap();
    let path = file(directory.path(), "rules.yaml", RULES);
    let server = TollgateProcess::start(&["--rules", text(&path)]);
    let two = r#"{"domain":"classic","descriptors":[{"entries":[{"key":"two","value":"a"}]}]}"#;
    let both = r#"{"domain":"classic","descriptors":[{"entries":[{"key":"free","value":"a"}]},
        {"entries":[{"key":"two","value":"b"}],"hits_addend":"2"},{"entries":[{"key":"x"}]}]}"#;
    let limit = json!({ "name": "of-two", "requestsPerUnit": 2, "unit": "YEAR" });
    let status = |code: &str, left: u64| {
        let mut status = json!({ "code": code, "currentLimit": limit });
        if left > 0 {
            status["limitRemaining"] = left.into();
        }
        status
    };
    let free = json!({ "code": "OK", "limitRemaining": 4_294_967_295_u64 });
    let whole =
        |code: &str, statuses: &[Value]| json!({ "overallCode": code, "statuses": statuses });
    let rows = [
        (two, 200, whole("OK", &[status("OK", 1)])),
        (two, 200, whole("OK", &[status("OK", 0)])),
        (two, 429, whole("OVER_LIMIT", &[status("OVER_LIMIT", 0)])),
        (both, 200, whole("OK", &[free, status("OK", 0), json!({ "code": "OK" })])),
    ];
    for (body, code, want) in rows {
        let answer = server.post("/json", body);
        assert_eq!(answer.status, code, "{answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let mut got = answer.json();
        // Whole seconds until the window ends, where there is one.
        for status in got["statuses"].as_array_mut().unwrap() {
            let reset = status.as_object_mut().unwrap().remove("durationUntilReset");
            let seconds = reset
                .as_ref()
                .and_then(Value::as_str)
                .and_then(|text| text.strip_suffix('s')?.parse::<u64>().ok());
            assert_eq!(seconds.is_some(), status["currentLimit"].is_object(), "{answer:?}");
            assert!(seconds.is_none_or(|seconds| (1..=31_536_000).contains(&seconds)));
        }
        assert_eq!(got, want, "{body}");
        assert_eq!(answer.header("retry-after").is_some(), code == 429, "{answer:?}");
    }
    let rows = [
        ("", "expected an object"),
        ("foo", "expected an object"),
        ("{}", "domain is empty"),
        (r#"{"domain":"classic"}"#, "no descriptors"),
        (r#"{"domain":"classic","descriptors":[{"entries":[]}]}"#, "no entries"),
        (r#"{"domain":"classic","descriptors":[{"entries":[{"value":"a"}]}]}"#, "empty key"),
        (r#"{"domain":"classic","unknown":1}"#, "no field \"unknown\""),
    ];
    for (body, want) in rows {
        let answer = server.post("/json", body);
        assert_eq!(answer.status, 400, "{answer:?}");
        assert_eq!(answer.json()["error"], "Bad Request");
        assert!(answer.message().contains(want), "{body}: {answer:?}");
    }
    let answer = server.get("/json");
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
}

/// What clients choose is no error here either: long values and bytes that are no text are counted.
#[test]
fn any_bytes_are_counted() {
    let directory = tempdir().unwrap();
    let path = file(directory.path(), "rules.yaml", RULES);
    let server = TollgateProcess::start(&["--rules", text(&path)]);
    let long = [b'x'; 900_000];
    for value in [&b"\xff"[..], b"\xfe\\\"\xff", &long] {
        for status in [200, 200, 429] {
            let before = r#"{"domain":"classic","descriptors":[{"entries":[{"key":"two","value":""#;
            let body = [before.as_bytes(), value, b"\"}]}]}"].concat();
            let head =
                format!("POST /json HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len());
            let mut client = TestHttpClient::connect(server.http());
            client.send(&[head.as_bytes(), &body].concat()).unwrap();
            let answer = client.receive(true).unwrap();
            assert_eq!(answer.status, status, "{answer:?}");
        }
    }
}
