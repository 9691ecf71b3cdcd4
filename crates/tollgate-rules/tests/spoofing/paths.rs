//! Spellings of paths that look like another path to the rules than to some application: each row is a
//! request's target and the rules that have to apply to it.

use tollgate::{ManualClock, MemoryStore, Micros};
use tollgate_rules::matcher::{EXPRESSION_BYTES_FREE, EXPRESSION_BYTES_MAX};
use tollgate_rules::{Answer, Ask, Facts, Gatekeeper, Source, compile};

const NOON: Micros = Micros::from_secs(1_794_744_000);

struct PathGate(Gatekeeper<MemoryStore, ManualClock>);

impl PathGate {
    fn new(rules: &str) -> PathGate {
        let compiled = compile(&[Source::from_text("rules.yaml", rules)]);
        let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
        let (store, clock) = (MemoryStore::new(10_000), ManualClock::new(NOON));
        PathGate(Gatekeeper::new(rules, store, clock))
    }

    fn get(&self, path: &str) -> Answer {
        let facts = Facts {
            method: Some("GET"),
            path: Some(path),
            ip: "192.0.2.1".parse().ok(),
            ..Facts::default()
        };
        self.0.decide(&Ask { facts, ..Ask::default() })
    }

    /// The rules that apply to a path, in order, each once.
    fn rules(&self, path: &str) -> Vec<String> {
        let answer = self.get(path);
        let mut names: Vec<String> = answer.limits().map(|one| one.rule.to_owned()).collect();
        names.dedup();
        names
    }

    /// How many of so many requests for these paths, in turn, pass.
    fn passing(&self, paths: &[String]) -> usize {
        paths.iter().filter(|path| self.get(path).allowed()).count()
    }
}

#[test]
fn a_rule_applies_if_all_of_it_holds_for_one_spelling() {
    let gate = PathGate::new(
        "rules:
  - name: api
    match: { path: '/api/{*rest}', not: { path: /api/health } }
    key: '{ip}'
    limits: [1000/hour]
  - { name: health, match: { path: /api/health }, key: '{ip}', limits: [9000/hour] }
  - { name: login, match: { path: /login }, key: '{ip}', limits: [1000/hour] }
  - { name: search, match: { path: '/search/{*rest}' }, key: '{ip}', limits: [1000/hour] }
  - name: files
    match: { glob: '/files/**', not: { any: [{ glob: '/files/*.txt' }, { path: '/files/pub/{*x}' }] } }
    key: '{ip}'
    limits: [1000/hour]
  - { name: rest, fallback: true, key: '{ip}', limits: [1000/hour] }
",
    );
    let rows: [(&str, &[&str]); 43] = [
        ("/api/x", &["api"]),
        ("/api/health", &["health"]),
        ("/login", &["login"]),
        ("/none", &["rest"]),
        ("/", &["rest"]),
        // To uvicorn a report, to nginx the health of the application.
        ("/api/report%2F..%2Fhealth", &["api", "health"]),
        ("/api/report/../health", &["api", "health"]),
        ("/api/report%5C..%5Chealth", &["api", "health"]),
        ("/api/x;%2F..%2Fhealth", &["api", "health"]),
        ("/api/health;x", &["api", "health"]),
        ("/api/health%2Fx", &["api"]),
        // An application with a route for all below /api may serve these by it.
        ("/api/health/", &["api", "health"]),
        ("/api//health", &["api", "health"]),
        ("/api/health/.", &["api", "health"]),
        // Java cuts before it decodes, others do not cut.
        ("/login;%2Fx", &["login", "rest"]),
        ("/login;x", &["login", "rest"]),
        ("/login%3Bx", &["login", "rest"]),
        ("/a/..;/login", &["login", "rest"]),
        // nginx, Envoy or Traefik takes back a segment that is `..` to Tomcat or IIS behind it.
        ("/login/b/..;/..;/../", &["login", "rest"]),
        ("/search/b/..%2Fy/../..%2F..%2Flogin", &["login", "search"]),
        ("/api/b/..%5Cy/../..%5Chealth", &["api", "health", "rest"]),
        // nginx decodes the `;`, and Tomcat cuts up to a slash that is one.
        ("/login%3Bx%5Cy", &["login", "rest"]),
        ("/login%3B%5C..%5C..%5Cy", &["login", "rest"]),
        // The name of a generous endpoint is no way out of the fallback.
        ("/none%2F..%2Flogin", &["login", "rest"]),
        ("/none/../login", &["login", "rest"]),
        ("/none/..%2Flogin", &["login", "rest"]),
        ("/none\\..\\login", &["login", "rest"]),
        // But ways to write one path are one path, with and without a slash at the end.
        ("/login/", &["login"]),
        ("//login", &["login", "rest"]),
        ("/x//login", &["rest"]),
        ("/login?x=/../y", &["login"]),
        // To whoever does not decode, such as Express, these are other paths.
        ("/%6cogin", &["login", "rest"]),
        ("/api/%68ealth", &["api", "health"]),
        // What no server resolves reaches a route for all that follows.
        ("/search/shoes/../../y", &["search", "rest"]),
        ("/search/shoes/../../login", &["login", "search"]),
        ("/search/%2e%2e/y", &["search", "rest"]),
        // To whoever makes a URL of the target this is another host's path.
        ("//host/login", &["login", "rest"]),
        ("/\\host\\login", &["login", "rest"]),
        ("/login#/../x", &["login", "rest"]),
        // Globs and patterns in an `any` under a `not`.
        ("/files/x.txt", &["rest"]),
        ("/files/x.txt/", &["files", "rest"]),
        ("/files/pub/x/", &["rest"]),
        ("/files/x%2F..%2Fa.txt", &["files", "rest"]),
    ];
    for (path, want) in rows {
        assert_eq!(gate.rules(path), want, "{path}");
    }
}

#[test]
fn a_slash_at_the_end_fits_under_not_if_it_is_written() {
    let gate = PathGate::new(
        "rules: [{ name: api, match: { path: '/api/{*rest}', not: { path: /api/health/ } },
                   key: '{ip}', limits: [1000/hour] }]",
    );
    for (path, applies) in
        [("/api/health", false), ("/api/health/", false), ("/api/health//", true)]
    {
        assert_eq!(!gate.rules(path).is_empty(), applies, "{path}");
    }
}

#[test]
fn the_short_form_gives_its_default_to_what_looks_like_an_endpoint() {
    let gate = PathGate::new(
        "rate_limits: { default: { requests: 2, window: 3600 },
                        endpoints: { '/health': { requests: 1000, window: 3600 } } }",
    );
    let paths: Vec<String> = (0..10).map(|n| format!("/report{n}%2F..%2Fhealth")).collect();
    assert_eq!(gate.passing(&paths), 2, "uvicorn serves reports by this");
    assert_eq!(gate.passing(&vec!["/health/".to_owned(); 10]), 10);
}

#[test]
fn the_dearest_of_the_costs_counts_the_default_among_them() {
    let gate = PathGate::new(
        "rules:
  - name: api
    match: { path: '/api/{*rest}' }
    key: '{ip}'
    limits: [{ rate: 1000/hour, burst: 1000 }]
    cost: { default: 10, /api/health: 1, /api/upload: 50 }
",
    );
    let mut left = 1_000;
    for (path, cost) in [
        ("/api/x", 10),
        ("/api/health", 1),
        ("/api/upload/", 50),
        ("/api/x%2F..%2Fhealth", 10),
        ("/api/x/../upload", 50),
        ("/api/upload;%2F..%2Fhealth", 50),
        ("/api/upload;x", 50),
        ("/api/health;x", 10),
    ] {
        left -= cost;
        assert_eq!(gate.get(path).remaining(), left, "{path}");
    }
}

#[test]
fn what_an_application_does_not_see_of_a_path_buys_no_quota() {
    type PathVariant = fn(usize) -> String;
    let ways: [(&str, PathVariant); 6] = [
        ("servlets", |n| format!("/api/login;%2F{n}")),
        ("servlets that are short", |n| format!("/api/login;%2F..%2F..%2F{n}")),
        ("whoever makes a URL", |n| format!("//host{n}/api/login")),
        ("whoever resolves", |n| format!("/api/x{n}/../login")),
        ("whoever decodes and resolves", |n| format!("/api/x{n}%2F..%2Flogin")),
        ("fragments", |n| format!("/api/login#{n}")),
    ];
    for (servers, varied) in ways {
        let gate = PathGate::new(
            "rules: [{ name: api, match: { path: '/{*rest}' }, key: '{ip}:{path}', limits: [3/hour] }]",
        );
        let paths: Vec<String> = (0..20).map(varied).collect();
        assert_eq!(gate.passing(&paths), 3, "{servers}");
        // They went to the count that the path itself has.
        assert!(!gate.get("/api/login").allowed(), "{servers}");
    }
}

#[test]
fn refusals_under_each_spelling_earn_its_block() {
    let gate = PathGate::new(
        "rules: [{ name: api, match: { path: '/{*rest}' }, key: '{ip}:{path}', limits: [1/hour],
                   ban: { after: 3, within: 1m, for: 15m } }]",
    );
    let paths: Vec<String> = (0..4).map(|n| format!("/api/login;%2F{n}")).collect();
    assert_eq!(gate.passing(&paths), 1);
    assert_eq!(gate.0.stats().bans, 1);
    assert_eq!(gate.get("/api/login").decided_by(), tollgate::DecidedBy::Block);
}

#[test]
fn more_spellings_of_a_path_than_a_decision_holds_limits_are_a_refusal() {
    let gate = PathGate::new(
        "rules: [{ name: api, match: { path: '/{*rest}' }, key: '{ip}:{path}',
                   limits: [9/second, 90/minute, 900/hour, 9000/day] }]",
    );
    assert!(gate.get("/api/group%2Fproject").allowed());
    assert!(!gate.get("//h/a;x%2F..\\b/../c%2F..%2Fd;%3B/#/../e").allowed());
}

#[test]
fn long_texts_do_not_get_around_expressions_that_would_take_too_long() {
    let mut rules = String::from("rules:\n");
    for number in 0..900 {
        let glob = format!("/**/x{number}/**/*.json");
        rules += &format!(
            "- {{ name: r{number}, match: {{ glob: '{glob}' }}, key: global, limits: [9/hour] }}\n"
        );
    }
    rules +=
        "- { name: none, match: { not: { glob: '/**.json' } }, key: global, limits: [9/hour] }\n";
    let gate = PathGate::new(&rules);
    let of_length = |len: usize| "/a".repeat(len / 2);
    assert_eq!(gate.rules("/a/x7/b/c.json"), ["r7"]);
    assert_eq!(gate.rules(&of_length(EXPRESSION_BYTES_FREE)), ["none"]);
    assert_eq!(gate.rules(&of_length(EXPRESSION_BYTES_MAX / 901)), ["none"]);
    // More than 16 limits apply, and so it is refused.
    assert!(!gate.get(&of_length(60_000)).allowed());
    // Others are as they were, and paths that begin otherwise cost nothing.
    assert_eq!(gate.rules("/a/x7/b/c.json"), ["r7"]);
    let other = PathGate::new(&rules.replace("/**/x", "/api/x"));
    assert_eq!(other.rules(&of_length(60_000)), ["none"]);
}

#[test]
fn a_fallback_is_not_switched_off_by_expressions_that_would_take_too_long() {
    let mut rules =
        String::from("rules:\n- { name: rest, fallback: true, key: '{ip}', limits: [1/hour] }\n");
    for number in 0..15 {
        rules += &format!(
            "- {{ name: r{number}, match: {{ regex: '(/a)*/x{number}' }}, key: global, limits: [9000/hour] }}\n"
        );
    }
    let gate = PathGate::new(&rules);
    let long = "/a".repeat(EXPRESSION_BYTES_MAX / 16);
    assert_eq!(gate.passing(&vec![long; 3]), 1);
}
