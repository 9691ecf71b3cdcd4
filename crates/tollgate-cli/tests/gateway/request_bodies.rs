//! Bodies that a rule needs before the decision: a client that sends half of them locks nobody out, takes little memory, and
//! pays nothing.

use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use testkit::http2::{self, END_HEADERS, END_STREAM, frame_kind};
use testkit::net::connect_from;
use testkit::peers::RawUpstream;
use testkit::redis::TestRedis;
use testkit::wait::{now, until_true};

use super::gateway_process::GatewayProcess;
use super::http2_wire::Http2Wire;
use super::wire_client::WireClient;
use crate::harness::{file, text};
use crate::server::exposition::ParsedExposition;

const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// Tokens that a caller has.
const BUDGET: u64 = 1_000_000;

const RULES: &str = "
rules:
  - name: tokens
    match: { path: '/v1/{*rest}' }
    key: '{ip}'
    limits: [{ rate: 1000000/day, algorithm: fixed_window }]
    cost: { reserve: '{request.json.max_tokens|2000}' }
  - name: bytes
    match: { path: /upload }
    key: '{ip}'
    limits: [{ rate: 1000000/day, algorithm: fixed_window }]
    cost: { reserve: '{request.bytes|4000}' }
";

const POST_FIELDS: [(&str, &str); 4] =
    [(":method", "POST"), (":scheme", "http"), (":authority", "app"), (":path", "/v1/chat")];

/// The value of a metric without labels.
fn metric(gateway: &GatewayProcess, name: &str) -> u64 {
    let page = ParsedExposition::of_text(&gateway.server.admin_get("/metrics", &[]).body);
    page.samples().find(|one| one.name == name).map_or(0, |one| one.value as u64)
}

fn in_flight(gateway: &GatewayProcess) -> u64 {
    metric(gateway, "tollgate_gateway_requests_in_flight")
}

/// Units that a caller has used under the rule for a path.
fn used(gateway: &GatewayProcess, caller: Ipv4Addr, path: &str) -> u64 {
    let peek = gateway.server.check(&format!(r#"{{"ip":"{caller}","path":"{path}","cost":0}}"#));
    BUDGET - peek["remaining"].as_u64().expect("a limit")
}

fn use_up(gateway: &GatewayProcess, caller: Ipv4Addr) {
    let check = format!(r#"{{"ip":"{caller}","path":"/v1/chat","cost":{BUDGET}}}"#);
    assert_eq!(gateway.server.check(&check)["allowed"], true);
}

/// Sends the head of a POST, and this part of its body.
fn post(client: &mut WireClient, target: &str, framing: &str, part: &str) {
    client
        .send(format!("POST {target} HTTP/1.1\r\nhost: app\r\n{framing}\r\n\r\n{part}").as_bytes());
}

/// Sends requests one after the other, and returns the 99th percentile of their time. None of them is refused.
fn polite_p99(address: SocketAddr, requests: usize) -> Duration {
    let mut client = WireClient::connect(address);
    let body = r#"{"max_tokens":1,"prompt":"x"}"#;
    let mut times: Vec<Duration> = (0..requests)
        .map(|number| {
            let start = now();
            match number % 2 {
                0 => {
                    post(&mut client, "/v1/chat", &format!("content-length: {}", body.len()), body)
                }
                _ => client.send(b"GET /plain HTTP/1.1\r\nhost: app\r\n\r\n"),
            }
            let reply = client.read_reply("GET").expect("an answer");
            assert_eq!(reply.status, 200, "{reply:?}");
            now().duration_since(start)
        })
        .collect();
    times.sort_unstable();
    times[requests * 99 / 100]
}

/// Opens connections with a hundred half-sent bodies each.
fn half_sent(address: SocketAddr, connections: u32, part: &[u8]) -> Vec<Http2Wire> {
    let open = |_| {
        let mut wire = Http2Wire::connect_from(ATTACKER, address);
        let block = http2::header_block(&POST_FIELDS);
        for number in 0..100 {
            let stream = 2 * number + 1;
            wire.send_frame(frame_kind::HEADERS, END_HEADERS, stream, &block).expect("it is open");
            wire.send_frame(frame_kind::DATA, 0, stream, part).expect("it is open");
        }
        wire
    };
    (0..connections).map(open).collect()
}

#[test]
fn half_sent_bodies_lock_nobody_out() {
    let upstream = RawUpstream::recorder();
    for workers in ["1", "4"] {
        let flags =
            ["--workers", workers, "--body-timeout", "10m", "--gateway-max-requests", "100"];
        let flags = [&flags[..], &["--gateway-max-waiting", "0"]].concat();
        let gateway = GatewayProcess::start_with(upstream.address(), RULES, &flags);
        let (memory, before) = (gateway.memory_kib(), polite_p99(gateway.address(), 400));
        // 600 bytes fit into the window that each connection begins with.
        let part = [b"{\"x\":\"", &[b'x'; 594][..]].concat();
        let attack = half_sent(gateway.address(), 9, &part);
        until_true("the gateway to read", || in_flight(&gateway) >= 900);
        let with = polite_p99(gateway.address(), 400);
        let (growth, held) = (
            gateway.memory_peak_kib().saturating_sub(memory),
            metric(&gateway, "tollgate_gateway_body_memory_bytes"),
        );
        eprintln!(
            "{workers} workers: p99 {before:?} before, {with:?} with 900 half-sent bodies; memory grew by {growth} KiB, {held} bytes of it bodies"
        );
        assert!(growth < 32 << 10, "{growth} KiB");
        assert!(held <= 4 << 20, "{held} bytes of bodies");
        assert_eq!(used(&gateway, ATTACKER, "/v1/chat"), 0, "nothing is charged");
        drop(attack);
        until_true("the memory to be free", || {
            metric(&gateway, "tollgate_gateway_body_memory_bytes") == 0
        });
    }
}

/// Sends as much as the gateway takes; returns the bytes.
fn push(stream: &mut TcpStream, bytes: &[u8]) -> usize {
    stream.set_nonblocking(true).expect("a socket");
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(length) => sent += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    sent
}

#[test]
fn unfinished_bodies_take_no_more_than_their_share() {
    let upstream = RawUpstream::recorder();
    let flags = ["--workers", "2", "--body-timeout", "10m"];
    let gateway = GatewayProcess::start_with(upstream.address(), RULES, &flags);
    let memory = gateway.memory_kib();
    let head = "POST /v1/chat HTTP/1.1\r\nhost: app\r\ncontent-length: 240000\r\n\r\n";
    let bytes = [head.as_bytes(), b"{\"x\":\"", &vec![b'x'; 230_000]].concat();
    let mut attack: Vec<(TcpStream, usize)> = (0..400)
        .map(|_| (connect_from(ATTACKER, gateway.address()).expect("it is open"), 0))
        .collect();
    let body_memory = || metric(&gateway, "tollgate_gateway_body_memory_bytes");
    until_true("the share to be used up", || {
        for (stream, sent) in &mut attack {
            *sent += push(stream, &bytes[*sent..]);
        }
        body_memory() >= 3 << 20
    });
    let with = polite_p99(gateway.address(), 400);
    let growth = gateway.memory_peak_kib().saturating_sub(memory);
    let sent: usize = attack.iter().map(|(_, sent)| sent).sum();
    eprintln!("{} MB sent, memory grew by {growth} KiB; p99 {with:?}", sent / 1_000_000);
    assert!(body_memory() <= 4 << 20, "{}", body_memory());
    assert!(growth < 40 << 10, "{growth} KiB");
    drop(attack);
    until_true("the memory to be free", || body_memory() == 0);
}

#[test]
fn more_bodies_than_fit_are_read_one_after_the_other() {
    let upstream = RawUpstream::recorder();
    let flags = ["--workers", "2", "--gateway-body-memory", "1MiB"];
    let gateway = GatewayProcess::start_with(upstream.address(), RULES, &flags);
    let body = format!("{{\"max_tokens\":7,\"x\":\"{}\"}}", "x".repeat(14_000));
    let framing = format!("content-length: {}", body.len());
    let (first, second) = body.split_at(9_000);
    let mut clients: Vec<WireClient> = (0..16)
        .map(|_| {
            let mut client = WireClient::connect_from(ATTACKER, gateway.address());
            post(&mut client, "/v1/chat", &framing, first);
            client
        })
        .collect();
    until_true("all to be read", || in_flight(&gateway) >= 16);
    for client in &mut clients {
        client.send(second.as_bytes());
    }
    for mut client in clients {
        assert_eq!(client.read_reply("POST").expect("an answer").status, 200);
    }
    assert_eq!(used(&gateway, ATTACKER, "/v1/chat"), 16 * 7);
}

#[test]
fn a_caller_who_has_used_up_its_budget_is_refused_unread_and_a_missing_body_is_free() {
    let (upstream, redis) = (RawUpstream::recorder(), TestRedis::start());
    let url = redis.url();
    for store in ["memory", &url] {
        // A store that answers late leaves the decision to the gateway, which has a count of its own.
        let flags = ["--workers", "2", "--body-timeout", "300ms", "--store", store];
        let flags = [&flags[..], &["--store-timeout", "1s"]].concat();
        let gateway = GatewayProcess::start_with(upstream.address(), RULES, &flags);
        let mut client = WireClient::connect(gateway.address());
        post(&mut client, "/v1/chat", "content-length: 100", "{");
        let reply = client.read_reply("POST").expect("an answer");
        assert_eq!((reply.status, &*reply.problem_code()), (408, "request_body"));
        // Each KiB arrives in time, the whole body does not: it holds memory only so long.
        let mut client = WireClient::connect(gateway.address());
        post(&mut client, "/v1/chat", "transfer-encoding: chunked", "5\r\n[1,2,\r\n");
        assert_eq!(client.read_reply("POST").expect("an answer").status, 408);
        let mut wire = Http2Wire::connect_from(Ipv4Addr::LOCALHOST, gateway.address());
        let block = http2::header_block(&POST_FIELDS);
        wire.send_frame(frame_kind::HEADERS, END_HEADERS, 1, &block).expect("it is open");
        let outcome = wire.read_stream(1);
        assert!(String::from_utf8_lossy(&outcome.data).contains("request_body"), "{outcome:?}");
        assert_eq!(used(&gateway, Ipv4Addr::LOCALHOST, "/v1/chat"), 0, "nothing is charged");
        use_up(&gateway, Ipv4Addr::LOCALHOST);
        let mut client = WireClient::connect(gateway.address());
        post(&mut client, "/v1/chat", "content-length: 100", "{");
        assert_eq!(client.read_head().expect("an answer").status, 429);
        assert_eq!(metric(&gateway, "tollgate_gateway_body_memory_bytes"), 0);
    }
}

#[test]
fn bytes_of_bodies_without_a_stated_length_are_counted() {
    let (upstream, redis) = (RawUpstream::recorder(), TestRedis::start());
    let url = redis.url();
    for store in ["memory", &url] {
        let gateway = GatewayProcess::start_with(
            upstream.address(),
            RULES,
            &["--workers", "2", "--store", store, "--store-timeout", "1s"],
        );
        let counted = || used(&gateway, Ipv4Addr::LOCALHOST, "/upload");
        let mut client = WireClient::connect(gateway.address());
        let chunk = format!("3e8\r\n{}\r\n", "x".repeat(1_000));
        let chunks = format!("{}0\r\n\r\n", chunk.repeat(10));
        post(&mut client, "/upload", "transfer-encoding: chunked", &chunks);
        assert_eq!(client.read_reply("POST").expect("an answer").status, 200);
        until_true("ten thousand bytes", || counted() == 10_000);
        post(&mut client, "/upload", "transfer-encoding: chunked", "2\r\nxx\r\n0\r\n\r\n");
        assert_eq!(client.read_reply("POST").expect("an answer").status, 200);
        until_true("two more", || counted() == 10_002);
        let mut wire = Http2Wire::connect_from(Ipv4Addr::LOCALHOST, gateway.address());
        let fields = [&POST_FIELDS[..3], &[(":path", "/upload")]].concat();
        let block = http2::header_block(&fields);
        wire.send_frame(frame_kind::HEADERS, END_HEADERS, 1, &block).expect("it is open");
        wire.send_frame(frame_kind::DATA, 0, 1, &[b'x'; 9_000]).expect("it is open");
        wire.send_frame(frame_kind::DATA, END_STREAM, 1, &[b'x'; 998]).expect("it is open");
        assert!(wire.read_stream(1).complete);
        until_true("9,998 more", || counted() == 20_000);
    }
}

/// Two rules that count the same body: one by the bytes of both bodies, one by an estimate.
const BOTH_COUNTS: &str = "
rules:
  - name: traffic
    key: '{ip}'
    limits: [{ rate: 1000000000/day, algorithm: fixed_window }]
    cost: bytes
  - name: upload
    key: '{ip}'
    limits: [{ rate: 1000000/day, algorithm: fixed_window }]
    cost: { reserve: '{request.bytes|4000}' }
";

#[test]
fn bytes_are_charged_as_they_pass_also_beside_a_rule_that_counts_all_bytes() {
    let (upstream, redis) = (RawUpstream::recorder(), TestRedis::start());
    let url = redis.url();
    for (store, workers) in [("memory", "1"), ("memory", "4"), (&*url, "1"), (&*url, "4")] {
        let flags = ["--workers", workers, "--store", store, "--key-prefix", workers];
        let flags = [&flags[..], &["--store-timeout", "1s"]].concat();
        let gateway = GatewayProcess::start_with(upstream.address(), BOTH_COUNTS, &flags);
        let counted = || used(&gateway, Ipv4Addr::LOCALHOST, "/upload");
        let most = r#"{"ip":"127.0.0.1","path":"/upload","cost":750000}"#;
        assert_eq!(gateway.server.check(most)["allowed"], true);
        let mut client = WireClient::connect(gateway.address());
        post(&mut client, "/upload", "transfer-encoding: chunked", "");
        let chunk = format!("c350\r\n{}\r\n", "x".repeat(50_000));
        client.send(chunk.repeat(4).as_bytes());
        // The body has not ended. The last bytes are not charged yet: each charge asks the store.
        until_true("the bytes so far", || counted() >= 950_000 - (64 << 10));
        client.send(chunk.repeat(3).as_bytes());
        // A limit that is used up on the way refuses others before the end.
        until_true("the limit to be used up", || counted() == BUDGET);
        assert_eq!(gateway.get("/other").status, 429);
        client.send(b"0\r\n\r\n");
        assert_eq!(client.read_reply("POST").expect("an answer").status, 200);
    }
}

/// A rule that needs the body, and callers named by tokens.
const TOKENS: &str = "
  - { name: chat, key: '{ip}', limits: [1000/day], cost: { reserve: '{request.json.max_tokens|20}' } }
";

#[test]
fn the_caller_of_a_request_whose_body_is_read_is_identified_once() {
    let (upstream, redis) = (RawUpstream::recorder(), TestRedis::start());
    let directory = tempfile::tempdir().expect("a temporary folder");
    let secret = file(directory.path(), "secret", "a secret of at least 32 bytes, one");
    let user =
        format!("{{ jwt: {{ claim: sub, keys_file: {}, algorithms: [HS256] }} }}", text(&secret));
    let rules = format!("identify: {{ user: {user} }}\nrules:{TOKENS}");
    let queued = rules.replace("limits:", "fair: { wait: 1h, per_key: 9, total: 9 }, limits:");
    for store in [String::from("memory"), redis.url()] {
        for (prefix, rules) in [("plain", &rules), ("fair", &queued)] {
            let flags = ["--workers", "1", "--store", &store, "--key-prefix", prefix];
            let flags = [&flags[..], &["--store-timeout", "1s"]].concat();
            let gateway = GatewayProcess::start_with(upstream.address(), rules, &flags);
            let mut client = WireClient::connect(gateway.address());
            let fields = "authorization: Bearer a.b.c\r\nx-forwarded-for: 192.0.2.7";
            for number in 1..=3 {
                post(&mut client, "/", &format!("{fields}\r\ncontent-length: 9"), r#"{"x":  1}"#);
                assert_eq!(client.read_reply("POST").expect("an answer").status, 200);
                let page = gateway.server.admin_get("/metrics", &[]).body;
                let page = ParsedExposition::of_text(&page);
                let mut tokens = page.samples().filter(|one| one.name == "tollgate_tokens_total");
                let rejected = tokens.find(|one| one.labels["result"] == *"rejected");
                assert_eq!(rejected.expect("a counter").value as u64, number, "over {store}");
            }
            assert_eq!(used_of(&gateway, "192.0.2.7", 1_000), 60, "by its own address");
        }
    }
}

/// Units of a limit of so many that an address has used.
fn used_of(gateway: &GatewayProcess, address: &str, units: u64) -> u64 {
    let peek = gateway.server.check(&format!(r#"{{"ip":"{address}","cost":0}}"#));
    units - peek["remaining"].as_u64().expect("a limit")
}
