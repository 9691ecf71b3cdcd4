//! Work whose end is seen: what is kept open until then, and what is settled when it comes.

use std::time::Duration;

use tollgate::{ManualClock, MemoryStore, Micros, Refusal};
use tollgate_rules::reservation::{EXPIRES_IN_MAX, RESERVATIONS_MAX};
use tollgate_rules::{
    Ask, Facts, Gatekeeper, ReservationAnswer, ReservationId, ReserveError, ResponseCharges,
    ResponseFacts, SettleError, Source, Verdict, compile, expect_ready,
};

const RULES: &str = "
rules:
  - { name: plain, match: { path: /plain }, key: global, limits: [100/hour burst 100] }
  - { name: work, match: { path: /work }, key: '{user}', limits: [100/hour burst 100], concurrency: 2 }
  - { name: bare, match: { path: /bare }, key: '{user}', concurrency: 1 }
  - name: tokens
    match: { path: /chat }
    key: global
    limits: [100/hour burst 100]
    cost: { reserve: 10, actual: '{response.header.X-Tokens}' }
  - name: seconds
    match: { path: /chat }
    key: global
    limits: [50/hour burst 50]
    cost: { reserve: 5, actual: '{response.header.x-seconds}' }
";

const NOON: Micros = Micros::from_secs(1_794_744_000);

struct WorkGate(Gatekeeper<MemoryStore, ManualClock>);

impl WorkGate {
    fn new() -> WorkGate {
        let compiled = compile(&[Source::from_text("rules.yaml", RULES)]);
        let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
        let (store, clock) = (MemoryStore::new(1_000), ManualClock::new(NOON));
        WorkGate(Gatekeeper::new(rules, store, clock))
    }

    fn admit(&self, path: &str, user: &str, settles: bool) -> ReservationAnswer {
        let facts = Facts { path: Some(path), user: Some(user), ..Facts::default() };
        let ask = Ask { facts, ..Ask::default() };
        expect_ready(self.0.admit_by(self.0.rules(), &ask, settles, NOON))
    }

    /// What is left under each rule of a path.
    fn left(&self, path: &str) -> Vec<u64> {
        let facts = Facts { path: Some(path), user: Some("nobody"), ..Facts::default() };
        let answer = self.0.peek(&Ask { facts, ..Ask::default() });
        answer.limits().map(|limit| limit.outcome.remaining).collect()
    }

    /// Takes the charges that are due for a response of 200 with these header fields.
    fn due(
        &self,
        id: ReservationId,
        cost: Option<u64>,
        fields: &[(&'static str, u64)],
        now: Micros,
    ) -> Result<ResponseCharges, SettleError> {
        let fields = fields.iter().map(|(name, number)| (*name, number.to_string()));
        let headers: Vec<(&str, String)> = fields.collect();
        let head =
            ResponseFacts { status: 200, headers: &headers, is_tunnel: false, is_unsent: false };
        self.0.take_due(id, cost, &head, now)
    }

    fn open(&self) -> usize {
        self.0.stats().reservations
    }
}

#[test]
fn only_what_an_end_settles_is_kept_open() {
    let gate = WorkGate::new();
    assert!(gate.admit("/plain", "anna", false).id.is_none());
    for settles in [false, true] {
        assert!(gate.admit("/none", "anna", settles).id.is_none(), "no limit, nothing to settle");
    }
    assert_eq!(gate.open(), 0);
    assert!(gate.admit("/plain", "anna", true).id.is_some(), "the asker settles everything");
    assert!(gate.admit("/work", "anna", false).id.is_some());
    assert!(gate.admit("/chat", "anna", false).id.is_some());
    assert_eq!(gate.open(), 3);
}

#[test]
fn work_counts_until_it_ends_also_once_it_is_settled() {
    let gate = WorkGate::new();
    let first = gate.admit("/work", "anna", false).id.expect("open");
    let second = gate.admit("/work", "anna", false).id.expect("open");
    let busy = |gate: &WorkGate| gate.admit("/work", "anna", false).answer.refusal();
    assert_eq!(busy(&gate), Some(Refusal::Busy));
    let due = gate.due(first, Some(1), &[], NOON).expect("in time");
    expect_ready(gate.0.settle_by(due.known, NOON));
    assert_eq!(busy(&gate), Some(Refusal::Busy), "its body has not ended");
    gate.0.end(first);
    assert!(gate.admit("/work", "anna", false).answer.allowed());
    assert_eq!(busy(&gate), Some(Refusal::Busy));
    // Ended twice is ended once.
    gate.0.end(first);
    gate.0.end(first);
    assert_eq!(busy(&gate), Some(Refusal::Busy));
    gate.0.end(second);
    assert_eq!(gate.0.commit(second, 1), Err(SettleError::Unknown));
}

#[test]
fn a_rule_without_limits_bounds_work_and_nothing_else() {
    let gate = WorkGate::new();
    let first = gate.admit("/bare", "anna", false);
    assert!(first.answer.allowed() && first.answer.binding().is_none());
    let second = gate.admit("/bare", "anna", false);
    assert_eq!(second.answer.refusal(), Some(Refusal::Busy));
    assert_eq!(second.answer.binding().expect("a bound").limit, "1 in flight");
    let tally = |verdict| {
        let rules = gate.0.rules();
        let mut tallies = rules.tallies();
        tallies.find(|(rule, _)| &*rule.name == "bare").expect("it is there").1.count(verdict)
    };
    assert_eq!((tally(Verdict::Allowed), tally(Verdict::Refused)), (1, 1));
    gate.0.end(first.id.expect("work in progress"));
    assert!(gate.admit("/bare", "anna", false).answer.allowed());
    assert!(gate.0.decide(&Ask::default()).allowed(), "a check is no work");
}

#[test]
fn each_rule_is_settled_by_its_own_header() {
    // What the response says of each, what the asker says, what is left of 100 and 50.
    type SettleRow = (Option<u64>, Option<u64>, Option<u64>, [u64; 2]);
    let rows: [SettleRow; 5] = [
        (None, None, None, [90, 45]),
        (Some(4), None, None, [96, 45]),
        (None, Some(20), None, [90, 30]),
        (Some(0), Some(0), None, [100, 50]),
        (Some(4), Some(20), Some(1), [99, 49]),
    ];
    for (tokens, seconds, cost, left) in rows {
        let gate = WorkGate::new();
        let id = gate.admit("/chat", "anna", false).id.expect("open");
        let fields = [("x-tokens", tokens), ("x-seconds", seconds)];
        let fields: Vec<_> =
            fields.into_iter().filter_map(|(name, number)| Some((name, number?))).collect();
        let due = gate.due(id, cost, &fields, NOON).expect("in time");
        assert!(due.metered.is_none());
        expect_ready(gate.0.settle_by(due.known, NOON));
        assert_eq!(gate.left("/chat"), left, "{tokens:?} {seconds:?} {cost:?}");
        // It can be told once.
        let again = gate.due(id, Some(0), &[], NOON).expect("still open");
        expect_ready(gate.0.settle_by(again.known, NOON));
        assert_eq!(gate.left("/chat"), left);
    }
}

#[test]
fn what_is_late_or_unknown_is_not_settled() {
    let gate = WorkGate::new();
    let id = gate.admit("/chat", "anna", false).id.expect("open");
    let late = NOON.after(tollgate::Wait::at_least(EXPIRES_IN_MAX));
    let due = gate.due(id, Some(0), &[], late).map(drop);
    assert_eq!(due, Err(SettleError::Expired));
    gate.0.end(id);
    let due = gate.due(id, Some(0), &[], NOON).map(drop);
    assert_eq!(due, Err(SettleError::Unknown));
    assert_eq!(gate.left("/chat"), [90, 45], "the charge stands");
}

#[test]
fn a_full_table_is_too_much_work() {
    let gate = WorkGate::new();
    let minute = Duration::from_secs(60);
    let reserve = |index: usize| {
        let user = format!("user-{}", index / 2);
        let facts = Facts { path: Some("/work"), user: Some(&user), ..Facts::default() };
        gate.0.reserve_at(&Ask { facts, ..Ask::default() }, minute, NOON)
    };
    for index in 0..RESERVATIONS_MAX {
        assert!(reserve(index).expect("room").id.is_some());
    }
    assert_eq!(reserve(RESERVATIONS_MAX).unwrap_err(), ReserveError::TableFull);
    let refused = gate.admit("/work", "anna", false);
    assert_eq!(refused.answer.refusal(), Some(Refusal::Busy));
    assert!(refused.answer.binding().is_none() && refused.id.is_none());
    assert_eq!(gate.left("/work"), [100], "a refusal is free");
    assert!(gate.admit("/plain", "anna", false).answer.allowed(), "what needs no place goes on");
    assert!(
        gate.admit("/none", "anna", true).answer.allowed(),
        "and so does what no limit is about"
    );
}
