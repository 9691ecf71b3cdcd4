//! A store that several instances share: it answers later, by a clock of its own.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use tollgate::{Check, Decision, Key, MemoryStore, Micros, Now, Outcome, Receipt, Store, Wait};

use super::gate::{DescriptorGate, NOON, TestDescriptor, descriptor, said};

/// Does what it is asked in the order it is asked, and answers in the next round.
#[derive(Debug)]
struct NextRoundStore {
    table: MemoryStore,
    round: AtomicU64,
    /// In microseconds. Each question takes one.
    clock: AtomicU64,
}

impl NextRoundStore {
    fn new() -> NextRoundStore {
        let clock = AtomicU64::new(NOON * 1_000_000);
        NextRoundStore { table: MemoryStore::new(1_000), round: AtomicU64::new(0), clock }
    }

    fn now(&self) -> Micros {
        Micros::new(self.clock.fetch_add(1, Ordering::Relaxed))
    }

    async fn travel<T>(&self, answer: T) -> Result<T, Infallible> {
        let sent = self.round.load(Ordering::Relaxed);
        poll_fn(|_| match self.round.load(Ordering::Relaxed) > sent {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        Ok(answer)
    }
}

impl Store for NextRoundStore {
    type Error = Infallible;

    async fn decide_each(
        &self,
        checks: &[Check<'_>],
        _: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Result<Decision, Infallible> {
        self.travel(self.table.decide_each(checks, self.now(), outcomes)).await
    }

    async fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        _: Now<'_>,
    ) -> Result<(), Infallible> {
        let (limit, key, units) = (check.limit(), check.key(), check.units());
        self.table.refund(limit, key, receipt, units, self.now());
        self.travel(()).await
    }

    async fn reset(&self, check: &Check<'_>, _: Micros) -> Result<bool, Infallible> {
        self.travel(self.table.reset(check.limit(), check.key(), self.now())).await
    }

    async fn balance(&self, check: &Check<'_>, _: Micros) -> Result<i64, Infallible> {
        self.travel(self.table.balance(check.limit(), check.key(), self.now())).await
    }

    async fn block(&self, key: Key<'_>, until: Micros, _: Micros) -> Result<bool, Infallible> {
        self.travel(self.table.block(key, until, self.now())).await
    }

    async fn unblock(&self, key: Key<'_>, _: Micros) -> Result<bool, Infallible> {
        self.travel(self.table.unblock(key, self.now())).await
    }

    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        self.table.blocked(key, now)
    }

    fn any_block(&self, now: Micros) -> bool {
        self.table.any_block(now)
    }
}

impl DescriptorGate<NextRoundStore> {
    /// What is answered, and how often the store was waited for.
    fn say_after(&self, domain: &str, asked: &[TestDescriptor]) -> (String, u64) {
        let round = &self.store.round;
        let before = round.load(Ordering::Relaxed);
        self.asking(domain, asked, |mut answer| {
            loop {
                match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(described) => {
                        let rounds = round.load(Ordering::Relaxed) - before;
                        return (said(&described.unwrap()), rounds);
                    }
                    Poll::Pending => drop(round.fetch_add(1, Ordering::Relaxed)),
                }
            }
        })
    }
}

const OURS: &str = "
rules:
  - name: users
    match: { domain: ours }
    key: '{user}'
    limits: [{ rate: 10/hour, algorithm: fixed_window }]
";

const FILE: &str = "
domain: file
count_denied: false
descriptors:
  - { key: quota, quota_mode: true, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: plain, rate_limit: { unit: hour, requests_per_unit: 10 } }
";

#[test]
fn all_that_a_request_asks_waits_for_the_store_once() {
    let user = |name| descriptor(&[("user", name)]);
    let (quota, plain) =
        (|name| descriptor(&[("quota", name)]), |name| descriptor(&[("plain", name)]));
    let rows: [(&str, &[TestDescriptor], &str, u64); 8] = [
        ("ours", &[user("a")], "OK: OK 10/hour 9 users", 1),
        (
            "ours",
            &[user("a"), user("b").hits(0)],
            "OK: OK 10/hour 8 users | OK 10/hour 10 users",
            1,
        ),
        ("ours", &[user("a").refund(1)], "OK: OK 10/hour 9 users", 1),
        ("ours", &[user("c").force(12)], "OK: OK 10/hour 0 users", 1),
        // In this order, also of one and the same caller.
        (
            "ours",
            &[user("d").refund(5), user("d").force(1), user("d").hits(10)],
            "OK: OK 10/hour 5 users | OK 10/hour 4 users | OK 10/hour 0 users",
            1,
        ),
        (
            "file",
            &[
                quota("a"),
                plain("a"),
                plain("b").hits(0),
                plain("c").refund(1),
                plain("d").force(1),
            ],
            "OK: OK 1/second 0 | OK 10/hour 9 | OK 10/hour 10 | OK 10/hour 10 | OK 10/hour 9",
            1,
        ),
        // What is refused after all is given back, and that is all that takes longer.
        ("file", &[quota("a"), plain("a")], "OVER: OVER 1/second 0 | OK 10/hour 9", 2),
        (
            "ours",
            &[user("c").hits(0), user("a").hits(4), user("a").hits(2)],
            "OVER: OVER 10/hour 0 users | OK 10/hour 9 users | OK 10/hour 9 users",
            2,
        ),
    ];
    let gate = DescriptorGate::on(NextRoundStore::new(), &[OURS, FILE]);
    for (domain, asked, want, rounds) in rows {
        assert_eq!(gate.say_after(domain, asked), (want.to_string(), rounds));
    }
    assert_eq!(gate.say_after("ours", &[user("a").hits(0)]).0, "OK: OK 10/hour 9 users");
}

#[test]
fn a_quota_is_not_given_away_when_its_window_ends() {
    let gate = DescriptorGate::on(NextRoundStore::new(), &[FILE]);
    let boundary = (NOON + 1) * 1_000_000;
    let ask = |at| {
        gate.store.clock.store(at, Ordering::Relaxed);
        gate.say_after("file", &[descriptor(&[("quota", "a")]), descriptor(&[("plain", "a")])]).0
    };
    let rows = [
        (boundary - 9, "OK: OK 1/second 0 | OK 10/hour 9"),
        (boundary - 1, "OVER: OVER 1/second 0 | OK 10/hour 9"),
        (boundary, "OK: OK 1/second 0 | OK 10/hour 8"),
        (boundary + 999_999, "OVER: OVER 1/second 0 | OK 10/hour 8"),
    ];
    for (at, want) in rows {
        assert_eq!(ask(at), want, "at {at}");
    }
}
