//! A decision by rules allocates nothing once its thread has made one like it: a counting allocator watches.

#[path = "../../tollgate/tests/counting/mod.rs"]
mod counting;

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use counting::allocations;
use tollgate::{Either, ManualClock, MemoryStore, Micros};
use tollgate_rules::{
    Answer, Ask, DecidedRequest, Facts, Gatekeeper, Headers, RulesObserver, Source, compile,
};

const NOW: Micros = Micros::from_secs(1_790_000_000);

/// Reads every verdict, as a server's observer does.
#[derive(Default)]
struct KeyBytesSum(AtomicUsize);

impl RulesObserver for KeyBytesSum {
    fn decided(&self, decided: &DecidedRequest<'_>) {
        let bytes = decided.rule_verdicts().map(|one| one.key.as_bytes().len()).sum();
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

type ObservedGatekeeper = Gatekeeper<Either<Arc<MemoryStore>, Arc<MemoryStore>>, ManualClock>;

/// A gatekeeper with so many rules, whose keys are of three kinds.
fn gatekeeper(rules: usize, rate: &str) -> ObservedGatekeeper {
    let mut text = String::from("rules:\n");
    for number in 0..rules {
        let key = ["{user}", "{ip}", "{user}:{path}"][number % 3];
        let path = ["", "match: { path: '/api/{*rest}' }, "][number % 2];
        let _ =
            writeln!(text, "  - {{ name: rule-{number}, {path}key: '{key}', limits: [{rate}] }}");
    }
    let compiled = compile(&[Source::from_text("rules.yaml", &text)]);
    let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
    let store = Either::Left(Arc::new(MemoryStore::new(10_000)));
    Gatekeeper::new(rules, store, ManualClock::new(NOW)).observed_by(Arc::<KeyBytesSum>::default())
}

fn ask(user: &str) -> Ask<'_> {
    let facts = Facts {
        method: Some("GET"),
        path: Some("/api/items/42?page=2"),
        ip: Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))),
        user: Some(user),
        ..Facts::default()
    };
    Ask { facts, ..Ask::default() }
}

/// Fails if `decide` allocates, which is called for many users, and for some of them before.
fn allocates_nothing(name: &str, mut decide: impl FnMut(&str)) {
    let users: Vec<String> = (0..100).map(|user| format!("user-{user}")).collect();
    users.iter().take(3).for_each(|user| decide(user));
    let before = allocations();
    users.iter().for_each(|user| decide(user));
    assert_eq!(allocations() - before, 0, "{name} allocated");
}

#[test]
fn one_decision_by_one_and_by_many_rules() {
    for rules in [1, 11] {
        for rate in ["1000/hour", "1/hour"] {
            let gate = gatekeeper(rules, rate);
            let (mut allowed, mut refused) = (0, 0);
            let mut count = |answer: Answer| match answer.allowed() {
                true => allowed += 1,
                false => refused += 1,
            };
            allocates_nothing(&format!("{rules} rules of {rate}"), |user| {
                for _ in 0..2 {
                    let decided = gate.decide_at_once(gate.rules(), &ask(user), NOW);
                    count(decided.expect("the store answers at once"));
                }
            });
            assert_eq!((allowed > 0, refused > 0), (true, rate == "1/hour"), "{rules} of {rate}");
        }
    }
}

#[test]
fn a_host_and_a_header_field_that_need_no_change() {
    let text = "rules:
  - { name: hosted, match: { host: [a.example, '*.example'] }, key: '{user}:{host}', limits: [1000/hour] }
  - { name: plan, match: { header: { x-plan: free } }, key: '{user}', limits: [1000/hour] }";
    let compiled = compile(&[Source::from_text("rules.yaml", text)]);
    let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
    let gate = Gatekeeper::new(rules, MemoryStore::new(10_000), ManualClock::new(NOW));
    for host in ["api.example", "api.example:8080", "api.example."] {
        let headers = vec![("host", host), ("x-plan", "free")];
        for stated in [Some(host), None] {
            allocates_nothing(host, |user| {
                let headers = Some(&headers as &dyn Headers);
                let facts = Facts { host: stated, headers, ..ask(user).facts };
                let ask = Ask { facts, ..Ask::default() };
                let answer = gate.decide_at_once(gate.rules(), &ask, NOW);
                let answer = answer.expect("the store answers at once");
                assert_eq!(answer.limits().len(), 2, "both rules apply");
            });
        }
    }
}

#[test]
fn a_peek() {
    let gate = gatekeeper(11, "1000/hour");
    allocates_nothing("a peek", |user| {
        let answer = gate.peek_at_once(gate.rules(), &ask(user), NOW);
        assert!(answer.expect("the store answers at once").allowed());
    });
}

#[test]
fn many_requests_allocate_by_stride_and_not_by_request() {
    let gate = gatekeeper(11, "1000/hour");
    let users: Vec<String> = (0..64).map(|user| format!("user-{user}")).collect();
    let asks: Vec<Ask<'_>> = users.iter().map(|user| ask(user)).collect();
    let decide = || {
        let before = allocations();
        let mut answers = 0;
        let done = gate.decide_requests_at_once(gate.rules(), &asks, NOW, |_| answers += 1);
        assert!(done.is_ok() && answers == asks.len());
        allocations() - before
    };
    decide();
    // The plans, the outcomes and the decisions once; the checks of each of four strides, and their ends.
    let allocated = decide();
    assert!(allocated <= 12, "{allocated} for {} requests", asks.len());
}
