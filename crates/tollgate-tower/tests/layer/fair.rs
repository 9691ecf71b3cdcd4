//! Fair queues behind the layer: callers share an aggregate limit or an aggregate concurrency, on a virtual clock.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tollgate::MemoryStore;
use tollgate::store::Store;
use tollgate_rules::{Gatekeeper, InfallibleStore, WaitFigures, WaitOutcome};
use tollgate_tower::{RateLimit, RateLimitLayer};
use tower::{Layer, Service};

use crate::layer::harness::{SharedManualClock, strict, with};
use crate::layer::rules::{DelayedMemoryStore, rules};
use crate::layer::virtual_time::VirtualRuntime;

pub(super) type TestGatekeeper<S> = Arc<Gatekeeper<S, SharedManualClock>>;

/// A caller and what became of its requests.
#[derive(Default)]
pub(super) struct CallerCounts {
    served: AtomicU64,
    refused: AtomicU64,
}

impl CallerCounts {
    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// A service whose work takes some time.
#[derive(Clone)]
pub(super) struct WorkingService {
    work: Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>,
}

impl Service<Request<()>> for WorkingService {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let work = (self.work)();
        Box::pin(async move {
            work.await;
            Ok(Response::new(Full::from("done")))
        })
    }
}

/// Callers behind one layer.
pub(super) struct FairScene<S: InfallibleStore + 'static> {
    pub(super) runtime: VirtualRuntime,
    pub(super) gatekeeper: TestGatekeeper<S>,
    pub(super) service: RateLimit<WorkingService>,
}

impl<S: Store<Error = Infallible> + Send + Sync + 'static> FairScene<S> {
    pub(super) fn new(text: &str, store: S, work: Duration) -> FairScene<S> {
        FairScene::on(VirtualRuntime::new(), text, store, work)
    }

    pub(super) fn on(
        runtime: VirtualRuntime,
        text: &str,
        store: S,
        work: Duration,
    ) -> FairScene<S> {
        let gatekeeper = Arc::new(Gatekeeper::new(rules(text), store, runtime.clock()));
        let layer: RateLimitLayer = strict(Arc::clone(&gatekeeper));
        let layer = layer.wait(Duration::from_secs(60), runtime.sleep());
        let sleep = runtime.sleep();
        let work = Arc::new(move || sleep(work));
        let service = layer.layer(WorkingService { work });
        FairScene { runtime, gatekeeper, service }
    }

    /// A connection that sends its next request when the last one was answered and `pause` is over.
    pub(super) fn connect(
        &mut self,
        (user, tier, cost): (&str, &str, u64),
        pause: Duration,
        counts: &Arc<CallerCounts>,
    ) -> usize {
        let (mut service, sleep) = (self.service.clone(), self.runtime.sleep());
        let fields = [user, tier].map(String::from);
        let (path, counts) = (format!("/cost/{cost}"), Arc::clone(counts));
        self.runtime.spawn(async move {
            loop {
                let [user, tier] = &fields;
                let mut request = with("10.0.0.1", &[("x-user-id", user), ("x-tier", tier)]);
                *request.uri_mut() = path.parse().unwrap();
                let Ok(response) = service.call(request).await;
                let counter = match response.status().as_u16() {
                    200 => &counts.served,
                    429 => &counts.refused,
                    other => panic!("{other}"),
                };
                counter.fetch_add(1, Ordering::Relaxed);
                let is_refused = response.status() == 429;
                drop(response);
                // A refused client tries again soon, whatever `Retry-After` says.
                sleep(if is_refused { pause.max(RETRY) } else { pause }).await;
            }
        })
    }

    pub(super) fn figures(&self, rule: &str) -> WaitFigures {
        let rules = self.gatekeeper.rules();
        let (_, tally) =
            rules.wait_tallies().find(|(one, _)| *one.name == *rule).expect("such a rule");
        tally.figures()
    }

    /// Ends all tasks, and checks that nothing is left behind.
    pub(super) fn end(mut self) {
        self.runtime.end();
        for (rule, tally) in self.gatekeeper.rules().wait_tallies() {
            assert_eq!(tally.figures().waiting, 0, "{}", rule.name);
        }
        assert_eq!(self.gatekeeper.stats().waiting, 0);
        assert_eq!(self.gatekeeper.stats().reservations, 0);
    }
}

/// The index of Jain: 1 if all are equal, 1/n if one has everything.
fn jain(counts: impl Iterator<Item = u64>) -> f64 {
    let counts: Vec<f64> = counts.map(|count| count as f64).collect();
    let (sum, squares) =
        (counts.iter().sum::<f64>(), counts.iter().map(|one| one * one).sum::<f64>());
    sum * sum / (counts.len() as f64 * squares)
}

pub(super) const IDENTIFY: &str = "
identify: { trusted_peers: [10.0.0.0/8], user: { header: x-user-id }, tier: { header: x-tier } }
tiers: { free: 1, pro: 2, gold: 10 }
";

/// A limit of all callers together, which the second rule shares among them.
pub(super) fn shared_limit(limit: &str) -> String {
    format!(
        "{IDENTIFY}
rules:
  - {{ name: all, key: global, {limit}, cost: {{ default: 1, /cost/5: 5, /cost/10: 10 }} }}
  - {{ name: each, key: '{{user}}', fair: {{ wait: 2s, per_key: 100, total: 2000, weight_by: tier }} }}
"
    )
}

const RATE: &str = "limits: [100/second burst 10]";
const CONCURRENCY: &str = "concurrency: 10";

/// Pause of a connection after a refusal.
const RETRY: Duration = Duration::from_millis(100);

const MINUTE: Duration = Duration::from_secs(60);

/// One greedy caller with 200 connections, and 49 polite ones that each ask for half of their share.
fn greedy_among_polite<S: Store<Error = Infallible> + Send + Sync + 'static>(
    mut scene: FairScene<S>,
    greedy_cost: u64,
) {
    let greedy = Arc::<CallerCounts>::default();
    let polite: Vec<_> = (0..49).map(|_| Arc::<CallerCounts>::default()).collect();
    for _ in 0..200 {
        scene.connect(("greedy", "free", greedy_cost), Duration::ZERO, &greedy);
    }
    for (number, counts) in polite.iter().enumerate() {
        let pause = Duration::from_millis(1_000 + 7 * number as u64);
        scene.connect((&format!("polite {number}"), "free", 1), pause, counts);
    }
    scene.runtime.run(MINUTE);
    let (served, refused): (u64, u64) = polite
        .iter()
        .fold((0, 0), |(served, refused), one| (served + one.served(), refused + one.refused()));
    let share = served as f64 / (served + refused) as f64;
    eprintln!(
        "polite: {served} served, {refused} refused; greedy: {} served, {} refused",
        greedy.served(),
        greedy.refused()
    );
    assert!(served > 2_000 && share >= 0.98, "{share}");
    let jain = jain(polite.iter().map(|one| one.served()));
    assert!(jain >= 0.99, "{jain}");
    // What the polite callers leave goes to the greedy one: nothing is wasted.
    let all = served + greedy.served() * greedy_cost;
    assert!(all >= 5_900, "{all} units in a minute of 100 a second");
    scene.end();
}

#[test]
fn a_greedy_caller_does_not_starve_polite_ones_of_a_limit() {
    for cost in [1, 10] {
        let store = MemoryStore::new(10_000);
        greedy_among_polite(FairScene::new(&shared_limit(RATE), store, Duration::ZERO), cost);
    }
}

#[test]
fn a_greedy_caller_does_not_starve_polite_ones_of_a_concurrency() {
    // Ten at a time, each for 100 ms: 100 a second.
    let store = MemoryStore::new(10_000);
    let work = Duration::from_millis(100);
    greedy_among_polite(FairScene::new(&shared_limit(CONCURRENCY), store, work), 1);
}

#[test]
fn the_same_holds_over_a_store_that_has_to_be_waited_for() {
    for (limit, work) in [(RATE, 0), (CONCURRENCY, 100)] {
        let store = DelayedMemoryStore::new();
        let work = Duration::from_millis(work);
        greedy_among_polite(FairScene::new(&shared_limit(limit), store, work), 1);
    }
}

#[test]
fn equal_callers_get_equal_shares_however_many_connections_they_open() {
    for (limit, work) in [(RATE, 0), (CONCURRENCY, 100)] {
        let store = MemoryStore::new(10_000);
        let mut scene = FairScene::new(&shared_limit(limit), store, Duration::from_millis(work));
        let callers: Vec<_> = (0..20).map(|_| Arc::<CallerCounts>::default()).collect();
        for (number, counts) in callers.iter().enumerate() {
            for _ in 0..1 + number % 7 * 4 {
                scene.connect((&format!("caller {number}"), "free", 1), Duration::ZERO, counts);
            }
        }
        scene.runtime.run(MINUTE);
        let served: Vec<u64> = callers.iter().map(|one| one.served()).collect();
        let jain = jain(served.iter().copied());
        eprintln!("{limit}: {served:?}, {jain}");
        assert!(jain >= 0.99, "{served:?}");
        assert!(served.iter().sum::<u64>() >= 5_900, "{served:?}");
        scene.end();
    }
}

#[test]
fn weights_are_kept_within_two_percent() {
    let store = MemoryStore::new(10_000);
    let mut scene = FairScene::new(&shared_limit(RATE), store, Duration::ZERO);
    let callers = ["free", "pro", "gold"].map(|tier| (tier, Arc::<CallerCounts>::default()));
    for (tier, counts) in &callers {
        for _ in 0..40 {
            scene.connect((tier, tier, 1), Duration::ZERO, counts);
        }
    }
    scene.runtime.run(MINUTE);
    let served = callers.each_ref().map(|(_, counts)| counts.served() as f64);
    eprintln!("1 : 2 : 10 is {served:?}");
    let all: f64 = served.iter().sum();
    for (served, weight) in served.into_iter().zip([1.0, 2.0, 10.0]) {
        let fair = all * weight / 13.0;
        assert!((served - fair).abs() <= 0.02 * fair, "{served} for {fair}");
    }
    scene.end();
}

#[test]
fn large_costs_buy_no_larger_share() {
    let store = MemoryStore::new(10_000);
    let mut scene = FairScene::new(&shared_limit(RATE), store, Duration::ZERO);
    let callers = [1, 5, 10].map(|cost| (cost, Arc::<CallerCounts>::default()));
    for (cost, counts) in &callers {
        for _ in 0..40 {
            scene.connect((&format!("costs {cost}"), "free", *cost), Duration::ZERO, counts);
        }
    }
    scene.runtime.run(MINUTE);
    let units = callers.each_ref().map(|(cost, counts)| counts.served() * cost);
    eprintln!("costs 1, 5, 10 get {units:?} units");
    assert!(jain(units.into_iter()) >= 0.99, "{units:?}");
    scene.end();
}

/// Sends one request of cost 1, as [`send_to`] does.
pub(super) fn send_one<S: Store<Error = Infallible> + Send + Sync + 'static>(
    scene: &mut FairScene<S>,
    user: &str,
    fields: &[(&'static str, &str)],
) -> (usize, Arc<AtomicU64>) {
    send_to(scene, "/cost/1", user, fields)
}

/// Sends one request to a path; returns its task and its status, once there is one.
pub(super) fn send_to<S: Store<Error = Infallible> + Send + Sync + 'static>(
    scene: &mut FairScene<S>,
    path: &str,
    user: &str,
    fields: &[(&'static str, &str)],
) -> (usize, Arc<AtomicU64>) {
    let (mut service, status) = (scene.service.clone(), Arc::<AtomicU64>::default());
    let mut request = with("10.0.0.1", &[&[("x-user-id", user)], fields].concat());
    *request.uri_mut() = path.parse().unwrap();
    let answered = Arc::clone(&status);
    let task = scene.runtime.spawn(async move {
        let Ok(response) = service.call(request).await;
        answered.store(response.status().as_u16().into(), Ordering::Relaxed);
    });
    scene.runtime.run_woken();
    (task, status)
}

pub(super) fn statuses(all: &[(usize, Arc<AtomicU64>)]) -> Vec<u64> {
    all.iter().map(|(_, status)| status.load(Ordering::Relaxed)).collect()
}

/// One unit a second, of all callers together.
pub(super) const SLOW: &str = "limits: [1/second burst 1]";

#[test]
fn waits_end_by_age_by_patience_and_where_no_wait_helps_at_once() {
    let text = shared_limit(SLOW).replace("wait: 2s", "wait: 2500ms");
    let mut scene = FairScene::new(&text, MemoryStore::new(10_000), Duration::ZERO);
    let mut all: Vec<_> = (0..3).map(|_| send_one(&mut scene, "a", &[])).collect();
    all.push(send_one(&mut scene, "b", &[]));
    all.push(send_one(&mut scene, "c", &[("grpc-timeout", "500m")]));
    assert_eq!(statuses(&all), [200, 0, 0, 0, 429], "no client waits longer than it says");
    scene.runtime.run(Duration::from_millis(2_200));
    assert_eq!(statuses(&all), [200, 200, 429, 200, 429], "another caller's turn came first");
    scene.runtime.run(Duration::from_millis(400));
    let figures = scene.figures("each");
    let count = |outcome| figures.count(outcome);
    assert_eq!((count(WaitOutcome::Admitted), count(WaitOutcome::Refused)), (2, 2));
    // A caller who would have to wait for longer than the rule lets it is refused at once.
    all.push(send_one(&mut scene, "e", &[("prefer", "wait=0")]));
    assert_eq!(statuses(&all)[5], 429);
    assert_eq!(scene.figures("each").count(WaitOutcome::Refused), 3);
    let tally = scene.gatekeeper.rules().tallies().next().unwrap().1.clone();
    let verdicts = [tollgate_rules::Verdict::Allowed, tollgate_rules::Verdict::Refused];
    assert_eq!(verdicts.map(|verdict| tally.count(verdict)), [3, 3], "one verdict each");
    scene.end();
}

#[test]
fn a_full_queue_makes_room_for_a_caller_who_waits_with_less() {
    let text = shared_limit(SLOW).replace("per_key: 100, total: 2000", "per_key: 3, total: 4");
    let text = text.replace("wait: 2s", "wait: 9s");
    let mut scene = FairScene::new(&text, MemoryStore::new(10_000), Duration::ZERO);
    let mut all: Vec<_> = (0..5).map(|_| send_one(&mut scene, "greedy", &[])).collect();
    assert_eq!(statuses(&all), [200, 0, 0, 0, 429], "three of one caller wait");
    all.push(send_one(&mut scene, "b", &[]));
    all.push(send_one(&mut scene, "c", &[]));
    scene.runtime.run_woken();
    assert_eq!(statuses(&all), [200, 0, 0, 429, 429, 0, 0], "the newest of the longest made room");
    scene.runtime.run(Duration::from_millis(1_900));
    let served = statuses(&all).iter().filter(|status| **status == 200).count();
    assert_eq!(served, 2);
    let figures = scene.figures("each");
    let count = |outcome| figures.count(outcome);
    assert_eq!((count(WaitOutcome::Displaced), count(WaitOutcome::Full)), (1, 1));
    scene.end();
}

#[test]
fn a_client_that_leaves_at_any_point_holds_nobody_up() {
    // The leaver is the head or behind it, in its first try, asleep, or just woken.
    for steps in 0..12 {
        for leaver in 1..4 {
            let text = shared_limit(SLOW).replace("wait: 2s", "wait: 5s");
            let mut scene = FairScene::new(&text, DelayedMemoryStore::new(), Duration::ZERO);
            let mut all = vec![send_one(&mut scene, "first", &[])];
            for user in ["a", "b", "c"] {
                all.push(send_one(&mut scene, user, &[]));
            }
            scene.runtime.run(Duration::from_millis(990));
            scene.runtime.advance(Duration::from_millis(10));
            scene.runtime.run_steps(steps);
            scene.runtime.cancel(all[leaver].0);
            scene.runtime.run(Duration::from_millis(1_001));
            let mut served = statuses(&all);
            let left = served.remove(leaver);
            assert!(left == 0 || left == 200, "{left}");
            let waiting = scene.gatekeeper.stats().waiting;
            assert_eq!(waiting + served.iter().filter(|one| **one == 200).count(), 3);
            assert!(served.iter().filter(|one| **one == 200).count() >= 2, "{steps} {leaver}");
            scene.end();
        }
    }
}

#[test]
fn those_who_wait_are_decided_by_new_rules() {
    let mut scene = FairScene::new(&shared_limit(SLOW), MemoryStore::new(10_000), Duration::ZERO);
    let mut all = vec![send_one(&mut scene, "a", &[]), send_one(&mut scene, "a", &[])];
    let changed = shared_limit(SLOW).replace("wait: 2s, per_key: 100", "wait: 2s, per_key: 1");
    scene.gatekeeper.replace(rules(&changed));
    // The same limit and the same queue, with the new bounds for those who come now.
    scene.runtime.run_woken();
    all.push(send_one(&mut scene, "a", &[]));
    assert_eq!(statuses(&all), [200, 0, 429]);
    assert_eq!(scene.figures("each").waiting, 1, "the counts of a rule stay");
    scene.gatekeeper.replace(rules(&shared_limit("limits: [5/second burst 5]")));
    scene.runtime.run_woken();
    assert_eq!(statuses(&all), [200, 200, 429], "at once");
    scene.end();
}
