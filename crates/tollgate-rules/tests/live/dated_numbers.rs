//! Waits that a peek tells come true although it converts nothing: numbers have the instant of their change.

use super::*;

type LiveGatekeeper = Gatekeeper<MemoryStore, ManualClock>;

/// A unit in two seconds, and one a second.
const SLOW: &str = "limits: [30/minute burst 3]";
const FAST: &str = "limits: [60/minute burst 3]";

fn after(micros: u64) -> Micros {
    START.after(Wait::from_micros(micros))
}

/// The wait that peeks of all kinds tell a user for one unit, in microseconds.
fn told(gatekeeper: &LiveGatekeeper, user: &str) -> u64 {
    let facts = Facts { user: Some(user), path: Some("/"), ..Facts::default() };
    let ask = Ask { facts, ..Ask::default() };
    let now = gatekeeper.now();
    let explained = expect_ready(gatekeeper.explain_by(gatekeeper.rules(), &ask, now));
    let report = expect_ready(caller(gatekeeper, "api", user).report());
    let wait = report.limits[0].decision.retry_after();
    assert_eq!(explained.answer.retry_after(), wait);
    wait.as_micros().expect("a wait that ends")
}

fn is_admitted(gatekeeper: &LiveGatekeeper, user: &str) -> bool {
    take(gatekeeper, user, 1).allowed()
}

fn exhaust(gatekeeper: &LiveGatekeeper, user: &str) {
    while is_admitted(gatekeeper, user) {}
}

/// Lets as long pass as was told; the user is admitted then and not before.
fn assert_comes_true(gatekeeper: &LiveGatekeeper, user: &str, wait: u64) {
    let now = gatekeeper.now();
    gatekeeper.clock().set(now.after(Wait::from_micros(wait - 1)));
    assert_eq!(told(gatekeeper, user), 1, "{user}");
    gatekeeper.clock().set(now.after(Wait::from_micros(wait)));
    assert_eq!(told(gatekeeper, user), 0, "{user}");
    assert!(is_admitted(gatekeeper, user), "{user}");
}

#[test]
fn rules_that_are_replaced_begin_then_and_unchanged_ones_stay() {
    let gatekeeper = gatekeeper(api(SLOW));
    exhaust(&gatekeeper, "1");
    exhaust(&gatekeeper, "2");
    gatekeeper.clock().set(after(400_000));
    gatekeeper.replace(api(FAST));
    // A fifth of a unit at the old rate.
    assert_eq!(told(&gatekeeper, "1"), 800_000);
    // The next rules have the same numbers, so that the wait stays.
    gatekeeper.clock().set(after(800_000));
    gatekeeper.replace(api(&format!("{FAST}, match: {{ path: / }}")));
    assert_eq!(told(&gatekeeper, "1"), 400_000);
    assert_comes_true(&gatekeeper, "1", 400_000);
    gatekeeper.replace(api(SLOW));
    // By now the fast numbers, which nobody has taken under, have ended.
    assert_comes_true(&gatekeeper, "2", 800_000);
}

#[test]
fn an_override_begins_when_it_is_set_and_the_rule_when_it_ends() {
    let gatekeeper = gatekeeper(api(SLOW));
    exhaust(&gatekeeper, "1");
    let set = |fields| caller(&gatekeeper, "api", "1").set_override(&fields).unwrap();
    gatekeeper.clock().set(after(400_000));
    set(json!(["60/minute burst 3"]));
    assert_eq!(told(&gatekeeper, "1"), 800_000);
    // Another caller's override, and rules that are replaced, change nothing.
    gatekeeper.clock().set(after(500_000));
    caller(&gatekeeper, "api", "2").set_override(&json!(["7/minute burst 3"])).unwrap();
    gatekeeper.replace(api(SLOW));
    assert_comes_true(&gatekeeper, "1", 700_000);
    exhaust(&gatekeeper, "1");
    // Half a unit at the fast rate; the other half at the slow one.
    gatekeeper.clock().set(gatekeeper.now().after(Wait::from_micros(500_000)));
    assert!(caller(&gatekeeper, "api", "1").remove_override());
    gatekeeper.clock().set(gatekeeper.now().after(Wait::from_micros(500_000)));
    assert_eq!(told(&gatekeeper, "1"), 500_000);
    assert!(caller(&gatekeeper, "api", "2").remove_override());
    gatekeeper.replace(api(SLOW));
    assert_eq!(told(&gatekeeper, "1"), 500_000);
    assert_comes_true(&gatekeeper, "1", 500_000);
}

#[test]
fn an_override_with_an_end_leaves_the_rule_from_then_on() {
    let gatekeeper = gatekeeper(api(SLOW));
    let until = json!({ "limits": ["60/minute burst 3"], "until": "2026-11-18T11:26:40Z" });
    let until = caller(&gatekeeper, "api", "1").set_override(&until).unwrap().until.unwrap();
    gatekeeper.clock().set(Micros::new(until.as_u64() - 500_000));
    exhaust(&gatekeeper, "1");
    gatekeeper.clock().set(until.after(Wait::from_micros(500_000)));
    assert_eq!(told(&gatekeeper, "1"), 500_000);
    // Whether the override is still in the list makes no difference.
    caller(&gatekeeper, "api", "2").set_override(&json!(["7/minute burst 3"])).unwrap();
    assert_eq!(told(&gatekeeper, "1"), 500_000);
    gatekeeper.replace(api(SLOW));
    assert_comes_true(&gatekeeper, "1", 500_000);
}

#[test]
fn an_override_of_a_file_begins_and_ends_with_its_file() {
    let with_override = |limits: &str| {
        let text = format!("overrides: [{{ rule: api, key: user=1, {limits} }}]");
        rules(&format!("rules: [{{ name: api, key: '{{user}}', {SLOW} }}]\n{text}"))
    };
    let gatekeeper = gatekeeper(api(SLOW));
    exhaust(&gatekeeper, "1");
    gatekeeper.clock().set(after(400_000));
    gatekeeper.replace(with_override(FAST));
    assert_eq!(told(&gatekeeper, "1"), 800_000);
    gatekeeper.clock().set(after(500_000));
    gatekeeper.replace(with_override(FAST));
    assert_comes_true(&gatekeeper, "1", 700_000);
    exhaust(&gatekeeper, "1");
    gatekeeper.clock().set(gatekeeper.now().after(Wait::from_micros(500_000)));
    gatekeeper.replace(api(SLOW));
    gatekeeper.clock().set(gatekeeper.now().after(Wait::from_micros(500_000)));
    assert_comes_true(&gatekeeper, "1", 500_000);
}

#[test]
fn tiers_have_numbers_of_their_own() {
    let tiered = |pro: &str| {
        let tiers = format!("tiers: {{ free: {{}}, pro: {{ api: [{pro}] }} }}");
        let limits = "limits: [30/minute burst 3]";
        rules(&format!("{tiers}\nrules: [{{ name: api, key: '{{user}}', {limits} }}]"))
    };
    let gatekeeper = gatekeeper(tiered("30/minute burst 3"));
    let facts = Facts { user: Some("1"), tier: Some("pro"), ..Facts::default() };
    let ask = Ask { facts, ..Ask::default() };
    while gatekeeper.decide(&ask).allowed() {}
    gatekeeper.clock().set(after(400_000));
    gatekeeper.replace(tiered("60/minute burst 3"));
    assert_eq!(gatekeeper.peek(&ask).retry_after(), Wait::from_micros(800_000));
    gatekeeper.clock().set(after(1_200_000));
    gatekeeper.replace(tiered("60/minute burst 3"));
    assert!(gatekeeper.decide(&ask).allowed());
}
