//! Requests that never reach an upstream: whatever was charged for them is given back, over memory and Redis, with any number
//! of workers.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
use testkit::http2::frame_kind;
use testkit::peers::RawUpstream;
use testkit::redis::TestRedis;
use testkit::wait::until_true;

use super::gateway_process::GatewayProcess;
use super::http2_wire::Http2Wire;
use super::shaping::{found_no_room, waiting};
use super::wire_client::WireClient;
use crate::harness::TestHttpClient;

/// Units of each limit.
pub(super) const UNITS: u64 = 1_000_000;

/// A port that refuses connections for as long as it is kept: it is taken, and nobody listens.
pub(super) struct RefusingPort {
    pub(super) address: SocketAddr,
    _socket: OwnedFd,
}

impl RefusingPort {
    pub(super) fn take() -> RefusingPort {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        let address = getsockname(&socket).expect("it is bound");
        let address = SocketAddr::try_from(address).expect("an address of IPv4");
        RefusingPort { address, _socket: socket }
    }
}

/// Units that are left under the rule for a path.
pub(super) fn left(gateway: &GatewayProcess, path: &str) -> u64 {
    let peek = gateway.server.check(&format!(r#"{{"ip":"127.0.0.1","path":"{path}","cost":0}}"#));
    peek["remaining"].as_u64().expect("a limit")
}

/// A rule for each estimate, by its path.
pub(super) fn estimating_rules(estimates: &[(&str, &str)]) -> String {
    let rule = |(name, cost): &(&str, &str)| {
        format!(
            "  - {{ name: {name}, match: {{ path: /{name} }}, key: '{{ip}}', cost: {cost},
      limits: [{{ rate: {UNITS}/day, algorithm: fixed_window }}] }}\n"
        )
    };
    format!("rules:\n{}", estimates.iter().map(rule).collect::<String>())
}

#[test]
fn an_estimate_is_free_if_the_upstream_is_dead_and_a_plain_request_counts() {
    let estimates = [
        ("bytes", "{ reserve: '{request.bytes|4}' }"),
        ("json", "{ reserve: '{request.json.max_tokens|2000}' }"),
        ("both", "{ reserve: '{request.json.max_tokens|request.bytes|2000}' }"),
        ("number", "{ reserve: 500 }"),
        ("length", "{ reserve: 500, actual: '{response.bytes}' }"),
        ("field", "{ reserve: 500, actual: '{response.header.x-cost}' }"),
        (
            "usage",
            "{ reserve: '{request.json.max_tokens|2000}', actual: '{response.json.usage.total_tokens}' }",
        ),
        ("plain", "7"),
    ];
    let (port, redis, rules) =
        (RefusingPort::take(), TestRedis::start(), estimating_rules(&estimates));
    let url = redis.url();
    let body = r#"{"max_tokens":700}"#;
    let framings = [
        (format!("content-length: {}", body.len()), body.to_owned()),
        ("transfer-encoding: chunked".into(), format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())),
        ("expect: 100-continue\r\ncontent-length: 9000".into(), String::new()),
    ];
    for (store, workers) in [("memory", "1"), ("memory", "4"), (&*url, "1"), (&*url, "4")] {
        let flags = [
            "--workers",
            workers,
            "--store",
            store,
            "--key-prefix",
            workers,
            "--store-timeout",
            "1s",
        ];
        let gateway = GatewayProcess::start_with(port.address, &rules, &flags);
        for (name, _) in estimates {
            // The rules that need the body make the client send it.
            let is_read = ["json", "both", "usage"].contains(&name);
            let framings = &framings[..if is_read { 2 } else { 3 }];
            for (framing, bytes) in framings {
                let mut client = WireClient::connect(gateway.address());
                let head = format!("POST /{name} HTTP/1.1\r\nhost: app\r\n{framing}\r\n\r\n");
                client.send(format!("{head}{bytes}").as_bytes());
                let reply = client.read_reply("POST").expect("an answer");
                assert_eq!((reply.status, &*reply.problem_code()), (502, "connect_failed"));
            }
            let expected = if name == "plain" { 7 * framings.len() as u64 } else { 0 };
            until_true(&format!("the units of {name} over {store}, {workers} workers"), || {
                left(&gateway, &format!("/{name}")) == UNITS - expected
            });
        }
    }
}

/// A limit that is used up, for which requests wait in turn.
const TURNS: &str = "
rules: [{ name: turns, match: { path: /turns }, key: '{ip}', limits: [5/hour burst 5],
          fair: { wait: 1h, per_key: 10, total: 10 } }]
";

/// An upstream that answers `/held` only when it is released.
fn holding_upstream() -> (RawUpstream, Arc<AtomicBool>) {
    let released = Arc::<AtomicBool>::default();
    let release = Arc::clone(&released);
    let upstream = RawUpstream::start(move |conversation| {
        while let Some(request) = conversation.read_request()? {
            if request.target == "/held" {
                until_true("the release", || {
                    released.load(Ordering::Relaxed) || conversation.is_stopped()
                });
            }
            conversation.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
        }
        Ok(())
    });
    (upstream, release)
}

fn has_received(upstream: &RawUpstream, text: &str) -> bool {
    String::from_utf8_lossy(&upstream.received().concat()).contains(text)
}

fn get_fields(path: &str) -> [(&str, &str); 4] {
    [(":method", "GET"), (":scheme", "http"), (":authority", "app"), (":path", path)]
}

/// A limit whose requests wait in turn, and one that delays them.
const WAITING_RULES: &str = "rules:
  - { name: turns, match: { path: /turns }, key: '{ip}', limits: [5/hour burst 5],
      fair: { wait: 1h, per_key: 10, total: 10 } }
  - { name: queue, match: { path: /queue }, key: '{ip}',
      limits: [{ rate: 1/hour, burst: 400, algorithm: leaky_bucket, queue: true }] }
";

/// Gives a caller three more units, so that it is the turn of the one that waits. One of the units is charged then.
fn grant_three(gateway: &GatewayProcess) {
    let path = "/api/keys/turns/ip=127.0.0.1";
    let marked = [("x-tollgate-admin", "1")];
    let mut admin = TestHttpClient::connect(gateway.server.admin());
    let granted = admin.request("POST", path, &marked, r#"{"grant":3}"#);
    assert_eq!(granted.status, 200, "{granted:?}");
}

/// A gateway whose only place is taken, by the first stream of a connection, while the second waits for its turn. The worker of the
/// connection has that place, however many there are.
fn one_place_taken(
    upstream: &RawUpstream,
    workers: &str,
    store: &str,
    waiting_max: &str,
) -> (GatewayProcess, Http2Wire) {
    let flags = ["--workers", workers, "--store", store, "--gateway-max-waiting", waiting_max];
    let bounds = ["--gateway-max-requests", "1", "--gateway-max-wait", "1h"];
    let prefix = format!("{workers}-{waiting_max}");
    let own = ["--gateway-max-delay", "1h", "--key-prefix", &prefix, "--store-timeout", "1s"];
    let flags = [&flags[..], &bounds, &own];
    let gateway = GatewayProcess::start_with(upstream.address(), TURNS, &flags.concat());
    gateway.server.check(r#"{"ip":"127.0.0.1","path":"/turns","cost":5}"#);
    let mut wire = Http2Wire::connect_from(Ipv4Addr::LOCALHOST, gateway.address());
    wire.send_request(1, &get_fields("/turns"), b"").expect("it is open");
    until_true("one to wait for its turn", || waiting(&gateway) == 1);
    wire.send_request(3, &get_fields("/held"), b"").expect("it is open");
    until_true("the place to be taken", || has_received(upstream, "/held"));
    (gateway, wire)
}

/// The stores and numbers of workers of a test.
fn settings(redis: &TestRedis) -> [(String, &'static str); 4] {
    let store = || [String::from("memory"), redis.url()];
    let [memory, shared] = store();
    let [memory_too, shared_too] = store();
    [(memory, "1"), (memory_too, "4"), (shared, "1"), (shared_too, "4")]
}

#[test]
fn who_finds_no_room_when_its_turn_has_come_has_paid_nothing() {
    let redis = TestRedis::start();
    for (store, workers) in settings(&redis) {
        let (upstream, _release) = holding_upstream();
        let (gateway, mut wire) = one_place_taken(&upstream, workers, &store, "0");
        grant_three(&gateway);
        let refused = wire.read_stream(1);
        let text = String::from_utf8_lossy(&refused.data).into_owned();
        assert!(text.contains("queue_full"), "{store}, {workers} workers: {text}");
        until_true("the unit to be back", || left(&gateway, "/turns") == 3);
        assert!(!has_received(&upstream, "/turns"));
    }
}

#[test]
fn who_leaves_while_it_waits_for_room_after_its_turn_has_paid_nothing() {
    let redis = TestRedis::start();
    for (store, workers) in settings(&redis) {
        let (upstream, release) = holding_upstream();
        let (gateway, mut wire) = one_place_taken(&upstream, workers, &store, "1");
        grant_three(&gateway);
        until_true("the wait for room", || found_no_room(&gateway) == 1);
        until_true("the charge", || left(&gateway, "/turns") == 2);
        wire.send_frame(frame_kind::RST_STREAM, 0, 1, &8_u32.to_be_bytes()).expect("it is open");
        until_true("the unit to be back", || left(&gateway, "/turns") == 3);
        // Who does not leave is served, and pays.
        wire.send_request(5, &get_fields("/turns"), b"").expect("it is open");
        until_true("the second wait for room", || found_no_room(&gateway) == 2);
        release.store(true, Ordering::Relaxed);
        assert!(wire.read_stream(5).complete);
        assert_eq!(left(&gateway, "/turns"), 2);
        assert!(has_received(&upstream, "/turns"));
    }
}

#[test]
fn who_waits_for_room_after_its_turn_when_a_drain_ends_has_paid_nothing() {
    let redis = TestRedis::start();
    for workers in ["1", "4"] {
        let (upstream, release) = holding_upstream();
        let (gateway, mut wire) = one_place_taken(&upstream, workers, &redis.url(), "1");
        grant_three(&gateway);
        until_true("the wait for room", || found_no_room(&gateway) == 1);
        let prefix = format!("{workers}-1");
        let other = ["--store", &redis.url(), "--key-prefix", &prefix, "--store-timeout", "1s"];
        let other = GatewayProcess::start_with(upstream.address(), TURNS, &other);
        until_true("the charge", || left(&other, "/turns") == 2);
        gateway.server.signal("TERM");
        until_true("the unit to be back", || left(&other, "/turns") == 3);
        release.store(true, Ordering::Relaxed);
        let mut text = String::new();
        while let Some((_, payload)) = wire.read_frame() {
            text += &String::from_utf8_lossy(&payload);
        }
        assert!(text.contains("stopping"), "{text}");
        assert_eq!(gateway.server.wait().code, Some(0));
        assert_eq!(left(&other, "/turns"), 3);
    }
}

/// A rule that needs the body of each request.
const CHAT: &str = "
rules: [{ name: chat, match: { path: /chat }, key: '{ip}', limits: [1000000/day],
          cost: { reserve: '{request.json.max_tokens|2000}' } }]
";

#[test]
fn a_request_whose_body_is_there_does_not_queue_twice() {
    let redis = TestRedis::start();
    for store in [String::from("memory"), redis.url()] {
        let (upstream, release) = holding_upstream();
        let flags = ["--workers", "1", "--store", &store, "--gateway-max-requests", "1"];
        let bounds = ["--gateway-max-waiting", "9", "--gateway-max-wait", "1h"];
        let flags = [&flags[..], &bounds, &["--store-timeout", "1s"]];
        let gateway = GatewayProcess::start_with(upstream.address(), CHAT, &flags.concat());
        let connect = || WireClient::connect(gateway.address());
        let (mut holder, mut chat, mut next) = (connect(), connect(), connect());
        holder.send(b"GET /held HTTP/1.1\r\nhost: app\r\n\r\n");
        until_true("the place to be taken", || has_received(&upstream, "/held"));
        let body = r#"{"max_tokens":5}"#;
        let head = format!("POST /chat HTTP/1.1\r\nhost: app\r\ncontent-length: {}", body.len());
        chat.send(format!("{head}\r\n\r\n{body}").as_bytes());
        until_true("the first to wait", || found_no_room(&gateway) == 1);
        next.send(b"GET /next HTTP/1.1\r\nhost: app\r\n\r\n");
        until_true("the second to wait", || found_no_room(&gateway) == 2);
        release.store(true, Ordering::Relaxed);
        for (client, method) in [(&mut holder, "GET"), (&mut chat, "POST"), (&mut next, "GET")] {
            assert_eq!(client.read_reply(method).expect("an answer").status, 200);
        }
        assert_eq!(found_no_room(&gateway), 2, "each has waited once");
        let received = String::from_utf8_lossy(&upstream.received().concat()).into_owned();
        let place = |target: &str| received.find(target).expect("it has arrived");
        assert!(place(" /chat ") < place(" /next "), "in the order of their arrival: {received}");
    }
}

#[test]
fn who_leaves_before_its_request_is_sent_has_paid_nothing() {
    let redis = TestRedis::start();
    for (store, workers) in settings(&redis) {
        let (upstream, release) = holding_upstream();
        let app = format!(
            "{{ addresses: ['http://{}'], max_connections: 1, connect_timeout: 1m }}",
            upstream.address()
        );
        let estimates =
            [("number", "{ reserve: 4 }"), ("bytes", "{ reserve: '{request.bytes|4}' }")];
        let rules = estimating_rules(&estimates).replace("rules:\n", WAITING_RULES);
        let rules = format!(
            "upstreams: {{ app: {app} }}\nroutes: [{{ path: '/{{*rest}}', upstream: app }}]\n{rules}"
        );
        let flags = [
            "--workers",
            workers,
            "--store",
            &store,
            "--key-prefix",
            workers,
            "--gateway-max-delay",
            "1h",
            "--store-timeout",
            "1s",
        ];
        let gateway = GatewayProcess::start_routed(&rules, &flags);
        let mut wire = Http2Wire::connect_from(Ipv4Addr::LOCALHOST, gateway.address());
        wire.send_request(1, &get_fields("/held"), b"").expect("it is open");
        until_true("the connection to be taken", || has_received(&upstream, "/held"));
        let post = |path| {
            [(":method", "POST"), (":scheme", "http"), (":authority", "app"), (":path", path)]
        };
        for (stream, path) in [(3, "/number"), (5, "/bytes")] {
            wire.send_request(stream, &post(path), b"four").expect("it is open");
            until_true("the charge", || left(&gateway, path) == UNITS - 4);
            let cancel = 8_u32.to_be_bytes();
            wire.send_frame(frame_kind::RST_STREAM, 0, stream, &cancel).expect("it is open");
            until_true("the units to be back", || left(&gateway, path) == UNITS);
        }
        // One departs from its queue at once, one waits for its turn.
        let cancel = 8_u32.to_be_bytes();
        wire.send_request(9, &get_fields("/queue"), b"").expect("it is open");
        until_true("the charge", || left(&gateway, "/queue") == 399);
        wire.send_frame(frame_kind::RST_STREAM, 0, 9, &cancel).expect("it is open");
        until_true("the unit of the queue to be back", || left(&gateway, "/queue") == 400);
        gateway.server.check(r#"{"ip":"127.0.0.1","path":"/turns","cost":5}"#);
        wire.send_request(11, &get_fields("/turns"), b"").expect("it is open");
        until_true("one to wait for its turn", || waiting(&gateway) == 1);
        grant_three(&gateway);
        until_true("the charge", || left(&gateway, "/turns") == 2);
        wire.send_frame(frame_kind::RST_STREAM, 0, 11, &cancel).expect("it is open");
        until_true("the unit of the turn to be back", || left(&gateway, "/turns") == 3);
        // Who does not leave is served, and pays.
        wire.send_request(13, &post("/number"), b"four").expect("it is open");
        until_true("the charge", || left(&gateway, "/number") == UNITS - 4);
        release.store(true, Ordering::Relaxed);
        assert!(wire.read_stream(13).complete);
        assert_eq!(left(&gateway, "/number"), UNITS - 4);
    }
}
