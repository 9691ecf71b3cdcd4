//! A primary that sentinels name, and its successor.

use std::time::Duration;

use testkit::redis::TestRedisSentinels;
use testkit::wait;

use super::*;

/// Time until the sentinels have agreed on a successor. An election that nobody wins is repeated after six seconds, and how
/// many of them there are is left to chance.
const ELECTIONS_MAX: Duration = Duration::from_secs(90);

/// The time that the store may take to follow the sentinels.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(10);

/// Waits until a sentinel names another primary than the former ones. A sentinel that was away may name one of them for a
/// while. Meanwhile the store is asked all the time, and `urge` is called.
fn wait_for_successor(
    redis: &TestRedisSentinels,
    store: &CountingStore,
    former: &[u16],
    urge: impl Fn(),
) {
    let named = || {
        let _ = store.add("meanwhile");
        let mut ports = (0..redis.sentinels().len()).filter_map(|one| redis.primary_port(one));
        let is_named = ports.any(|named| !former.contains(&named));
        if !is_named {
            urge();
        }
        is_named.then_some(())
    };
    wait::within(ELECTIONS_MAX, named).expect("the sentinels agree on a successor");
}

/// Waits until the store asks another server than before, and returns that one's address.
fn follow(store: &CountingStore, before: &str) -> String {
    let named = wait::now();
    let address = wait::until("the successor", || {
        store.add("a").ok()?;
        let address = store.link.stats().nodes[0].address.clone();
        (address != before).then_some(address)
    });
    let took = wait::now() - named;
    println!("the store followed the sentinels after {took:?}");
    assert!(took < FOLLOWS_WITHIN, "{took:?}");
    address
}

fn port_of(address: &str) -> u16 {
    address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("an address with a port")
}

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
    wait_for_successor(&redis, &store, &[port_of(&first)], || ());
    let second = follow(&store, &first);

    // Another is promoted while the present one is well and lets us stay. A replica that is not promoted in time is given
    // up, and the command has to be repeated.
    let former = [port_of(&first), port_of(&second)];
    wait_for_successor(&redis, &store, &former, || {
        let _ = redis.sentinels()[1].cli(&["SENTINEL", "FAILOVER", testkit::redis::PRIMARY_NAME]);
    });
    follow(&store, &second);
}

#[test]
fn a_name_that_no_sentinel_knows_is_told() {
    let redis = TestRedisSentinels::start();
    let url = redis.url().replace(testkit::redis::PRIMARY_NAME, "nobody");
    let store = CountingStore::at(&url, PLENTY);
    let error = store.until_class(ErrorClass::Connect);
    assert!(error.detail.contains("nobody"), "{error}");
}
