//! `/api/candidate`: other rules, tried on the traffic that the server has recorded.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};
use testkit::wait::now;

use crate::harness::{TestHttpClient, TestHttpResponse, TollgateProcess, file, run, text};

/// Limits so slow that the seconds of a test do not matter.
const NOW: &str = "
rules:
  - name: api
    match: { path: '/api/{*rest}' }
    key: '{user|ip}'
    limits: [{ rate: 5/day, algorithm: fixed_window, align: first_hit }]
    cost: { default: 1, 'POST /api/heavy': 4 }
  - { name: partner, match: { header: { x-partner: acme } }, key: global, limits: [4/day] }
";

const THEN: &str = "
rules:
  - name: api
    match: { path: '/api/{*rest}' }
    key: '{user|ip}'
    limits: [{ rate: 3/day, algorithm: fixed_window, align: first_hit }]
    cost: { default: 1, 'POST /api/heavy': 3 }
  - { name: partner, match: { header: { x-partner: acme } }, key: global, limits: [6/day] }
  - { name: net, match: { ip: 192.0.2.0/24 }, key: '{ip}', limits: [1/day] }
";

struct CandidateFixture {
    server: TollgateProcess,
    directory: TempDir,
}

impl CandidateFixture {
    fn start(rules: &str, flags: &[&str]) -> CandidateFixture {
        let directory = tempdir().unwrap();
        let rules = file(directory.path(), "rules.yaml", rules);
        let server = TollgateProcess::start(&[&["--rules", text(&rules)], flags].concat());
        CandidateFixture { server, directory }
    }

    fn try_rules(&self, rules: &str) -> TestHttpResponse {
        try_at(self.server.admin(), rules)
    }
}

fn try_at(admin: SocketAddr, rules: &str) -> TestHttpResponse {
    let headers = [("x-tollgate-admin", "1")];
    TestHttpClient::connect(admin).request("POST", "/api/candidate", &headers, rules)
}

/// Requests as bodies of `/v1/check`, and thereby as facts of a trace.
fn traffic() -> Vec<Value> {
    let mut traffic = Vec::new();
    for turn in 0..8 {
        for user in ["anna", "bert"] {
            let method = if turn % 3 == 0 { "POST" } else { "GET" };
            let path = if turn % 2 == 0 { "/api/heavy" } else { "/api/light" };
            traffic.push(json!({ "method": method, "path": path, "user": user }));
        }
        traffic.push(json!({ "path": "/api/x", "ip": format!("192.0.2.{}", turn % 2) }));
        traffic.push(
            json!({ "path": "/b", "ip": "198.51.100.1", "headers": { "x-partner": "acme" } }),
        );
        traffic.push(json!({ "path": "/c", "ip": "198.51.100.1" }));
    }
    traffic
}

#[test]
fn a_candidate_is_told_as_simulate_tells_it() {
    let fixture = CandidateFixture::start(NOW, &[]);
    let mut refused = 0;
    for request in traffic() {
        refused += u64::from(fixture.server.check(&request.to_string())["allowed"] == false);
    }
    let answer = fixture.try_rules(THEN);
    assert_eq!(answer.status, 200, "{answer:?}");
    let told = answer.json();
    assert_eq!(told["recorded"]["requests"], traffic().len());
    assert_eq!(told["recorded"]["sampled"], "all callers");
    assert_eq!(told["now"]["refused"], refused, "the replay answers as the server did: {told:#}");
    assert_eq!(told["warnings"], "", "{told:#}");

    let trace: String = (0_u64..)
        .zip(traffic())
        .map(|(at, facts)| {
            json!({ "at": 1_700_000_000_000_000 + at, "facts": facts }).to_string() + "\n"
        })
        .collect();
    let directory = fixture.directory.path();
    let trace = file(directory, "trace.jsonl", trace);
    let now = file(directory, "rules.yaml", NOW);
    let then = file(directory, "then.yaml", THEN);
    let args =
        ["simulate", "--rules", text(&now), "--against", text(&then), "--trace", text(&trace)];
    let ran = run(&args);
    let changed: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(told["changed"], changed.len());
    let summary = ran.stderr;
    let row = |name: &str| -> Vec<u64> {
        let found = summary.lines().find(|line| line.split_whitespace().next() == Some(name));
        let cells = found.map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>());
        cells.unwrap_or_default().iter().map(|cell| cell.parse().unwrap()).collect()
    };
    for rule in told["rules"].as_array().unwrap() {
        let counts =
            [&rule["now_refused"], &rule["then_refused"]].map(|count| count.as_u64().unwrap());
        assert_eq!(row(rule["name"].as_str().unwrap())[..2], counts, "{rule} {summary}");
    }
    assert!(
        summary.contains(&format!("\nrefused then {:>17}\n", told["then"]["refused"].to_string())),
        "{summary}"
    );
    for (example, line) in told["examples"].as_array().unwrap().iter().zip(&changed) {
        assert_eq!(example["path"], line["facts"]["path"]);
        for side in ["now", "then"] {
            for field in ["allowed", "rule", "limit"] {
                assert_eq!(example[side][field], line[side][field], "{example} {line}");
            }
        }
    }
    let sum = |column: &str| -> u64 {
        told["series"][column].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum()
    };
    assert_eq!(sum("offered"), traffic().len() as u64);
    assert_eq!(sum("then_refused"), told["then"]["refused"].as_u64().unwrap());
    let callers: Vec<_> =
        told["callers"].as_array().unwrap().iter().map(|one| &one["key"]).collect();
    assert!(callers.contains(&&json!("user=anna")) && callers.contains(&&json!("ip=192.0.2.1")));

    // Nothing was charged, and no rule of the candidate is in force.
    let rules = fixture.server.admin_get("/api/rules", &[]).json();
    assert!(!rules.to_string().contains("\"net\""));
    assert_eq!(rules["rules"][0]["tally"]["refused"], told["rules"][0]["now_refused"]);
    let again = fixture.try_rules(THEN).json();
    assert_eq!(again["changed"], told["changed"]);
}

#[test]
fn what_a_recording_cannot_show_is_said() {
    let fixture = CandidateFixture::start(NOW, &[]);
    let request = json!({ "path": "/api/x", "user": "a", "api_key": "hunter2", "headers": { "x-other": "o" } });
    fixture.server.check(&request.to_string());
    let candidate = "
identify: { user: { header: x-who } }
rules:
  - { name: other, match: { header: { x-other: o } }, key: '{ip}', limits: [1/day] }
  - { name: secret, match: { api_key: [hunter2] }, key: global, limits: [1/day] }
  - { name: turns, key: '{user}', limits: [1/s], fair: { wait: 1s } }
  - { name: tokens, key: '{ip}', limits: [10/day], cost: { reserve: 2 } }
";
    let answer = fixture.try_rules(candidate);
    assert!(!format!("{answer:?}").contains("hunter2"), "{answer:?}");
    let told = answer.json();
    let warnings = told["warnings"].as_str().unwrap();
    for part in [
        "identifies callers in another way",
        "does not find them: x-other",
        "conditions on their value do not hold: secret",
        "bounds on work in progress do not act: turns",
        "costs are the estimates without them: tokens",
    ] {
        assert!(warnings.contains(part), "{part}: {warnings}");
    }
    let by_address = "rules: [{ name: net, key: '{ip}', limits: [1/day] }]";
    let told = fixture.try_rules(by_address).json();
    let warning = "1 requests lack facts that the candidate needs and are allowed; the first: ";
    assert!(told["warnings"].as_str().unwrap().contains(warning), "{told:#}");
}

#[test]
fn wrong_candidates_and_empty_recordings_are_refused() {
    let fixture = CandidateFixture::start(NOW, &[]);
    let nothing = fixture.try_rules(THEN);
    assert_eq!((nothing.status, nothing.message().contains("No traffic")), (409, true));
    fixture.server.check("{}");
    let wrong = fixture.try_rules("rules:\n  - { name: a, key: '{nobody}', limits: [1/s] }\n");
    assert_eq!(wrong.status, 400);
    let wrong = wrong.json();
    assert!(wrong["diagnostics"].as_str().unwrap().contains("candidate:2:"), "{wrong}");
    assert_eq!(
        (&wrong["errors"][0]["line"], wrong["errors"][0]["column"].is_u64()),
        (&json!(2), true)
    );
    assert_eq!(fixture.try_rules("\u{1}").status, 400);
    let long = format!("# {}", "x".repeat(4 << 20));
    assert_eq!(fixture.try_rules(&long).status, 413);
    let mut client = TestHttpClient::connect(fixture.server.admin());
    assert_eq!(client.request("GET", "/api/candidate", &[], "").status, 405);
    let mut client = TestHttpClient::connect(fixture.server.admin());
    assert_eq!(client.request("POST", "/api/candidate", &[], THEN).status, 403);

    let off = CandidateFixture::start(NOW, &["--recent-traffic", "0"]);
    off.server.check("{}");
    let refused = off.try_rules(THEN);
    assert_eq!((refused.status, refused.message().contains("--recent-traffic")), (409, true));
}

/// A recorded file has the same answers as the server gave, whoever the callers are.
#[test]
fn a_recording_replays_to_the_same_answers_without_naming_anybody() {
    let directory = tempdir().unwrap();
    let (rules, trace) =
        (file(directory.path(), "now.yaml", NOW), directory.path().join("trace.jsonl"));
    let server = TollgateProcess::start(&["--rules", text(&rules), "--record", text(&trace)]);
    let mut refused = 0;
    for mut request in traffic() {
        request["api_key"] = "hunter2".into();
        refused += u64::from(server.check(&request.to_string())["allowed"] == false);
    }
    let admin = server.admin();
    let told = try_at(admin, NOW).json();
    assert_eq!(
        (told["now"]["refused"].as_u64(), told["changed"].as_u64()),
        (Some(refused), Some(0))
    );
    server.stop();
    let recorded = std::fs::read_to_string(&trace).unwrap();
    assert_eq!(recorded.lines().count(), traffic().len() + 1);
    for secret in ["anna", "bert", "hunter2", "192.0.2", "198.51"] {
        assert!(!recorded.contains(secret), "{secret}: {recorded}");
    }
    let ran = run(&["simulate", "--rules", text(&rules), "--trace", text(&trace)]);
    assert_eq!((ran.stdout.lines().count(), &*ran.stderr), (traffic().len(), ""));
    let refused_again =
        ran.stdout.lines().filter(|line| line.contains("\"allowed\":false,\"rule\"")).count();
    assert_eq!(refused_again as u64, refused);
    let then = file(directory.path(), "then.yaml", THEN);
    let ran = run(&[
        "simulate",
        "--rules",
        text(&rules),
        "--against",
        text(&then),
        "--trace",
        text(&trace),
    ]);
    assert!(
        ran.stderr.contains("conditions on users, API keys and addresses do not hold: net\n"),
        "{ran:?}"
    );
}

/// Candidates take time: of many at once two are tried, the others are told to come back, and the listener still
/// answers.
#[test]
fn only_two_candidates_are_tried_at_once() {
    let fixture = CandidateFixture::start(NOW, &[]);
    fixture.server.check("{}");
    let rule = |n: u32| {
        format!(
            "  - {{ name: r{n}, match: {{ path: '/p{n}/{{*rest}}' }}, key: '{{ip}}', limits: [{n}/s] }}\n"
        )
    };
    let candidate = format!("rules:\n{}", (1..4_000).map(rule).collect::<String>());
    let admin = fixture.server.admin();
    let deadline = now() + Duration::from_secs(60);
    loop {
        let statuses: Vec<u16> = thread::scope(|scope| {
            let ask = || try_at(admin, &candidate).status;
            let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            asking.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
        assert!(statuses.contains(&200), "{statuses:?}");
        if statuses.contains(&503) {
            return;
        }
        assert!(now() < deadline, "all of eight candidates were tried at once");
    }
}
