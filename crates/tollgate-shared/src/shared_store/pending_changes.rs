//! Changes that are sent to a store without a waiting caller: refunds, and charges of work that has
//! happened.
//!
//! What a store certainly did not hear waits here until it answers again, as long as it means anything:
//! what a limit has forgotten by itself need not be given back, and what was charged in a window that
//! is over is charged to no other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;
use tollgate::{Check, Limit, Micros, Receipt, Wait};

use crate::remote_store::{CallTiming, LateKind, LateUnits, RemoteError, RemoteStore, StateName};

use super::SharedStoreInner;
use super::detached_work::DetachedWork;
use super::stats::SharedStats;
use super::unit_table::lock;

/// Bound: so many wait, at most `PENDING_BYTES_MAX` each; one more is lost, and counted.
const PENDING_MAX: usize = 10_000;
/// Bytes of one debt, however long its key is: 5 MB for all that can wait.
const PENDING_BYTES_MAX: usize = 512;
/// Number of changes sent at once.
const SENDING_MAX: usize = 256;

/// Changes that wait for their store.
#[derive(Debug, Default)]
pub(super) struct PendingChanges {
    /// Bound: `PENDING_MAX`.
    queue: Mutex<VecDeque<PendingChange>>,
    refunds_lost: AtomicU64,
    charges_lost: AtomicU64,
}

/// A change for a store. It has the hash of the key, so that long keys take no more room than
/// others.
#[derive(Clone, Debug)]
pub(super) struct PendingChange {
    /// The number of the store.
    store: u8,
    state: StateName,
    /// The limit as it applies to the key.
    limit: Limit,
    /// The key's tag in the refusal cache.
    tag: u64,
    late: LateUnits,
}

const _: () = assert!(size_of::<PendingChange>() <= PENDING_BYTES_MAX);

impl PendingChange {
    /// From then on it means nothing. By the store's clock.
    fn expires_at(&self) -> Micros {
        self.late.at.after(Wait::from_micros(self.limit.memory_us()))
    }
}

impl PendingChanges {
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.queue).is_empty()
    }

    pub(super) fn add_to(&self, stats: &mut SharedStats) {
        stats.pending_changes = lock(&self.queue).len() as u64;
        stats.refunds_lost = self.refunds_lost.load(Ordering::Relaxed);
        stats.charges_lost = self.charges_lost.load(Ordering::Relaxed);
    }

    /// Queues a change; false if there is no room.
    fn keep(&self, debt: PendingChange) -> bool {
        let mut waiting = lock(&self.queue);
        let room = waiting.len() < PENDING_MAX;
        match room {
            true => waiting.push_back(debt),
            false => self.count_lost(&debt),
        }
        room
    }

    /// Counts charges that nobody was served for and that stay.
    pub(super) fn count_lost_refund(&self) {
        self.refunds_lost.fetch_add(1, Ordering::Relaxed);
    }

    fn count_lost(&self, debt: &PendingChange) {
        let counter = match debt.late.kind {
            LateKind::Refund | LateKind::RefundOfNoCharge => &self.refunds_lost,
            LateKind::Charge | LateKind::ChargeWithRefusals => &self.charges_lost,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl<R: RemoteStore> SharedStoreInner<R> {
    /// Makes a change of a check's key for its store.
    pub(super) fn pending_change(
        &self,
        check: &Check<'_>,
        kind: LateKind,
        units: u64,
        at: Micros,
    ) -> PendingChange {
        let key = check.key();
        PendingChange {
            store: check.requested_terms().store,
            state: StateName { key: self.store_for(check).store.hash(key), twin: 0 },
            limit: check.limit().for_key(key.as_bytes()).into_owned(),
            tag: self.tag(check),
            late: LateUnits { units, at, kind },
        }
    }

    /// Makes a refund for the store: of the charge of a receipt or, without one, as if charged now.
    pub(super) fn pending_refund(
        &self,
        check: &Check<'_>,
        receipt: Option<&Receipt>,
    ) -> PendingChange {
        let units = receipt.map_or(u64::MAX, Receipt::granted).min(check.units());
        match receipt {
            Some(receipt) => {
                let mut debt =
                    self.pending_change(check, LateKind::Refund, units, receipt.charged_at());
                debt.state.twin = receipt.twin();
                debt
            }
            None => self.pending_change(check, LateKind::RefundOfNoCharge, units, LateUnits::NOW),
        }
    }

    /// Sends a change now, or when the store answers again, even if the caller stops waiting.
    /// Resolves to false if it is lost.
    pub(super) fn send_change(
        self: &Arc<Self>,
        debt: PendingChange,
        when: CallTiming,
    ) -> DetachedWork<bool> {
        let inner = Arc::clone(self);
        DetachedWork::new(&self.runtime, async move { inner.send_now(debt, when).await })
    }

    /// Charges for work that has happened, at the caller's instant.
    pub(super) fn charge_in_background(
        self: &Arc<Self>,
        check: &Check<'_>,
        units: u64,
        when: CallTiming,
    ) {
        let at = self.store_for(check).to_store_clock(when.now);
        drop(
            self.send_change(
                self.pending_change(check, LateKind::of_charge(check), units, at),
                when,
            ),
        );
    }

    /// Tells the store now, or keeps it until it answers again; `false`: it is lost.
    async fn send_now(&self, debt: PendingChange, when: CallTiming) -> bool {
        let asked = self.store_by_number(debt.store);
        let told = asked.store.apply_late_units(debt.state, &debt.limit, &[debt.late], when).await;
        let (tag, kept) = (debt.tag, told.is_ok());
        let kept = kept || told.is_err_and(|error| self.keep_unsent(debt, when.now, &error));
        // A refusal that arrived meanwhile was for the units that are refunded now.
        self.refusal_cache.forget(tag);
        kept
    }

    /// Keeps what the store certainly did not hear; `false`: it is lost.
    pub(super) fn keep_unsent(
        &self,
        mut debt: PendingChange,
        now: Micros,
        error: &R::Error,
    ) -> bool {
        if debt.late.at == LateUnits::NOW {
            debt.late.at = self.store_by_number(debt.store).to_store_clock(now);
        }
        if !error.certainly_not_executed() {
            self.pending_changes.count_lost(&debt);
            return false;
        }
        let waits = self.pending_changes.keep(debt);
        self.wake.notify_one();
        waits
    }

    /// Keeps a forced charge that the store did not answer.
    pub(super) fn keep_unsent_forced(&self, check: &Check<'_>, now: Micros, error: &R::Error) {
        if check.units() > 0 && !check.is_shadow() {
            let at = self.store_for(check).to_store_clock(now);
            self.keep_unsent(
                self.pending_change(check, LateKind::Charge, check.units(), at),
                now,
                error,
            );
        }
    }

    /// Sends pending changes to their stores: one, and if that succeeds, up to `SENDING_MAX`. Returns
    /// false if a store did not answer.
    pub(super) async fn flush_pending(self: &Arc<Self>) -> bool {
        for most in [1, SENDING_MAX] {
            let some: Vec<PendingChange> = {
                let mut waiting = lock(&self.pending_changes.queue);
                let some = most.min(waiting.len());
                waiting.drain(..some).collect()
            };
            let mut telling = JoinSet::new();
            for debt in some {
                let inner = Arc::clone(self);
                telling.spawn(async move { inner.send_pending(debt).await });
            }
            while let Some(told) = telling.join_next().await {
                if !told.unwrap_or(false) {
                    telling.detach_all();
                    return false;
                }
            }
        }
        true
    }

    /// Tells one thing; whether its store answers.
    async fn send_pending(&self, debt: PendingChange) -> bool {
        let (asked, now) = (self.store_by_number(debt.store), self.caller_clock.now());
        if asked.to_store_clock(now) >= debt.expires_at() {
            return true;
        }
        let when = asked.call_timing(now.into());
        match asked.store.apply_late_units(debt.state, &debt.limit, &[debt.late], when).await {
            Ok(_) => self.refusal_cache.forget(debt.tag),
            Err(error) if error.certainly_not_executed() => {
                self.pending_changes.keep(debt);
                return false;
            }
            Err(_) => self.pending_changes.count_lost(&debt),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_can_wait_is_lost_and_counted() {
        let (owed, mut stats) = (PendingChanges::default(), SharedStats::default());
        for number in 0..PENDING_MAX as u64 + 5 {
            let kind = if number % 2 == 0 { LateKind::Refund } else { LateKind::Charge };
            owed.keep(PendingChange {
                store: 0,
                state: StateName { key: [0; 16], twin: 0 },
                limit: "1/hour".parse().unwrap(),
                tag: number,
                late: LateUnits { units: 1, at: Micros::ZERO, kind },
            });
        }
        owed.add_to(&mut stats);
        assert_eq!((stats.pending_changes, stats.refunds_lost, stats.charges_lost), (10_000, 3, 2));
    }
}
