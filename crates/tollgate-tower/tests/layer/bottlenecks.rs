//! Requests that wait at several bottlenecks, on a virtual clock.

use std::sync::Arc;
use std::time::Duration;

use tollgate::MemoryStore;

use crate::layer::fair::{CallerCounts, FairScene, IDENTIFY};

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
