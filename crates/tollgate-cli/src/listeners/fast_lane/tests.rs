//! The fast lane beside hyper's way: the same bytes in, the same bytes out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use http::{HeaderMap, Response, StatusCode, request};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::listeners::handler::{ReceivedRequest, RequestAdmission, RoutedRequest};
use crate::listeners::header_fields::{HeaderFieldSlice, HeaderFields};
use crate::listeners::protocol::{AgreedVersion, Protocol};
use crate::listeners::request_body::BodyError;
use crate::listeners::response_body::ResponseBody;
use crate::listeners::watchdog::{ConnectionTimeouts, ConnectionWatchdog};

/// Answers with what it was asked, in the lane or by hyper's way.
struct EchoHandler {
    has_lane: bool,
    /// Requests that the lane has answered.
    plain_answers: AtomicUsize,
}

/// The reply to a request: everything that an endpoint can see.
fn echo(path: &str, fields: &impl HeaderFields, body: &[u8]) -> Response<ResponseBody> {
    assert_ne!(path, "/bug", "this test's bug");
    let mut text = format!("{path}\n");
    for name in ["host", "x-a", "x-forwarded-for", "content-length"] {
        for value in fields.values(name) {
            text += &format!("{name}: {}\n", String::from_utf8_lossy(value));
        }
    }
    text += &String::from_utf8_lossy(body);
    let status = if path == "/refused" { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    let text = if path == "/empty" { String::new() } else { text };
    let text = if path == "/long" { text.repeat(200) } else { text };
    reply::json(status, text)
}

impl Handler for EchoHandler {
    type Endpoint = ();

    fn admit(&self, head: &request::Parts, _: SocketAddr) -> RequestAdmission<()> {
        let body_bytes_max = (head.method == http::Method::POST).then_some(2_000);
        RequestAdmission::Admitted(RoutedRequest { endpoint: (), body_bytes_max, deadline: None })
    }

    fn answer_at_once(
        &self,
        (): (),
        request: &mut ReceivedRequest<'_>,
    ) -> Option<Response<ResponseBody>> {
        let headers: &HeaderMap = &request.head.headers;
        Some(echo(request.head.uri.path(), headers, request.body))
    }

    fn has_fast_lane(&self) -> bool {
        self.has_lane
    }

    fn answer_plain(&self, request: &PlainRequest<'_, '_>, _: SocketAddr) -> Option<HttpReply> {
        // One path is left to hyper.
        let fields = HeaderFieldSlice(request.fields);
        (request.path != "/rare").then(|| {
            self.plain_answers.fetch_add(1, Ordering::Relaxed);
            echo(request.path, &fields, request.body).into()
        })
    }

    async fn answer_by(&self, (): (), _: ReceivedRequest<'_>) -> Response<ResponseBody> {
        unreachable!("everything is answered at once")
    }

    fn unreceived(&self, _: &RoutedRequest<()>, problem: &BodyError) -> Response<ResponseBody> {
        reply::no_body(problem, 2_000)
    }

    fn panicked(&self) -> Response<ResponseBody> {
        reply::panicked()
    }
}

const TIMEOUTS: ConnectionTimeouts = ConnectionTimeouts {
    head: Duration::from_secs(30),
    idle: Duration::from_secs(30),
    body: Duration::from_secs(30),
};

fn protocol(has_lane: bool) -> Arc<HttpProtocol<EchoHandler>> {
    let handler = EchoHandler { has_lane, plain_answers: AtomicUsize::new(0) };
    Arc::new(HttpProtocol::new(handler, TIMEOUTS, Arc::default(), Arc::default()))
}

/// A connection that is being served; the bytes between the two ends are bounded.
fn connect(protocol: &Arc<HttpProtocol<EchoHandler>>, room: usize) -> (DuplexStream, ServedTask) {
    let (client, server) = duplex(room);
    let peer = SocketAddr::from(([127, 0, 0, 1], 9));
    let activity = Arc::<ConnectionActivity>::default();
    let task =
        tokio::spawn(protocol.clone().serve(server, peer, AgreedVersion::Any, activity.clone()));
    (client, ServedTask { task, activity })
}

struct ServedTask {
    task: tokio::task::JoinHandle<()>,
    activity: Arc<ConnectionActivity>,
}

/// Everything that is sent back for these pieces; of dates only their length.
async fn exchange(has_lane: bool, pieces: &[&[u8]], room: usize) -> String {
    let (client, served) = connect(&protocol(has_lane), room);
    let (mut receiving, mut sending) = tokio::io::split(client);
    let mut said = Vec::new();
    let send = async {
        for piece in pieces {
            // The peer may have closed the connection.
            if sending.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let _ = sending.shutdown().await;
    };
    let receive = receiving.read_to_end(&mut said);
    let (_, received) = tokio::join!(send, receive);
    received.expect("the connection ends");
    served.task.await.expect("it is served to its end");
    let said = String::from_utf8_lossy(&said).into_owned();
    let shown = |line: &str| match line.starts_with("date: ") {
        true => format!("date of {} bytes\r\n", line.len()),
        false => line.into(),
    };
    said.split_inclusive("\r\n").map(shown).collect()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Checks that both ways answer these pieces equally. Returns the answer.
fn check(runtime: &tokio::runtime::Runtime, pieces: &[&[u8]], room: usize) -> String {
    let by_lane = runtime.block_on(exchange(true, pieces, room));
    let by_hyper = runtime.block_on(exchange(false, pieces, room));
    if by_lane != by_hyper {
        // hyper parses an incomplete head again only when it sees an empty line. So a head that is no HTTP gets 400 if it
        // arrives in one piece, and may get nothing if it arrives in several. The lane hands it over in one piece.
        let bytes = pieces.concat();
        let at_once = runtime.block_on(exchange(false, &[&bytes], 64 << 10));
        assert_eq!(by_lane, at_once, "{:?}, room {room}", String::from_utf8_lossy(&bytes));
    }
    by_lane
}

const GET: &str = "GET /a HTTP/1.1\r\nhost: a\r\n\r\n";
const POST: &str = "POST /b HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";

/// Requests in the order in which their bytes follow each other, and the statuses of the replies.
#[test]
fn smuggled_requests_are_answered_as_by_hyper() {
    let post = "POST /b HTTP/1.1\r\nhost: a\r\n";
    let rows: [(String, &[u16]); 36] = [
        (GET.into(), &[200]),
        (GET.repeat(3), &[200, 200, 200]),
        (format!("{POST}{GET}{POST}"), &[200, 200, 200]),
        (format!("\r\n\r\n{GET}\r\n{GET}"), &[200, 200]),
        (format!("{GET}GET /bug HTTP/1.1\r\nhost: a\r\n\r\n{GET}"), &[200, 500, 200]),
        (format!("{GET}GET /rare HTTP/1.1\r\nhost: a\r\n\r\n{GET}"), &[200, 200, 200]),
        (format!("{GET}HEAD /a HTTP/1.1\r\nhost: a\r\n\r\n{GET}"), &[200, 200, 200]),
        (GET.replace("1.1", "1.0") + GET, &[200]),
        (format!("{GET}{}{GET}", GET.replace("host", "connection: close\r\nhost")), &[200, 200]),
        (format!("{GET}PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), &[200]),
        // Two lengths, equal and different
        (format!("{post}content-length: 2\r\ncontent-length: 2\r\n\r\n{{}}{GET}"), &[200, 200]),
        (format!("{post}content-length: 2\r\ncontent-length: 44\r\n\r\n{{}}{GET}"), &[400]),
        (format!("{post}content-length: 2, 2\r\n\r\n{{}}{GET}"), &[400]),
        (format!("{post}content-length: +2\r\n\r\n{{}}{GET}"), &[400]),
        (format!("{post}content-length: 0x2\r\n\r\n{{}}{GET}"), &[400]),
        (format!("{post}content-length: -1\r\n\r\n{GET}"), &[400]),
        (format!("{post}content-length: 99999999999999999999\r\n\r\n{GET}"), &[400]),
        (format!("{post}content-length: 002\r\n\r\n{{}}{GET}"), &[200, 200]),
        (format!("{post}content-length : 2\r\n\r\n{{}}{GET}"), &[400]),
        (format!("{post}content-length: 2\r\n\r\n{{}}\r\n{GET}"), &[200, 200]),
        (format!("{post}\r\n{GET}"), &[200, 200]),
        (format!("GET /a HTTP/1.1\r\nhost: a\r\ncontent-length: 40\r\n\r\n{GET}"), &[200]),
        // A length and an encoding
        (
            format!("{post}content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{GET}"),
            &[200],
        ),
        (
            format!("{post}transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n{GET}"),
            &[200],
        ),
        (format!("{post}transfer-encoding: chunked\r\n\r\n0\r\n\r\n{GET}"), &[200, 200]),
        (format!("{post}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n{GET}"), &[400]),
        (format!("{post}transfer-encoding: identity\r\n\r\n{{}}{GET}"), &[400]),
        (format!("{post}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{GET}"), &[400]),
        (format!("{post}transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n{GET}"), &[400]),
        (format!("{post}transfer-encoding: chunked\r\n\r\nzz\r\n{GET}"), &[400]),
        // Lines and names
        (format!("GET /a HTTP/1.1\r\nhost: a\r\n folded\r\n\r\n{GET}"), &[400]),
        (format!("GET /a HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n{GET}"), &[400, 200]),
        (format!("GET /a HTTP/1.1\r\n\r\n{GET}"), &[400, 200]),
        (format!("GET /a HTTP/1.1\nhost: a\n\n{GET}"), &[200, 200]),
        (format!("GET /a HTTP/1.1\rhost: a\r\r{GET}"), &[400]),
        (format!("GET http://b/a HTTP/1.1\r\nhost: a\r\n\r\n{GET}"), &[200, 200]),
    ];
    let runtime = runtime();
    for (bytes, want) in rows {
        let said = check(&runtime, &[bytes.as_bytes()], 64 << 10);
        let statuses: Vec<u16> = said
            .match_indices("HTTP/1.1 ")
            .chain(said.match_indices("HTTP/1.0 "))
            // A body may repeat the first line of a request.
            .filter_map(|(at, _)| said[at + 9..].get(..3)?.parse().ok())
            .collect();
        assert_eq!(statuses, want, "{bytes:?}\n{said}");
        // However the bytes are cut.
        let each: Vec<&[u8]> = bytes.as_bytes().chunks(1).collect();
        check(&runtime, &each, 64);
        let halves = bytes.as_bytes().split_at(bytes.len() / 2);
        check(&runtime, &[halves.0, halves.1], 1 << 10);
    }
}

#[test]
fn many_requests_at_once_are_all_answered() {
    let long = "GET /long HTTP/1.1\r\nhost: a\r\n\r\n";
    for (bytes, count) in [(long.repeat(60), 60), (GET.repeat(900), 900), (POST.repeat(300), 300)] {
        for room in [64 << 10, 4_096] {
            let said = check(&runtime(), &[bytes.as_bytes()], room);
            assert_eq!(said.matches("HTTP/1.1 200 OK").count(), count);
        }
    }
}

/// A small generator of random numbers.
struct RandomNumbers(u64);

impl RandomNumbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    fn pick<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }
}

const LINES: [&str; 12] = [
    "GET /a HTTP/1.1\r\n",
    "GET /a?b=c HTTP/1.1\r\n",
    "GET /refused HTTP/1.1\r\n",
    "GET /empty HTTP/1.1\r\n",
    "GET /long HTTP/1.1\r\n",
    "GET /bug HTTP/1.1\r\n",
    "GET /rare HTTP/1.1\r\n",
    "HEAD /a HTTP/1.1\r\n",
    "GET /a HTTP/1.0\r\n",
    "OPTIONS * HTTP/1.1\r\n",
    "DELETE /a HTTP/1.1\r\n",
    "GET /\u{e9} HTTP/1.1\r\n",
];

const FIELDS: [&str; 14] = [
    "x-a: 1\r\n",
    "X-A: 2\r\n",
    "x-forwarded-for: 192.0.2.1, 192.0.2.2\r\n",
    "X-Forwarded-For:\t192.0.2.3 \r\n",
    "connection: keep-alive\r\n",
    "connection: close\r\n",
    "Connection: Keep-Alive, x\r\n",
    "content-length: 0\r\n",
    "content-length: 3\r\n",
    "transfer-encoding: chunked\r\n",
    "upgrade: h2c\r\n",
    "host: b\r\n",
    "x-\u{e9}: 1\r\n",
    "accept: \u{e9}\r\n",
];

/// A few requests, mostly plain.
fn random_requests(random: &mut RandomNumbers) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..=random.below(4) {
        match random.below(4) {
            0 => bytes.extend_from_slice(GET.as_bytes()),
            1 => bytes.extend_from_slice(POST.as_bytes()),
            _ => {
                bytes.extend_from_slice(random.pick(&LINES).as_bytes());
                bytes.extend_from_slice(b"Host: a\r\n");
                for _ in 0..random.below(3) {
                    bytes.extend_from_slice(random.pick(&FIELDS).as_bytes());
                }
                bytes.extend_from_slice(b"\r\n");
            }
        }
    }
    // Now and then a byte is lost, changed or doubled.
    if random.below(3) == 0 {
        let at = random.below(bytes.len());
        match random.below(3) {
            0 => drop(bytes.remove(at)),
            1 => bytes[at] = b"\r\n :;0\0zA\xff"[random.below(10)],
            _ => bytes.insert(at, bytes[at]),
        }
    }
    bytes
}

#[test]
fn random_requests_are_answered_as_by_hyper() {
    let (runtime, mut random) = (runtime(), RandomNumbers(0x746f_6c6c_6761_7465));
    for _ in 0..1_500 {
        let bytes = random_requests(&mut random);
        let mut pieces = Vec::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(1 + random.below(rest.len()));
            pieces.push(piece);
            rest = behind;
        }
        // Little room makes partial writes.
        check(&runtime, &pieces, [64 << 10, 4_096, 100, 7][random.below(4)]);
    }
}

/// Reads until the text ends with this.
async fn read_until(client: &mut DuplexStream, end: &str) -> String {
    let (mut said, mut room) = (String::new(), [0; 4_096]);
    while !said.ends_with(end) {
        let bytes = client.read(&mut room).await.expect("a reply");
        assert!(bytes > 0, "closed after {said:?}");
        said += &String::from_utf8_lossy(&room[..bytes]);
    }
    said
}

#[test]
fn a_stopping_server_says_so_and_closes() {
    for has_lane in [true, false] {
        runtime().block_on(async {
            let protocol = protocol(has_lane);
            let (mut client, served) = connect(&protocol, 4_096);
            client.write_all(GET.as_bytes()).await.unwrap();
            let said = read_until(&mut client, "host: a\n").await;
            assert!(!said.contains("connection"), "{said}");
            protocol.stopping.store(true, Ordering::Relaxed);
            client.write_all(GET.as_bytes()).await.unwrap();
            let mut said = String::new();
            client.read_to_string(&mut said).await.unwrap();
            assert!(said.contains("connection: close\r\n"), "{said}");
            drop(client);
            served.task.await.unwrap();
        });
    }
}

#[test]
fn orders_end_connections_that_wait() {
    let one = "GET /long HTTP/1.1\r\nhost: a\r\n\r\n";
    // Bytes sent | what the connection waits for
    let rows: [(&str, &str); 3] =
        [("", "a request"), ("GET /a HTTP/1.1\r\nho", "the rest of a head"), (one, "a reader")];
    for (bytes, waits_for) in rows {
        for order in [ConnectionOrder::Finish, ConnectionOrder::Abort] {
            if order == ConnectionOrder::Finish && !bytes.is_empty() {
                // What has begun is not given up: a request is answered, and a reply sent.
                continue;
            }
            runtime().block_on(async {
                let (mut client, served) = connect(&protocol(true), 64);
                client.write_all(bytes.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
                let watchdog = Arc::new(ConnectionWatchdog::default());
                let _watched = watchdog.watch(served.activity.clone());
                match order {
                    ConnectionOrder::Abort => served.activity.evict(),
                    _ => watchdog.finish_all(),
                }
                let ended = tokio::time::timeout(Duration::from_secs(30), served.task).await;
                ended
                    .unwrap_or_else(|_| panic!("waits for {waits_for} in spite of {order:?}"))
                    .unwrap();
            });
        }
    }
}

fn has_waiting_reply(activity: &ConnectionActivity) -> bool {
    activity.eviction_rank().is_some_and(|(_, reply_waits, ..)| reply_waits)
}

#[test]
fn an_unread_reply_waits_and_a_read_one_does_not() {
    runtime().block_on(async {
        let (mut client, served) = connect(&protocol(true), 64);
        let request = "GET /long HTTP/1.1\r\nhost: a\r\n\r\n";
        client.write_all(request.as_bytes()).await.unwrap();
        while !has_waiting_reply(&served.activity) {
            tokio::task::yield_now().await;
        }
        client.write_all(&GET.as_bytes()[..10]).await.unwrap();
        let mut left = 200 * "/long\nhost: a\n".len();
        while left > 0 {
            let mut room = [0; 64];
            let bytes = client.read(&mut room).await.unwrap();
            let text = &room[..bytes];
            let head = text.windows(4).position(|window| window == b"\r\n\r\n");
            left = match (left, head) {
                (2_800, None) => left,
                (2_800, Some(at)) => left - (bytes - at - 4),
                _ => left - bytes,
            };
        }
        while has_waiting_reply(&served.activity) {
            tokio::task::yield_now().await;
        }
        client.write_all(&GET.as_bytes()[10..]).await.unwrap();
        read_until(&mut client, "host: a\n").await;
    });
}

/// More replies than the output holds: the rest of the requests must not wait for further bytes of a client that waits
/// for its replies.
#[test]
fn all_pipelined_requests_are_answered_while_the_client_waits() {
    const REQUESTS: usize = 190;
    let request = "GET /long HTTP/1.1\r\nhost: a\r\n\r\n";
    runtime().block_on(async {
        let protocol = protocol(true);
        let (mut client, served) = connect(&protocol, 1 << 20);
        client.write_all(request.repeat(REQUESTS).as_bytes()).await.expect("it fits");
        let mut received = String::new();
        let mut bytes = [0; 4 << 10];
        let all = async {
            while received.matches("HTTP/1.1 200").count() < REQUESTS {
                let count = client.read(&mut bytes).await.expect("the connection is open");
                assert_ne!(count, 0, "the connection stays open");
                received += std::str::from_utf8(&bytes[..count]).expect("plain text");
            }
        };
        tokio::time::timeout(TIMEOUTS.head, all).await.expect("every request gets its reply");
        assert_eq!(protocol.handler.plain_answers.load(Ordering::Relaxed), REQUESTS, "by the lane");
        drop(client);
        served.task.await.expect("it is served to its end");
    });
}
