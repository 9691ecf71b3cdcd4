//! `TG.CHECK`, `TG.PEEK` and `TG.RESET`: questions that the rules answer.

use crate::harness::{TestHttpClient, TollgateProcess, file, text};
use crate::resp::resp_client::{RespReply, RespTestClient, command_of};

const RULES: &str = "
identify: { trusted_peers: [10.0.0.0/8], user: { header: x-user } }
rules:
  - { name: api, match: { path: /api }, key: '{user|ip}', limits: [{ rate: 3/hour, algorithm: fixed_window, align: first_hit }] }
  - { name: heavy, match: { path: /heavy, method: POST }, key: '{user}', limits: [{ rate: 10/hour, burst: 10 }], cost: { default: 4 } }
  - { name: queue, match: { path: /queue }, key: '{user}', limits: [{ rate: 1/hour, burst: 5, algorithm: leaky_bucket, queue: true }] }
";

fn start() -> (tempfile::TempDir, TollgateProcess) {
    let directory = tempfile::tempdir().unwrap();
    let rules = file(directory.path(), "rules.yaml", RULES);
    let server = TollgateProcess::start(&["--rules", text(&rules)]);
    (directory, server)
}

/// Limited, limit, remaining, retry and reset in hours rounded up (-1 and -2 as they are), rule.
fn check_fields(reply: RespReply) -> ([i64; 5], Option<String>) {
    let RespReply::Array(parts) = reply else { panic!("{reply:?}") };
    assert_eq!(parts.len(), 6);
    let number = |index: usize| match parts[index] {
        RespReply::Integer(number) => number,
        ref other => panic!("{other:?}"),
    };
    let hours = |ms: i64| if ms > 0 { (ms as u64).div_ceil(3_600_000) as i64 } else { ms };
    let rule = match &parts[5] {
        RespReply::Null => None,
        RespReply::Bulk(name) => Some(String::from_utf8(name.clone()).unwrap()),
        other => panic!("{other:?}"),
    };
    ([number(0), number(1), number(2), hours(number(3)), hours(number(4))], rule)
}

#[test]
fn facts_are_checked_by_the_rules() {
    let (_directory, server) = start();
    let mut redis = RespTestClient::connect(&server);
    let api = |numbers| (numbers, Some("api".to_string()));
    let heavy = |numbers| (numbers, Some("heavy".to_string()));
    let rows = [
        ("TG.PEEK path /api user 1", api([0, 3, 3, -1, 0])),
        ("TG.CHECK path /api user 1", api([0, 3, 2, -1, 1])),
        ("TG.CHECK path /api ip 10.0.0.1 header.X-User 1", api([0, 3, 1, -1, 1])),
        ("TG.CHECK path /api user 1 cost 0", api([0, 3, 1, -1, 1])),
        ("TG.CHECK path /api user 1 cost 2", api([1, 3, 1, 1, 1])),
        ("TG.CHECK path /api user 1 cost 4", api([1, 3, 1, -2, 1])),
        ("tg.check path /api user 1", api([0, 3, 0, -1, 1])),
        ("TG.CHECK path /api user 1", api([1, 3, 0, 1, 1])),
        ("TG.PEEK path /api user 1", api([1, 3, 0, 1, 1])),
        ("TG.CHECK path /api ip 192.0.2.1", api([0, 3, 2, -1, 1])),
        ("TG.CHECK method post path /heavy user 1", heavy([0, 10, 6, -1, 1])),
        ("TG.CHECK method POST path /heavy user 1 cost 6", heavy([0, 10, 0, -1, 1])),
        // No rule applies.
        ("TG.CHECK path /other user 1", ([0, 0, 0, -1, 0], None)),
    ];
    for (line, want) in rows {
        assert_eq!(check_fields(redis.say(line)), want, "{line}");
    }
    let missing = "ERR no rule could be applied: the rule heavy counts by {user}, and this request has no \
                   user. Send it (an empty string counts as missing), or let such requests pass with --missing-facts allow";
    for command in ["TG.CHECK", "TG.PEEK"] {
        let words = [command, "method", "POST", "path", "/heavy", "user", ""];
        for words in [&words[..5], &words] {
            assert_eq!(redis.ask(words).error(), missing, "{words:?}");
        }
    }
    let usage = "ERR there are no facts: write pairs, such as TG.CHECK path /api/search user 42";
    for line in ["TG.CHECK", "TG.PEEK"] {
        assert!(redis.say(line).error().starts_with(usage), "{line}");
    }
    let error = redis.say("TG.CHECK usr 1");
    let want = "ERR there is no field 'usr': write any of method, path, host, ip, user, tier, api_key, cost, \
                domain, header.NAME, entry.NAME";
    assert_eq!(error.error(), want);
    // Rules count for every listener together.
    assert_eq!(server.check(r#"{"path":"/api","user":"1"}"#)["allowed"], false);
}

#[test]
fn bytes_that_are_no_text_are_limited_as_others_are() {
    let (_directory, server) = start();
    let mut redis = RespTestClient::connect(&server);
    for left in [2, 1, 0] {
        redis.send(&command_of(&[b"TG.CHECK", b"path", b"/api", b"user", b"\xff"]));
        assert_eq!(check_fields(redis.receive()).0[..3], [0, 3, left]);
    }
    redis.send(&command_of(&[b"TG.CHECK", b"path", b"/api", b"user", b"\xff"]));
    assert_eq!(check_fields(redis.receive()).0[0], 1);
    assert_eq!(redis.say("TG.RESET api user=%FF"), RespReply::Integer(1));
}

#[test]
fn files_that_were_written_for_envoy_are_asked_by_their_domain() {
    let directory = tempfile::tempdir().unwrap();
    let imported = "domain: mongo
descriptors:
  - { key: user, rate_limit: { name: of-users, unit: year, requests_per_unit: 2 } }
";
    let rules = file(directory.path(), "mongo.yaml", imported);
    let server = TollgateProcess::start(&["--rules", text(&rules)]);
    let mut redis = RespTestClient::connect(&server);
    let rows = [
        ("TG.CHECK domain mongo entry.user 1", [0, 2, 1]),
        ("TG.PEEK domain mongo entry.user 1", [0, 2, 1]),
        ("TG.CHECK domain mongo entry.user 1 cost 1", [0, 2, 0]),
        ("TG.CHECK domain mongo entry.user 1", [1, 2, 0]),
        ("TG.CHECK domain mongo entry.user 2", [0, 2, 1]),
        ("TG.CHECK domain mongo entry.other 1", [0, 0, 0]),
        ("TG.CHECK domain other entry.user 1", [0, 0, 0]),
    ];
    for (line, want) in rows {
        assert_eq!(check_fields(redis.say(line)).0[..3], want, "{line}");
    }
    let error = redis.say("TG.CHECK domain mongo user 1");
    assert!(error.error().starts_with("ERR "), "a file knows entries only: {error:?}");
}

#[test]
fn reset_leaves_blocks_alone_and_is_written_down() {
    let (_directory, mut server) = start();
    let mut redis = RespTestClient::connect(&server);
    let block = |body: &str| {
        let fields = [("x-tollgate-admin", "1")];
        let mut admin = TestHttpClient::connect(server.admin());
        let answer = admin.request("POST", "/api/keys/api/user=1", &fields, body);
        assert_eq!(answer.status, 200, "{answer:?}");
    };
    assert_eq!(check_fields(redis.say("TG.CHECK path /api user 1 cost 3")).0[0], 0);
    block(r#"{"block":"15m"}"#);
    assert_eq!(redis.say("TG.RESET api user=1"), RespReply::Integer(1));
    assert_eq!(check_fields(redis.say("TG.CHECK path /api user 1")).0[0], 1, "the block stays");
    block(r#"{"block":null}"#);
    assert_eq!(check_fields(redis.say("TG.CHECK path /api user 1")).0[..3], [0, 3, 2]);
    let line = server.wait_for_log("a key was reset");
    let peer = redis.socket().local_addr().unwrap().to_string();
    for part in ["api", "found", "token", &peer] {
        assert!(line.contains(part), "{line}");
    }
    assert!(!line.contains("user=1"), "{line}");
}

#[test]
fn a_client_that_cannot_wait_is_refused_where_a_queue_would_delay() {
    let (_directory, server) = start();
    let mut redis = RespTestClient::connect(&server);
    let queue = |numbers| (numbers, Some("queue".to_string()));
    assert_eq!(check_fields(redis.say("TG.CHECK path /queue user 1")).0[0], 0);
    let refused = check_fields(redis.say("TG.CHECK path /queue user 1"));
    assert_eq!((refused.0[0], refused.0[3], refused.1), (1, 1, queue([0; 5]).1));
}

#[test]
fn reset_forgets_what_a_caller_has_used() {
    let (_directory, server) = start();
    let mut redis = RespTestClient::connect(&server);
    assert_eq!(redis.say("TG.RESET api user=1"), RespReply::Integer(0));
    assert_eq!(check_fields(redis.say("TG.CHECK path /api user 1 cost 3")).0[..3], [0, 3, 0]);
    assert_eq!(redis.say("TG.RESET api user=1"), RespReply::Integer(1));
    assert_eq!(check_fields(redis.say("TG.PEEK path /api user 1")).0[..3], [0, 3, 3]);
    let rows = [
        ("TG.RESET apy user=1", "ERR there is no rule \"apy\" (did you mean `api`?)"),
        ("TG.RESET api", "ERR wrong number of arguments for 'tg.reset' command"),
    ];
    for (line, want) in rows {
        assert_eq!(redis.say(line).error(), want);
    }
    assert!(redis.say("TG.RESET heavy ip=192.0.2.1").error().starts_with("ERR "));
}
