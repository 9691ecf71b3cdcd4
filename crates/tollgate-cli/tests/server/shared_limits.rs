//! Several servers on one store decide as if they were one; without it each goes on.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;
use testkit::fault_proxy::{FaultMode, FaultProxy};
use testkit::history::{BucketBound, ObservedCall, never_above, not_below};
use testkit::redis::TestRedis as Redis;
use testkit::wait::{now, until_true};

use crate::harness::{TestHttpClient, TollgateProcess, run};
use crate::server::shared::{Fleet, change, metric, status};

const RULES: &str = "rules: [{ name: api, key: '{user}', limits: [{ rate: 100/hour, \
    algorithm: sliding_window_log }] }]";

fn ask(client: &mut TestHttpClient, body: &str) -> (bool, String) {
    let answer = client.request("POST", "/v1/check", &[], body);
    assert!(matches!(answer.status, 200 | 429), "{answer:?}");
    let decided_by = answer.json()["decided_by"].as_str().expect("a word").to_string();
    (answer.status == 200, decided_by)
}

#[test]
fn three_servers_and_sixteen_clients_admit_exactly_the_limit() {
    let redis = Redis::start();
    let rules = "rules: [{ name: api, key: '{user}', limits: [{ rate: 100/second, burst: 50 }] }]";
    let fleet = Fleet::start(3, &redis.url(), rules);
    fleet.wait_until_peers_known();
    let began = now();
    let since = || began.elapsed_us();
    let clients: Vec<Vec<ObservedCall>> = thread::scope(|scope| {
        let clients: Vec<_> = (0..16)
            .map(|number| {
                let address = fleet.servers[number % 3].http();
                scope.spawn(move || {
                    let mut client = TestHttpClient::connect(address);
                    let mut calls = Vec::new();
                    while since() < 3_000_000 {
                        let asked_us = since();
                        let (admitted, _) = ask(&mut client, r#"{"user":"42"}"#);
                        calls.push(ObservedCall {
                            asked_us,
                            answered_us: since(),
                            cost: 1,
                            admitted,
                        });
                    }
                    calls
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client")).collect()
    });
    let calls: Vec<ObservedCall> = clients.concat();
    let bound = BucketBound { burst: 50, units: 100, period_us: 1_000_000 };
    never_above(bound, &calls).unwrap_or_else(|over| panic!("{over}"));
    not_below(bound, &calls, 500_000, 2_500_000).unwrap_or_else(|under| panic!("{under}"));
    let degraded = |server| metric(server, "tollgate_degraded_total{policy=\"local\"}");
    assert!(fleet.servers.iter().all(|server| degraded(server) == 0.0));
}

/// Microseconds since an instant of the tests' clock.
trait ElapsedUs {
    fn elapsed_us(&self) -> u64;
}

impl ElapsedUs for std::time::Instant {
    fn elapsed_us(&self) -> u64 {
        now().duration_since(*self).as_micros() as u64
    }
}

#[test]
fn ninety_nine_and_two_at_once_are_never_a_hundred_and_one() {
    let redis = Redis::start();
    let fleet = Fleet::start(2, &redis.url(), RULES);
    fleet.wait_until_peers_known();
    for round in 0..20 {
        let body = format!(r#"{{"user":"{round}","cost":99}}"#);
        assert!(ask(&mut TestHttpClient::connect(fleet.servers[0].http()), &body).0);
        let (together, admitted) = (Barrier::new(2), AtomicU64::new(0));
        thread::scope(|scope| {
            for server in &fleet.servers {
                let (together, admitted, address) = (&together, &admitted, server.http());
                scope.spawn(move || {
                    let mut client = TestHttpClient::connect(address);
                    together.wait();
                    let body = format!(r#"{{"user":"{round}"}}"#);
                    let (allowed, decided_by) = ask(&mut client, &body);
                    assert_eq!(decided_by, "redis");
                    admitted.fetch_add(u64::from(allowed), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(admitted.into_inner(), 1, "round {round}");
    }
}

#[test]
fn a_server_starts_without_its_store_serves_by_policy_and_comes_back() {
    let mut redis = Redis::start();
    redis.kill();
    let rules = "rules:\n\
        - { name: local, match: { path: /local }, key: '{user}', limits: [4/hour] }\n\
        - { name: open, match: { path: /open }, key: '{user}', limits: [1/hour], \
            on_store_failure: open }\n";
    let mut fleet = Fleet::start(1, &redis.url(), rules);
    let server = &mut fleet.servers[0];
    server.wait_for_log("the store is unavailable");
    assert_eq!(server.admin_get("/readyz", &[]).status, 200, "no rule is closed");
    let decided = |server: &TollgateProcess, path: &str| {
        let answer = server.check(&format!(r#"{{"path":"{path}","user":"1"}}"#));
        (answer["allowed"].as_bool(), answer["decided_by"].as_str().map(String::from))
    };
    let by = |word: &str| Some(word.to_string());
    for _ in 0..4 {
        assert_eq!(decided(server, "/local"), (Some(true), by("local")));
        assert_eq!(decided(server, "/open"), (Some(true), by("open")));
    }
    assert_eq!(decided(server, "/local"), (Some(false), by("local")));
    assert!(metric(server, "tollgate_degraded_total{policy=\"open\"}") >= 4.0);
    assert_eq!(metric(server, "tollgate_store_up{store=\"default\"}"), 0.0);
    let down = status(server);
    assert_eq!((&down["store"]["up"], &down["ready"]), (&false.into(), &true.into()));
    assert!(down["store"]["stores"][0]["error"].is_string(), "{down}");

    redis.restart();
    server.wait_for_log("the store is available");
    until_true("the store to decide", || decided(&fleet.servers[0], "/open").1 == by("redis"));
    let up = status(&fleet.servers[0]);
    assert_eq!((&up["store"]["up"], &up["store"]["kind"]), (&true.into(), &"redis".into()));
}

#[test]
fn servers_that_start_without_the_store_share_by_the_number_that_they_are_told() {
    let mut redis = Redis::start();
    redis.kill();
    let rules = "rules: [{ name: api, key: '{user}', limits: [8/hour] }]";
    let fleet = Fleet::start_with(2, &redis.url(), rules, &["--instances", "4"]);
    for server in &fleet.servers {
        assert_eq!(status(server)["store"]["instances"], 1);
        assert_eq!(metric(server, "tollgate_instances"), 1.0);
        let allowed = (0..8).filter(|_| server.check(r#"{"user":"1"}"#)["allowed"] == true);
        assert_eq!(allowed.count(), 2, "a quarter each");
    }
}

#[test]
fn a_server_whose_rules_close_is_not_ready_without_the_store() {
    let mut redis = Redis::start();
    let rules = "rules: [{ name: login, key: '{ip}', limits: [5/minute], \
        on_store_failure: closed }]";
    let fleet = Fleet::start(1, &redis.url(), rules);
    let server = &fleet.servers[0];
    until_true("the server to be ready", || server.admin_get("/readyz", &[]).status == 200);
    redis.kill();
    until_true("the server not to be ready", || server.admin_get("/readyz", &[]).status == 503);
    let message = server.admin_get("/readyz", &[]).message();
    assert!(message.contains("default") && message.contains("closed"), "{message}");
    assert_eq!(server.admin_get("/livez", &[]).status, 200);
    redis.restart();
    until_true("the server to be ready", || server.admin_get("/readyz", &[]).status == 200);
}

#[test]
fn a_dead_store_is_not_blamed_on_the_caller() {
    let mut redis = Redis::start();
    let rules = "rules: [{ name: login, key: '{ip}', limits: [5/minute], on_store_failure: closed, \
        ban: { after: 2, within: 1m, for: 15m } }]";
    let mut fleet = Fleet::start(1, &redis.url(), rules);
    fleet.servers[0].wait_for_log("the store is available");
    redis.kill();
    let server = &mut fleet.servers[0];
    until_true("the store to be missed", || status(server)["store"]["up"] == false);
    let refused = server.post("/v1/check", r#"{"ip":"192.0.2.1"}"#);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    for field in ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit"] {
        assert_eq!(refused.header(field), None, "nobody knows");
    }
    let want = json!({
        "allowed": false, "rule": "login", "limit": "5/minute", "remaining": null,
        "retry_after_ms": 1000, "reset_after_ms": null, "delay_ms": 0, "max": 5, "reset_at": null,
        "decided_by": "closed",
        "limits": [{
            "rule": "login", "limit": "5/minute", "allowed": false, "remaining": null,
            "retry_after_ms": 1000, "reset_after_ms": null,
        }],
        "reason": "store_unavailable", "error": "Service Unavailable",
        "message": "The store of the rate limits does not answer. Retry in 1 s.", "retryAfter": 1,
    });
    assert_eq!(refused.json(), want);

    let headers = [("x-forwarded-for", "192.0.2.1")];
    let problem = server.request("GET", "/v1/forward-auth", &headers, "");
    assert_eq!((problem.status, problem.header("retry-after")), (503, Some("1")));
    let problem = problem.json();
    assert_eq!((&problem["status"], &problem["reason"]), (&503.into(), &want["reason"]));
    let nginx = server.request("GET", "/v1/forward-auth/nginx", &headers, "");
    assert_eq!((nginx.status, nginx.header("x-tollgate-status")), (403, Some("503")));
    assert_eq!(nginx.header("retry-after"), Some("1"));

    let mut resp = TestHttpClient::connect(server.resp());
    resp.send(b"TG.CHECK ip 192.0.2.1\r\nQUIT\r\n").unwrap();
    let want = "*6\r\n:1\r\n:5\r\n:-1\r\n:1000\r\n:-1\r\n$5\r\nlogin\r\n+OK\r\n";
    assert_eq!(resp.until_closed(), want);

    let line = server.wait_for_log("a request was refused");
    assert!(line.contains("reason=store_unavailable"), "{line}");
    assert!(line.contains("verdict=store_unavailable"), "{line}");
    assert_eq!(metric(server, "tollgate_refusals_total{reason=\"store_unavailable\"}"), 4.0);
    assert_eq!(metric(server, "tollgate_refusals_total{reason=\"over_limit\"}"), 0.0);
    let decisions = "tollgate_decisions_total{rule=\"login\",outcome=";
    assert_eq!(metric(server, &format!("{decisions}\"store_unavailable\"}}")), 4.0);
    assert_eq!(metric(server, &format!("{decisions}\"refused\"}}")), 0.0);
    assert_eq!(metric(server, "tollgate_bans_total"), 0.0, "nobody earns a ban by that");
    let admin = format!("http://{}", server.admin());
    let shown = run(&["keys", "show", "login", "192.0.2.1", "--admin", &admin]);
    assert!(
        shown.stdout.contains("5/minute  store_unavailable  -     5   1 s       -"),
        "{shown:?}"
    );
    let url = format!("http://{}", server.http());
    let asked = run(&["ask", "--server", &url, "--ip", "192.0.2.1"]);
    assert_eq!(asked.code, Some(3), "{asked:?}");
    assert!(asked.stdout.starts_with("Refused: the store is unavailable, and login"), "{asked:?}");
}

#[test]
fn rules_that_close_and_refuse_nobody_leave_a_server_ready_and_it_says_what_is_missing() {
    let mut redis = Redis::start();
    let rule = |name: &str, how: &str| {
        let closed = "key: '{ip}', limits: [5/minute], on_store_failure: closed";
        format!("- {{ name: {name}, {closed}, {how} }}\n")
    };
    let rules = ["mode: shadow", "soft: true", "mode: off"];
    let rules = rules.iter().zip(["a", "b", "c"]).map(|(how, name)| rule(name, how));
    let fleet = Fleet::start(1, &redis.url(), &format!("rules:\n{}", rules.collect::<String>()));
    let ready = || fleet.servers[0].admin_get("/readyz", &[]);
    until_true("the store to answer", || ready().body == r#"{"ready":true}"#);
    redis.kill();
    until_true("the store to be missed", || status(&fleet.servers[0])["store"]["up"] == false);
    let answer = ready();
    let said = answer.json();
    assert_eq!(
        (answer.status, &said["ready"], &said["degraded"]),
        (200, &true.into(), &true.into())
    );
    assert!(answer.message().contains("default"), "{answer:?}");
    redis.restart();
    until_true("the store to answer", || ready().body == r#"{"ready":true}"#);
}

#[test]
fn a_store_that_is_too_slow_for_every_decision_is_seen() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.address());
    let mut fleet = Fleet::start_with(1, &proxy.url(), RULES, &["--store-timeout", "10ms"]);
    fleet.servers[0].wait_for_log("the store is available");
    // As much as 30 ms each way.
    proxy.set_mode(FaultMode::Delay { by: Duration::from_millis(60), jitter: Duration::ZERO });
    let server = &fleet.servers[0];
    until_true("the store not to be asked", || {
        server.check(r#"{"user":"1"}"#);
        status(server)["store"]["stores"][0]["breaker_open"] == true
    });
    until_true("it to be told", || {
        server.check(r#"{"user":"1"}"#);
        let store = &status(server)["store"]["stores"][0];
        let why = store["error"].as_str().unwrap_or_default();
        store["up"] == false && why.contains("timeout")
    });
    until_true("it to be measured", || {
        server.check(r#"{"user":"1"}"#);
        metric(server, "tollgate_store_up{store=\"default\"}") == 0.0
    });
    let line = fleet.servers[0].wait_for_log("the store is unavailable");
    assert!(line.contains("timeout"), "{line}");
    proxy.set_mode(FaultMode::Pass);
    let server = &fleet.servers[0];
    until_true("the store to decide", || server.check(r#"{"user":"2"}"#)["decided_by"] == "redis");
}

#[test]
fn counters_outlive_all_servers_and_a_grant_at_one_counts_at_all() {
    let redis = Redis::start();
    let mut fleet = Fleet::start(2, &redis.url(), RULES);
    fleet.wait_until_peers_known();
    let full = r#"{"user":"42","cost":100}"#;
    assert_eq!(fleet.servers[0].check(full)["allowed"], true);
    assert_eq!(fleet.servers[1].check(full)["allowed"], false);
    fleet.servers.clear();
    fleet.start_all();
    fleet.wait_until_peers_known();
    let one = r#"{"user":"42"}"#;
    assert_eq!(fleet.servers[0].check(one)["allowed"], false);
    let granted = change(&fleet.servers[1], "POST", "/api/keys/api/user=42", r#"{"grant":5}"#);
    assert_eq!((granted.status, &granted.json()["shared"]), (200, &"yes".into()));
    // What was refused a moment ago may be refused for a second more.
    until_true("the grant to count", || fleet.servers[0].check(one)["allowed"] == true);
    let reset = change(&fleet.servers[1], "DELETE", "/api/keys/api/user=42", "");
    assert_eq!((reset.status, &reset.json()["shared"]), (200, &"yes".into()));
    until_true("the reset to count", || fleet.servers[0].check(full)["allowed"] == true);
    let keys = redis.cli(&["KEYS", "*"]);
    for key in keys.lines() {
        assert!(key.starts_with("tollgate:1:{"), "{key}");
        assert_ne!(redis.cli(&["PTTL", key]), "-1", "{key}");
    }
    assert!(!keys.contains("42"), "keys do not show who it is: {keys}");
}

/// A server remembers for a moment whom the store has refused, by the numbers of the caller's tier.
#[test]
fn a_reset_and_a_grant_count_at_once_where_they_are_made_whatever_the_tier() {
    let redis = Redis::start();
    let rules = "tiers: { pro: { multiplier: 5 }, max: { multiplier: 9 } }\n\
        rules: [{ name: api, key: '{user}', tiered: true, limits: [10/day] }]\n";
    let fleet = Fleet::start(1, &redis.url(), rules);
    fleet.wait_until_peers_known();
    let server = &fleet.servers[0];
    for (tier, all) in [("pro", 50), ("max", 90)] {
        for (method, body) in [("DELETE", ""), ("POST", r#"{"grant":1}"#)] {
            let user = format!("{tier}-{method}");
            let ask = |cost: u32| {
                let body = format!(r#"{{"user":"{user}","tier":"{tier}","cost":{cost}}}"#);
                server.check(&body)["allowed"] == true
            };
            assert!(ask(all) && !ask(1) && !ask(1), "{user}");
            let done = change(server, method, &format!("/api/keys/api/user={user}"), body);
            assert_eq!((done.status, &done.json()["shared"]), (200, &"yes".into()), "{done:?}");
            assert!(ask(1), "{user}");
        }
    }
}

/// A server whose rules `usual`, of `/a`, and `heavy`, of `/b`, have a store each.
fn with_a_second_store(redis: &Redis, other: &Redis) -> Fleet {
    let rules = "rules:\n\
        - { name: usual, match: { path: /a }, key: '{user}', limits: [5/hour] }\n\
        - { name: heavy, match: { path: /b }, key: '{user}', limits: [5/hour], store: big }\n";
    let second = format!("big={}", other.url());
    let fleet = Fleet::start_with(1, &redis.url(), rules, &["--second-store", &second]);
    until_true("both stores to answer", || status(&fleet.servers[0])["store"]["up"] == true);
    fleet
}

#[test]
fn data_that_a_second_store_loses_is_counted_and_warned_of() {
    let (redis, other) = (Redis::start(), Redis::start());
    let mut fleet = with_a_second_store(&redis, &other);
    let calls = || {
        let stats = other.cli(&["INFO", "commandstats"]);
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_eval:calls="));
        calls.map_or(0, |calls| calls.split(',').next().unwrap().parse::<u64>().unwrap())
    };
    // The next call comes after the answer to the first.
    until_true("a second call", || calls() > 1);
    other.tell(&["FLUSHALL"]);
    let lost = |store: &str, times: u8| {
        let line = format!("tollgate_store_data_lost_total{{store=\"{store}\"}} {times}\n");
        fleet.servers[0].admin_get("/metrics", &[]).body.contains(&line)
    };
    until_true("the loss to be counted", || lost("big", 1));
    assert!(lost("default", 0));
    let line = fleet.servers[0].wait_for_log("the store has lost data that it had");
    assert!(line.contains("store=big"), "{line}");
}

#[test]
fn what_did_not_reach_the_store_of_its_rule_is_not_said_to_be_done() {
    let (mut redis, mut other) = (Redis::start(), Redis::start());
    let fleet = with_a_second_store(&redis, &other);
    let server = &fleet.servers[0];
    let shared = |rule: &str| {
        let path = format!("/api/keys/{rule}/user=1");
        let [reset, grant] = [("DELETE", ""), ("POST", r#"{"grant":1}"#)].map(|(method, body)| {
            let answer = change(server, method, &path, body);
            assert_eq!(answer.status, 200, "{answer:?}");
            answer.json()["shared"].as_str().expect("a word").to_string()
        });
        [reset, grant]
    };
    let is_up = |number: usize| status(server)["store"]["stores"][number]["up"] == true;
    fleet.wait_until_peers_known();
    assert_eq!([shared("usual"), shared("heavy")], [["yes"; 2]; 2]);
    other.kill();
    until_true("the second store to be missed", || !is_up(1));
    assert_eq!([shared("usual"), shared("heavy")], [["yes"; 2], ["no"; 2]]);
    other.restart();
    until_true("the second store to be back", || is_up(1));
    redis.kill();
    until_true("the first store to be missed", || !is_up(0));
    // Others learn later that a reset has lifted a block; its counts are in the other store.
    until_true("it to be missed here as well", || shared("heavy") == ["later", "yes"]);
    assert_eq!(shared("usual"), ["no", "no"]);
}

#[test]
fn a_rule_goes_to_the_store_it_names_and_a_name_without_a_store_is_an_error() {
    let (redis, other) = (Redis::start(), Redis::start());
    let fleet = with_a_second_store(&redis, &other);
    let server = &fleet.servers[0];
    let states = |redis: &Redis| {
        let keys = redis.cli(&["KEYS", "*"]);
        keys.lines().filter(|key| !key.contains("{control}") && !key.is_empty()).count()
    };
    assert_eq!(server.check(r#"{"path":"/a","user":"1"}"#)["decided_by"], "redis");
    assert_eq!((states(&redis), states(&other)), (1, 0));
    assert_eq!(server.check(r#"{"path":"/b","user":"1"}"#)["decided_by"], "redis");
    assert_eq!((states(&redis), states(&other)), (1, 1));
    assert_eq!(metric(server, "tollgate_store_up{store=\"big\"}"), 1.0);
    let wrong = "rules: [{ name: heavy, key: '{user}', limits: [5/hour], store: huge }]";
    let refused = change(server, "PUT", "/api/rules", wrong);
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.body.contains("--second-store huge="), "{refused:?}");
    assert!(refused.body.contains("PUT /api/rules:1:64"), "{refused:?}");
}

#[test]
fn a_password_of_the_store_is_nowhere_to_be_seen() {
    let redis = Redis::with(&["--requirepass", "hunter2"]);
    let url = redis.url().replace("redis://", "redis://:hunter2@");
    let fleet = Fleet::start(1, &url, RULES);
    let server = &fleet.servers[0];
    until_true("the store to answer", || status(server)["store"]["up"] == true);
    assert_eq!(server.check(r#"{"user":"1"}"#)["decided_by"], "redis");
    assert!(!status(server).to_string().contains("hunter2"));
    assert!(!server.admin_get("/metrics", &[]).body.contains("hunter2"));
    let Fleet { mut servers, .. } = fleet;
    let ended = servers.remove(0).stop();
    assert_eq!(ended.code, Some(0));
    assert!(!format!("{ended:?}").contains("hunter2"), "{ended:?}");
    let wrong = redis.url().replace("redis://", "redis://:hunter3@");
    let mut fleet = Fleet::start(1, &wrong, RULES);
    let line = fleet.servers[0].wait_for_log("the store is unavailable");
    assert!(!line.contains("hunter3"), "{line}");
}
