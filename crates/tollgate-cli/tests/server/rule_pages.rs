//! `GET /api/rules` a page at a time: searched, sorted, and as compiled.

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::harness::{TollgateProcess, file, text};

const RULES: &str = "
rules:
  - { name: uploads, match: { path: '/up/{*rest}', method: [POST, PUT] }, key: '{user}', limits: [5/hour], cost: bytes }
  - { name: api, match: { path: '/api/{*rest}' }, key: '{user}', limits: [2/hour, 100/minute burst 20] }
  - { name: API-old, match: { path: /old }, key: '{ip}', limits: [1/hour], cost: 3 }
  - { name: all, key: '{ip}', limits: [1000/hour] }
";

fn page(server: &TollgateProcess, query: &str) -> Value {
    let answer = server.admin_get(&format!("/api/rules{query}"), &[]);
    assert_eq!(answer.status, 200, "{query} {answer:?}");
    answer.json()
}

fn names(page: &Value) -> Vec<&str> {
    let rules = page["rules"].as_array().expect("rules");
    rules.iter().map(|rule| rule["name"].as_str().expect("a name")).collect()
}

#[test]
fn rules_are_searched_sorted_and_shown_in_pages() {
    let directory = tempdir().unwrap();
    let rules = file(directory.path(), "rules.yaml", RULES);
    let server = TollgateProcess::start(&["--rules", text(&rules)]);
    let body = json!({ "path": "/api/x", "user": "1", "ip": "192.0.2.1" }).to_string();
    (0..5).for_each(|_| drop(server.check(&body)));
    // Query; matching; names
    let rows: [(&str, usize, &[&str]); 11] = [
        ("", 4, &["uploads", "api", "API-old", "all"]),
        ("?q=api", 2, &["api", "API-old"]),
        ("?q=AP&n=1", 2, &["api"]),
        ("?q=AP&n=1&from=1", 2, &["API-old"]),
        ("?q=none", 0, &[]),
        ("?from=3", 4, &["all"]),
        ("?from=4", 4, &[]),
        ("?sort=name", 4, &["API-old", "all", "api", "uploads"]),
        ("?sort=requests&n=2", 4, &["api", "all"]),
        ("?sort=refused&n=1", 4, &["api"]),
        ("?sort=order&n=1000&q=", 4, &["uploads", "api", "API-old", "all"]),
    ];
    for (query, matching, want) in rows {
        let page = page(&server, query);
        assert_eq!(names(&page), want, "{query}");
        assert_eq!((&page["matching"], &page["total"]), (&json!(matching), &json!(4)), "{query}");
    }
    let wrong = [
        ("?n=0", "n is a number from 1 to 1000."),
        ("?n=1001", "n is a number from 1 to 1000."),
        ("?from=-1", "from is a number"),
        ("?sort=luck", "sort is one of order, name, requests, refused."),
        ("?Q=x", "There is no parameter `Q`: there are q, sort, from, n."),
    ];
    for (query, message) in wrong {
        let answer = server.admin_get(&format!("/api/rules{query}"), &[]);
        assert_eq!(answer.status, 400, "{query}");
        assert!(answer.message().contains(message), "{query} {answer:?}");
    }
}

#[test]
fn a_rule_is_shown_as_it_was_compiled() {
    let directory = tempdir().unwrap();
    let rules = file(directory.path(), "rules.yaml", RULES);
    let server = TollgateProcess::start(&["--rules", text(&rules)]);
    let all = page(&server, "");
    let [uploads, api, old, everything] = &all["rules"].as_array().unwrap()[..] else {
        panic!("{all}");
    };
    assert_eq!(api["match"], "path matches /api/{*rest}");
    assert_eq!(uploads["match"], "path matches /up/{*rest} and method is POST or PUT");
    assert_eq!(everything["match"], Value::Null);
    let costs = [uploads, api, old].map(|rule| rule["cost"].as_str().unwrap());
    assert_eq!(costs, ["the bytes of the bodies", "1", "3"]);
    let want = json!([
        { "limit": "2/hour", "algorithm": "sliding_window_counter", "units": 2, "period_ms": 3_600_000, "capacity": 2 },
        { "limit": "100/minute burst 20", "algorithm": "token_bucket", "units": 100, "period_ms": 60_000, "capacity": 20 },
    ]);
    assert_eq!(api["compiled"], want);
}
