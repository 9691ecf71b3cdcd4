//! Requests that stand in the line of a limit whose numbers change: a higher rate moves them up, a lower one moves nobody
//! back, and newcomers stay behind them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tollgate::Wait;
use tollgate_rules::Gatekeeper;

use crate::layer::rules::{DelayedMemoryStore, rules};
use crate::layer::shaping::{PseudoRandom, ShapedScene};

/// One line for each caller.
fn queue(rate: &str, burst: u64) -> String {
    format!(
        "rules: [{{ name: even, key: '{{ip}}', limits: [{{ rate: {rate}, burst: {burst}, algorithm: leaky_bucket, queue: true }}] }}]"
    )
}

fn scene(rate: &str) -> ShapedScene {
    ShapedScene::new(&queue(rate, 100), || Wait::ZERO)
}

/// A change of the numbers of the line.
type PaceChange = fn(&ShapedScene, &str);

fn reload(scene: &ShapedScene, rate: &str) {
    scene.gatekeeper.replace(rules(&queue(rate, 100)));
}

fn set_override(scene: &ShapedScene, rate: &str) {
    let fields = json!({ "limits":
        [{ "rate": rate, "burst": 100, "algorithm": "leaky_bucket", "queue": true }] });
    let caller = scene.gatekeeper.caller("even", "ip=192.0.2.1").unwrap();
    caller.set_override(&fields).unwrap_or_else(|error| panic!("{error:?}"));
}

const CHANGES: [(&str, PaceChange); 2] = [("reload", reload), ("override", set_override)];

#[test]
fn a_higher_rate_moves_those_in_line_up_and_newcomers_stay_behind_them() {
    // The rate after 2.5 s, and the departures of four older requests and, 1 ms later, of two new ones.
    let cases: [(&str, [u64; 4]); 2] = [
        ("60/minute", [3_000, 4_000, 5_000, 6_000]),
        ("6000/minute", [2_505, 2_515, 2_525, 2_535]),
    ];
    for (name, change) in CHANGES {
        for (rate, expected) in cases {
            let mut scene = scene("60/minute");
            for _ in 0..7 {
                scene.send("/", &[]);
            }
            scene.runtime.run(Duration::from_millis(2_500));
            assert_eq!(scene.arrivals_ms(), [0, 1_000, 2_000]);
            change(&scene, rate);
            scene.runtime.run(Duration::from_millis(1));
            for _ in 0..2 {
                scene.send("/", &[]);
            }
            scene.runtime.run(Duration::from_secs(10));
            let arrivals = scene.arrivals.lock().unwrap().clone();
            let order: Vec<usize> = arrivals.iter().map(|(number, _)| *number).collect();
            assert_eq!(order, (0..9).collect::<Vec<_>>(), "{name} {rate}");
            assert_eq!(scene.arrivals_ms()[3..7], expected, "{name} {rate}");
            let interval = if rate == "60/minute" { 1_000 } else { 10 };
            let gaps = arrivals[6..].windows(2).map(|pair| pair[0].1.until(pair[1].1));
            for gap in gaps {
                assert!(gap >= Wait::from_micros(interval * 1_000), "{name} {rate}: {arrivals:?}");
            }
        }
    }
}

#[test]
fn a_lower_rate_moves_nobody_back() {
    for (name, change) in CHANGES {
        let mut scene = scene("60/minute");
        for _ in 0..4 {
            scene.send("/", &[]);
        }
        scene.runtime.run(Duration::from_millis(500));
        change(&scene, "6/minute");
        scene.send("/", &[]);
        scene.runtime.run(Duration::from_millis(2_000));
        change(&scene, "30/minute");
        scene.runtime.run(Duration::from_secs(40));
        assert_eq!(scene.arrivals_ms()[..4], [0, 1_000, 2_000, 3_000], "{name}");
        assert_eq!(scene.statuses(), [200; 5], "{name}");
        let last = scene.arrivals_ms()[4];
        // It had 35 s to wait under 6/minute, and 2 s later a fifth of the rest.
        assert!((8_000..=10_000).contains(&last), "{name}: {last}");
    }
}

#[test]
fn another_period_moves_up_as_well() {
    for (name, change) in CHANGES {
        let mut scene = scene("60/minute");
        for _ in 0..4 {
            scene.send("/", &[]);
        }
        scene.runtime.run(Duration::from_millis(500));
        change(&scene, "100/second");
        scene.runtime.run(Duration::from_millis(100));
        assert_eq!(scene.arrivals_ms(), [0, 505, 515, 525], "{name}");
    }
}

#[test]
fn a_higher_rate_shortens_the_interval_of_the_last_departure_although_nobody_waits() {
    for (name, change) in CHANGES {
        let mut scene = scene("1/minute");
        for _ in 0..2 {
            scene.send("/", &[]);
        }
        scene.runtime.run(Duration::from_secs(60));
        change(&scene, "6000/minute");
        for _ in 0..2 {
            scene.send("/", &[]);
        }
        scene.runtime.run(Duration::from_millis(100));
        assert_eq!(scene.arrivals_ms(), [0, 60_000, 60_010, 60_020], "{name}");
    }
}

/// A request that others of a faster queue do not wait for keeps its distance from them as well.
#[test]
fn a_higher_rate_of_a_queue_that_is_passed_counts_for_those_who_come_then() {
    let text = |rate: &str| {
        format!(
            "
rules:
  - {{ name: all, key: global, limits: [{{ rate: {rate}, burst: 50, algorithm: leaky_bucket, queue: true }}] }}
  - {{ name: slow, match: {{ path: /slow }}, key: '{{ip}}', limits: [{{ rate: 1/minute, burst: 50, algorithm: leaky_bucket, queue: true }}] }}
"
        )
    };
    let mut scene = ShapedScene::new(&text("2/minute"), || Wait::ZERO);
    for _ in 0..2 {
        scene.send("/slow", &[]);
    }
    // Nobody ever stood in the line of all when the second departs through it.
    scene.runtime.run(Duration::from_secs(60));
    scene.gatekeeper.replace(rules(&text("6000/minute")));
    scene.send("/", &[]);
    scene.runtime.run(Duration::from_millis(100));
    assert_eq!(scene.arrivals_ms(), [0, 60_000, 60_010]);
}

#[test]
fn an_override_that_ends_moves_those_up_who_wait_when_the_next_one_comes() {
    let mut scene = scene("6000/minute");
    let fields = json!({ "limits":
        [{ "rate": "60/minute", "burst": 100, "algorithm": "leaky_bucket", "queue": true }],
        "until": "2026-11-15T12:00:02.5Z" });
    let caller = scene.gatekeeper.caller("even", "ip=192.0.2.1").unwrap();
    caller.set_override(&fields).unwrap_or_else(|error| panic!("{error:?}"));
    for _ in 0..7 {
        scene.send("/", &[]);
    }
    scene.runtime.run(Duration::from_millis(2_600));
    scene.send("/", &[]);
    scene.runtime.run(Duration::from_millis(200));
    let order: Vec<usize> = scene.arrivals.lock().unwrap().iter().map(|one| one.0).collect();
    assert_eq!(order, (0..8).collect::<Vec<_>>());
}

#[test]
fn a_rule_that_is_gone_leaves_its_line_as_it_is() {
    let mut scene = scene("60/minute");
    for _ in 0..3 {
        scene.send("/", &[]);
    }
    scene.gatekeeper.replace(rules("rules: [{ name: other, key: '{ip}', limits: [9/hour] }]"));
    scene.runtime.run(Duration::from_secs(5));
    assert_eq!(scene.arrivals_ms(), [0, 1_000, 2_000]);
    assert_eq!(Gatekeeper::stats(&scene.gatekeeper).waiting, 0);
}

#[test]
fn whatever_changes_the_order_stays_and_the_pace_is_never_above_the_highest_rate() {
    for seed in 0..40 {
        let mut random = PseudoRandom(seed);
        let mut scene = scene("600/minute");
        for _ in 0..200 {
            match random.below(4) {
                0 | 1 => drop(scene.send("/", &[])),
                2 => scene.runtime.run(Duration::from_millis(random.below(700))),
                _ => {
                    let (_, change) = CHANGES[random.below(2) as usize];
                    change(
                        &scene,
                        ["60/minute", "600/minute", "6000/minute"][random.below(3) as usize],
                    );
                }
            }
        }
        scene.runtime.run(Duration::from_secs(200));
        let arrivals = scene.arrivals.lock().unwrap().clone();
        for pair in arrivals.windows(2) {
            let [(one, at), (next, then)] = pair else { unreachable!() };
            assert!(one < next, "{seed}: {next} after {one}");
            assert!(at.until(*then) >= Wait::from_micros(10_000), "{seed}: {one}, {next}");
        }
        assert_eq!(scene.gatekeeper.stats().waiting, 0);
    }
}

#[test]
fn a_request_that_was_charged_under_the_old_numbers_and_joins_later_moves_up_as_well() {
    let store = Arc::new(DelayedMemoryStore::new());
    let mut scene = ShapedScene::over(store, &queue("60/minute", 100), || Wait::ZERO);
    scene.send("/", &[]);
    // It is on its way to the store when the rules change.
    scene.begin("/", &[]);
    scene.runtime.run_steps(1);
    scene.gatekeeper.replace(rules(&queue("6000/minute", 100)));
    scene.runtime.run(Duration::from_millis(100));
    assert_eq!(scene.arrivals_ms(), [0, 10]);
}
