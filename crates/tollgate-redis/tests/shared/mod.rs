//! What tests of the store have in common.

// Each test binary uses its own part of this module.
#![allow(dead_code)]

use std::time::Duration;

use testkit::redis::TestRedis;
use tollgate::{Key, Limit, Micros};
use tollgate_redis::{RedisOptions, RedisStore, StoreUrl};

/// A store that is connected to `server`, patient enough for a busy machine.
pub(crate) async fn store_at(server: &TestRedis, options: RedisOptions) -> RedisStore {
    connected(&StoreUrl::parse(&server.url()).expect("an address"), options).await
}

/// The same, wherever it is.
pub(crate) async fn connected(url: &StoreUrl, options: RedisOptions) -> RedisStore {
    let options = RedisOptions { timeout: Duration::from_secs(20), ..options };
    let store = RedisStore::at(url, &options);
    let limit = Limit::per_second(1).build().expect("a limit");
    let connected = async {
        while store.balance(&limit, Key::from("connected?"), Micros::ZERO).await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), connected).await.expect("a connection");
    store
}

/// Waits until so many units of a key are left: what is given back is so in the background.
pub(crate) async fn until_left(store: &RedisStore, limit: &Limit, key: &str, units: i64) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    loop {
        let left = store.balance(limit, Key::from(key), Micros::ZERO).await.expect("an answer");
        if left == units {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{left} of {key}, not {units}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until something in the background has happened, at most 10 s.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(tokio::time::Instant::now() < deadline, "not in 10 s: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What Redis says to a script, as whole numbers.
pub(crate) fn numbers(server: &TestRedis, script: &str) -> Vec<i64> {
    let said = server.cli(&["EVAL", script, "0"]);
    said.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Fails unless there are at least `grant_min` keys, all of them with a TTL up to `ttl_ms_most`.
pub(crate) fn every_key_expires(server: &TestRedis, least: i64, ttl_ms_most: u64) {
    let script = format!(
        "local without, keys = 0, redis.call('KEYS', '*')
        for _, key in ipairs(keys) do
          local left = redis.call('PTTL', key)
          if left < 0 or left > {ttl_ms_most} then without = without + 1 end
        end
        return {{#keys, without}}"
    );
    let said = numbers(server, &script);
    let [keys, without] = said[..] else { panic!("{said:?}") };
    assert!(keys >= least, "{keys} keys");
    assert_eq!(without, 0, "keys without a TTL");
}
