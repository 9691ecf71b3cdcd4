//! Upstreams that fail: each failure has its status and its code, and does no harm to the requests after it.

use std::io;

use testkit::peers::{RawConversation, RawUpstream};
use testkit::wait::until_true;

use super::gateway_process::{COUNTING_RULES, GatewayProcess};
use super::wire_client::WireClient;

/// A good response; its connection stays open.
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-application: yes\r\n\r\nok";

/// The end of the upstream's connection after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowEnd {
    /// The upstream keeps the connection.
    Open,
    /// The upstream closes the connection.
    Close,
    /// The upstream resets the connection.
    Reset,
}

use RowEnd::{Close, Open, Reset};

/// Target, bytes of the upstream, end of its connection, and the reply to the client: its status and its code or body, or
/// `broken` if the connection ends before the end of the response.
const ROWS: [(&str, &[u8], RowEnd, &str); 33] = [
    ("/closes", b"", Close, "502 reset"),
    ("/resets", b"", Reset, "502 reset"),
    ("/half-a-line", b"HTTP/1.1 20", Close, "502 reset"),
    ("/half-a-head", b"HTTP/1.1 200 OK\r\ncontent-le", Close, "502 reset"),
    ("/resets-in-head", b"HTTP/1.1 200 OK\r\ncontent-le", Reset, "502 reset"),
    ("/garbage", b"\x00\x01garbage\r\n\r\n", Close, "502 invalid_response"),
    ("/tls", b"\x15\x03\x01\x00\x02\x02\x46", Close, "502 invalid_response"),
    ("/http09", b"<html>hello</html>", Close, "502 invalid_response"),
    ("/http2", b"HTTP/2.0 200 OK\r\n\r\n", Close, "502 invalid_response"),
    ("/status-99", b"HTTP/1.1 99 No\r\n\r\n", Close, "502 invalid_response"),
    ("/status-1000", b"HTTP/1.1 1000 No\r\n\r\n", Close, "502 invalid_response"),
    (
        "/lengths-differ",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nabc",
        Open,
        "502 invalid_response",
    ),
    (
        "/length-negative",
        b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nab",
        Open,
        "502 invalid_response",
    ),
    (
        "/length-plus",
        b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nab",
        Open,
        "502 invalid_response",
    ),
    (
        "/field-nul",
        b"HTTP/1.1 200 OK\r\nx-a: a\0b\r\ncontent-length: 0\r\n\r\n",
        Open,
        "502 invalid_response",
    ),
    (
        "/field-cr",
        b"HTTP/1.1 200 OK\r\nx-a: a\rb\r\ncontent-length: 0\r\n\r\n",
        Open,
        "502 invalid_response",
    ),
    (
        "/101-unasked",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello",
        Open,
        "502 invalid_response",
    ),
    (
        "/length-and-chunks",
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        Open,
        "502 invalid_response",
    ),
    ("/body-short", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello", Close, "broken"),
    ("/body-resets", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello", Reset, "broken"),
    (
        "/chunk-bad",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nxyz\r\n",
        Open,
        "broken",
    ),
    (
        "/chunk-short",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
        Close,
        "broken",
    ),
    (
        "/chunk-no-last",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        Close,
        "broken",
    ),
    (
        "/chunk-huge",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello",
        Open,
        "broken",
    ),
    // Not failures, and yet they must not disturb the next request.
    ("/until-close", b"HTTP/1.1 200 OK\r\n\r\nhello", Close, "200 hello"),
    ("/http10", b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", Open, "200 hello"),
    ("/http10-close", b"HTTP/1.0 200 OK\r\n\r\nhello", Close, "200 hello"),
    (
        "/two-responses",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\naHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        Open,
        "200 a",
    ),
    (
        "/204-with-body",
        b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        Open,
        "204 ",
    ),
    (
        "/304-with-body",
        b"HTTP/1.1 304 Not Modified\r\ncontent-length: 4\r\n\r\nevil",
        Open,
        "304 ",
    ),
    (
        "/interim",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        Open,
        "200 ok",
    ),
    (
        "/length-zeros",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0002\r\n\r\nok",
        Open,
        "200 ok",
    ),
    ("/error-of-its-own", b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy", Open, "503 busy"),
];

/// Answers by the table.
fn fail(conversation: &mut RawConversation) -> io::Result<()> {
    loop {
        let head = conversation.read_head()?;
        let target = head.split(' ').nth(1).unwrap_or_default();
        let row = ROWS.iter().find(|(name, ..)| *name == target);
        let (bytes, end) = row.map_or((OK, Open), |(_, bytes, end, _)| (*bytes, *end));
        conversation.write(bytes)?;
        match end {
            Open => {}
            Close => return Ok(()),
            Reset => return conversation.reset(),
        }
    }
}

/// The reply to a GET request as the table writes it.
fn observe(gateway: &GatewayProcess, target: &str) -> String {
    let mut client = WireClient::connect(gateway.address());
    client.send(format!("GET {target} HTTP/1.1\r\nhost: app\r\n\r\n").as_bytes());
    let Ok(mut reply) = client.read_head() else { return "broken".into() };
    let status = reply.status;
    match client.read_body_of("GET", &mut reply) {
        Err(_) => "broken".into(),
        Ok(()) if reply.field("content-type") == Some("application/problem+json") => {
            format!("{status} {}", reply.problem_code())
        }
        Ok(()) => format!("{status} {}", reply.text()),
    }
}

#[test]
fn every_failure_has_its_status_and_harms_nobody_else() {
    let upstream = RawUpstream::start(fail);
    let gateway = GatewayProcess::start(upstream.address(), COUNTING_RULES);
    let mut wrong = Vec::new();
    for (target, _, _, expected) in ROWS {
        let got = observe(&gateway, target);
        if got != expected {
            wrong.push(format!("{target}: {got:?} instead of {expected:?}"));
        }
        let next = observe(&gateway, "/ok");
        if next != "200 ok" {
            wrong.push(format!("after {target} the next request gets {next:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn an_upstream_that_is_gone_is_502_and_comes_back() {
    let upstream = RawUpstream::recorder();
    let address = upstream.address();
    let gateway = GatewayProcess::start(address, COUNTING_RULES);
    assert_eq!(gateway.get("/a").text(), "/a");
    drop(upstream);
    for _ in 0..3 {
        let reply = gateway.get("/a");
        assert_eq!((reply.status, reply.problem_code().as_str()), (502, "connect_failed"));
        assert_eq!(reply.field("content-type"), Some("application/problem+json"));
    }
    let _upstream = RawUpstream::start_at(address, |conversation| {
        while conversation.read_request()?.is_some() {
            conversation.write(OK)?;
        }
        Ok(())
    });
    until_true("the upstream to be used again", || gateway.get("/b").status == 200);
}

/// An upstream that closes each connection after its response, without saying so: every request finds out in time.
#[test]
fn connections_that_the_upstream_closes_are_not_used_again() {
    let upstream = RawUpstream::start(|conversation| {
        conversation.read_request()?;
        conversation.write(OK)
    });
    let gateway = GatewayProcess::start(upstream.address(), COUNTING_RULES);
    for round in 0..200 {
        let mut client = WireClient::connect(gateway.address());
        let method = ["GET", "POST"][round % 2];
        let head = format!("{method} /a HTTP/1.1\r\nhost: app\r\ncontent-length: 0\r\n\r\n");
        client.send(head.as_bytes());
        let reply = client.read_reply(method).expect("an answer");
        assert_eq!((reply.status, reply.text().as_str()), (200, "ok"), "round {round}");
        // Closed by the upstream, and so known to the kernel.
        until_true("the upstream to close", || upstream.connected() == 0);
    }
}

/// A response that comes while the request is still being sent reaches the client.
#[test]
fn an_early_refusal_of_an_upload_arrives() {
    let upstream = RawUpstream::start(|conversation| {
        conversation.read_head()?;
        conversation.write(
            b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 4\r\n\r\nlong",
        )?;
        conversation.finish()?;
        conversation.wait_for_close()
    });
    let gateway = GatewayProcess::start(upstream.address(), COUNTING_RULES);
    for _ in 0..20 {
        let mut client = WireClient::connect(gateway.address());
        client.send(b"POST /upload HTTP/1.1\r\nhost: app\r\ncontent-length: 100000000\r\n\r\n");
        client.send(&[b'x'; 100_000]);
        let reply = client.read_reply("POST").expect("an answer");
        assert_eq!((reply.status, reply.text().as_str()), (413, "long"));
    }
    until_true("the uploads to end", || upstream.connected() == 0);
}

/// A client that leaves in the middle of a body without end takes the upstream connection with it.
#[test]
fn a_body_without_end_stops_when_its_client_leaves() {
    let upstream = RawUpstream::start(|conversation| {
        conversation.read_head()?;
        conversation.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
        let chunk = [&b"10000\r\n"[..], &[b'x'; 0x1_0000], b"\r\n"].concat();
        while !conversation.is_stopped() {
            conversation.write(&chunk)?;
        }
        Ok(())
    });
    let gateway = GatewayProcess::start(upstream.address(), COUNTING_RULES);
    let mut client = WireClient::connect(gateway.address());
    client.send(b"GET /endless HTTP/1.1\r\nhost: app\r\n\r\n");
    assert_eq!(client.read_head().expect("a head").status, 200);
    client.read_exact(10 << 20).expect("ten megabytes");
    drop(client);
    until_true("the upstream to be left", || upstream.connected() == 0);
}

/// A tunnel passes whatever the upstream sends behind its 101, and ends with it. A switch to a protocol that the client
/// did not offer is no tunnel.
#[test]
fn only_an_offered_switch_becomes_a_tunnel() {
    let upstream = RawUpstream::start(|conversation| {
        let head = conversation.read_head()?;
        let protocol = match head.split(' ').nth(1) {
            Some("/offered") => "upgrade: chat\r\n",
            Some("/other") => "upgrade: other\r\n",
            _ => "",
        };
        let switch =
            format!("HTTP/1.1 101 Switching Protocols\r\n{protocol}connection: upgrade\r\n");
        conversation.write(&[switch.as_bytes(), b"\r\n\0garbage\xff"].concat())
    });
    let gateway = GatewayProcess::start(upstream.address(), COUNTING_RULES);
    let ask = |target: &str| {
        let mut client = WireClient::connect(gateway.address());
        let fields = "host: app\r\nconnection: upgrade\r\nupgrade: chat\r\n";
        client.send(format!("GET {target} HTTP/1.1\r\n{fields}\r\n").as_bytes());
        client
    };
    let mut client = ask("/offered");
    assert_eq!(client.read_head().expect("a head").status, 101);
    assert_eq!(client.read_to_close(), Some(b"\0garbage\xff".to_vec()));
    for target in ["/other", "/none"] {
        let reply = ask(target).read_reply("GET").expect("an answer");
        assert_eq!((reply.status, reply.problem_code().as_str()), (502, "invalid_response"));
    }
    until_true("the connections to end", || upstream.connected() == 0);
}
