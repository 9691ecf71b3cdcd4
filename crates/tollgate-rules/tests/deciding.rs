//! What rules do, one behaviour at a time: a rules file, requests at chosen instants, answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::{DecidedBy, ManualClock, MemoryStore, Micros, Refusal};
use tollgate_rules::compile::compile;
use tollgate_rules::reservation::{RESERVATIONS_MAX, RESERVATIONS_PER_CALLER_MAX};
use tollgate_rules::source::Source;
use tollgate_rules::{
    Answer, Ask, BanNotice, BanOutcome, DecidedRequest, Enforcement, Facts, Gatekeeper,
    ReserveError, RuleSet, RulesObserver, SettleError,
};

/// 2026-11-15 12:00:00 UTC, a Sunday.
const NOON: u64 = 1_794_744_000;

/// A gatekeeper and the time that its tests tell it.
struct DecidingGate {
    gatekeeper: Gatekeeper<MemoryStore, ManualClock>,
    now: Micros,
}

impl DecidingGate {
    fn new(rules: &str) -> DecidingGate {
        let compiled = compile(&[Source::from_text("rules.yaml", rules)]);
        let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
        let (store, clock) = (MemoryStore::new(10_000), ManualClock::new(Micros::ZERO));
        DecidingGate {
            gatekeeper: Gatekeeper::new(rules, store, clock),
            now: Micros::from_secs(NOON),
        }
    }

    fn later(&mut self, seconds: f64) -> &mut DecidingGate {
        self.now = Micros::new(self.now.as_u64() + (seconds * 1e6) as u64);
        self
    }

    fn get(&self, path: &str, user: &str) -> Answer {
        self.ask(&Ask { facts: of(path, user), ..Ask::default() })
    }

    fn ask(&self, ask: &Ask<'_>) -> Answer {
        self.gatekeeper.decide_at(ask, self.now)
    }

    /// How many of `tries` pass.
    fn passing(&self, path: &str, user: &str, tries: usize) -> usize {
        (0..tries).filter(|_| self.get(path, user).allowed()).count()
    }

    fn reserve(&self, ask: &Ask<'_>) -> Result<tollgate_rules::ReservationAnswer, ReserveError> {
        self.gatekeeper.reserve_at(ask, Duration::from_secs(60), self.now)
    }
}

fn of<'a>(path: &'a str, user: &'a str) -> Facts<'a> {
    Facts {
        method: Some("GET"),
        path: Some(path),
        user: Some(user),
        ip: "192.0.2.1".parse().ok(),
        ..Facts::default()
    }
}

fn remaining(answer: &Answer) -> Vec<(String, u64)> {
    answer.limits().map(|one| (one.rule.into(), one.outcome.remaining)).collect()
}

#[test]
fn a_refusal_by_one_rule_charges_no_other() {
    let gate = DecidingGate::new(
        "version: 1\nrules:\n\
         - { name: wide, key: global, limits: [100/minute] }\n\
         - { name: narrow, match: { path: /a }, key: '{user}', limits: [2/minute] }\n",
    );
    assert_eq!(gate.passing("/a", "anna", 5), 2);
    let answer = gate.get("/a", "anna");
    assert_eq!(answer.binding().unwrap().rule, "narrow");
    assert_eq!(remaining(&answer), [("wide".into(), 98), ("narrow".into(), 0)]);
    assert_eq!(gate.passing("/b", "anna", 200), 98);
}

#[test]
fn no_rule_is_no_limit() {
    let gate = DecidingGate::new(
        "version: 1\nrules: [{ name: a, match: { path: /a }, key: '{user}', limits: [1/minute] }]\n",
    );
    let answer = gate.get("/b", "anna");
    assert!(answer.allowed() && answer.binding().is_none() && answer.limits().len() == 0);
    // A fact is missing: the rule does not apply, and that is counted.
    let nobody = Facts { user: None, ..of("/a", "") };
    assert!(gate.ask(&Ask { facts: nobody, ..Ask::default() }).binding().is_none());
    assert_eq!(gate.gatekeeper.stats().without_fact, 1);
}

#[test]
fn fallbacks_apply_where_nothing_else_is_enforced() {
    let gate = DecidingGate::new(
        "version: 1\nrules:\n\
         - { name: rest, fallback: true, key: '{user|ip}', limits: [1/minute] }\n\
         - { name: a, match: { path: /a }, key: '{user}', limits: [2/minute] }\n\
         - { name: b, match: { path: /b }, key: '{user}', limits: [2/minute], mode: shadow }\n\
         - { name: c, match: { path: /c }, key: '{user}', limits: [2/minute], mode: off }\n\
         - { name: d, match: { path: /d }, key: '{api_key}', limits: [2/minute] }\n",
    );
    let rules = |path| remaining(&gate.get(path, "anna")).into_iter().map(|(rule, _)| rule);
    assert_eq!(rules("/a").collect::<Vec<_>>(), ["a"]);
    assert_eq!(rules("/b").collect::<Vec<_>>(), ["b", "rest"]);
    assert_eq!(rules("/c").collect::<Vec<_>>(), ["rest"]);
    // Matched, but its key has no fact: such a request must not go uncounted.
    assert_eq!(rules("/d").collect::<Vec<_>>(), ["rest"]);
}

#[test]
fn exempt_callers_meet_no_rule() {
    let gate = DecidingGate::new(
        "version: 1\nrules: [{ name: a, key: '{user|ip}', limits: [1/minute] }]\n\
         exempt: { ip: [10.1.0.0/16], user: [health-checker] }\n",
    );
    assert_eq!(gate.passing("/", "health-checker", 50), 50);
    let inside = Facts { ip: "::ffff:10.1.2.3".parse().ok(), ..of("/", "anna") };
    let answer = gate.ask(&Ask { facts: inside, ..Ask::default() });
    assert!(answer.allowed() && answer.binding().is_none());
    assert_eq!(gate.passing("/", "anna", 50), 1);
}

#[test]
fn shadow_and_soft_limits_never_refuse() {
    let gate = DecidingGate::new(
        "version: 1\nrules:\n\
         - { name: quiet, key: '{user}', limits: [1/minute], mode: shadow }\n\
         - { name: gentle, key: '{user}', limits: [2/minute], soft: true }\n",
    );
    let judged = |answer: &Answer| {
        let one = |one: tollgate_rules::JudgedLimit<'_>| (one.enforcement, one.outcome.allowed);
        answer.limits().map(one).collect::<Vec<_>>()
    };
    let (first, third) = (gate.get("/", "anna"), {
        let _ = gate.get("/", "anna");
        gate.get("/", "anna")
    });
    assert_eq!(judged(&first), [(Enforcement::Shadow, true), (Enforcement::Soft, true)]);
    assert_eq!(judged(&third), [(Enforcement::Shadow, false), (Enforcement::Soft, false)]);
    assert_eq!(first.warnings().count(), 0);
    assert_eq!(third.warnings().map(|name| name.as_str()).collect::<Vec<_>>(), ["gentle-1m"]);
    // Clients are told of limits that are enforced, and of nothing else.
    assert!(third.allowed() && third.binding().is_none() && third.policies().is_empty());
}

#[test]
fn a_share_of_callers_is_enforced() {
    let gate = DecidingGate::new(
        "version: 1\nrules:\n\
         - { name: a, key: '{user}', limits: [1/minute], mode: { enforce: 25% } }\n",
    );
    let enforced = |user: &String| gate.passing("/", user, 3) == 1;
    let share = (0..1_000).map(|user| format!("user-{user}")).filter(enforced).count();
    assert!((200..300).contains(&share), "{share} of 1,000");
}

#[test]
fn refusals_earn_a_ban_of_that_rule_alone() {
    let mut gate = DecidingGate::new(
        "version: 1\nrules:\n\
         - name: login\n  match: { path: /login }\n  key: '{ip}'\n  \
           limits: [{ rate: 5/minute, algorithm: sliding_window_log }]\n  \
           ban: { after: 3, within: 1m, for: 15m }\n\
         - { name: all, key: '{ip}', limits: [1000/minute] }\n",
    );
    assert_eq!(gate.passing("/login", "anna", 7), 5, "two refusals are not three");
    assert_eq!(gate.get("/login", "anna").refusal(), Some(Refusal::OverLimit), "the third");
    assert_eq!(gate.gatekeeper.stats().bans, 1);
    gate.later(120.0);
    let banned = gate.get("/login", "anna");
    assert_eq!(banned.refusal(), Some(Refusal::Blocked));
    assert_eq!(banned.decided_by(), DecidedBy::Block);
    assert_eq!(banned.retry_after().as_micros(), Some(13 * 60 * 1_000_000));
    assert_eq!((banned.binding().unwrap().rule, banned.capacity()), ("login", 5));
    assert!(gate.get("/home", "anna").allowed(), "other rules go on");
    gate.later(13.0 * 60.0);
    assert!(gate.get("/login", "anna").allowed(), "it ends by itself");
}

/// An observer of bans: rule, result, seconds until the end of the block.
#[derive(Default)]
struct BanObserver(Mutex<Vec<(String, BanOutcome, u64)>>);

impl RulesObserver for BanObserver {
    fn decided(&self, _: &DecidedRequest<'_>) {}

    fn banned(&self, _: &RuleSet, ban: &BanNotice<'_>) {
        let seconds = (ban.until.as_u64() - ban.at.as_u64()) / 1_000_000;
        self.0.lock().unwrap().push((ban.rule.name.to_string(), ban.outcome, seconds));
    }
}

#[test]
fn a_ban_in_shadow_is_told_once_and_blocks_nobody() {
    let told = Arc::new(BanObserver::default());
    let rule = |mode| {
        format!(
            "rules:\n- {{ name: login, match: {{ path: /login }}, key: '{{ip}}', mode: {mode}, \
             limits: [{{ rate: 5/minute, algorithm: sliding_window_log }}], \
             ban: {{ after: 3, within: 1m, for: 15m }} }}\n\
             - {{ name: all, key: '{{ip}}', limits: [1000/minute] }}\n"
        )
    };
    let mut gate = DecidingGate::new(&rule("shadow"));
    gate.gatekeeper = gate.gatekeeper.observed_by(told.clone());
    let bans = || std::mem::take(&mut *told.0.lock().unwrap());
    assert_eq!(gate.passing("/login", "anna", 7), 7);
    assert_eq!(bans(), [], "two refusals in shadow are not three");
    assert_eq!(gate.passing("/login", "anna", 20), 20);
    assert_eq!(bans(), [("login".into(), BanOutcome::Shadow, 900)], "once");
    let stats = gate.gatekeeper.stats();
    assert_eq!((stats.bans, stats.shadow_bans), (0, 1));
    gate.later(899.0);
    assert_eq!(gate.passing("/login", "anna", 9), 9);
    assert_eq!(bans(), [], "while the block would last");
    gate.later(1.0);
    assert_eq!(gate.passing("/login", "anna", 9), 9);
    assert_eq!(bans(), [("login".into(), BanOutcome::Shadow, 900)], "again after it");
    let compiled = compile(&[Source::from_text("rules.yaml", &rule("enforce"))]);
    gate.gatekeeper.replace(compiled.rules.unwrap());
    assert_eq!(gate.passing("/login", "anna", 2), 0);
    assert_eq!(bans(), [], "enforced rules begin to count at zero");
    assert_eq!(gate.passing("/login", "anna", 1), 0);
    assert_eq!(bans(), [("login".into(), BanOutcome::Blocked, 900)]);
    let rules = gate.gatekeeper.rules();
    let (_, tally) = rules.tallies().next().unwrap();
    assert_eq!((tally.bans(), tally.shadow_bans()), (1, 2));
}

#[test]
fn refused_refusals_of_several_limits_count_once() {
    let gate = DecidingGate::new(
        "version: 1\nrules:\n\
         - name: a\n  key: '{ip}'\n  limits: [1/minute, 1/hour, 1/day]\n  \
           ban: { after: 3, within: 1m, for: 15m }\n",
    );
    assert_eq!(gate.passing("/", "anna", 3), 1);
    assert_eq!(gate.gatekeeper.stats().bans, 0);
    assert!(!gate.get("/", "anna").allowed());
    assert_eq!(gate.gatekeeper.stats().bans, 1);
}

#[test]
fn tiers_come_from_facts_then_the_table_then_the_default() {
    let gate = DecidingGate::new(
        "version: 1\n\
         identify: { tier: { users: { anna: pro }, default: free } }\n\
         tiers: { free: 1, pro: 10, partner: { api: [7/minute] } }\n\
         rules: [{ name: api, key: '{user}', limits: [2/minute], tiered: true }]\n",
    );
    assert_eq!(gate.passing("/", "bert", 50), 2);
    assert_eq!(gate.passing("/", "anna", 50), 20);
    let said =
        |user, tier| Ask { facts: Facts { tier: Some(tier), ..of("/", user) }, ..Ask::default() };
    let passing = |user, tier| (0..50).filter(|_| gate.ask(&said(user, tier)).allowed()).count();
    assert_eq!(passing("carl", "partner"), 7);
    assert_eq!(passing("dora", "pro"), 20);
    assert_eq!(passing("emil", "nonsense"), 2, "an unknown tier is the default");
    let answer = gate.ask(&said("fritz", "pro"));
    assert_eq!((answer.capacity(), answer.binding().unwrap().limit), (20, "20/minute"));
}

#[test]
fn an_empty_tier_is_none() {
    let gate = DecidingGate::new(
        "version: 1\nidentify: { tier: { default: free } }\n\
         rules: [{ name: api, key: '{user}:{tier}', limits: [2/minute] }]\n",
    );
    let of_tier = |tier| Ask { facts: Facts { tier, ..of("/", "anna") }, ..Ask::default() };
    let passing = |tier| (0..5).filter(|_| gate.ask(&of_tier(tier)).allowed()).count();
    assert_eq!([Some(""), None, Some("free"), Some("pro")].map(passing), [2, 0, 0, 2]);
}

#[test]
fn overrides_hold_until_they_end() {
    let mut gate = DecidingGate::new(
        "version: 1\nrules: [{ name: api, key: '{user|ip}', limits: [2/minute] }]\n\
         overrides:\n\
         - { rule: api, key: anna, limits: [5/minute], until: 2026-11-15T12:10:00Z }\n\
         - { rule: api, key: 'ip=192.0.2.1', limits: [9/minute] }\n",
    );
    assert_eq!(gate.passing("/", "anna", 20), 5);
    assert_eq!(gate.passing("/", "bert", 20), 2);
    let anonymous = Facts { user: None, ..of("/", "") };
    let asks = (0..20).filter(|_| gate.ask(&Ask { facts: anonymous, ..Ask::default() }).allowed());
    assert_eq!(asks.count(), 9);
    gate.later(600.0);
    assert_eq!(gate.passing("/", "anna", 20), 2);
}

#[test]
fn costs_are_by_endpoint_unless_the_caller_says() {
    let gate = DecidingGate::new(
        "version: 1\nrules:\n\
         - name: budget\n  key: '{user}'\n  limits: [{ rate: 100/minute, burst: 100 }]\n  \
           cost: { default: 1, '/up': 10, 'GET /heavy': 50 }\n",
    );
    let left = |path, user| gate.get(path, user).remaining();
    assert_eq!((left("/x", "a"), left("/up", "a"), left("/heavy", "a")), (99, 89, 39));
    let explicit = Ask { facts: of("/heavy", "a"), cost: Some(3), ..Ask::default() };
    assert_eq!(gate.ask(&explicit).remaining(), 36);
    assert_eq!(gate.ask(&Ask { cost: Some(0), ..explicit }).remaining(), 36, "0 only asks");
    assert!(!gate.get("/heavy", "a").allowed());
    let refund = gate.gatekeeper.refund_at(&Ask { cost: None, ..explicit }, gate.now);
    assert_eq!(refund.remaining(), 86);
}

#[test]
fn whoever_cannot_wait_is_refused_and_not_charged() {
    let mut gate = DecidingGate::new(
        "version: 1\nrules:\n\
         - name: q\n  key: '{user}'\n  \
           limits: [{ rate: 2/second, burst: 10, algorithm: leaky_bucket, queue: true }]\n\
         - { name: all, key: '{user}', limits: [100/minute] }\n",
    );
    let now = Ask { facts: of("/", "anna"), cannot_wait: true, ..Ask::default() };
    assert!(gate.ask(&now).allowed());
    for _ in 0..5 {
        let refused = gate.ask(&now);
        assert_eq!(refused.refusal(), Some(Refusal::OverLimit));
        assert_eq!(refused.retry_after().as_micros(), Some(500_000));
        assert_eq!(refused.binding().unwrap().rule, "q");
        assert_eq!(remaining(&refused)[1], ("all".into(), 99), "nothing was charged");
    }
    let waits = gate.ask(&Ask { cannot_wait: false, ..now });
    assert_eq!(waits.delay().as_micros(), Some(500_000));
    gate.later(1.0);
    assert!(gate.ask(&now).allowed());
}

#[test]
fn a_limit_in_shadow_is_no_reason_to_refuse_whoever_cannot_wait() {
    let gate = DecidingGate::new(
        "version: 1\nrules:\n\
         - name: q\n  key: '{user}'\n  \
           limits: [{ rate: 2/second, burst: 10, algorithm: leaky_bucket, queue: true }]\n\
         - { name: tried-out, key: '{user}', limits: [1/hour], mode: shadow }\n",
    );
    let now = Ask { facts: of("/", "anna"), cannot_wait: true, ..Ask::default() };
    assert!(gate.ask(&now).allowed());
    let refused = gate.ask(&now);
    assert_eq!(refused.binding().unwrap().rule, "q");
    assert_eq!(refused.retry_after().as_micros(), Some(500_000));
}

#[test]
fn calendar_days_end_at_local_midnight() {
    let mut gate = DecidingGate::new(
        "version: 1\nrules:\n\
         - name: sms\n  key: '{user}'\n  limits: [{ rate: 2/day, algorithm: fixed_window, \
           align: calendar, time_zone: Europe/Berlin }]\n",
    );
    assert_eq!(gate.passing("/", "anna", 5), 2);
    // In Berlin it is 13:00.
    let refused = gate.get("/", "anna");
    assert_eq!(refused.retry_after().as_micros(), Some(11 * 3_600 * 1_000_000));
    assert_eq!(refused.binding().unwrap().limit, "2/day in Europe/Berlin");
    gate.later(11.0 * 3_600.0 - 0.000_001);
    assert!(!gate.get("/", "anna").allowed());
    gate.later(0.000_002);
    assert_eq!(gate.passing("/", "anna", 5), 2);
}

#[test]
fn counted_refusals_keep_a_caller_out() {
    let mut gate = DecidingGate::new(
        "version: 1\nrules:\n\
         - name: a\n  key: '{user}'\n  \
           limits: [{ rate: 2/10s, algorithm: sliding_window_log }]\n  count_denied: true\n",
    );
    assert_eq!(gate.passing("/", "anna", 3), 2);
    for _ in 0..4 {
        gate.later(4.0);
        assert!(!gate.get("/", "anna").allowed(), "who does not stop asking stays out");
    }
}

#[test]
fn more_limits_than_a_decision_holds_keep_the_enforced_ones() {
    let mut rules = String::from("version: 1\nrules:\n");
    for number in 0..12 {
        rules += &format!(
            "- {{ name: s{number}, match: {{ header: {{ x-a: '1' }} }}, key: '{{user}}', \
             limits: [100/minute], mode: shadow }}\n"
        );
    }
    for number in 0..6 {
        rules += &format!(
            "- {{ name: e{number}, match: {{ header: {{ x-b: '1' }} }}, key: '{{user}}', \
             limits: [100/minute] }}\n"
        );
    }
    let gate = DecidingGate::new(&rules);
    let headers = vec![("x-a", "1"), ("x-b", "1")];
    let facts = Facts { headers: Some(&headers), ..of("/", "anna") };
    let answer = gate.ask(&Ask { facts, ..Ask::default() });
    let enforced = answer.limits().filter(|one| one.enforcement == Enforcement::Enforced).count();
    assert_eq!((answer.limits().len(), enforced), (16, 6));
    assert_eq!(gate.gatekeeper.stats().left_out, 2);
}

const LLM: &str = "version: 1\nrules:\n\
    - name: tokens\n  key: '{user}'\n  limits: [{ rate: 10000/day, burst: 10000 }]\n  \
      cost: { reserve: 2000 }\n  concurrency: 3\n\
    - { name: requests, key: '{user}', limits: [100/minute] }\n";

fn left_of(gate: &DecidingGate, user: &str) -> Vec<(String, u64)> {
    remaining(&gate.ask(&Ask { facts: of("/", user), cost: Some(0), ..Ask::default() }))
}

#[test]
fn a_reservation_is_settled_once_with_the_true_cost() {
    let gate = DecidingGate::new(LLM);
    let ask = Ask { facts: of("/", "anna"), ..Ask::default() };
    let id = gate.reserve(&ask).unwrap().id.unwrap();
    assert_eq!(left_of(&gate, "anna"), [("tokens".into(), 8_000), ("requests".into(), 99)]);
    assert_eq!(gate.gatekeeper.commit_at(id, 350, gate.now), Ok(()));
    // What is counted in requests has cost one request, whatever its tokens.
    assert_eq!(left_of(&gate, "anna"), [("tokens".into(), 9_650), ("requests".into(), 99)]);
    assert_eq!(gate.gatekeeper.commit_at(id, 350, gate.now), Err(SettleError::Unknown));
    assert_eq!(gate.gatekeeper.cancel_at(id, gate.now), Err(SettleError::Unknown));

    let id = gate.reserve(&ask).unwrap().id.unwrap();
    assert_eq!(gate.gatekeeper.commit_at(id, 3_000, gate.now), Ok(()));
    assert_eq!(left_of(&gate, "anna")[0].1, 6_650);
    let id = gate.reserve(&ask).unwrap().id.unwrap();
    assert_eq!(gate.gatekeeper.cancel_at(id, gate.now), Ok(()));
    assert_eq!(left_of(&gate, "anna"), [("tokens".into(), 6_650), ("requests".into(), 98)]);
}

#[test]
fn after_its_deadline_the_charge_stands() {
    let mut gate = DecidingGate::new(LLM);
    let ask = Ask { facts: of("/", "anna"), ..Ask::default() };
    let id = gate.reserve(&ask).unwrap().id.unwrap();
    gate.later(60.0);
    assert_eq!(gate.gatekeeper.commit_at(id, 1, gate.now), Err(SettleError::Expired));
    assert_eq!(gate.gatekeeper.stats().reservations, 0);
    let kept = left_of(&gate, "anna")[0].1;
    assert!((8_000..8_020).contains(&kept), "{kept}");
}

#[test]
fn so_much_of_one_key_goes_on_at_once() {
    let mut gate = DecidingGate::new(LLM);
    let ask = Ask { facts: of("/", "anna"), ..Ask::default() };
    let open: Vec<_> = (0..3).map(|_| gate.reserve(&ask).unwrap().id.unwrap()).collect();
    let busy = gate.reserve(&ask).unwrap();
    assert_eq!((busy.id, busy.answer.refusal()), (None, Some(Refusal::Busy)));
    let binding = busy.answer.binding().unwrap();
    assert_eq!((binding.rule, binding.limit), ("tokens", "3 in flight"));
    assert_eq!(left_of(&gate, "anna")[0].1, 4_000, "a refusal is free");
    let other = Ask { facts: of("/", "bert"), ..Ask::default() };
    assert!(gate.reserve(&other).unwrap().id.is_some());
    gate.gatekeeper.commit_at(open[0], 1, gate.now).unwrap();
    assert!(gate.reserve(&ask).unwrap().id.is_some());
    assert!(gate.reserve(&ask).unwrap().id.is_none());
    gate.later(61.0);
    assert!(gate.reserve(&ask).unwrap().id.is_some(), "expired ones no longer count");
}

/// As many rules as asked for, each with a key of its own that a long header makes long.
fn under_long_keys(rules: usize) -> String {
    let rule = |index: usize| {
        format!("  - {{ name: r{index}, key: '{{header.x-long}}', limits: [1000000/minute] }}\n")
    };
    format!("rules:\n{}", (0..rules).map(rule).collect::<String>())
}

#[test]
fn the_table_of_reservations_is_bounded() {
    let mut gate =
        DecidingGate::new("rate_limits: { default: { requests: 1000000, window: 60 } }\n");
    let reserve = |gate: &DecidingGate, index: usize| {
        let user = format!("user-{}", index / RESERVATIONS_PER_CALLER_MAX);
        gate.reserve(&Ask { facts: of("/", &user), ..Ask::default() })
    };
    let first = reserve(&gate, 0).unwrap().id.unwrap();
    for index in 1..RESERVATIONS_MAX {
        assert!(reserve(&gate, index).unwrap().id.is_some());
    }
    assert_eq!(reserve(&gate, RESERVATIONS_MAX).unwrap_err(), ReserveError::TableFull);
    gate.later(60.0);
    assert!(reserve(&gate, 0).is_ok(), "expired ones make room");
    assert_eq!(gate.gatekeeper.commit_at(first, 1, gate.now), Err(SettleError::Expired));
}

#[test]
fn one_caller_cannot_fill_the_table() {
    let rules = "rules:\n\
        - { name: pages, key: '{user}:{path}', limits: [1000000/minute] }\n\
        - { name: all, key: global, limits: [1000000/minute] }\n\
        - { name: many, match: { path: /many }, key: '{user}', limits: [1000000/minute], concurrency: 3000 }\n";
    let mut gate = DecidingGate::new(rules);
    let reserve = |gate: &DecidingGate, path: &str, user: &str| {
        gate.reserve(&Ask { facts: of(path, user), ..Ask::default() }).unwrap()
    };
    // Another key each time, and the same caller.
    let paths: Vec<_> = (0..RESERVATIONS_PER_CALLER_MAX).map(|index| format!("/{index}")).collect();
    let ids: Vec<_> = paths.iter().map(|path| reserve(&gate, path, "anna").id.unwrap()).collect();
    let refused = reserve(&gate, "/more", "anna");
    assert_eq!((refused.id, refused.answer.refusal()), (None, Some(Refusal::Busy)));
    assert_eq!(refused.answer.retry_after().as_micros(), Some(1_000_000));
    assert!(reserve(&gate, "/more", "bert").id.is_some(), "others go on");
    gate.gatekeeper.cancel_at(ids[0], gate.now).unwrap();
    assert!(reserve(&gate, "/more", "anna").id.is_some(), "one ended");
    assert!(reserve(&gate, "/more", "anna").id.is_none());
    for _ in RESERVATIONS_PER_CALLER_MAX..3_000 {
        assert!(reserve(&gate, "/many", "anna").id.is_some(), "as the rule says");
    }
    assert_eq!(reserve(&gate, "/many", "anna").answer.refusal(), Some(Refusal::Busy));
    gate.later(60.0);
    assert!(reserve(&gate, "/more", "anna").id.is_some(), "expired ones no longer count");
}

#[test]
fn one_caller_does_not_keep_others_from_a_key_that_they_share() {
    let rules = "rules: [{ name: pages, key: '{path}', limits: [1000000/minute] }]";
    let gate = DecidingGate::new(rules);
    let reserve = |user: &str| {
        gate.reserve(&Ask { facts: of("/a", user), ..Ask::default() }).unwrap().id.is_some()
    };
    assert_eq!((0..3_000).filter(|_| reserve("anna")).count(), RESERVATIONS_PER_CALLER_MAX);
    assert!(reserve("bert"));
    // Who does not say who they are is known by the key.
    let facts = Facts { user: None, ip: None, ..of("/b", "") };
    let unnamed = Ask { facts, ..Ask::default() };
    let opened = (0..3_000).filter(|_| gate.reserve(&unnamed).unwrap().id.is_some());
    assert_eq!(opened.count(), RESERVATIONS_PER_CALLER_MAX);
}

#[test]
fn long_keys_leave_room_for_short_ones() {
    let gate = DecidingGate::new(&under_long_keys(8));
    let long = "x".repeat(60_000);
    let reserve = |user: &str, index: usize, text: &str| {
        let value = format!("{index}{text}");
        let headers = vec![("x-long", value.as_str())];
        let facts = Facts { headers: Some(&headers), ..of("/", user) };
        gate.reserve(&Ask { facts, ..Ask::default() })
    };
    // One caller: 2 MiB of keys, each kept once for all eight limits.
    let opened = |user: &str| {
        (0..2_000).take_while(|index| reserve(user, *index, &long).unwrap().id.is_some()).count()
    };
    assert_eq!(opened("anna"), (2 << 20) / 61_000, "60 KB each, and a little around it");
    assert!(reserve("anna", 0, "").unwrap().id.is_some(), "but short ones");
    // All callers: 32 MiB.
    let mut all = 0;
    let full = loop {
        match reserve(&format!("user-{all}"), all, &long) {
            Ok(reserved) => assert!(reserved.id.is_some()),
            Err(error) => break error,
        }
        all += 1;
    };
    assert_eq!(full, ReserveError::TableFull);
    assert!((500..530).contains(&all), "{all}");
    assert!(reserve("bert", 0, "").unwrap().id.is_some(), "but short ones");
}

#[test]
fn what_charges_nothing_holds_no_place() {
    let mut gate = DecidingGate::new(
        "rules: [{ name: a, match: { path: /a }, key: '{user}', limits: [5/minute] }]",
    );
    let no_cost = Ask { facts: of("/a", "anna"), cost: Some(0), ..Ask::default() };
    assert_eq!(gate.reserve(&no_cost).unwrap_err(), ReserveError::NoCost);
    let elsewhere = Ask { facts: of("/b", "anna"), ..Ask::default() };
    let ids: Vec<_> = (0..RESERVATIONS_MAX + 1)
        .map(|_| gate.reserve(&elsewhere).unwrap().id.expect("a name"))
        .collect();
    assert_eq!(gate.gatekeeper.stats().reservations, 0);
    let settle = |gate: &DecidingGate| {
        let commit = gate.gatekeeper.commit_at(ids[0], 7, gate.now);
        (commit, gate.gatekeeper.cancel_at(ids[1], gate.now))
    };
    assert_eq!(settle(&gate), (Ok(()), Ok(())));
    let other = DecidingGate::new("rules: [{ name: a, key: '{user}', limits: [5/minute] }]");
    assert_eq!(other.gatekeeper.commit_at(ids[0], 7, gate.now), Err(SettleError::Unknown));
    gate.later(60.0);
    assert_eq!(settle(&gate), (Err(SettleError::Expired), Err(SettleError::Expired)));
}

#[test]
fn a_question_that_names_nobody_is_not_answered_with_a_yes() {
    let gate = DecidingGate::new(
        "rules:\n\
         - { name: api, match: { path: /api }, key: '{user|ip}:{header.x-tenant}', limits: [1000/minute] }\n\
         - { name: users, match: { path: [/api, /users] }, key: '{user}', limits: [1000/minute] }\n\
         - { name: open, match: { path: /open }, key: global, limits: [1000/minute] }\n\
         - { name: soft, match: { path: [/open, /soft] }, key: '{user}', limits: [1000/minute], soft: true }\n\
         - { name: shadow, key: '{tier}', limits: [1000/minute], mode: shadow }\n\
         - { name: watch, key: global, limits: [1000/minute], mode: shadow }\n\
         exempt: { ip: 10.0.0.0/8 }\n",
    );
    let users = "the rule users counts by {user}, and this request has no user";
    let api = "the rule api counts by {user|ip}:{header.x-tenant}, and this request has no ";
    // path, user, address, what is missing
    let rows = [
        ("/users", "", None, Some(users.to_string())),
        ("/users", "", Some("10.0.0.1"), None),
        ("/users", "", Some("192.0.2.1"), Some(users.to_string())),
        ("/users", "anna", None, None),
        ("/api", "", None, Some(format!("{api}user or ip, and header.x-tenant"))),
        ("/api", "", Some("192.0.2.1"), Some(format!("{api}header.x-tenant"))),
        ("/api", "anna", None, None),
        ("/open", "", None, None),
        ("/soft", "", None, None),
        ("/none", "", None, None),
    ];
    let mut unanswered = 0;
    for (path, user, ip, want) in rows {
        let facts = Facts {
            path: Some(path),
            user: Some(user),
            ip: ip.map(|ip| ip.parse().unwrap()),
            ..Facts::default()
        };
        let ask = Ask { facts, needs_facts: true, ..Ask::default() };
        unanswered += u64::from(want.is_some());
        for answer in [gate.ask(&ask), gate.ask(&Ask { needs_facts: false, ..ask })] {
            let missing = answer.missing_facts().map(|missing| missing.to_string());
            assert_eq!(missing, want, "{path} {user:?} {ip:?}");
        }
        assert!(gate.ask(&Ask { needs_facts: false, ..ask }).allowed());
        assert_eq!(gate.ask(&ask).allowed(), want.is_none());
        let reserved = gate.reserve(&ask).unwrap();
        assert_eq!(reserved.id.is_some(), want.is_none());
        assert_eq!(gate.gatekeeper.refund_at(&ask, gate.now).allowed(), want.is_none());
    }
    assert_eq!(gate.gatekeeper.stats().unanswered, 4 * unanswered);
}

/// A caller of `/` by name, of this tier.
fn of_tier<'a>(user: &'a str, tier: Option<&'a str>) -> Ask<'a> {
    Ask { facts: Facts { tier, ..of("/", user) }, ..Ask::default() }
}

#[test]
fn a_caller_who_switches_between_tiers_gets_their_sum_and_no_more() {
    let limits = [
        "10/day",
        "10/day burst 10",
        "{ rate: 10/day, algorithm: sliding_window_log }",
        "{ rate: 10/day, algorithm: fixed_window }",
        "{ rate: 10/day, algorithm: leaky_bucket }",
    ];
    for (limit, key) in limits.iter().flat_map(|limit| {
        ["{user}", "{ip}", "{user|ip}", "{api_key|ip}", "global"].map(|key| (limit, key))
    }) {
        let gate = DecidingGate::new(&format!(
            "version: 1\ntiers: {{ free: 1, pro: 10, partner: {{ other: [5/day] }} }}\nrules:\n\
             - {{ name: api, key: '{key}', limits: [{limit}], tiered: true }}\n\
             - {{ name: other, match: {{ path: /other }}, key: '{key}', limits: [1000/day] }}\n",
        ));
        let mut passed = std::collections::BTreeMap::new();
        // Two tiers with own numbers; and those that have none here, which count as one.
        for _ in 0..500 {
            for tier in [Some("free"), Some("pro"), None, Some("partner"), Some("x"), Some("y")] {
                let counted = tier.filter(|tier| ["free", "pro"].contains(tier));
                *passed.entry(counted).or_insert(0) +=
                    usize::from(gate.ask(&of_tier("anna", tier)).allowed());
            }
        }
        let want = [(None, 10), (Some("free"), 10), (Some("pro"), 100)];
        assert_eq!(passed.into_iter().collect::<Vec<_>>(), want, "{limit} {key}");
    }
}

#[test]
fn unknown_tiers_share_the_count_of_the_default() {
    let gate = DecidingGate::new(
        "version: 1\nidentify: { tier: { default: pro } }\ntiers: { free: 1, pro: 10 }\n\
         rules: [{ name: api, key: '{user}', limits: [1/day], tiered: true }]\n",
    );
    let passing = |tier| (0..20).filter(|_| gate.ask(&of_tier("anna", tier)).allowed()).count();
    assert_eq!([Some("x"), Some("y"), None, Some(""), Some("pro")].map(passing), [10, 0, 0, 0, 0]);
    assert_eq!(passing(Some("free")), 1);
}

#[test]
fn bans_and_work_in_flight_are_the_callers_whatever_the_tier() {
    let gate = DecidingGate::new(
        "version: 1\ntiers: { free: 1, pro: 10 }\nrules:\n\
         - name: api\n  key: '{user}'\n  limits: [1/day]\n  tiered: true\n  \
           concurrency: 1\n  ban: { after: 2, within: 1m, for: 15m }\n",
    );
    let (free, pro) = (of_tier("anna", Some("free")), of_tier("anna", Some("pro")));
    let open = gate.reserve(&free).unwrap();
    let refused = gate.reserve(&pro).unwrap().answer;
    assert_eq!(refused.refusal(), Some(Refusal::Busy), "one at a time, whatever the tier");
    gate.gatekeeper.cancel_at(open.id.unwrap(), gate.now).unwrap();
    assert!(gate.ask(&free).allowed());
    assert!(!gate.ask(&free).allowed() && !gate.ask(&free).allowed());
    for ask in [&free, &pro, &of_tier("anna", None)] {
        assert_eq!(gate.ask(ask).refusal(), Some(Refusal::Blocked));
    }
    assert!(gate.ask(&of_tier("bert", Some("pro"))).allowed());
}

#[test]
fn more_enforced_limits_than_a_decision_holds_are_a_refusal() {
    let mut rules = String::from("version: 1\nrules:\n");
    for number in 0..17 {
        rules += &format!(
            "- {{ name: e{number}, match: {{ header: {{ x-{number}: '1' }} }}, key: '{{user}}', \
             limits: [100/minute] }}\n"
        );
    }
    let gate = DecidingGate::new(&rules);
    let headers: Vec<(String, &str)> = (0..17).map(|number| (format!("x-{number}"), "1")).collect();
    let facts = Facts { headers: Some(&headers), ..of("/", "anna") };
    let answer = gate.ask(&Ask { facts, ..Ask::default() });
    assert_eq!(answer.refusal(), Some(Refusal::TooManyLimits));
    assert!(answer.retry_after().is_never());
}

#[test]
fn spellings_do_not_escape() {
    let gate = DecidingGate::new(
        "version: 1\nrules:\n\
         - name: login\n  match: { path: /api/login, method: [POST, GET] }\n  key: '{user}:{path}'\n  \
           limits: [{ rate: 100/day, burst: 100 }]\n  cost: { default: 1, 'POST /api/login': 10 }\n",
    );
    let spelt = |method, path| {
        let facts = Facts { method: Some(method), ..of(path, "anna") };
        gate.ask(&Ask { facts, ..Ask::default() }).remaining()
    };
    assert_eq!(spelt("POST", "/api/login"), 90);
    assert_eq!(spelt("post", "//api/./login/"), 80);
    assert_eq!(spelt("Post", "/api%2Flogin"), 70);
    assert_eq!(spelt("POST", "/api/login;session=1"), 60);
    assert_eq!(spelt("POST", "/api\\login"), 50);
    assert_eq!(spelt("HEAD", "/api/login"), 49);
}

#[test]
fn the_refusal_that_earns_a_ban_says_how_long() {
    let gate = DecidingGate::new(
        "version: 1\nrules:\n\
         - { name: a, key: '{user}', limits: [1/second], ban: { after: 2, within: 1m, for: 15m } }\n\
         - { name: wide, key: '{user}', limits: [1000/minute] }\n",
    );
    assert!(gate.get("/", "anna").allowed());
    let first = gate.get("/", "anna").retry_after().as_micros().unwrap();
    assert!(first <= 2_000_000, "{first}");
    assert_eq!(gate.get("/", "anna").retry_after().as_micros(), Some(900_000_000));
    let blocked = gate.get("/", "anna");
    assert_eq!(blocked.capacity(), 1);
    assert_eq!(remaining(&blocked), [("a".into(), 0), ("wide".into(), 999)]);
}

#[test]
fn strangers_in_a_full_table_earn_nobody_a_ban() {
    let rules = "version: 1\nrules:\n\
         - { name: a, key: '{user}', limits: [1/day], ban: { after: 10, within: 1h, for: 1h } }\n";
    let compiled = compile(&[Source::from_text("rules.yaml", rules)]).rules.unwrap();
    let (store, clock) = (MemoryStore::new(64), ManualClock::new(Micros::ZERO));
    let gatekeeper = Gatekeeper::new(compiled, store, clock);
    for user in 0..5_000 {
        let user = format!("user-{user}");
        for _ in 0..3 {
            let ask = Ask { facts: of("/", &user), ..Ask::default() };
            let _ = gatekeeper.decide_at(&ask, Micros::from_secs(NOON));
        }
    }
    assert_eq!(gatekeeper.stats().bans, 0, "two refusals each");
}

#[test]
fn what_a_shadow_limit_refused_is_not_settled() {
    let gate = DecidingGate::new(
        "version: 1\nrules:\n\
         - { name: s, key: '{user}', limits: [10/day], mode: shadow }\n\
         - { name: e, key: '{user}', limits: [100/day] }\n",
    );
    let ask = Ask { facts: of("/", "anna"), cost: Some(20), ..Ask::default() };
    let id = gate.reserve(&ask).unwrap().id.unwrap();
    gate.gatekeeper.commit_at(id, 20, gate.now).unwrap();
    assert_eq!(left_of(&gate, "anna"), [("s".into(), 10), ("e".into(), 80)]);
}
