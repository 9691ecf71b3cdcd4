//! Many requests decided in strides: on random rules and requests, with bans, blocks, missing facts and more
//! limits than a decision holds, the answers and what observers see are those of deciding one by one.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::{ManualClock, MemoryStore, Micros};
use tollgate_rules::{
    Answer, Ask, DecidedRequest, Facts, Gatekeeper, InfallibleStore, MissingFacts, RulesObserver,
    Source, compile,
};

use crate::model::RulesModelRandom;
use crate::yielding_store::YieldingStore;

const SETS: u64 = 150;
const BATCHES: usize = 4;

/// Writes down every decision in order.
#[derive(Default)]
struct DecisionLog(Mutex<Vec<String>>);

impl RulesObserver for DecisionLog {
    fn decided(&self, decided: &DecidedRequest<'_>) {
        let mut line = format!("{:?}", decided.refusal());
        for one in decided.rule_verdicts() {
            let _ = write!(line, " {}={:?}/{}", one.rule.name, one.verdict, one.limit);
        }
        self.0.lock().unwrap().push(line);
    }

    fn missing_facts(&self, missing: &MissingFacts<'_>, _: Micros) {
        self.0.lock().unwrap().push(format!("{missing:?}"));
    }
}

/// A gatekeeper and the log of its decisions.
struct LoggedGatekeeper<S> {
    gatekeeper: Gatekeeper<S, ManualClock>,
    log: Arc<DecisionLog>,
}

impl<S: InfallibleStore> LoggedGatekeeper<S> {
    fn new(text: &str, store: S) -> LoggedGatekeeper<S> {
        let compiled = compile(&[Source::from_text("rules.yaml", text)]);
        let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
        let log = Arc::new(DecisionLog::default());
        let gatekeeper = Gatekeeper::new(rules, store, ManualClock::new(Micros::ZERO));
        LoggedGatekeeper { gatekeeper: gatekeeper.observed_by(log.clone()), log }
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.0.lock().unwrap())
    }

    fn block(&self, user: &str, now: Micros) {
        let key = format!("user={user}");
        let caller = self.gatekeeper.caller_at("rule-0", &key, now).unwrap();
        assert!(wait(caller.block(Duration::from_secs(2))));
    }
}

/// Polls until the future is ready.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}

/// Everything that an answer says.
fn text(answer: &Answer) -> String {
    let mut text = format!(
        "{:?} {:?} {:?} {:?} {:?}",
        answer.refusal(),
        answer.retry_after(),
        answer.remaining(),
        answer.binding().map(|one| (one.rule, one.limit)),
        answer.missing_facts(),
    );
    for one in answer.limits() {
        let _ = write!(text, "\n  {} {} {:?}", one.rule, one.limit, one.outcome);
    }
    text
}

/// Random rules. The first always has the user as key.
fn rules(random: &mut RulesModelRandom) -> String {
    let mut text = String::from("rules:\n");
    // More limits than a decision holds, for a path that servers read in several ways.
    let many = random.one_in(5);
    for number in 0..if many { 1 } else { 1 + random.below(6) } {
        let key = if number == 0 { "{user}" } else { random.pick(&["{user}", "{ip}", "global"]) };
        let limits = random.pick(&["2/second", "3/minute, 5/hour", "4/minute burst 2", "100/hour"]);
        let path =
            random.pick(&["", "match: { path: '/a/{*rest}' }, ", "match: { method: GET }, "]);
        let ban = if random.one_in(4) { "ban: { after: 2, within: 1m, for: 3s }, " } else { "" };
        let mode = if random.one_in(6) { "mode: shadow, " } else { "" };
        let _ = writeln!(
            text,
            "  - {{ name: rule-{number}, {path}{ban}{mode}key: '{key}', limits: [{limits}] }}"
        );
    }
    for number in 0..if many { 6 } else { 0 } {
        let _ = writeln!(
            text,
            "  - {{ name: many-{number}, key: '{{ip}}:{{path}}', limits: [9/hour, 99/day] }}"
        );
    }
    text
}

fn ask(random: &mut RulesModelRandom) -> Ask<'static> {
    let facts = Facts {
        method: Some(random.pick(&["GET", "POST"])),
        path: Some(random.pick(&["/a/x", "/b", "/c", "/a/%62/./y"])),
        ip: (!random.one_in(6))
            .then(|| IpAddr::V4(Ipv4Addr::new(192, 0, 2, random.below(2) as u8))),
        user: (!random.one_in(6)).then(|| random.pick(&["anna", "bert"])),
        ..Facts::default()
    };
    let cost = random.pick(&[None, None, None, Some(0), Some(2)]);
    Ask { facts, cost, needs_facts: random.one_in(3), ..Ask::default() }
}

#[test]
fn a_stride_answers_like_one_by_one() {
    let mut seen = ["OverLimit", "Blocked", "TooManyLimits", "EmptyKey"].map(|name| (name, 0));
    for seed in 1..=SETS {
        let mut random = RulesModelRandom(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let rules = rules(&mut random);
        let single = LoggedGatekeeper::new(&rules, MemoryStore::new(1_000));
        let strides = LoggedGatekeeper::new(&rules, MemoryStore::new(1_000));
        let waiting = LoggedGatekeeper::new(&rules, YieldingStore::new(1_000));
        let mut now = Micros::from_secs(1_700_000_000);
        for _ in 0..BATCHES {
            now = Micros::new(now.as_u64() + random.below(4) as u64 * 700_000);
            if random.one_in(4) {
                single.block("anna", now);
                strides.block("anna", now);
                waiting.block("anna", now);
            }
            // More than one stride of either length now and then.
            let length = random.pick(&[0, 1, 2, 15, 16, 17, 40, 150]);
            let asks: Vec<Ask<'_>> = (0..length).map(|_| ask(&mut random)).collect();
            let want: Vec<String> =
                asks.iter().map(|ask| text(&single.gatekeeper.decide_at(ask, now))).collect();
            for (refusal, times) in &mut seen {
                let start = format!("Some({refusal})");
                *times += want.iter().filter(|text| text.starts_with(&start)).count();
            }

            let mut got = Vec::new();
            let gatekeeper = &strides.gatekeeper;
            let done =
                gatekeeper.decide_requests_at_once(gatekeeper.rules(), &asks, now, |answer| {
                    got.push(text(answer));
                });
            assert!(done.is_ok());
            assert_eq!(got, want, "seed {seed}\n{rules}");

            let mut got = Vec::new();
            let gatekeeper = &waiting.gatekeeper;
            let at_once =
                gatekeeper.decide_requests_at_once(gatekeeper.rules(), &asks, now, |_| {});
            assert!(at_once.is_err(), "this store has to be waited for");
            wait(gatekeeper.decide_requests_by(gatekeeper.rules(), &asks, now, |answer| {
                got.push(text(answer));
            }));
            assert_eq!(got, want, "seed {seed}, waiting\n{rules}");

            let log = single.log();
            assert_eq!(strides.log(), log, "seed {seed}\n{rules}");
            assert_eq!(waiting.log(), log, "seed {seed}, waiting\n{rules}");
            assert_eq!(strides.gatekeeper.stats(), single.gatekeeper.stats());
        }
    }
    assert!(seen.iter().all(|(_, times)| *times > 100), "{seen:?}");
}
