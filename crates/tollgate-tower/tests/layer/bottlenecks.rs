//! Requests that wait at several bottlenecks, on a virtual clock.

use std::sync::Arc;
use std::time::Duration;

use tollgate::MemoryStore;
use tollgate_rules::{Gatekeeper, WaitOutcome, expect_ready};

use crate::layer::fair::{
    CallerCounts, FairScene, IDENTIFY, SLOW, send_one, send_to, shared_limit, statuses,
};
use crate::layer::rules::{DelayedMemoryStore, rules};
use crate::layer::virtual_time::VirtualRuntime;

#[test]
fn a_turn_in_one_queue_does_not_overtake_those_who_wait_in_another() {
    let text = format!(
        "{IDENTIFY}
rules:
  - {{ name: own, key: '{{user}}', limits: [5/second burst 5] }}
  - {{ name: all, key: global, limits: [10/second burst 10], cost: {{ default: 1, /cost/10: 10 }} }}
  - {{ name: each, key: '{{user}}', fair: {{ wait: 8s, per_key: 20, total: 1000 }} }}
"
    );
    let mut scene = FairScene::new(&text, MemoryStore::new(10_000), Duration::ZERO);
    let greedy = Arc::<CallerCounts>::default();
    for user in ["a", "b", "c", "d"] {
        for _ in 0..10 {
            scene.connect((user, "free", 1), Duration::ZERO, &greedy);
        }
    }
    let large = Arc::<CallerCounts>::default();
    scene.connect(("large", "free", 10), Duration::ZERO, &large);
    scene.runtime.run(Duration::from_secs(60));
    eprintln!("large: {} of cost 10; greedy: {} of cost 1", large.served(), greedy.served());
    // Its share of 10 a second among five callers is a request every five seconds.
    assert_eq!(large.refused(), 0);
    assert!((11..=13).contains(&large.served()), "{}", large.served());
    assert!(greedy.served() + 10 * large.served() >= 590, "nothing is wasted");
    scene.end();
}

#[test]
fn a_rule_that_is_full_elsewhere_makes_room_in_the_queue_at_hand() {
    let text = format!(
        "{IDENTIFY}
rules:
  - {{ name: own, match: {{ path: /own }}, key: '{{user}}', limits: [1/second burst 1] }}
  - {{ name: all, match: {{ path: /cost/1 }}, key: global, limits: [1/second burst 1] }}
  - {{ name: each, key: '{{user}}', fair: {{ wait: 5s, per_key: 10, total: 3 }} }}
"
    );
    let mut scene = FairScene::new(&text, MemoryStore::new(10_000), Duration::ZERO);
    let mut all =
        vec![send_to(&mut scene, "/own", "a", &[]), send_to(&mut scene, "/own", "a", &[])];
    all.extend((0..3).map(|_| send_one(&mut scene, "greedy", &[])));
    assert_eq!(statuses(&all), [200, 0, 200, 0, 0], "three wait");
    all.push(send_one(&mut scene, "b", &[]));
    scene.runtime.run_woken();
    assert_eq!(statuses(&all), [200, 0, 200, 0, 429, 0], "the longer flow made room");
    assert_eq!(scene.figures("each").count(WaitOutcome::Displaced), 1);
    all.push(send_to(&mut scene, "/own", "b", &[]));
    all.push(send_to(&mut scene, "/own", "b", &[]));
    assert_eq!(statuses(&all)[6..], [200, 429], "nobody waits in its queue, so nobody makes room");
    scene.end();
}

#[test]
fn delayed_requests_take_no_place_in_the_fair_queue() {
    let text = format!(
        "{IDENTIFY}
rules:
  - {{ name: all, key: global, limits: [4/second burst 4] }}
  - name: each
    key: '{{user}}'
    limits: [{{ rate: 1/second, burst: 5, algorithm: leaky_bucket, queue: true }}]
    fair: {{ wait: 2s, per_key: 2, total: 2 }}
"
    );
    let mut scene = FairScene::new(&text, MemoryStore::new(10_000), Duration::ZERO);
    let mut all: Vec<_> = (0..3).map(|_| send_one(&mut scene, "a", &[])).collect();
    assert_eq!(scene.figures("each").waiting, 2, "two are delayed");
    all.push(send_one(&mut scene, "b", &[]));
    all.push(send_one(&mut scene, "c", &[]));
    assert_eq!(statuses(&all), [200, 0, 0, 200, 0]);
    scene.runtime.run(Duration::from_millis(300));
    assert_eq!(statuses(&all), [200, 0, 0, 200, 200]);
    scene.end();
}

#[test]
fn units_that_come_back_early_are_not_slept_through() {
    let text = shared_limit("limits: [2/minute burst 1]").replace("wait: 2s", "wait: 50s");
    let store = Arc::new(MemoryStore::new(10_000));
    let mut scene = FairScene::new(&text, Arc::clone(&store), Duration::ZERO);
    let mut all = vec![send_one(&mut scene, "a", &[])];
    let gatekeeper = Arc::clone(&scene.gatekeeper);
    let give_back: [&dyn Fn(); 2] = [
        &|| assert!(expect_ready(gatekeeper.caller("all", "global").unwrap().reset_use())),
        &|| expect_ready(gatekeeper.caller("all", "global").unwrap().grant(1)),
    ];
    for give_back in give_back {
        all.push(send_one(&mut scene, "b", &[]));
        scene.runtime.run(Duration::from_millis(100));
        assert_eq!(statuses(&all).last(), Some(&0));
        give_back();
        scene.runtime.run_woken();
        assert_eq!(statuses(&all).last(), Some(&200), "it is woken");
    }
    // Another instance on the same store wakes nobody here.
    let other = Gatekeeper::new(rules(&text), store, scene.runtime.clock());
    all.push(send_one(&mut scene, "b", &[]));
    assert!(expect_ready(other.caller("all", "global").unwrap().reset_use()));
    scene.runtime.run(Duration::from_secs(1));
    assert_eq!(statuses(&all), [200; 4]);
    scene.end();
}

#[test]
fn a_skipped_rule_counts_once_when_the_line_is_too_long() {
    let text = format!(
        "{IDENTIFY}
rules:
  - {{ name: line, key: global, limits: [{{ rate: 1/second, burst: 5, algorithm: leaky_bucket, queue: true }}] }}
  - {{ name: skipped, key: '{{api_key}}', limits: [1/second] }}
"
    );
    let mut scene = FairScene::new(&text, MemoryStore::new(10_000), Duration::ZERO);
    let all = [send_one(&mut scene, "a", &[]), send_one(&mut scene, "a", &[("prefer", "wait=0")])];
    assert_eq!(statuses(&all), [200, 429]);
    assert_eq!(scene.gatekeeper.stats().without_fact, 2, "one for each request");
    scene.end();
}

#[test]
fn a_refusal_by_the_queue_counts_towards_a_ban() {
    let ban = "limits: [10/second burst 10], ban: { after: 1, within: 1m, for: 15m }";
    let text = shared_limit(ban).replace("per_key: 100", "per_key: 1");
    let mut scene = FairScene::new(&text, MemoryStore::new(10_000), Duration::ZERO);
    let mut all: Vec<_> = (0..2).map(|_| send_to(&mut scene, "/cost/10", "a", &[])).collect();
    scene.runtime.run(Duration::from_millis(500));
    assert_eq!((statuses(&all), scene.gatekeeper.stats().bans), (vec![200, 0], 0));
    // The limit has room for it, but its place in the queue is taken.
    all.push(send_one(&mut scene, "a", &[]));
    assert_eq!((statuses(&all)[2], scene.gatekeeper.stats().bans), (429, 1));
    scene.end();
}

#[test]
fn a_queue_is_served_faster_than_one_request_for_each_round_trip() {
    let runtime = VirtualRuntime::new();
    let sleep = runtime.sleep();
    let round_trip = Box::new(move || sleep(Duration::from_millis(100)));
    let store = DelayedMemoryStore::new().with_round_trip(round_trip);
    let text = shared_limit("limits: [100/second burst 100]").replace("wait: 2s", "wait: 5s");
    let mut scene = FairScene::on(runtime, &text, store, Duration::ZERO);
    let callers: Vec<_> = (0..20).map(|_| Arc::<CallerCounts>::default()).collect();
    for (number, counts) in callers.iter().enumerate() {
        for _ in 0..1 + number {
            scene.connect((&format!("caller {number}"), "free", 1), Duration::ZERO, counts);
        }
    }
    scene.runtime.run(Duration::from_secs(60));
    let served: Vec<u64> = callers.iter().map(|one| one.served()).collect();
    let all = served.iter().sum::<u64>();
    eprintln!("{all} over a round trip of 100 ms: {served:?}");
    assert!(all >= 5_000, "{all}");
    scene.end();
}

#[test]
fn a_refusal_because_the_store_fails_says_so() {
    let store = Arc::new(DelayedMemoryStore::new());
    store.fail_once();
    let mut scene = FairScene::new(&shared_limit(SLOW), store, Duration::ZERO);
    let all = [send_one(&mut scene, "a", &[]), send_one(&mut scene, "a", &[])];
    assert_eq!(statuses(&all), [503, 200]);
    scene.end();
}
