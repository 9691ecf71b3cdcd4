//! Faults of the server itself, and of clocks: C18, C19.

use std::time::Duration;

use testkit::redis;
use testkit::wait;

use crate::faults::one_node::{errors, server_on, wait_until_up};
use crate::harness::{TollgateProcess, file, text};

/// Killed under load and started again: what the store has counted is there, and it is ready at once.
#[test]
fn c19_killed_and_started_again() {
    let redis = redis::TestRedis::start();
    let folder = tempfile::tempdir().expect("a folder");
    let rules = "rules: [{ name: day, key: '{user}', limits: [{ rate: 50/day, algorithm: fixed_window }] }]";
    let rules = file(folder.path(), "rules.yaml", rules);
    let url = redis.url();
    let start = || TollgateProcess::start(&["--rules", text(&rules), "--store", &url]);
    let server = start();
    wait::until_true("a decision by the store", || {
        server.check(r#"{"user":"first"}"#)["decided_by"] == "redis"
    });
    for _ in 0..30 {
        assert_eq!(server.check(r#"{"user":"anna"}"#)["decided_by"], "redis");
    }
    server.signal("KILL");
    drop(server);
    let began = wait::now();
    let server = start();
    let ready = wait::now() - began;
    wait::until_true("a decision by the store", || {
        server.check(r#"{"user":"second"}"#)["decided_by"] == "redis"
    });
    assert!(ready < Duration::from_secs(3), "{ready:?}");
    let mut admitted = 0;
    while server.check(r#"{"user":"anna"}"#)["allowed"] == true {
        admitted += 1;
    }
    assert_eq!(admitted, 20);
}

/// Redis is not there when the server starts: it serves at once, and finds Redis when it comes.
#[test]
fn starts_without_redis() {
    let mut redis = redis::TestRedis::start();
    redis.kill();
    let folder = tempfile::tempdir().expect("a folder");
    let rules = file(folder.path(), "rules.yaml", crate::faults::load::RULES);
    let server = TollgateProcess::start(&["--rules", text(&rules), "--store", &redis.url()]);
    for policy in crate::faults::load::FaultPolicy::ALL {
        let body = format!(r#"{{"path":"/{}","user":"anna"}}"#, policy.name());
        assert_eq!(server.check(&body)["decided_by"], policy.name());
    }
    assert_eq!(server.admin_get("/readyz", &[]).status, 503, "a rule refuses without the store");
    redis.restart();
    wait_until_up(&server);
    wait::until_true("readiness", || server.admin_get("/readyz", &[]).status == 200);
}

/// A password that is missing or wrong is told as such, not as a connection that ended.
#[test]
fn a_wrong_password_is_told() {
    let redis = redis::TestRedis::with(&["--requirepass", "open"]);
    for login in ["", "u:wrong@", ":wrong@"] {
        let url = format!("redis://{login}{}", redis.address());
        let server = TollgateProcess::start(&["--limit", "5/minute", "--store", &url]);
        wait::until_true("noauth", || errors(&server, "noauth") > 0.0);
        assert_eq!(server.check(r#"{"user":"anna"}"#)["decided_by"], "local");
        let logged = server.stop().stderr;
        assert!(!logged.contains("wrong"), "{logged}");
    }
}

/// Two servers whose clocks differ by five seconds, one store: together they admit what one would.
#[test]
fn c18_clocks_of_instances_do_not_matter() {
    // The servers take the time of the store; a clock of their own that differs cannot be given to a
    // process without a library in its way, so it is given to the stores in tollgate-redis. Here: two
    // processes admit exactly the limit together.
    let redis = redis::TestRedis::start();
    let servers = [server_on(&redis.url()), server_on(&redis.url())];
    let mut admitted = 0;
    for turn in 0..60 {
        let answer = servers[turn % 2].check(r#"{"path":"/closed","user":"both"}"#);
        admitted += u32::from(answer["allowed"] == true);
    }
    assert!(
        (20..=24).contains(&admitted),
        "{admitted} of a burst of 20 and what came back meanwhile"
    );
}
