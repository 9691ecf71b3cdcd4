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
