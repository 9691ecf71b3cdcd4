//! What is stored: values of others and damaged ones harm nobody, everything expires, and no value
//! grows beyond its bound.

use std::time::Duration;

use crate::shared;
use testkit::random::SplitMix64;
use testkit::redis::TestRedis;
use tollgate::{Act, Algorithm, Check, Decision, Key, Limit, Micros, Outcome};
use tollgate_redis::{RedisOptions, RedisStore, TimeSource};

fn limits() -> Vec<Limit> {
    let per = |algorithm| Limit::per_minute(5).algorithm(algorithm);
    let mut limits: Vec<Limit> =
        Algorithm::ALL.into_iter().map(|algorithm| per(algorithm).build().unwrap()).collect();
    limits.push(Limit::per_minute(5).buckets(6).build().unwrap());
    limits
}

async fn decide(store: &RedisStore, check: Check<'_>, now: Micros) -> Decision {
    store.decide_each(&[check], now, &mut [Outcome::default()]).await.expect("an answer")
}

/// The only key of a server.
fn only_key(server: &TestRedis) -> String {
    let keys = server.cli(&["KEYS", "*"]);
    let mut keys = keys.split_whitespace();
    let key = keys.next().expect("a key").to_string();
    assert_eq!(keys.next(), None);
    key
}

/// Ways to spoil the value under a key, each a script of its own.
const SPOILED: [&str; 14] = [
    "redis.call('DEL', KEYS[1]) redis.call('LPUSH', KEYS[1], 'a')",
    "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], 'a', 'b')",
    "redis.call('DEL', KEYS[1]) redis.call('ZADD', KEYS[1], 1, 'b')",
    "redis.call('DEL', KEYS[1]) redis.call('SADD', KEYS[1], 'b')",
    "redis.call('DEL', KEYS[1]) redis.call('XADD', KEYS[1], '*', 'a', 'b')",
    "redis.call('SET', KEYS[1], '1')",
    "redis.call('SET', KEYS[1], 'a value of somebody else, longer than any of ours')",
    "local v = redis.call('GET', KEYS[1]) redis.call('SET', KEYS[1], string.sub(v, 1, -2))",
    "local v = redis.call('GET', KEYS[1]) redis.call('SET', KEYS[1], v .. '!')",
    "local v = redis.call('GET', KEYS[1]) redis.call('SET', KEYS[1], string.sub(v, 1, 9))",
    // Numbers that no state can have, before what is right.
    "local v = redis.call('GET', KEYS[1])
     redis.call('SET', KEYS[1], string.rep('\\255', 14) .. string.sub(v, 15))",
    "local v = redis.call('GET', KEYS[1])
     redis.call('SET', KEYS[1], string.sub(v, 1, 7) .. string.rep('\\255', 7) .. string.sub(v, 15))",
    "redis.call('SET', KEYS[1], string.rep('\\255', 40000))",
    // Sums and instants of a log out of order: what the script could still do sums with.
    "local v = redis.call('GET', KEYS[1])
     local first = struct.pack('<I7I7', 999999999999, 3)
     redis.call('SET', KEYS[1],
       string.sub(v, 1, 17) .. first .. struct.pack('<I7I7', 999999999998, 2) .. string.sub(v, 18))",
];

#[tokio::test]
async fn foreign_and_damaged_values_count_as_nothing() {
    for limit in limits() {
        let server = TestRedis::start();
        let options = RedisOptions { time: TimeSource::Caller, ..RedisOptions::default() };
        let store = shared::store_at(&server, options).await;
        let now = Micros::from_secs(1_000_000);
        for (index, spoil) in SPOILED.into_iter().enumerate() {
            let _ = decide(&store, Check::new(&limit, "ada").cost(5), now).await;
            let refused = decide(&store, Check::new(&limit, "ada"), now).await;
            assert!(!refused.allowed(), "{limit}, {index}: five of five are used");
            let key = only_key(&server);
            let said = server.cli(&["EVAL", &format!("{spoil} return 1"), "1", &key]);
            assert_eq!(said.trim(), "1", "{limit}, {index}");
            let before = store.stats().unreadable;
            // Each act once: none fails, and what cannot be read counts as nothing.
            let peek = decide(&store, Check::new(&limit, "ada").act(Act::Peek), now).await;
            assert_eq!(store.stats().unreadable, before + 1, "{limit}, {index}: not counted");
            assert_eq!((peek.allowed(), peek.remaining()), (true, 5), "{limit}, {index}");
            store.refund(&limit, Key::from("ada"), None, 1, now).await.expect("an answer");
            let balance = store.balance(&limit, Key::from("ada"), now).await.expect("an answer");
            assert_eq!(balance, 5, "{limit}, {index}");
            let taken = decide(&store, Check::new(&limit, "ada").cost(2), now).await;
            assert_eq!((taken.allowed(), taken.remaining()), (true, 3), "{limit}, {index}");
            let next = decide(&store, Check::new(&limit, "ada"), now).await;
            assert_eq!((next.allowed(), next.remaining()), (true, 2), "{limit}, {index}");
            shared::every_key_expires(&server, 1, 3_600_000);
            assert!(store.reset(&limit, Key::from("ada")).await.expect("an answer"));
        }
    }
}

/// Would catch: a debt that the script drains before it looks whether there can be so much, so that it
/// refuses what Rust then reads as nothing used.
#[tokio::test]
async fn a_debt_beyond_all_bounds_counts_as_nothing() {
    for limit in limits().iter().filter(|limit| limit.algorithm().is_bucket()) {
        let server = TestRedis::start();
        let options = RedisOptions { time: TimeSource::Caller, ..RedisOptions::default() };
        let store = shared::store_at(&server, options).await;
        let now = Micros::from_secs(1_000_000);
        let _ = decide(&store, Check::new(limit, "ada"), now).await;
        let debt = tollgate::algorithm::token_bucket::RefillTime::largest(limit).whole + 1;
        let spoil = format!(
            "local v = redis.call('GET', KEYS[1])
            return redis.call('SET', KEYS[1], struct.pack('<I7I7', 999999000000, {debt}) .. string.sub(v, 15))"
        );
        server.tell(&["EVAL", &spoil, "1", &only_key(&server)]);
        for left in (0..5).rev() {
            let taken = decide(&store, Check::new(limit, "ada"), now).await;
            assert_eq!((taken.allowed(), taken.remaining()), (true, left), "{limit}");
        }
        assert!(!decide(&store, Check::new(limit, "ada"), now).await.allowed(), "{limit}");
        assert_eq!(store.stats().unreadable, 1, "{limit}");
    }
}

/// Bytes at random, in part behind a right beginning or before a right end: no answer is an error.
#[tokio::test]
async fn no_value_makes_the_script_fail() {
    let seed = 42;
    let mut random = SplitMix64::seeded(seed);
    let server = TestRedis::start();
    let options = RedisOptions { time: TimeSource::Caller, ..RedisOptions::default() };
    let store = shared::store_at(&server, options).await;
    let client = redis::Client::open(server.url()).unwrap();
    let mut direct = client.get_connection().unwrap();
    for round in 0..3_000 {
        let limit = random.pick(&limits()).clone();
        let now = Micros::new(random.below(1 << 53));
        let _ = decide(&store, Check::new(&limit, "ada").cost(2), now).await;
        let key: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut direct).unwrap();
        let key = key.first().expect("a key").clone();
        let mut value: Vec<u8> = redis::cmd("GET").arg(&key).query(&mut direct).unwrap();
        for _ in 0..random.between(1, 6) {
            let index = random.below(value.len() as u64) as usize;
            value[index] = random.number() as u8;
        }
        if random.one_in(3) {
            value.extend((0..random.below(60)).map(|_| random.number() as u8));
        }
        redis::cmd("SET").arg(&key).arg(&value).exec(&mut direct).unwrap();
        let acts = [Act::Take, Act::Peek, Act::Force, Act::UpTo];
        let check = Check::new(&limit, "ada").cost(random.between(1, 3)).act(*random.pick(&acts));
        let what = format!("seed {seed}, round {round}: {limit}");
        let _ = store.decide_each(&[check], now, &mut [Outcome::default()]).await.expect(&what);
        let at = Micros::new(now.as_u64() + random.below(1 << 30));
        store.refund(&limit, Key::from("ada"), None, 1, at).await.expect(&what);
        let _ = decide(&store, Check::new(&limit, "ada"), at).await;
        redis::cmd("DEL").arg(&key).exec(&mut direct).unwrap();
    }
}

#[tokio::test]
async fn by_its_own_clock_every_key_lives_as_long_as_it_matters() {
    let second = Duration::from_secs(1);
    // A limit, units forced | the least and the most milliseconds that its key may live
    let minute = |algorithm| Limit::per_minute(60).algorithm(algorithm).build().unwrap();
    let rows = [
        (minute(Algorithm::TokenBucket), 1, 60_000, 61_000),
        (minute(Algorithm::LeakyBucket), 60, 60_000, 61_000),
        // In debt by a minute.
        (minute(Algorithm::TokenBucket), 120, 119_000, 121_001),
        (minute(Algorithm::FixedWindow), 1, 60_000, 61_000),
        (minute(Algorithm::SlidingWindowCounter), 1, 120_000, 121_000),
        (minute(Algorithm::SlidingWindowLog), 1, 60_000, 61_000),
        (Limit::per_minute(60).buckets(1).build().unwrap(), 1, 120_000, 121_000),
        (
            Limit::per(1, second * 3_155_760_000).burst(1).build().unwrap(),
            1,
            3_155_759_999_000,
            3_155_760_001_000,
        ),
    ];
    for (limit, units, least, most) in rows {
        let server = TestRedis::start();
        let store = shared::store_at(&server, RedisOptions::default()).await;
        for act in [Act::Force, Act::Take] {
            let check = Check::new(&limit, "ada").cost(units).act(act);
            let _ = decide(&store, check, Micros::ZERO).await;
            let left: i64 = server.cli(&["PTTL", &only_key(&server)]).trim().parse().unwrap();
            // How long ago it was written is how busy this machine is.
            let least = if act == Act::Force { least - 10_000 } else { 0 };
            assert!((least..=most).contains(&left), "{limit}: {left} ms");
        }
    }
}

/// The lengths in `docs/concepts/shared-state.md`.
#[tokio::test]
async fn values_are_as_short_as_the_documents_say() {
    let per = |algorithm| Limit::per_minute(100).algorithm(algorithm);
    // A limit, takes at different instants | bytes
    let rows = [
        (Limit::per_minute(100).burst(20), 5, 24),
        (per(Algorithm::LeakyBucket).burst(20), 5, 24),
        (per(Algorithm::FixedWindow), 5, 24),
        (per(Algorithm::SlidingWindowCounter), 5, 24),
        (per(Algorithm::SlidingWindowLog), 10, 157),
        (per(Algorithm::SlidingWindowLog), 100, 1_417),
        (Limit::per(u64::MAX >> 11, Duration::from_secs(1)).burst(u64::MAX >> 11), 5, 38),
    ];
    for (limit, takes, bytes) in rows {
        let server = TestRedis::start();
        let options = RedisOptions { time: TimeSource::Caller, ..RedisOptions::default() };
        let store = shared::store_at(&server, options).await;
        let limit = limit.build().unwrap();
        for take in 0..takes {
            let _ = decide(&store, Check::new(&limit, "ada"), Micros::new(1_000_000 + take)).await;
        }
        let length: u64 = server.cli(&["STRLEN", &only_key(&server)]).trim().parse().unwrap();
        assert_eq!(length, bytes, "{limit}");
    }
}

/// A log of many instants keeps its bound, and what it says is what memory says; the reply of a
/// decision about it stays small.
#[tokio::test]
async fn a_long_log_is_bounded_and_exact() {
    let server = TestRedis::start();
    let options = RedisOptions { time: TimeSource::Caller, ..RedisOptions::default() };
    let store = shared::store_at(&server, options).await;
    let memory = tollgate::MemoryStore::new(1_000);
    let limit = Limit::per_hour(2_000).algorithm(Algorithm::SlidingWindowLog).build().unwrap();
    let mut random = SplitMix64::seeded(7);
    let (mut now, mut receipts, mut longest) = (Micros::from_secs(1_000_000), Vec::new(), 0);
    for step in 0..6_000 {
        now = Micros::new(now.as_u64() + random.below(3_000_000));
        let cost = random.between(1, 3);
        let check = Check::new(&limit, "ada").cost(cost);
        let check = if random.one_in(9) { check.act(Act::Peek) } else { check };
        let check = if random.one_in(50) { check.act(Act::Force) } else { check };
        let here = memory.decide_one(&check, now);
        let there = decide(&store, check, now).await;
        let summary = |one: &Decision| {
            let waits = (one.retry_after(), one.reset_after(), one.more_after());
            (one.allowed(), one.remaining(), waits)
        };
        assert_eq!(summary(&there), summary(&here), "step {step}");
        if here.granted() > 0 {
            receipts.push((here.receipt(), there.receipt()));
        }
        if random.one_in(10) && !receipts.is_empty() {
            let index = random.below(receipts.len() as u64) as usize;
            let (here, there) = receipts.swap_remove(index);
            memory.refund(&limit, Key::from("ada"), Some(here), 1, now);
            store.refund(&limit, Key::from("ada"), Some(there), 1, now).await.expect("an answer");
        }
        if step % 60 == 59 {
            let length: i64 = server.cli(&["STRLEN", &only_key(&server)]).trim().parse().unwrap();
            longest = length.max(longest);
        }
    }
    // Fewer than 1,024 entries of 14 bytes, and 14 + 5 before them.
    assert!((960 * 14..1_024 * 14 + 19).contains(&longest), "{longest}");
    assert_eq!(store.stats().mismatches, 0);
}
