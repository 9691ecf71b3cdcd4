//! Numbers that change in every way that rules can change them, with the promises that hold all the while.

mod run;

use std::sync::Arc;
use std::time::Duration;

use run::ChangingRun;
use tollgate::{ManualClock, MemoryStore, Wait};
use tollgate_rules::{Ask, Facts, Gatekeeper, Source, compile, expect_ready};

const RUNS: u64 = 1_000;

#[test]
fn whatever_changes_waits_come_true_and_nothing_is_refilled() {
    let mut waited = 0;
    for seed in 0..RUNS {
        let store = Arc::new(MemoryStore::new(64));
        let mut run = ChangingRun::new(seed, [Arc::clone(&store), store]);
        expect_ready(run.run());
        waited += run.waited;
    }
    assert!(waited > RUNS / 2, "only {waited} callers have waited");
}

/// Would catch: units that were granted under a larger limit and are owed for hours under a smaller one.
#[test]
fn a_settlement_after_a_lowered_limit_owes_no_more_than_its_capacity() {
    let api = |limit: &str| {
        let text = format!("rules: [{{ name: api, key: '{{user}}', limits: [{limit}] }}]");
        compile(&[Source::from_text("rules.yaml", &text)]).rules.expect("rules")
    };
    let (wide, narrow) = ("60/minute burst 100", "1/minute burst 1");
    let gatekeeper = Gatekeeper::new(api(wide), MemoryStore::new(64), ManualClock::new(run::START));
    let ask = |cost| {
        let facts = Facts { user: Some("1"), path: Some("/"), ..Facts::default() };
        Ask { facts, cost: Some(cost), ..Ask::default() }
    };
    let reserved = gatekeeper.reserve(&ask(10), Duration::from_secs(60)).expect("room");
    gatekeeper.replace(api(narrow));
    assert!(!gatekeeper.decide(&ask(1)).allowed());
    gatekeeper.commit(reserved.id.expect("granted"), 80).expect("open");
    let told = gatekeeper.peek(&ask(1)).retry_after();
    assert!(told <= Wait::from_micros(60_000_000), "{told}");
    // Nothing is forgotten for it.
    gatekeeper.replace(api(wide));
    assert_eq!(gatekeeper.peek(&ask(1)).remaining(), 20);
}
