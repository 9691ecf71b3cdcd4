//! Adaptive concurrency in front of a real upstream. How well the bound follows the capacity is tested on a virtual clock,
//! with a model of the upstream.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use testkit::peers::RawUpstream;
use testkit::wait::{now, within};

use super::gateway_process::GatewayProcess;
use super::wire_client::WireClient;

/// Time that the upstream takes for a request, and that a client waits after a refusal.
const SERVICE_TIME: Duration = Duration::from_millis(20);

/// Clients, each with one request at a time.
const CLIENTS: usize = 48;

/// Servers of the upstream in each phase.
const CAPACITIES: [usize; 3] = [16, 8, 16];

/// The servers of an upstream, each with one request at a time; more requests wait for one of them.
#[derive(Default)]
struct ServerPool {
    servers: AtomicUsize,
    running: Mutex<usize>,
    ended: Condvar,
}

impl ServerPool {
    /// Waits for a server, and for the time of the service.
    fn serve(&self, pause: impl FnOnce()) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        while *running >= self.servers.load(Ordering::Relaxed) {
            running = self.ended.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
        *running += 1;
        drop(running);
        pause();
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.ended.notify_one();
    }
}

/// An upstream with a queue without end in front of its servers.
fn queueing_upstream(pool: Arc<ServerPool>) -> RawUpstream {
    RawUpstream::start(move |conversation| {
        while let Some(_request) = conversation.read_request()? {
            pool.serve(|| conversation.pause(SERVICE_TIME));
            conversation.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        }
        Ok(())
    })
}

/// The measurements of a number of answered requests.
#[derive(Debug)]
struct LoadResult {
    goodput: f64,
    p99: Duration,
    /// Median of the bound, read once for every [`ANSWERS_PER_READING`] answers.
    limit: u64,
}

/// Answers between two readings of the bound.
const ANSWERS_PER_READING: usize = 50;

/// The bound before anything is measured.
const FIRST_BOUND: u64 = 20;

/// The most readings until the bound moves. A round of measurements takes at most 200 answers.
const READINGS_MAX: usize = 40;

/// A gateway under load from all clients, until it is dropped.
struct LoadedGateway {
    gateway: GatewayProcess,
    pool: Arc<ServerPool>,
    _upstream: RawUpstream,
    answers: Arc<Mutex<Vec<Duration>>>,
    stopped: Arc<AtomicBool>,
    clients: Vec<thread::JoinHandle<()>>,
}

impl LoadedGateway {
    fn start(concurrency: &str) -> LoadedGateway {
        let pool = Arc::<ServerPool>::default();
        pool.servers.store(CAPACITIES[0], Ordering::Relaxed);
        let upstream = queueing_upstream(pool.clone());
        let rules = format!("rules: [{{ name: app, key: global, concurrency: {concurrency} }}]");
        let gateway = GatewayProcess::start(upstream.address(), &rules);
        let (answers, stopped) = (Arc::default(), Arc::<AtomicBool>::default());
        let client = |_| {
            let (answers, stopped) = (Arc::clone(&answers), stopped.clone());
            let address = gateway.address();
            thread::spawn(move || send_until(&stopped, address, &answers))
        };
        let clients = (0..CLIENTS).map(client).collect();
        LoadedGateway { gateway, pool, _upstream: upstream, answers, stopped, clients }
    }

    fn set_servers(&self, servers: usize) {
        self.pool.servers.store(servers, Ordering::Relaxed);
        self.pool.ended.notify_all();
    }

    /// Skips answers while the gateway settles, then measures as many.
    fn measure(&self, servers: usize, answers: usize) -> LoadResult {
        self.set_servers(servers);
        self.take_answers(answers, || ());
        let (mut limits, start) = (Vec::new(), now());
        let mut latencies = self.take_answers(answers, || limits.push(self.limit()));
        let seconds = now().duration_since(start).as_secs_f64();
        latencies.sort_unstable();
        limits.sort_unstable();
        LoadResult {
            goodput: latencies.len() as f64 / seconds,
            p99: latencies[latencies.len() * 99 / 100],
            limit: limits[limits.len() / 2],
        }
    }

    fn take_answers(&self, count: usize, mut each: impl FnMut()) -> Vec<Duration> {
        let mut all = Vec::new();
        self.answers.lock().unwrap().clear();
        while all.len() < count {
            let some = within(Duration::from_secs(20), || {
                let mut answers = self.answers.lock().unwrap();
                (answers.len() >= ANSWERS_PER_READING).then(|| std::mem::take(&mut *answers))
            });
            all.extend(some.expect("the upstream answers"));
            each();
        }
        all
    }

    /// The bound now; 0 for a fixed one.
    fn limit(&self) -> u64 {
        let status = self.gateway.server.admin_get("/api/status", &[]).json();
        status["adaptive_concurrency"][0]["limit"].as_u64().unwrap_or(0)
    }
}

impl Drop for LoadedGateway {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            let _ = client.join();
        }
    }
}

/// Sends one request after the other, and records the times of those that are answered by the upstream.
fn send_until(stopped: &AtomicBool, address: SocketAddr, answers: &Mutex<Vec<Duration>>) {
    let mut client = WireClient::connect(address);
    while !stopped.load(Ordering::Relaxed) {
        let start = now();
        let reply = client.get("/work").expect("an answer");
        match reply.status {
            200 => answers.lock().unwrap().push(now().duration_since(start)),
            429 => drop(within(SERVICE_TIME, || None::<()>)),
            _ => panic!("{reply:?}"),
        }
    }
}

#[test]
fn the_bound_moves_within_its_range_and_is_shown() {
    let loaded = LoadedGateway::start("{ adaptive: { min: 2, max: 30 } }");
    // With so few servers the clients are sure to reach the first bound.
    loaded.set_servers(3);
    let mut limits = Vec::new();
    while limits.iter().all(|limit| *limit == FIRST_BOUND) && limits.len() < READINGS_MAX {
        loaded.take_answers(ANSWERS_PER_READING, || limits.push(loaded.limit()));
    }
    assert!(limits.iter().any(|limit| *limit != FIRST_BOUND), "{limits:?}");
    assert!(limits.iter().all(|limit| (2..=30).contains(limit)), "{limits:?}");
    let metrics = loaded.gateway.server.admin_get("/metrics", &[]).body;
    for name in ["limit", "in_flight", "latency_seconds", "base_latency_seconds"] {
        let line = format!("tollgate_concurrency_{name}{{rule=\"app\"}} ");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}

/// The figures of the guide: the adaptive bound beside fixed ones.
#[test]
#[ignore = "a measurement of about two minutes; run it alone"]
fn measurement_beside_fixed_bounds() {
    let bounds = ["adaptive", "8", "10", "12", "16", "20", "24", "32", "48"];
    for bound in bounds {
        let loaded = LoadedGateway::start(bound);
        let limits = [1, 2, 3].map(|phase| {
            let servers = CAPACITIES[phase - 1];
            let LoadResult { goodput, p99, limit } = loaded.measure(servers, 3_000);
            eprintln!(
                "{bound:>8} phase {phase}, {servers:>2} servers: {goodput:5.0}/s, p99 {p99:.1?}, bound {limit}"
            );
            limit
        });
        if bound == "adaptive" {
            let [before, halved, after] = limits;
            assert!((12..=36).contains(&before), "16 servers: {before}");
            assert!((5..=18).contains(&halved) && halved < before, "8 servers: {halved}");
            assert!((12..=36).contains(&after) && halved < after, "16 servers again: {after}");
        }
    }
}
