//! The script by itself, at instants of our choosing, with states kept as long as by its own clock.

use std::sync::Arc;

use testkit::random::SplitMix64;
use testkit::redis::TestRedis;
use tollgate::Algorithm;

use super::*;
use crate::script::state::{DecodedState, decode};

/// Whatever is charged, forced and given back, and whenever: no call fails, and what is stored is kept
/// for as long as it matters.
#[test]
fn every_state_is_kept_for_as_long_as_it_matters() {
    let server = TestRedis::start();
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    for (number, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        let limit = Limit::per_second(4).algorithm(algorithm).build().unwrap();
        let described: Arc<[u8]> = describe(&limit, TimeSource::Server, Micros::ZERO).into();
        let seed = 40 + number as u64;
        let (mut random, mut now) = (SplitMix64::seeded(seed), 1_700_000_000_000_000);
        for step in 0..2_000 {
            now += random.below(4_000_000);
            // Now and then the clock of another server, somewhat behind.
            let at = if random.one_in(9) { now - random.below(900_000) } else { now };
            let units = random.between(1, 40);
            let charged_at = random.one_in(2).then(|| Micros::new(at - random.below(500_000)));
            let asked = StoredCheck {
                check: tollgate::Check::new(&limit, "k").cost(units),
                limit: &limit,
                twin: 0,
            };
            let force = StoredCheck { check: asked.check.act(Act::Force), limit: &limit, twin: 0 };
            let body = match random.below(4) {
                0 => None,
                1 => Some(decide(&[asked], &[0], 1)),
                2 => Some(decide(&[force], &[0], 1)),
                _ => Some(refund(&limit, units, charged_at)),
            };
            let (keys, limits) = (vec![b"k".to_vec()], vec![described.clone()]);
            let call = ScriptCall { slot: 0, keys, limits, body, now: Some(at) };
            let mut together = redis::pipe();
            together.atomic().add_command(eval(&[call]).to_redis_crate());
            together.cmd("GET").arg("k").cmd("PTTL").arg("k");
            let what = format!("{algorithm}, seed {seed}, step {step}");
            let (_, value, left): (redis::Value, Option<Vec<u8>>, i64) =
                together.query(&mut connection).expect(&what);
            let Some(value) = value else { continue };
            let DecodedState::SameNumbers(state) = decode(&limit, &value) else {
                panic!("{what}: no state")
            };
            let reset = tollgate::algorithm::judge(&limit, &state, 0, Micros::new(at)).reset_after;
            let matters = reset.as_micros().unwrap().div_ceil(1_000) as i64;
            assert!(left >= matters, "{what}: kept {left} ms of {matters}");
        }
        let _: redis::Value = redis::cmd("DEL").arg("k").query(&mut connection).unwrap();
    }
}

/// What somebody else wrote is not sent around, however long it is, and charged over.
#[test]
fn a_huge_value_of_others_stays_where_it_is() {
    let server = TestRedis::start();
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let limits =
        Algorithm::ALL.map(|algorithm| Limit::per_second(4).algorithm(algorithm).build().unwrap());
    for limit in &limits {
        let described: Arc<[u8]> = describe(limit, TimeSource::Server, Micros::ZERO).into();
        let asked = StoredCheck { check: tollgate::Check::new(limit, "k").cost(2), limit, twin: 0 };
        let swapped = [(&StoredValue::Foreign, &Some((b"new".to_vec(), 1_000)))];
        let bodies = [
            None,
            Some(decide(&[asked], &[0], 1)),
            Some(refund(limit, 1, None)),
            Some(read_values(1)),
            Some(swap(swapped.into_iter(), None)),
        ];
        for length in [14 + 17 + 1_024 * 14 + 1, 50 << 20] {
            redis::cmd("SET").arg("k").arg(vec![b'a'; length]).exec(&mut connection).unwrap();
            for body in bodies.clone() {
                let (keys, limits) = (vec![b"k".to_vec()], vec![described.clone()]);
                let call = ScriptCall { slot: 0, keys, limits, body, now: None };
                let reply = eval(&[call]).to_redis_crate().query(&mut connection).unwrap();
                let reply = RedisValue::from_redis_crate(reply);
                let reply = ScriptReply::read(split(reply, 1).remove(0).unwrap()).unwrap();
                assert_eq!(reply.stored_values, [StoredValue::Foreign], "{limit}");
            }
            let value: Vec<u8> = redis::cmd("GET").arg("k").query(&mut connection).unwrap();
            assert_eq!(value, b"new", "{limit}");
        }
    }
}

/// Runs calls together; the reply to each.
fn run_together(connection: &mut redis::Connection, calls: &[ScriptCall]) -> Vec<ScriptReply> {
    let reply = eval(calls).to_redis_crate().query(connection).expect("a reply");
    let parts = split(RedisValue::from_redis_crate(reply), calls.len());
    parts.into_iter().map(|part| ScriptReply::read(part.unwrap()).unwrap()).collect()
}

/// Would catch: a value that MGET does not show, charged over without a word.
#[test]
fn a_value_that_is_no_string_is_noticed_among_others() {
    let server = TestRedis::start();
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    for algorithm in Algorithm::ALL {
        let limit = Limit::per_hour(4).algorithm(algorithm).build().unwrap();
        let described: Arc<[u8]> = describe(&limit, TimeSource::Server, Micros::ZERO).into();
        let call = |key: &str| {
            let (keys, limits) = (vec![key.as_bytes().to_vec()], vec![described.clone()]);
            ScriptCall { slot: 0, keys, limits, body: None, now: None }
        };
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
        redis::cmd("RPUSH").arg("list").arg("x").exec(&mut connection).unwrap();
        let replies = run_together(&mut connection, &["a", "list", "b", "list"].map(call));
        let refused: Vec<_> = replies.iter().map(|reply| reply.refused).collect();
        assert_eq!(refused, [Some(0), None, Some(0), None], "{algorithm}");
        assert_eq!(replies[1].stored_values, [StoredValue::Foreign], "{algorithm}");
        let length: usize = redis::cmd("LLEN").arg("list").query(&mut connection).unwrap();
        assert_eq!(length, 1, "{algorithm}: nothing was changed");
    }
}

/// Would catch: requests for one key in one call that do not see each other's charges, or in another order.
#[test]
fn requests_for_one_key_in_one_call_are_decided_in_order() {
    let server = TestRedis::start();
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    for algorithm in Algorithm::ALL {
        let limits = [("few", 4), ("many", 9)]
            .map(|(name, n)| Limit::per_hour(n).name(name).algorithm(algorithm));
        let limits = limits.map(|limit| limit.build().unwrap());
        let two = |limit| {
            let check = tollgate::Check::new(limit, "k").cost(2);
            decide(&[StoredCheck { check, limit, twin: 0 }], &[0], 1)
        };
        let call = |(key, limit, units): (&str, usize, u64)| {
            let described = describe(&limits[limit], TimeSource::Server, Micros::ZERO).into();
            let body = (units == 2).then(|| two(&limits[limit]));
            let (keys, limits) = (vec![key.as_bytes().to_vec()], vec![described]);
            ScriptCall { slot: 0, keys, limits, body, now: Some(1_700_000_000_000_000) }
        };
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
        // Key, limit, units: single units alone, with others, and of another limit in between.
        let asked = [
            ("a", 0, 1),
            ("b", 0, 1),
            ("c", 1, 1),
            ("a", 0, 1),
            ("b", 0, 2),
            ("a", 0, 1),
            ("b", 0, 2),
            ("a", 0, 1),
            ("b", 0, 1),
            ("a", 0, 1),
            ("c", 1, 1),
            ("b", 0, 1),
        ];
        let replies = run_together(&mut connection, &asked.map(call));
        let refused: Vec<_> = replies.iter().map(|reply| reply.refused == Some(1)).collect();
        let expected = [6, 9, 11];
        let expected: Vec<_> = (0..asked.len()).map(|nth| expected.contains(&nth)).collect();
        assert_eq!(refused, expected, "{algorithm}");
        // The state that each request for "a" found holds the charges before it.
        let found = |nth: usize| replies[nth].stored_values[0].clone();
        let first = [0, 3, 5, 7].map(found);
        assert_eq!(first[0], StoredValue::Nothing, "{algorithm}");
        assert!(first.windows(2).all(|pair| pair[0] != pair[1]), "{algorithm}: {first:?}");
    }
}
