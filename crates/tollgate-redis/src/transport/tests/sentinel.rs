//! A primary that sentinels name, and its successor.

use std::time::Duration;

use testkit::redis::TestRedisSentinels;
use testkit::wait;

use super::*;

#[test]
fn a_successor_is_found_and_a_former_primary_left() {
    let mut redis = TestRedisSentinels::start();
    // One of the sentinels is not there: the others are asked.
    redis.sentinel_mut(0).kill();
    let store = CountingStore::at(&redis.url(), PLENTY);
    assert_eq!(store.add("a").unwrap(), 1);
    let first = redis.data()[0].address().to_string();
    assert_eq!(store.link.stats().nodes[0].address, first);
    redis.sentinel_mut(0).restart();

    redis.data_mut(0).kill();
    let killed = wait::now();
    store.until_answered("b");
    let took = wait::now() - killed;
    assert!(took < Duration::from_secs(10), "{took:?}");
    let second = store.link.stats().nodes[0].address.clone();
    assert_ne!(second, first);

    // Another is promoted while the present one is well and lets us stay.
    wait::until_true("a failover to be agreed to", || {
        redis.sentinels()[1].cli(&["SENTINEL", "FAILOVER", testkit::redis::PRIMARY_NAME]) == "OK"
    });
    wait::until_true("the successor", || {
        store.until_answered("c");
        store.link.stats().nodes[0].address != second
    });
}

#[test]
fn a_name_that_no_sentinel_knows_is_told() {
    let redis = TestRedisSentinels::start();
    let url = redis.url().replace(testkit::redis::PRIMARY_NAME, "nobody");
    let store = CountingStore::at(&url, PLENTY);
    let error = store.until_class(ErrorClass::Connect);
    assert!(error.detail.contains("nobody"), "{error}");
}
