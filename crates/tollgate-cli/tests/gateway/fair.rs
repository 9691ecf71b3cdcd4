//! Fair queues at the gateway, over real sockets: a greedy caller beside polite ones, at one gateway and at three that
//! share a Redis.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use testkit::peers::RawUpstream;
use testkit::redis::TestRedis;
use testkit::wait::{pause, until_true};

use super::gateway_process::GatewayProcess;
use super::wire_client::WireClient;

/// All callers together get 100 a second, shared among them. The first rule is the one with the queue.
const SHARED_RATE: &str = "
identify: { trusted_peers: [127.0.0.1/32], user: { header: x-user-id } }
rules:
  - { name: each, key: '{user}', fair: { wait: 5s, per_key: 50, total: 1000 } }
  - { name: all, key: global, limits: [100/second burst 10] }
";

/// All callers together have four requests in progress.
const SHARED_CONCURRENCY: &str = "
identify: { trusted_peers: [127.0.0.1/32], user: { header: x-user-id } }
rules:
  - { name: each, key: '{user}', fair: { wait: 5s, per_key: 50, total: 1000 } }
  - { name: all, key: global, concurrency: 4 }
";

/// Requests of each polite caller.
const POLITE_REQUESTS: u64 = 20;

/// Polite callers: each sends one request after the other.
const POLITE: usize = 9;

/// Connections of the greedy caller.
const GREEDY_CONNECTIONS: usize = 40;

/// What became of the requests of the callers.
#[derive(Debug, Default)]
struct TrafficCounts {
    polite_served: AtomicU64,
    polite_refused: AtomicU64,
    greedy_served: AtomicU64,
}

fn get(client: &mut WireClient, user: &str) -> u16 {
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-user-id: {user}\r\n\r\n");
    client.send(request.as_bytes());
    client.read_reply("GET").expect("an answer").status
}

/// A greedy caller on many connections, and polite ones that send until all of their requests are answered. Callers are
/// spread over the gateways. Counts the requests that were answered until the last polite caller was done.
fn contend(gateways: &[SocketAddr]) -> TrafficCounts {
    let (counts, done) = (TrafficCounts::default(), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..GREEDY_CONNECTIONS {
            let (address, counts, done) = (gateways[number % gateways.len()], &counts, &done);
            scope.spawn(move || {
                let mut client = WireClient::connect(address);
                while done.load(Ordering::Relaxed) < POLITE as u64 {
                    let is_served = get(&mut client, "greedy") == 200;
                    // Those who wait when the others are done are served afterwards.
                    if is_served && done.load(Ordering::Relaxed) < POLITE as u64 {
                        counts.greedy_served.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        for number in 0..POLITE {
            let (address, counts, done) = (gateways[number % gateways.len()], &counts, &done);
            scope.spawn(move || {
                let mut client = WireClient::connect(address);
                for _ in 0..POLITE_REQUESTS {
                    let counter = match get(&mut client, &format!("polite-{number}")) {
                        200 => &counts.polite_served,
                        _ => &counts.polite_refused,
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    counts
}

/// Checks that polite callers were served, and that the greedy one got no more than its share beside them.
fn check(name: &str, counts: &TrafficCounts, share_max: f64) {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (served, refused) = (count(&counts.polite_served), count(&counts.polite_refused));
    let greedy = count(&counts.greedy_served);
    let each = served as f64 / POLITE as f64;
    eprintln!(
        "{name}: polite {served} served, {refused} refused; greedy {greedy}, others {each:.1} each"
    );
    assert!(served * 100 >= (served + refused) * 98, "{counts:?}");
    assert!(greedy as f64 <= each * share_max, "{name}: greedy {greedy}, others {each} each");
}

#[test]
fn a_greedy_caller_gets_its_share_and_polite_ones_are_served() {
    // Work takes a while, so that callers wait for each other's work to end.
    let upstream = RawUpstream::start(|conversation| {
        loop {
            conversation.read_head()?;
            pause(Duration::from_millis(10));
            conversation.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
        }
    });
    for (name, rules) in [("rate", SHARED_RATE), ("concurrency", SHARED_CONCURRENCY)] {
        let flags = ["--workers", "2", "--max-connections-per-ip", "10000"];
        let gateway = GatewayProcess::start_with(upstream.address(), rules, &flags);
        let counts = contend(&[gateway.address()]);
        // A polite caller does not wait while it reads an answer and sends the next request. Without shares
        // the greedy one would get forty times as much.
        check(name, &counts, 5.0);
        until_true("nobody to wait", || super::shaping::waiting(&gateway) == 0);
    }
}

#[test]
fn three_gateways_over_one_redis_each_schedule_their_own_callers() {
    let redis = TestRedis::start();
    let upstream = RawUpstream::recorder();
    let url = redis.url();
    let flags = ["--workers", "1", "--store", url.as_str(), "--max-connections-per-ip", "10000"];
    for (instances, name) in [(1, "one instance"), (3, "three instances")] {
        let gateways: Vec<GatewayProcess> = (0..instances)
            .map(|_| GatewayProcess::start_with(upstream.address(), SHARED_RATE, &flags))
            .collect();
        let addresses: Vec<SocketAddr> = gateways.iter().map(GatewayProcess::address).collect();
        // The greedy caller has a share at each instance, and what one has left goes to the others.
        check(name, &contend(&addresses), f64::INFINITY);
        for gateway in &gateways {
            until_true("nobody to wait", || super::shaping::waiting(gateway) == 0);
        }
    }
}
