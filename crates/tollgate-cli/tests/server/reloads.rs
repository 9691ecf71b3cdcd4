//! `GET /api/reloads` and the event `reload`: what has changed the rules, and what failed.

use serde_json::{Value, json};
use tempfile::tempdir;

use super::event_reader::EventReader;
use crate::harness::{TestHttpClient, TollgateProcess, file, text};

const RULES: &str = "rules:\n  - { name: api, key: '{user}', limits: [5/hour] }\n";

fn change(server: &TollgateProcess, method: &str, path: &str, body: &str) -> u16 {
    let mut client = TestHttpClient::connect(server.admin());
    client.request(method, path, &[("x-tollgate-admin", "1")], body).status
}

fn reloads(server: &TollgateProcess) -> Vec<Value> {
    let answer = server.admin_get("/api/reloads", &[]);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["reloads"].as_array().expect("a list").clone()
}

#[test]
fn every_attempt_is_listed_with_what_it_changed() {
    let directory = tempdir().unwrap();
    let rules = file(directory.path(), "rules.yaml", RULES);
    let server = TollgateProcess::start(&["--rules", text(&rules), "--rules-watch", "off"]);
    assert_eq!(reloads(&server), [json!(null); 0]);
    let mut events = EventReader::open(server.admin(), "");

    file(directory.path(), "rules.yaml", RULES.replace("5/hour", "9/hour"));
    assert_eq!(change(&server, "POST", "/api/reload", ""), 200);
    assert_eq!(change(&server, "POST", "/api/reload", ""), 200);
    assert_eq!(change(&server, "PUT", "/api/rules", "rules: [{ name: api, limit: 1/hour }]"), 400);
    let put = "rules:\n  - { name: new, key: '{user}', limits: [9/hour] }\n";
    assert_eq!(change(&server, "PUT", "/api/rules", put), 200);

    let listed = reloads(&server);
    let shown = |entry: &Value| {
        let field = |name: &str| entry[name].as_str().unwrap_or_default().to_string();
        (field("cause"), field("result"), entry["version"].clone(), entry["errors"].clone())
    };
    let want = [
        ("PUT /api/rules", "loaded", 3, 0),
        ("PUT /api/rules", "refused", 2, 2),
        ("POST /api/reload", "unchanged", 2, 0),
        ("POST /api/reload", "loaded", 2, 0),
    ];
    let want = want.map(|(cause, result, version, errors)| {
        (cause.to_string(), result.to_string(), json!(version), json!(errors))
    });
    assert_eq!(listed.iter().map(shown).collect::<Vec<_>>(), want);
    let [put, refused, unchanged, first] = &listed[..] else { panic!("{listed:?}") };

    let path = text(&rules);
    let diff = format!(
        "--- {path}\n+++ {path}\n@@ -1,2 +1,2 @@\n rules:\n-  - {{ name: api, key: '{{user}}', limits: [5/hour] }}\n\
         +  - {{ name: api, key: '{{user}}', limits: [9/hour] }}\n"
    );
    assert_eq!(first["diff"], diff);
    assert_eq!(
        (&first["changes"]["changed"], &first["diagnostics"]),
        (&json!(["api"]), &json!(null))
    );
    assert_eq!((&unchanged["changes"], &unchanged["diff"]), (&json!(null), &json!(null)));
    assert!(refused["diagnostics"].as_str().unwrap().contains("limit"), "{refused}");
    assert_eq!(
        (&put["changes"]["added"], &put["changes"]["removed"], &put["changes"]["names_left_out"]),
        (&json!(["new"]), &json!(["api"]), &json!(0))
    );
    assert!(put["diff"].as_str().unwrap().contains("+++ PUT /api/rules\n"), "{put}");

    // The oldest first, each once, and in short.
    for entry in listed.iter().rev() {
        let event = events.next_named("reload").data;
        assert_eq!(shown(&event), shown(entry));
        assert_eq!((&event["at"], &event["diff"]), (&entry["at"], &Value::Null));
    }
}

#[test]
fn the_list_of_attempts_is_bounded() {
    let server = TollgateProcess::start(&["--limit", "5/hour"]);
    let long = format!("rules: [{}", "{ name: x }, ".repeat(2_000));
    for turn in 0..60 {
        let rules = format!("rules: [{{ name: r{turn}, key: '{{user}}', limits: [1/hour] }}]");
        assert_eq!(change(&server, "PUT", "/api/rules", &rules), 200);
        assert_eq!(change(&server, "PUT", "/api/rules", &long), 400);
    }
    let listed = reloads(&server);
    assert_eq!(listed.len(), 50);
    assert_eq!(listed[1]["changes"]["added"], json!(["r59"]));
    let bytes = server.admin_get("/api/reloads", &[]).body.len();
    assert!(bytes < 2 << 20, "{bytes}");
}
