//! What a store is told without anybody waiting for it: refunds, and charges for what has happened anyway.
//!
//! What a store certainly did not hear waits here until it answers again, as long as it means anything:
//! what a limit has forgotten by itself need not be given back, and what was charged in a window that
//! is over is charged to no other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;
use tollgate::{Check, Limit, Micros, Receipt, Wait};

use crate::error::StoreError;
use crate::remote::{LateKind, LateUnits, Remote, StateName, When};

use super::Inner;
use super::lasting::LastingWork;
use super::places::lock;
use super::stats::SharedStats;

/// Bound: so many wait, at most `DEBT_BYTES_MAX` each; one more is lost, and counted.
const WAITING_MAX: usize = 10_000;
/// Bytes of one debt, however long its key is: 5 MB for all that can wait.
const DEBT_BYTES_MAX: usize = 512;
/// So many are told at once.
const TELLING_MAX: usize = 256;

/// What waits to be told.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// Bound: `WAITING_MAX`.
    waiting: Mutex<VecDeque<Debt>>,
    refunds_lost: AtomicU64,
    charges_lost: AtomicU64,
}

/// Units that a store is to be told of, and all that telling takes. A key is its hash: whoever has long
/// keys takes no more room than others.
#[derive(Clone, Debug)]
pub(super) struct Debt {
    /// The number of the store.
    store: u8,
    state: StateName,
    /// The limit as it applies to the key.
    limit: Limit,
    /// What the refusal cache knows the key by.
    tag: u64,
    late: LateUnits,
}

const _: () = assert!(size_of::<Debt>() <= DEBT_BYTES_MAX);

impl Debt {
    /// From then on it means nothing. By the store's clock.
    fn good_until(&self) -> Micros {
        self.late.at.after(Wait::from_micros(self.limit.memory_us()))
    }
}

impl Owed {
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.waiting).is_empty()
    }

    pub(super) fn add_to(&self, stats: &mut SharedStats) {
        stats.owed = lock(&self.waiting).len() as u64;
        stats.refunds_lost = self.refunds_lost.load(Ordering::Relaxed);
        stats.charges_lost = self.charges_lost.load(Ordering::Relaxed);
    }

    /// Whether there is room for it.
    fn keep(&self, debt: Debt) -> bool {
        let mut waiting = lock(&self.waiting);
        let room = waiting.len() < WAITING_MAX;
        match room {
            true => waiting.push_back(debt),
            false => self.lose(&debt),
        }
        room
    }

    fn lose(&self, debt: &Debt) {
        let counter = match debt.late.kind {
            LateKind::Refund | LateKind::RefundOfNoCharge => &self.refunds_lost,
            LateKind::Charge => &self.charges_lost,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl<R: Remote> Inner<R> {
    /// What the store of a check is to be told of its key.
    pub(super) fn debt(&self, check: &Check<'_>, kind: LateKind, units: u64, at: Micros) -> Debt {
        let key = check.key();
        Debt {
            store: check.its_terms().store,
            state: StateName { key: self.asked(check).store.hash(key), twin: 0 },
            limit: check.limit().for_key(key.as_bytes()).into_owned(),
            tag: self.tag(check),
            late: LateUnits { units, at, kind },
        }
    }

    /// What is given back to the store: of what a receipt is of or, without one, as if charged now.
    pub(super) fn refund_debt(&self, check: &Check<'_>, receipt: Option<&Receipt>) -> Debt {
        let units = receipt.map_or(u64::MAX, Receipt::granted).min(check.units());
        match receipt {
            Some(receipt) => {
                let mut debt = self.debt(check, LateKind::Refund, units, receipt.charged_at());
                debt.state.twin = receipt.twin();
                debt
            }
            None => self.debt(check, LateKind::RefundOfNoCharge, units, LateUnits::NOW),
        }
    }

    /// Tells the store, now or when it answers again, whether or not whoever asked for that waits. It
    /// answers `false` if it is lost.
    pub(super) fn tell(self: &Arc<Self>, debt: Debt, when: When) -> LastingWork<bool> {
        let inner = Arc::clone(self);
        LastingWork::new(&self.runtime, async move { inner.tell_now(debt, when).await })
    }

    /// Charges for what has happened, as of the asker's instant.
    pub(super) fn charge_soon(self: &Arc<Self>, check: &Check<'_>, units: u64, when: When) {
        let at = self.asked(check).clock(when.now);
        drop(self.tell(self.debt(check, LateKind::Charge, units, at), when));
    }

    /// Tells the store now, or keeps it until it answers again; `false`: it is lost.
    async fn tell_now(&self, debt: Debt, when: When) -> bool {
        let asked = self.store_of(debt.store);
        let told = asked.store.settle(debt.state, &debt.limit, &[debt.late], when).await;
        let (tag, kept) = (debt.tag, told.is_ok());
        let kept = kept || told.is_err_and(|error| self.owe(debt, when.now, &error));
        // Whoever was refused meanwhile was refused for what is given back now.
        self.refusals.forget(tag);
        kept
    }

    /// Keeps what the store certainly did not hear; `false`: it is lost.
    pub(super) fn owe(&self, mut debt: Debt, now: Micros, error: &StoreError) -> bool {
        if debt.late.at == LateUnits::NOW {
            debt.late.at = self.store_of(debt.store).clock(now);
        }
        if !error.certainly_not_done() {
            self.owed.lose(&debt);
            return false;
        }
        let waits = self.owed.keep(debt);
        self.wake.notify_one();
        waits
    }

    /// Tells stores what is owed to them: one thing, and if that is told, many.
    pub(super) async fn tell_owed(self: &Arc<Self>) {
        for most in [1, TELLING_MAX] {
            let some: Vec<Debt> = {
                let mut waiting = lock(&self.owed.waiting);
                let some = most.min(waiting.len());
                waiting.drain(..some).collect()
            };
            let mut telling = JoinSet::new();
            for debt in some {
                let inner = Arc::clone(self);
                telling.spawn(async move { inner.tell_debt(debt).await });
            }
            while let Some(told) = telling.join_next().await {
                if !told.unwrap_or(false) {
                    telling.detach_all();
                    return;
                }
            }
        }
    }

    /// Tells one thing; whether its store answers.
    async fn tell_debt(&self, debt: Debt) -> bool {
        let (asked, now) = (self.store_of(debt.store), self.pace.now());
        if asked.clock(now) >= debt.good_until() {
            return true;
        }
        let when = asked.when(now.into());
        match asked.store.settle(debt.state, &debt.limit, &[debt.late], when).await {
            Ok(_) => self.refusals.forget(debt.tag),
            Err(error) if error.certainly_not_done() => {
                self.owed.keep(debt);
                return false;
            }
            Err(_) => self.owed.lose(&debt),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_can_wait_is_lost_and_counted() {
        let (owed, mut stats) = (Owed::default(), SharedStats::default());
        for number in 0..WAITING_MAX as u64 + 5 {
            let kind = if number % 2 == 0 { LateKind::Refund } else { LateKind::Charge };
            owed.keep(Debt {
                store: 0,
                state: StateName { key: [0; 16], twin: 0 },
                limit: "1/hour".parse().unwrap(),
                tag: number,
                late: LateUnits { units: 1, at: Micros::ZERO, kind },
            });
        }
        owed.add_to(&mut stats);
        assert_eq!((stats.owed, stats.refunds_lost, stats.charges_lost), (10_000, 3, 2));
    }
}
