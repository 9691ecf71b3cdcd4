//! Plain HTTP/1.1 requests are answered byte for byte as by hyper, which answers everything else.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::harness::{DEADLINE, TollgateProcess, file, text};

/// Buckets that refill within 20 minutes at the earliest: both requests of a pair see the same, however long lies between.
const RULES: &str = "
identify: { trusted_peers: [127.0.0.0/8], user: { header: x-user-id }, tier: { header: x-tier } }
tiers: { pro: { multiplier: 2 } }
rules:
  - { name: api, match: { path: '/api/{*rest}' }, key: '{user}', limits: [10/day burst 10, 3/hour burst 3] }
  - { name: soft, match: { path: /soft }, key: '{user}', limits: [1/day], soft: true }
  - { name: shadow, match: { path: /shadow }, key: '{user}', limits: [1/day], mode: shadow }
";

/// A connection, and the way its requests go.
struct RawConnection {
    stream: TcpStream,
    /// User of its requests: each connection has its own, with a name as long as the other's.
    user: &'static str,
}

impl RawConnection {
    fn open(server: &TollgateProcess, user: &'static str) -> RawConnection {
        let stream = TcpStream::connect(server.http()).expect("a connection");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        RawConnection { stream, user }
    }

    /// The reply to a request, without what depends on the time.
    fn ask(&mut self, request: &str) -> String {
        let request = request.replace("USER", self.user);
        self.stream.write_all(request.as_bytes()).expect("it is sent");
        let (mut said, mut room) = (Vec::new(), [0; 4_096]);
        loop {
            let bytes = self.stream.read(&mut room).expect("a reply");
            assert!(bytes > 0, "closed after {:?}", String::from_utf8_lossy(&said));
            said.extend_from_slice(&room[..bytes]);
            let shown = String::from_utf8(said.clone()).expect("text");
            let Some((head, body)) = shown.split_once("\r\n\r\n") else { continue };
            let length = head.split("content-length: ").nth(1).expect("a length");
            let length: usize = length.lines().next().unwrap().parse().expect("a number");
            if body.len() == length {
                return without_times(&shown);
            }
        }
    }
}

/// Replaces the digits that follow names of times.
fn without_times(reply: &str) -> String {
    let mut shown = String::new();
    for line in reply.split_inclusive("\r\n").filter(|line| !line.starts_with("date: ")) {
        let times = ["reset: ", "_ms\":", "reset_at\":", ";t=", "retry-after: ", "retryAfter\":"];
        let mut line = line.replace("again in", "in");
        for name in times {
            let mut parts = line.split(name);
            let first = parts.next().unwrap_or_default().to_string();
            let rest = parts.map(|part| {
                format!("{name}0{}", part.trim_start_matches(|digit: char| digit.is_ascii_digit()))
            });
            line = first + &rest.collect::<String>();
        }
        // Lengths follow the digits of times.
        if !line.starts_with("content-length: ") || line == "content-length: 0\r\n" {
            shown += &line;
        }
    }
    shown
}

const PATHS: [&str; 6] = ["/api/a", "/soft", "/shadow", "/none", "/api/%2e%2e/b?c", "/api//a"];

/// Lines of a request for forward-auth.
const FIELDS: [&str; 9] = [
    "X-User-Id: USER\r\n",
    "x-user-id: USER\r\n",
    "x-tier: pro\r\n",
    "X-Forwarded-For: 192.0.2.1, 198.51.100.7\r\n",
    "X-Original-Method: POST\r\n",
    "x-original-uri: /api/nginx\r\n",
    "Connection: keep-alive\r\n",
    "accept: text/html,\u{e9}\r\n",
    "X-Forwarded-Uri: /soft\r\n",
];

/// Bodies of checks.
const BODIES: [&str; 9] = [
    r#"{"path":"/api/a","user":"USER"}"#,
    r#"{"path":"/api/a","user":"USER","cost":0}"#,
    r#"{"path":"/api/a","user":"USER","cost":99}"#,
    r#"{"path":"/soft","user":"USER"}"#,
    r#"{"path":"/shadow","user":"USER"}"#,
    r#"{"path":"/api/a"}"#,
    r#"{"path":"/api/a","headers":{"x-user-id":"USER"},"ip":"127.0.0.1"}"#,
    r#"{"pth":"/api/a"}"#,
    "",
];

/// A request, made of the bits of a number.
fn request(mut bits: u64) -> String {
    let mut below = |bound: usize| {
        let number = bits as usize % bound;
        bits = (bits / bound as u64).wrapping_add(bits << 40);
        number
    };
    if below(2) == 0 {
        let body = BODIES[below(BODIES.len())];
        let length = body.replace("USER", "usr-a").len();
        let kind = ["", "content-type: application/json\r\n"][below(2)];
        return format!(
            "POST /v1/check HTTP/1.1\r\nhost: a\r\n{kind}content-length: {length}\r\n\r\n{body}"
        );
    }
    let proxy = ["", "/nginx", "?query=1"][below(3)];
    let path = PATHS[below(PATHS.len())];
    let mut head = format!(
        "GET /v1/forward-auth{proxy} HTTP/1.1\r\nHost: 127.0.0.1\r\nx-forwarded-method: GET\r\n\
         x-forwarded-uri: {path}\r\n"
    );
    for _ in 0..below(5) {
        head += FIELDS[below(FIELDS.len())];
    }
    head + "\r\n"
}

#[test]
fn random_requests_are_answered_as_by_hyper() {
    let directory = tempfile::tempdir().unwrap();
    let rules = file(directory.path(), "rules.yaml", RULES);
    let server = TollgateProcess::start(&["--rules", text(&rules)]);
    let mut plain = RawConnection::open(&server, "usr-a");
    let mut by_hyper = RawConnection::open(&server, "usr-b");
    let document = "GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n";
    assert!(by_hyper.ask(document).starts_with("HTTP/1.1 200 OK\r\n"));
    let mut random: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut statuses = std::collections::BTreeMap::<String, u32>::new();
    for _ in 0..600 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let request = request(random);
        // A repeated field ends the lane.
        if is_unusual(&request) {
            plain = RawConnection::open(&server, "usr-a");
        }
        let (one, other) = (plain.ask(&request), by_hyper.ask(&request));
        assert_eq!(one, other, "{request}");
        *statuses.entry(one[9..12].to_string()).or_default() += 1;
    }
    let seen: Vec<&str> = statuses.keys().map(String::as_str).collect();
    assert_eq!(seen, ["200", "400", "403", "429"], "{statuses:?}");
}

/// Returns true if a field appears twice.
fn is_unusual(request: &str) -> bool {
    let names = request.lines().skip(1).take_while(|line| !line.is_empty());
    let mut names: Vec<_> =
        names.map(|line| line.split(':').next().unwrap_or_default().to_ascii_lowercase()).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    names.len() < all
}

#[test]
fn plain_and_other_requests_follow_each_other_in_one_pipeline() {
    let server = TollgateProcess::start(&["--limit", "1000/hour"]);
    let plain = "GET /v1/forward-auth HTTP/1.1\r\nhost: a\r\n\r\n";
    let check = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 12\r\n\r\n{\"user\":\"1\"}";
    let chunked = "POST /v1/check HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nc\r\n{\"user\":\"1\"}\r\n0\r\n\r\n";
    let missing = "GET /none HTTP/1.1\r\nhost: a\r\n\r\n";
    let last = "GET /v1/forward-auth HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let bytes = [plain, check, plain, chunked, plain, missing, check, last].concat();
    let wanted = [200, 200, 200, 200, 200, 404, 200, 200];
    // In one piece, and byte by byte; the client's sending side is open or closed.
    for (piece, closes) in [(bytes.len(), false), (1, false), (bytes.len(), true), (50, true)] {
        let mut stream = TcpStream::connect(server.http()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_nodelay(true).unwrap();
        for part in bytes.as_bytes().chunks(piece) {
            stream.write_all(part).unwrap();
        }
        if closes {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("the connection is closed in the end");
        let statuses: Vec<u16> = said
            .match_indices("HTTP/1.1 ")
            .map(|(at, _)| said[at + 9..at + 12].parse().expect("a status"))
            .collect();
        assert_eq!(statuses, wanted, "pieces of {piece}: {said}");
    }
}
