//! Rules of our own asked by descriptors; stated limits; what is refused as a question.

use tollgate::decision::MAX_LIMITS;
use tollgate::{DecidedBy, Refusal, Wait};
use tollgate_rules::descriptors::{DESCRIPTORS_MAX, ENTRIES_MAX};
use tollgate_rules::gatekeeper::expect_ready;
use tollgate_rules::{Ask, DescriptorError, Enforcement, Facts, Unit, Verdict};

use super::gate::{DescriptorGate, NOON, TestDescriptor, descriptor, said};

const RULES: &str = "
identify: { tier: { default: free } }
tiers: { free: 1, pro: 10 }
rules:
  - name: addresses
    match: { entry: { remote_address: { present: true } } }
    key: '{ip}'
    limits: [{ rate: 10/minute, algorithm: fixed_window }]
  - name: slow
    match: { domain: edge, entry: { generic_key: [slow, slower] } }
    key: '{domain}:{entry.generic_key}'
    limits: [{ rate: 4/minute, algorithm: fixed_window }, { rate: 6/hour, algorithm: fixed_window }]
  - name: users
    match: { path: '/api/{*rest}', method: POST }
    key: '{user}'
    limits: [{ rate: 5/minute, algorithm: fixed_window }]
    tiered: true
    cost: { default: 1, 'POST /api/heavy': 3 }
";

fn gate() -> DescriptorGate {
    DescriptorGate::new(&[RULES])
}

#[test]
fn entries_are_facts() {
    let gate = gate();
    let address = |text| descriptor(&[("remote_address", text)]);
    assert_eq!(gate.one("edge", address("192.0.2.1")), "OK 10/minute 9 addresses");
    assert_eq!(gate.one("other", address("192.0.2.1")), "OK 10/minute 8 addresses");
    assert_eq!(gate.one("edge", address("192.0.2.2")), "OK 10/minute 9 addresses");
    // A network is not its first address, however it is spelt.
    assert_eq!(gate.one("edge", address("192.0.2.0/24")), "OK 10/minute 9 addresses");
    assert_eq!(gate.one("edge", address("192.0.2.0")), "OK 10/minute 9 addresses");
    assert_eq!(gate.one("edge", address("192.0.2.7/24")), "OK 10/minute 8 addresses");
    assert_eq!(gate.one("edge", address("192.0.2.0/32")), "OK 10/minute 8 addresses");
    let network = gate.gatekeeper.caller_at("addresses", "ip=192.0.2.0/24", gate.now).unwrap();
    assert_eq!(expect_ready(network.report()).limits[0].balance, 8);
    // Not an address: the rule's key has no fact.
    assert_eq!(gate.one("edge", address("somebody")), "OK");
    assert_eq!(gate.gatekeeper.stats().without_fact, 1);
    // The binding one of two limits.
    assert_eq!(gate.one("edge", descriptor(&[("generic_key", "slow")])), "OK 4/minute 3 slow");
    assert_eq!(gate.one("edge", descriptor(&[("generic_key", "slower")])), "OK 4/minute 3 slow");
    assert_eq!(gate.one("other", descriptor(&[("generic_key", "slow")])), "OK");
    let user = |user, tier| {
        descriptor(&[("method", "post"), ("path", "/api/x?y"), ("user", user), ("tier", tier)])
    };
    assert_eq!(gate.one("edge", user("u", "")), "OK 5/minute 4 users");
    assert_eq!(gate.one("edge", user("v", "pro")), "OK 50/minute 49 users");
    // HTTP and Envoy count together where they count the same caller.
    let facts =
        Facts { method: Some("POST"), path: Some("/api/x"), user: Some("u"), ..Facts::default() };
    let answer = gate.gatekeeper.decide_at(&Ask { facts, ..Ask::default() }, gate.now);
    assert_eq!(answer.remaining(), 3);
}

#[test]
fn hits_replace_the_cost_of_a_rule_and_nothing_said_does_not() {
    let gate = gate();
    let heavy = || descriptor(&[("method", "POST"), ("path", "/api/heavy"), ("user", "u")]);
    assert_eq!(gate.one("edge", heavy()), "OK 5/minute 2 users");
    assert_eq!(gate.one("edge", heavy().hits(1)), "OK 5/minute 1 users");
    assert_eq!(gate.one("edge", heavy()), "OVER 5/minute 1 users");
    assert_eq!(gate.one("edge", heavy().hits(0)), "OK 5/minute 1 users");
    assert_eq!(gate.one("edge", heavy().hits(1)), "OK 5/minute 0 users");
}

#[test]
fn all_descriptors_of_a_request_are_one_decision() {
    let gate = gate();
    let asked = |hits| {
        [
            descriptor(&[("remote_address", "192.0.2.1")]).hits(hits),
            descriptor(&[("generic_key", "slow")]).hits(hits),
            descriptor(&[("none", "")]),
        ]
    };
    assert_eq!(
        gate.say("edge", &asked(3)),
        "OK: OK 10/minute 7 addresses | OK 4/minute 1 slow | OK"
    );
    let described = gate.ask("edge", &asked(2));
    assert_eq!(said(&described), "OVER: OK 10/minute 7 addresses | OVER 4/minute 1 slow | OK");
    assert_eq!(described.answer().refusal(), Some(Refusal::OverLimit));
    assert_eq!(described.retry_after().as_micros(), Some(60_000_000));
    let binding = described.answer().binding().unwrap();
    assert_eq!((binding.rule, binding.limit), ("slow", "4/minute fixed_window"));
    assert_eq!(described.answer().policies().len(), 3);
    assert_eq!(
        gate.say("edge", &asked(1)),
        "OK: OK 10/minute 6 addresses | OK 4/minute 0 slow | OK"
    );
    let rules = gate.gatekeeper.rules();
    let count = |name: &str, verdict| {
        let (_, tally) = rules.tallies().find(|(rule, _)| *rule.name == *name).unwrap();
        tally.count(verdict)
    };
    assert_eq!(
        [Verdict::Allowed, Verdict::Refused, Verdict::RefusedByOther]
            .map(|verdict| count("addresses", verdict)),
        [2, 0, 1]
    );
    assert_eq!((count("slow", Verdict::Allowed), count("slow", Verdict::Refused)), (2, 1));
}

#[test]
fn the_same_caller_twice_is_judged_for_both() {
    let gate = gate();
    let twice = |hits| {
        [
            descriptor(&[("remote_address", "192.0.2.1")]).hits(hits),
            descriptor(&[("ip", "192.0.2.1"), ("remote_address", "192.0.2.1")]).hits(hits),
        ]
    };
    assert_eq!(
        gate.say("edge", &twice(6)),
        "OVER: OK 10/minute 10 addresses | OVER 10/minute 10 addresses"
    );
    assert_eq!(
        gate.say("edge", &twice(5)),
        "OK: OK 10/minute 0 addresses | OK 10/minute 0 addresses"
    );
}

#[test]
fn refunds_and_forced_charges_never_refuse_and_always_happen() {
    let mut gate = gate();
    let address = |text: &str| descriptor(&[("remote_address", text)]);
    assert_eq!(gate.one("edge", address("192.0.2.1").hits(8)), "OK 10/minute 2 addresses");
    assert_eq!(gate.one("edge", address("192.0.2.1").refund(3)), "OK 10/minute 5 addresses");
    // No more than there was.
    assert_eq!(gate.one("edge", address("192.0.2.1").refund(99)), "OK 10/minute 10 addresses");
    // Into debt, and that is OK; whoever asks then is over, also for nothing.
    assert_eq!(gate.one("edge", address("192.0.2.1").force(25)), "OK 10/minute 0 addresses");
    assert_eq!(gate.one("edge", address("192.0.2.1").hits(1)), "OVER 10/minute 0 addresses");
    let peek = gate.ask("edge", &[address("192.0.2.1").hits(0)]);
    assert_eq!(said(&peek), "OVER: OVER 10/minute 0 addresses");
    assert_eq!(peek.retry_after().as_micros(), Some(60_000_000));
    // By an entry that is no fact, and whatever else is decided.
    let post_paid = descriptor(&[("generic_key", "slow"), ("tollgate.act", "force")]).hits(3);
    let asked = [address("192.0.2.1").hits(1), post_paid.clone(), address("192.0.2.2").refund(5)];
    assert_eq!(
        gate.say("edge", &asked),
        "OVER: OVER 10/minute 0 addresses | OK 4/minute 1 slow | OK 10/minute 10 addresses"
    );
    assert_eq!(
        gate.one("edge", descriptor(&[("generic_key", "slow")]).hits(0)),
        "OK 4/minute 1 slow"
    );
    // Exactly used up is no debt.
    assert_eq!(
        gate.one("edge", descriptor(&[("generic_key", "slow")]).hits(1)),
        "OK 4/minute 0 slow"
    );
    assert_eq!(
        gate.one("edge", descriptor(&[("generic_key", "slow")]).hits(0)),
        "OK 4/minute 0 slow"
    );
    gate.at(NOON + 60);
    assert_eq!(gate.one("edge", address("192.0.2.1").hits(0)), "OK 10/minute 10 addresses");
    let refused = gate.try_ask("edge", &[descriptor(&[("a", "b"), ("tollgate.act", "farce")])]);
    assert_eq!(refused.unwrap_err(), DescriptorError::UnknownAct);
}

#[test]
fn a_question_that_is_over_charges_nothing_beside_it() {
    let gate = gate();
    let address = |text: &str| descriptor(&[("remote_address", text)]);
    gate.ask("edge", &[address("192.0.2.1").force(11)]);
    let asked = [address("192.0.2.1").hits(0), address("192.0.2.2").hits(4)];
    let want = "OVER: OVER 10/minute 0 addresses | OK 10/minute 10 addresses";
    assert_eq!([(); 2].map(|()| gate.say("edge", &asked)), [want, want]);
}

#[test]
fn the_wait_of_a_question_in_debt_is_exactly_until_it_is_paid() {
    let limits = [
        "{ rate: 7/minute, burst: 2, algorithm: token_bucket }",
        "{ rate: 2/minute, algorithm: fixed_window }",
        "{ rate: 2/minute, algorithm: sliding_window_log }",
        "{ rate: 2/minute, algorithm: sliding_window_counter }",
    ];
    for limit in limits {
        let mut gate = DescriptorGate::new(&[&format!(
            "rules: [{{ name: r, key: '{{user}}', limits: [{limit}] }}]"
        )]);
        for units in [1, 2, 1] {
            gate.now = gate.now.after(Wait::from_micros(1_000_003));
            gate.ask("edge", &[descriptor(&[("user", "a")]).force(units)]);
        }
        let refused = gate.ask("edge", &[descriptor(&[("user", "a")]).hits(0)]);
        let wait = refused.retry_after().as_micros().unwrap();
        assert_eq!(said(&refused)[..5].to_string(), "OVER:", "{limit}");
        let asked_at = gate.now;
        for (later, want) in [(wait - 1, "OVER:"), (wait, "OK: O")] {
            gate.now = asked_at.after(Wait::from_micros(later));
            let said = gate.say("edge", &[descriptor(&[("user", "a")]).hits(0)]);
            assert_eq!(&said[..5], want, "after {later} us of {limit}");
        }
    }
}

#[test]
fn stated_limits_win_over_all_others() {
    let file = "
domain: known
descriptors:
  - { key: k, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 1000, name: wide } }
";
    // A file counts refusals, too.
    for (gate, domain, left) in [(DescriptorGate::new(&[file]), "known", 6), (gate(), "ours", 7)] {
        let stated = |units| descriptor(&[("k", "v")]).limit(units, Unit::Minute);
        assert_eq!(gate.one(domain, stated(2)), "OK 2/minute 1");
        assert_eq!(gate.one(domain, stated(2)), "OK 2/minute 0");
        assert_eq!(gate.one(domain, stated(2)), "OVER 2/minute 0");
        // Other entries, other units and other domains count on their own; other numbers do not.
        assert_eq!(
            gate.one(domain, descriptor(&[("k", "w")]).limit(2, Unit::Minute)),
            "OK 2/minute 1"
        );
        assert_eq!(gate.one(domain, descriptor(&[("k", "v")]).limit(2, Unit::Hour)), "OK 2/hour 1");
        // Files alone: a domain that none of them defines has no limits, not even stated ones.
        let elsewhere = if domain == "known" { "OK" } else { "OK 2/minute 1" };
        assert_eq!(gate.one("elsewhere", stated(2)), elsewhere);
        let more = gate.ask(domain, &[stated(10)]);
        let status = more.statuses().next().unwrap();
        assert_eq!((status.over, status.remaining), (false, left));
        assert_eq!(status.enforcement, Some(Enforcement::Enforced));
        assert_eq!(more.answer().policies().len(), 1);
        assert_eq!(gate.one(domain, stated(0)), "OVER 0/minute 0");
        assert_eq!(
            gate.one(domain, descriptor(&[("k", "v")]).limit(u32::MAX, Unit::Year)),
            "OK 4294967295/year 4294967294"
        );
        assert_eq!(gate.one(domain, stated(10).hits(0)).split(' ').next(), Some("OK"));
    }
}

#[test]
fn two_stated_limits_of_one_request_count_apart() {
    let gate = gate();
    let stated = |units, unit| descriptor(&[("k", "v")]).limit(units, unit);
    let two = [stated(10, Unit::Minute), stated(20, Unit::Minute)];
    assert_eq!(gate.say("ours", &two), "OK: OK 10/minute 9 | OK 20/minute 19");
}

#[test]
fn modes_of_rules_are_as_elsewhere() {
    let gate = DescriptorGate::new(&["
rules:
  - { name: hidden, key: '{entry.k}', limits: [1/hour], mode: shadow }
  - { name: soft, key: '{entry.s}', limits: [1/hour], soft: true }
  - { name: banned, key: '{entry.b}', limits: [1/hour], ban: { after: 2, within: 1h, for: 2h } }
  - { name: rest, fallback: true, key: '{entry.r}', limits: [1/hour] }
exempt: { user: [root] }
"]);
    for _ in 0..3 {
        assert_eq!(gate.one("x", descriptor(&[("k", "v")])), "OK");
        assert_eq!(gate.one("x", descriptor(&[("s", "v")])), "OK");
        assert_eq!(gate.one("x", descriptor(&[("b", "v"), ("user", "root")])), "OK");
    }
    assert_eq!(gate.ask("x", &[descriptor(&[("s", "v")])]).answer().warnings().count(), 1);
    for value in ["v", "w"] {
        assert_eq!(gate.one("x", descriptor(&[("b", value)])), "OK 1/hour 0 banned");
    }
    // Each descriptor has refused its own caller once.
    let two = [descriptor(&[("b", "v")]), descriptor(&[("b", "w")])];
    assert_eq!(gate.say("x", &two), "OVER: OVER 1/hour 0 banned | OVER 1/hour 0 banned");
    assert_eq!(gate.gatekeeper.stats().bans, 0);
    let last = gate.ask("x", &[descriptor(&[("b", "v")])]);
    assert_eq!(last.retry_after().as_micros(), Some(7_200_000_000));
    let blocked = gate.ask("x", &[descriptor(&[("b", "v")]), descriptor(&[("r", "v")])]);
    assert_eq!(said(&blocked), "OVER: OVER 1/hour 0 banned | OK 1/hour 1 rest");
    assert_eq!(blocked.decided_by(), DecidedBy::Block);
    assert_eq!(gate.gatekeeper.stats().bans, 1);
}

#[test]
fn a_queue_refuses_whom_it_would_delay() {
    let gate = DescriptorGate::new(&[
        "rules: [{ name: q, key: global, limits: [{ rate: 1/minute, burst: 5, algorithm: leaky_bucket, queue: true }] }]",
    ]);
    assert_eq!(gate.one("x", descriptor(&[("k", "v")])).split(' ').next(), Some("OK"));
    let refused = gate.ask("x", &[descriptor(&[("k", "v")])]);
    assert!(!refused.allowed() && refused.retry_after().as_micros() == Some(60_000_000));
}

#[test]
fn questions_that_make_no_sense_are_errors_and_charge_nothing() {
    let gate = gate();
    let entry = |index: usize| (index.to_string(), String::new());
    let wide: Vec<(String, String)> = (0..=ENTRIES_MAX).map(entry).collect();
    let wide: Vec<(&str, &str)> = wide.iter().map(|(a, b)| (&**a, &**b)).collect();
    let good = || descriptor(&[("remote_address", "192.0.2.1")]);
    let rows: Vec<(&str, Vec<TestDescriptor>, DescriptorError)> = vec![
        ("", vec![good()], DescriptorError::NoDomain),
        ("edge", vec![], DescriptorError::NoDescriptors),
        ("edge", vec![good(), descriptor(&[])], DescriptorError::NoEntries),
        (
            "edge",
            vec![good(), descriptor(&[("tollgate.act", "force")])],
            DescriptorError::NoEntries,
        ),
        ("edge", vec![good(), descriptor(&[("", "x")])], DescriptorError::NoName),
        ("edge", vec![good(), descriptor(&wide)], DescriptorError::TooManyEntries),
        ("edge", vec![good(); DESCRIPTORS_MAX + 1], DescriptorError::TooManyDescriptors),
        ("edge", vec![good(); MAX_LIMITS + 1], DescriptorError::TooManyLimits),
        ("edge", vec![good().force(1); MAX_LIMITS + 1], DescriptorError::TooManyLimits),
        ("edge", vec![good().limit(0, Unit::Day); MAX_LIMITS + 1], DescriptorError::TooManyLimits),
        ("edge", vec![good().limit(1, Unit::Day); MAX_LIMITS + 1], DescriptorError::TooManyLimits),
    ];
    for (domain, asked, want) in rows {
        let error = gate.try_ask(domain, &asked).unwrap_err();
        assert_eq!(error, want);
        assert!(!error.to_string().is_empty());
    }
    assert_eq!(gate.store.stats().keys, 0);
    // What nothing limits takes no room.
    let many = vec![descriptor(&[("none", "")]); DESCRIPTORS_MAX];
    assert_eq!(gate.ask("edge", &many).statuses().len(), DESCRIPTORS_MAX);
    assert_eq!(gate.say("edge", &vec![good(); MAX_LIMITS])[..5].to_string(), "OVER:");
}

#[test]
fn a_network_is_exempt_only_as_a_whole() {
    let gate = DescriptorGate::new(&["
exempt: { ip: [192.0.2.0/24, 198.51.100.0/32] }
rules: [{ name: addresses, key: '{ip}', limits: [{ rate: 10/minute, algorithm: fixed_window }] }]
"]);
    let rows = [
        ("192.0.2.1", "OK"),
        ("192.0.2.0/25", "OK"),
        ("192.0.2.0/24", "OK"),
        ("192.0.2.0/23", "OK 10/minute 9 addresses"),
        ("198.51.100.0", "OK"),
        ("198.51.100.0/24", "OK 10/minute 9 addresses"),
    ];
    for (address, want) in rows {
        assert_eq!(gate.one("edge", descriptor(&[("remote_address", address)])), want, "{address}");
    }
}

#[test]
fn what_nobody_priced_is_given_back_as_it_was_taken() {
    let gate = gate();
    let heavy = || descriptor(&[("method", "POST"), ("path", "/api/heavy"), ("user", "u")]);
    assert_eq!(gate.one("edge", heavy()), "OK 5/minute 2 users");
    assert_eq!(gate.one("edge", heavy().refund_cost()), "OK 5/minute 5 users");
}

#[test]
fn forced_charges_are_told_and_refunds_are_not() {
    let gate = gate();
    let address = || descriptor(&[("remote_address", "192.0.2.1")]);
    gate.ask("edge", &[address().force(3)]);
    gate.ask("edge", &[address().refund(1)]);
    gate.ask("edge", &[address().limit(0, Unit::Day).force(3)]);
    let rules = gate.gatekeeper.rules();
    let (rule, tally) = rules.tallies().next().unwrap();
    assert_eq!(&*rule.name, "addresses");
    assert_eq!((tally.count(Verdict::Allowed), tally.count(Verdict::Refused)), (1, 0));
}
