//! Limits that askers state have a bounded share of what a store knows, and leave rules theirs.

use std::time::Duration;

use tollgate::{Check, DecidedBy, KeyBuf, Limit, Micros};
use tollgate_rules::descriptors::STATED_LIMITS_MAX;
use tollgate_rules::{Ask, DescriptorError, Facts, Unit};

use super::gate::{DescriptorGate, NOON, TestDescriptor, descriptor};

/// What the other listener that takes limits from callers may have in use.
const OF_OTHER_LISTENERS: u64 = 16_384;

const RULES: &str = "rules: [{ name: users, key: '{user}', limits: [10/minute] }]";

fn stating(units: u32, unit: Unit) -> [TestDescriptor; 1] {
    [descriptor(&[("caller", &units.to_string())]).limit(units, unit)]
}

/// Whether a rule that nobody has asked before has numbers in the store.
fn rule_counts(gate: &DescriptorGate) -> bool {
    let facts = Facts { user: Some("anna"), ..Facts::default() };
    let answer = gate.gatekeeper.decide_at(&Ask { facts, ..Ask::default() }, gate.now);
    answer.allowed() && answer.decided_by() == DecidedBy::Memory && answer.remaining() == 9
}

#[test]
fn one_different_limit_too_many_is_refused_until_another_can_be_forgotten() {
    let mut gate = DescriptorGate::new(&[RULES]);
    let most = STATED_LIMITS_MAX as u32;
    for units in 1..=most {
        assert!(gate.ask("edge", &stating(units, Unit::Minute)).allowed());
    }
    for (units, unit) in [(most + 1, Unit::Minute), (1, Unit::Hour)] {
        let refused = gate.try_ask("edge", &stating(units, unit)).unwrap_err();
        assert_eq!(refused, DescriptorError::TooManyStated);
        assert!(refused.to_string().contains(&STATED_LIMITS_MAX.to_string()));
    }
    assert!(gate.ask("edge", &stating(most, Unit::Minute)).statuses().next().is_some());
    // Nothing takes no numbers.
    assert!(!gate.ask("edge", &stating(0, Unit::Year)).allowed());
    gate.at(NOON + 59);
    gate.ask("edge", &stating(7, Unit::Minute));
    assert!(gate.try_ask("edge", &stating(most + 1, Unit::Minute)).is_err());
    gate.at(NOON + 60);
    assert!(gate.ask("edge", &stating(most + 1, Unit::Minute)).allowed());
    assert!(gate.ask("edge", &stating(1, Unit::Hour)).allowed());
}

/// How many hits pass that state these numbers of units a minute in turn, at one instant.
fn passing(gate: &DescriptorGate, domain: &str, stated: &[u32]) -> usize {
    let turns = stated.iter().cycle().take(1_000);
    let ask = |units: &u32| {
        gate.ask(domain, &[descriptor(&[("caller", "anna")]).limit(*units, Unit::Minute)])
    };
    turns.filter(|units| ask(units).allowed()).count()
}

#[test]
fn whoever_states_numbers_in_turn_gets_the_largest_of_them() {
    assert_eq!(passing(&DescriptorGate::new(&[RULES]), "edge", &[10, 100]), 100);
    assert_eq!(passing(&DescriptorGate::new(&[RULES]), "edge", &[3, 100, 7, 50]), 100);
    let file = |algorithm: &str| {
        format!(
            "domain: edge\nalgorithm: {algorithm}\ncount_denied: false\ndescriptors: [{{ key: k }}]\n"
        )
    };
    for algorithm in ["fixed_window", "sliding_window_log", "sliding_window_counter"] {
        let gate = DescriptorGate::new(&[&file(algorithm)]);
        assert_eq!(passing(&gate, "edge", &[10, 100]), 100, "{algorithm}");
    }
    // A bucket for each.
    for algorithm in ["token_bucket", "leaky_bucket"] {
        let mut gate = DescriptorGate::new(&[&file(algorithm)]);
        assert_eq!(passing(&gate, "edge", &[10, 100]), 110, "{algorithm}");
        gate.at(NOON + 6);
        assert_eq!(passing(&gate, "edge", &[10, 100]), 11, "{algorithm}: what six seconds bring");
    }
}

#[test]
fn a_short_one_makes_room_when_it_ends_whatever_the_others_are() {
    let mut gate = DescriptorGate::new(&[RULES]);
    for units in 1..STATED_LIMITS_MAX as u32 {
        gate.ask("edge", &stating(units, Unit::Year));
    }
    for second in 0..4 {
        gate.at(NOON + second);
        assert!(gate.ask("edge", &stating(second as u32 + 1, Unit::Second)).allowed());
        assert!(gate.try_ask("edge", &stating(9, Unit::Second)).is_err(), "in second {second}");
    }
}

#[test]
fn rules_have_numbers_while_the_shares_of_all_listeners_are_full() {
    let gate = DescriptorGate::new(&[RULES]);
    for units in 1..=STATED_LIMITS_MAX as u32 {
        gate.ask("edge", &stating(units, Unit::Year));
    }
    let key = KeyBuf::new().with("k", "");
    for units in 1..=OF_OTHER_LISTENERS {
        let limit = Limit::per(units, Duration::from_secs(60)).build().unwrap();
        let decision = gate.store.decide_one(&Check::new(&limit, &key), gate.now);
        assert_eq!(decision.decided_by(), DecidedBy::Memory);
    }
    assert!(gate.try_ask("edge", &stating(u32::MAX, Unit::Year)).is_err());
    assert!(rule_counts(&gate));
}

#[test]
fn whoever_states_others_all_the_time_leaves_rules_theirs() {
    let mut gate = DescriptorGate::new(&[RULES]);
    let mut units = 0;
    // More than a store knows, each with a key of its own.
    for round in 0..70 {
        gate.now = Micros::from_secs(NOON + round);
        for _ in 0..STATED_LIMITS_MAX {
            units += 1;
            gate.ask("edge", &stating(units, Unit::Second));
        }
    }
    assert!(rule_counts(&gate));
}
