//! Equal numbers to those of the reference server: its own integration and counter tests as tables.

use tollgate_rules::Unit;

use super::gate::{DescriptorGate, NOON, descriptor, rules};

const BASIC: &str = "
domain: basic
descriptors:
  - { key: key1, rate_limit: { unit: second, requests_per_unit: 50 } }
  - { key: one_per_minute, rate_limit: { unit: minute, requests_per_unit: 1 } }
";

const ANOTHER: &str = "
domain: another
descriptors:
  - { key: key2, rate_limit: { unit: minute, requests_per_unit: 20 } }
  - { key: key3, rate_limit: { unit: hour, requests_per_unit: 10 } }
  - { key: key4, rate_limit: { unit: day, requests_per_unit: 20 } }
";

#[test]
fn domains_and_keys_that_nobody_limits_are_ok() {
    let gate = DescriptorGate::new(&[BASIC, ANOTHER]);
    assert_eq!(gate.say("foo", &[descriptor(&[("hello", "world")])]), "OK: OK");
    assert_eq!(gate.say("basic", &[descriptor(&[("hello", "world")])]), "OK: OK");
    assert_eq!(gate.say("basic", &[descriptor(&[("key1", "foo")])]), "OK: OK 50/second 49");
    // Only as deep as the file.
    assert_eq!(gate.say("basic", &[descriptor(&[("key1", "foo"), ("key1", "foo")])]), "OK: OK");
}

#[test]
fn twenty_pass_and_the_rest_do_not() {
    let gate = DescriptorGate::new(&[BASIC, ANOTHER]);
    for i in 0..25 {
        let want = match i {
            0..20 => format!("OK 20/minute {}", 19 - i),
            _ => "OVER 20/minute 0".into(),
        };
        assert_eq!(gate.one("another", descriptor(&[("key2", "random")])), want, "{i}");
    }
    assert_eq!(gate.one("another", descriptor(&[("key2", "other")])), "OK 20/minute 19");
}

#[test]
fn a_refusal_goes_on_charging_the_others_unless_told_otherwise() {
    let stopping = format!("count_denied: false\n{ANOTHER}");
    for (file, frozen) in [(ANOTHER, false), (&*stopping, true)] {
        let gate = DescriptorGate::new(&[file]);
        for i in 0..15 {
            let key2 = if frozen && i >= 10 { 10 } else { 19 - i };
            let (whole, key3) = match i {
                0..10 => ("OK", format!("OK 10/hour {}", 9 - i)),
                _ => ("OVER", "OVER 10/hour 0".into()),
            };
            let want = format!("{whole}: OK 20/minute {key2} | {key3}");
            let asked = [descriptor(&[("key2", "r")]), descriptor(&[("key3", "r")])];
            assert_eq!(gate.say("another", &asked), want, "{i}");
        }
    }
}

#[test]
fn windows_end_when_unix_time_says_so() {
    let mut gate = DescriptorGate::new(&[ANOTHER]);
    let reset = |gate: &DescriptorGate, key: &str| {
        let described = gate.ask("another", &[descriptor(&[(key, "x")])]);
        described.statuses().next().unwrap().reset_after.as_micros().unwrap()
    };
    let (minute, day) = (60_000_000, 86_400_000_000);
    for late in [0, 2, 59, 60, 61] {
        gate.at(NOON + late);
        let since = gate.now.as_u64();
        assert_eq!(reset(&gate, "key2"), minute - since % minute, "{late}");
        assert_eq!(reset(&gate, "key4"), day - since % day, "{late}");
    }
    // Also of a window in which nothing was taken.
    let described = gate.ask("another", &[descriptor(&[("key3", "x")]).hits(0)]);
    let status = described.statuses().next().unwrap();
    assert_eq!(
        status.reset_after.as_micros(),
        Some(3_600_000_000 - gate.now.as_u64() % 3_600_000_000)
    );
    assert_eq!(status.remaining, 10);
}

#[test]
fn a_domain_comes_and_goes_with_its_file() {
    const RELOAD: &str = "
domain: reload
descriptors:
  - { key: key1, rate_limit: { unit: second, requests_per_unit: 50 } }
  - { key: block, rate_limit: { unit: second, requests_per_unit: 0 } }
";
    let gate = DescriptorGate::new(&[BASIC]);
    let asked = || [descriptor(&[("key1", "foo")])];
    assert_eq!(gate.say("reload", &asked()), "OK: OK");
    let changes = gate.gatekeeper.replace(rules(&[BASIC, RELOAD]));
    assert_eq!(
        changes.added.iter().map(|name| &**name).collect::<Vec<_>>(),
        ["reload--key1", "reload--block"]
    );
    assert_eq!(gate.say("reload", &asked()), "OK: OK 50/second 49");
    assert_eq!(gate.say("reload", &[descriptor(&[("block", "")])]), "OVER: OVER 0/second 0");
    // Counts outlive a reload that does not concern them.
    gate.gatekeeper.replace(rules(&[RELOAD]));
    assert_eq!(gate.say("reload", &asked()), "OK: OK 50/second 48");
    gate.gatekeeper.replace(rules(&[BASIC]));
    assert_eq!(gate.say("reload", &asked()), "OK: OK");
}

#[test]
fn shared_values_count_together() {
    let gate = DescriptorGate::new(&["
domain: files
descriptors:
  - { key: shared, value: files/*, share_threshold: true, rate_limit: { unit: hour, requests_per_unit: 10 } }
  - { key: alone, value: files/*, rate_limit: { unit: hour, requests_per_unit: 10 } }
"]);
    for i in 0..10 {
        let want = format!("OK 10/hour {}", 9 - i);
        assert_eq!(gate.one("files", descriptor(&[("shared", "files/a.pdf")])), want);
        assert_eq!(gate.one("files", descriptor(&[("alone", "files/a.pdf")])), want);
    }
    assert_eq!(gate.one("files", descriptor(&[("shared", "files/b.csv")])), "OVER 10/hour 0");
    assert_eq!(gate.one("files", descriptor(&[("alone", "files/b.csv")])), "OK 10/hour 9");
    assert_eq!(gate.one("files", descriptor(&[("alone", "file")])), "OK");
}

#[test]
fn counters_say_what_the_reference_says() {
    // Units, unit, hits, what was used before, code, remaining
    let rows = [
        (10, Unit::Second, 1, 4, "OK", 5),
        (15, Unit::Hour, 1, 10, "OK", 4),
        (15, Unit::Hour, 1, 12, "OK", 2),
        (15, Unit::Hour, 1, 15, "OVER", 0),
        (20, Unit::Second, 3, 2, "OK", 15),
        (8, Unit::Second, 2, 5, "OK", 1),
        (20, Unit::Second, 3, 16, "OK", 1),
        (20, Unit::Second, 3, 19, "OVER", 0),
        (20, Unit::Second, 7, 15, "OVER", 0),
        (10, Unit::Second, 3, 27, "OVER", 0),
    ];
    for (units, unit, hits, before, code, remaining) in rows {
        let unit = unit.name();
        let file = format!(
            "domain: domain\ndescriptors:\n  - key: key\n    rate_limit: {{ unit: {unit}, requests_per_unit: {units} }}\n"
        );
        let gate = DescriptorGate::new(&[&file]);
        let key = || descriptor(&[("key", "value")]);
        gate.ask("domain", &[key().hits(before)]);
        let want = format!("{code} {units}/{unit} {remaining}");
        assert_eq!(gate.one("domain", key().hits(hits)), want, "{before} + {hits}");
        // What was refused was counted, too.
        let balance = units - (before + hits) as i64;
        let over = balance < 0;
        let code = if over { "OVER" } else { "OK" };
        assert_eq!(
            gate.one("domain", key().hits(0)),
            format!("{code} {units}/{unit} {}", balance.max(0))
        );
    }
}

#[test]
fn of_two_limits_the_one_with_room_is_not_charged_for_the_other() {
    let gate = DescriptorGate::new(&["
domain: domain
count_denied: false
descriptors:
  - { key: a, rate_limit: { unit: hour, requests_per_unit: 15 } }
  - { key: b, rate_limit: { unit: hour, requests_per_unit: 14 } }
"]);
    let both = |hits| [descriptor(&[("a", "v")]).hits(hits), descriptor(&[("b", "v")]).hits(hits)];
    assert_eq!(gate.say("domain", &both(13)), "OK: OK 15/hour 2 | OK 14/hour 1");
    // The reference charges the second; here a refusal is free for all.
    assert_eq!(gate.say("domain", &both(2)), "OVER: OK 15/hour 2 | OVER 14/hour 1");
    assert_eq!(gate.say("domain", &both(1)), "OK: OK 15/hour 1 | OK 14/hour 0");
}
