//! `GET /api/events`: a tick each second for every stream, resumable, bounded, and ended by a shutdown.

use bytes::Bytes;
use serde_json::{Value, json};
use tempfile::tempdir;
use tokio::runtime;

use super::event_reader::{EventReader, ServerEvent, parse};
use crate::harness::{DEADLINE, TestHttpClient, TollgateProcess, file, text};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

const RULES: &str = "
rules:
  - { name: api, match: { path: '/api/{*rest}' }, key: '{user}', limits: [5/hour] }
  - { name: trial, match: { path: '/api/{*rest}' }, key: '{user}', limits: [2/hour], mode: shadow }
";

/// The number of an event in its id.
fn number(event: &ServerEvent) -> u64 {
    event.id.split_once('-').and_then(|(_, number)| number.parse().ok()).expect("a number")
}

#[test]
fn ticks_sum_to_the_counters_of_the_server() {
    let directory = tempdir().unwrap();
    let rules = file(directory.path(), "rules.yaml", RULES);
    let server = TollgateProcess::start(&["--rules", text(&rules)]);
    let mut events = EventReader::open(server.admin(), "");
    assert_eq!(events.status(), 200);
    let head = events.head.to_ascii_lowercase();
    for field in
        ["content-type: text/event-stream", "cache-control: no-store", "x-accel-buffering: no"]
    {
        assert!(head.contains(field), "{head}");
    }
    let body = json!({ "path": "/api/x", "user": "42" }).to_string();
    (0..9).for_each(|_| drop(server.check(&body)));
    let (mut sums, mut of_rules, mut is_timed) = ([0; 3], [0; 4], false);
    let count =
        |value: &Value, name: &str| value[name].as_u64().unwrap_or_else(|| panic!("{value}"));
    // A decision that is being made at the end of a second may be timed in the next one.
    while sums != [5, 4, 7] || !is_timed {
        let tick = events.next_named("tick").data;
        for (sum, name) in sums.iter_mut().zip(["allowed", "refused", "shadow"]) {
            *sum += count(&tick, name);
        }
        for rule in tick["rules"].as_array().unwrap() {
            let place = if rule["name"] == "api" { 0 } else { 2 };
            let second = if place == 0 { "refused" } else { "shadow" };
            of_rules[place] += count(rule, "allowed");
            of_rules[place + 1] += count(rule, second);
        }
        assert!(sums[0] <= 5 && sums[1] <= 4 && sums[2] <= 7, "{sums:?}");
        is_timed |= tick["latency_us"]["p99"].as_f64().is_some_and(|p99_us| p99_us > 0.0);
        let fixed = [("kind", json!("memory")), ("up", json!(true))];
        fixed.iter().for_each(|(name, want)| assert_eq!(tick["store"][name], *want));
        assert!(count(&tick, "interval_ms") > 0 && count(&tick["connections"], "admin") >= 1);
        assert_eq!((count(&tick, "waiting"), count(&tick, "tunnels")), (0, 0));
        assert_eq!(count(&tick["other_rules"], "rules"), 0);
    }
    assert_eq!(of_rules, [5, 4, 2, 7]);
}

#[test]
fn the_last_refusals_of_a_second_are_events_and_each_comes_once() {
    let server = TollgateProcess::start(&["--limit", "1/hour"]);
    let mut events = EventReader::open(server.admin(), "");
    (0..9).for_each(|_| drop(server.check(r#"{"user":"42"}"#)));
    let listed = server.admin_get("/api/refusals?n=100", &[]).json();
    let listed = listed["refusals"].as_array().expect("refusals").clone();
    // A second may have ended in between: then it has events of its own.
    let (mut seen, mut in_second) = (Vec::new(), 0);
    while seen.last() != listed.first() {
        let event = events.next().expect("the stream goes on");
        match &*event.name {
            "refusal" => {
                seen.push(event.data);
                in_second += 1;
            }
            _ => in_second = 0,
        }
        assert!(in_second <= 5, "{seen:?}");
    }
    let of_list: Vec<&Value> = listed.iter().rev().filter(|one| seen.contains(one)).collect();
    assert_eq!(seen.iter().collect::<Vec<_>>(), of_list);
    assert_eq!(seen[0]["key"], "user=42");
    events.next_named("tick");
    assert_eq!(events.next().unwrap().name, "tick", "no refusal comes twice");
}

#[test]
fn a_stream_continues_after_the_last_event_of_its_reader() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let mut first = EventReader::open(server.admin(), "");
    let seen: Vec<_> = (0..3).map(|_| first.next().unwrap()).collect();
    assert!(seen.windows(2).all(|pair| number(&pair[1]) == number(&pair[0]) + 1), "{seen:?}");
    let after = format!("last-event-id: {}\r\n", seen[0].id);
    let mut resumed = EventReader::open(server.admin(), &after);
    assert_eq!(
        [resumed.next().unwrap(), resumed.next().unwrap()],
        [seen[1].clone(), seen[2].clone()]
    );
    // Of another run, nothing is known.
    let mut other = EventReader::open(server.admin(), "last-event-id: 1234-1\r\n");
    assert!(number(&other.next().unwrap()) >= number(&seen[2]));
}

#[test]
fn streams_are_bounded_and_leave_room_for_other_requests() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let mut open: Vec<_> = (0..32).map(|_| EventReader::open(server.admin(), "")).collect();
    assert!(open.iter_mut().all(|stream| stream.status() == 200));
    let refused = server.admin_get("/api/events", &[]);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")), "{refused:?}");
    assert!(refused.message().starts_with("32 event streams are open"), "{refused:?}");
    // Streams are never idle, so none is closed for a probe; there is room for it beside them.
    for _ in 0..40 {
        assert_eq!(server.admin_get("/livez", &[]).status, 200);
    }
    assert!(open.iter_mut().all(|stream| stream.next().is_some()));
    drop(open.pop());
    // The server notices at the next event at the latest.
    let mut again = EventReader::open(server.admin(), "");
    while again.status() == 503 {
        open[0].next_named("tick");
        again = EventReader::open(server.admin(), "");
    }
    assert_eq!(again.next_named("tick").name, "tick");
}

#[test]
fn a_shutdown_ends_all_streams_at_once() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let mut streams: Vec<_> = (0..3).map(|_| EventReader::open(server.admin(), "")).collect();
    streams.iter_mut().for_each(|stream| drop(stream.next()));
    server.signal("TERM");
    for stream in &mut streams {
        // To the end of the body, not of the connection.
        while stream.next().is_some() {}
    }
    let ended = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stderr.contains("did not finish in time"), "{ended:?}");
}

#[test]
fn a_stream_needs_what_other_reads_need() {
    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "token", TOKEN);
    let server =
        TollgateProcess::start(&["--limit", "9/hour", "--admin-token-file", text(&tokens)]);
    let bearer = format!("Bearer {TOKEN}");
    // Method; path; header; status
    let rows = [
        ("GET", "/api/events", None, 401),
        ("GET", "/api/history", None, 401),
        ("GET", "/api/events", Some(("authorization", "Bearer wrong")), 401),
        ("HEAD", "/api/events", Some(("authorization", &*bearer)), 200),
        ("GET", "/api/events?x=1", Some(("authorization", &bearer)), 400),
        ("POST", "/api/events", Some(("authorization", &bearer)), 405),
        ("GET", "/api/history", Some(("authorization", &bearer)), 200),
    ];
    for (method, path, header, status) in rows {
        let mut client = TestHttpClient::connect(server.admin());
        let answer = client.request(method, path, header.as_slice(), "");
        assert_eq!(answer.status, status, "{method} {path} {answer:?}");
    }
    let mut open = EventReader::open(server.admin(), &format!("authorization: {bearer}\r\n"));
    assert_eq!((open.status(), open.next().unwrap().name.as_str()), (200, "tick"));
    // Another site cannot read it through a browser.
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let other = server.admin_get("/api/events", &[("origin", "https://evil.example")]);
    assert_eq!(other.status, 403);
}

#[test]
fn a_stream_over_http2_is_the_same() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let read = async {
        let stream = tokio::net::TcpStream::connect(server.admin()).await.expect("it is open");
        let (sender, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
        let connection = tokio::spawn(connection);
        let mut sender = sender.ready().await.expect("a connection");
        let request = http::Request::get(format!("http://{}/api/events", server.admin()));
        let (response, _) =
            sender.send_request(request.body(()).unwrap(), true).expect("a request");
        let mut body = response.await.expect("a head").into_body();
        let mut received = String::new();
        let mut stopped = false;
        while let Some(data) = body.data().await {
            let data: Bytes = data.expect("no reset");
            body.flow_control().release_capacity(data.len()).expect("room");
            received += std::str::from_utf8(&data).expect("events are UTF-8");
            if received.matches("event: tick").count() == 2 && !stopped {
                server.signal("TERM");
                stopped = true;
            }
        }
        drop((body, sender));
        let _ = connection.await;
        received
    };
    let received = runtime.block_on(async { tokio::time::timeout(DEADLINE, read).await });
    let received = received.expect("the stream ends");
    let events: Vec<_> = received.split_inclusive("\n\n").filter_map(parse).collect();
    assert!(events.len() >= 2 && events.iter().all(|event| event.name == "tick"), "{received}");
    assert_eq!(server.wait().code, Some(0));
}
