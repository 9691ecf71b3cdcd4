//! Fields of imported files, one behaviour at a time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tollgate::decision::MAX_LIMITS;
use tollgate::{DecidedBy, Refusal};
use tollgate_rules::descriptors::STATED_LIMITS_MAX;
use tollgate_rules::gatekeeper::expect_ready;
use tollgate_rules::keys::Leniency;
use tollgate_rules::{
    Ask, DecidedRequest, DescriptorError, Enforcement, Facts, RulesObserver, Source, Unit, Verdict,
    compile, key_text,
};

use super::gate::{DescriptorGate, TestDescriptor, descriptor, rules, said};

/// A file of the domain `descriptor`.
fn file(descriptors: &str) -> String {
    format!("domain: d\ndescriptors:\n{descriptors}")
}

#[test]
fn every_unit_is_as_long_as_it_says() {
    for unit in Unit::ALL {
        for word in [unit.name().to_string(), unit.name().to_uppercase()] {
            let text = file(&format!(
                "  - {{ key: k, rate_limit: {{ unit: {word}, requests_per_unit: 7 }} }}\n"
            ));
            let gate = DescriptorGate::new(&[&text]);
            let described = gate.ask("d", &[descriptor(&[("k", "v")])]);
            let status = described.statuses().next().unwrap();
            let limit = status.limit.unwrap();
            assert_eq!((limit.units, limit.unit, limit.name), (7, Some(unit), None));
            assert_eq!(limit.period.as_secs(), unit.seconds());
            let (now, period) = (gate.now.as_u64(), unit.seconds() * 1_000_000);
            assert_eq!(status.reset_after.as_micros(), Some(period - now % period), "{word}");
        }
    }
}

#[test]
fn unlimited_touches_no_store() {
    let gate =
        DescriptorGate::new(&[&file("  - { key: internal, rate_limit: { unlimited: true } }\n")]);
    for _ in 0..3 {
        assert_eq!(
            gate.one("d", descriptor(&[("internal", "x")]).hits(1 << 40)),
            "OK unlimited 4294967295"
        );
    }
    assert_eq!(gate.store.stats().keys, 0);
}

#[test]
fn nothing_means_nothing() {
    let gate = DescriptorGate::new(&[&file(
        "  - { key: block, rate_limit: { unit: minute, requests_per_unit: 0, name: never } }\n  \
           - { key: k, rate_limit: { unit: minute, requests_per_unit: 5 } }\n",
    )]);
    let asked = [descriptor(&[("block", "x")]), descriptor(&[("k", "v")])];
    let described = gate.ask("d", &asked);
    assert_eq!(said(&described), "OVER: OVER 0/minute 0 never | OK 5/minute 4");
    assert_eq!(described.answer().refusal(), Some(Refusal::NeverFits));
    assert!(described.retry_after().is_never() && described.answer().binding().is_none());
    let alone = gate.ask("d", &asked[..1]);
    assert_eq!((alone.allowed(), alone.decided_by()), (false, DecidedBy::Memory));
    assert_eq!(alone.answer().policies().len(), 0);
    // Its refusals are counted like others.
    let rules = gate.gatekeeper.rules();
    let (_, tally) = rules.tallies().find(|(rule, _)| &*rule.name == "d--block").unwrap();
    assert_eq!(tally.count(Verdict::Refused), 2);
    // With refusals for free nothing is charged beside it.
    let free = DescriptorGate::new(&[&format!(
        "count_denied: false\n{}",
        file(
            "  - { key: block, rate_limit: { unit: minute, requests_per_unit: 0 } }\n  \
                - { key: k, rate_limit: { unit: minute, requests_per_unit: 5 } }\n"
        )
    )]);
    assert_eq!(free.say("d", &asked), "OVER: OVER 0/minute 0 | OK 5/minute 5");
}

#[test]
fn shadow_counts_and_says_ok() {
    let gate = DescriptorGate::new(&[&file(
        "  - { key: s, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }\n  \
           - { key: zero, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 0 } }\n",
    )]);
    assert_eq!(gate.one("d", descriptor(&[("s", "v")])), "OK 1/minute 0");
    for _ in 0..3 {
        assert_eq!(gate.one("d", descriptor(&[("s", "v")])), "OK 1/minute 0");
    }
    assert_eq!(gate.one("d", descriptor(&[("zero", "v")])), "OK 0/minute 0");
    let described = gate.ask("d", &[descriptor(&[("s", "v")])]);
    assert_eq!(described.statuses().next().unwrap().enforcement, Some(Enforcement::Shadow));
    let rules = gate.gatekeeper.rules();
    let verdicts: Vec<u64> =
        rules.tallies().map(|(_, tally)| tally.count(Verdict::Shadow)).collect();
    assert_eq!(verdicts, [4, 1]);
}

#[test]
fn a_limit_can_take_the_place_of_others() {
    let text = file(
        "  - { key: all, rate_limit: { unit: minute, requests_per_unit: 9, name: all } }\n  \
           - { key: each, rate_limit: { unit: minute, requests_per_unit: 5, name: each, replaces: [{ name: all }] } }\n  \
           - { key: free, rate_limit: { unlimited: true, replaces: [{ name: all }, { name: each }] } }\n  \
           - { key: free2, rate_limit: { unlimited: true, name: each } }\n",
    );
    let gate = DescriptorGate::new(&[&text]);
    let [all, each, free, free2] =
        ["all", "each", "free", "free2"].map(|key| descriptor(&[(key, "v")]));
    let say = |asked: &[TestDescriptor]| gate.say("d", asked);
    assert_eq!(say(std::slice::from_ref(&all)), "OK: OK 9/minute 8 all");
    assert_eq!(say(&[all.clone(), each.clone()]), "OK: OK | OK 5/minute 4 each");
    assert_eq!(say(&[each.clone(), all.clone()]), "OK: OK 5/minute 3 each | OK");
    assert_eq!(
        say(&[all.clone(), each.clone(), free.clone()]),
        "OK: OK | OK | OK unlimited 4294967295"
    );
    // What has no limit is nothing that could be replaced.
    assert_eq!(say(&[free2, free]), "OK: OK unlimited 4294967295 | OK unlimited 4294967295");
    assert_eq!(say(&[all]), "OK: OK 9/minute 7 all");
}

#[test]
fn quota_mode_refuses_when_all_are_used_up() {
    let limits = "  - { key: a, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }\n  \
           - { key: b, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 2 } }\n  \
           - { key: s, quota_mode: true, shadow_mode: true, rate_limit: { unit: hour, requests_per_unit: 1 } }\n  \
           - { key: plain, rate_limit: { unit: hour, requests_per_unit: 4 } }\n";
    let asked =
        || [descriptor(&[("a", "v")]), descriptor(&[("b", "v")]), descriptor(&[("plain", "v")])];
    let gate = DescriptorGate::new(&[&file(limits)]);
    let want = [
        "OK: OK 1/minute 0 | OK 2/hour 1 | OK 4/hour 3",
        "OK: OVER 1/minute 0 | OK 2/hour 0 | OK 4/hour 2",
        "OVER: OVER 1/minute 0 | OVER 2/hour 0 | OK 4/hour 1",
        "OVER: OVER 1/minute 0 | OVER 2/hour 0 | OK 4/hour 0",
        "OVER: OVER 1/minute 0 | OVER 2/hour 0 | OVER 4/hour 0",
    ];
    for want in want {
        assert_eq!(gate.say("d", &asked()), want);
    }
    let refused = gate.ask("d", &asked()[..2]);
    // The first that has room again is enough.
    assert_eq!(refused.retry_after().as_micros(), Some(60_000_000));
    assert_eq!(
        gate.say("d", &[asked()[2].clone(), descriptor(&[("s", "v")])]),
        "OVER: OVER 4/hour 0 | OK 1/hour 0"
    );
    // One in shadow is never over, so not all of them are.
    assert_eq!(
        gate.say("d", &[descriptor(&[("a", "v")]), descriptor(&[("s", "v")])]),
        "OK: OVER 1/minute 0 | OK 1/hour 0"
    );

    let free = DescriptorGate::new(&[&format!("count_denied: false\n{}", file(limits))]);
    let want = [
        "OK: OK 1/minute 0 | OK 2/hour 1 | OK 4/hour 3",
        "OK: OVER 1/minute 0 | OK 2/hour 0 | OK 4/hour 2",
        "OVER: OVER 1/minute 0 | OVER 2/hour 0 | OK 4/hour 2",
        "OVER: OVER 1/minute 0 | OVER 2/hour 0 | OK 4/hour 2",
    ];
    for want in want {
        assert_eq!(free.say("d", &asked()), want, "a refusal charges nothing");
    }
}

#[test]
fn a_refusal_in_quota_mode_charges_nothing_beside_it() {
    let asked = || [descriptor(&[("quota", "v")]), descriptor(&[("plain", "v")])];
    // A quota of nothing.
    let nothing = file(
        "  - { key: quota, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 0 } }\n  \
           - { key: plain, rate_limit: { unit: hour, requests_per_unit: 4 } }\n",
    );
    let gate = DescriptorGate::new(&[&format!("count_denied: false\n{nothing}")]);
    for _ in 0..3 {
        assert_eq!(gate.say("d", &asked()), "OVER: OVER 0/hour 0 | OK 4/hour 4");
    }
    // A file that counts refusals, and a bucket in the place of one of its windows, which does not.
    let counting = file(
        "  - { key: quota, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 1 } }\n  \
           - { key: plain, rate_limit: { unit: hour, requests_per_unit: 4 } }\n",
    );
    let bucket = "
overrides: [{ rule: d--plain, key: 'entry.plain=v', limits: [{ rate: 5/hour, burst: 5, algorithm: token_bucket }] }]
";
    let gate = DescriptorGate::new(&[&counting, bucket]);
    assert_eq!(gate.say("d", &asked()), "OK: OK 1/hour 0 | OK 5/hour 4");
    for _ in 0..3 {
        assert_eq!(gate.say("d", &asked()), "OVER: OVER 1/hour 0 | OK 5/hour 4");
    }
}

#[test]
fn none_is_left_out_because_there_are_many() {
    for mode in ["shadow_mode", "quota_mode"] {
        let file = file(&format!(
            "  - {{ key: k, {mode}: true, rate_limit: {{ unit: minute, requests_per_unit: 5 }} }}\n  \
               - {{ key: e, rate_limit: {{ unit: minute, requests_per_unit: 5 }} }}\n"
        ));
        let gate = DescriptorGate::new(&[&file]);
        let values: Vec<String> = (0..=MAX_LIMITS).map(|value| value.to_string()).collect();
        let mut asked: Vec<_> = values.iter().map(|value| descriptor(&[("k", value)])).collect();
        let too_many = |asked: &[TestDescriptor]| gate.try_ask("d", asked).unwrap_err();
        assert_eq!(too_many(&asked), DescriptorError::TooManyLimits, "{mode}");
        asked[MAX_LIMITS] = descriptor(&[("e", "")]);
        assert_eq!(too_many(&asked), DescriptorError::TooManyLimits, "{mode}");
        asked.pop();
        assert_eq!(gate.say("d", &asked).matches("OK 5/minute 4").count(), MAX_LIMITS);
    }
}

#[test]
fn the_domain_of_a_file_is_its_own() {
    let ours = "rules: [{ name: ours, key: '{entry.k}', limits: [{ rate: 3/minute, algorithm: fixed_window }] }]";
    let gate = DescriptorGate::new(&[
        &file("  - { key: k, rate_limit: { unit: minute, requests_per_unit: 5 } }\n"),
        ours,
    ]);
    assert_eq!(gate.one("d", descriptor(&[("k", "v")])), "OK 5/minute 4");
    assert_eq!(gate.one("d", descriptor(&[("other", "v")])), "OK");
    assert_eq!(gate.one("e", descriptor(&[("k", "v")])), "OK 3/minute 2 ours");
    assert_eq!(gate.one("e", descriptor(&[("other", "v")])), "OK");
    // And nobody else asks its rules.
    let facts = Facts { path: Some("/"), user: Some("u"), ..Facts::default() };
    let answer = gate.gatekeeper.decide_at(&Ask { facts, ..Ask::default() }, gate.now);
    assert_eq!(answer.limits().len(), 0);
    assert!(gate.gatekeeper.rules().matching(&facts).iter().all(|rule| rule.imported.is_none()));
    assert_eq!(gate.gatekeeper.rules().domains(), ["d"]);
}

#[test]
fn one_word_switches_the_algorithm() {
    let limits = "  - { key: k, rate_limit: { unit: minute, requests_per_unit: 2 } }\n";
    let bucket = format!("algorithm: token_bucket\n{}", file(limits));
    let mut gate = DescriptorGate::new(&[&bucket]);
    let ask = |gate: &DescriptorGate| gate.one("d", descriptor(&[("k", "v")]));
    let want = ["OK 2/minute 1", "OK 2/minute 0", "OVER 2/minute 0", "OVER 2/minute 0"];
    assert_eq!(want.map(|_| ask(&gate)), want);
    // A refusal is free, so half a minute gives one back.
    gate.at(super::gate::NOON + 30);
    assert_eq!(ask(&gate), "OK 2/minute 0");
    let counting = DescriptorGate::new(&[&format!("count_denied: true\n{bucket}")]);
    assert_eq!([(); 4].map(|()| ask(&counting)), want);
    let later = DescriptorGate { now: gate.now, ..counting };
    assert_eq!(ask(&later), "OVER 2/minute 0", "it asked for that");
}

#[test]
fn callers_of_imported_rules_can_be_looked_at_and_helped() {
    let text = file(
        "  - key: kind\n    value: slow\n    descriptors:\n      \
             - { key: user, rate_limit: { unit: hour, requests_per_unit: 2 } }\n",
    );
    let gate = DescriptorGate::new(&[&text]);
    let asked = |user| descriptor(&[("kind", "slow"), ("user", user)]);
    assert_eq!(gate.one("d", asked("a,b")), "OK 2/hour 1");
    let rule = "d--kind--user-5db3e5038051";
    let caller = gate.gatekeeper.caller_at(rule, "a,b", gate.now).unwrap();
    let report = expect_ready(caller.report());
    assert_eq!((report.limits[0].balance, &*report.limits[0].limit), (1, "2/hour fixed_window"));
    assert_eq!(key_text(caller.key()), "entry.user=a,b");
    assert!(expect_ready(caller.reset()));
    assert_eq!(gate.one("d", asked("a,b")), "OK 2/hour 1");
    caller.set_override(&serde_json::json!(["9/hour"])).unwrap();
    assert_eq!(gate.one("d", asked("a,b")), "OK 9/hour 7");
    assert_eq!(gate.one("d", asked("other")), "OK 2/hour 1");
    expect_ready(caller.block(Duration::from_secs(60)));
    let blocked = gate.ask("d", &[asked("a,b")]);
    assert_eq!((blocked.allowed(), blocked.decided_by()), (false, DecidedBy::Block));
    assert_eq!(blocked.retry_after().as_micros(), Some(60_000_000));
    // An empty value is a value.
    assert_eq!(gate.one("d", asked("")), "OK 2/hour 1");
    let nobody = gate.gatekeeper.caller_at(rule, "entry.user=", gate.now).unwrap();
    assert!(expect_ready(nobody.reset()));
}

#[test]
fn names_of_rules_do_not_depend_on_the_rest_of_the_file() {
    let names = |text: &str| -> Vec<String> {
        let set = rules(&[&file(text)]);
        let mut names: Vec<String> = set.rules().map(|rule| rule.name.to_string()).collect();
        names.sort();
        names
    };
    let (a, b) = (
        "  - { key: a_b, value: c/*, rate_limit: { unit: day, requests_per_unit: 1 } }\n",
        "  - { key: a, value: b_c, rate_limit: { unit: day, requests_per_unit: 1 } }\n",
    );
    let both = names(&format!("{a}{b}"));
    assert_eq!(both, names(&format!("{b}{a}")));
    assert_eq!(both.len(), 2);
    assert!(names(a).iter().chain(&names(b)).all(|name| both.contains(name)));
}

#[test]
fn a_domain_is_in_one_file_and_names_are_nobody_elses() {
    let limit = "  - { key: k, rate_limit: { unit: hour, requests_per_unit: 5 } }\n";
    let errors = |texts: [&str; 2]| {
        let files =
            [Source::from_text("one.yaml", texts[0]), Source::from_text("two.yaml", texts[1])];
        let compiled = compile(&files);
        assert!(compiled.rules.is_none());
        compiled.diagnostics.to_string()
    };
    let said = errors([&file(limit), &file("  - { key: l }\n")]);
    assert!(
        said.contains("two files have the domain `d`") && said.contains("two.yaml:1:9"),
        "{said}"
    );
    assert!(said.contains("one.yaml:1:9"), "{said}");
    let ours = "rules: [{ name: d--k, key: global, limits: [1/hour] }]";
    let said = errors([&file(limit), ours]);
    assert!(
        said.contains("two rules are called `d--k`") && said.contains("one.yaml:3:12"),
        "{said}"
    );
}

#[test]
fn bounds_of_a_file_hold() {
    let many = |count: usize, descriptor: &dyn Fn(usize) -> String| {
        let text: String = (0..count).map(descriptor).collect();
        let compiled = compile(&[Source::from_text("big.yaml", &file(&text))]);
        (compiled.rules.map(|rules| rules.rules().len()), compiled.diagnostics.to_string())
    };
    let wildcard = |n: usize| {
        format!(
            "  - {{ key: k, value: {n}*, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}\n"
        )
    };
    assert_eq!(many(1_000, &wildcard).0, Some(1_000));
    let (rules, said) = many(1_001, &wildcard);
    assert!(rules.is_none() && said.contains("more than 1000 values with a `*`"), "{said}");
    let plain = |n: usize| {
        format!("  - {{ key: k{n}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}\n")
    };
    let (rules, said) = many(25_000, &plain);
    assert!(rules.is_none() && said.contains("more than"), "{said}");
}

#[test]
fn whoever_is_blocked_is_refused_in_quota_mode_too() {
    let gate = DescriptorGate::new(&[&file(
        "  - { key: a, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 5 } }
  - { key: b, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 5 } }
",
    )]);
    let both = [descriptor(&[("a", "1")]), descriptor(&[("b", "1")])];
    assert_eq!(gate.say("d", &both), "OK: OK 5/hour 4 | OK 5/hour 4");
    let caller = gate.gatekeeper.caller_at("d--a", "entry.a=1", gate.now).unwrap();
    assert!(expect_ready(caller.block(Duration::from_secs(60))));
    let refused = gate.ask("d", &both);
    assert_eq!(refused.answer().refusal(), Some(Refusal::Blocked));
    assert_eq!(said(&refused), "OVER: OVER 5/hour 0 | OK 5/hour 4");
    assert_eq!(refused.retry_after().as_micros(), Some(60_000_000));
    let (_, tally) =
        gate.gatekeeper.rules().tallies().next().map(|(_, t)| ((), t.clone())).unwrap();
    assert_eq!((tally.count(Verdict::Allowed), tally.count(Verdict::Refused)), (1, 1));
    assert_eq!(
        gate.say("d", &[descriptor(&[("a", "2")]), descriptor(&[("b", "1")])])[..3].to_string(),
        "OK:"
    );
    assert!(expect_ready(caller.unblock()));
    assert_eq!(gate.say("d", &both)[..3].to_string(), "OK:");
}

#[test]
fn unlimited_rules_can_be_given_limits_and_closed_ones_say_that_they_are() {
    let gate = DescriptorGate::new(&[&file(
        "  - { key: free, rate_limit: { unlimited: true } }
  - { key: shut, rate_limit: { unit: hour, requests_per_unit: 0 } }
",
    )]);
    let free = descriptor(&[("free", "1")]);
    assert_eq!(gate.one("d", free.clone()), "OK unlimited 4294967295");
    let caller = gate.gatekeeper.caller_at("d--free", "entry.free=1", gate.now).unwrap();
    assert_eq!(caller.leniency(), Some(Leniency::Unlimited));
    caller.set_override(&json!([{ "rate": "2/hour", "algorithm": "fixed_window" }])).unwrap();
    assert_eq!(gate.one("d", free), "OK 2/hour 1");
    assert_eq!(gate.one("d", descriptor(&[("free", "2")])), "OK unlimited 4294967295");
    let caller = gate.gatekeeper.caller_at("d--free", "entry.free=1", gate.now).unwrap();
    assert_eq!(caller.leniency(), None);
    assert!(!expect_ready(caller.report()).refuses_everything);
    let caller = gate.gatekeeper.caller_at("d--shut", "entry.shut=1", gate.now).unwrap();
    let report = expect_ready(caller.report());
    assert!(report.refuses_everything && report.limits.is_empty() && report.leniency.is_none());
}

#[test]
fn refusals_are_not_charged_to_a_bucket_that_replaces_a_window() {
    let gate = DescriptorGate::new(&[&file(
        "  - { key: k, rate_limit: { unit: hour, requests_per_unit: 5 } }\n",
    )]);
    let caller = gate.gatekeeper.caller_at("d--k", "entry.k=v", gate.now).unwrap();
    caller.set_override(&json!(["2/hour"])).unwrap();
    let asked = [descriptor(&[("k", "v")])];
    for _ in 0..2 {
        assert!(gate.ask("d", &asked).allowed());
    }
    let first = gate.ask("d", &asked).retry_after();
    for _ in 0..50 {
        assert_eq!(gate.ask("d", &asked).retry_after(), first, "a refusal charges nothing");
    }
}

#[test]
fn clients_are_told_the_name_of_a_limit_and_never_a_value() {
    let policy = |name: &str| {
        let gate = DescriptorGate::new(&[&file(&format!(
            "  - {{ key: api_key, value: s3cret, rate_limit: {{ unit: hour, requests_per_unit: 5{name} }} }}\n"
        ))]);
        let described = gate.ask("d", &[descriptor(&[("api_key", "s3cret")])]);
        let told = described.answer().binding().unwrap();
        assert!(!told.rule.contains("s3cret") && told.rule.starts_with("d--api_key-"));
        told.policy.as_str().to_owned()
    };
    assert_eq!(policy(", name: per-key"), "per-key");
    assert!(policy("").starts_with("d--api_key-") && !policy("").contains("s3cret"));
    assert!(policy(", name: schlüssel").starts_with("d--api_key-"), "no header could carry it");
}

#[test]
fn unlimited_minds_only_what_is_a_unit() {
    for (unit, errors) in [("''", false), ("unknown", false), ("hour", true), ("HOUR", true)] {
        let text =
            file(&format!("  - {{ key: k, rate_limit: {{ unlimited: true, unit: {unit} }} }}\n"));
        let compiled = compile(&[Source::from_text("one.yaml", &text)]);
        let shown = compiled.diagnostics.to_string();
        assert_eq!(compiled.rules.is_none(), errors, "{unit}: {shown}");
        assert_eq!(shown.matches("error").count(), usize::from(errors), "{shown}");
    }
}

#[test]
fn the_value_of_an_entry_api_key_is_kept_and_shown_hashed() {
    let hash = "sha256:ba7816bf8f01cfea414140de5dae2223";
    let text = file("  - { key: api_key, rate_limit: { unit: minute, requests_per_unit: 5 } }\n");
    let seen = Arc::new(RecordedRefusals::default());
    let DescriptorGate { gatekeeper, store, now } = DescriptorGate::new(&[&text]);
    let gate = DescriptorGate { gatekeeper: gatekeeper.observed_by(seen.clone()), store, now };
    assert_eq!(gate.one("d", descriptor(&[("api_key", "abc")])), "OK 5/minute 4");
    assert_eq!(*seen.keys.lock().unwrap(), [format!("entry.api_key={hash}")]);
    // Operators may write either.
    for key in ["abc", hash] {
        let key = format!("entry.api_key={key}");
        let caller = gate.gatekeeper.caller_at("d--api_key", &key, now).unwrap();
        assert_eq!(expect_ready(caller.report()).limits[0].balance, 4, "{key}");
    }
    // To know the hash is not to be its owner.
    assert_eq!(gate.one("d", descriptor(&[("api_key", hash)])), "OK 5/minute 4");
}

#[test]
fn what_is_refused_undecided_is_told() {
    let text = file("  - { key: k, rate_limit: { unit: minute, requests_per_unit: 5 } }\n");
    let seen = Arc::new(RecordedRefusals::default());
    let DescriptorGate { gatekeeper, store, now } = DescriptorGate::new(&[&text]);
    let gate = DescriptorGate { gatekeeper: gatekeeper.observed_by(seen.clone()), store, now };
    let many: Vec<TestDescriptor> =
        (0..=MAX_LIMITS).map(|value| descriptor(&[("k", &value.to_string())])).collect();
    assert!(gate.try_ask("d", &many).unwrap_err().is_refusal());
    for units in 1..=STATED_LIMITS_MAX as u32 {
        gate.ask("d", &[descriptor(&[("k", "v")]).limit(units, Unit::Year)]);
    }
    assert!(gate.try_ask("d", &[descriptor(&[("k", "v")]).limit(9_999, Unit::Year)]).is_err());
    // A question that makes no sense is no refusal.
    assert!(!gate.try_ask("d", &[]).unwrap_err().is_refusal());
    assert_eq!(*seen.refusals.lock().unwrap(), [Refusal::TooManyLimits; 2]);
}

/// What an observer is told.
#[derive(Default)]
struct RecordedRefusals {
    keys: Mutex<Vec<String>>,
    refusals: Mutex<Vec<Refusal>>,
}

impl RulesObserver for RecordedRefusals {
    fn decided(&self, decided: &DecidedRequest<'_>) {
        self.keys.lock().unwrap().extend(decided.rule_verdicts().map(|one| key_text(one.key)));
        self.refusals.lock().unwrap().extend(decided.refusal());
    }
}
