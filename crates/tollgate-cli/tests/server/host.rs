//! Whom a request is for: HTTP/1.1 has to say it once, HTTP/1.0 may, HTTP/2 says it elsewhere.

use std::net::SocketAddr;

use crate::harness::{TestHttpClient, TollgateProcess};

/// The status of the answer to one request with these lines after the first.
fn status(listener: SocketAddr, first: &str, fields: &str) -> u16 {
    let mut client = TestHttpClient::connect(listener);
    let request = format!("{first}\r\n{fields}content-length: 12\r\n\r\n{{\"user\":\"1\"}}");
    client.send(request.as_bytes()).unwrap();
    client.receive(true).expect("an answer").status
}

#[test]
fn a_request_says_once_whom_it_is_for() {
    const ONE: &str = "host: localhost\r\n";
    const TWO: &str = "host: localhost\r\nHost: localhost\r\n";
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let (http, grpc, admin) = (server.http(), server.grpc(), server.admin());
    let check = |version: &str| format!("POST /v1/check HTTP/{version}");
    let live = |version: &str| format!("GET /livez HTTP/{version}");
    // Listener, first line, hosts | status
    let rows = [
        (http, check("1.1"), "", 400),
        (http, check("1.1"), TWO, 400),
        (http, check("1.0"), TWO, 400),
        (http, "POST http://localhost/v1/check HTTP/1.1".into(), "", 400),
        (http, "GET /v1/forward-auth HTTP/1.1".into(), TWO, 400),
        (grpc, check("1.1"), "", 400),
        (admin, live("1.1"), "", 400),
        (admin, live("1.1"), TWO, 400),
        (admin, live("1.1"), ONE, 200),
        // Without tokens that listener has to know how it was addressed.
        (admin, live("1.0"), "", 403),
        (admin, live("1.0"), ONE, 200),
        // These take.
        (http, check("1.1"), ONE, 200),
        (http, check("1.1"), "host:\r\n", 200),
        (http, check("1.0"), ONE, 200),
        (http, check("1.0"), "", 200),
        (http, "POST http://localhost/v1/check HTTP/1.1".into(), ONE, 200),
    ];
    for (listener, first, hosts, want) in rows {
        assert_eq!(status(listener, &first, hosts), want, "{first} {hosts:?}");
    }
}

/// What was refused has taken nothing, and the connection goes on.
#[test]
fn a_request_without_a_host_takes_nothing() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let mut client = TestHttpClient::connect(server.http());
    for _ in 0..3 {
        let request = "POST /v1/check HTTP/1.1\r\ncontent-length: 13\r\n\r\n{\"user\":\"42\"}";
        client.send(request.as_bytes()).unwrap();
        let answer = client.receive(true).unwrap();
        assert_eq!(answer.status, 400);
        assert!(answer.message().contains("`Host`"), "{answer:?}");
    }
    let answer = client.request("POST", "/v1/check", &[], r#"{"user":"42"}"#);
    assert_eq!(answer.json()["remaining"], 8);
}
