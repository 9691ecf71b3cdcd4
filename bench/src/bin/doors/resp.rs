//! The RESP part: CL.THROTTLE next to Redis with commands and scripts for the same purpose.

use std::net::SocketAddr;
use std::process::Command;
use std::rc::Rc;

use testkit::redis::TestRedisLaunch;
use testkit::traffic::resp_command;
use tollgate_bench::generator;
use tollgate_bench::generator::requests::EncodedRequests;
use tollgate_bench::generator::resp::{ExpectedReply, RespLoadClient, ask};
use tollgate_bench::process::SERVER_CORE;
use tollgate_bench::scripts::{GCRA, TOKEN_BUCKET};

use crate::part::{
    self, ConnectionShape, LaunchPaths, ListenerCase, ListenerPart, ListenerTarget, TOLLGATE,
};

pub(crate) const ECHO: &str = "bare echo";
pub(crate) const INCR: &str = "Redis INCR";
pub(crate) const CELL: &str = "redis-cell in Lua";
pub(crate) const BUCKET: &str = "token bucket in Lua";

pub(crate) const ONE: ConnectionShape = ConnectionShape { connections: 16, in_flight: 1 };
pub(crate) const MANY: ConnectionShape = ConnectionShape { connections: 50, in_flight: 1 };
pub(crate) const PIPELINE_16: ConnectionShape = ConnectionShape { connections: 16, in_flight: 16 };
pub(crate) const PIPELINE_64: ConnectionShape = ConnectionShape { connections: 16, in_flight: 64 };
const SHAPES: [ConnectionShape; 4] = [ONE, MANY, PIPELINE_16, PIPELINE_64];

/// A quota that is never exhausted: the capacity (CL.THROTTLE adds one) and the units per second.
const ROOM: &str = "10000";

/// The beginning of an allowing reply of five numbers: the first is 0.
const ALLOWED_OF_5: ExpectedReply = ExpectedReply { begins: b"*5\r\n:0\r\n", lines: 4 };
/// The beginning of an allowing reply of two numbers: the first is 1.
const ALLOWED_OF_2: ExpectedReply = ExpectedReply { begins: b"*2\r\n:1\r\n", lines: 1 };
const NUMBER: ExpectedReply = ExpectedReply { begins: b":", lines: 1 };

pub(crate) fn start(place: &LaunchPaths<'_>) -> ListenerPart {
    let mut part = ListenerPart::new("Redis protocol", ECHO);
    let throttle = |key: &str| resp_command(&["CL.THROTTLE", key, ROOM, ROOM, "1"]);
    part.add_process(ECHO, part::start_bench_server(place, "bare-resp", &[], "resp"), |target| {
        Ok(cases(ECHO, target, ALLOWED_OF_5, throttle))
    });
    part.add_process(TOLLGATE, part::start_tollgate(place, "resp"), |target| {
        check_it_throttles(|key, [burst, count, period, quantity]| {
            ask(target.address, &["CL.THROTTLE", key, burst, count, period, quantity])
        })?;
        Ok(cases(TOLLGATE, target, ALLOWED_OF_5, throttle))
    });
    redis(&mut part);
    part.sort(&SHAPES);
    part
}

/// Adds one Redis server under three contestants.
fn redis(part: &mut ListenerPart) {
    if Command::new("redis-server").arg("--version").output().is_err() {
        part.problems.push(
            "redis-server is not installed; run as root: apt-get install redis-server".into(),
        );
        return;
    }
    let server = TestRedisLaunch::new().on_core(SERVER_CORE).start();
    let target = ListenerTarget { address: server.address(), server: server.pid() };
    part.keep_redis(server);
    let incr = |key: &str| resp_command(&["INCR", &key.replace("user", "incr")]);
    part.add(INCR, Ok(cases(INCR, target, NUMBER, incr)));
    part.add(CELL, {
        script(target.address, GCRA).and_then(|sha| {
            check_it_throttles(|key, [burst, count, period, quantity]| {
                ask(target.address, &["EVALSHA", &sha, "1", key, burst, count, period, quantity])
            })?;
            let throttle = |key: &str| {
                let key = key.replace("user", "cell");
                resp_command(&["EVALSHA", &sha, "1", &key, ROOM, ROOM, "1", "1"])
            };
            Ok(cases(CELL, target, ALLOWED_OF_5, throttle))
        })
    });
    part.add(BUCKET, {
        script(target.address, TOKEN_BUCKET).map(|sha| {
            let take = |key: &str| {
                let key = key.replace("user", "hash");
                resp_command(&["EVALSHA", &sha, "1", &key, ROOM, ROOM, "1"])
            };
            cases(BUCKET, target, ALLOWED_OF_2, take)
        })
    });
}

/// Loads a script and returns its SHA-1 digest of 40 digits.
fn script(address: SocketAddr, text: &str) -> Result<String, String> {
    let sha = ask(address, &["SCRIPT", "LOAD", text])?;
    if sha.len() == 40 { Ok(sha) } else { Err(format!("the script is not taken: {sha}")) }
}

/// One case for each shape; `request` writes a command about a key.
fn cases(
    who: &'static str,
    target: ListenerTarget,
    reply: ExpectedReply,
    request: impl Fn(&str) -> String,
) -> Vec<ListenerCase> {
    part::cases(who, &SHAPES, |shape| {
        let requests = Rc::new(EncodedRequests::generate(shape.in_flight, |callers| {
            let commands = callers.iter().map(|caller| request(&format!("user:{caller:07}")));
            commands.collect::<String>()
        }));
        move |span| {
            generator::measure(&target.load(shape, span), |index| {
                RespLoadClient::new(&requests, reply, index)
            })
        }
    })
}

/// Checks that a server limits as redis-cell does, by redis-cell's replies to the same calls on a new key. A
/// server that limits nothing would look fast.
fn check_it_throttles(
    ask: impl Fn(&str, [&str; 4]) -> Result<String, String>,
) -> Result<(), String> {
    const CALLS: [(&str, [&str; 4], &str); 13] = [
        ("a", ["15", "30", "60", "1"], "[0,16,15,-1,2]"),
        ("a", ["15", "30", "60", "1"], "[0,16,14,-1,4]"),
        ("b", ["4", "5", "60", "0"], "[0,5,5,-1,0]"),
        ("b", ["4", "5", "60", "1"], "[0,5,4,-1,12]"),
        ("b", ["4", "5", "60", "1"], "[0,5,3,-1,24]"),
        ("b", ["4", "5", "60", "1"], "[0,5,2,-1,36]"),
        ("b", ["4", "5", "60", "1"], "[0,5,1,-1,48]"),
        ("b", ["4", "5", "60", "1"], "[0,5,0,-1,60]"),
        ("b", ["4", "5", "60", "1"], "[1,5,0,12,60]"),
        ("c", ["4", "5", "60", "3"], "[0,5,2,-1,36]"),
        ("c", ["4", "5", "60", "3"], "[1,5,2,12,36]"),
        ("c", ["4", "5", "60", "2"], "[0,5,0,-1,60]"),
        ("d", ["4", "1", "1", "6"], "[1,5,5,-1,0]"),
    ];
    for (key, words, expected) in CALLS {
        let reply = ask(key, words)?;
        if reply != expected {
            let words = words.join(" ");
            return Err(format!(
                "it answers `{key} {words}` with {reply}, redis-cell with {expected}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_does_as_redis_cell() {
        let server = TestRedisLaunch::new().start();
        let sha = script(server.address(), GCRA).unwrap();
        let ask = |key: &str, [burst, count, period, quantity]: [&str; 4]| {
            ask(server.address(), &["EVALSHA", &sha, "1", key, burst, count, period, quantity])
        };
        assert_eq!(check_it_throttles(ask), Ok(()));
        // A server that limits nothing is detected.
        assert!(check_it_throttles(|_, _| Ok("[0,16,15,-1,2]".into())).is_err());
    }
}
