//! A shared store that does not answer: what an instance says instead is no caller's doing.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate::{
    Check, DecidedBy, Decision, Key, ManualClock, MemoryStore, Micros, Now, Outcome, Receipt,
    Refusal, Store, SystemClock, Wait,
};
use tollgate_rules::{Ask, Facts, Gatekeeper, Source, Verdict, compile, expect_ready};

/// Answers as a store that several instances share: while it is down, each is alone.
#[derive(Debug)]
struct DegradedStore {
    table: MemoryStore,
    down: AtomicBool,
    /// Refuses while it is down.
    closes: bool,
    /// Checks in shadow are about another store, which does not answer.
    loses_shadow: bool,
}

impl Store for DegradedStore {
    type Error = Infallible;

    async fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Result<Decision, Infallible> {
        let down = self.down.load(Ordering::Relaxed);
        let decided_by = if down { DecidedBy::Local } else { DecidedBy::Redis };
        if down && self.closes {
            let retry_after = Wait::from_micros(1_000_000);
            let decided_by = DecidedBy::Closed;
            outcomes.fill(Outcome { retry_after, decided_by, ..Outcome::default() });
            return Ok(Decision::of_outcomes(checks, outcomes, now.instant()));
        }
        let _ = self.table.decide_each(checks, now, outcomes);
        outcomes.iter_mut().for_each(|outcome| outcome.decided_by = decided_by);
        for (outcome, check) in outcomes.iter_mut().zip(checks) {
            if self.loses_shadow && check.is_shadow() {
                *outcome = Outcome { decided_by: DecidedBy::Closed, ..Outcome::default() };
            }
        }
        Ok(Decision::of_outcomes(checks, outcomes, now.instant()))
    }

    async fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Now<'_>,
    ) -> Result<(), Infallible> {
        Store::refund(&self.table, check, receipt, now).await
    }

    async fn reset(&self, check: &Check<'_>, now: Micros) -> Result<bool, Infallible> {
        Store::reset(&self.table, check, now).await
    }

    async fn balance(&self, check: &Check<'_>, now: Micros) -> Result<i64, Infallible> {
        Store::balance(&self.table, check, now).await
    }

    async fn block(&self, key: Key<'_>, until: Micros, now: Micros) -> Result<bool, Infallible> {
        Ok(self.table.block(key, until, now))
    }

    async fn unblock(&self, key: Key<'_>, now: Micros) -> Result<bool, Infallible> {
        Ok(self.table.unblock(key, now))
    }

    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        self.table.blocked(key, now)
    }

    fn any_block(&self, now: Micros) -> bool {
        self.table.any_block(now)
    }
}

fn gatekeeper(closes: bool) -> (Gatekeeper<Arc<DegradedStore>>, Arc<DegradedStore>) {
    let text = "rules: [{ name: api, key: '{user}', limits: [1/hour], \
                ban: { after: 3, within: 1m, for: 15m }, refusal: { body: Over. } }]";
    let rules = compile(&[Source::from_text("rules.yaml", text)]).rules.unwrap();
    let (table, down) = (MemoryStore::new(1_000), AtomicBool::new(true));
    let store = Arc::new(DegradedStore { table, down, closes, loses_shadow: false });
    (Gatekeeper::new(rules, store.clone(), SystemClock), store)
}

#[test]
fn a_store_that_does_not_answer_is_nobodys_refusal() {
    let (gatekeeper, _) = gatekeeper(true);
    let ask = Ask { facts: Facts { user: Some("42"), ..Facts::default() }, ..Ask::default() };
    let now = gatekeeper.now();
    for _ in 0..20 {
        let answer = expect_ready(gatekeeper.decide_by(gatekeeper.rules(), &ask, now));
        assert_eq!(answer.refusal(), Some(Refusal::StoreUnavailable));
        assert!(!answer.is_known() && answer.binding().is_some_and(|one| one.rule == "api"));
        assert_eq!(answer.own_refusal(), None, "the rule's words are for clients over its limit");
    }
    let stats = gatekeeper.stats();
    assert_eq!((stats.bans, stats.bans_without_room), (0, 0));
}

#[test]
fn an_outage_bans_nobody() {
    let (gatekeeper, store) = gatekeeper(false);
    let ask = Ask { facts: Facts { user: Some("42"), ..Facts::default() }, ..Ask::default() };
    let now = gatekeeper.now();
    let decide = || expect_ready(gatekeeper.decide_by(gatekeeper.rules(), &ask, now));
    assert!(decide().allowed());
    for _ in 0..20 {
        assert!(!decide().allowed());
    }
    assert_eq!(gatekeeper.stats().bans, 0, "refused by a share of the limit");
    store.down.store(false, Ordering::Relaxed);
    for bans in [0, 0, 1] {
        assert!(!decide().allowed());
        assert_eq!(gatekeeper.stats().bans, bans, "the store refuses: counted, from none on");
    }
}

#[test]
fn a_rule_in_shadow_without_its_store_counts_as_what_happened_to_the_request() {
    let text = "rules:
- { name: trial, key: '{user}', mode: shadow, limits: [5/hour] }
- { name: api, key: '{user}', limits: [2/hour] }";
    let rules = compile(&[Source::from_text("rules.yaml", text)]).rules.unwrap();
    let (table, down) = (MemoryStore::new(1_000), AtomicBool::new(false));
    let store = DegradedStore { table, down, closes: false, loses_shadow: true };
    let gatekeeper = Gatekeeper::new(rules, store, ManualClock::new(Micros::from_secs(9)));
    let ask = Ask { facts: Facts { user: Some("42"), ..Facts::default() }, ..Ask::default() };
    let decide =
        || expect_ready(gatekeeper.decide_by(gatekeeper.rules(), &ask, gatekeeper.now())).allowed();
    assert_eq!([(); 5].map(|()| decide()), [true, true, false, false, false]);
    let rules = gatekeeper.rules();
    let (_, trial) = rules.tallies().next().unwrap();
    let counted =
        [Verdict::Allowed, Verdict::RefusedByOther, Verdict::Unavailable, Verdict::Shadow];
    assert_eq!(counted.map(|verdict| trial.count(verdict)), [2, 3, 0, 0]);
}
