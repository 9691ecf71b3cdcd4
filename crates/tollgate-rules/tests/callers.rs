//! Hosts, header fields and API keys that rules read: one caller in many spellings stays one caller.

use tollgate::{ManualClock, MemoryStore, Micros};
use tollgate_rules::{Answer, Ask, Facts, Gatekeeper, Headers, Source, compile};

/// A gatekeeper at an instant that does not move.
fn gate(rules: &str) -> Gatekeeper<MemoryStore, ManualClock> {
    let compiled = compile(&[Source::from_text("rules.yaml", rules)]);
    let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
    let clock = ManualClock::new(Micros::from_secs(1_794_744_000));
    Gatekeeper::new(rules, MemoryStore::new(10_000), clock)
}

/// The answer to facts, completed by their header fields as every listener does.
fn decide(gate: &Gatekeeper<MemoryStore, ManualClock>, stated: Facts<'_>) -> Answer {
    let rules = gate.rules();
    let identity = rules.settings().identify.identify_stated(&stated, gate.now());
    gate.decide(&Ask { facts: identity.complete(stated), ..Ask::default() })
}

fn warnings(rules: &str) -> String {
    compile(&[Source::from_text("rules.yaml", rules)]).diagnostics.to_string()
}

const LOG: &str = "algorithm: sliding_window_log";

#[test]
fn a_rule_for_a_host_applies_to_every_spelling() {
    let spellings =
        ["api.example", "API.example", "api.example.", "api.example:1", "Api.Example.:8080"];
    for field in ["host: api.example", "header: { host: API.example. }", "host: { glob: 'api.*' }"]
    {
        let gate = gate(&format!(
            "rules: [{{ name: a, match: {{ {field} }}, key: '{{host}}', limits: [{{ rate: 3/hour, {LOG} }}] }}]"
        ));
        let stated = |host| decide(&gate, Facts { host: Some(host), ..Facts::default() });
        let in_headers = |host: &str| {
            let fields = vec![("Host", host)];
            decide(&gate, Facts { headers: Some(&fields as &dyn Headers), ..Facts::default() })
        };
        let passed = spellings.iter().filter(|host| stated(host).allowed()).count();
        assert_eq!(passed, 3, "{field}: one key");
        let passed = spellings.iter().filter(|host| in_headers(host).allowed()).count();
        assert_eq!(passed, 0, "{field}: the same key by a header field");
        assert!(stated("other.example").binding().is_none(), "{field}: another host");
        assert!(decide(&gate, Facts::default()).binding().is_none(), "{field}: no host");
        let explicit = vec![("host", "api.example")];
        let facts = Facts { host: Some(""), headers: Some(&explicit), ..Facts::default() };
        assert!(decide(&gate, facts).binding().is_none(), "{field}: an empty host is none");
    }
}

#[test]
fn hosts_may_be_many_international_and_negated() {
    // Match | hosts it applies to | hosts it does not
    let rows: [(&str, &[&str], &[&str]); 5] = [
        (
            "host: ['*.example.com', b\u{fc}cher.example]",
            &[
                "a.example.com",
                "A.B.EXAMPLE.com.",
                "xn--bcher-kva.example:1",
                "B\u{dc}CHER.example",
            ],
            &["example.com", "example.com.evil", "bucher.example"],
        ),
        ("host: '[2001:DB8::1]'", &["[2001:db8:0::1]:443"], &["[2001:db8::2]"]),
        ("host: { present: true }", &["a"], &["", ".", ":80"]),
        ("host: { regex: 'a\\.(b|c)' }", &["A.b:1", "a.C."], &["a.d"]),
        ("not: { host: api.example }", &["b"], &["API.example:1"]),
    ];
    for (condition, matching, others) in rows {
        let rules =
            format!("rules: [{{ name: a, match: {{ {condition} }}, key: global, limits: [9/s] }}]");
        let gate = gate(&rules);
        let applies = |host: &&str| {
            let facts = Facts { host: Some(host), ..Facts::default() };
            decide(&gate, facts).binding().is_some()
        };
        assert!(matching.iter().all(applies), "{condition}");
        assert!(!others.iter().any(applies), "{condition}");
        assert_eq!(warnings(&rules), "", "{condition}");
    }
}

#[test]
fn the_header_field_of_the_host_is_read_as_the_host_with_a_warning() {
    for (rule, hint) in [
        ("match: { header: { Host: a } }, key: global", "write `host: \u{2026}`"),
        ("key: '{header.host}'", "write `{host}`"),
    ] {
        let rules = format!("rules: [{{ name: a, {rule}, limits: [9/s] }}]");
        let told = warnings(&rules);
        assert!(told.contains("a host has many spellings") && told.contains(hint), "{told}");
    }
    let gate = gate("rules: [{ name: a, key: '{header.host}', limits: [9/s] }]");
    let facts = Facts { host: Some("A:1"), ..Facts::default() };
    assert!(decide(&gate, facts).binding().is_some());
    let caller = gate.caller("a", "host=A.:80").expect("a key");
    assert_eq!(tollgate_rules::key_text(caller.key()), "host=a");
}

#[test]
fn every_line_of_a_header_field_counts() {
    // Match | lines of `x-plan` or `cookie` | applies
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], bool);
    let rows: [Row<'_>; 10] = [
        ("header: { x-plan: free }", &[("x-plan", "free")], true),
        ("header: { x-plan: free }", &[("x-plan", "x"), ("X-Plan", "free")], true),
        ("header: { x-plan: free }", &[("x-plan", "free"), ("x-plan", "x")], true),
        ("header: { x-plan: 'a, b' }", &[("x-plan", "a"), ("x-plan", "b")], true),
        ("header: { x-plan: free }", &[("x-plan", "x")], false),
        ("not: { header: { x-plan: paid } }", &[("x-plan", "free"), ("x-plan", "paid")], true),
        ("not: { header: { x-plan: paid } }", &[("x-plan", "paid"), ("x-plan", "paid")], false),
        ("not: { header: { x-plan: paid } }", &[], true),
        ("header: { cookie: 'a=1; b=2' }", &[("cookie", "a=1"), ("cookie", "b=2")], true),
        ("header: { cookie: { glob: '*b=2*' } }", &[("cookie", "a=1"), ("cookie", "b=2")], true),
    ];
    for (condition, lines, want) in rows {
        let rules =
            format!("rules: [{{ name: a, match: {{ {condition} }}, key: global, limits: [9/s] }}]");
        let fields = lines.to_vec();
        let facts = Facts { headers: Some(&fields), ..Facts::default() };
        assert_eq!(decide(&gate(&rules), facts).binding().is_some(), want, "{condition} {lines:?}");
    }
}

#[test]
fn split_cookies_are_one_key() {
    let gate = gate(
        "rules: [{ name: a, key: '{header.cookie}', limits: [{ rate: 1/hour, algorithm: sliding_window_log }] }]",
    );
    let split = vec![("cookie", "a=1"), ("cookie", "b=2")];
    let whole = vec![("cookie", "a=1; b=2")];
    assert!(decide(&gate, Facts { headers: Some(&split), ..Facts::default() }).allowed());
    assert!(!decide(&gate, Facts { headers: Some(&whole), ..Facts::default() }).allowed());
}

#[test]
fn the_scheme_is_not_part_of_an_api_key() {
    for source in
        ["user: { api_key: { header: authorization } }", "api_key: { header: authorization }"]
    {
        let key = if source.starts_with("user") { "{user}" } else { "{api_key}" };
        let gate = gate(&format!(
            "identify: {{ {source} }}\nrules: [{{ name: a, key: '{key}', limits: [{{ rate: 5/hour, {LOG} }}] }}]"
        ));
        for value in ["Bearer k", "bearer k", "BEARER  k", "k", "Bearer\tk"] {
            let fields = vec![("Authorization", value)];
            let answer = decide(&gate, Facts { headers: Some(&fields), ..Facts::default() });
            assert!(answer.allowed(), "{source} {value:?}");
        }
        for value in ["Bearer k", "k"] {
            let answer = decide(&gate, Facts { api_key: Some(value), ..Facts::default() });
            assert!(!answer.allowed(), "{source}: the same caller by a stated key {value:?}");
        }
        let caller = gate.caller("a", "api_key=k").expect("a key");
        let fields = vec![("Authorization", "bearer other")];
        assert!(decide(&gate, Facts { headers: Some(&fields), ..Facts::default() }).allowed());
        assert!(tollgate_rules::key_text(caller.key()).contains("sha256:"), "{source}");
    }
}

/// Users by API key, of whom one is in a tier.
const BY_API_KEY: &str = "
identify:
  user: { api_key: { header: x-api-key } }
  tier: { users: { 'sha256:ba7816bf8f01cfea414140de5dae2223': pro }, default: free }
tiers: { free: 1, pro: 10 }
rules: [{ name: api, key: '{user|ip}', limits: [{ rate: 5/hour, algorithm: sliding_window_log }], tiered: true }]
";

#[test]
fn a_stated_api_key_is_the_user_as_the_header_is() {
    let gate = gate(BY_API_KEY);
    let ip = "192.0.2.1".parse().ok();
    let fields = vec![("X-Api-Key", "abc")];
    let by_fact = Facts { ip, api_key: Some("abc"), ..Facts::default() };
    let by_header = Facts { ip, headers: Some(&fields), ..Facts::default() };
    let first = decide(&gate, by_fact);
    assert_eq!((first.capacity(), first.remaining()), (50, 49), "the tier of the user");
    let second = decide(&gate, by_header);
    assert_eq!((second.capacity(), second.remaining()), (50, 48), "one caller");
    let address = decide(&gate, Facts { ip, ..Facts::default() });
    assert_eq!((address.capacity(), address.remaining()), (5, 4));
    // A stated user wins, and an empty key is no key.
    let stated = decide(&gate, Facts { user: Some("anna"), ..by_fact });
    assert_eq!((stated.capacity(), stated.remaining()), (5, 4));
    let empty = decide(&gate, Facts { api_key: Some(""), ..by_fact });
    assert_eq!((empty.capacity(), empty.remaining()), (5, 3), "counts by address");
    assert_eq!(gate.rules().tier_of_caller(&by_fact), Some("pro"));
    let user = gate.rules().user_of_caller(&by_fact).map(|user| user.into_owned());
    assert_eq!(user.as_deref(), Some("sha256:ba7816bf8f01cfea414140de5dae2223"));
}

#[test]
fn an_api_key_from_another_header_is_not_the_user() {
    let gate = gate(
        "identify: { user: { api_key: { header: x-user-key } }, api_key: { header: x-app-key } }\n\
         rules: [{ name: api, key: '{user|ip}', limits: [5/hour] }]",
    );
    let facts = Facts { ip: "192.0.2.1".parse().ok(), api_key: Some("abc"), ..Facts::default() };
    assert_eq!(gate.rules().user_of_caller(&facts), None);
}

#[test]
fn raw_keys_in_the_table_of_users_are_warned_of() {
    let raw = BY_API_KEY.replace("'sha256:ba7816bf8f01cfea414140de5dae2223'", "abc");
    let told = warnings(&raw);
    assert!(
        told.contains("users are the hashes of their API keys, and 1 of these names is no hash"),
        "{told}"
    );
    assert_eq!(warnings(BY_API_KEY), "");
    assert_eq!(warnings(&raw.replace("api_key: { header: x-api-key }", "header: x-user")), "");
}

#[test]
fn an_override_of_a_raw_key_in_place_of_its_user_is_warned_of() {
    let rules = |key: &str| {
        format!(
            "identify: {{ user: {{ api_key: {{ header: x-api-key }} }} }}
rules: [{{ name: usr, key: '{{user}}', limits: [5/hour] }}]
overrides: [{{ rule: usr, key: '{key}', limits: [9/hour] }}]
"
        )
    };
    for right in ["rawkey4", "api_key=rawkey4", "user=sha256:ba7816bf8f01cfea414140de5dae2223"] {
        assert_eq!(warnings(&rules(right)), "", "{right}");
    }
    let told = warnings(&rules("user=rawkey3"));
    assert!(told.contains("the user of this override is no hash"), "{told}");
    assert!(told.contains("rules.yaml:3:31") && told.contains("write `api_key="), "{told}");
    let named = rules("user=rawkey3").replace("api_key: { header: x-api-key }", "header: x-user");
    assert_eq!(warnings(&named), "");
}

#[test]
fn raw_keys_that_are_exempt_or_matched_are_warned_of() {
    const HASH: &str = "'sha256:ba7816bf8f01cfea414140de5dae2223'";
    let rules = |exempt: &str, first: &str, second: &str| {
        format!(
            "identify: {{ user: {{ api_key: {{ header: x-api-key }} }} }}
exempt: {{ user: [{exempt}] }}
rules:
  - {{ name: one, match: {{ user: {first} }}, key: '{{ip}}', limits: [5/hour] }}
  - {{ name: two, match: {{ any: [{{ path: /a }}, {{ not: {{ user: [{second}] }} }}] }}, key: '{{ip}}', limits: [5/hour] }}
"
        )
    };
    let none = "users are the hashes of their API keys, and";
    let rows = [
        ((HASH, HASH, HASH), &[][..]),
        (("abc", HASH, HASH), &["1 of these names is no hash\n --> rules.yaml:2:11"]),
        ((HASH, "abc", HASH), &["1 of these names is no hash\n --> rules.yaml:4:27"]),
        ((HASH, HASH, "abc, def"), &["2 of these names are no hash\n --> rules.yaml:5:56"]),
    ];
    for ((exempt, first, second), lines) in rows {
        let told = warnings(&rules(exempt, first, second)).replace("  -->", " -->");
        assert_eq!(told.matches(none).count(), lines.len(), "{told}");
        assert!(lines.iter().all(|line| told.contains(line)), "{told}");
        assert!(!told.contains("no hash") || told.contains("hint: write `sha256:`"), "{told}");
        let by_header = rules(exempt, first, second)
            .replace("api_key: { header: x-api-key }", "header: x-user");
        assert_eq!(warnings(&by_header).matches(none).count(), 0);
    }
}

#[test]
fn an_operator_finds_a_caller_by_its_api_key() {
    let gate = gate(BY_API_KEY);
    let key_of = |text: &str| {
        let caller = gate.caller("api", text).unwrap_or_else(|problem| panic!("{problem:?}"));
        (tollgate_rules::key_text(caller.key()), caller.names_unhashed_user())
    };
    const ABC: &str = "user=sha256:ba7816bf8f01cfea414140de5dae2223";
    for text in ["abc", "api_key=abc", ABC, "sha256:ba7816bf8f01cfea414140de5dae2223"] {
        assert_eq!(key_of(text), (ABC.into(), false), "{text}");
    }
    assert_eq!(key_of("user=cust-42"), ("user=cust-42".into(), true), "a user that a check states");
    let report = |text: &str| {
        let caller = gate.caller("api", text).expect("a key");
        let report = tollgate_rules::expect_ready(caller.report());
        (report.is_kept, report.tier.map(String::from))
    };
    assert_eq!(report("abc"), (false, Some("pro".into())), "never seen");
    assert_eq!(report("cust-42"), (false, Some("free".into())), "the default");
    assert!(decide(&gate, Facts { api_key: Some("cust-42"), ..Facts::default() }).allowed());
    assert_eq!(report("cust-42"), (true, Some("free".into())));
}
