//! Limits with `queue: true` at the gateway: even output end to end, and clients that leave while they wait.
//!
//! An upstream cannot receive a request before it departs, so lower bounds on arrivals are exact however busy the
//! machine is. Waits are read from the gateway's own figures, which use its own clock.

use std::io;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use testkit::peers::RawUpstream;
use testkit::wait::{now, pause, until_true};

use super::gateway_process::GatewayProcess;
use super::wire_client::WireClient;
use crate::server::exposition::ParsedExposition;

/// The figures of the first rule's waits.
pub(crate) fn waits(gateway: &GatewayProcess) -> serde_json::Value {
    let rules = gateway.server.admin_get("/api/rules", &[]).json();
    rules["rules"][0]["waits"].clone()
}

pub(crate) fn waiting(gateway: &GatewayProcess) -> u64 {
    waits(gateway)["waiting"].as_u64().expect("a number")
}

/// The targets of requests and the instants at which they arrived.
pub(crate) type Arrivals = Arc<Mutex<Vec<(String, Instant)>>>;

/// An upstream that records when each request arrives.
pub(crate) fn recorder() -> (RawUpstream, Arrivals) {
    let arrivals = Arrivals::default();
    let seen = arrivals.clone();
    let upstream = RawUpstream::start(move |conversation| -> io::Result<()> {
        loop {
            let head = conversation.read_head()?;
            let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
            seen.lock().expect("no panic").push((target, now()));
            conversation.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
        }
    });
    (upstream, arrivals)
}

/// 50 a second.
const RULES: &str = "
rules: [{ name: even, key: global, limits: [{ rate: 50/second, burst: 20, algorithm: leaky_bucket, queue: true }] }]
";

#[test]
fn output_is_evenly_spaced_first_come_first_served_and_nobody_waits_too_long() {
    // A machine that stands still for a moment delays everybody in line, so the bound below has room for seconds of it.
    const INTERVAL: Duration = Duration::from_millis(125);
    let (upstream, arrivals) = recorder();
    let rules = RULES.replace("50/second", "8/second");
    let gateway = GatewayProcess::start_with(upstream.address(), &rules, &["--workers", "2"]);
    let begun = now();
    let clients: Vec<WireClient> = (0..30)
        .map(|number| {
            let mut client = WireClient::connect(gateway.address());
            client.send(format!("GET /{number} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes());
            client
        })
        .collect();
    let statuses: Vec<u16> = clients
        .into_iter()
        .map(|mut client| client.read_reply("GET").expect("an answer").status)
        .collect();
    let arrivals = arrivals.lock().expect("no panic").clone();
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(served, arrivals.len());
    assert!(served >= 20, "the capacity: {statuses:?}");
    for (number, (target, at)) in arrivals.iter().enumerate() {
        let earliest = begun + INTERVAL * number as u32;
        assert!(*at >= earliest, "{target} is {:?} early", earliest.duration_since(*at));
    }
    let mut gaps: Vec<Duration> =
        arrivals.windows(2).map(|pair| pair[1].1.duration_since(pair[0].1)).collect();
    gaps.sort_unstable();
    eprintln!("gaps at the upstream: shortest {:?}, of {INTERVAL:?}", gaps[0]);
    // A request that is late on its way shortens one gap; requests that depart together shorten all.
    assert!(gaps[gaps.len() / 2] >= INTERVAL * 9 / 10, "{gaps:?}");
    let page = ParsedExposition::of_text(&gateway.server.admin_get("/metrics", &[]).body);
    let bucket = |bound: &str| {
        let is_bucket = |name: &str| name == "tollgate_wait_seconds_bucket";
        let found = page.samples().find(|one| is_bucket(&one.name) && one.labels["le"] == *bound);
        found.map(|one| one.value)
    };
    assert_eq!(
        bucket("5.0"),
        bucket("+Inf"),
        "nobody waits longer than 20 intervals, 2.5 s, by the next bound of the histogram"
    );
    assert!(bucket("+Inf") >= Some(15.0), "most of them waited");
}

#[test]
fn requests_depart_in_the_order_of_their_arrival() {
    let (upstream, arrivals) = recorder();
    let rules = RULES.replace("50/second", "5/second");
    let gateway = GatewayProcess::start_with(upstream.address(), &rules, &["--workers", "2"]);
    let _clients: Vec<WireClient> = (0..8)
        .map(|number| {
            let mut client = WireClient::connect(gateway.address());
            client.send(format!("GET /{number} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes());
            // The next one is sent when this one stands in line, or has departed if the machine is slow.
            let joined = || {
                let waiting = waits(&gateway)["waiting"].as_u64().expect("a number");
                waiting + arrivals.lock().expect("no panic").len() as u64 > number
            };
            until_true("the request to stand in line", joined);
            client
        })
        .collect();
    until_true("all to depart", || arrivals.lock().expect("no panic").len() == 8);
    let order: Vec<String> =
        arrivals.lock().expect("no panic").iter().map(|(target, _)| target.clone()).collect();
    assert_eq!(order, (0..8).map(|number| format!("/{number}")).collect::<Vec<_>>());
}

#[test]
fn a_delay_beyond_the_clients_patience_is_refused_at_once() {
    let (upstream, arrivals) = recorder();
    let rules = RULES.replace("50/second", "1/minute");
    let gateway = GatewayProcess::start(upstream.address(), &rules);
    assert_eq!(gateway.get("/").status, 200);
    for field in ["prefer: wait=5", "grpc-timeout: 5S", "x-envoy-expected-rq-timeout-ms: 5000"] {
        let mut client = WireClient::connect(gateway.address());
        client.send(format!("GET / HTTP/1.1\r\nhost: a\r\n{field}\r\n\r\n").as_bytes());
        let reply = client.read_reply("GET").expect("an answer");
        assert_eq!(reply.status, 429, "{field}");
        assert!(reply.field("retry-after").is_some(), "{reply:?}");
    }
    let left = gateway.server.check(r#"{"ip":"127.0.0.1","cost":0}"#)["remaining"].as_u64();
    assert_eq!((left, waiting(&gateway)), (Some(19), 0), "nothing was charged");
    assert_eq!(arrivals.lock().expect("no panic").len(), 1);
}

/// One request at a time. Another one waits for it.
const ONE_PLACE: [&str; 8] = [
    "--workers",
    "1",
    "--gateway-max-requests",
    "1",
    "--gateway-max-waiting",
    "1",
    "--gateway-max-wait",
    "1h",
];

/// Requests that found no room at the gateway at once, and waited for it.
pub(crate) fn found_no_room(gateway: &GatewayProcess) -> u64 {
    let page = ParsedExposition::of_text(&gateway.server.admin_get("/metrics", &[]).body);
    let mut queued = page.samples().filter(|one| one.name == "tollgate_gateway_queue_total");
    queued.find(|one| one.labels["outcome"] == *"waited").expect("a counter").value as u64
}

#[test]
fn those_who_wait_for_their_turn_keep_nobody_out() {
    let (upstream, _) = recorder();
    let rules = RULES.replace("key: global", "match: { path: /even }, key: global");
    let rules = rules.replace("50/second", "1/hour");
    let flags = [&ONE_PLACE[..], &["--gateway-max-delay", "3000h"]].concat();
    let gateway = GatewayProcess::start_with(upstream.address(), &rules, &flags);
    assert_eq!(gateway.get("/even").status, 200);
    let _waiting: Vec<WireClient> = (0..10)
        .map(|_| {
            let mut client = WireClient::connect(gateway.address());
            client.send(b"GET /even HTTP/1.1\r\nhost: a\r\n\r\n");
            client
        })
        .collect();
    until_true("all of them to wait", || waiting(&gateway) == 10);
    assert_eq!(gateway.get("/other").status, 200);
    assert_eq!(found_no_room(&gateway), 0);
}

#[test]
fn a_request_takes_a_place_again_when_its_turn_has_come() {
    let (report, reported) = mpsc::channel();
    let go_on = Arc::new(Barrier::new(2));
    let held = go_on.clone();
    let upstream = RawUpstream::start(move |conversation| -> io::Result<()> {
        loop {
            if conversation.read_head()?.starts_with("GET /held") {
                let _ = report.send(());
                held.wait();
            }
            conversation.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
        }
    });
    let rules = RULES.replace("key: global", "match: { path: /even }, key: global");
    let rules = rules.replace("50/second", "20/minute");
    let gateway = GatewayProcess::start_with(upstream.address(), &rules, &ONE_PLACE);
    assert_eq!(gateway.get("/even").status, 200);
    let mut delayed = WireClient::connect(gateway.address());
    delayed.send(b"GET /even HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut holder = WireClient::connect(gateway.address());
    holder.send(b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n");
    reported.recv().expect("the upstream has it");
    // Whichever came first, one of the two has to wait until the other has left its place.
    until_true("the turn to come", || found_no_room(&gateway) == 1);
    go_on.wait();
    for client in [&mut delayed, &mut holder] {
        assert_eq!(client.read_reply("GET").expect("an answer").status, 200);
    }
}

/// Clients that leave while they wait.
const DISCONNECTS: usize = 20_000;

/// Clients of one thread that wait at a time.
const WAVE: usize = 50;

#[test]
fn twenty_thousand_clients_that_leave_one_worker_free_their_places_and_units_at_once() {
    check_leavers("1");
}

#[test]
fn twenty_thousand_clients_that_leave_four_workers_free_their_places_and_units_at_once() {
    check_leavers("4");
}

#[test]
fn twenty_thousand_clients_that_leave_eight_workers_free_their_places_and_units_at_once() {
    check_leavers("8");
}

fn check_leavers(workers: &str) {
    let (upstream, arrivals) = recorder();
    // Units come back only from those who leave.
    let rules = RULES.replace("50/second, burst: 20", "1/hour, burst: 200");
    let flags = ["--workers", workers, "--max-connections-per-ip", "10000"];
    let flags = [&flags[..], &["--gateway-max-delay", "3000h"]].concat();
    let gateway = GatewayProcess::start_with(upstream.address(), &rules, &flags);
    assert_eq!(gateway.get("/first").status, 200);
    let (address, shared) = (gateway.address(), Mutex::new(gateway));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for number in 0..DISCONNECTS / WAVE / 2 {
                    let wave: Vec<WireClient> = (0..WAVE)
                        .map(|_| {
                            let mut client = WireClient::connect(address);
                            client.send(b"GET /left HTTP/1.1\r\nhost: a\r\n\r\n");
                            client
                        })
                        .collect();
                    // The others leave at any time, perhaps before they are read.
                    if number % 2 == 0 {
                        let waiting = || waiting(&shared.lock().expect("no panic"));
                        until_true("a wave to wait", || waiting() >= WAVE as u64);
                    }
                    drop(wave);
                }
            });
        }
    });
    let gateway = shared.into_inner().expect("no panic");
    // Some have not been accepted yet.
    let remaining = || gateway.server.check(r#"{"ip":"127.0.0.1","cost":0}"#)["remaining"].as_u64();
    until_true("all units to be back", || waiting(&gateway) == 0 && remaining() == Some(199));
    let figures = waits(&gateway);
    eprintln!("{DISCONNECTS} disconnects: {figures}");
    // A wave of each thread may have waited at the same time.
    assert!(figures["left"].as_u64() >= Some(DISCONNECTS as u64 / 4), "{figures}");
    let open = || gateway.server.admin_get("/api/status", &[]).json()["reservations"].as_u64();
    until_true("no reservation to be open", || open() == Some(0));
    assert_eq!(arrivals.lock().expect("no panic").len(), 1, "nobody else reached the upstream");
}

/// Seconds of overload in the measurement.
const MEASURED_S: u64 = 10;

#[test]
#[ignore = "a measurement: run it alone"]
fn throughput_and_spacing_under_constant_overload() {
    for rate in [10_u64, 100, 1_000] {
        let (upstream, arrivals) = recorder();
        let rules =
            RULES.replace("50/second, burst: 20", &format!("{rate}/second, burst: {}", rate / 5));
        let gateway = GatewayProcess::start_with(upstream.address(), &rules, &["--workers", "2"]);
        let end = now() + Duration::from_secs(MEASURED_S);
        let connections = (rate / 5 + 10).min(120);
        let address = gateway.address();
        thread::scope(|scope| {
            for _ in 0..connections {
                scope.spawn(move || {
                    let mut client = WireClient::connect(address);
                    while now() < end {
                        if client.get("/").is_ok_and(|reply| reply.status == 429) {
                            pause(Duration::from_millis(5));
                        }
                    }
                });
            }
        });
        let arrivals = arrivals.lock().expect("no panic");
        let mut gaps: Vec<Duration> =
            arrivals.windows(2).map(|pair| pair[1].1.duration_since(pair[0].1)).collect();
        gaps.sort_unstable();
        let took = arrivals.last().unwrap().1.duration_since(arrivals[0].1);
        let per_second = (arrivals.len() - 1) as f64 / took.as_secs_f64();
        eprintln!(
            "{rate}/s: {per_second:.1}/s ({:.1} %), gaps min {:?}, 1 % {:?}, median {:?}, 99 % {:?}; {}",
            100.0 * per_second / rate as f64,
            gaps[0],
            gaps[gaps.len() / 100],
            gaps[gaps.len() / 2],
            gaps[gaps.len() * 99 / 100],
            waits(&gateway)
        );
    }
}
