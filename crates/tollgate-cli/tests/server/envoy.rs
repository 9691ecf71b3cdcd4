//! Envoy's rate limit service as a client of it sees it: the rules of the protocol (P1 to P15), under files
//! of envoyproxy/ratelimit and under our own rules.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::UInt64Value;
use serde_json::Value;
use tempfile::TempDir;
use testkit::fault_proxy::{FaultMode, FaultProxy};
use testkit::redis::TestRedis as Redis;
use testkit::wait::until_true;

use crate::harness::{TollgateProcess, file, text};
use crate::server::envoy_client::{
    RawGrpcClient, RlsTestClient, SHOULD_RATE_LIMIT, current_thread_runtime, framed, rls_request,
};
use crate::server::shared::metric;
use prost::Message;

/// A server with this rules file; the directory is to be kept.
fn with_rules(rules: &str, flags: &[&str]) -> (TollgateProcess, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), "rules.yaml", rules);
    let server = TollgateProcess::start(&[&["--rules", text(&path)], flags].concat());
    (server, directory)
}

/// With hits of the first descriptor's own.
fn with_hits(mut request: RateLimitRequest, hits: u64) -> RateLimitRequest {
    request.descriptors[0].hits_addend = Some(UInt64Value { value: hits });
    request
}

fn with_refund(request: RateLimitRequest, hits: u64) -> RateLimitRequest {
    let mut request = with_hits(request, hits);
    request.descriptors[0].is_negative_hits = true;
    request
}

fn with_stated_limit(
    mut request: RateLimitRequest,
    requests_per_unit: u32,
    unit: i32,
) -> RateLimitRequest {
    request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit, unit });
    request
}

/// Years, so that no window ends while this runs.
const REFERENCE: &str = "
domain: classic
descriptors:
  - { key: two, rate_limit: { name: of-two, unit: year, requests_per_unit: 2 } }
  - { key: five, rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: free, rate_limit: { unlimited: true } }
  - { key: none, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: second, rate_limit: { unit: second, requests_per_unit: 11 } }
  - { key: minute, rate_limit: { unit: minute, requests_per_unit: 12 } }
  - { key: hour, rate_limit: { unit: hour, requests_per_unit: 13 } }
  - { key: day, rate_limit: { unit: day, requests_per_unit: 14 } }
  - { key: week, rate_limit: { unit: week, requests_per_unit: 17 } }
  - { key: month, rate_limit: { unit: month, requests_per_unit: 15 } }
  - { key: year, rate_limit: { unit: year, requests_per_unit: 16 } }
";

#[test]
fn files_of_the_reference_server_give_its_numbers() {
    let (server, _directory) = with_rules(REFERENCE, &[]);
    let mut caller = RlsTestClient::connect(server.grpc());
    let three: &[&[(&str, &str)]] = &[&[("two", "a")], &[("other", "x")], &[("five", "b")]];
    let five = |value: &'static str| rls_request("classic", &[&[("five", value)]]);
    let of_all = |value, hits_addend| RateLimitRequest { hits_addend, ..five(value) };
    let rows = [
        // P1, P3, P5: one status for each, in order; 0 hits are 1
        (rls_request("classic", three), "OK: OK 1, OK, OK 4"),
        (rls_request("classic", three), "OK: OK 0, OK, OK 3"),
        // P2: one is over, and the others keep their own
        (rls_request("classic", three), "OVER: OVER 0, OK, OK 2"),
        // P4
        (rls_request("unknown", three), "OK: OK, OK, OK"),
        (of_all("c", 3), "OK: OK 2"),
        (of_all("c", 3), "OVER: OVER 0"),
        // P6
        (with_hits(of_all("d", 4), 2), "OK: OK 3"),
        (with_hits(five("d"), 0), "OK: OK 3"),
        (five("d"), "OK: OK 2"),
        (with_refund(five("d"), 2), "OK: OK 4"),
        // P9: wins over what is configured, also in shadow
        (with_stated_limit(five("e"), 2, 6), "OK: OK 1"),
        (with_stated_limit(five("e"), 2, 6), "OK: OK 0"),
        (with_stated_limit(five("e"), 2, 6), "OVER: OVER 0"),
        (with_stated_limit(rls_request("unknown", &[&[("k", "v")]]), 0, 6), "OK: OK"),
        (with_stated_limit(rls_request("classic", &[&[("shadow", "s")]]), 0, 6), "OVER: OVER 0"),
        // P10
        (rls_request("classic", &[&[("free", "x")]]), "OK: OK 4294967295"),
        (rls_request("classic", &[&[("none", "x")]]), "OVER: OVER 0"),
        // P13
        (rls_request("classic", &[&[("shadow", "a")]]), "OK: OK 0"),
        (rls_request("classic", &[&[("shadow", "a")]]), "OK: OK 0"),
    ];
    for (row, (request, want)) in rows.into_iter().enumerate() {
        assert_eq!(caller.ask(request).short(), want, "row {row}");
    }
}

/// P12 and P15: each unit by its number, and a reset that is never further away than it.
#[test]
fn units_have_their_numbers_and_lengths() {
    let (server, _directory) = with_rules(REFERENCE, &[]);
    let mut caller = RlsTestClient::connect(server.grpc());
    // unit | number, seconds
    let rows = [
        ("second", 1, 1),
        ("minute", 2, 60),
        ("hour", 3, 3_600),
        ("day", 4, 86_400),
        ("month", 5, 2_592_000),
        ("year", 6, 31_536_000),
        ("week", 7, 604_800),
    ];
    for (unit, number, seconds) in rows {
        let told = caller.ask(rls_request("classic", &[&[(unit, "x")]]));
        let status = &told.0.statuses[0];
        let limit = status.current_limit.as_ref().expect("a limit");
        let of_file = 10 + u32::try_from(number).unwrap();
        assert_eq!((limit.unit, limit.requests_per_unit), (number, of_file), "{unit}");
        assert_eq!(limit.name, "", "the file gives none");
        let reset = status.duration_until_reset.as_ref().expect("a reset");
        assert!((1..=seconds).contains(&reset.seconds) && reset.nanos == 0, "{unit}: {reset:?}");
    }
    let told = caller.ask(rls_request("classic", &[&[("two", "x")]]));
    assert_eq!(told.0.statuses[0].current_limit.as_ref().unwrap().name, "of-two");
}

const OWN: &str = "
rules:
  - { name: per-user, match: { domain: app }, key: '{user}', limits: [{ rate: 10/day, algorithm: token_bucket }] }
  - { name: odd, match: { domain: odd }, key: '{entry.plan}', limits: [5/90s] }
  - { name: weekly, match: { domain: week }, key: '{ip}', limits: [5/week] }
  - { name: closed, match: { domain: closed }, key: '{ip}', limits: [1/day], on_store_failure: closed }
";

#[test]
fn our_rules_see_entries_as_facts() {
    let (server, _directory) = with_rules(OWN, &[]);
    let mut caller = RlsTestClient::connect(server.grpc());
    let user = |name: &'static str| rls_request("app", &[&[("user", name), ("path", "/")]]);
    let both: &[&[(&str, &str)]] = &[&[("user", "a")], &[("user", "b")]];
    let force: &[&[(&str, &str)]] = &[&[("user", "c"), ("tollgate.act", "force")]];
    let rows = [
        (with_hits(user("a"), 4), "OK: OK 6"),
        (with_hits(user("b"), 10), "OK: OK 0"),
        // All or nothing: b refuses, so a pays nothing.
        (rls_request("app", both), "OVER: OK 6, OVER 0"),
        (user("a"), "OK: OK 5"),
        (with_refund(user("a"), 3), "OK: OK 8"),
        (with_refund(user("a"), u64::MAX), "OK: OK 10"),
        (with_hits(user("a"), u64::MAX), "OVER: OVER 10"),
        (with_hits(user("c"), 0), "OK: OK 10"),
        // After the fact: debt, and nobody is refused for it but who comes next.
        (with_hits(rls_request("app", force), 25), "OK: OK 0"),
        (with_hits(user("c"), 0), "OVER: OVER 0"),
        (user("c"), "OVER: OVER 0"),
        // Another domain, and no such fact.
        (rls_request("elsewhere", both), "OK: OK, OK"),
        (rls_request("app", &[&[("nobody", "a")]]), "OK: OK"),
        (with_stated_limit(user("d"), 1, 4), "OK: OK 0"),
        (with_stated_limit(user("d"), 1, 4), "OVER: OVER 0"),
        (user("d"), "OK: OK 9"),
        (rls_request("odd", &[&[("plan", "pro")]]), "OK: OK 4"),
        (rls_request("week", &[&[("masked_remote_address", "192.0.2.0/24")]]), "OK: OK 4"),
        (rls_request("week", &[&[("remote_address", "2001:db8::1")]]), "OK: OK 4"),
    ];
    for (row, (request, want)) in rows.into_iter().enumerate() {
        assert_eq!(caller.ask(request).short(), want, "row {row}");
    }
    let limit = |told: &crate::server::envoy_client::RlsAnswer| {
        let limit = told.0.statuses[0].current_limit.clone().expect("a limit");
        (limit.name, limit.requests_per_unit, limit.unit)
    };
    let told = caller.ask(rls_request("odd", &[&[("plan", "pro")]]));
    assert_eq!(limit(&told), ("odd".into(), 5, 0), "90 s are no unit");
    let told = caller.ask(rls_request("week", &[&[("ip", "192.0.2.7")]]));
    assert_eq!(limit(&told), ("weekly".into(), 5, 7));
}

/// Would catch: headers that repeat a policy for each descriptor that it applies to.
#[test]
fn several_descriptors_under_one_rule_are_one_policy() {
    let rules = "
rules:
  - { name: per-user, match: { domain: app }, key: '{user}', limits: [{ rate: 100/day, burst: 20 }] }
  - { name: gentle, match: { domain: app }, key: '{user}', limits: [1/day], soft: true }
";
    let (server, _directory) = with_rules(rules, &[]);
    let mut caller = RlsTestClient::connect(server.grpc());
    let _ = caller.ask(with_hits(rls_request("app", &[&[("user", "b")]]), 17));
    let all: &[&[(&str, &str)]] = &[&[("user", "a")], &[("user", "b")], &[("user", "c")]];
    let told = caller.ask(rls_request("app", all));
    assert_eq!(told.short(), "OK: OK 19, OK 2, OK 19");
    assert_eq!(told.header("ratelimit-policy"), Some("\"per-user-1d\";q=20;w=17280"));
    let left = told.header("ratelimit").expect("what is left");
    assert!(left.starts_with("\"per-user-1d\";r=2;t="), "{left}");
    assert_eq!(left.matches("per-user").count(), 1, "{left}");
    let all: &[&[(&str, &str)]] = &[&[("user", "b")], &[("user", "a")], &[("user", "c")]];
    let told = caller.ask(with_hits(rls_request("app", all), 3));
    assert_eq!(told.short(), "OVER: OVER 2, OK 19, OK 19");
    let body: Value = serde_json::from_slice(&told.0.raw_body).unwrap();
    assert_eq!(body["violated-policies"], serde_json::json!(["per-user-1d"]));
    let told = caller.ask(rls_request("app", &[&[("user", "a")], &[("user", "c")]]));
    assert_eq!(told.header("x-ratelimit-warning"), Some("gentle-1d"), "{told:?}");
}

/// What Envoy is to tell its client, allowed and refused.
#[test]
fn clients_are_told_in_the_dialects_of_the_rules() {
    let (server, _directory) = with_rules(OWN, &[]);
    let mut caller = RlsTestClient::connect(server.grpc());
    let request = || with_hits(rls_request("app", &[&[("user", "a")]]), 10);
    let told = caller.ask(request());
    assert_eq!(told.header("x-ratelimit-limit"), Some("10"));
    assert_eq!(told.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(told.header("ratelimit-policy"), Some("\"per-user-1d\";q=10;w=86400"));
    assert!(told.header("ratelimit").unwrap().starts_with("\"per-user-1d\";r=0;t="));
    assert_eq!((told.header("retry-after"), told.0.raw_body.len()), (None, 0));

    let told = caller.ask(request());
    let retry_after: i64 = told.header("retry-after").unwrap().parse().unwrap();
    assert!((86_300..=86_400).contains(&retry_after), "{told:?}");
    assert_eq!(told.header("cache-control"), Some("no-store"));
    assert_eq!(told.header("content-type"), Some("application/problem+json"));
    let body: Value = serde_json::from_slice(&told.0.raw_body).unwrap();
    assert_eq!(
        (&body["error"], &body["retryAfter"]),
        (&"Too Many Requests".into(), &retry_after.into())
    );
    assert!(body["message"].as_str().unwrap().starts_with("Rate limit exceeded."));
    // Rounded up, and never before it helps to come back.
    let reset = told.0.statuses[0].duration_until_reset.as_ref().unwrap();
    assert!(reset.nanos == 0 && reset.seconds >= retry_after, "{reset:?}");
    // No wait helps.
    let told = caller.ask(with_hits(rls_request("app", &[&[("user", "a")]]), 11));
    assert_eq!(told.header("retry-after"), None, "{told:?}");
    // What was used is given back all the same.
    let reset = told.0.statuses[0].duration_until_reset.as_ref().expect("a reset");
    assert!((1..=86_400).contains(&reset.seconds), "{reset:?}");

    let (server, _directory) = with_rules(&format!("{OWN}headers: none"), &[]);
    let mut caller = RlsTestClient::connect(server.grpc());
    assert_eq!(caller.ask(request()).0.response_headers_to_add.len(), 0);
    let told = caller.ask(request());
    assert!(told.header("retry-after").is_some() && told.header("ratelimit").is_none(), "{told:?}");
}

/// Whoever has a file of the reference server has Envoy write `X-RateLimit-*`, in its own dialect: they
/// must not stand there twice, with different numbers.
#[test]
fn of_files_clients_are_told_the_newer_fields_only() {
    // with `headers` of rules beside the file | whether there are fields of the draft
    let rows = [("", true), ("headers: [x-ratelimit, legacy]", false), ("headers: none", false)];
    for (headers, draft) in rows {
        let directory = tempfile::tempdir().unwrap();
        let classic = file(directory.path(), "classic.yaml", REFERENCE);
        let own = file(directory.path(), "own.yaml", format!("{OWN}{headers}"));
        let server = TollgateProcess::start(&["--rules", text(&classic), "--rules", text(&own)]);
        let mut caller = RlsTestClient::connect(server.grpc());
        for over in [false, false, true] {
            let told = caller.ask(rls_request("classic", &[&[("two", "x")]]));
            assert_eq!(told.header("ratelimit").is_some(), draft, "{headers}: {told:?}");
            assert_eq!(told.header("ratelimit-policy").is_some(), draft, "{headers}: {told:?}");
            assert_eq!(told.header("retry-after").is_some(), over, "{headers}: {told:?}");
            let other = |name: &&str| told.header(name).is_some();
            let others = ["x-ratelimit-limit", "x-ratelimit-reset", "ratelimit-remaining"];
            assert_eq!(others.iter().find(|name| other(name)), None, "{headers}: {told:?}");
        }
        let body =
            r#"{"domain":"classic","descriptors":[{"entries":[{"key":"two","value":"y"}]}]}"#;
        let answer = server.post("/json", body);
        assert_eq!(answer.header("ratelimit").is_some(), draft, "{answer:?}");
        assert_eq!(answer.header("x-ratelimit-limit"), None, "{answer:?}");
    }
}

/// What was decided here is counted like everything else.
#[test]
fn calls_are_counted() {
    let (server, _directory) = with_rules(OWN, &[]);
    let mut caller = RlsTestClient::connect(server.grpc());
    caller.ask(with_hits(rls_request("app", &[&[("user", "a")]]), 10));
    caller.ask(rls_request("app", &[&[("user", "a")]]));
    let figures = [
        ("tollgate_grpc_responses_total{code=\"OK\"}", 2.0),
        ("tollgate_http_responses_total{listener=\"grpc\",code=\"200\"}", 2.0),
        ("tollgate_requests_total{outcome=\"allowed\"}", 1.0),
        ("tollgate_requests_total{outcome=\"refused\"}", 1.0),
        ("tollgate_decisions_total{rule=\"per-user\",outcome=\"refused\"}", 1.0),
        ("tollgate_decision_seconds_count", 2.0),
    ];
    for (name, want) in figures {
        assert_eq!(metric(&server, name), want, "{name}");
    }
}

/// A Redis that says nothing: rules that decide locally answer as soon as the store's time is over, and a
/// caller that waits less than that is told so. P11: the answer is a decision, never an error of the store.
#[test]
fn a_silent_store_is_not_waited_for() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.address());
    let url = proxy.url();
    let (server, _directory) = with_rules(OWN, &["--store", &url, "--store-timeout", "1s"]);
    let mut caller = RlsTestClient::connect(server.grpc());
    until_true("the store to be used", || {
        caller.ask(rls_request("app", &[&[("user", "a")]]));
        metric(&server, "tollgate_store_up{store=\"default\"}") == 1.0
    });
    proxy.set_mode(FaultMode::BlackHole);
    let request = || framed(&rls_request("app", &[&[("user", "late")]]).encode_to_vec());
    current_thread_runtime().block_on(async {
        let raw = RawGrpcClient::connect(server.grpc()).await;
        let answer =
            raw.call(SHOULD_RATE_LIMIT, &[("grpc-timeout", "1m")], request()).await.unwrap();
        assert_eq!(answer.code(), "4", "{answer:?}");
        assert!(answer.field("grpc-message").contains("deadline"), "{answer:?}");
        // Waits for longer than the store is waited for.
        let answer =
            raw.call(SHOULD_RATE_LIMIT, &[("grpc-timeout", "1M")], request()).await.unwrap();
        assert_eq!(answer.code(), "0", "{answer:?}");
    });
    let told = caller.ask(rls_request("app", &[&[("user", "b")]]));
    assert_eq!(told.short(), "OK: OK 9", "as if alone");
    let told = caller.ask(rls_request("closed", &[&[("ip", "192.0.2.1")]]));
    assert_eq!(told.short(), "OVER: OVER 0", "`on_store_failure: closed` refuses");
    assert!(metric(&server, "tollgate_degraded_total{policy=\"closed\"}") >= 1.0);
}

/// Calls under way are answered while the server stops, and the connection is closed in good order.
#[test]
fn a_server_that_stops_answers_what_it_has() {
    let (server, _directory) = with_rules(OWN, &[]);
    let runtime = current_thread_runtime();
    let address = server.grpc();
    let (begun, stop) = std::sync::mpsc::channel();
    let asking = std::thread::spawn(move || {
        current_thread_runtime().block_on(async {
            let raw = RawGrpcClient::connect(address).await;
            let mut answered = 0;
            // Until the server asks the connection to end.
            while let Ok(answer) = raw
                .call(
                    SHOULD_RATE_LIMIT,
                    &[],
                    framed(&rls_request("other", &[&[("k", "v")]]).encode_to_vec()),
                )
                .await
            {
                assert_eq!(answer.code(), "0");
                answered += 1;
                if answered == 100 {
                    begun.send(()).unwrap();
                }
            }
            answered
        })
    });
    stop.recv().unwrap();
    let ended = server.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(asking.join().unwrap() >= 100);
    drop(runtime);
}
