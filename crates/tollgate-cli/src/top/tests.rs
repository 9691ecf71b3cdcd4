//! `TopCallers` against exact counts, its windows and its bounds; and what it costs.

use std::thread;

use super::*;

fn top() -> TopCallers {
    TopCallers::new(Arc::new(KeyNames::random().unwrap()))
}

fn user(name: impl ToString) -> KeyBuf {
    KeyBuf::new().with("user", &name.to_string())
}

/// Key, requests, refusals.
fn listed(top: &TopCallers, by: TopOrder, at_s: u64) -> Vec<(String, u64, u64)> {
    let entries = top.hottest(10, by, &Identify::default(), Micros::new(at_s * 1_000_000));
    entries.into_iter().map(|one| (one.key, one.requests.count, one.refusals.count)).collect()
}

fn hash_of(rule: &str) -> u64 {
    rule.bytes().fold(0, |hash, byte| hash * 257 + u64::from(byte))
}

/// One request under one rule.
fn count(top: &TopCallers, rule: &Arc<str>, key: &KeyBuf, refused: bool, now: Micros) {
    let rule_hash = hash_of(rule);
    top.count(
        now,
        &Identify::default(),
        std::iter::once(CountedRequest { rule, rule_hash, key, refused }),
    );
}

#[test]
fn one_request_shows_up_and_is_forgotten_after_its_minutes() {
    let (top, rule): (_, Arc<str>) = (top(), "api".into());
    count(&top, &rule, &user(1), true, Micros::new(70_000_000));
    count(&top, &rule, &user(2), false, Micros::new(121_000_000));
    count(&top, &rule, &user(2), false, Micros::new(119_999_999));
    let both = vec![("user=2".to_string(), 2, 0), ("user=1".to_string(), 1, 1)];
    assert_eq!(listed(&top, TopOrder::Requests, 121), both);
    assert_eq!(listed(&top, TopOrder::Refusals, 121), both[1..]);
    assert_eq!(listed(&top, TopOrder::Requests, 180), both[..1], "the first minute is over");
    assert_eq!(listed(&top, TopOrder::Requests, 240), []);
    // A clock that was set back.
    count(&top, &rule, &user(3), false, Micros::new(5_000_000));
    assert_eq!(listed(&top, TopOrder::Requests, 5), [("user=3".to_string(), 1, 0)]);
}

#[test]
fn a_caller_is_found_under_its_rule_for_its_minutes() {
    let (top, rule): (_, Arc<str>) = (top(), "api".into());
    count(&top, &rule, &user(1), false, Micros::new(70_000_000));
    // A key that is too long to be kept whole is found as well.
    let long = user("x".repeat(KEY_BYTES_MAX));
    count(&top, &rule, &long, false, Micros::new(70_000_000));
    let has =
        |rule, key: &KeyBuf, at_s: u64| top.has(hash_of(rule), key, Micros::new(at_s * 1_000_000));
    for at_s in [70, 179] {
        assert!(has("api", &user(1), at_s) && has("api", &long, at_s), "{at_s}");
        assert!(!has("login", &user(1), at_s) && !has("api", &user(2), at_s), "{at_s}");
    }
    assert!(!has("api", &user(1), 180), "its minutes are over");
}

#[test]
fn callers_of_two_rules_are_two() {
    let (top, now) = (top(), Micros::new(1));
    for rule in ["a", "b", "b"] {
        count(&top, &rule.into(), &user(1), false, now);
    }
    let entries = top.hottest(10, TopOrder::Requests, &Identify::default(), now);
    let told: Vec<_> = entries.iter().map(|one| (&*one.rule, one.requests.count)).collect();
    assert_eq!(told, [("b", 2), ("a", 1)]);
    assert_eq!(entries[0].hash, top.names.hash(&user(1)));
}

#[test]
fn long_keys_are_cut_and_stay_apart() {
    let (top, rule, now): (_, Arc<str>, _) = (top(), "api".into(), Micros::new(1));
    let long = "ü".repeat(5_000);
    for end in ["a", "b", "b"] {
        count(&top, &rule, &user(format!("{long}{end}")), false, now);
    }
    let entries = top.hottest(10, TopOrder::Requests, &Identify::default(), now);
    assert_eq!(entries.iter().map(|one| one.requests.count).collect::<Vec<_>>(), [2, 1]);
    for entry in &entries {
        assert!(entry.key.len() <= KEY_BYTES_MAX, "{}", entry.key.len());
        assert!(entry.key.starts_with("user=ü") && entry.key.ends_with(&entry.hash));
    }
    assert_ne!(entries[0].key, entries[1].key);
}

#[test]
fn the_heavy_ones_are_found_over_threads_and_windows() {
    const THREADS: u64 = 5;
    let (top, rule): (_, Arc<str>) = (top(), "api".into());
    // Each thread: 40 heavy callers among 5,000 who come once, in each of two minutes.
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (top, rule) = (&top, &rule);
            scope.spawn(move || {
                for turn in 0..20_000_u64 {
                    let now = Micros::new(turn / 10_000 * WINDOW_US);
                    let key = match turn % 2 {
                        0 => user(turn / 2 % 40),
                        _ => user(1_000 + thread * 20_000 + turn),
                    };
                    count(top, rule, &key, turn.is_multiple_of(4), now);
                }
            });
        }
    });
    // The others share windows that they have come to after their minute; nothing is lost.
    let entries = top.hottest(40, TopOrder::Requests, &Identify::default(), Micros::new(WINDOW_US));
    assert_eq!(entries.len(), 40);
    for entry in entries {
        let name: u64 = entry.key.strip_prefix("user=").unwrap().parse().unwrap();
        assert!(name < 40, "{entry:?}");
        let (requests, refusals) =
            (250 * THREADS, if name.is_multiple_of(2) { 250 * THREADS } else { 0 });
        for (told, truly) in [(entry.requests, requests), (entry.refusals, refusals)] {
            assert!(told.count - told.error <= truly && truly <= told.count, "{entry:?}");
        }
    }
}

/// Measures the cost for a decision: `cargo test --release -p tollgate-cli -- --ignored --nocapture top`.
#[test]
#[ignore = "measures"]
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn what_counting_costs() {
    let (top, rule): (_, Arc<str>) = (top(), "api".into());
    let keys: Vec<KeyBuf> = (0..1_000_000).map(user).collect();
    for (name, callers) in [("one", 1), ("100", 100), ("10,000", 10_000), ("10^6", 1_000_000)] {
        for refused in [false, true] {
            let began = std::time::Instant::now();
            for turn in 0..2_000_000_usize {
                let key = &keys[turn % callers];
                count(&top, &rule, key, refused, Micros::new(1));
            }
            let ns = began.elapsed().as_nanos() / 2_000_000;
            println!("{name} callers, refused {refused}: {ns} ns");
        }
    }
}

#[test]
fn cookies_in_keys_are_not_shown() {
    let (top, rule, now): (_, Arc<str>, _) = (top(), "api".into(), Micros::new(1));
    let identify = Identify::default();
    for end in ["", &"x".repeat(KEY_BYTES_MAX)] {
        let key = KeyBuf::new().with("header.cookie", &format!("t0p{end}"));
        count(&top, &rule, &key, true, now);
    }
    let entries = top.hottest(10, TopOrder::Refusals, &identify, now);
    assert_eq!(entries.len(), 2);
    for one in &entries {
        assert!(one.key.contains("header.cookie") && !one.key.contains("t0p"), "{}", one.key);
    }
    assert_ne!(entries[0].hash, entries[1].hash, "hashes tell them apart");
}
