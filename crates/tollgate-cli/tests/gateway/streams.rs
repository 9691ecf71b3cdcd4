//! Bodies that stream: large ones in constant memory, trailers, events one by one, tunnels, and `100 Continue`.

use std::io::Write;

use testkit::peers::RawUpstream;

use super::applications::RecordingApplication;
use super::gateway_process::{COUNTING_RULES, GatewayProcess};
use super::wire_client::WireClient;

/// Bytes of a large body.
const LARGE_BYTES: u64 = 1 << 30;

/// Growth of the gateway's memory that a large body may cause, in KiB.
const GROWTH_KIB_MAX: u64 = 8 << 10;

#[test]
fn a_gibibyte_comes_down_in_constant_memory() {
    let application = RecordingApplication::nginx();
    let name = application.make_file(LARGE_BYTES);
    let gateway = GatewayProcess::start(application.address(), COUNTING_RULES);
    assert_eq!(gateway.get("/warm-up").status, 200);
    let before = gateway.memory_peak_kib();
    let mut client = WireClient::connect(gateway.address());
    client.send(format!("GET /files/{name} HTTP/1.1\r\nhost: app\r\n\r\n").as_bytes());
    let head = client.read_head().expect("a head");
    assert_eq!(head.field("content-length"), Some(LARGE_BYTES.to_string().as_str()));
    client.skip(LARGE_BYTES).expect("the whole file");
    let growth = gateway.memory_peak_kib() - before;
    eprintln!("memory grew by {growth} KiB for {LARGE_BYTES} bytes down");
    assert!(growth <= GROWTH_KIB_MAX, "memory grew by {growth} KiB");
}

#[test]
fn a_gibibyte_goes_up_in_constant_memory() {
    let upstream = RawUpstream::start(|conversation| {
        while let Ok(head) = conversation.read_head() {
            if head.starts_with("POST") {
                conversation.skip_bytes(LARGE_BYTES)?;
            }
            conversation.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nall")?;
        }
        Ok(())
    });
    let gateway = GatewayProcess::start(upstream.address(), COUNTING_RULES);
    assert_eq!(gateway.get("/warm-up").status, 200);
    let before = gateway.memory_peak_kib();
    let mut client = WireClient::connect(gateway.address());
    let head = format!("POST /up HTTP/1.1\r\nhost: app\r\ncontent-length: {LARGE_BYTES}\r\n\r\n");
    client.send(head.as_bytes());
    let piece = vec![0; 1 << 20];
    for _ in 0..LARGE_BYTES >> 20 {
        client.stream.write_all(&piece).expect("the gateway takes all");
    }
    assert_eq!(client.read_reply("POST").expect("an answer").text(), "all");
    let growth = gateway.memory_peak_kib() - before;
    eprintln!("memory grew by {growth} KiB for {LARGE_BYTES} bytes up");
    assert!(growth <= GROWTH_KIB_MAX, "memory grew by {growth} KiB");
}

/// A client that does not read holds the upstream back, not a copy of the body.
#[test]
fn a_client_that_does_not_read_holds_the_upstream_back() {
    let application = RecordingApplication::nginx();
    let name = application.make_file(LARGE_BYTES);
    let gateway = GatewayProcess::start(application.address(), COUNTING_RULES);
    assert_eq!(gateway.get("/warm-up").status, 200);
    let before = gateway.memory_peak_kib();
    let silent: Vec<WireClient> = (0..50)
        .map(|_| {
            let mut client = WireClient::connect(gateway.address());
            client.send(format!("GET /files/{name} HTTP/1.1\r\nhost: app\r\n\r\n").as_bytes());
            client.read_head().expect("a head");
            client
        })
        .collect();
    // Others are served meanwhile.
    for _ in 0..100 {
        assert_eq!(gateway.get("/other").text(), "/other");
    }
    let growth = gateway.memory_peak_kib() - before;
    eprintln!("memory grew by {growth} KiB for {} clients that do not read", silent.len());
    // Buffers of both sides; without a bound it would be a GiB for each.
    let bound = silent.len() as u64 * 512;
    assert!(growth <= bound, "memory grew by {growth} KiB");
}

#[test]
fn trailers_pass_both_ways() {
    let application = RecordingApplication::node();
    let gateway = GatewayProcess::start(application.address(), COUNTING_RULES);
    let mut client = WireClient::connect(gateway.address());
    client.send(
        b"POST /trailers HTTP/1.1\r\nhost: app\r\nte: trailers\r\nconnection: te\r\ntrailer: x-sum\r\n\
        transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 42\r\n\r\n",
    );
    let reply = client.read_reply("POST").expect("an answer");
    assert_eq!(reply.text(), "hello");
    assert_eq!(reply.trailers, [("x-sum".to_owned(), "42".to_owned())], "{reply:?}");
}

/// An event reaches the client before the application sends the next one.
#[test]
fn events_arrive_one_by_one() {
    let application = RecordingApplication::node();
    let gateway = GatewayProcess::start(application.address(), COUNTING_RULES);
    let mut client = WireClient::connect(gateway.address());
    client.send(b"GET /events?one HTTP/1.1\r\nhost: app\r\n\r\n");
    let head = client.read_head().expect("the head comes before the first event");
    assert_eq!(head.field("content-type"), Some("text/event-stream"));
    let next = || assert_eq!(gateway.get("/next?one").text(), "sent");
    for number in 1..=3 {
        next();
        let event = client.read_chunk().expect("an event").expect("not the end");
        assert_eq!(String::from_utf8_lossy(&event), format!("data: {number}\n\n"));
    }
    next();
    assert_eq!(client.read_chunk().expect("the end"), None);
}

#[test]
fn websockets_pass_through() {
    let application = RecordingApplication::node();
    let gateway = GatewayProcess::start(application.address(), COUNTING_RULES);
    let mut client = WireClient::connect(gateway.address());
    client.send(
        b"GET /socket HTTP/1.1\r\nhost: app\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    let head = client.read_head().expect("a head");
    assert_eq!((head.status, head.field("upgrade")), (101, Some("websocket")));
    assert_eq!(head.field("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    for message in ["hello", "and again"] {
        let mask = [1, 2, 3, 4];
        let masked = message.bytes().enumerate().map(|(at, byte)| byte ^ mask[at % 4]);
        let length = message.len() as u8;
        let frame: Vec<u8> = [0x81, 0x80 | length].into_iter().chain(mask).chain(masked).collect();
        client.send(&frame);
        let answer = client.read_exact(2 + message.len()).expect("a frame");
        assert_eq!((&answer[..2], &answer[2..]), (&[0x81, length][..], message.as_bytes()));
    }
    assert_eq!(gateway.counted(), 1, "a tunnel is one request");
    // A close frame ends both sides.
    client.send(&[0x88, 0x80, 1, 2, 3, 4]);
    assert_eq!(client.read_to_close(), Some(vec![0x88, 0]));
}

/// The client sends its body after `100 Continue`, and the upstream gets it then.
#[test]
fn a_body_waits_for_100_continue() {
    let application = RecordingApplication::node();
    let gateway = GatewayProcess::start(application.address(), COUNTING_RULES);
    let mut client = WireClient::connect(gateway.address());
    for _ in 0..3 {
        client.send(
            b"POST /head HTTP/1.1\r\nhost: app\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n",
        );
        assert_eq!(client.read_any_head().expect("an interim response").status, 100);
        client.send(b"hello");
        let reply = client.read_reply("POST").expect("an answer");
        let head: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
        assert_eq!((reply.status, head["bytes"].as_u64()), (200, Some(5)), "{reply:?}");
    }
}

/// A refused request is answered at once: its body is not asked for.
#[test]
fn a_refusal_comes_without_100_continue() {
    let upstream = RawUpstream::recorder();
    let rules = "rules: [{ name: one, key: '{ip}', limits: [1/day] }]";
    let gateway = GatewayProcess::start(upstream.address(), rules);
    assert_eq!(gateway.get("/first").status, 200);
    let mut client = WireClient::connect(gateway.address());
    client.send(
        b"POST /second HTTP/1.1\r\nhost: app\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n",
    );
    let reply = client.read_reply("POST").expect("an answer");
    assert_eq!((reply.status, reply.interim.len()), (429, 0), "{reply:?}");
    assert_eq!(upstream.take_requests().expect("good requests").len(), 1);
}
