//! Rules files as people write them: good ones compile, broken ones get answers that help.
//!
//! `tests/broken/NAME.yaml` has errors, `tests/warned/NAME.yaml` compiles with warnings,
//! `tests/good/NAME.yaml` compiles; what is said about each is in `NAME.stderr` beside it.
//! `TOLLGATE_BLESS=1 cargo test` writes these files anew: read them before committing.

use std::fs;
use std::path::{Path, PathBuf};

use tollgate::{ManualClock, MemoryStore, Micros};
use tollgate_rules::compile::compile_at;
use tollgate_rules::identify::UserSource;
use tollgate_rules::{Ask, Diagnostics, Facts, Gatekeeper, RuleSet, Severity, Source, compile};

/// As seen from where tests run, so that what is said is the same everywhere.
fn directory(name: &str) -> PathBuf {
    format!("tests/{name}").into()
}

fn yaml_files(name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory(name)).unwrap();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "yaml"))
        .collect();
    files.sort();
    files
}

/// What is said about a file, and its rules. The name is shown without its directory.
fn compile_file(path: &Path) -> (Option<RuleSet>, Diagnostics) {
    let name = path.file_name().unwrap().to_string_lossy();
    match Source::from_bytes(&name, &fs::read(path).unwrap()) {
        Ok(source) => {
            let compiled = compile(&[source.in_folder(path.parent().unwrap())]);
            (compiled.rules, compiled.diagnostics)
        }
        Err(diagnostic) => (None, (*diagnostic).into()),
    }
}

/// Compares what is said about a file with the file beside it.
fn compare(path: &Path, said: &str) -> Result<(), String> {
    let beside = path.with_extension("stderr");
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        match said.is_empty() {
            true => drop(fs::remove_file(&beside)),
            false => fs::write(&beside, said).unwrap(),
        }
    }
    let want = fs::read_to_string(&beside).unwrap_or_default();
    if want == said {
        return Ok(());
    }
    let name = path.file_name().unwrap().to_string_lossy();
    Err(format!("--- {name}: expected\n{want}--- got\n{said}"))
}

fn check_all(name: &str, is_right: impl Fn(&Option<RuleSet>, &Diagnostics) -> bool) {
    let mut wrong = Vec::new();
    for path in yaml_files(name) {
        let (rules, diagnostics) = compile_file(&path);
        assert!(is_right(&rules, &diagnostics), "{}:\n{diagnostics}", path.display());
        wrong.extend(compare(&path, &diagnostics.to_string()).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn broken_files_get_answers_that_help() {
    check_all("broken", |rules, diagnostics| {
        rules.is_none() && diagnostics.has_errors() && !diagnostics.to_string().contains('\u{1b}')
    });
}

#[cfg(feature = "jwt")]
#[test]
fn broken_keys_get_answers_that_help_and_show_nothing() {
    check_all("broken_jwt", |rules, diagnostics| {
        // What a keys file contains is nobody's business, also if it was named by mistake.
        rules.is_none() && diagnostics.has_errors() && !diagnostics.to_string().contains("canary")
    });
}

#[cfg(not(feature = "jwt"))]
#[test]
fn a_build_without_cryptography_says_so() {
    let text = "identify: { user: { jwt: { claim: sub, keys_file: jwks.json } } }\n\
                rules: [{ name: api, key: '{user}', limits: [1/s] }]";
    let compiled = compile(&[Source::from_text("rules.yaml", text)]);
    let said = compiled.diagnostics.to_string();
    assert!(compiled.rules.is_none() && said.contains("cannot verify signed tokens"), "{said}");
    assert!(said.contains("rules.yaml:1:21") && !said.contains("warning"), "{said}");
}

#[test]
fn good_files_compile() {
    check_all("good", |rules, diagnostics| rules.is_some() && !diagnostics.has_errors());
}

#[test]
fn doubtful_files_compile_with_warnings() {
    check_all("warned", |rules, diagnostics| {
        rules.is_some() && diagnostics.count(Severity::Warning) > 0
    });
}

#[test]
fn every_diagnostic_has_a_place_that_exists_and_a_machine_form() {
    for path in yaml_files("broken") {
        let text = fs::read(&path).unwrap();
        let lines = text.split(|byte| *byte == b'\n').count();
        for diagnostic in compile_file(&path).1.iter() {
            let value = diagnostic.to_json();
            assert_eq!(value["severity"], diagnostic.severity.as_str());
            assert_eq!(value["message"], diagnostic.message);
            if let Some(span) = diagnostic.span() {
                assert!((1..=lines).contains(&span.line), "{diagnostic}");
                assert_eq!(value["line"], span.line);
                assert_eq!(value["column"], span.column);
                assert!(value["end"]["line"].as_u64() >= Some(span.line as u64), "{diagnostic}");
            }
        }
    }
}

fn rules_of(text: &str) -> RuleSet {
    let compiled = compile(&[Source::from_text("rules.yaml", text)]);
    compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics))
}

fn good(name: &str) -> RuleSet {
    let path = directory("good").join(name);
    rules_of(&fs::read_to_string(path).unwrap())
}

/// The names of the rules whose conditions hold.
fn matching<'a>(rules: &'a RuleSet, method: &str, path: &str) -> Vec<&'a str> {
    let facts = Facts { method: Some(method), path: Some(path), ..Facts::default() };
    rules.matching(&facts).iter().map(|rule| &*rule.name).collect()
}

/// The limits of a rule: without a tier, then for each tier.
fn texts(rules: &RuleSet, rule: &str) -> Vec<String> {
    let limits = &rules.rule(rule).unwrap().limits;
    let lists = std::iter::once(limits.plain()).chain(limits.by_tier());
    let texts = lists.map(|list| list.iter().map(|limit| &*limit.text).collect::<Vec<_>>());
    texts.map(|texts| texts.join(", ")).collect()
}

#[test]
fn the_short_form_means_limits_per_endpoint_and_caller() {
    let rules = good("short.yaml");
    let names: Vec<&str> = rules.rules().map(|rule| &*rule.name).collect();
    assert_eq!(names, ["api-search", "api-upload", "default"]);
    assert_eq!(matching(&rules, "GET", "/api/search?q=x"), ["api-search", "default"]);
    assert!(rules.rule("default").unwrap().fallback);
    assert_eq!(rules.rule("default").unwrap().key.to_string(), "{user|ip}");
    assert_eq!(
        texts(&rules, "api-search"),
        ["30/minute", "30/minute", "300/minute", "3000/minute"]
    );

    let rules = good("short_with_settings.yaml");
    assert_eq!(rules.rule("default").unwrap().key.to_string(), "{user|ip}:{path}");
    assert_eq!(texts(&rules, "post-api-upload"), ["10/hour", "10/hour", "25/hour"]);
    assert_eq!(matching(&rules, "GET", "/api/upload"), ["api-rest", "default"]);
    assert_eq!(matching(&rules, "POST", "/api/upload"), ["post-api-upload", "api-rest", "default"]);
    let settings = rules.settings();
    assert!(settings.dialects.is_empty() && settings.log_keys_plain);
    assert!(matches!(&settings.identify.user, UserSource::Header(name) if &**name == "x-user-id"));
    assert_eq!(rules.overrides().len(), 1);
}

#[test]
fn names_of_endpoints_are_short_and_unique() {
    let long = "abcd/".repeat(20);
    let text = format!(
        "rate_limits:\n  default: {{ requests: 1, window: 1 }}\n  endpoints:\n{}",
        [
            "/",
            "/a/b",
            "/a-b",
            "/A/B",
            "/default",
            "GET /a/b",
            "/{id}",
            &format!("/{long}"),
            &format!("/{long}b")
        ]
        .map(|path| format!("    \"{path}\": {{ requests: 1, window: 1 }}\n"))
        .concat()
    );
    let rules = rules_of(&text);
    let names: Vec<&str> = rules.rules().map(|rule| &*rule.name).collect();
    assert_eq!(names[..7], ["root", "a-b", "a-b-2", "a-b-3", "default-2", "get-a-b", "id"]);
    assert!(names[7].len() <= 64 && names[8].len() <= 64 && names[7] != names[8]);
    assert_eq!(names[9], "default");
}

#[test]
fn the_full_form_means_what_it_says() {
    let rules = good("full.yaml");
    assert_eq!(rules.rules().len(), 9);
    assert_eq!(
        texts(&rules, "api"),
        [
            "10/second, 100/minute, 1000/hour, 10000/day",
            "10/second, 100/minute, 1000/hour, 10000/day",
            "100/second, 1000/minute, 10000/hour, 100000/day",
            "1000/second, 10000/minute, 100000/hour, 1000000/day",
            "500/minute",
        ]
    );
    assert_eq!(texts(&rules, "login"), ["5/minute sliding_window_log"]);
    let login = rules.rule("login").unwrap();
    assert_eq!(login.ban.as_ref().unwrap().refusals.capacity(), 10);
    assert_eq!(matching(&rules, "POST", "/login"), ["login", "everyone", "anything-else"]);
    assert_eq!(rules.rule("exports").unwrap().concurrency.as_ref().unwrap().max, 3);
    assert_eq!(rules.settings().exempt_ips.len(), 2);
    assert!(rules.overrides()[0].until.is_some());
}

#[test]
fn an_override_that_has_ended_is_warned_about_if_the_time_is_told() {
    let text = "rules: [{ name: a, key: '{user}', limits: 1/s }]\n\
                overrides: [{ rule: a, key: '4', limits: 2/s, until: 2020-01-01T00:00:00Z }]";
    let sources = [Source::from_text("rules.yaml", text)];
    assert!(compile(&sources).diagnostics.is_empty());
    let now = Micros::new(1_700_000_000_000_000);
    let compiled = compile_at(&sources, Some(now));
    assert!(compiled.rules.is_some());
    assert!(compiled.diagnostics.to_string().contains("this override has ended"));
}

#[test]
fn several_files_are_one_set_of_rules() {
    let rule = |name: &str| format!("rules: [{{ name: {name}, key: global, limits: 1/s }}]\n");
    let tiers = "tiers: { free: 1 }\nheaders: draft\n";
    let sources = [
        Source::from_text("a.yaml", &(rule("one") + tiers)),
        Source::from_text("b.yaml", &rule("two")),
    ];
    assert_eq!(compile(&sources).rules.unwrap().rules().len(), 2);

    let sources = [
        Source::from_text("a.yaml", &(rule("one") + tiers)),
        Source::from_text("b.yaml", &(rule("one") + tiers)),
        Source::from_text("c.yaml", ""),
        Source::from_text("d.yaml", "rules: ["),
    ];
    let said = compile(&sources).diagnostics.to_string();
    for want in [
        "two rules are called `one`\n  --> b.yaml:1:17",
        "::: a.yaml:1:17",
        "`tiers` is given in two files\n  --> b.yaml:2:1",
        "`headers` is given in two files\n  --> b.yaml:3:1",
        "the file is empty\n  --> c.yaml",
        "the `[` is not closed\n  --> d.yaml:1:8",
    ] {
        assert!(said.contains(want), "{want} is not in\n{said}");
    }
}

#[test]
fn the_forms_may_differ_between_files() {
    let short = "rate_limits: { default: { requests: 1, window: 1 } }";
    let full = "rules: [{ name: default, key: global, limits: 1/s }]";
    let sources = [Source::from_text("a.yaml", short), Source::from_text("b.yaml", full)];
    let rules = compile(&sources).rules.unwrap();
    let names: Vec<&str> = rules.rules().map(|rule| &*rule.name).collect();
    assert_eq!(names, ["default-2", "default"]);

    let sources = [Source::from_text("a.yaml", short), Source::from_text("b.yaml", short)];
    let said = compile(&sources).diagnostics.to_string();
    assert!(said.contains("`default` is given in two files\n  --> b.yaml:1:16"), "{said}");
}

#[test]
fn many_errors_are_cut_short() {
    let text = format!("rules:\n{}", "  - { name: a b, key: global, limits: 1/s }\n".repeat(150));
    let diagnostics = compile(&[Source::from_text("rules.yaml", &text)]).diagnostics;
    // Each is badly named, and all but the first are named twice.
    assert_eq!(diagnostics.len(), 150 + 149);
    let said = diagnostics.to_string();
    assert!(said.ends_with("\n... and 199 more\n"), "{said}");
    assert_eq!(diagnostics.to_json().as_array().unwrap().len(), 100);
}

/// A file of many rules as people write them.
fn many_rules(count: usize) -> String {
    let rule = |n: usize| {
        format!(
            "  - name: rule-{n}\n    match: {{ path: \"/service-{}/resource-{n}/{{id}}\", method: [GET, POST] }}\n    \
             key: \"{{user|ip}}\"\n    limits: [10/second, 1000/hour]\n",
            n % 100
        )
    };
    format!("rules:\n{}", (0..count).map(rule).collect::<String>())
}

#[test]
fn ten_thousand_rules_compile_quickly() {
    let sources = [Source::from_text("rules.yaml", &many_rules(10_000))];
    #[expect(clippy::disallowed_methods, reason = "a bound on time is what is tested")]
    let start = std::time::Instant::now();
    let compiled = compile(&sources);
    #[expect(clippy::disallowed_methods, reason = "a bound on time is what is tested")]
    let took = start.elapsed();
    assert_eq!(
        compiled.rules.map(|rules| rules.rules().len()),
        Some(10_000),
        "{}",
        compiled.diagnostics
    );
    println!("10,000 rules compiled in {took:?}");
    // A release build needs less than a second; this one checks overflows on a busy machine.
    assert!(took.as_secs() < 10, "{took:?}");
}

#[test]
fn more_rules_than_the_most_are_an_error() {
    let sources: Vec<Source> = (0..3)
        .map(|part| {
            let text = many_rules(7_000).replace("rule-", &format!("rule-{part}-"));
            Source::from_text(&format!("{part}.yaml"), &text)
        })
        .collect();
    let compiled = compile(&sources);
    assert!(compiled.rules.is_none());
    assert!(compiled.diagnostics.to_string().contains("there are more than 20000 rules"));
}

#[test]
fn more_overrides_than_the_most_are_an_error() {
    let rule = "rules: [{ name: api, key: '{user}', limits: 1/s }]\n";
    let overrides = |part: usize, count: usize| {
        let one = |n| format!("- {{ rule: api, key: u{part}-{n}, limits: 2/s }}\n");
        format!("overrides:\n{}", (0..count).map(one).collect::<String>())
    };
    let compiled = |second: usize| {
        compile(&[
            Source::from_text("a.yaml", &(rule.to_owned() + &overrides(1, 10_000))),
            Source::from_text("b.yaml", &overrides(2, second)),
        ])
    };
    assert_eq!(compiled(10_000).rules.unwrap().overrides().len(), 20_000);
    let said = compiled(10_001).diagnostics.to_string();
    let want = "there are more than 20000 overrides\n     --> b.yaml:10002:21";
    assert!(said.contains(want), "{said}");
}

#[test]
fn stand_ins_count_the_way_of_the_limit_they_stand_in_for() {
    // The rule's limits, those of the override and of the tier, and what they are.
    let cases = [
        ("{ rate: 10/day, algorithm: fixed_window }", "100/day", "100/day fixed_window"),
        ("10/second burst 20", "50/second", "50/second burst 50"),
        ("10/second burst 20", "50/second burst 70", "50/second burst 70"),
        (
            "{ rate: 2/s, burst: 9, algorithm: leaky_bucket, queue: true }",
            "4/s burst 30",
            "4/second burst 30 leaky_bucket queue",
        ),
        (
            "{ rate: 2/s, burst: 9, algorithm: leaky_bucket, queue: true }",
            "{ rate: 4/s, queue: false }",
            "4/second burst 4 leaky_bucket",
        ),
        // Said otherwise, of another period, or not possible so.
        (
            "{ rate: 10/day, algorithm: fixed_window }",
            "{ rate: 100/day, algorithm: sliding_window_log }",
            "100/day sliding_window_log",
        ),
        ("{ rate: 10/day, algorithm: fixed_window }", "100/hour", "100/hour"),
        ("{ rate: 10/day, algorithm: fixed_window }", "100/day burst 5", "100/day burst 5"),
        // Each of the rule's limits serves one.
        (
            "10/s burst 5, { rate: 9/s, algorithm: sliding_window_log }",
            "{ rate: 50/s, algorithm: token_bucket }, 40/s",
            "50/second burst 50, 40/second sliding_window_log",
        ),
        (
            "10/s burst 5, { rate: 9/s, algorithm: sliding_window_log }",
            "40/s, { rate: 50/s, algorithm: token_bucket }",
            "40/second sliding_window_log, 50/second burst 50",
        ),
    ];
    for (rule, other, want) in cases {
        let rules = rules_of(&format!(
            "tiers: {{ pro: {{ api: [{other}] }} }}\n\
             rules: [{{ name: api, key: '{{user}}', limits: [{rule}] }}]\n\
             overrides: [{{ rule: api, key: '42', limits: [{other}] }}]\n"
        ));
        let limits = rules.overrides()[0].limits.iter().map(|limit| &*limit.text);
        assert_eq!(limits.collect::<Vec<_>>().join(", "), want, "{rule} -> {other}");
        assert_eq!(texts(&rules, "api")[1], want, "{rule} -> {other}");
    }
}

#[test]
fn stand_ins_share_the_count_of_the_rule() {
    for (rule, other) in [
        ("{ rate: 10/day, algorithm: fixed_window, align: first_hit }", "100/day"),
        ("{ rate: 10/day, align: calendar, time_zone: Europe/Berlin }", "100/day"),
        (
            "{ rate: 10/day, align: calendar, time_zone: Europe/Berlin }",
            "{ rate: 100/day, time_zone: europe/berlin }",
        ),
        ("{ rate: 10/month, time_zone: Asia/Tokyo }", "100/month"),
        (
            "{ rate: 10/day, algorithm: fixed_window, stagger: true }",
            "{ rate: 100/day, algorithm: fixed_window }",
        ),
        ("{ rate: 10/day, buckets: 24 }", "100/day"),
        ("10/day burst 20", "{ rate: 100/day, burst: 30 }"),
    ] {
        let rules = rules_of(&format!(
            "rules: [{{ name: api, key: '{{user}}', limits: [{rule}] }}]\n\
             overrides: [{{ rule: api, key: '42', limits: [{other}] }}]\n"
        ));
        let plain = rules.rule("api").unwrap().limits.plain();
        assert_eq!(rules.overrides()[0].limits[0].limit.id(), plain[0].limit.id(), "{rule}");
    }
}

#[test]
fn whoever_had_an_override_has_no_second_quota_after_it() {
    let rules = rules_of(
        "rules: [{ name: api, key: '{user}', limits: [{ rate: 10/day, algorithm: fixed_window }] }]\n\
         overrides: [{ rule: api, key: '42', limits: [100/day], until: 2026-11-15T12:00:10Z }]\n",
    );
    let (store, clock) = (MemoryStore::new(100), ManualClock::new(Micros::ZERO));
    let gatekeeper = Gatekeeper::new(rules, store, clock);
    let facts = Facts { user: Some("42"), ..Facts::default() };
    let ask = Ask { facts, ..Ask::default() };
    let noon = 1_794_744_000;
    let passing = |second: u64| {
        let now = Micros::from_secs(noon + second);
        (0..200).filter(|_| gatekeeper.decide_at(&ask, now).allowed()).count()
    };
    assert_eq!((passing(0), passing(11)), (100, 0));
}

#[test]
fn the_short_form_is_always_tiered() {
    let sources = [
        Source::from_text("tiers.yaml", "tiers: { free: 1, pro: 10 }\nidentify: {}"),
        Source::from_text("rules.yaml", "rate_limits: { default: { requests: 5, window: 60 } }"),
    ];
    let compiled = compile(&sources);
    assert!(compiled.diagnostics.is_empty(), "{}", compiled.diagnostics);
    assert_eq!(texts(&compiled.rules.unwrap(), "default"), ["5/minute", "5/minute", "50/minute"]);
}
