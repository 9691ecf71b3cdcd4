//! What a store is to be told and certainly was not: refunds, and charges for what has happened anyway.
//!
//! They wait here until the store answers again, as long as they mean anything: what a limit has
//! forgotten by itself need not be given back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;
use tollgate::{Act, Check, Micros, Outcome, Receipt, Wait};

use crate::error::StoreError;
use crate::remote::{Remote, Seen};

use super::Inner;
use super::kept::Kept;
use super::local_sync::copy_of;
use super::places::lock;
use super::stats::SharedStats;

/// Bound: so many wait; one more is lost, and counted.
const WAITING_MAX: usize = 10_000;
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

#[derive(Debug)]
struct Debt {
    kept: Kept,
    what: What,
    /// From then on it means nothing. By the store's clock.
    good_until: Micros,
}

/// What is owed.
#[derive(Debug)]
enum What {
    Refund(Option<Receipt>),
    Charge,
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
            false => self.lose(&debt.what),
        }
        room
    }

    fn lose(&self, what: &What) {
        let counter = match what {
            What::Refund(_) => &self.refunds_lost,
            What::Charge => &self.charges_lost,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl<R: Remote> Inner<R> {
    /// Gives back to the store, now or when it answers again; `false`: it is lost.
    pub(super) async fn refund_to_store(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Micros,
    ) -> bool {
        let charged_at = receipt.as_ref().map(Receipt::charged_at);
        let refund = || receipt.as_ref().map(copy_of);
        let told = match self.asked(check).store.refund(check, refund(), now).await {
            Ok(()) => true,
            Err(error) => {
                let charged_at = charged_at.unwrap_or_else(|| self.asked(check).clock(now));
                self.owe(check, What::Refund(receipt), charged_at, &error)
            }
        };
        // Whoever was refused meanwhile was refused for what is given back now.
        self.refusals.forget(self.tag(check));
        told
    }

    /// Keeps a charge for what has happened, if the store was asked for one and did not make it.
    pub(super) fn owe_charge(&self, check: &Check<'_>, now: Micros, error: &StoreError) {
        if check.what() == Act::Force && check.units() > 0 && !check.is_shadow() {
            self.owe(check, What::Charge, self.asked(check).clock(now), error);
        }
    }

    /// Whether it waits; else it is lost.
    fn owe(&self, check: &Check<'_>, what: What, since: Micros, error: &StoreError) -> bool {
        if !error.class.certainly_not_done() {
            self.owed.lose(&what);
            return false;
        }
        let good_until = since.after(Wait::from_micros(check.limit().memory_us()));
        let waits = self.owed.keep(Debt { kept: Kept::of(check), what, good_until });
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
        let (check, now) = (debt.kept.check(), self.pace.now());
        let asked = self.asked(&check);
        if asked.clock(now) >= debt.good_until {
            return true;
        }
        let told = match &debt.what {
            What::Refund(receipt) => {
                asked.store.refund(&check, receipt.as_ref().map(copy_of), now).await
            }
            What::Charge => {
                let (mut outcome, mut seen) = ([Outcome::default()], Seen::default());
                asked.store.decide_seen(&[check], now, &mut outcome, &mut seen).await.map(drop)
            }
        };
        match told {
            Ok(()) => self.refusals.forget(self.tag(&check)),
            Err(error) if error.class.certainly_not_done() => {
                self.owed.keep(debt);
                return false;
            }
            Err(_) => self.owed.lose(&debt.what),
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
        let limit = "1/hour".parse().unwrap();
        for number in 0..WAITING_MAX as u64 + 5 {
            let what = if number % 2 == 0 { What::Refund(None) } else { What::Charge };
            let kept = Kept::of(&Check::new(&limit, "a"));
            owed.keep(Debt { kept, what, good_until: Micros::ZERO });
        }
        owed.add_to(&mut stats);
        assert_eq!((stats.owed, stats.refunds_lost, stats.charges_lost), (10_000, 3, 2));
    }
}
