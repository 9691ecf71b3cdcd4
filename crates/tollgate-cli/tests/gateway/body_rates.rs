//! `cost: bytes` with a queue: bodies pass at the rate of the rule in both directions, however fast the sender is, and
//! the gateway holds no copy of them.
//!
//! The bounds are one-sided: at no instant may more bytes have come out than the rate allows. A busy machine can only
//! be slower.

use std::io::{Read, Write};
use std::sync::mpsc;

use testkit::peers::RawUpstream;
use tollgate::{Clock, SystemClock};

use super::gateway_process::GatewayProcess;
use super::wire_client::WireClient;

const RULES: &str = "
rules:
  - name: shaped
    key: '{ip}'
    limits: [{ rate: 262144/second, burst: 65536, algorithm: leaky_bucket, queue: true }]
    cost: bytes
";

/// Bytes a second.
const RATE: u64 = 262_144;

/// The longest piece: what passes in a 20th of a second.
const PIECE_BYTES: u64 = RATE / 20;

/// Bytes that are watched.
const WATCHED_BYTES: u64 = 1 << 20;

/// Bytes that the sender offers at once.
const OFFERED_BYTES: u64 = 64 << 20;

/// Growth of the gateway's memory that an offered body may cause, in KiB.
const GROWTH_KIB_MAX: u64 = 8 << 10;

/// The bytes that have come out so far.
struct RateWatch {
    began_us: u64,
    bytes: u64,
}

impl RateWatch {
    fn begin() -> RateWatch {
        RateWatch { began_us: SystemClock.now().as_u64(), bytes: 0 }
    }

    /// Counts bytes, and fails if they came faster than the rate. The first piece passes at once. The clocks of two
    /// processes differ by less than 1 in 1,000.
    fn count(&mut self, bytes: usize) {
        let micros = SystemClock.now().as_u64() - self.began_us;
        self.bytes += bytes as u64;
        let most = PIECE_BYTES + RATE * micros * 1_001 / 1_000 / 1_000_000;
        assert!(self.bytes <= most, "{} bytes in {micros} us, at most {most}", self.bytes);
    }

    fn is_done(&self) -> bool {
        self.bytes >= WATCHED_BYTES
    }

    fn print(&self, direction: &str) {
        let micros = SystemClock.now().as_u64() - self.began_us;
        eprintln!("{} bytes {direction} in {} ms", self.bytes, micros / 1_000);
    }
}

#[test]
fn a_response_comes_down_at_its_rate() {
    let upstream = RawUpstream::start(|conversation| {
        conversation.read_head()?;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {OFFERED_BYTES}\r\n\r\n");
        conversation.write(head.as_bytes())?;
        for _ in 0..OFFERED_BYTES >> 16 {
            conversation.write(&[7; 1 << 16])?;
        }
        Ok(())
    });
    let gateway = GatewayProcess::start(upstream.address(), RULES);
    let before = gateway.memory_peak_kib();
    let mut watch = RateWatch::begin();
    let mut client = WireClient::connect(gateway.address());
    client.send(b"GET /down HTTP/1.1\r\nhost: app\r\n\r\n");
    assert_eq!(client.read_head().expect("a head").status, 200);
    let mut piece = vec![0; 1 << 16];
    while !watch.is_done() {
        let read = client.stream.read(&mut piece).expect("bytes");
        assert!(read > 0, "the gateway has closed");
        watch.count(read);
    }
    watch.print("down");
    let growth = gateway.memory_peak_kib() - before;
    assert!(growth <= GROWTH_KIB_MAX, "memory grew by {growth} KiB");
}

#[test]
fn a_request_goes_up_at_its_rate() {
    let (report, reported) = mpsc::channel();
    let upstream = RawUpstream::start(move |conversation| {
        conversation.read_head()?;
        loop {
            let bytes = conversation.read_bytes(1)?;
            if report.send(bytes.len()).is_err() {
                return Ok(());
            }
        }
    });
    let gateway = GatewayProcess::start(upstream.address(), RULES);
    let before = gateway.memory_peak_kib();
    let mut watch = RateWatch::begin();
    let mut client = WireClient::connect(gateway.address());
    let head = format!("POST /up HTTP/1.1\r\nhost: app\r\ncontent-length: {OFFERED_BYTES}\r\n\r\n");
    client.send(head.as_bytes());
    let mut sender = client.stream.try_clone().expect("a second handle");
    let sending = std::thread::spawn(move || {
        let offered = (0..OFFERED_BYTES >> 16).try_for_each(|_| sender.write_all(&[7; 1 << 16]));
        offered.expect_err("the gateway does not take all of it");
    });
    while !watch.is_done() {
        watch.count(reported.recv().expect("the upstream reads"));
    }
    watch.print("up");
    let growth = gateway.memory_peak_kib() - before;
    assert!(growth <= GROWTH_KIB_MAX, "memory grew by {growth} KiB");
    drop((gateway, reported));
    sending.join().expect("it ended with the gateway");
}

/// One byte a second, which is far longer than the timeouts of these tests.
const SLOW_RULES: &str = "
rules:
  - name: shaped
    key: '{ip}'
    limits: [{ rate: 1/second, burst: 5, algorithm: leaky_bucket, queue: true }]
    cost: bytes
";

#[test]
fn a_response_that_a_rule_holds_back_is_not_idle() {
    let upstream = RawUpstream::start(|conversation| {
        conversation.read_head()?;
        conversation.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc")
    });
    let rules = format!(
        "{SLOW_RULES}upstreams: {{ app: {{ addresses: 'http://{}', idle_timeout: 100ms }} }}\n",
        upstream.address()
    );
    let gateway = GatewayProcess::start_routed(&rules, &["--workers", "1"]);
    assert_eq!(gateway.get("/").text(), "abc");
}

#[test]
fn a_client_whose_bytes_a_rule_holds_back_is_not_slow() {
    let (report, reported) = mpsc::channel();
    let upstream = RawUpstream::start(move |conversation| {
        conversation.read_head()?;
        let mut received = 0;
        while received < 3 {
            received += conversation.read_bytes(1)?.len();
            let _ = report.send(received);
        }
        conversation.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    });
    // A byte waits for three seconds, longer than the client may take.
    let rules = SLOW_RULES.replace("1/second", "20/minute");
    let flags = ["--workers", "1", "--body-timeout", "2s"];
    let gateway = GatewayProcess::start_with(upstream.address(), &rules, &flags);
    let mut client = WireClient::connect(gateway.address());
    client.send(b"POST /up HTTP/1.1\r\nhost: app\r\ncontent-length: 3\r\n\r\na");
    for (received, next) in [(1, b"b"), (2, b"c")] {
        assert_eq!(reported.recv(), Ok(received));
        client.send(next);
    }
    assert_eq!(client.read_reply("POST").expect("an answer").status, 204);
}
