//! What a decision costs the server: run by hand, see `docs/concepts/shared-state.md`.
//!
//! `cargo nextest run --cargo-profile ci -p tollgate-redis --run-ignored only --no-capture -E 'test(cost)'`

use std::sync::Arc;

use redis::{Cmd, Connection, Pipeline};
use testkit::redis::TestRedisLaunch;
use tollgate::{Algorithm, Limit, Micros};
use tollgate_shared::TimeSource;

use crate::options::RedisOptions;
use crate::script;
use crate::script::call::ScriptCall;
use crate::script::keys::RedisKeyNamer;

/// The token bucket that most programs begin with.
const NAIVE: &str = "local s = redis.call('HMGET', KEYS[1], 't', 'm')
local rate, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local tokens, mark = tonumber(s[1]) or burst, tonumber(s[2]) or now
tokens = math.min(burst, tokens + math.max(0, now - mark) * rate / 1000000)
local ok = 0
if tokens >= cost then tokens = tokens - cost ok = 1 end
redis.call('HMSET', KEYS[1], 't', tokens, 'm', now)
redis.call('EXPIRE', KEYS[1], math.ceil(burst / rate) + 1)
return {ok, math.floor(tokens)}";

const KEYS: usize = 100_000;
const DECISIONS: usize = 192_000;

fn cpu_us(connection: &mut Connection) -> f64 {
    let info: String = redis::cmd("INFO").arg("cpu").query(connection).unwrap();
    let field = |name: &str| -> f64 {
        let line = info.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_once(':').unwrap().1.trim().parse().unwrap()
    };
    (field("used_cpu_user:") + field("used_cpu_sys:")) * 1e6
}

/// Sends commands, 16 at a time; returns the server's microseconds per decision.
fn measure(
    connection: &mut Connection,
    per_call: usize,
    mut command: impl FnMut(usize) -> Cmd,
) -> f64 {
    let before = cpu_us(connection);
    for round in 0..DECISIONS / per_call / 16 {
        let mut pipeline = Pipeline::new();
        for index in 0..16 {
            pipeline.add_command(command((round * 16 + index) * per_call)).ignore();
        }
        pipeline.query::<()>(connection).unwrap();
    }
    (cpu_us(connection) - before) / DECISIONS as f64
}

#[test]
#[ignore = "a measurement"]
fn cost_of_a_decision() {
    let server = TestRedisLaunch::new().on_core(1).start();
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let _: String = script::load().to_redis_crate().query(&mut connection).unwrap();
    let naive: String = redis::cmd("SCRIPT").arg("LOAD").arg(NAIVE).query(&mut connection).unwrap();
    let names = RedisKeyNamer::new(&RedisOptions::default(), None);
    for algorithm in Algorithm::ALL {
        let mut builder = Limit::per_minute(100).algorithm(algorithm);
        if algorithm.is_bucket() {
            builder = builder.burst(20);
        }
        let limit = builder.build().unwrap();
        let described: Arc<[u8]> =
            script::describe(&limit, TimeSource::Server, Micros::from_secs(1_700_000_000)).into();
        let cost = measure(&mut connection, 1, |at| {
            let key = format!("naive:{}", at * 7919 % KEYS);
            redis::cmd("EVALSHA").arg(&naive).arg(1).arg(key).arg("2").arg("20").arg("1").take()
        });
        println!("naive, 1 per call: {cost:.2} us");
        for per_call in [1, 4, 16, 64] {
            let cost = measure(&mut connection, per_call, |at| {
                let call = |at: usize| {
                    let name = format!("user:{}", at * 7919 % KEYS);
                    let keys = vec![names.key(names.subject(name.as_bytes()), &limit, 0)];
                    let limits = vec![Arc::clone(&described)];
                    ScriptCall { slot: 0, keys, limits, body: None, now: None }
                };
                let calls = (at..at + per_call).map(call).collect::<Vec<_>>();
                script::assemble(&calls).to_redis_crate()
            });
            println!("{algorithm}, {per_call} per call: {cost:.2} us");
        }
    }
}
