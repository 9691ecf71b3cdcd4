//! Figures about what was answered without the store, and how far off that could be.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::OnFailure;

use crate::remote_store::RemoteStore;

use super::SharedStoreInner;

/// Counts of decisions without the store.
#[derive(Debug, Default)]
pub(super) struct DegradedCounts {
    /// Checks answered without a store that did not answer, by policy: local, open, closed.
    degraded: [AtomicU64; 3],
}

impl DegradedCounts {
    pub(super) fn degraded(&self, policy: OnFailure) {
        self.degraded[policy as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Figures for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedStats {
    /// Number of instances that share the limits while the store is unavailable: at least 1.
    pub instances: u32,
    /// Checks that were decided by this instance alone, because the store did not answer.
    pub degraded_local: u64,
    /// Checks that were admitted for that.
    pub degraded_open: u64,
    /// Checks that were refused for that.
    pub degraded_closed: u64,
    /// Refunds and charges that wait until the store answers again.
    pub pending_changes: u64,
    /// Refunds that the store perhaps did not take, or that were too many to wait: what they were of
    /// stays charged.
    pub refunds_lost: u64,
    /// Charges for what had happened anyway, of which the same is true: they stay uncharged.
    pub charges_lost: u64,
    /// Refusals answered without asking the store.
    pub refusals_cached: u64,
    /// Units borrowed ahead.
    pub units_lent: u64,
    /// Units of those that were given back.
    pub units_returned: u64,
    /// Units of those that were neither spent nor given back: the store did not take them.
    pub units_unused: u64,
    /// Keys with borrowed budget now.
    pub leases: u64,
    /// The largest part of a limit's capacity that all instances held unspent at once, in millionths:
    /// so much more than the limit may have passed at once. Never above the ε of the rule.
    pub outstanding_max_millionths: u64,
    /// Keys that are decided here and told afterwards.
    pub sync_keys: u64,
    /// Units that the store has not been told yet.
    pub sync_units_unsent: u64,
    /// Times the store could not be told.
    pub sync_failures: u64,
    /// Units of failed flushes that the store may have executed: they are not sent again. The
    /// others are.
    pub sync_units_uncertain: u64,
    /// Keys that the store decided, because too many others are synchronised later.
    pub sync_without_room: u64,
}

impl<R: RemoteStore> SharedStoreInner<R> {
    pub(super) fn stats(&self) -> SharedStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let degraded = |policy: OnFailure| count(&self.counts.degraded[policy as usize]);
        let mut stats = SharedStats {
            instances: self.live_instances(),
            degraded_local: degraded(OnFailure::Local),
            degraded_open: degraded(OnFailure::Open),
            degraded_closed: degraded(OnFailure::Closed),
            refusals_cached: self.refusal_cache.count(),
            ..SharedStats::default()
        };
        self.pending_changes.add_to(&mut stats);
        stats.refunds_lost +=
            self.stores.iter().map(|asked| asked.store.refunds_lost()).sum::<u64>();
        self.leases.add_to(&mut stats);
        self.local_sync.add_to(&mut stats);
        stats
    }
}
