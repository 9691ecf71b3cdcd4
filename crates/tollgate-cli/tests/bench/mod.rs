//! `tollgate bench`: loads over every protocol, what it prints, and what it refuses to do.

use serde_json::Value;
use tempfile::tempdir;
use testkit::peers::Upstream;

use crate::gateway::gateway_process::GatewayProcess;
use crate::harness::{TollgateProcess, file, run, text};

mod stall;

/// Runs a load and returns its JSON.
fn load(args: &[&str]) -> Value {
    let done = run(&[&["bench", "--json"], args].concat());
    assert_eq!((done.code, &*done.stderr), (Some(0), ""), "{args:?}: {done:?}");
    serde_json::from_str(&done.stdout).expect("JSON")
}

#[test]
fn a_load_of_checks_is_counted_by_its_answers() {
    let server = TollgateProcess::start(&["--limit", "5/hour burst 5"]);
    let url = format!("http://{}", server.http());
    let short = ["--target", &url, "--rate", "400/s", "--duration", "500ms", "--keys", "10"];
    let json = load(&short);
    // Each of ten callers comes about 20 times and is allowed 5 times.
    assert_eq!((&json["answered"], &json["allowed"]), (&200.into(), &50.into()), "{json}");
    assert_eq!(
        (&json["refused"], &json["failed"], &json["not_sent"]),
        (&150.into(), &0.into(), &0.into())
    );
    assert_eq!((&json["protocol"], &json["timed_out"]), (&"check".into(), &0.into()));
    let slots = json["over_time"]["refused"].as_array().expect("a list");
    assert_eq!(slots.iter().filter_map(Value::as_u64).sum::<u64>(), 150);
    for latencies in [&json["corrected_us"], &json["service_us"]] {
        let in_order = ["p50", "p75", "p90", "p95", "p99", "p99_9", "p99_99", "max"];
        let in_order = in_order.map(|name| latencies[name].as_u64().expect(name));
        assert!(in_order.is_sorted() && in_order[0] > 0, "{json}");
    }
    let people = run(&[&["bench"], &short[..]].concat());
    assert_eq!((people.code, &*people.stderr), (Some(0), ""), "quiet without a terminal");
    for part in ["400 requests per second to http://127.0.0.1:", "  200 ", "99.99 %", "schedule"] {
        assert!(people.stdout.contains(part), "{part}: {}", people.stdout);
    }
}

#[test]
fn every_protocol_gets_the_same_decisions() {
    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "tokens", "0123456789abcdef0123456789abcdef\n");
    let limit = ["--limit", "5/hour burst 5", "--auth-token-file", text(&tokens)];
    type TargetOf = fn(&TollgateProcess) -> String;
    // the protocol, the target, further options
    let rows: [(&str, TargetOf, &[&str]); 4] = [
        ("check", |server| format!("http://{}", server.http()), &["--path", "/a"]),
        ("resp", |server| format!("redis://{}", server.resp()), &["--header", "x-a={key}"]),
        ("resp", |server| format!("redis://{}", server.resp()), &["--throttle", "4 5 3600"]),
        ("grpc", |server| format!("grpc://{}", server.grpc()), &["--entry", "user=a-{key}"]),
    ];
    let options = ["--rate", "400/s", "--duration", "500ms", "--keys", "10", "--connections", "5"];
    for (protocol, target, more) in rows {
        let server = TollgateProcess::start(&limit);
        let own = ["--target", &target(&server), "--token-file", text(&tokens)];
        let json = load(&[&own, &options[..], more].concat());
        let counts = ["answered", "allowed", "refused", "failed"].map(|name| json[name].as_u64());
        assert_eq!(counts, [200, 50, 150, 0].map(Some), "{more:?}: {json}");
        assert_eq!(json["protocol"], protocol);
        let short = ["--rate", "50/s", "--duration", "100ms"];
        let without = run(&[&["bench"], &own[..2], &short].concat());
        assert_eq!(without.code, Some(1), "no token: {without:?}");
    }
}

#[test]
fn a_load_passes_the_gateway() {
    let upstream = Upstream::start();
    let rules = "
identify: { user: { header: x-user } }
rules: [{ name: each, key: '{user}', limits: [{ rate: 5/hour, burst: 5 }] }]
";
    let gateway = GatewayProcess::start(upstream.address(), rules);
    let target = format!("http://{}/search?by={{key}}", gateway.address());
    let options = ["--rate", "400/s", "--duration", "500ms", "--keys", "10"];
    let own = ["--target", &target, "--header", "x-user={key}"];
    let json = load(&[&own, &options[..]].concat());
    let counts = ["answered", "allowed", "refused", "failed"].map(|name| json[name].as_u64());
    assert_eq!(counts, [200, 50, 150, 0].map(Some), "{json}");
    assert_eq!((&json["protocol"], &json["keys"]), (&"url".into(), &10.into()));
    let requests = upstream.take_requests();
    assert_eq!(requests.len(), 50);
    assert!(requests.iter().all(|request| request.target.starts_with("/search?by=bench-")));
}

#[test]
fn a_load_that_cannot_be_sent_is_an_error_that_says_what_to_do() {
    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "tokens", "0123456789abcdef0123456789abcdef\n");
    let server = TollgateProcess::start(&["--limit", "9/hour", "--auth-token-file", text(&tokens)]);
    // The port is free again once it is known.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    let closed = format!("http://{}", closed.expect("a port"));
    let locked = format!("http://{}", server.http());
    // options, exit code, parts of standard error
    let rows: [(&[&str], i32, &[&str]); 7] = [
        (&["--target", "http://192.0.2.1:8080"], 1, &["not on this machine", "--allow-remote"]),
        (&["--target", &closed], 1, &["cannot connect to", "tollgate serve"]),
        (&["--target", &locked], 1, &["answered no request: status 401", "tollgate ask"]),
        (&["--target", "https://localhost"], 2, &["does not speak TLS"]),
        (&["--rate", "0/s"], 2, &["requests per second"]),
        (&["--rate", "1/s", "--duration", "100ms"], 2, &["no request fits"]),
        (&["--zipf", "-1"], 2, &["write an exponent"]),
    ];
    for (options, code, parts) in rows {
        let fast = ["bench", "--rate", "50/s", "--duration", "100ms"];
        let own = options.contains(&"--rate");
        let done = run(&[if own { &fast[..1] } else { &fast[..] }, options].concat());
        assert_eq!(done.code, Some(code), "{options:?}: {done:?}");
        for part in parts {
            assert!(done.stderr.contains(part), "{options:?}: {}", done.stderr);
        }
    }
}
