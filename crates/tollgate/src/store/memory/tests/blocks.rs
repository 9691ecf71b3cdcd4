//! Blocks: above all limits, and for how long.

use super::*;

#[test]
fn a_block_is_above_all_limits_and_ends() {
    let store = MemoryStore::new(100);
    let limit = built(Limit::per_minute(100));
    assert!(store.block(Key::from("anna"), at(70), at(10)));
    assert!(store.block(Key::from("anna"), at(20), at(10)), "a shorter block changes nothing");
    for limit in kinds() {
        let refused = take(&store, &limit, "anna", at(60));
        assert_eq!(refused.refusal(), Some(Refusal::Blocked));
        assert_eq!(refused.decided_by(), DecidedBy::Block);
        assert_eq!(refused.retry_after(), Wait::from_micros(10 * S));
    }
    let both = [Check::new(&limit, "ben"), Check::new(&limit, "anna")];
    assert_eq!(store.decide_now(&both, at(60)).refusal(), Some(Refusal::Blocked));
    assert!(take(&store, &limit, "ben", at(60)).allowed());
    assert!(take(&store, &limit, "anna", at(70)).allowed());
    assert!(
        store.block(Key::from("anna"), at(99), at(80)) && store.unblock(Key::from("anna"), at(81))
    );
    assert!(take(&store, &limit, "anna", at(82)).allowed());
}

#[test]
fn of_several_blocks_the_longest_is_told() {
    let store = MemoryStore::new(100);
    let limit = built(Limit::per_minute(100));
    for (key, until) in [("anna", 70), ("ben", 90), ("cleo", 80)] {
        assert!(store.block(Key::from(key), at(until), at(10)));
    }
    for keys in [["anna", "ben", "cleo"], ["ben", "dora", "anna"], ["cleo", "anna", "ben"]] {
        let checks = keys.map(|key| Check::new(&limit, key));
        let refused = store.decide_now(&checks, at(60));
        assert_eq!(
            (refused.refusal(), refused.retry_after()),
            (Some(Refusal::Blocked), Wait::from_micros(30 * S)),
            "{keys:?}"
        );
        // A forced cost has already been spent.
        let forced = checks.map(|check| match check.key == Key::from("ben") {
            true => check.act(Act::Force),
            false => check,
        });
        assert!(
            store.decide_now(&forced, at(60)).retry_after() < Wait::from_micros(30 * S),
            "{keys:?}"
        );
    }
}

#[test]
fn how_long_a_key_is_blocked_can_be_asked() {
    let store = MemoryStore::new(100);
    let blocked = |key: &str, now| store.blocked(Key::from(key), now);
    let left = |us| Some(Wait::from_micros(us));
    assert_eq!(blocked("anna", at(10)), None);
    assert!(store.blocks.get().is_none(), "asking makes no table");
    assert!(store.block(Key::from("anna"), at(70), at(10)));
    assert!(store.block(Key::from("ben"), at(90), at(10)));
    // key, at µs | left
    let rows = [
        ("anna", 10 * S, left(60 * S)),
        ("anna", 70 * S - 1, left(1)),
        ("anna", 70 * S, None),
        ("ben", 70 * S, left(20 * S)),
        ("ben", 90 * S, None),
        ("carla", 20 * S, None),
        ("", 20 * S, None),
    ];
    for (key, at, want) in rows {
        assert_eq!(blocked(key, Micros::new(at)), want, "{key} at {at}");
    }
    assert!(store.unblock(Key::from("ben"), at(20)));
    assert_eq!(blocked("ben", at(20)), None);
    assert_eq!(blocked("anna", at(20)), left(50 * S));
    assert_eq!(store.stats().keys, 0, "a question leaves no state");
}
