//! Clients that leave before they are served have paid nothing, over memory and over a Redis whose answer is on its way
//! when they leave, with any number of workers.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use testkit::http2::frame_kind;
use testkit::peers::RawUpstream;
use testkit::redis::TestRedis;
use testkit::wait::until_true;

use super::gateway_process::GatewayProcess;
use super::http2_wire::Http2Wire;
use super::shaping::{waiting, waits};
use super::wire_client::WireClient;

/// Nobody departs within an hour but the first, so units come back only from those who leave.
const QUEUE: &str = "
rules: [{ name: even, key: global, limits: [{ rate: 1/hour, burst: 400, algorithm: leaky_bucket, queue: true }] }]
";

/// The same limit, which each caller waits for in a fair queue.
const FAIR_QUEUE: &str = "
rules:
  - { name: each, key: '{ip}', fair: { wait: 1h, per_key: 1000, total: 1000 }, concurrency: 300 }
  - { name: all, key: global, limits: [{ rate: 1/hour, burst: 400, algorithm: leaky_bucket, queue: true }] }
";

/// The same queue, and a rule in shadow that counts each request after the first towards a ban.
const SHADOW_BAN: &str = "
rules:
  - { name: even, key: global, limits: [{ rate: 1/hour, burst: 400, algorithm: leaky_bucket, queue: true }] }
  - { name: trial, key: '{ip}', mode: shadow, limits: [1/hour], ban: { after: 10000, within: 1h, for: 1h } }
";

const WORKERS: [&str; 4] = ["1", "2", "4", "8"];

/// Sends requests from as many connections as there are, and resets all of them at once.
fn reset_connections(gateway: SocketAddr, connections: usize) {
    let clients: Vec<WireClient> = (0..connections)
        .map(|_| {
            let mut client = WireClient::connect(gateway);
            client.send(b"GET /left HTTP/1.1\r\nhost: a\r\n\r\n");
            client
        })
        .collect();
    for client in clients {
        set_socket_linger(&client.stream, Some(Duration::ZERO)).expect("a socket");
    }
}

/// A gateway, the upstream behind it and the store that it asks.
struct DepartureScene {
    gateway: GatewayProcess,
    upstream: RawUpstream,
    _redis: Option<TestRedis>,
    /// Units of the limit that are left.
    left: u64,
}

impl DepartureScene {
    fn new(rules: &str, workers: &str, redis: Option<TestRedis>) -> DepartureScene {
        let upstream = RawUpstream::recorder();
        let url = redis.as_ref().map(TestRedis::url).unwrap_or_default();
        let store = ["--store", &url, "--store-timeout", "1s"];
        let flags = ["--workers", workers, "--gateway-max-delay", "3000h"];
        let own = ["--max-connections-per-ip", "10000"];
        let store = if redis.is_some() { &store[..] } else { &[] };
        let flags = [&flags[..], &own, store].concat();
        let gateway = GatewayProcess::start_with(upstream.address(), rules, &flags);
        assert_eq!(gateway.get("/first").status, 200);
        DepartureScene { gateway, upstream, _redis: redis, left: 399 }
    }

    /// Begins requests on one HTTP/2 connection and resets each of them.
    fn reset_streams(&self, streams: u32) {
        let mut wire = Http2Wire::connect_from(Ipv4Addr::LOCALHOST, self.gateway.address());
        let fields =
            [(":method", "GET"), (":scheme", "http"), (":authority", "app"), (":path", "/left")];
        for stream in (0..streams).map(|number| 2 * number + 1) {
            let sent = wire.send_request(stream, &fields, b"");
            let reset = wire.send_frame(frame_kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes());
            // The gateway may end a connection with so many resets.
            if sent.and(reset).is_err() {
                return;
            }
        }
    }

    /// Checks that nobody has paid, that nothing is held, and that everybody who was read is counted.
    fn check(&self, name: &str, sent: u64) {
        let server = &self.gateway.server;
        let peek = || server.check(r#"{"ip":"127.0.0.1","cost":0}"#)["remaining"].as_u64();
        let status = || server.admin_get("/api/status", &[]).json();
        until_true("all units to be back", || {
            waiting(&self.gateway) == 0 && peek() == Some(self.left)
        });
        until_true("no reservation to be open", || status()["reservations"].as_u64() == Some(0));
        let rules = server.admin_get("/api/rules", &[]).json();
        let left: u64 = rules["rules"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|rule| rule["waits"]["left"].as_u64().unwrap_or_default())
            .sum();
        eprintln!("{name}: {sent} sent, {left} left: {}", waits(&self.gateway));
        assert!(left > 0 && left <= sent, "{name}: {left} of {sent}");
        let received = String::from_utf8_lossy(&self.upstream.received().concat()).into_owned();
        assert!(!received.contains("/left"), "{name}: {received}");
    }
}

#[test]
fn who_leaves_while_the_store_is_asked_has_paid_nothing() {
    for workers in WORKERS {
        for (name, rules) in [("queue", QUEUE), ("fair", FAIR_QUEUE), ("shadow", SHADOW_BAN)] {
            let name = format!("{name}, {workers} workers");
            let scene = DepartureScene::new(rules, workers, Some(TestRedis::start()));
            for _ in 0..4 {
                reset_connections(scene.gateway.address(), 100);
            }
            scene.check(&name, 400);
            for _ in 0..5 {
                scene.reset_streams(40);
            }
            scene.check(&name, 600);
        }
    }
}

/// Clients that leave in the long run.
const DISCONNECTS: usize = 8_000;

#[test]
fn eight_thousand_disconnects_leave_a_shared_queue_open() {
    for redis in [None, Some(TestRedis::start())] {
        let name = if redis.is_some() { "Redis" } else { "memory" };
        let scene = DepartureScene::new(QUEUE, "2", redis);
        let address = scene.gateway.address();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..DISCONNECTS / 100).for_each(|_| reset_connections(address, 50)));
            }
        });
        scene.check(name, DISCONNECTS as u64);
    }
}
