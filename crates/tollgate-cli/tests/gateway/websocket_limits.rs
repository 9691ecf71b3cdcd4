//! Limits of WebSockets, frame by frame: what passes, what closes the connection, what waits, and what is left behind.

use std::time::Duration;

use testkit::peers::RawUpstream;
use testkit::wait::{now, until_true};

use super::gateway_process::GatewayProcess;
use super::websocket_wire::{
    CLOSE, CONTINUATION, FINAL, PING, PONG, TEXT, WebSocketApplication, WebSocketWire,
    client_frame, handshake,
};
use super::wire_client::WireClient;

/// Starts a gateway with one rule for WebSockets, of these limits.
fn gateway(application: &WebSocketApplication, websocket: &str) -> GatewayProcess {
    let rules = format!(
        "rules: [{{ name: sockets, match: {{ upgrade: websocket }}, key: '{{ip}}', websocket: {{ {websocket} }} }}]"
    );
    GatewayProcess::start(application.address(), &rules)
}

/// The value of a metric.
pub(crate) fn metric(gateway: &GatewayProcess, sample: &str) -> u64 {
    let page = gateway.server.admin_get("/metrics", &[]).body;
    let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {sample}")).parse().expect("a number")
}

/// Whatever is forwarded as an upgrade matches `upgrade: websocket`, and nothing else does.
#[test]
fn no_spelling_of_an_upgrade_evades_a_rule_for_websockets() {
    let application = WebSocketApplication::start();
    let rules = "rules: [{ name: handshakes, match: { upgrade: websocket }, key: '{ip}', limits: [1/day] }]";
    let gateway = GatewayProcess::start(application.address(), rules);
    WebSocketWire::open(gateway.address(), "/echo");
    let upgrade = |connection: &str, upgrade: &str| {
        let mut client = WireClient::connect(gateway.address());
        let fields = handshake("/echo").replace("connection: Upgrade", connection);
        client.send(fields.replace("upgrade: websocket", upgrade).as_bytes());
        client.read_head().expect("a head").status
    };
    // Connection, Upgrade | status
    let rows = [
        ("connection: Upgrade", "upgrade: websocket", 429),
        ("Connection: keep-alive,UPGRADE", "UPGRADE: WebSocket", 429),
        ("connection: x\r\nconnection: ,, upgrade", "upgrade: other/1, WEBSOCKET", 429),
        ("connection: upgrade", "upgrade:\twebsocket ,foo", 429),
        ("connection: upgrade", "upgrade: websocket/13", 429),
        // Not upgrades, so the gateway forwards them as ordinary requests, which the application answers.
        ("connection: close", "upgrade: websocket", 200),
        ("connection: upgrade", "upgrade: websocket\r\nupgrade: other", 200),
        ("connection: upgrade", "upgrade: websocket, h2c", 200),
        ("connection: upgrade", "x-upgrade: websocket", 200),
    ];
    for (connection, field, status) in rows {
        assert_eq!(upgrade(connection, field), status, "{connection} {field}");
    }
    assert_eq!(application.seen()["opened"], 1);
}

#[test]
fn too_many_messages_close_the_connection_and_nothing_of_the_next_passes() {
    let application = WebSocketApplication::start();
    let gateway = gateway(&application, "messages: 3/hour");
    let mut socket = WebSocketWire::open(gateway.address(), "/echo");
    for _ in 0..10 {
        socket.say("hello");
    }
    let (echoed, code, reason) = socket.read_close();
    assert!(echoed <= 3, "{echoed}");
    assert_eq!((code, reason.as_str()), (1_008, "message rate of 3/hour exceeded"));
    socket.finish();
    until_true("the upstream to be closed", || application.seen()["open"] == 0);
    let seen = application.seen();
    assert_eq!(seen["messages"], 3);
    assert_eq!(seen["closes"][0]["code"], 1_008);
    assert_eq!(seen["closes"][0]["reason"], "message rate of 3/hour exceeded");
    assert_eq!(metric(&gateway, r#"tollgate_gateway_websocket_closes_total{cause="messages"}"#), 1);
    until_true("no open tunnel", || metric(&gateway, "tollgate_gateway_tunnels") == 0);
    // The client's three messages.
    assert_eq!(
        metric(&gateway, r#"tollgate_gateway_websocket_messages_total{sender="client"}"#),
        3
    );
}

/// One fragmented message counts once, its bytes count all. A control frame counts as a message wherever it is, and so does
/// an empty fragment that is not the last.
#[test]
fn messages_are_counted_however_they_are_framed() {
    let hello: &[(u8, &[u8])] = &[(FINAL | TEXT, b"hello")];
    let fragments: &[(u8, &[u8])] =
        &[(TEXT, b""), (CONTINUATION, b"he"), (CONTINUATION, b"llo"), (FINAL | CONTINUATION, b"")];
    let with_empty: &[(u8, &[u8])] =
        &[(TEXT, b"he"), (CONTINUATION, b""), (FINAL | CONTINUATION, b"llo")];
    let with_ping: &[(u8, &[u8])] =
        &[(TEXT, b"he"), (FINAL | PING, b"?"), (FINAL | CONTINUATION, b"llo")];
    let pings: &[(u8, &[u8])] = &[(FINAL | PING, b"?"), (FINAL | PONG, b"")];
    // Limits, frames of one round | rounds that pass, code of the next
    let rows = [
        ("messages: 4/hour", hello, 4, 1_008),
        ("messages: 4/hour", fragments, 4, 1_008),
        ("messages: 4/hour", with_empty, 2, 1_008),
        ("messages: 4/hour", with_ping, 2, 1_008),
        ("messages: 4/hour, close_code: 1013", pings, 2, 1_013),
        // Two bytes, four of the mask, and the payload.
        ("bytes: 33B/hour", hello, 3, 1_008),
        ("bytes: 87B/hour", fragments, 3, 1_008),
        ("message_bytes: 11B", hello, 9, 1_000),
        ("message_bytes: 10B", hello, 0, 1_009),
        ("message_bytes: 29B", fragments, 9, 1_000),
        ("message_bytes: 28B", fragments, 0, 1_009),
        // The ping is no part of the message.
        ("message_bytes: 17B", with_ping, 9, 1_000),
        ("message_bytes: 16B", with_ping, 0, 1_009),
    ];
    let application = WebSocketApplication::start();
    for (limits, frames, passing, code) in rows {
        let gateway = gateway(&application, limits);
        // With one round more, the gateway closes; otherwise the client.
        for (rounds, want) in [(passing, 1_000), (passing + 1, code)] {
            let mut socket = WebSocketWire::open(gateway.address(), "/silent");
            for _ in 0..rounds {
                for (first, payload) in frames {
                    socket.send(*first, payload);
                }
            }
            socket.send(FINAL | CLOSE, &1_000_u16.to_be_bytes());
            let (_, code, reason) = socket.read_close();
            assert_eq!(code, want, "{limits}, {rounds} rounds: {reason}");
        }
    }
}

#[test]
fn violations_of_the_protocol_close_with_1002() {
    let application = WebSocketApplication::start();
    let gateway = gateway(&application, "messages: 1000/second");
    // Bytes of the client | reason
    let rows: [(&[u8], &str); 6] = [
        (&[0x81, 0x01, b'x'], "frame from the client is not masked"),
        (&[0x09, 0x80, 0, 0, 0, 0], "control frame is fragmented"),
        (&[0x89, 0xFE, 0, 200], "control frame is longer than 125 bytes"),
        (&[0x80, 0x80, 0, 0, 0, 0], "continuation frame without a message"),
        (&[0x01, 0x80, 0, 0, 0, 0, 0x81, 0x80], "new message inside a fragmented one"),
        (&[0x82, 0xFF, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4], "frame length is not below 2^63"),
    ];
    for (bytes, want) in rows {
        let mut socket = WebSocketWire::open(gateway.address(), "/echo");
        socket.client.send(bytes);
        let (_, code, reason) = socket.read_close();
        assert_eq!((code, reason.as_str()), (1_002, want), "{bytes:?}");
        // The gateway closes its side at once, because it cannot recognize the client's Close frame.
        assert_eq!(socket.client.read_to_close(), Some(Vec::new()));
    }
    until_true("the upstream to be closed", || application.seen()["open"] == 0);
    let closes = application.seen()["closes"].as_array().expect("a list").clone();
    assert!(closes.iter().all(|close| close["code"] == 1_002), "{closes:?}");
}

#[test]
fn frames_pass_in_pieces_of_any_size() {
    let application = WebSocketApplication::start();
    let gateway = gateway(&application, "messages: 1000/second");
    let mut socket = WebSocketWire::open(gateway.address(), "/echo");
    socket.client.stream.set_nodelay(true).expect("a socket");
    for byte in client_frame(FINAL | TEXT, &[b'a'; 200]) {
        socket.client.send(&[byte]);
    }
    assert_eq!(socket.read().expect("an echo").payload, [b'a'; 200]);
    let large = vec![b'b'; 3 << 20];
    socket.send(FINAL | TEXT, &large);
    assert_eq!(socket.read().expect("an echo").payload, large);
    socket.send(FINAL | CLOSE, &1_000_u16.to_be_bytes());
    assert_eq!(socket.read_close().1, 1_000);
}

#[test]
fn frames_of_the_upstream_have_their_own_limits() {
    let application = WebSocketApplication::start();
    let gateway = gateway(&application, "messages: 3/hour, direction: server");
    let mut socket = WebSocketWire::open(gateway.address(), "/stream?10");
    for _ in 0..10 {
        socket.say("not limited");
    }
    let (received, code, _) = socket.read_close();
    assert_eq!((received, code), (3, 1_008));
    socket.finish();
}

/// With `on_excess: wait` nothing is lost, and the last message comes no earlier than the rate allows.
#[test]
fn frames_beyond_a_rate_wait() {
    let application = WebSocketApplication::start();
    let gateway =
        gateway(&application, "messages: 100/second, bytes: 128KiB/second, on_excess: wait");
    let mut socket = WebSocketWire::open(gateway.address(), "/echo");
    let began = now();
    for number in 0..150 {
        socket.say(&format!("message {number}"));
    }
    for number in 0..150 {
        let echo = socket.read().expect("an echo");
        assert_eq!(String::from_utf8_lossy(&echo.payload), format!("message {number}"));
    }
    // A full bucket lets a hundred pass at once.
    assert!(now() - began >= Duration::from_millis(500), "{:?}", now() - began);
    let waits = r#"tollgate_gateway_websocket_waits_total{sender="client"}"#;
    assert!(metric(&gateway, waits) > 0);
    // A frame larger than the bucket passes piece by piece.
    let (large, began) = (vec![b'a'; 192 << 10], now());
    socket.send(FINAL | TEXT, &large);
    assert_eq!(socket.read().expect("an echo").payload, large);
    assert!(now() - began >= Duration::from_millis(500), "{:?}", now() - began);
}

#[test]
fn open_connections_are_counted_per_key() {
    let application = WebSocketApplication::start();
    let gateway = gateway(&application, "connections: 2");
    let mut open: Vec<WebSocketWire> =
        (0..2).map(|_| WebSocketWire::open(gateway.address(), "/echo")).collect();
    let refusal = WebSocketWire::try_open(gateway.address(), "/echo").err().expect("a refusal");
    assert_eq!(refusal.status, 429, "{refusal:?}");
    assert!(refusal.text().contains(r#""reason":"busy""#), "{}", refusal.text());
    // Other requests are not connections.
    assert_eq!(gateway.get("/page").status, 200);
    // A connection that ends, one way or the other, makes room.
    drop(open.pop());
    let opened = || WebSocketWire::try_open(gateway.address(), "/echo").ok();
    let mut third = testkit::wait::until("room for another", opened);
    third.send(FINAL | CLOSE, &1_000_u16.to_be_bytes());
    assert_eq!(third.read_close().1, 1_000);
    drop(third);
    open.push(testkit::wait::until("room for another", opened));
}

#[test]
fn idle_and_old_connections_close_with_1001() {
    let application = WebSocketApplication::start();
    let rows = [
        ("idle: 200ms", "connection was idle for too long"),
        ("lifetime: 200ms", "connection reached its longest lifetime"),
    ];
    for (limits, want) in rows {
        let gateway = gateway(&application, limits);
        let mut socket = WebSocketWire::open(gateway.address(), "/echo");
        let (_, code, reason) = socket.read_close();
        assert_eq!((code, reason.as_str()), (1_001, want));
        socket.finish();
    }
}

#[test]
fn drain_closes_with_1012_and_within_its_time() {
    let application = WebSocketApplication::start();
    let gateway = gateway(&application, "messages: 10/second");
    let mut sockets: Vec<WebSocketWire> =
        (0..20).map(|_| WebSocketWire::open(gateway.address(), "/echo")).collect();
    let mut stuck = WebSocketWire::open(gateway.address(), "/echo");
    gateway.server.signal("TERM");
    for socket in &mut sockets {
        let (_, code, reason) = socket.read_close();
        assert_eq!((code, reason.as_str()), (1_012, "server restarts: connect again"));
    }
    sockets.into_iter().for_each(WebSocketWire::finish);
    // One that does not answer is cut off.
    assert_eq!(stuck.read_close().1, 1_012);
    assert_eq!(stuck.client.read_to_close(), Some(Vec::new()));
    until_true("the upstream to be closed", || application.seen()["open"] == 0);
    let closes = application.seen()["closes"].as_array().expect("a list").clone();
    assert!(closes.iter().all(|close| close["code"] == 1_001), "{closes:?}");
    assert_eq!(closes.len(), 21);
}

/// A tunnel of another protocol is not read.
#[test]
fn other_protocols_pass_unread() {
    let upstream = RawUpstream::start(|conversation| {
        conversation.read_head()?;
        conversation.write(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n",
        )?;
        conversation.write(b"\x81\x81 no frame")
    });
    let rules = "rules: [{ name: sockets, key: '{ip}', websocket: { messages: 1/hour } }]";
    let gateway = GatewayProcess::start(upstream.address(), rules);
    let mut client = WireClient::connect(gateway.address());
    client.send(handshake("/").replace("upgrade: websocket", "upgrade: other").as_bytes());
    assert_eq!(client.read_head().expect("a head").status, 101);
    client.send(b"\x01\x02\x03 neither");
    assert_eq!(client.read_to_close(), Some(b"\x81\x81 no frame".to_vec()));
}
