//! `GET /metrics`: both formats, what is counted, and how little there is of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use tempfile::{TempDir, tempdir};

use crate::harness::{TestHttpClient, TollgateProcess, file, text};
use crate::server::exposition::ParsedExposition;

const OPEN_METRICS: (&str, &str) = ("accept", "application/openmetrics-text; version=1.0.0");

fn serve(rules: &str, more: &[&str]) -> (TollgateProcess, TempDir) {
    let directory = tempdir().unwrap();
    let rules = file(directory.path(), "rules.yaml", rules);
    (TollgateProcess::start(&[&["--rules", text(&rules)], more].concat()), directory)
}

fn metrics(server: &TollgateProcess) -> ParsedExposition {
    ParsedExposition::of_text(&server.admin_get("/metrics", &[]).body)
}

const RULES: &str = "rules:
  - name: login
    match: { path: /login }
    key: '{user}'
    # A log: a window counter would let one more in when an hour of the clock begins.
    limits: [{ rate: 2/hour, algorithm: sliding_window_log }]
    ban: { after: 3, within: 1m, for: 15m }
  - name: watch
    match: { path: /login }
    key: '{user}'
    limits: [1/day]
    mode: shadow
  - name: advice
    match: { path: /login }
    key: '{user}'
    limits: [1/week]
    soft: true
  - name: work
    match: { path: /work }
    key: '{user}'
    limits: [100/hour]
    concurrency: 1
";

#[test]
fn both_formats_are_well_formed_and_say_the_same() {
    let (server, _rules) = serve(RULES, &[]);
    server.check(r#"{"user":"42","path":"/login"}"#);
    let plain = server.admin_get("/metrics", &[]);
    assert_eq!(plain.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let open = server.admin_get("/metrics", &[OPEN_METRICS]);
    let want = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(open.header("content-type"), Some(want));
    let (plain, open) =
        (ParsedExposition::of_text(&plain.body), ParsedExposition::of_open_metrics(&open.body));
    // What changes because it is asked for.
    let moves = ["process_", "tollgate_connections", "tollgate_http_responses_total"];
    let steady = |page: &ParsedExposition| {
        let samples =
            page.samples().filter(|one| !moves.iter().any(|name| one.name.starts_with(name)));
        samples.cloned().collect::<Vec<_>>()
    };
    assert!(steady(&plain).len() > 60);
    assert_eq!(steady(&plain), steady(&open));
    let kinds = |page: &ParsedExposition| {
        page.families.iter().map(|one| one.sample_name().into()).collect()
    };
    let (of_plain, of_open): (Vec<String>, Vec<String>) = (kinds(&plain), kinds(&open));
    assert_eq!(of_plain, of_open);
    let units = open.families.iter().filter(|family| family.unit.is_some()).count();
    assert!(units >= 5, "{units}");
}

#[cfg(target_os = "linux")]
#[test]
fn the_reference_lists_every_family() {
    // With a shared store, an upstream, a rule that lets requests wait and work under an adaptive bound there are all of
    // them.
    let redis = testkit::redis::TestRedis::start();
    let gateway = ["--gateway", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9"];
    let turns = "  - { name: turns, match: { path: /turns }, key: global, concurrency: adaptive, fair: { wait: 1s } }";
    let rules = format!("{RULES}{turns}\n");
    let (server, _rules) = serve(&rules, &[&["--store", &redis.url()][..], &gateway].concat());
    assert_eq!(server.post("/v1/reserve", r#"{"path":"/turns"}"#).status, 200);
    let page = server.admin_get("/metrics", &[OPEN_METRICS]);
    let page = ParsedExposition::of_open_metrics(&page.body);
    // Name, kind, labels.
    let told: BTreeSet<(String, String, BTreeSet<String>)> = page
        .families
        .iter()
        .map(|family| {
            let labels = family.labels().into_iter().map(String::from).collect();
            (family.sample_name().to_string(), family.kind.clone(), labels)
        })
        .collect();
    let reference = include_str!("../../../../docs/reference/metrics.md");
    let listed: BTreeSet<_> = reference
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
            let name = cells.next()?.trim_end_matches('`');
            let (kind, labels) = (cells.next()?, cells.next()?);
            if !name.contains('_') {
                return None;
            }
            let labels = labels.split(',').map(|label| label.trim().trim_matches('`'));
            let labels = labels.filter(|label| !label.is_empty()).map(String::from).collect();
            Some((name.to_string(), kind.to_string(), labels))
        })
        .collect();
    assert_eq!(told, listed);
}

#[test]
fn every_outcome_is_counted_once() {
    let (server, _rules) = serve(RULES, &[]);
    let check = |body: &str| server.post("/v1/check", body).status;
    let login = r#"{"user":"secret-caller","path":"/login"}"#;
    let statuses: Vec<_> = (0..6).map(|_| check(login)).collect();
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429]);
    // Only asks; asks for too much; no rule applies.
    assert_eq!(check(r#"{"user":"1","path":"/login","cost":0}"#), 200);
    assert_eq!(check(r#"{"user":"1","path":"/work","cost":101}"#), 429);
    assert_eq!(check(r#"{"path":"/none"}"#), 200);
    assert_eq!(check(r#"{"path":"/work"}"#), 400, "whose work?");
    let reserve = || server.post("/v1/reserve", r#"{"user":"1","path":"/work"}"#).status;
    assert_eq!((reserve(), reserve()), (200, 429));
    assert_eq!(check("x"), 400);

    let page = metrics(&server);
    let decisions = |rule| {
        ["allowed", "refused", "shadow", "soft"].map(|outcome| {
            page.value("tollgate_decisions_total", &[("rule", rule), ("outcome", outcome)])
        })
    };
    assert_eq!(decisions("login"), [2.0, 4.0, 0.0, 0.0]);
    let [allowed, refused, shadow, soft] = decisions("watch");
    assert_eq!((allowed, refused, soft), (1.0, 0.0, 0.0));
    assert_eq!(allowed + shadow, 6.0);
    let [allowed, refused, shadow, soft] = decisions("advice");
    assert_eq!((allowed, refused, shadow), (1.0, 0.0, 0.0));
    assert_eq!(allowed + soft, 6.0);
    let requests = |outcome| page.value("tollgate_requests_total", &[("outcome", outcome)]);
    assert_eq!((requests("allowed"), requests("refused")), (4.0, 6.0));
    let refusals = |reason| page.value("tollgate_refusals_total", &[("reason", reason)]);
    let reasons = [
        "over_limit",
        "blocked",
        "never_fits",
        "busy",
        "too_many_limits",
        "store_unavailable",
        "empty_key",
    ];
    assert_eq!(reasons.map(refusals), [3.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
    let rows = [
        ("tollgate_bans_total", 1.0),
        ("tollgate_blocks", 1.0),
        ("tollgate_reservations", 1.0),
        ("tollgate_missing_facts_total", 1.0),
        ("tollgate_unanswered_total", 1.0),
        ("tollgate_left_out_limits_total", 0.0),
        ("tollgate_rules", 4.0),
        ("tollgate_rules_version", 1.0),
        ("tollgate_rules_last_reload_successful", 1.0),
        ("tollgate_credentials_last_reload_successful", 1.0),
        ("tollgate_log_lines_dropped_total", 0.0),
        // All that the gatekeeper was asked, also the one that only asked.
        ("tollgate_decision_seconds_count", 12.0),
    ];
    for (name, want) in rows {
        assert_eq!(page.value(name, &[]), want, "{name}");
    }
    assert!(page.value("tollgate_decision_seconds_sum", &[]) > 0.0);
    assert_eq!(page.value("tollgate_store_up", &[("store", "memory")]), 1.0);
    let sent =
        |code| page.value("tollgate_http_responses_total", &[("listener", "http"), ("code", code)]);
    assert_eq!(["200", "429", "400", "other"].map(sent), [5.0, 6.0, 2.0, 0.0]);
    assert!(page.value("tollgate_keys", &[]) > 0.0);
    assert!(page.value("tollgate_keys_capacity", &[]) >= 10_000.0);
    assert!(page.samples().all(|one| one.labels.values().all(|value| !value.contains("secret"))));
}

#[test]
fn more_than_sixteen_limits_are_a_reason_of_their_own() {
    let rule = |n| {
        let header = format!("match: {{ header: {{ x-{n}: '1' }} }}");
        format!("  - {{ name: r{n}, {header}, key: '{{user}}', limits: [9/hour] }}\n")
    };
    let rules = (0..17).map(rule).collect::<String>();
    let (mut server, _rules) = serve(&format!("rules:\n{rules}"), &[]);
    let headers: Vec<_> = (0..17).map(|n| format!("\"x-{n}\":\"1\"")).collect();
    let body = format!("{{\"user\":\"1\",\"headers\":{{{}}}}}", headers.join(","));
    assert_eq!(server.post("/v1/check", &body).status, 429);
    let page = metrics(&server);
    assert_eq!(page.value("tollgate_refusals_total", &[("reason", "too_many_limits")]), 1.0);
    server.wait_for_log("reason=too_many_limits");
}

#[test]
fn connections_are_counted_by_listener() {
    let (server, _rules) =
        serve(RULES, &["--max-connections", "2", "--max-connections-per-ip", "2"]);
    let mut held = [TestHttpClient::connect(server.http()), TestHttpClient::connect(server.http())];
    for client in &mut held {
        assert_eq!(
            client.request("POST", "/v1/check", &[], r#"{"user":"1","cost":0}"#).status,
            200
        );
    }
    assert!(TestHttpClient::connect(server.http()).until_closed().contains("503"));
    let page = metrics(&server);
    let value = |name, listener| page.value(name, &[("listener", listener)]);
    assert_eq!(value("tollgate_connections", "http"), 2.0);
    assert_eq!(value("tollgate_connections", "admin"), 1.0);
    assert_eq!(value("tollgate_connections_accepted_total", "http"), 2.0);
    let refused = |reason| {
        let labels = [("listener", "http"), ("reason", reason)];
        page.value("tollgate_connections_refused_total", &labels)
    };
    assert_eq!((refused("max_connections"), refused("max_connections_per_ip")), (1.0, 0.0));
}

#[test]
fn a_million_callers_are_no_more_series_than_one() {
    let flags = ["--limit", "1/hour", "--max-keys", "1000000"];
    let server = TollgateProcess::start(&flags);
    let series = |page: &ParsedExposition| -> BTreeSet<(String, BTreeMap<String, String>)> {
        page.samples().map(|one| (one.name.clone(), one.labels.clone())).collect()
    };
    server.check(r#"{"user":"first"}"#);
    let before = metrics(&server);
    let mut client = TestHttpClient::connect(server.http());
    let mut body = String::new();
    for batch in 0..1_000 {
        body.clear();
        for index in 0..1_000 {
            body.push(if index == 0 { '[' } else { ',' });
            write!(body, "{{\"user\":\"u{batch}-{index}\"}}").unwrap();
        }
        body.push(']');
        assert_eq!(client.request("POST", "/v1/check/batch", &[], &body).status, 200);
    }
    let after = metrics(&server);
    assert_eq!(series(&before), series(&after));
    let allowed =
        |page: &ParsedExposition| page.value("tollgate_requests_total", &[("outcome", "allowed")]);
    assert_eq!(allowed(&after) - allowed(&before), 1_000_000.0);
}

#[test]
fn rules_beyond_the_thousandth_are_one_series() {
    let rule = |index: usize| {
        format!(
            "  - {{ name: r{index}, match: {{ path: /{index} }}, key: '{{user}}', limits: [1/hour] }}\n"
        )
    };
    let rules = (0..1_100).map(rule).collect::<String>();
    let (server, _rules) = serve(&format!("rules:\n{rules}"), &[]);
    for path in ["/0", "/999", "/999", "/1000", "/1099", "/1099"] {
        server.check(&format!(r#"{{"user":"1","path":"{path}"}}"#));
    }
    let page = metrics(&server);
    let family = page.families.iter().find(|one| one.name == "tollgate_decisions_total").unwrap();
    assert_eq!(family.samples.len(), 1_001 * 6);
    let count = |rule, outcome| {
        page.value("tollgate_decisions_total", &[("rule", rule), ("outcome", outcome)])
    };
    assert_eq!((count("r999", "allowed"), count("r999", "refused")), (1.0, 1.0));
    assert_eq!((count("(other)", "allowed"), count("(other)", "refused")), (2.0, 1.0));
}

#[test]
fn whoever_may_look_at_health_may_look_at_metrics() {
    let directory = tempdir().unwrap();
    let token = file(directory.path(), "token", "0123456789abcdef\n");
    let server = TollgateProcess::start(&["--limit", "9/hour", "--admin-token-file", text(&token)]);
    assert_eq!(server.admin_get("/metrics", &[]).status, 200);
    assert_eq!(server.admin_get("/metrics", &[("host", "example.com")]).status, 200);
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    assert_eq!(server.admin_get("/metrics", &[("host", "example.com")]).status, 403);
    let mut client = TestHttpClient::connect(server.admin());
    assert_eq!(client.request("POST", "/metrics", &[], "").status, 405);
    assert_eq!(client.request("HEAD", "/metrics", &[], "").status, 200);
    assert_eq!(server.get("/metrics").status, 404, "not on the data listener");
}

#[test]
fn reloads_are_counted_by_what_came_of_them() {
    let directory = tempdir().unwrap();
    let rules = |limit: &str| {
        let rules = format!("rules:\n  - {{ name: api, key: '{{user}}', limits: [{limit}] }}\n");
        file(directory.path(), "rules.yaml", rules)
    };
    let path = rules("1/hour");
    let server = TollgateProcess::start(&["--rules", text(&path), "--rules-watch", "off"]);
    let reload = || {
        let mut admin = TestHttpClient::connect(server.admin());
        admin.request("POST", "/api/reload", &[("x-tollgate-admin", "1")], "").status
    };
    // limit of the file | status, version, loaded, failed, unchanged, successful
    let rows = [
        ("1/hour", 200, [1.0, 1.0, 0.0, 1.0, 1.0]),
        ("2/hour", 200, [2.0, 2.0, 0.0, 1.0, 1.0]),
        ("2/moon", 400, [2.0, 2.0, 1.0, 1.0, 0.0]),
        ("3/hour", 200, [3.0, 3.0, 1.0, 1.0, 1.0]),
    ];
    let mut loaded_at = 0.0;
    for (limit, status, want) in rows {
        rules(limit);
        assert_eq!(reload(), status, "{limit}");
        let page = metrics(&server);
        let result = |result| page.value("tollgate_reloads_total", &[("result", result)]);
        let told = [
            page.value("tollgate_rules_version", &[]),
            result("loaded"),
            result("failed"),
            result("unchanged"),
            page.value("tollgate_rules_last_reload_successful", &[]),
        ];
        assert_eq!(told, want, "{limit}");
        let at = page.value("tollgate_rules_last_reload_success_timestamp_seconds", &[]);
        assert!(at >= loaded_at && at > 1.7e9, "{at}");
        loaded_at = at;
    }
    // What a rule has counted goes on.
    server.check(r#"{"user":"1"}"#);
    rules("4/hour");
    assert_eq!(reload(), 200);
    let page = metrics(&server);
    let allowed = [("rule", "api"), ("outcome", "allowed")];
    assert_eq!(page.value("tollgate_decisions_total", &allowed), 1.0);
}
