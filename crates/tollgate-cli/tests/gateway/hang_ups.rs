//! Clients that leave at every stage of a request: afterwards no permit, connection, descriptor or memory is left.

use std::io;
use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use testkit::http2::{self, frame_kind};
use testkit::peers::{RawConversation, RawUpstream};
use testkit::wait::until_true;

use super::gateway_process::GatewayProcess;
use super::http2_wire::Http2Wire;
use super::wire_client::WireClient;

/// At most twenty requests at once, and many in a day.
const RULES: &str = "rules: [{ name: few, key: '{ip}', limits: [{ rate: 1000000/day, algorithm: fixed_window }], concurrency: 20 }]";

/// Permits of the rule.
const PERMITS: usize = 20;

/// Hang-ups of HTTP/1.1 clients, over all stages, on a connection each.
const HANG_UPS: usize = 18_000;

/// Connections of HTTP/2 clients, and hang-ups on each.
const HTTP2_HANG_UPS: (usize, u32) = (40, 50);

/// Growth of the gateway's memory that all of them may leave, in KiB.
const GROWTH_KIB_MAX: u64 = 8 << 10;

/// The stage at which a client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HangUpStage {
    Connected,
    InHead,
    AfterHead,
    InBody,
    InChunk,
    Waiting,
    InResponse,
}

const STAGES: [HangUpStage; 7] = [
    HangUpStage::Connected,
    HangUpStage::InHead,
    HangUpStage::AfterHead,
    HangUpStage::InBody,
    HangUpStage::InChunk,
    HangUpStage::Waiting,
    HangUpStage::InResponse,
];

impl HangUpStage {
    /// Plays a client up to this stage; dropping the connection is the hang-up.
    fn play(self, client: &mut WireClient) {
        client.send(match self {
            HangUpStage::Connected => b"",
            HangUpStage::InHead => b"GET /in-head HTTP/1.1\r\nho",
            HangUpStage::AfterHead => b"GET /answered HTTP/1.1\r\nhost: a\r\n\r\n",
            HangUpStage::InBody => {
                b"POST /body HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nhello"
            }
            HangUpStage::InChunk => {
                b"POST /body HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n64\r\nhello"
            }
            HangUpStage::Waiting => b"GET /silent HTTP/1.1\r\nhost: a\r\n\r\n",
            HangUpStage::InResponse => b"GET /half HTTP/1.1\r\nhost: a\r\n\r\n",
        });
        if self == HangUpStage::InResponse {
            // Refused if other clients have not been noticed to be gone.
            let _ = client.read_head();
        }
    }
}

/// Answers by the target: not at all, half, or all.
fn answer(conversation: &mut RawConversation) -> io::Result<()> {
    loop {
        let head = conversation.read_head()?;
        match head.split(' ').nth(1) {
            Some("/silent" | "/body") => return conversation.wait_for_close(),
            Some("/half") => {
                conversation.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello")?;
                return conversation.wait_for_close();
            }
            _ => conversation.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?,
        }
    }
}

/// Begins requests on one HTTP/2 connection and resets each: at once, in its body, while it waits, or in its response.
fn hang_up_by_resets(gateway: &GatewayProcess) {
    let mut wire = Http2Wire::connect_from(Ipv4Addr::LOCALHOST, gateway.address());
    for number in 0..HTTP2_HANG_UPS.1 {
        let stream = 2 * number + 1;
        let path = ["/silent", "/half", "/body", "/answered"][number as usize % 4];
        let method = if path == "/body" { "POST" } else { "GET" };
        let fields =
            [(":method", method), (":scheme", "http"), (":authority", "app"), (":path", path)];
        // The gateway may end a connection with so many resets.
        let sent = match path {
            "/body" => {
                let block = http2::header_block(&fields);
                wire.send_frame(frame_kind::HEADERS, http2::END_HEADERS, stream, &block)
                    .and_then(|()| wire.send_frame(frame_kind::DATA, 0, stream, b"hello"))
            }
            _ => wire.send_request(stream, &fields, b""),
        };
        let reset = wire.send_frame(frame_kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        if sent.and(reset).is_err() {
            return;
        }
    }
}

/// Holds all permits at once with requests that wait, and returns the status of one more.
fn status_beyond_permits(gateway: &GatewayProcess, upstream: &RawUpstream) -> u16 {
    let before = upstream.connected();
    let waiting: Vec<WireClient> = (0..PERMITS)
        .map(|_| {
            let mut client = WireClient::connect(gateway.address());
            client.send(b"GET /half HTTP/1.1\r\nhost: a\r\n\r\n");
            let head = client.read_head().expect("an answer");
            assert_eq!(head.status, 200, "a permit is missing: {head:?}");
            client
        })
        .collect();
    let status = gateway.get("/beyond").status;
    drop(waiting);
    until_true("the requests to end", || upstream.connected() <= before);
    status
}

#[test]
fn clients_that_leave_leave_nothing_behind() {
    let upstream = RawUpstream::start(answer);
    let flags = ["--workers", "2", "--max-connections-per-ip", "10000"];
    let gateway = GatewayProcess::start_with(upstream.address(), RULES, &flags);
    let files = gateway.open_files();
    assert_eq!(status_beyond_permits(&gateway, &upstream), 429, "the rule holds");
    let memory = gateway.memory_kib();
    // Idle connections to the upstream stay in the pool.
    let all_are_gone = || gateway.open_files() <= files + upstream.connected();
    thread::scope(|scope| {
        for thread in 0..2 {
            let gateway = gateway.address();
            scope.spawn(move || {
                for number in 0..HANG_UPS / 2 {
                    let mut client = WireClient::connect(gateway);
                    STAGES[number % STAGES.len()].play(&mut client);
                    // Every other one is a reset.
                    if (number / STAGES.len() + thread).is_multiple_of(2) {
                        set_socket_linger(&client.stream, Some(Duration::ZERO)).expect("a socket");
                    }
                }
            });
        }
    });
    for _ in 0..HTTP2_HANG_UPS.0 {
        hang_up_by_resets(&gateway);
    }
    until_true("the connections to be gone", all_are_gone);
    // A probe waits for its own permit, so it also sees those that return late.
    until_true("the permits to be back", || gateway.get("/answered").status == 200);
    assert_eq!(status_beyond_permits(&gateway, &upstream), 429, "no permit too many");
    until_true("the descriptors to be back", all_are_gone);
    assert!(upstream.connected() <= PERMITS, "{} idle connections", upstream.connected());
    let growth = gateway.memory_kib().saturating_sub(memory);
    let all = HANG_UPS + HTTP2_HANG_UPS.0 * HTTP2_HANG_UPS.1 as usize;
    eprintln!("{all} hang-ups: memory grew by {growth} KiB");
    assert!(growth <= GROWTH_KIB_MAX, "memory grew by {growth} KiB");
}
