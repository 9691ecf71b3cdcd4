//! What an operator does at one server holds at all on the store, and outlives them.

use std::time::Duration;

use serde_json::Value;
use tempfile::tempdir;
use testkit::redis::TestRedis as Redis;
use testkit::wait::{now, until, until_true};

use crate::harness::{TollgateProcess, file, text};
use crate::server::shared::{Fleet, change, status};

/// Others know within this time.
const SOON: Duration = Duration::from_secs(2);

const RULES: &str = "rules: [{ name: api, key: '{user}', limits: [1000/hour] }]\n";
const PUT: &str = "rules: [{ name: api, key: '{user}', limits: [7/hour] }]\n";

/// Waits until it is so, and checks that it did not take too long.
fn soon(what: &str, look: impl FnMut() -> bool) {
    let began = now();
    until_true(what, look);
    let took = now().duration_since(began);
    assert!(took <= SOON, "{what} took {took:?}");
}

fn key(server: &TollgateProcess, key: &str) -> Value {
    server.admin_get(&format!("/api/keys/api/user={key}"), &[]).json()
}

fn is_blocked(server: &TollgateProcess, user: &str) -> bool {
    let answer = server.check(&format!(r#"{{"user":"{user}"}}"#));
    answer["decided_by"] == "block"
}

/// The limit of the only rule.
fn limit(server: &TollgateProcess) -> String {
    let rules = server.admin_get("/api/rules", &[]).json();
    rules["rules"][0]["limits"][0].as_str().expect("a limit").into()
}

fn post(server: &TollgateProcess, user: &str, body: &str) -> Value {
    let answer = change(server, "POST", &format!("/api/keys/api/user={user}"), body);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[test]
fn what_is_done_at_one_server_reaches_all_within_two_seconds_and_outlives_them() {
    let redis = Redis::start();
    let mut fleet = Fleet::start(3, &redis.url(), RULES);
    fleet.wait_until_peers_known();
    let [one, two, three] = &fleet.servers[..] else { unreachable!("three were started") };

    assert_eq!(post(one, "1", r#"{"block":"15m"}"#)["shared"], "yes");
    soon("a block to hold", || is_blocked(two, "1") && is_blocked(three, "1"));
    assert_eq!(post(one, "2", r#"{"block":"15m"}"#)["shared"], "yes");
    soon("a block to hold", || is_blocked(three, "2"));
    assert_eq!(post(three, "2", r#"{"block":null}"#)["shared"], "yes");
    soon("a block to be lifted", || !is_blocked(one, "2") && !is_blocked(two, "2"));

    let set = r#"{"override":{"limits":[{"rate":"3/minute","algorithm":"fixed_window"}]}}"#;
    assert_eq!(post(two, "3", set)["shared"], "yes");
    let words = "3/minute fixed_window";
    let overridden = |server: &TollgateProcess| key(server, "3")["override"]["limits"][0] == words;
    soon("an override to hold", || overridden(one) && overridden(three));
    assert_eq!(post(one, "4", r#"{"override":{"limits":["9/minute"]}}"#)["shared"], "yes");
    soon("an override to hold", || key(three, "4")["override"].is_object());
    assert_eq!(post(three, "4", r#"{"override":null}"#)["shared"], "yes");
    soon("an override to be gone", || key(one, "4")["override"].is_null());

    let put = change(two, "PUT", "/api/rules", PUT);
    assert_eq!((put.status, &put.json()["shared"]), (200, &"yes".into()), "{put:?}");
    assert!(put.message().contains("also after a restart"), "{put:?}");
    soon("rules to be in force", || limit(one) == "7/hour" && limit(three) == "7/hour");
    assert_eq!(status(one)["rules"]["origin"], "api");

    fleet.servers.clear();
    fleet.start_all();
    for server in &fleet.servers {
        // From the first request: the store is asked before anybody is let in.
        assert!(is_blocked(server, "1") && !is_blocked(server, "2"));
        assert!(overridden(server) && key(server, "4")["override"].is_null());
        assert_eq!(limit(server), "7/hour");
    }
}

#[test]
fn rules_that_were_put_are_for_the_files_they_were_put_over() {
    let redis = Redis::start();
    let fleet = Fleet::start(2, &redis.url(), RULES);
    fleet.wait_until_peers_known();
    let [one, two] = &fleet.servers[..] else { unreachable!("two were started") };
    // Another deployment at one of them.
    let newer = RULES.replace("1000", "2000");
    std::fs::write(&fleet.rules[1], &newer).expect("a file");
    until_true("new files to be in force", || limit(two) == "2000/hour");
    assert_eq!(change(one, "PUT", "/api/rules", PUT).json()["shared"], "yes");
    assert_eq!(limit(one), "7/hour");
    // Told, and not taken: an override that was told later is.
    post(one, "1", r#"{"override":{"limits":["9/minute"]}}"#);
    until_true("an override to hold", || key(two, "1")["override"].is_object());
    assert_eq!(limit(two), "2000/hour");
    // Its files come to say what they said where the rules were put.
    std::fs::write(&fleet.rules[1], RULES).expect("a file");
    until_true("rules to be in force", || limit(two) == "7/hour");
    // A new deployment ends it, where it is deployed.
    std::fs::write(&fleet.rules[0], &newer).expect("a file");
    until_true("new files to be in force", || limit(one) == "2000/hour");
    assert_eq!(limit(two), "7/hour");
    // And a reload ends it everywhere.
    let reload = change(two, "POST", "/api/reload", "");
    assert_eq!((reload.status, limit(two)), (200, "1000/hour".into()));
    std::fs::write(&fleet.rules[0], RULES).expect("a file");
    until_true("old files to be in force", || limit(one) == "1000/hour");
}

#[test]
fn files_that_return_to_what_rules_were_put_over_take_them_again() {
    let redis = Redis::start();
    let fleet = Fleet::start(2, &redis.url(), RULES);
    fleet.wait_until_peers_known();
    let [one, two] = &fleet.servers[..] else { unreachable!("two were started") };
    change(one, "PUT", "/api/rules", PUT);
    until_true("rules to be in force", || limit(two) == "7/hour");
    let newer = RULES.replace("1000", "2000");
    // The second time as well, and where they were put as where they were taken.
    for _ in 0..2 {
        for (server, file) in [(two, &fleet.rules[1]), (one, &fleet.rules[0])] {
            std::fs::write(file, &newer).expect("a file");
            until_true("new files to be in force", || limit(server) == "2000/hour");
            std::fs::write(file, RULES).expect("a file");
            until_true("what was put to be in force", || limit(server) == "7/hour");
        }
    }
    assert_eq!((limit(one), limit(two)), ("7/hour".into(), "7/hour".into()));
}

#[test]
fn a_reload_at_one_server_ends_at_all_what_was_put() {
    let redis = Redis::start();
    let fleet = Fleet::start(2, &redis.url(), RULES);
    fleet.wait_until_peers_known();
    let [one, two] = &fleet.servers[..] else { unreachable!("two were started") };
    change(one, "PUT", "/api/rules", PUT);
    soon("rules to be in force", || limit(two) == "7/hour");
    assert_eq!(change(two, "POST", "/api/reload", "").status, 200);
    soon("the files to be in force", || limit(one) == "1000/hour");
    assert_eq!(status(one)["rules"]["origin"], "files");
}

#[test]
fn servers_that_cannot_tell_each_other_say_so_although_the_store_answers() {
    let redis = Redis::start();
    let mut fleet = Fleet::start(1, &redis.url(), RULES);
    redis.tell(&["ACL", "SETUSER", "default", "-zadd"]);
    let line = fleet.servers[0].wait_for_log("servers cannot share blocks");
    assert!(line.contains("the shared store did not answer"), "{line}");
    assert_eq!(fleet.servers[0].check(r#"{"user":"1"}"#)["decided_by"], "redis");
}

#[test]
fn without_the_store_an_operator_is_told_that_others_learn_later_and_they_do() {
    let mut redis = Redis::start();
    let fleet = Fleet::start(2, &redis.url(), RULES);
    fleet.wait_until_peers_known();
    let [one, two] = &fleet.servers[..] else { unreachable!("two were started") };
    redis.kill();
    for server in [one, two] {
        until_true("the store to be missed", || status(server)["store"]["up"] == false);
    }
    assert_eq!(post(one, "1", r#"{"block":"15m"}"#)["shared"], "later");
    assert!(is_blocked(one, "1"), "here it holds at once");
    assert_eq!(post(one, "2", r#"{"override":{"limits":["9/minute"]}}"#)["shared"], "later");
    assert_eq!(post(one, "3", r#"{"grant":5}"#)["shared"], "no");
    let put = change(one, "PUT", "/api/rules", PUT).json();
    assert_eq!(put["shared"], "later");
    assert!(put["message"].as_str().expect("text").contains("once it is back"), "{put}");
    assert!(!is_blocked(two, "1"));
    redis.restart();
    until_true("others to learn", || {
        is_blocked(two, "1") && key(two, "2")["override"].is_object() && limit(two) == "7/hour"
    });
    // What everybody forgot, everybody tells again.
    redis.tell(&["FLUSHALL"]);
    until_true("everything to be told again", || {
        redis.cli(&["HLEN", "tollgate:1:{control}:blocks"]) == "1"
            && redis.cli(&["HLEN", "tollgate:1:{control}:overrides"]) == "1"
            && redis.cli(&["HLEN", "tollgate:1:{control}:rules"]) == "1"
    });
    assert!(is_blocked(one, "1") && is_blocked(two, "1"));
}

#[test]
fn a_ban_that_was_earned_at_one_server_holds_at_all() {
    let redis = Redis::start();
    let rules = "rules: [{ name: api, key: '{user}', limits: [1/hour], \
        ban: { after: 5, within: 1m, for: 15m } }]";
    let fleet = Fleet::start(2, &redis.url(), rules);
    fleet.wait_until_peers_known();
    let [one, two] = &fleet.servers[..] else { unreachable!("two were started") };
    // Refusals count wherever they happen.
    until_true("a ban to be earned", || is_blocked(one, "1"));
    soon("it to hold at the other", || is_blocked(two, "1"));
    assert!(!is_blocked(two, "2"));
}

/// Writes rules with a seal of nobody over the files of these servers, as whoever can write to the store may: takes
/// the fingerprint from what was put, and a later version.
const FORGE_RULES: &str = "
local name = redis.call('HKEYS', KEYS[1])[1]
local value = redis.call('HGET', KEYS[1], name)
local print = string.match(value, '(%x+)\\n')
local version = string.format('%.0f', redis.call('HGET', KEYS[2], 'version') + 1)
redis.call('HSET', KEYS[1], name, version .. ',0,+,' .. print .. '\\n' .. ARGV[1])
redis.call('HSET', KEYS[2], 'version', version)
redis.call('ZADD', KEYS[3], version, 'r' .. name)
return 1";

fn forge(redis: &Redis, rules: &str) {
    let [hash, head, log] =
        ["rules", "head", "log"].map(|one| format!("tollgate:1:{{control}}:{one}"));
    assert_eq!(redis.cli(&["EVAL", FORGE_RULES, "3", &hash, &head, &log, rules]), "1");
}

const ELSEWHERE: &str = "rules: [{ name: api, key: '{user}', limits: [9/hour] }]
upstreams: { app: 'http://127.0.0.1:9' }
routes: [{ path: '/{*rest}', upstream: app }]
";

#[test]
fn whoever_writes_to_the_store_moves_no_traffic_without_a_secret() {
    let redis = Redis::start();
    let fleet = Fleet::start(2, &redis.url(), RULES);
    let [one, two] = &fleet.servers[..] else { unreachable!("two were started") };
    assert_eq!(change(one, "PUT", "/api/rules", PUT).status, 200);
    soon("rules to be in force", || limit(two) == "7/hour");
    forge(&redis, ELSEWHERE);
    for server in [one, two] {
        soon("an error", || {
            let failed = &status(server)["rules"]["put_failed"];
            failed.to_string().contains("--key-secret-file")
        });
        assert_eq!(limit(server), "7/hour");
    }
    // Limits can be changed: so can counts.
    forge(&redis, PUT.replace("7/hour", "8/hour").trim());
    soon("rules to be in force", || limit(one) == "8/hour" && limit(two) == "8/hour");
}

#[test]
fn with_a_secret_nothing_that_somebody_else_wrote_is_taken() {
    let (redis, directory) = (Redis::start(), tempdir().unwrap());
    let secret = file(directory.path(), "secret", "0123456789abcdef0123456789abcdef\n");
    let flags = ["--key-secret-file", text(&secret)];
    let mut fleet = Fleet::start_with(2, &redis.url(), RULES, &flags);
    let [one, two] = &fleet.servers[..] else { unreachable!("two were started") };
    assert_eq!(change(one, "PUT", "/api/rules", PUT).status, 200);
    soon("rules to be in force", || limit(two) == "7/hour");
    forge(&redis, PUT.replace("7/hour", "8/hour").trim());
    // The first that sees it writes over it; the other may not see it.
    let refuses = |server: &TollgateProcess| {
        let none = "tollgate_control_refused_total{reason=\"unsealed\"} 0";
        !server.admin_get("/metrics", &[]).body.contains(none)
    };
    let first = || [one, two].into_iter().position(refuses);
    let first = until("a refused change", first);
    assert_eq!([one, two].map(limit), ["7/hour", "7/hour"]);
    let line = fleet.servers[first].wait_for_log("rules or overrides in the store were not taken");
    assert!(!line.contains("unsealed=0"), "{line}");
}

/// Writes a value in place of the only one of a hash, and nothing else.
const OVERWRITE: &str = "
local name = redis.call('HKEYS', KEYS[1])[1]
return redis.call('HSET', KEYS[1], name, ARGV[1])";

#[test]
fn what_is_written_over_a_sealed_override_changes_no_decision_and_is_put_back() {
    let (redis, directory) = (Redis::start(), tempdir().unwrap());
    let secret = file(directory.path(), "secret", "0123456789abcdef0123456789abcdef\n");
    let flags = ["--key-secret-file", text(&secret)];
    let fleet = Fleet::start_with(2, &redis.url(), RULES, &flags);
    let [one, two] = &fleet.servers[..] else { unreachable!("two were started") };
    let overrides = "tollgate:1:{control}:overrides";
    let max = |server: &TollgateProcess| server.check(r#"{"user":"1","cost":0}"#)["max"].as_u64();
    let stored = || redis.cli(&["HVALS", overrides]);
    // Without the stamp, which grows where it was written over.
    let content = |value: &str| value.split_once(',').map(|(_, rest)| rest.to_string());
    assert_eq!(post(one, "1", r#"{"override":{"limits":["5/hour"]}}"#)["shared"], "yes");
    soon("an override to hold", || max(two) == Some(5));
    let old = stored();
    assert_eq!(post(one, "1", r#"{"override":{"limits":["6/hour"]}}"#)["shared"], "yes");
    soon("an override to hold", || max(two) == Some(6));
    let right = stored();
    let forgeries = [
        right.replace("6/hour", "9/hour"),
        right.replacen(",+,", ",-,", 1),
        old.replace("5/hour", "50/hour"),
        "5,0,+,{}".to_string(),
    ];
    for forged in forgeries {
        assert_eq!(redis.cli(&["EVAL", OVERWRITE, "1", overrides, &forged]), "0");
        until_true("it to be put back", || content(&stored()) == content(&right));
        assert_eq!([max(one), max(two)], [Some(6); 2], "{forged}");
    }
    let late = Fleet::start_with(1, &redis.url(), RULES, &flags);
    soon("an override to hold", || max(&late.servers[0]) == Some(6));
}
