//! Upstreams and routes of rules files.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tollgate_rules::gateway_settings::{
    EjectionSettings, GatewaySettings, HealthProbe, UpstreamHost, UpstreamLimitFields,
    UpstreamVersion,
};
use tollgate_rules::{Compilation, RouteMatch, RuleSet, Source, compile};

const RULE: &str = "rules: [{ name: api, key: global, limits: 1/s }]\n";

fn compiled(texts: &[&str]) -> Compilation {
    let sources = texts.iter().zip(["a.yaml", "b.yaml", "c.yaml"]);
    let sources: Vec<_> = sources.map(|(text, name)| Source::from_text(name, text)).collect();
    compile(&sources)
}

fn rules_of(compilation: Compilation) -> RuleSet {
    compilation.rules.unwrap_or_else(|| panic!("{}", compilation.diagnostics))
}

fn route_of(gateway: &GatewaySettings, path: &str) -> String {
    match gateway.route(None, path) {
        RouteMatch::Upstream(number) => gateway.upstreams()[number].name.to_string(),
        other => format!("{other:?}"),
    }
}

#[test]
fn every_setting_of_an_upstream_is_read() {
    let sources = Source::read(Path::new("tests/good/gateway.yaml")).expect("the file is there");
    let compilation = compile(&sources);
    let named: Vec<_> = compilation.named_files.iter().map(|file| file.path().to_owned()).collect();
    let rules = rules_of(compilation);
    let [app, api, plain] = rules.settings().gateway.upstreams() else { panic!("three upstreams") };
    assert_eq!(
        (&*app.name, app.addresses[0].to_string().as_str()),
        ("app", "http://127.0.0.1:3000")
    );
    let urls: Vec<String> = api.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(urls, ["http://127.0.0.1:3001", "https://api2.internal:8443"]);
    assert_eq!(api.version, UpstreamVersion::Http2);
    assert_eq!(api.ca_file.as_ref().map(|file| &file.path), named.first());
    assert_eq!(api.server_name.as_deref(), Some("api.internal"));
    assert_eq!(api.host, UpstreamHost::Upstream);
    assert_eq!(api.limit_fields, UpstreamLimitFields::Apart);
    let times = [api.connect_timeout, api.response_timeout, api.idle_timeout];
    assert_eq!(times, [500, 30_000, 90_000].map(Duration::from_millis));
    let numbers = (api.retries, api.retry_budget_percent, api.connections_max);
    assert_eq!(numbers, (2, 20, 64));
    let ejection = EjectionSettings { after: 3, duration: Duration::from_secs(20) };
    assert_eq!(api.ejection, Some(ejection));
    let health = HealthProbe {
        path: "/healthz?deep=1".into(),
        interval: Duration::from_millis(500),
        timeout: Duration::from_millis(500),
        healthy: 1,
        unhealthy: 3,
    };
    assert_eq!(api.health, Some(health));
    assert_eq!((plain.ejection, &plain.health), (None, &None));
}

#[test]
fn one_upstream_needs_no_routes() {
    let rules = rules_of(compiled(&[RULE, "upstreams: { app: \"http://127.0.0.1:3000\" }"]));
    assert_eq!(route_of(&rules.settings().gateway, "/any"), "app");
    let rules = rules_of(compiled(&[RULE]));
    assert_eq!(*rules.settings().gateway, GatewaySettings::default());
    assert_eq!(route_of(&rules.settings().gateway, "/any"), "None");
}

#[test]
fn files_are_read_together_and_in_order() {
    let one = format!("{RULE}upstreams: {{ one: \"http://one\" }}");
    let two = "upstreams: { two: \"http://two\" }\nroutes: [{ path: /x, upstream: one }]";
    let three = "routes: [{ path: '/{*rest}', upstream: two }]";
    let compilation = compiled(&[&one, two, three]);
    assert!(compilation.diagnostics.is_empty(), "{}", compilation.diagnostics);
    let rules = rules_of(compilation);
    let found = ["/x", "/y"].map(|path| route_of(&rules.settings().gateway, path));
    assert_eq!(found, ["one", "two"]);

    let said = compiled(&[
        &format!("{one}\nroutes: [{{ path: /x, upstream: one }}]"),
        "upstreams: { one: \"http://two\" }\nroutes: [{ path: /x, upstream: one }]",
        "upstreams: { ones: \"http://three\" }\nroutes: [{ path: /z, upstream: onse }]",
    ]);
    assert!(said.rules.is_none());
    let said = said.diagnostics.to_string();
    for want in [
        "error: two upstreams are called `one`\n  --> b.yaml:1:14",
        "::: a.yaml:2:14",
        "error: two files have a route for this host and path\n  --> b.yaml:2:10",
        "::: a.yaml:3:10",
        "error: there is no upstream `onse`\n  --> c.yaml:2:32",
        "hint: did you mean `one`?",
    ] {
        assert!(said.contains(want), "{want} is not in\n{said}");
    }
}

#[test]
fn more_upstreams_and_routes_than_the_most_are_errors() {
    let upstreams = |count: usize| {
        let one = |n| format!("  u{n}: \"http://h{n}\"\n");
        format!("{RULE}upstreams:\n{}", (0..count).map(one).collect::<String>())
    };
    let routes = |count: usize| {
        let one = |n| format!("  - {{ path: /p{n}, upstream: u{} }}\n", n % 1_000);
        format!("routes:\n{}", (0..count).map(one).collect::<String>())
    };
    let most = compiled(&[&upstreams(1_000), &routes(1_000)]);
    assert!(most.diagnostics.is_empty(), "{}", most.diagnostics);
    assert_eq!(rules_of(most).settings().gateway.routes().len(), 1_000);
    let said = compiled(&[&upstreams(1_001), &routes(1_001)]).diagnostics.to_string();
    for want in [
        "there are more than 1000 upstreams\n    --> a.yaml:1003:3",
        "there are more than 1000 routes\n    --> b.yaml:1002:5",
    ] {
        assert!(said.contains(want), "{want} is not in\n{said}");
    }
}

#[test]
fn credentials_are_not_repeated() {
    let text = format!("{RULE}upstreams: {{ app: \"https://canary:canary@app\", b: x }}");
    let diagnostics = compiled(&[&text]).diagnostics;
    let said = diagnostics.to_string() + &diagnostics.to_json().to_string();
    assert!(said.contains("has no user and no password"), "{said}");
    assert!(!said.contains("canary"), "{said}");
}

#[test]
fn other_certificates_are_other_settings() {
    let directory = tempfile::tempdir().expect("a directory");
    let text =
        format!("{RULE}upstreams: {{ app: {{ addresses: [\"https://app\"], ca_file: ca.pem }} }}");
    let read = |pem: &str| {
        fs::write(directory.path().join("ca.pem"), pem).expect("written");
        let source = Source::from_text("rules.yaml", &text).in_folder(directory.path());
        compile(&[source])
    };
    let pem =
        |text: &str| format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
    let [first, same, other] = [pem("AAAA"), pem("AAAA"), pem("BBBB")].map(|pem| read(&pem));
    assert!(first.named_files == same.named_files && first.named_files != other.named_files);
    let [first, same, other] = [first, same, other].map(rules_of);
    assert_eq!(first.settings(), same.settings());
    assert_ne!(first.settings(), other.settings());
    for wrong in ["", "canary", "-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----"] {
        let said = read(wrong).diagnostics.to_string();
        assert!(said.contains("the file has no certificate in PEM"), "{said}");
        assert!(!said.contains("canary"), "{said}");
    }
}
