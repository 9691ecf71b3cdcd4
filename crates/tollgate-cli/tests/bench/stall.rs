//! A server that stalls: `bench` reports the stall in full, and what other ways of measuring make of it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use testkit::wait::{now, pause};

use super::load;

/// Time between the first request and the stall.
const BEFORE: Duration = Duration::from_secs(1);
/// Length of the stall: 30 % of a run.
const STALL: Duration = Duration::from_millis(900);
/// Length of a run, as `bench` and wrk read it.
const RUN: &str = "3s";

/// An HTTP server that answers at once, but for a stall after its first request.
struct StallingServer {
    address: SocketAddr,
}

impl StallingServer {
    /// Starts it. Its threads end with the test program; there are as many as connections.
    fn start() -> StallingServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let first = Arc::new(OnceLock::new());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let first = first.clone();
                thread::spawn(move || serve(stream, &first));
            }
        });
        StallingServer { address }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

fn serve(mut stream: TcpStream, first: &OnceLock<Instant>) {
    let (mut received, mut buffer) = (Vec::new(), [0; 4_096]);
    while let Ok(1..) = stream.read(&mut buffer).inspect(|&bytes| received.extend(&buffer[..bytes]))
    {
        if !received.ends_with(b"\r\n\r\n") {
            continue;
        }
        received.clear();
        let stall = *first.get_or_init(now) + BEFORE;
        if (stall..stall + STALL).contains(&now()) {
            pause((stall + STALL).saturating_duration_since(now()));
        }
        if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").is_err() {
            return;
        }
    }
}

/// The latencies that wrk prints for 50, 75, 90 and 99 %.
fn wrk_latencies(url: &str) -> [Duration; 4] {
    let run = Command::new("wrk").args(["-t1", "-c4", "-d", RUN, "--latency", url]).output();
    let run = run.expect("wrk is installed: `cargo xtask test --only packages` does it");
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    [" 50%", " 75%", " 90%", " 99%"].map(|name| {
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name.trim()));
        let value = line.unwrap_or_else(|| panic!("no {name} in {text}")).trim();
        let digits = value.find(|c: char| c.is_ascii_alphabetic()).expect("a unit");
        let (number, unit) = value.split_at(digits);
        let unit_s = match unit {
            "us" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            _ => panic!("an unknown unit in {text}"),
        };
        Duration::from_secs_f64(number.parse::<f64>().expect("a number") * unit_s)
    })
}

#[test]
fn a_stall_shows_in_full_and_in_part_beside_it() {
    let server = StallingServer::start();
    let url = format!("{}x", server.url());
    let options = ["--rate", "500/s", "--duration", RUN, "--connections", "4"];
    let json = load(&[&["--target", &url], &options[..]].concat());
    let us = |kind: &str, name: &str| {
        Duration::from_micros(json[kind][name].as_u64().expect("a latency"))
    };
    let corrected = |name| us("corrected_us", name);
    let service = |name| us("service_us", name);
    let [wrk_50, wrk_75, wrk_90, wrk_99] = wrk_latencies(&StallingServer::start().url());
    println!("a stall of {STALL:?} in a run of {RUN}:");
    for (name, kind) in [("schedule", "corrected_us"), ("sending", "service_us")] {
        let [p50, p75, p90, p99] = ["p50", "p75", "p90", "p99"].map(|name| us(kind, name));
        println!("  bench, {name}: 50 % {p50:?}, 75 % {p75:?}, 90 % {p90:?}, 99 % {p99:?}");
    }
    println!("  wrk: 50 % {wrk_50:?}, 75 % {wrk_75:?}, 90 % {wrk_90:?}, 99 % {wrk_99:?}");

    assert_eq!((&json["answered"], &json["not_sent"]), (&1_500.into(), &0.into()), "{json}");
    // Three of ten requests come during the stall and wait for its end: half a second and more for every tenth.
    assert!(corrected("p90") >= Duration::from_millis(500), "{json}");
    assert!(corrected("p99") >= Duration::from_millis(800), "{json}");
    // Only the four in flight when it begins are sent before it, so the other figure has them alone.
    assert!(service("p99") * 4 < corrected("p99"), "{json}");
    assert!(service("max") >= Duration::from_millis(800), "{json}");
    // wrk guesses requests that it did not send from its mean rate, which the stall has lowered: too few.
    assert!(wrk_75 * 2 < corrected("p75"), "{wrk_75:?}, {json}");
}
