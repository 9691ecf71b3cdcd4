//! `simulate --store`: a trace through the real scripts gives what it gives in memory.

use std::fmt::Write as _;

use crate::command::{CommandOutput, run_with};
use testkit::random::SplitMix64;
use testkit::redis::TestRedis as Redis;

/// Requests of a few keys: bursts, pauses, steps back, peeks, costs that fit and that do not.
fn trace(seed: u64, lines: usize) -> String {
    let mut random = SplitMix64::seeded(seed);
    let (mut at, mut trace) = (1_700_000_000_000_000, String::new());
    for _ in 0..lines {
        at = match random.below(10) {
            0..=3 => at,
            4..=7 => at + random.below(400_000),
            8 => at + random.below(5_000_000),
            _ => at - random.below(200_000),
        };
        let (key, cost) = (random.below(4), random.below(5));
        let _ = writeln!(trace, r#"{{"at":{at},"cost":{cost},"key":"k{key}"}}"#);
    }
    trace
}

fn simulate(args: &[&str], trace: &str) -> String {
    let args = [&["simulate"], args].concat();
    let CommandOutput { code, stdout, stderr } = run_with(args, trace);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stdout.lines().count(), trace.lines().count());
    stdout
}

#[test]
fn a_trace_gives_the_same_in_memory_and_through_the_scripts() {
    let redis = Redis::start();
    let rows: [&[&str]; 8] = [
        &["--algorithm", "token_bucket", "--rate", "3/1s", "--burst", "5"],
        &["--algorithm", "leaky_bucket", "--rate", "7/2s", "--burst", "5"],
        &["--algorithm", "leaky_bucket", "--rate", "3/1s", "--burst", "5", "--queue"],
        &["--algorithm", "fixed_window", "--rate", "5/1s"],
        &["--algorithm", "fixed_window", "--rate", "5/1s", "--align", "first_hit"],
        &["--algorithm", "fixed_window", "--rate", "5/1s", "--stagger"],
        &["--algorithm", "sliding_window_log", "--rate", "6/1s"],
        &["--algorithm", "sliding_window_counter", "--rate", "6/1s"],
    ];
    for (seed, limit) in rows.iter().enumerate() {
        let trace = trace(seed as u64 + 1, 400);
        let args = [limit, &["--trace", "-"][..]].concat();
        let memory = simulate(&args, &trace);
        let shared = simulate(&[&args[..], &["--store", &redis.url()]].concat(), &trace);
        let differs = memory.lines().zip(shared.lines()).position(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {}: {limit:?}\n{}", seed + 1, {
            let at = differs.unwrap_or_default();
            format!("{:?}\n{:?}", memory.lines().nth(at), shared.lines().nth(at))
        });
    }
    // Nothing stays, and nothing of one simulation is found by another.
    for key in redis.cli(&["KEYS", "*"]).lines() {
        assert!(key.starts_with("tollgate-simulate-"), "{key}");
        let left: i64 = redis.cli(&["TTL", key]).parse().expect("a number");
        assert!((1..=3_600).contains(&left), "{key}: {left}");
    }
}

#[test]
fn rules_give_the_same_in_memory_and_through_the_scripts() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().expect("a directory");
    let rules = directory.path().join("rules.yaml");
    let text = "rules:\n\
        - { name: api, match: { path: '/api/{*rest}' }, key: '{user|ip}', \
            limits: [3/second, 20/minute], ban: { after: 5, within: 1m, for: 10s } }\n\
        - { name: all, key: global, limits: [{ rate: 50/minute, algorithm: token_bucket, \
            burst: 10 }], mode: shadow }\n\
        - { name: days, key: '{user}', limits: [{ rate: 100/day, algorithm: fixed_window, \
            align: calendar, time_zone: Europe/Berlin }] }\n";
    std::fs::write(&rules, text).expect("a file");
    let mut random = SplitMix64::seeded(7);
    let (mut at, mut trace) = (1_700_000_000_000_000_u64, String::new());
    for _ in 0..400 {
        at += random.below(500_000);
        let (user, path) = (random.below(3), ["/api/a", "/other"][random.below(2) as usize]);
        let _ = writeln!(trace, r#"{{"at":{at},"facts":{{"path":"{path}","user":"{user}"}}}}"#);
    }
    let args = ["--rules", rules.to_str().expect("UTF-8"), "--trace", "-"];
    let memory = simulate(&args, &trace);
    let shared = simulate(&[&args[..], &["--store", &redis.url()]].concat(), &trace);
    assert!(shared.contains(r#""decided_by":"redis""#), "{shared}");
    // It says who decided; all else is the same.
    let shared = shared.replace(r#""decided_by":"redis""#, r#""decided_by":"memory""#);
    for (memory, shared) in memory.lines().zip(shared.lines()) {
        assert_eq!(memory, shared);
    }
}

#[test]
fn files_of_envoyproxy_give_the_same_in_memory_and_through_the_scripts() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().expect("a directory");
    let limits = "descriptors:\n\
        - { key: a, rate_limit: { unit: second, requests_per_unit: 3 } }\n\
        - { key: a, value: b*, share_threshold: true, rate_limit: { unit: minute, requests_per_unit: 9 } }\n\
        - { key: q, quota_mode: true, rate_limit: { unit: second, requests_per_unit: 2 } }\n\
        - { key: s, shadow_mode: true, rate_limit: { unit: second, requests_per_unit: 2 } }\n";
    let mut random = SplitMix64::seeded(11);
    let (mut at, mut trace) = (1_700_000_000_000_000_u64, String::new());
    for _ in 0..300 {
        at += random.below(300_000);
        let entry =
            ["[\"a\",\"x\"]", "[\"a\",\"b1\"]", "[\"a\",\"b2\"]", "[\"q\",\"\"]", "[\"s\",\"\"]"];
        let (entry, cost) = (entry[random.below(5) as usize], random.below(4));
        let facts = format!(r#"{{"domain":"d","entries":[{entry}]}}"#);
        let _ = writeln!(trace, r#"{{"at":{at},"cost":{cost},"facts":{facts}}}"#);
    }
    for top in ["", "count_denied: false\n", "algorithm: token_bucket\n"] {
        let rules = directory.path().join("envoy.yaml");
        std::fs::write(&rules, format!("domain: d\n{top}{limits}")).expect("a file");
        let args = ["--rules", rules.to_str().expect("UTF-8"), "--trace", "-"];
        let memory = simulate(&args, &trace);
        let shared = simulate(&[&args[..], &["--store", &redis.url()]].concat(), &trace);
        assert!(shared.contains(r#""decided_by":"redis""#), "{shared}");
        assert!(shared.contains(r#""allowed":false"#), "{shared}");
        let shared = shared.replace(r#""decided_by":"redis""#, r#""decided_by":"memory""#);
        for (memory, shared) in memory.lines().zip(shared.lines()) {
            assert_eq!(memory, shared, "{top}");
        }
    }
}

#[test]
fn a_store_that_is_not_there_is_an_error_without_its_password() {
    let mut redis = Redis::start();
    let url = redis.url().replace("redis://", "redis://:hunter2@");
    redis.kill();
    let args = ["simulate", "--rate", "1/1s", "--trace", "-", "--store", &url];
    let CommandOutput { code, stdout, stderr } = run_with(args, "{\"at\":0}\n");
    assert_eq!((code, &*stdout), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("cannot reach the store") && !stderr.contains("hunter2"), "{stderr}");
}
