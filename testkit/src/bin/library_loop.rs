//! Calls the library in a loop, for counts of instructions: `library-loop PATH DECISIONS`.

use std::hint::black_box;

use testkit::instructions::paths::BATCH;
use tollgate::{Check, Decision, Limit, Limiter, ManualClock, MemoryStore, Micros};
use tollgate_rules::compile::compile;
use tollgate_rules::source::Source;
use tollgate_rules::{Ask, Facts, Gatekeeper};

/// Number of different keys; each has a state after the first calls.
const KEYS: usize = 64;
/// Capacity of the tables.
const KEYS_MAX: usize = 10_000;

const ONE_RULE: &str = include_str!("../../../bench/rules/one-rule.yaml");
const ELEVEN_RULES: &str = include_str!("../../../bench/rules/eleven-rules.yaml");

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [path, decisions] = &words[..] else { panic!("write a path and a number of decisions") };
    let decisions: usize = decisions.parse().expect("a number of decisions");
    let keys: Vec<String> = (0..KEYS).map(|number| format!("user:{number:07}")).collect();
    match path.as_str() {
        "Limiter::check" => check(&keys, decisions),
        "Limiter::decide_batch" => decide_batch(&keys, decisions),
        "Gatekeeper, 1 rule" => gatekeeper(ONE_RULE, &keys, decisions),
        "Gatekeeper, 11 rules" => gatekeeper(ELEVEN_RULES, &keys, decisions),
        other => panic!("there is no path `{other}`"),
    }
}

fn check(keys: &[String], decisions: usize) {
    let (limiter, limit) = (Limiter::with_capacity(KEYS_MAX), limit());
    for key in keys.iter().cycle().take(decisions) {
        consume(&limiter.check(&limit, key.as_str()));
    }
}

fn decide_batch(keys: &[String], decisions: usize) {
    let (limiter, limit) = (Limiter::with_capacity(KEYS_MAX), limit());
    let mut answers = Vec::new();
    for _ in 0..decisions / BATCH {
        let mut checks = [Check::new(&limit, ""); BATCH];
        for (check, key) in checks.iter_mut().zip(keys) {
            *check = Check::new(&limit, key.as_str());
        }
        limiter.decide_batch(&checks, &mut answers);
        answers.iter().for_each(consume);
    }
}

fn gatekeeper(rules: &str, keys: &[String], decisions: usize) {
    let compiled = compile(&[Source::from_text("rules.yaml", rules)]);
    let rules = compiled.rules.expect("valid rules");
    let (store, clock) = (MemoryStore::new(KEYS_MAX), ManualClock::new(Micros::ZERO));
    let gatekeeper = Gatekeeper::new(rules, store, clock);
    for (request, user) in keys.iter().cycle().take(decisions).enumerate() {
        let (method, path) = (Some("GET"), Some("/api/search"));
        let facts = Facts { method, path, user: Some(user), ..Facts::default() };
        let now = Micros::new(1_700_000_000_000_000 + request as u64 * 10);
        let answer = gatekeeper.decide_at(&Ask { facts, ..Ask::default() }, now);
        assert!(black_box(answer.allowed()), "the limits are never reached");
    }
}

/// A limit that is never reached.
fn limit() -> Limit {
    let limit = Limit::per_second(1_000_000).burst(4_000_000_000);
    limit.build().expect("valid numbers")
}

/// Uses the whole decision, so that no part of it is optimised away.
fn consume(decision: &Decision) {
    black_box((
        decision.allowed(),
        decision.remaining(),
        decision.retry_after(),
        decision.reset_after(),
        decision.more_after(),
    ));
}
