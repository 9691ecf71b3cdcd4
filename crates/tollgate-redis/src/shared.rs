//! `Shared`: limits that several instances keep together, answered whatever the store does.
//!
//! ```text
//!   checks ─▶ refusals.rs    refused a moment ago, and the wait is not over: refused
//!          ─▶ lease.rs       budget borrowed ahead covers the cost: spent
//!          ─▶ local_sync.rs  decided in the table of this process, told afterwards
//!          ─▶ asking.rs      the store is asked, and its states copied into the table of this process
//!          ─▶ failing.rs     no answer: decided alone, admitted or refused, as each check's terms say
//! ```
//!
//! A single check that can be answered here is: nothing is allocated and nobody is waited for. All else
//! goes through `request.rs`, which has all checks pass and charged, or none.

mod asking;
mod failing;
mod kept;
mod lasting;
mod lease;
mod local_sync;
mod owed;
mod places;
mod refusals;
mod request;
mod shares;
mod sketch;
mod stats;
mod sync;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;
use tollgate::{
    Act, Check, Consistency, DecidedBy, Decision, Key, MemoryStore, Micros, Now, Outcome, Receipt,
    Store, Wait,
};

use crate::options::TimeOf;
use crate::remote::{Remote, When};

use lease::Leases;
use local_sync::{SyncBook, copy_of};
use owed::Owed;
use refusals::Refusals;
use shares::Shares;
use stats::Counts;

pub use stats::SharedStats;

/// How often what waits in the background is looked at; no interval of `local_sync` is shorter.
const TICK: Duration = Duration::from_millis(10);

/// Limits that several instances keep together. Cheap to clone.
#[derive(Debug)]
pub struct Shared<R: Remote> {
    inner: Arc<Inner<R>>,
}

impl<R: Remote> Clone for Shared<R> {
    fn clone(&self) -> Shared<R> {
        Shared { inner: Arc::clone(&self.inner) }
    }
}

#[derive(Debug)]
struct Inner<R> {
    /// By the number that a check's terms name; the first is everybody's.
    stores: Box<[Asked<R>]>,
    /// What the store said last of each key, for when it says nothing; and limits that are settled
    /// afterwards. By the store's clock. Bound: as many keys as it was made for.
    local: MemoryStore,
    /// Names this instance among those that hold budget.
    instance: u64,
    /// How many instances there are, as far as they were heard of,
    live: AtomicU32,
    /// and how many there are at least, whoever was heard of.
    least_live: AtomicU32,
    time: TimeOf,
    secret: RandomState,
    refusals: Refusals,
    leases: Leases,
    sync: SyncBook,
    owed: Owed,
    shares: Shares,
    counts: Counts,
    pace: Pace,
    /// Where what happens in the background runs.
    runtime: Handle,
    /// Something waits in the background.
    wake: Arc<Notify>,
}

/// One store.
#[derive(Debug)]
struct Asked<R> {
    store: R,
    /// How far its clock was ahead of the asker's at its last answer, at least, in microseconds.
    ahead: AtomicI64,
}

/// The clock of those who ask: for what happens when nobody does, and for how late it is when a question
/// goes out, which may have been asked a while before.
#[derive(Debug)]
struct Pace {
    started: Instant,
    /// What their clock showed when this began, in microseconds: as the latest of them had it.
    offset: AtomicU64,
    /// When somebody last had it so, in microseconds since this began.
    confirmed: AtomicU64,
}

/// Whoever is asked about for longer was not asked just before: the clock has gone back.
const BACK_AFTER_US: u64 = 10_000_000;

impl Pace {
    fn new() -> Pace {
        let (offset, confirmed) = (AtomicU64::new(0), AtomicU64::new(0));
        Pace { started: Instant::now(), offset, confirmed }
    }

    /// For tests that say what time it is: nothing passes but what they say.
    #[cfg(test)]
    fn standing() -> Pace {
        let tomorrow = Instant::now() + Duration::from_secs(86_400);
        Pace { started: tomorrow, ..Pace::new() }
    }

    /// A question of this instant is about to go out; what their clock shows now.
    fn saw(&self, now: Micros) -> Micros {
        self.saw_at(now, self.since())
    }

    fn saw_at(&self, now: Micros, since: u64) -> Micros {
        let offset = now.as_u64().saturating_sub(since);
        let known = self.offset.load(Ordering::Relaxed);
        let confirmed = self.confirmed.load(Ordering::Relaxed);
        if offset < known && since < confirmed.saturating_add(BACK_AFTER_US) {
            return Micros::new(known.saturating_add(since));
        }
        self.offset.store(offset, Ordering::Relaxed);
        self.confirmed.store(since, Ordering::Relaxed);
        now
    }

    fn now(&self) -> Micros {
        Micros::new(self.offset.load(Ordering::Relaxed).saturating_add(self.since()))
    }

    fn since(&self) -> u64 {
        (Instant::now() - self.started).as_micros() as u64
    }
}

impl<R: Remote> Shared<R> {
    /// Limits kept in `stores`: the first for all checks whose terms name no other. States of up to
    /// `max_keys` keys are kept here, for when a store does not answer. What happens in the background
    /// runs on the runtime that this is called on.
    ///
    /// # Panics
    ///
    /// If there is no store, or no runtime.
    pub fn start(stores: Vec<R>, max_keys: usize, time: TimeOf) -> Shared<R> {
        Shared::start_with(stores, max_keys, time, Pace::new())
    }

    fn start_with(stores: Vec<R>, max_keys: usize, time: TimeOf, pace: Pace) -> Shared<R> {
        assert!(!stores.is_empty(), "there is a store to share");
        let secret = RandomState::new();
        let stores = stores.into_iter().map(|store| Asked { store, ahead: AtomicI64::new(0) });
        let inner = Arc::new(Inner {
            stores: stores.collect(),
            local: MemoryStore::new(max_keys),
            instance: RandomState::new().hash_one(0),
            live: AtomicU32::new(1),
            least_live: AtomicU32::new(1),
            time,
            secret,
            refusals: Refusals::new(),
            leases: Leases::new(),
            sync: SyncBook::new(),
            owed: Owed::default(),
            shares: Shares::default(),
            counts: Counts::default(),
            pace,
            runtime: Handle::current(),
            wake: Arc::new(Notify::new()),
        });
        inner.runtime.spawn(work(Arc::downgrade(&inner), Arc::clone(&inner.wake)));
        Shared { inner }
    }

    /// How many instances there are, this one included: each one's share when the store fails.
    pub fn set_live(&self, instances: u32) {
        self.inner.live.store(instances.max(1), Ordering::Relaxed);
    }

    /// How many instances there are at least, however few were heard of: those that start while the
    /// store is down hear of nobody, and each of them would admit the whole limit.
    pub fn set_least_live(&self, instances: u32) {
        self.inner.least_live.store(instances.max(1), Ordering::Relaxed);
    }

    /// The stores, the first first.
    pub fn stores(&self) -> impl Iterator<Item = &R> {
        self.inner.stores.iter().map(|asked| &asked.store)
    }

    /// What this instance knows by itself.
    pub fn local(&self) -> &MemoryStore {
        &self.inner.local
    }

    /// Asks the store again, whomever it has refused: rules or overrides have changed.
    pub fn forget_refusals(&self) {
        self.inner.refusals.forget_all();
    }

    /// Figures for metrics.
    pub fn stats(&self) -> SharedStats {
        self.inner.stats()
    }

    /// Gives back what is borrowed and tells what is to be told: before the program ends.
    pub async fn settle(&self) {
        self.inner.return_leases(true).await;
        self.inner.tell_synced(true).await;
        self.inner.tell_owed().await;
    }
}

/// What happens in the background, until nobody shares any more.
async fn work<R: Remote>(inner: std::sync::Weak<Inner<R>>, wake: Arc<Notify>) {
    loop {
        let Some(shared) = inner.upgrade() else { return };
        shared.return_leases(false).await;
        shared.tell_synced(false).await;
        shared.tell_owed().await;
        let idle = shared.leases.is_empty() && shared.sync.is_empty() && shared.owed.is_empty();
        drop(shared);
        match idle {
            true => wake.notified().await,
            false => tokio::time::sleep(TICK).await,
        }
    }
}

impl<R> Drop for Inner<R> {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

impl<R: Remote> Inner<R> {
    /// Names a key under a limit and its numbers in one of the stores. Made with a secret, so that nobody can choose keys
    /// that meet.
    #[inline]
    fn tag(&self, check: &Check<'_>) -> u64 {
        let limit = check.limit();
        let store = u64::from(check.its_terms().store);
        let numbers = match check.its_terms().consistency {
            // What the store was not told is of the key, whatever numbers its limit has now.
            Consistency::LocalSync { .. } => store << 56,
            _ => limit.units().rotate_left(32) ^ limit.capacity() ^ store << 56,
        };
        let subject = self.secret.hash_one(check.key().as_bytes());
        (subject ^ limit.id() ^ numbers.wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1)
    }

    /// The store that a check is about.
    #[inline]
    fn asked(&self, check: &Check<'_>) -> &Asked<R> {
        self.store_of(check.its_terms().store)
    }

    /// The store of a number; one that no store has is the first's.
    #[inline]
    fn store_of(&self, number: u8) -> &Asked<R> {
        self.stores.get(usize::from(number)).unwrap_or(&self.stores[0])
    }

    /// The answer to a usual question that needs no store.
    #[inline]
    fn at_once(self: &Arc<Self>, check: &Check<'_>, asked_at: Now<'_>) -> Option<Outcome> {
        let now = asked_at.instant();
        let usual = check.what() == Act::Take && check.units() > 0 && !check.key().is_empty();
        if !usual || check.is_shadow() || check.is_at_once() || self.time == TimeOf::Caller {
            return None;
        }
        if self.any_block(now) && self.blocked(check.key(), now).is_some() {
            return None;
        }
        let tag = self.tag(check);
        match check.its_terms().consistency {
            Consistency::Strict => {}
            Consistency::Leased { .. } => {
                if let Some(outcome) = self.spend_lease(check, tag, now) {
                    return Some(outcome);
                }
            }
            Consistency::LocalSync { .. } => return self.decide_alone(check, tag, asked_at),
        }
        self.recall(check, tag, asked_at)
    }

    /// The refusal of a take that was refused a moment ago. What never fits is for whoever says so, and
    /// where refusals count, each is charged.
    #[inline]
    fn recall(&self, check: &Check<'_>, tag: u64, asked_at: Now<'_>) -> Option<Outcome> {
        let now = asked_at.instant();
        let cost = if check.what() == Act::UpTo { 1 } else { check.units() };
        if check.counts_denied() || cost > check.limit().capacity() {
            return None;
        }
        self.refusals.recall(tag, cost, now, || {
            let known = self.glance(check, asked_at);
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

    fn live(&self) -> u32 {
        self.live.load(Ordering::Relaxed).max(self.least_live.load(Ordering::Relaxed))
    }
}

impl<R> Asked<R> {
    /// An instant of the asker by the clock of the store, as far as that is known.
    #[inline]
    fn clock(&self, now: Micros) -> Micros {
        Micros::new(now.as_u64().saturating_add_signed(self.ahead.load(Ordering::Relaxed)))
    }

    /// The same of a reading of the asker's clock.
    #[inline]
    fn clock_now<'n>(&self, now: Now<'n>) -> Now<'n> {
        now.ahead(self.ahead.load(Ordering::Relaxed))
    }

    /// Its clock showed `at` when that of the asker showed `answered` or a little less. So what is taken
    /// for its clock is never ahead of it: waits that are counted from that are not too short.
    fn saw(&self, at: Micros, answered: Micros) {
        self.ahead.store(at.as_u64().wrapping_sub(answered.as_u64()) as i64, Ordering::Relaxed);
    }
}

impl<R: Remote> Asked<R> {
    /// The moment of a question, and of others that belong to it: however many they are, all of them have
    /// one deadline.
    fn when(&self, now: Now<'_>) -> When {
        let began = now.began().map_or_else(Instant::now, Instant::from_std);
        When { now: now.instant(), deadline: began + self.store.timeout() }
    }
}

impl<R: Remote> Store for Shared<R> {
    type Error = Infallible;

    #[inline]
    async fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Result<Decision, Infallible> {
        if let [check] = checks
            && let Some(outcome) = self.inner.at_once(check, now)
        {
            outcomes[0] = outcome;
            return Ok(Decision::of_outcomes(checks, &outcomes[..1], now.instant()));
        }
        // Apart and in a box: what is answered at once does not carry it around.
        Ok(Box::pin(self.inner.decide(checks, now, outcomes)).await)
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
        inner.refusals.forget(tag);
        inner.leases.drop_lease(tag);
        inner.sync.drop_untold(tag);
        let asked = inner.asked(check);
        let here = inner.local.reset(check.limit(), check.key(), asked.clock(now));
        let reset = asked.store.reset(check, now).await;
        // Whoever was refused meanwhile was refused for what is forgotten now.
        inner.refusals.forget(tag);
        Ok(reset.unwrap_or(here))
    }

    async fn balance(&self, check: &Check<'_>, now: Micros) -> Result<i64, Infallible> {
        let inner = &self.inner;
        let asked = inner.asked(check);
        // As decisions are made then: by the share of this instance.
        let here = || {
            let share = inner.shares.of(check.limit(), inner.live());
            inner.local.balance(&share, check.key(), asked.clock(now))
        };
        Ok(asked.store.balance(check, now).await.unwrap_or_else(|_| here()))
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
}

impl<R: Remote> Inner<R> {
    /// Gives back where it was charged, and in the copy of that here.
    async fn refund(
        self: &Arc<Self>,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        asked_at: Now<'_>,
    ) {
        let now = asked_at.instant();
        let tag = self.tag(check);
        self.refusals.forget(tag);
        let charged_by = receipt.as_ref().map(Receipt::decided_by);
        let check = match charged_by {
            // The store has never heard of it.
            Some(DecidedBy::Local) => {
                let share = self.shares.of(check.limit(), self.live());
                let (key, at) = (check.key(), self.asked(check).clock(now));
                return self.local.refund(&share, key, receipt, check.units(), at);
            }
            Some(DecidedBy::Memory | DecidedBy::Overflow) => {
                match self.refund_alone(check, tag, receipt.as_ref(), now) {
                    0 => return,
                    told => check.cost(told),
                }
            }
            _ => {
                self.refund_copy(check, receipt.as_ref(), now);
                *check
            }
        };
        let debt = self.refund_debt(&check, receipt.as_ref());
        let when = self.asked(&check).when(asked_at);
        self.tell(debt, when).await;
    }

    /// Gives back in the table of this process what the store is about to. Before it: an answer of
    /// the store that comes meanwhile says how things are.
    fn refund_copy(&self, check: &Check<'_>, receipt: Option<&Receipt>, now: Micros) {
        let (receipt, at) = (receipt.map(copy_of), self.asked(check).clock(now));
        self.local.refund(check.limit(), check.key(), receipt, check.units(), at);
    }
}
