//! Random changes of the raw requests in `corpus.txt`: whatever reaches the upstream is a good request without forged
//! fields, and the rules have counted it.

use std::net::Ipv4Addr;

use testkit::peers::RawUpstream;
use testkit::random::SplitMix64;
use testkit::strict_http::StrictRequest;

use super::corpus_reader;
use super::gateway_process::{COUNTING_RULES, GatewayProcess};
use super::wire_client::WireClient;

/// The address of the clients: no trusted peer.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Changed requests of one run.
const MUTATIONS: u64 = 3_000;

/// Longest request that is changed; a longer one is only a test of a bound.
const BYTES_MAX: usize = 2_000;

/// Pieces that mean something to some reader of HTTP.
const PIECES: [&[u8]; 24] = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b",",
    b";",
    b"0\r\n\r\n",
    b"\x0b",
    b"\xff",
    b"chunked",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 0\r\n",
    b"Connection: x-forwarded-for\r\n",
    b"Connection: close\r\n",
    b"X-User-Id: admin\r\n",
    b"X-Forwarded-For: 10.0.0.1\r\n",
    b"Host: evil\r\n",
    b"GET /smuggled HTTP/1.1\r\nHost: app\r\n\r\n",
    b"HTTP/1.0",
    b"Upgrade: h2c\r\n",
];

/// Changes a request in one to four places.
fn mutate(bytes: &mut Vec<u8>, random: &mut SplitMix64) {
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(4) {
            0 if at < bytes.len() => bytes[at] = random.number() as u8,
            1 if at < bytes.len() => {
                bytes.remove(at);
            }
            2 => {
                let end = bytes.len().min(at + random.below(40) as usize);
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            _ => {
                let piece = PIECES[random.below(PIECES.len() as u64) as usize];
                bytes.splice(at..at, piece.iter().copied());
            }
        }
    }
}

/// Panics if a request has fields that the gateway must have removed.
fn check(request: &StrictRequest) {
    let has = |name: &str| !request.values(name).is_empty();
    let forged = ["keep-alive", "proxy-connection", "x-user-id", "x-tier", "http2-settings"];
    assert!(!forged.into_iter().any(has), "{request:?}");
    assert_eq!(request.value("x-forwarded-for"), Some("127.0.0.2"), "{request:?}");
    let connection = request.values("connection");
    let allowed =
        |value: &&str| ["te", "upgrade"].iter().any(|name| value.eq_ignore_ascii_case(name));
    assert!(connection.iter().all(allowed), "{request:?}");
}

#[test]
fn changed_requests_are_refused_or_counted() {
    let upstream = RawUpstream::recorder();
    let gateway = GatewayProcess::start(upstream.address(), COUNTING_RULES);
    let cases: Vec<Vec<u8>> = corpus_reader::read().into_iter().map(|case| case.bytes).collect();
    let cases: Vec<_> = cases.into_iter().filter(|bytes| bytes.len() <= BYTES_MAX).collect();
    let (mut random, mut received) = (SplitMix64::seeded(13), 0);
    for number in 0..MUTATIONS {
        let mut bytes = cases[random.below(cases.len() as u64) as usize].clone();
        mutate(&mut bytes, &mut random);
        let mut client = WireClient::connect_from(STRANGER, gateway.address());
        client.send(&bytes);
        // The end of a last request that is the body of an earlier one, or has none.
        client.send(b"\r\n\r\nGET /last HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n");
        client.finish();
        client.read_to_close();
        let requests = upstream.take_requests();
        let requests = requests.unwrap_or_else(|reason| {
            panic!("{number}: {reason} of {:?}", String::from_utf8_lossy(&bytes))
        });
        requests.iter().for_each(check);
        received += requests.len() as u64;
    }
    let next = WireClient::connect_from(STRANGER, gateway.address()).get("/follow-up");
    assert_eq!(next.expect("an answer").text(), "/follow-up");
    received += upstream.take_requests().expect("good requests").len() as u64;
    let counted = gateway.counted_for(STRANGER);
    eprintln!("{MUTATIONS} changed requests: {counted} counted, {received} received");
    assert!(received > MUTATIONS / 10, "too few are still requests: {received}");
    assert!(counted >= received, "{counted} counted, {received} received");
}
