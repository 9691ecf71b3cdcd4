//! `tollgate bench`: loads over every protocol, what it prints, and what it refuses to do.

use serde_json::Value;
use tempfile::tempdir;

use crate::harness::{TollgateProcess, file, run, text};

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
        let in_order = ["p50", "p90", "p95", "p99", "p99_9", "p99_99", "max"];
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
        let own = options.iter().any(|option| *option == "--rate");
        let done = run(&[if own { &fast[..1] } else { &fast[..] }, options].concat());
        assert_eq!(done.code, Some(code), "{options:?}: {done:?}");
        for part in parts {
            assert!(done.stderr.contains(part), "{options:?}: {}", done.stderr);
        }
    }
}
