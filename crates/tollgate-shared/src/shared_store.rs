//! `SharedStore`: limits that several instances keep together. It always answers, even if the store does not.
//!
//! ```text
//!   checks ─▶ refusal_cache.rs   refused a moment ago, and the wait is not over: refused
//!          ─▶ lease.rs           budget borrowed ahead covers the cost: spent
//!          ─▶ local_sync.rs      decided in the table of this process; the store gets the charge later
//!          ─▶ store_call.rs      the store decides; its states are copied into the table of this process
//!          ─▶ failure_policy.rs  no answer: decided alone, admitted or refused, as each check's terms say
//! ```
//!
//! A single check that can be answered in this process is answered at once, without an allocation. All
//! other requests go through `shared_request.rs`: all checks pass and are charged, or none is charged.

mod decision_call;
mod detached_work;
mod failure_policy;
mod hot_key_sketch;
mod inspect;
mod lease;
mod local_sync;
mod pending_changes;
mod refusal_cache;
mod retained_check;
mod share_cache;
mod shared_request;
mod stats;
mod store_call;
mod sync;
#[cfg(test)]
mod tests;
mod unit_table;

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;
use tollgate::store::join::join_all;
use tollgate::store::{DetachedCheck, InspectedStates, RequestList};
use tollgate::{
    Act, Check, Consistency, DecidedBy, Decision, Key, Limit, MemoryStore, Micros, Now, Outcome,
    Receipt, Store, Wait,
};

use crate::remote_store::{BATCH_CALLS_MAX, CallTiming, RemoteStore};
use crate::time_source::TimeSource;

use detached_work::{BackgroundTasks, DetachedWork};
use lease::Leases;
use local_sync::{LocalSyncTable, copy_receipt};
use pending_changes::PendingChanges;
use refusal_cache::RefusalCache;
use share_cache::ShareCache;
use stats::DegradedCounts;

pub use stats::SharedStats;

/// The most checks without a caller at a time, together with the calls whose callers have left, which may be more. Each
/// ends at the timeout of its store.
const DETACHED_CHECKS_MAX: usize = 1_024;

/// Interval of the background work; no interval of `local_sync` is shorter.
const BACKGROUND_TICK: Duration = Duration::from_millis(10);

/// Limits that several instances keep together. Cheap to clone.
#[derive(Debug)]
pub struct SharedStore<R: RemoteStore> {
    inner: Arc<SharedStoreInner<R>>,
}

impl<R: RemoteStore> Clone for SharedStore<R> {
    fn clone(&self) -> SharedStore<R> {
        SharedStore { inner: Arc::clone(&self.inner) }
    }
}

#[derive(Debug)]
struct SharedStoreInner<R> {
    /// Stores by the number in a check's terms; the first is the default.
    stores: Box<[ClockedStore<R>]>,
    /// The last states of the store by its clock, for when it is unavailable, and limits that are
    /// synchronised later. Bound: as many keys as it was made for.
    local: MemoryStore,
    /// Names this instance among those that hold budget.
    instance_id: u64,
    /// Number of live instances, as far as it is known.
    live_instances: AtomicU32,
    /// The least number of instances, whatever is known.
    min_instances: AtomicU32,
    time: TimeSource,
    tag_secret: RandomState,
    refusal_cache: RefusalCache,
    leases: Leases,
    local_sync: LocalSyncTable,
    pending_changes: PendingChanges,
    share_cache: ShareCache,
    counts: DegradedCounts,
    caller_clock: CallerClock,
    /// The runtime of work that continues without its caller.
    runtime: BackgroundTasks,
    /// Held by one round of the background work, so that `drain` also waits for the round before it.
    background_round: tokio::sync::Mutex<()>,
    /// Something waits in the background.
    wake: Arc<Notify>,
}

/// One store.
#[derive(Debug)]
struct ClockedStore<R> {
    store: R,
    /// Microseconds by which its clock was ahead of the caller's at its last answer, at least.
    clock_ahead_us: AtomicI64,
}

/// The clock of those who ask: for what happens when nobody does, and for how late it is when a question
/// goes out, which may have been asked a while before.
#[derive(Debug)]
struct CallerClock {
    started: Instant,
    /// The latest reading of the callers' clock at the start, in microseconds.
    offset: AtomicU64,
    /// Time of the last such reading, in microseconds since the start.
    confirmed: AtomicU64,
}

/// A clock that is behind for this long has gone back.
const CLOCK_WENT_BACK_AFTER_US: u64 = 10_000_000;

impl CallerClock {
    fn new() -> CallerClock {
        let (offset, confirmed) = (AtomicU64::new(0), AtomicU64::new(0));
        CallerClock { started: Instant::now(), offset, confirmed }
    }

    /// A clock on which no time passes by itself.
    fn stopped() -> CallerClock {
        let tomorrow = Instant::now() + Duration::from_secs(86_400);
        CallerClock { started: tomorrow, ..CallerClock::new() }
    }

    /// A question of this instant is about to go out; what their clock shows now.
    fn observe(&self, now: Micros) -> Micros {
        self.observe_at(now, self.elapsed_us())
    }

    fn observe_at(&self, now: Micros, since: u64) -> Micros {
        let offset = now.as_u64().saturating_sub(since);
        let known = self.offset.load(Ordering::Relaxed);
        let confirmed = self.confirmed.load(Ordering::Relaxed);
        if offset < known && since < confirmed.saturating_add(CLOCK_WENT_BACK_AFTER_US) {
            return Micros::new(known.saturating_add(since));
        }
        self.offset.store(offset, Ordering::Relaxed);
        self.confirmed.store(since, Ordering::Relaxed);
        now
    }

    fn now(&self) -> Micros {
        Micros::new(self.offset.load(Ordering::Relaxed).saturating_add(self.elapsed_us()))
    }

    fn elapsed_us(&self) -> u64 {
        (Instant::now() - self.started).as_micros() as u64
    }
}

impl<R: RemoteStore> SharedStore<R> {
    /// Limits kept in `stores`: the first for all checks whose terms name no other. States of up to
    /// `max_keys` keys are kept here, for when a store does not answer. What happens in the background
    /// runs on the runtime that this is called on.
    ///
    /// # Panics
    ///
    /// If there is no store, or no runtime.
    pub fn start(stores: Vec<R>, max_keys: usize, time: TimeSource) -> SharedStore<R> {
        SharedStore::start_with(stores, max_keys, time, CallerClock::new())
    }

    /// Starts like [`SharedStore::start`], for tests: time passes only as they say.
    #[doc(hidden)]
    pub fn start_without_passing_time(
        stores: Vec<R>,
        max_keys: usize,
        time: TimeSource,
    ) -> SharedStore<R> {
        SharedStore::start_with(stores, max_keys, time, CallerClock::stopped())
    }

    /// Says what time it is, for tests.
    #[doc(hidden)]
    pub fn observe_time(&self, now: Micros) {
        self.inner.caller_clock.observe(now);
    }

    /// Waits until nothing is on its way to a store without its caller, for tests.
    #[doc(hidden)]
    pub async fn settle(&self) {
        let timeout = self.stores().map(R::timeout).max().unwrap_or_default();
        self.inner.runtime.wait_until_idle(timeout).await;
        drop(self.inner.background_round.lock().await);
    }

    fn start_with(
        stores: Vec<R>,
        max_keys: usize,
        time: TimeSource,
        pace: CallerClock,
    ) -> SharedStore<R> {
        assert!(!stores.is_empty(), "there is a store to share");
        let secret = RandomState::new();
        let stores = stores
            .into_iter()
            .map(|store| ClockedStore { store, clock_ahead_us: AtomicI64::new(0) });
        let inner = Arc::new(SharedStoreInner {
            stores: stores.collect(),
            local: MemoryStore::new(max_keys),
            instance_id: RandomState::new().hash_one(0),
            live_instances: AtomicU32::new(1),
            min_instances: AtomicU32::new(1),
            time,
            tag_secret: secret,
            refusal_cache: RefusalCache::new(),
            leases: Leases::new(),
            local_sync: LocalSyncTable::new(),
            pending_changes: PendingChanges::default(),
            share_cache: ShareCache::default(),
            counts: DegradedCounts::default(),
            caller_clock: pace,
            runtime: BackgroundTasks::new(Handle::current()),
            background_round: tokio::sync::Mutex::default(),
            wake: Arc::new(Notify::new()),
        });
        Handle::current().spawn(run_background(Arc::downgrade(&inner), Arc::clone(&inner.wake)));
        SharedStore { inner }
    }

    /// Sets the number of live instances, this one included: each decides by its share while the
    /// store is unavailable.
    pub fn set_live_instances(&self, instances: u32) {
        self.inner.live_instances.store(instances.max(1), Ordering::Relaxed);
    }

    /// Sets the least number of instances. An instance started while the store is down cannot count
    /// its peers and would admit the whole limit.
    pub fn set_min_instances(&self, instances: u32) {
        self.inner.min_instances.store(instances.max(1), Ordering::Relaxed);
    }

    /// The stores, the first first.
    pub fn stores(&self) -> impl Iterator<Item = &R> {
        self.inner.stores.iter().map(|asked| &asked.store)
    }

    /// The states in this process.
    pub fn local(&self) -> &MemoryStore {
        &self.inner.local
    }

    /// Empties the refusal cache, because rules or overrides have changed.
    pub fn forget_refusals(&self) {
        self.inner.refusal_cache.forget_all();
    }

    /// The clock that decides.
    pub(crate) fn time_source(&self) -> TimeSource {
        self.inner.time
    }

    /// Refunds all units of a receipt: in this process at once, in the store without a caller that waits.
    pub(crate) fn refund_in_background(
        &self,
        limit: &Limit,
        key: Key<'_>,
        receipt: Receipt,
        now: Micros,
    ) {
        let check = Check::new(limit, key).cost(receipt.granted());
        drop(self.inner.begin_refund(&check, Some(receipt), now.into()));
    }

    /// Figures for metrics.
    pub fn stats(&self) -> SharedStats {
        self.inner.stats()
    }

    /// Returns leased units and sends all changes that wait. Call it before the program ends.
    ///
    /// First waits for refunds and charges on their way, at most for the longest timeout of a store. Changes
    /// stay unsent if a store does not answer.
    pub async fn drain(&self) {
        let inner = &self.inner;
        let timeout = self.stores().map(R::timeout).max().unwrap_or_default();
        inner.runtime.wait_until_idle(timeout).await;
        let _round = inner.background_round.lock().await;
        inner.return_leases(true).await;
        inner.flush_local_sync(true).await;
        while !inner.pending_changes.is_empty() && inner.flush_pending().await {}
    }
}

/// Runs the background work until the last clone is dropped.
async fn run_background<R: RemoteStore>(
    inner: std::sync::Weak<SharedStoreInner<R>>,
    wake: Arc<Notify>,
) {
    loop {
        let Some(shared) = inner.upgrade() else { return };
        let round = shared.background_round.lock().await;
        shared.return_leases(false).await;
        shared.flush_local_sync(false).await;
        shared.flush_pending().await;
        drop(round);
        let idle = shared.leases.is_empty()
            && shared.local_sync.is_empty()
            && shared.pending_changes.is_empty();
        drop(shared);
        match idle {
            true => wake.notified().await,
            false => tokio::time::sleep(BACKGROUND_TICK).await,
        }
    }
}

impl<R> Drop for SharedStoreInner<R> {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

impl<R: RemoteStore> SharedStoreInner<R> {
    /// Names a key under a limit and its numbers in one of the stores. Made with a secret, so that nobody can choose keys
    /// that meet.
    #[inline]
    fn tag(&self, check: &Check<'_>) -> u64 {
        let limit = check.limit();
        let store = u64::from(check.requested_terms().store);
        let numbers = match check.requested_terms().consistency {
            // What the store was not told is of the key, whatever numbers its limit has now.
            Consistency::LocalSync { .. } => store << 56,
            _ => limit.units().rotate_left(32) ^ limit.capacity() ^ store << 56,
        };
        let subject = self.tag_secret.hash_one(check.key().as_bytes());
        (subject ^ limit.id() ^ numbers.wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1)
    }

    /// The store that a check is about.
    #[inline]
    fn store_for(&self, check: &Check<'_>) -> &ClockedStore<R> {
        self.store_by_number(check.requested_terms().store)
    }

    /// The store of a number; one that no store has is the first's.
    #[inline]
    fn store_by_number(&self, number: u8) -> &ClockedStore<R> {
        self.stores.get(usize::from(number)).unwrap_or(&self.stores[0])
    }

    /// The answer to a usual question that needs no store.
    #[inline]
    fn answer_without_store(
        self: &Arc<Self>,
        check: &Check<'_>,
        asked_at: Now<'_>,
    ) -> Option<Outcome> {
        let now = asked_at.instant();
        let usual =
            check.requested_act() == Act::Take && check.units() > 0 && !check.key().is_empty();
        if !usual || check.is_shadow() || check.is_at_once() || self.time == TimeSource::Caller {
            return None;
        }
        if self.any_block(now) && self.blocked(check.key(), now).is_some() {
            return None;
        }
        let tag = self.tag(check);
        match check.requested_terms().consistency {
            Consistency::Strict => {}
            Consistency::Leased { .. } => {
                if let Some(outcome) = self.spend_lease(check, tag, now) {
                    return Some(outcome);
                }
            }
            Consistency::LocalSync { .. } => return self.decide_local_sync(check, tag, asked_at),
        }
        self.cached_refusal(check, tag, asked_at)
    }

    /// The refusal of a take that was refused a moment ago. The store answers costs that never fit,
    /// and limits that count refusals, because each one is charged.
    #[inline]
    fn cached_refusal(&self, check: &Check<'_>, tag: u64, asked_at: Now<'_>) -> Option<Outcome> {
        let now = asked_at.instant();
        let cost = if check.requested_act() == Act::UpTo { 1 } else { check.units() };
        if check.counts_denied() || cost > check.limit().capacity() {
            return None;
        }
        self.refusal_cache.lookup(tag, cost, now, || {
            let known = self.peek_local(check, asked_at);
            let decided_by = DecidedBy::RefusalCache;
            (!known.allowed).then_some(Outcome { decided_by, served_at: now, ..known })
        })
    }

    /// Decides in the table of this process; whether all pass.
    fn decide_in_table(&self, checks: &[Check<'_>], at: Now<'_>, outcomes: &mut [Outcome]) -> bool {
        let decision = self.local.decide_each(checks, at, outcomes);
        let asked = outcomes[..checks.len()].iter().any(|one| *one != Outcome::default());
        if !decision.allowed() && !asked {
            // There is no room for a state of its own: no limit was asked.
            let refused = Outcome { retry_after: decision.retry_after(), ..Outcome::default() };
            outcomes[..checks.len()].fill(refused);
        }
        decision.allowed()
    }

    #[inline]
    fn any_block(&self, now: Micros) -> bool {
        self.local.any_block(now) || self.stores[0].store.any_block(now)
    }

    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        self.local.blocked(key, now).max(self.stores[0].store.blocked(key, now))
    }

    fn live_instances(&self) -> u32 {
        self.live_instances.load(Ordering::Relaxed).max(self.min_instances.load(Ordering::Relaxed))
    }
}

impl<R> ClockedStore<R> {
    /// Converts an instant of the caller to the store's clock, as far as that is known.
    #[inline]
    fn to_store_clock(&self, now: Micros) -> Micros {
        Micros::new(now.as_u64().saturating_add_signed(self.clock_ahead_us.load(Ordering::Relaxed)))
    }

    /// Converts a reading of the caller's clock to the store's.
    #[inline]
    fn to_store_now<'n>(&self, now: Now<'n>) -> Now<'n> {
        now.ahead(self.clock_ahead_us.load(Ordering::Relaxed))
    }

    /// Its clock showed `at` when the caller's showed `answered` or a little less. So the estimate
    /// is never ahead of the store's clock, and waits counted from it are not too short.
    fn observe_clock(&self, at: Micros, answered: Micros) {
        self.clock_ahead_us
            .store(at.as_u64().wrapping_sub(answered.as_u64()) as i64, Ordering::Relaxed);
    }
}

impl<R: RemoteStore> ClockedStore<R> {
    /// The moment of a question, and of others that belong to it: however many they are, all of them have
    /// one deadline.
    fn call_timing(&self, now: Now<'_>) -> CallTiming {
        let began = now.operation_start().map_or_else(Instant::now, Instant::from_std);
        CallTiming { now: now.instant(), deadline: began + self.store.timeout() }
    }
}

impl<R: RemoteStore> Store for SharedStore<R> {
    type Error = Infallible;

    #[inline]
    async fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Result<Decision, Infallible> {
        if let Some(decision) = self.decide_at_once(checks, now, outcomes) {
            return Ok(decision);
        }
        // Apart and in a box: what is answered at once does not carry it around.
        Ok(Box::pin(self.inner.decide(checks, now, outcomes)).await)
    }

    /// Answers a single check by the refusal cache, a lease or `local_sync`.
    #[inline]
    fn decide_at_once(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Option<Decision> {
        let [check] = checks else { return None };
        outcomes[0] = self.inner.answer_without_store(check, now)?;
        Some(Decision::of_outcomes(checks, &outcomes[..1], now.instant()))
    }

    /// Sends up to [`BATCH_CALLS_MAX`] requests in order before the first answer is awaited, and the next ones
    /// after the last answer. All of them have one deadline. A request that takes two calls may be executed
    /// after later requests of its key, as in [`SharedStore::decide_batch`](Store::decide_batch).
    async fn decide_requests(
        &self,
        requests: RequestList<'_, '_>,
        now: Now<'_>,
        outcomes: &mut [Outcome],
        decisions: &mut Vec<Decision>,
    ) -> Result<(), Infallible> {
        decisions.clear();
        let (mut ranges, mut rest, now) = (requests.ranges(), outcomes, now.begin_operation());
        while ranges.len() > 0 {
            let futures = ranges.by_ref().take(BATCH_CALLS_MAX).map(|range| {
                let own = rest.split_off_mut(..range.len()).expect("an outcome for each check");
                self.decide_each(&requests.checks()[range], now, own)
            });
            decisions.extend(join_all(futures).await.into_iter().map(|Ok(decision)| decision));
        }
        Ok(())
    }

    /// Sends up to [`BATCH_CALLS_MAX`] requests in order before the first answer is awaited, and the next ones
    /// after the last answer. Each has its own timeout, unless `now` began an operation. A request that takes
    /// two calls may be executed after later requests of its key: see
    /// [`SharedLimiter::decide_batch`](crate::SharedLimiter::decide_batch).
    async fn decide_batch(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), Infallible> {
        decisions.clear();
        for chunk in checks.chunks(BATCH_CALLS_MAX) {
            let requests = chunk.iter().map(|check| async move {
                let outcome = &mut [Outcome::default()];
                let Ok(decision) = self.decide_each(slice::from_ref(check), now, outcome).await;
                decision
            });
            decisions.extend(join_all(requests).await);
        }
        Ok(())
    }

    /// Asks the store on the runtime of this store. Returns false if `DETACHED_CHECKS_MAX` checks have no answer yet.
    fn decide_detached(&self, check: DetachedCheck, now: Now<'_>) -> bool {
        let runtime = &self.inner.runtime;
        if runtime.count() >= DETACHED_CHECKS_MAX {
            return false;
        }
        let (store, now) = (self.clone(), now.instant());
        runtime.spawn(async move {
            let mut next = Some(check);
            while let Some((check, then)) = next.map(DetachedCheck::into_parts) {
                let outcomes = &mut [Outcome::default()];
                let Ok(decision) =
                    store.decide_each(&[check.check()], Now::at(now), outcomes).await;
                next = then(decision);
            }
        });
        true
    }

    async fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Now<'_>,
    ) -> Result<(), Infallible> {
        self.inner.refund(check, receipt, now).await;
        Ok(())
    }

    async fn reset(&self, check: &Check<'_>, now: Micros) -> Result<bool, Infallible> {
        let inner = &self.inner;
        let tag = inner.tag(check);
        inner.refusal_cache.forget(tag);
        inner.leases.drop_lease(tag);
        inner.local_sync.drop_unsent(tag);
        let asked = inner.store_for(check);
        let here = inner.local.reset(check.limit(), check.key(), asked.to_store_clock(now));
        let reset = asked.store.reset(check, now).await;
        // A refusal that arrived meanwhile was for the usage that is now forgotten.
        inner.refusal_cache.forget(tag);
        Ok(reset.unwrap_or(here))
    }

    async fn balance(&self, check: &Check<'_>, now: Micros) -> Result<i64, Infallible> {
        let inner = &self.inner;
        let asked = inner.store_for(check);
        // As decisions are made then: by the share of this instance.
        let here = || {
            let share = inner.share_cache.share_of(check.limit(), inner.live_instances());
            inner.local.balance(&share, check.key(), asked.to_store_clock(now))
        };
        Ok(asked.store.balance(check, now).await.unwrap_or_else(|_| here()))
    }

    /// Reads the states where a take would find them. `None` if a store does not answer, or if there are states
    /// that only its answers show.
    async fn inspect(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
    ) -> Result<Option<InspectedStates>, Infallible> {
        Ok(Box::pin(self.inner.inspect(checks, now)).await)
    }

    async fn block(&self, key: Key<'_>, until: Micros, now: Micros) -> Result<bool, Infallible> {
        let inner = &self.inner;
        let everywhere = inner.stores[0].store.block(key, until, now).await;
        // Not here as well: what another instance lifts would stay here.
        Ok(everywhere.unwrap_or_else(|_| inner.local.block(key, until, now)))
    }

    async fn unblock(&self, key: Key<'_>, now: Micros) -> Result<bool, Infallible> {
        let inner = &self.inner;
        let here = inner.local.unblock(key, now);
        let everywhere = inner.stores[0].store.unblock(key, now).await;
        Ok(everywhere.is_ok_and(|unblocked| unblocked) || here)
    }

    #[inline]
    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        self.inner.blocked(key, now)
    }

    #[inline]
    fn any_block(&self, now: Micros) -> bool {
        self.inner.any_block(now)
    }

    fn limits_changed(&self) {
        self.forget_refusals();
    }
}

impl<R: RemoteStore> SharedStoreInner<R> {
    /// Refunds where it was charged, and in the copy of that state in this process.
    async fn refund(
        self: &Arc<Self>,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        asked_at: Now<'_>,
    ) {
        if let Some(sending) = self.begin_refund(check, receipt, asked_at) {
            sending.await;
        }
    }

    /// Refunds in this process at once. Returns the call that refunds in the store, which is made even if
    /// it is dropped; `None` if the store does not know of the charge.
    fn begin_refund(
        self: &Arc<Self>,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        asked_at: Now<'_>,
    ) -> Option<DetachedWork<bool>> {
        let now = asked_at.instant();
        let tag = self.tag(check);
        self.refusal_cache.forget(tag);
        let charged_by = receipt.as_ref().map(Receipt::decided_by);
        let check = match charged_by {
            // The store does not know of the charge.
            Some(DecidedBy::Local) => {
                let share = self.share_cache.share_of(check.limit(), self.live_instances());
                let (key, at) = (check.key(), self.store_for(check).to_store_clock(now));
                self.local.refund(&share, key, receipt, check.units(), at);
                return None;
            }
            Some(DecidedBy::Memory | DecidedBy::Overflow) => {
                match self.refund_local_sync(check, tag, receipt.as_ref(), now) {
                    0 => return None,
                    told => check.cost(told),
                }
            }
            _ => {
                self.refund_local_copy(check, receipt.as_ref(), now);
                *check
            }
        };
        let debt = self.pending_refund(&check, receipt.as_ref());
        let when = self.store_for(&check).call_timing(asked_at);
        Some(self.send_change(debt, when))
    }

    /// Gives back in the table of this process what the store is about to. Before it: an answer of
    /// the store that comes meanwhile says how things are.
    fn refund_local_copy(&self, check: &Check<'_>, receipt: Option<&Receipt>, now: Micros) {
        let (receipt, at) = (receipt.map(copy_receipt), self.store_for(check).to_store_clock(now));
        self.local.refund(check.limit(), check.key(), receipt, check.units(), at);
    }
}
