//! `CL.THROTTLE` and the rules on a store that several servers share.

use std::time::Duration;

use testkit::fault_proxy::{FaultMode, FaultProxy};
use testkit::redis::TestRedis as Store;
use testkit::wait;

use crate::harness::{TollgateProcess, file, text};
use crate::resp::resp_client::{RespReply, RespTestClient, command};

const PATIENT: [&str; 2] = ["--store-timeout", "1s"];

fn start(store: &str, flags: &[&str]) -> TollgateProcess {
    TollgateProcess::start(&[&["--store", store, "--limit", "50/hour"], flags].concat())
}

/// How many of these calls pass, and that each has its reply.
fn passed(redis: &mut RespTestClient, calls: usize) -> usize {
    let replies = (0..calls).map(|_| match redis.receive() {
        RespReply::Array(numbers) => numbers[0] == RespReply::Integer(0),
        other => panic!("{other:?}"),
    });
    replies.filter(|passed| *passed).count()
}

#[test]
fn servers_count_together_and_a_pipeline_is_one_exchange() {
    let store = Store::start();
    let servers = [start(&store.url(), &PATIENT), start(&store.url(), &PATIENT)];
    let mut clients = servers.each_ref().map(RespTestClient::connect);
    let call = command(&["CL.THROTTLE", "k", "99", "1", "86400"]);
    let mut allowed = 0;
    for client in &mut clients {
        client.send(&call.repeat(80));
    }
    for client in &mut clients {
        allowed += passed(client, 80);
    }
    assert_eq!(allowed, 100);
    // Replies come in the order of their calls.
    let one = command(&["CL.THROTTLE", "other", "29", "1", "86400"]);
    clients[0].send(&one.repeat(30));
    for turn in 0..30 {
        let RespReply::Array(numbers) = clients[0].receive() else { panic!("no array") };
        assert_eq!(numbers[..3], [0, 30, 29 - turn].map(RespReply::Integer));
    }
    // So do those of questions to the rules, with mistakes and calls between them.
    let question = command(&["TG.CHECK", "user", "1"]);
    let mistake = command(&["TG.CHECK", "usr", "1"]);
    clients[1].send(&[question.repeat(10), mistake, question.repeat(3), one, question].concat());
    for turn in 0..16 {
        let reply = clients[1].receive();
        match (turn, &reply) {
            (10, reply) => assert!(reply.error().starts_with("ERR there is no field 'usr'")),
            (14, RespReply::Array(numbers)) => assert_eq!(numbers.len(), 5),
            (_, RespReply::Array(parts)) => {
                let asked = turn - i64::from(turn > 10) - i64::from(turn > 14);
                assert_eq!(parts[..3], [0, 50, 49 - asked].map(RespReply::Integer), "{turn}");
            }
            (_, other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn whatever_the_store_does_there_is_an_answer_in_time() {
    let store = Store::start();
    let proxy = FaultProxy::start(store.address());
    let server = start(&proxy.url(), &["--store-timeout", "50ms"]);
    let mut redis = RespTestClient::connect(&server);
    let call = command(&["CL.THROTTLE", "k", "4", "1", "86400"]);
    let slow = Duration::from_millis(500);
    for mode in [
        FaultMode::Delay { by: slow, jitter: slow },
        FaultMode::BlackHole,
        FaultMode::Garbage,
        FaultMode::Refuse,
    ] {
        proxy.set_mode(mode);
        let began = wait::now();
        redis.send(&call.repeat(256));
        assert!(passed(&mut redis, 256) <= 5, "{mode:?}");
        let RespReply::Array(_) = redis.say("TG.CHECK user 1") else { panic!("{mode:?}") };
        // Four batches of 64 and one question, each within the deadline, on a machine that is busy.
        assert!(wait::now() - began < Duration::from_secs(5), "{mode:?}");
    }
}

#[test]
fn a_reset_that_did_not_reach_the_store_is_an_error_and_one_that_did_counts_at_once() {
    let mut store = Store::start();
    let rules = "tiers: { pro: { multiplier: 5 } }\n\
        rules: [{ name: api, key: '{user}', tiered: true, limits: [10/day] }]\n";
    let directory = tempfile::tempdir().expect("a directory");
    let rules = file(directory.path(), "rules.yaml", rules);
    let flags = ["--store", &store.url(), "--rules", text(&rules)];
    let server = TollgateProcess::start(&[&flags[..], &PATIENT].concat());
    let mut redis = RespTestClient::connect(&server);
    let refused = |redis: &mut RespTestClient, cost: u32| match redis
        .say(&format!("TG.CHECK user 1 tier pro cost {cost}"))
    {
        RespReply::Array(parts) => parts[0] == RespReply::Integer(1),
        other => panic!("{other:?}"),
    };
    assert!(!refused(&mut redis, 50));
    // The store is asked the first time, and this server remembers.
    assert!(refused(&mut redis, 1) && refused(&mut redis, 1));
    assert_eq!(redis.say("TG.RESET api user=1"), RespReply::Integer(1));
    assert!(!refused(&mut redis, 1));
    store.kill();
    let reply = redis.say("TG.RESET api user=1");
    assert!(reply.error().starts_with("ERR the store is unavailable"), "{reply:?}");
    store.restart();
    wait::until_true("a reset", || {
        matches!(redis.say("TG.RESET api user=1"), RespReply::Integer(_))
    });
}
