//! Limits with a queue behind the layer: even output, whatever timers and clients do, on a virtual clock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tollgate::{Clock, MemoryStore, Micros, Wait};
use tollgate_rules::{Gatekeeper, InfallibleStore, WaitOutcome};
use tollgate_tower::RateLimit;
use tower::{Layer, Service};

use crate::layer::harness::{HelloService, SharedManualClock, strict, with};
use crate::layer::rules::{DelayedMemoryStore, rules};
use crate::layer::virtual_time::VirtualRuntime;

/// Numbers that look random and are the same every time.
pub(super) struct PseudoRandom(pub(super) u64);

impl PseudoRandom {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Clients behind a layer with a queue, and when their requests reached the service.
pub(super) struct ShapedScene<S: InfallibleStore = MemoryStore> {
    pub(super) runtime: VirtualRuntime,
    pub(super) gatekeeper: Arc<Gatekeeper<S, SharedManualClock>>,
    service: RateLimit<HelloService>,
    /// The number and the instant of each request that reached the service.
    pub(super) arrivals: Arc<Mutex<Vec<(usize, Micros)>>>,
    /// The status of each request, and how long it waited.
    answers: Arc<Mutex<Vec<(usize, u16, Wait)>>>,
    sent: usize,
}

impl ShapedScene {
    pub(super) fn new(
        text: &str,
        lateness: impl Fn() -> Wait + Send + Sync + 'static,
    ) -> ShapedScene {
        ShapedScene::over(MemoryStore::new(10_000), text, lateness)
    }
}

impl<S: InfallibleStore + 'static> ShapedScene<S> {
    pub(super) fn over(
        store: S,
        text: &str,
        lateness: impl Fn() -> Wait + Send + Sync + 'static,
    ) -> ShapedScene<S> {
        let runtime = VirtualRuntime::new();
        let gatekeeper = Arc::new(Gatekeeper::new(rules(text), store, runtime.clock()));
        let layer = strict(Arc::clone(&gatekeeper))
            .wait(Duration::from_secs(60), runtime.late_sleep(lateness));
        let arrivals = Arc::<Mutex<Vec<_>>>::default();
        let (seen, clock) = (Arc::clone(&arrivals), runtime.clock());
        let service = layer.layer(HelloService::answering(move |request: &Request<()>| {
            let number = request.headers()["x-number"].to_str().unwrap().parse().unwrap();
            seen.lock().unwrap().push((number, clock.now()));
            Response::new(Full::<Bytes>::from("hello"))
        }));
        let answers = Arc::default();
        ShapedScene { runtime, gatekeeper, service, arrivals, answers, sent: 0 }
    }

    /// Sends a request now, and runs it until it waits; returns its task.
    pub(super) fn send(&mut self, path: &str, fields: &[(&'static str, &str)]) -> usize {
        let task = self.begin(path, fields);
        self.runtime.run_woken();
        task
    }

    pub(super) fn begin(&mut self, path: &str, fields: &[(&'static str, &str)]) -> usize {
        let (number, begun) = (self.sent, self.runtime.clock().now());
        self.sent += 1;
        let mut request = with("192.0.2.1", fields);
        *request.uri_mut() = path.parse().unwrap();
        request.headers_mut().insert("x-number", number.into());
        let (mut service, answers) = (self.service.clone(), Arc::clone(&self.answers));
        let clock = self.runtime.clock();
        self.runtime.spawn(async move {
            let Ok(response) = service.call(request).await;
            let waited = begun.until(clock.now());
            answers.lock().unwrap().push((number, response.status().as_u16(), waited));
        })
    }

    pub(super) fn statuses(&self) -> Vec<u16> {
        let mut answers = self.answers.lock().unwrap().clone();
        answers.sort_unstable();
        answers.into_iter().map(|(_, status, _)| status).collect()
    }

    /// Instants at which requests reached the service, in milliseconds after noon.
    pub(super) fn arrivals_ms(&self) -> Vec<u64> {
        let noon = Micros::from_secs(crate::layer::harness::NOON_S);
        let arrivals = self.arrivals.lock().unwrap();
        arrivals.iter().map(|(_, at)| noon.until(*at).as_micros().unwrap() / 1_000).collect()
    }

    /// Checks that the output kept its pace and its order, that nobody waited for too long, and that nothing is left.
    fn check(mut self, interval: Wait, capacity: Wait) {
        let arrivals = self.arrivals.lock().unwrap().clone();
        for pair in arrivals.windows(2) {
            let [(one, at), (next, then)] = pair else { unreachable!() };
            assert!(at.until(*then) >= interval, "{one} at {at:?}, {next} at {then:?}");
            assert!(one < next, "{one} before {next}");
        }
        for (number, status, waited) in self.answers.lock().unwrap().iter() {
            assert!(*waited <= capacity, "{number} waited {waited} for {status}");
        }
        self.runtime.end();
        assert_eq!(self.gatekeeper.stats().waiting, 0);
        assert_eq!(self.gatekeeper.stats().reservations, 0);
    }
}

const QUEUE: &str = "
rules:
  - { name: even, key: '{ip}', limits: [{ rate: 10/second, burst: 5, algorithm: leaky_bucket, queue: true }] }
";
const INTERVAL: Wait = Wait::from_micros(100_000);
const CAPACITY: Wait = Wait::from_micros(500_000);

fn in_time() -> Wait {
    Wait::ZERO
}

#[test]
fn a_burst_leaves_at_an_even_pace_and_the_rest_is_refused_at_once() {
    let mut scene = ShapedScene::new(QUEUE, in_time);
    for _ in 0..8 {
        scene.send("/", &[]);
    }
    assert_eq!(scene.statuses(), [200, 429, 429, 429], "the others wait");
    assert_eq!(scene.gatekeeper.stats().waiting, 4);
    scene.runtime.run(Duration::from_secs(1));
    assert_eq!(scene.arrivals_ms(), [0, 100, 200, 300, 400]);
    let figures = scene.gatekeeper.rules().wait_tallies().next().unwrap().1.figures();
    assert_eq!((figures.waiting, figures.count(WaitOutcome::Delayed)), (0, 4));
    assert_eq!(figures.sum_us, 1_000_000);
    scene.check(INTERVAL, CAPACITY);
}

#[test]
fn those_behind_a_client_that_leaves_move_up_and_a_newcomer_gets_the_place() {
    let mut scene = ShapedScene::new(QUEUE, in_time);
    let tasks: Vec<usize> = (0..5).map(|_| scene.send("/", &[])).collect();
    scene.runtime.run(Duration::from_millis(50));
    scene.runtime.cancel(tasks[2]);
    scene.send("/", &[]);
    scene.send("/", &[]);
    assert_eq!(scene.statuses(), [200, 429], "one place was free");
    scene.runtime.run(Duration::from_secs(1));
    assert_eq!(scene.arrivals_ms(), [0, 100, 200, 300, 400]);
    scene.check(INTERVAL, CAPACITY);
}

#[test]
fn the_pace_holds_if_timers_are_late_and_clients_leave_at_any_time() {
    for seed in 0..30 {
        let random = Arc::new(Mutex::new(PseudoRandom(seed)));
        let lateness = Arc::clone(&random);
        let late = move || Wait::from_micros(lateness.lock().unwrap().below(9_000));
        let mut scene = ShapedScene::new(QUEUE, late);
        let mut tasks = Vec::new();
        for _ in 0..2_000 {
            let (step, leaver) = {
                let mut random = random.lock().unwrap();
                (random.below(60_000), random.below(8) == 0)
            };
            scene.runtime.run(Duration::from_micros(step));
            tasks.push(scene.send("/", &[]));
            if leaver {
                let which = random.lock().unwrap().below(5) as usize;
                scene.runtime.cancel(tasks[tasks.len().saturating_sub(1 + which)]);
            }
        }
        scene.runtime.run(Duration::from_secs(1));
        let served = scene.arrivals.lock().unwrap().len();
        // 60 seconds at 10 a second, less what late timers cost.
        assert!(served >= 540, "{served}");
        scene.check(INTERVAL, CAPACITY);
    }
}

#[test]
fn a_client_does_not_wait_longer_than_it_says() {
    let mut scene = ShapedScene::new(QUEUE, in_time);
    scene.send("/", &[]);
    scene.send("/", &[]);
    // The third would wait 200 ms.
    scene.send("/", &[("x-envoy-expected-rq-timeout-ms", "199")]);
    scene.send("/", &[("grpc-timeout", "100m")]);
    scene.send("/", &[("prefer", "wait=0")]);
    assert_eq!(scene.statuses(), [200, 429, 429, 429]);
    assert_eq!(scene.gatekeeper.stats().waiting, 1, "they have charged nothing");
    scene.send("/", &[("x-envoy-expected-rq-timeout-ms", "200")]);
    scene.send("/", &[("prefer", "wait=1")]);
    scene.runtime.run(Duration::from_secs(1));
    assert_eq!(scene.arrivals_ms(), [0, 100, 200, 300]);
    scene.check(INTERVAL, CAPACITY);
}

#[test]
fn the_slower_of_two_queues_counts_and_does_not_block_the_faster() {
    let mut scene = ShapedScene::new(
        "
rules:
  - { name: all, key: global, limits: [{ rate: 100/second, burst: 50, algorithm: leaky_bucket, queue: true }] }
  - { name: slow, match: { path: /slow }, key: '{ip}', limits: [{ rate: 2/second, burst: 5, algorithm: leaky_bucket, queue: true }] }
",
        in_time,
    );
    for path in ["/slow", "/slow", "/slow", "/fast", "/fast"] {
        scene.send(path, &[]);
    }
    scene.runtime.run(Duration::from_secs(2));
    assert_eq!(scene.arrivals_ms(), [0, 30, 40, 500, 1_000]);
    let order: Vec<usize> = scene.arrivals.lock().unwrap().iter().map(|(one, _)| *one).collect();
    assert_eq!(order, [0, 3, 4, 1, 2]);
}

#[test]
fn a_departure_keeps_its_distance_in_a_line_that_nobody_stands_in() {
    let mut scene = ShapedScene::new(
        "
rules:
  - { name: all, key: global, limits: [{ rate: 10/second, burst: 5, algorithm: leaky_bucket, queue: true }] }
  - { name: slow, match: { path: /slow }, key: '{ip}', limits: [{ rate: 1/second, burst: 5, algorithm: leaky_bucket, queue: true }] }
",
        in_time,
    );
    scene.send("/slow", &[]);
    scene.send("/slow", &[]);
    scene.runtime.run(Duration::from_millis(950));
    scene.send("/fast", &[]);
    scene.runtime.run(Duration::from_millis(150));
    scene.send("/fast", &[]);
    scene.runtime.run(Duration::from_secs(1));
    // The second one was due at 1,000, the last one at 1,100.
    assert_eq!(scene.arrivals_ms(), [0, 950, 1_050, 1_150]);
    let order: Vec<usize> = scene.arrivals.lock().unwrap().iter().map(|(one, _)| *one).collect();
    assert_eq!(order, [0, 2, 1, 3]);
}

#[test]
fn the_distance_counts_from_the_answer_of_a_store_that_takes_its_time() {
    let mut scene = ShapedScene::over(Arc::new(DelayedMemoryStore::new()), QUEUE, in_time);
    // Each is on its way to the store when time passes.
    for way_ms in [30, 0, 5] {
        scene.begin("/", &[]);
        scene.runtime.run_steps(1);
        scene.runtime.advance(Duration::from_millis(way_ms));
        scene.runtime.run_woken();
    }
    scene.runtime.run(Duration::from_secs(1));
    assert_eq!(scene.arrivals_ms(), [30, 130, 230]);
    scene.check(INTERVAL, CAPACITY);
}
