//! Rules that change while requests are decided, and operations on single callers.

mod dated_numbers;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tollgate::{ManualClock, MemoryStore, Micros, Refusal, Wait};
use tollgate_rules::keys::{CallerError, OverrideError};
use tollgate_rules::{
    Answer, Ask, Caller, DecidedRequest, Facts, Gatekeeper, RuleSet, RulesObserver, Source,
    Verdict, compile, expect_ready, key_text,
};

fn rules(text: &str) -> RuleSet {
    let compiled = compile(&[Source::from_text("rules.yaml", text)]);
    compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics))
}

fn api(rest: &str) -> RuleSet {
    rules(&format!("rules: [{{ name: api, key: '{{user}}', {rest} }}]"))
}

const START: Micros = Micros::from_secs(1_795_000_000);

fn gatekeeper(rules: RuleSet) -> Gatekeeper<MemoryStore, ManualClock> {
    Gatekeeper::new(rules, MemoryStore::new(10_000), ManualClock::new(START))
}

fn take(gatekeeper: &Gatekeeper<MemoryStore, ManualClock>, user: &str, cost: u64) -> Answer {
    let facts = Facts { user: Some(user), path: Some("/"), ..Facts::default() };
    gatekeeper.decide(&Ask { facts, cost: Some(cost), ..Ask::default() })
}

/// What is left for a user of the one limit.
fn left(gatekeeper: &Gatekeeper<MemoryStore, ManualClock>, user: &str) -> u64 {
    let facts = Facts { user: Some(user), path: Some("/"), ..Facts::default() };
    gatekeeper.peek(&Ask { facts, cost: Some(1), ..Ask::default() }).remaining()
}

fn caller<'a>(
    gatekeeper: &'a Gatekeeper<MemoryStore, ManualClock>,
    rule: &str,
    key: &str,
) -> Caller<'a, MemoryStore, ManualClock> {
    gatekeeper.caller(rule, key).unwrap_or_else(|error| panic!("{error:?}"))
}

#[test]
fn what_is_used_follows_the_numbers() {
    // on_change, new limits, left after one more of 100 with 60 used
    let rows = [
        ("keep", "limits: [200/hour]", 139),
        ("keep", "limits: [50/hour]", 0),
        ("keep", "limits: [100/hour], match: { path: / }", 39),
        ("scale", "limits: [200/hour]", 79),
        ("reset", "limits: [200/hour]", 199),
        ("keep", "limits: [100/minute]", 99),
    ];
    for (on_change, limits, want) in rows {
        let options = format!("on_change: {on_change}");
        let gatekeeper = gatekeeper(api(&format!("limits: [100/hour], {options}")));
        assert!(take(&gatekeeper, "42", 60).allowed());
        gatekeeper.replace(api(&format!("{limits}, {options}")));
        let answer = take(&gatekeeper, "42", 1);
        assert_eq!(answer.remaining(), want, "{on_change} {limits}");
    }
}

#[test]
fn tallies_go_on_and_observers_are_told() {
    #[derive(Default)]
    struct RecordedVerdicts(Mutex<HashMap<(String, String, Verdict), u32>>);
    impl RulesObserver for RecordedVerdicts {
        fn decided(&self, decided: &DecidedRequest<'_>) {
            for one in decided.rule_verdicts() {
                let name = (one.rule.name.to_string(), key_text(one.key), one.verdict);
                *self.0.lock().unwrap().entry(name).or_default() += 1;
            }
        }
    }
    let text = "
rules:
  - { name: hard, key: '{user}', limits: [3/hour, 100/day] }
  - { name: shadow, key: '{user}', limits: [2/hour], mode: shadow }
  - { name: soft, key: '{user}', limits: [1/hour], soft: true }
  - { name: other, key: '{ip}', limits: [1/hour] }
  - { name: roomy, key: '{user}', limits: [100/hour] }
  - { name: unlimited, key: '{user}', concurrency: 9 }
";
    let seen = Arc::new(RecordedVerdicts::default());
    let gatekeeper = gatekeeper(rules(text)).observed_by(seen.clone());
    for _ in 0..3 {
        assert!(take(&gatekeeper, "42", 1).allowed());
    }
    gatekeeper.replace(rules(text));
    let refused = take(&gatekeeper, "42", 1);
    assert!(!refused.allowed());
    // Questions are no requests.
    assert!(!take(&gatekeeper, "42", 0).limits().all(|one| one.outcome.remaining > 0));
    left(&gatekeeper, "42");

    let rules = gatekeeper.rules();
    let counts: Vec<_> = rules
        .tallies()
        .map(|(rule, tally)| (&*rule.name, Verdict::ALL.map(|verdict| tally.count(verdict))))
        .collect();
    assert_eq!(
        counts,
        [
            ("hard", [3, 1, 0, 0, 0, 0]),
            ("shadow", [2, 0, 2, 0, 0, 0]),
            ("soft", [1, 0, 0, 3, 0, 0]),
            ("other", [0; 6]),
            ("roomy", [3, 0, 0, 0, 0, 1]),
            ("unlimited", [3, 0, 0, 0, 0, 1]),
        ]
    );
    let requests = counts.iter().filter(|(rule, _)| *rule != "other");
    assert!(requests.clone().all(|(_, counts)| counts.iter().sum::<u64>() == 4), "{counts:?}");
    let seen = seen.0.lock().unwrap();
    let count = |rule: &str, verdict| seen.get(&(rule.into(), "user=42".into(), verdict)).copied();
    assert_eq!(count("hard", Verdict::Refused), Some(1));
    assert_eq!(count("shadow", Verdict::Shadow), Some(2));
    assert_eq!(count("soft", Verdict::Soft), Some(3));
    assert_eq!(count("other", Verdict::Allowed), None);
}

#[test]
fn too_much_at_once_is_a_refusal_of_its_rule() {
    let text = "
rules:
  - { name: work, key: '{user}', limits: [100/hour], concurrency: 1 }
  - { name: all, key: global, limits: [100/hour] }
";
    let gatekeeper = gatekeeper(rules(text));
    let facts = Facts { user: Some("42"), ..Facts::default() };
    let reserve = || {
        let ask = Ask { facts, cost: Some(1), ..Ask::default() };
        gatekeeper.reserve(&ask, Duration::from_secs(60)).unwrap().answer.allowed()
    };
    assert_eq!([reserve(), reserve()], [true, false]);
    let rules = gatekeeper.rules();
    let refused = |(_, tally): (_, &Arc<tollgate_rules::Tally>)| tally.count(Verdict::Refused);
    assert_eq!(rules.tallies().map(refused).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn a_request_sees_one_version() {
    // In every version both rules have the same number of units; an answer that shows two different
    // ones has seen two versions.
    let version = |units: u32| {
        rules(&format!(
            "rules:
  - {{ name: a, key: '{{user}}', limits: [{units}000000/hour] }}
  - {{ name: b, key: '{{user}}', limits: [{units}000000/hour] }}"
        ))
    };
    let gatekeeper = gatekeeper(version(1));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for user in ["1", "2", "3"] {
            let (gatekeeper, done) = (&gatekeeper, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let answer = take(gatekeeper, user, 1);
                    let limits: Vec<_> = answer.limits().map(|one| one.limit).collect();
                    assert!(limits.len() == 2 && limits[0] == limits[1], "{limits:?}");
                }
            });
        }
        for units in 1..=300 {
            gatekeeper.replace(version(units % 9 + 1));
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn old_versions_are_freed() {
    let gatekeeper = gatekeeper(api("limits: [10/hour]"));
    let weak = Arc::downgrade(&gatekeeper.rules());
    // A reservation that stays open does not keep its version.
    let facts = Facts { user: Some("42"), ..Facts::default() };
    let reserved = gatekeeper
        .reserve(&Ask { facts, cost: Some(4), ..Ask::default() }, Duration::from_secs(3_600))
        .unwrap();
    let id = reserved.id.unwrap();
    drop(reserved);
    gatekeeper.replace(api("limits: [20/hour]"));
    assert!(weak.upgrade().is_none());
    gatekeeper.cancel(id).unwrap();
    assert_eq!(take(&gatekeeper, "42", 1).remaining(), 19);
}

#[test]
fn callers_are_shown_reset_granted_and_blocked() {
    let gatekeeper = gatekeeper(api("limits: [10/hour, 100/day]"));
    assert!(take(&gatekeeper, "42", 7).allowed());
    assert!(take(&gatekeeper, "7", 1).allowed());
    let caller = || caller(&gatekeeper, "api", "42");
    let balances =
        || expect_ready(caller().report()).limits.iter().map(|one| one.balance).collect::<Vec<_>>();
    assert_eq!(balances(), [3, 93]);
    assert_eq!(key_text(caller().key()), "user=42");

    expect_ready(caller().grant(5));
    assert_eq!(balances(), [8, 98]);
    expect_ready(caller().grant(1_000));
    assert_eq!(balances(), [10, 100], "never above the capacity");

    assert!(take(&gatekeeper, "42", 10).allowed());
    assert!(expect_ready(caller().reset()));
    assert!(!expect_ready(caller().reset()), "nothing is left to forget");
    assert_eq!(balances(), [10, 100]);

    assert!(expect_ready(caller().block(Duration::from_secs(60))));
    let refused = take(&gatekeeper, "42", 1);
    assert_eq!(refused.retry_after(), Wait::from_micros(60_000_000));
    assert!(take(&gatekeeper, "7", 1).allowed(), "others go on");
    assert_eq!(expect_ready(caller().report()).blocked_for, Some(Wait::from_micros(60_000_000)));
    assert!(expect_ready(caller().unblock()));
    assert!(!expect_ready(caller().unblock()));
    assert!(take(&gatekeeper, "42", 1).allowed());
    expect_ready(caller().block(Duration::from_secs(60)));
    assert!(expect_ready(caller().reset()), "a reset lifts a block, too");
    assert!(take(&gatekeeper, "42", 1).allowed());
}

#[test]
fn a_reset_forgets_refusals_that_count_towards_a_ban() {
    let gatekeeper = gatekeeper(api("limits: [1/hour], ban: { after: 2, within: 1h, for: 1d }"));
    let refuse = || assert!(!take(&gatekeeper, "42", 1).allowed());
    assert!(take(&gatekeeper, "42", 1).allowed());
    refuse();
    assert!(expect_ready(caller(&gatekeeper, "api", "42").reset()));
    assert!(take(&gatekeeper, "42", 1).allowed());
    refuse();
    assert_eq!(gatekeeper.stats().bans, 0);
    refuse();
    assert_eq!(gatekeeper.stats().bans, 1);
    assert!(expect_ready(caller(&gatekeeper, "api", "42").reset()));
    assert!(take(&gatekeeper, "42", 1).allowed());
}

#[test]
fn tiers_are_shown_as_far_as_they_are_known() {
    let text = "
identify: { tier: { users: { alice: pro } } }
tiers: { free: 1, pro: 10 }
rules:
  - { name: api, key: '{user}', limits: [10/hour], tiered: true }
  - { name: address, key: '{ip}', limits: [10/hour], tiered: true }
";
    let gatekeeper = gatekeeper(rules(text));
    let shown = |rule: &str, key: &str| -> Vec<(Option<String>, u64)> {
        let limits = expect_ready(caller(&gatekeeper, rule, key).report()).limits;
        limits.into_iter().map(|one| (one.tier.map(String::from), one.capacity)).collect()
    };
    let some = |tier: &str| Some(tier.to_string());
    assert_eq!(shown("api", "alice"), [(some("pro"), 100)]);
    let all = [(None, 10), (some("free"), 10), (some("pro"), 100)];
    assert_eq!(shown("api", "bob"), all);

    // Under an address each tier counts on its own; a reset forgets all of them.
    let facts = |tier| Facts { ip: "192.0.2.1".parse().ok(), tier, ..Facts::default() };
    for tier in [None, Some("pro")] {
        let ask = Ask { facts: facts(tier), cost: Some(10), ..Ask::default() };
        assert!(gatekeeper.decide(&ask).allowed());
    }
    let balances = || {
        let limits = expect_ready(caller(&gatekeeper, "address", "192.0.2.1").report()).limits;
        limits.iter().map(|one| one.balance).collect::<Vec<_>>()
    };
    assert_eq!(balances(), [0, 10, 90]);
    expect_ready(caller(&gatekeeper, "address", "192.0.2.1").grant(3));
    assert_eq!(balances(), [3, 10, 93]);
    assert!(expect_ready(caller(&gatekeeper, "address", "192.0.2.1").reset()));
    assert_eq!(balances(), [10, 10, 100]);
}

#[test]
fn a_user_is_found_under_every_tier() {
    let text = "
tiers: { free: 1, pro: 10, partner: { other: [5/hour] } }
rules:
  - { name: api, match: { path: /api }, key: '{user}', limits: [10/hour], tiered: true }
  - { name: other, match: { path: /other }, key: '{user}', limits: [10/hour] }
";
    let gatekeeper = gatekeeper(rules(text));
    let bob = |tier| {
        let facts = Facts { user: Some("bob"), path: Some("/api"), tier, ..Facts::default() };
        gatekeeper.decide(&Ask { facts, cost: Some(4), ..Ask::default() })
    };
    let tiers = [None, Some("free"), Some("pro"), Some("partner")];
    tiers.iter().for_each(|tier| assert!(bob(*tier).allowed()));
    let report = || {
        let limits = expect_ready(caller(&gatekeeper, "api", "bob").report()).limits;
        limits.into_iter().map(|one| (one.tier.map(String::from), one.balance)).collect::<Vec<_>>()
    };
    let shown = |plain, free, pro| {
        [(None, plain), (Some("free".to_owned()), free), (Some("pro".to_owned()), pro)]
    };
    // The partner has no numbers here and counts with those who have no tier.
    assert_eq!(report(), shown(2, 6, 96));
    expect_ready(caller(&gatekeeper, "api", "bob").grant(1));
    assert_eq!(report(), shown(3, 7, 97));
    assert!(expect_ready(caller(&gatekeeper, "api", "user=bob").reset()));
    assert_eq!(report(), shown(10, 10, 100));
    assert!(expect_ready(caller(&gatekeeper, "api", "bob").block(Duration::from_secs(60))));
    tiers.iter().for_each(|tier| assert_eq!(bob(*tier).refusal(), Some(Refusal::Blocked)));
    // An override counts on its own, whatever the tier.
    assert!(expect_ready(caller(&gatekeeper, "api", "bob").unblock()));
    caller(&gatekeeper, "api", "bob").set_override(&json!(["5/hour"])).unwrap();
    assert_eq!(tiers.iter().filter(|tier| bob(**tier).allowed()).count(), 1);
}

#[test]
fn overrides_come_and_go_at_run_time_and_outlive_a_reload() {
    let gatekeeper = gatekeeper(api("limits: [10/hour]"));
    assert!(take(&gatekeeper, "42", 4).allowed());
    let caller = || caller(&gatekeeper, "api", "42");
    let until = "2026-11-19T12:00:00Z";
    let set = caller().set_override(&json!({ "limits": ["50/hour"], "until": until })).unwrap();
    assert_eq!((&*set.limits[0].text, set.until.is_some()), ("50/hour", true));
    assert_eq!(take(&gatekeeper, "42", 1).remaining(), 45, "what was used stays used");
    assert_eq!(take(&gatekeeper, "7", 1).remaining(), 9);

    gatekeeper.replace(api("limits: [20/hour]"));
    assert_eq!(take(&gatekeeper, "42", 1).remaining(), 44);
    // The last one counts.
    caller().set_override(&json!({ "limits": ["60/hour"] })).unwrap();
    assert_eq!(take(&gatekeeper, "42", 1).remaining(), 53);
    assert_eq!(gatekeeper.overrides().len(), 1);
    assert_eq!(expect_ready(caller().report()).replaced_by.unwrap().limits.len(), 1);

    // A rule that goes and comes back finds its overrides.
    gatekeeper.replace(rules("rules: [{ name: all, key: global, limits: [1/hour] }]"));
    gatekeeper.replace(api("limits: [20/hour]"));
    assert_eq!(take(&gatekeeper, "42", 1).remaining(), 52);

    assert!(caller().remove_override());
    assert!(!caller().remove_override());
    assert_eq!(take(&gatekeeper, "42", 1).remaining(), 11);
    // Those that have ended make room.
    caller().set_override(&json!({ "limits": ["50/hour"], "until": until })).unwrap();
    gatekeeper.clock().set(Micros::from_secs(1_800_000_000));
    assert_eq!(take(&gatekeeper, "42", 1).remaining(), 19);
    self::caller(&gatekeeper, "api", "7").set_override(&json!(["5/hour"])).unwrap();
    assert_eq!(gatekeeper.overrides().len(), 1);
}

#[test]
fn odd_names_can_have_overrides_too() {
    let gatekeeper = gatekeeper(api("limits: [10/hour]"));
    for user in ["\u{9b}x", "x\u{fffe}", "\u{feff}", "a\u{7f}b", "\"\\'", "a,b"] {
        assert!(take(&gatekeeper, user, 1).allowed());
        let mut key = tollgate::KeyBuf::new();
        key.add("user", user);
        let caller = caller(&gatekeeper, "api", &key_text(&key));
        assert_eq!(caller.key(), &key, "{user:?}");
        let set = caller.set_override(&json!(["50/hour"]));
        assert!(set.is_ok(), "{user:?}: {set:?}");
        assert_eq!(take(&gatekeeper, user, 1).remaining(), 48, "{user:?}");
    }
}

#[test]
fn networks_are_exempt_as_a_whole() {
    let text = "
rules: [{ name: api, key: '{ip}', limits: [10/hour] }]
exempt: { ip: ['2001:db8:1::/48', '2001:db8:2::/96', '::1', 192.0.2.7] }
";
    let gatekeeper = gatekeeper(rules(text));
    for (key, exempt) in [
        ("2001:db8:1:5::1", true),
        ("2001:db8:2::1", false),
        ("2001:db8:2:0:9::1", false),
        ("::1", false),
        ("192.0.2.7", true),
        ("192.0.2.8", false),
    ] {
        assert_eq!(caller(&gatekeeper, "api", key).leniency().is_some(), exempt, "{key}");
    }
}

#[test]
fn wrong_callers_and_overrides_are_told() {
    let gatekeeper = gatekeeper(api("limits: [10/hour]"));
    let no_rule = gatekeeper.caller("apo", "42").unwrap_err();
    assert!(matches!(no_rule, CallerError::NoRule(problem) if problem.hint.is_some()));
    let bad_key = gatekeeper.caller("api", "ip=192.0.2.1").unwrap_err();
    assert!(matches!(bad_key, CallerError::BadKey(_)));
    for (fields, want) in [
        (json!({ "limits": ["x/hour"] }), "rate"),
        (json!({ "limits": [] }), "empty"),
        (json!({}), "limits"),
        (json!({ "limits": ["5/hour"], "until": "2020-01-01T00:00:00Z" }), "has ended"),
        (json!({ "limits": ["5/hour"], "untill": "2027-01-01T00:00:00Z" }), "untill"),
    ] {
        let caller = caller(&gatekeeper, "api", "42");
        let error = caller.set_override(&fields).unwrap_err();
        let OverrideError::Wrong(diagnostics) = error else { panic!("{error:?}") };
        assert!(diagnostics.to_string().contains(want), "{diagnostics}");
    }
    assert!(gatekeeper.overrides().is_empty());
}
