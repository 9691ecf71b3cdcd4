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
