//! Rules with `concurrency: adaptive`: the bound follows the measured work of a rule and key.

use std::time::Duration;

use tollgate::{ManualClock, MemoryStore, Micros, Wait};
use tollgate_rules::reservation::ADAPTIVE_KEYS_MAX;
use tollgate_rules::{
    AdaptiveBoundReport, Ask, Facts, Gatekeeper, ReservationAnswer, ReservationId, RuleSet, Source,
    WorkOutcome, compile, expect_ready,
};

const NOON: Micros = Micros::from_secs(1_794_744_000);

/// The bound of a key that was not measured yet.
const FIRST_BOUND: usize = 20;

fn rules(text: &str) -> RuleSet {
    let compiled = compile(&[Source::from_text("rules.yaml", text)]);
    compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics))
}

struct AdaptiveGate(Gatekeeper<MemoryStore, ManualClock>);

impl AdaptiveGate {
    fn new(text: &str) -> AdaptiveGate {
        AdaptiveGate(Gatekeeper::new(rules(text), MemoryStore::new(100), ManualClock::new(NOON)))
    }

    fn admit(&self, user: &str) -> ReservationAnswer {
        let facts = Facts { user: Some(user), ..Facts::default() };
        let ask = Ask { facts, ..Ask::default() };
        expect_ready(self.0.admit_by(self.0.rules(), &ask, false, self.0.now()))
    }

    /// Admits work until the bound refuses it.
    fn fill(&self, user: &str) -> Vec<ReservationId> {
        std::iter::from_fn(|| self.admit(user).id).collect()
    }

    /// Runs work to its end, as much at once as is admitted, `times` times.
    fn work(&self, user: &str, outcome: WorkOutcome, times: usize) {
        for _ in 0..times {
            for id in self.fill(user) {
                self.0.clock().advance(Duration::from_millis(1));
                self.0.measure(id, outcome, self.0.now());
                self.0.end(id);
            }
        }
    }

    fn report(&self) -> AdaptiveBoundReport {
        let mut reports = self.0.adaptive_bounds();
        assert_eq!(reports.len(), 1, "{reports:?}");
        reports.remove(0)
    }
}

const ADAPTIVE: &str = "rules: [{ name: app, key: global, concurrency: adaptive }]";
const PER_USER: &str = "rules: [{ name: app, key: '{user}', concurrency: adaptive }]";
const ANSWERED: WorkOutcome = WorkOutcome::Answered(Wait::from_micros(10_000));

#[test]
fn the_bound_grows_while_work_takes_no_longer_and_falls_with_overload() {
    let gate = AdaptiveGate::new(ADAPTIVE);
    assert!(gate.admit("anna").measures_latency);
    assert_eq!(gate.fill("anna").len() + 1, FIRST_BOUND);
    let refused = gate.admit("anna");
    assert_eq!(refused.answer.capacity(), FIRST_BOUND as u64, "the bound of now");
    let gate = AdaptiveGate::new(ADAPTIVE);
    gate.work("anna", ANSWERED, 100);
    let grown = gate.report();
    assert!(grown.limit > 4 * FIRST_BOUND as u64, "{grown:?}");
    assert_eq!((&*grown.rule, grown.keys, grown.in_flight), ("app", 1, 0));
    assert_eq!((grown.base_latency, grown.mean_latency), {
        let ten_ms = Wait::from_micros(10_000);
        (ten_ms, ten_ms)
    });
    gate.work("anna", WorkOutcome::Overloaded, 100);
    assert_eq!(gate.report().limit, 4, "the lowest bound of a rule that names none");
}

#[test]
fn fixed_bounds_are_not_measured() {
    let gate = AdaptiveGate::new("rules: [{ name: app, key: global, concurrency: 3 }]");
    assert!(!gate.admit("anna").measures_latency);
    gate.work("anna", ANSWERED, 100);
    assert_eq!((gate.fill("anna").len() + 1, gate.0.adaptive_bounds().len()), (3, 0));
}

#[test]
fn a_client_that_leaves_counts_if_it_waited_longer_than_usual() {
    let gate = AdaptiveGate::new(ADAPTIVE);
    gate.work("anna", ANSWERED, 100);
    let mean = |gate: &AdaptiveGate| gate.report().mean_latency;
    let before = mean(&gate);
    gate.work("anna", WorkOutcome::Abandoned(Wait::from_micros(1_000)), 10);
    assert_eq!(mean(&gate), before);
    gate.work("anna", WorkOutcome::Abandoned(Wait::from_micros(30_000)), 10);
    assert!(mean(&gate) > before, "{:?}", mean(&gate));
}

#[test]
fn open_streams_do_not_fill_a_bound_that_a_probe_lowers() {
    let gate = AdaptiveGate::new(
        "rules: [{ name: app, key: global, concurrency: { adaptive: { min: 4, max: 100 } } }]",
    );
    gate.work("anna", ANSWERED, 100);
    // The heads of these responses have come, their bodies have not ended.
    let streams: Vec<_> = (0..40).filter_map(|_| gate.admit("anna").id).collect();
    streams.iter().for_each(|id| gate.0.measure(*id, ANSWERED, gate.0.now()));
    assert_eq!((gate.0.stats().reservations, gate.report().in_flight), (40, 0));
    let three_times_slower = WorkOutcome::Answered(Wait::from_micros(30_000));
    let bounds = (0..100).map(|_| {
        gate.work("anna", three_times_slower, 1);
        gate.report().limit
    });
    let bounds: Vec<u64> = bounds.collect();
    let lowest = bounds.iter().position(|bound| *bound < 40).expect("a probe below the streams");
    assert!(bounds[lowest..].iter().any(|bound| *bound > 40), "it grows again: {bounds:?}");
    assert_eq!(gate.report().base_latency, Wait::from_micros(30_000));
}

#[test]
fn measured_work_counts_no_more_under_an_adaptive_bound_and_still_under_a_fixed_one() {
    let gate = AdaptiveGate::new(
        "
rules:
  - { name: app, key: global, concurrency: adaptive }
  - { name: each, key: '{user}', concurrency: 1 }
",
    );
    let [annas, berts] = ["anna", "bert"].map(|user| gate.admit(user).id.expect("admitted"));
    for _ in 0..2 {
        gate.0.measure(annas, WorkOutcome::Unmeasured, gate.0.now());
        assert_eq!(gate.report().in_flight, 1, "the work of bert, also after a second outcome");
    }
    assert!(!gate.admit("anna").answer.allowed());
    gate.0.end(annas);
    assert_eq!(gate.report().in_flight, 1);
    assert!(gate.admit("anna").answer.allowed());
    gate.0.end(berts);
    assert_eq!(gate.report().in_flight, 1, "an end without an outcome frees the place too");
}

#[test]
fn a_committed_reservation_took_as_long_as_it_was_open() {
    let gate = AdaptiveGate::new(
        "rules: [{ name: app, key: global, limits: [1000000/second], concurrency: adaptive }]",
    );
    for _ in 0..50 {
        let ask = Ask::default();
        let open = gate.0.reserve(&ask, Duration::from_secs(60)).expect("there is room");
        gate.0.clock().advance(Duration::from_millis(25));
        gate.0.commit(open.id.expect("admitted"), 1).expect("in time");
    }
    assert_eq!(gate.report().mean_latency, Wait::from_micros(25_000));
}

#[test]
fn a_changed_range_holds_at_once_and_what_was_measured_stays() {
    let gate = AdaptiveGate::new(ADAPTIVE);
    gate.work("anna", ANSWERED, 100);
    let before = gate.report();
    let narrow =
        "rules: [{ name: app, key: global, concurrency: { adaptive: { min: 2, max: 7 } } }]";
    gate.0.replace(rules(narrow));
    assert_eq!(gate.fill("anna").len(), 7);
    let after = gate.report();
    assert_eq!((after.limit, after.in_flight), (7, 7));
    assert_eq!(after.base_latency, before.base_latency);
}

#[test]
fn the_longest_idle_key_makes_room_and_busy_keys_do_not() {
    let gate = AdaptiveGate::new(PER_USER);
    let keys: Vec<String> = (0..ADAPTIVE_KEYS_MAX).map(|number| number.to_string()).collect();
    gate.work("idle", ANSWERED, 100);
    let measured = gate.fill("idle").len();
    assert!(measured > 2 * FIRST_BOUND);
    let gate = AdaptiveGate::new(PER_USER);
    gate.work("idle", ANSWERED, 100);
    let open: Vec<_> = keys.iter().filter_map(|key| gate.admit(key).id).collect();
    assert_eq!((open.len(), gate.report().keys), (ADAPTIVE_KEYS_MAX, ADAPTIVE_KEYS_MAX));
    gate.work("late", ANSWERED, 100);
    assert_eq!(gate.fill("late").len(), FIRST_BOUND, "all others are busy, so it is not measured");
    assert_eq!(gate.fill("idle").len(), FIRST_BOUND, "forgotten");
}

#[test]
fn keys_without_work_are_not_reported_for_long() {
    let gate = AdaptiveGate::new(PER_USER);
    gate.work("anna", ANSWERED, 1);
    gate.0.clock().advance(Duration::from_secs(599));
    let open = gate.admit("bert").id.expect("admitted");
    assert_eq!(gate.report().keys, 2);
    gate.0.clock().advance(Duration::from_secs(20_000));
    assert_eq!(gate.report().keys, 1);
    gate.0.end(open);
    assert!(gate.0.adaptive_bounds().is_empty());
}
