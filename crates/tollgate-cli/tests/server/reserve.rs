//! Reservations: estimates that are settled, given back, or expire.

use crate::harness::{TestHttpClient, TollgateProcess};

#[test]
fn a_reservation_is_settled_once() {
    let server = TollgateProcess::start(&["--limit", "100/day burst 100"]);
    let left = || server.check(r#"{"user":"1","cost":0}"#)["remaining"].as_u64().unwrap();

    let reserved = server.post("/v1/reserve", r#"{"user":"1","cost":40}"#);
    assert_eq!((reserved.status, left()), (200, 60));
    let id = reserved.json()["reservation"].as_str().expect("a name").to_string();
    let commit = format!(r#"{{"reservation":"{id}","cost":15}}"#);
    let settled = server.post("/v1/commit", &commit);
    assert_eq!((settled.status, &*settled.body), (200, r#"{"settled":true,"cost":15}"#));
    assert_eq!(left(), 85);
    assert_eq!(server.post("/v1/commit", &commit).status, 404, "settled before");

    let reserved = server.post("/v1/reserve", r#"{"user":"1","cost":40}"#).json();
    let id = reserved["reservation"].as_str().expect("a name").to_string();
    let cancel = format!(r#"{{"reservation":"{id}"}}"#);
    assert_eq!(server.post("/v1/refund", &cancel).status, 200);
    assert_eq!(left(), 85);
    assert_eq!(server.post("/v1/refund", &cancel).status, 404, "given back before");
    assert_eq!(server.post("/v1/refund", r#"{"reservation":"?"}"#).status, 404, "never heard of");

    let refused = server.post("/v1/reserve", r#"{"user":"1","cost":90}"#);
    assert_eq!((refused.status, refused.json()["reservation"].as_str()), (429, None));

    let refund = server.post("/v1/refund", r#"{"user":"1","cost":5}"#);
    assert_eq!((refund.status, left()), (200, 90));
    assert_eq!(refund.json()["remaining"], 90);
}

#[test]
fn an_expired_reservation_stays_charged() {
    let server = TollgateProcess::start(&["--limit", "100/day burst 100"]);
    // Whoever is refused is told how long to wait: a clock that shows the server's milliseconds.
    server.check(r#"{"user":"clock","cost":100}"#);
    let clock = || server.check(r#"{"user":"clock"}"#)["retry_after_ms"].as_u64().unwrap();

    let body = r#"{"user":"1","cost":40,"expires_in_ms":1}"#;
    let reserved = server.post("/v1/reserve", body).json();
    let id = reserved["reservation"].as_str().expect("a name").to_string();
    let start = clock();
    while clock() + 2 > start {}
    let gone = server.post("/v1/commit", &format!(r#"{{"reservation":"{id}","cost":4}}"#));
    assert_eq!(gone.status, 410, "{gone:?}");
    assert!(gone.message().contains("its charge stands"), "{gone:?}");
    assert_eq!(server.check(r#"{"user":"1","cost":0}"#)["remaining"], 60);
}

#[test]
fn nothing_cannot_be_reserved_and_one_caller_does_not_hold_out_others() {
    let server = TollgateProcess::start(&["--limit", "1000000/day burst 1000000"]);
    let nothing = server.post("/v1/reserve", r#"{"user":"1","cost":0}"#);
    assert_eq!(nothing.status, 400);
    assert!(nothing.message().contains("send \"cost\":1"), "{nothing:?}");
    let mut client = TestHttpClient::connect(server.http());
    let mut reserve = |user: &str, path: usize| {
        let body = format!(r#"{{"user":"{user}","path":"/{path}","expires_in_ms":86400000}}"#);
        client.request("POST", "/v1/reserve", &[], &body)
    };
    for path in 0..1_024 {
        assert_eq!(reserve("1", path).status, 200);
    }
    let refused = reserve("1", 0);
    assert_eq!((refused.status, &refused.json()["reason"]), (429, &"busy".into()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(reserve("2", 0).status, 200);
}

#[test]
fn a_refund_says_of_what() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    for body in ["", "{}", r#"{"reservation":null}"#] {
        assert_eq!(server.post("/v1/refund", body).status, 400, "{body}");
    }
}
