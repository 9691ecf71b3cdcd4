//! `SharedLimiter`: a shared store and a clock, the interface that a program embeds.
//!
//! It has the operations of [`tollgate::Limiter`], to be awaited. They cannot fail: while the store is
//! unavailable, the failure policy of each check decides.

use std::fmt;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tollgate::decision::MAX_LIMITS;
use tollgate::{
    Act, Check, Clock, Decision, Key, Limit, Micros, Now, Observer, Outcome, Receipt, Store,
    SystemClock, Wait,
};

use crate::remote_store::RemoteStore;
use crate::shared_store::SharedStore;
use crate::time_source::TimeSource;

/// A limiter whose limits several processes share. All methods take `&self`.
///
/// Methods that take a limit and a key go by the default [`Terms`](tollgate::Terms). A check with other terms is
/// decided by [`SharedLimiter::decide`]. To refund, reset or read it, use [`SharedLimiter::store`] with the same
/// check, because the terms say which store has its state and which part of it is in this process:
///
/// ```
/// use tollgate::{Check, Receipt, Store};
/// use tollgate_shared::{RemoteStore, SharedLimiter};
///
/// async fn refund<R: RemoteStore>(limiter: &SharedLimiter<R>, check: &Check<'_>, receipt: Receipt) {
///     let Ok(()) = limiter.store().refund(check, Some(receipt), limiter.now().now()).await;
/// }
/// ```
///
/// The crate `tollgate-redis` has more examples.
pub struct SharedLimiter<R: RemoteStore, C = SystemClock> {
    store: SharedStore<R>,
    clock: C,
    observer: Option<Arc<dyn Observer>>,
}

impl<R: RemoteStore, C> fmt::Debug for SharedLimiter<R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLimiter").field("stats", &self.store.stats()).finish_non_exhaustive()
    }
}

impl<R: RemoteStore> SharedLimiter<R> {
    /// A limiter on one remote store, whose clock decides. The states of up to `max_keys` keys are
    /// also kept in this process, for when the store is unavailable.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, which runs the background work.
    pub fn start(store: R, max_keys: usize) -> SharedLimiter<R> {
        let store = SharedStore::start(vec![store], max_keys, TimeSource::Server);
        SharedLimiter::new(store, SystemClock)
    }
}

impl<R: RemoteStore, C> SharedLimiter<R, C> {
    /// A limiter of these parts.
    pub fn new(store: SharedStore<R>, clock: C) -> SharedLimiter<R, C> {
        SharedLimiter { store, clock, observer: None }
    }

    /// Tells `observer` of every decision, after those observers it already tells.
    #[must_use]
    pub fn observed_by(mut self, observer: impl Observer + 'static) -> SharedLimiter<R, C> {
        self.observer = Some(match self.observer {
            None => Arc::new(observer),
            Some(first) => Arc::new((first, observer)),
        });
        self
    }

    /// The store.
    pub fn store(&self) -> &SharedStore<R> {
        &self.store
    }

    /// The clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// Returns leased units and sends all changes that wait, those of dropped permits included. Call it
    /// before the program ends.
    pub async fn drain(&self) {
        self.store.drain().await;
    }
}

impl<R: RemoteStore, C: Clock> SharedLimiter<R, C> {
    /// The same operations at an instant of your choosing. Only a store that goes by
    /// [the caller's clock](TimeSource::Caller) decides by it. With another store, the instant only counts for
    /// blocks and for the deadline of a permit, and decisions read the limiter's clock.
    pub fn at(&self, now: Micros) -> SharedMoment<'_, R, C> {
        SharedMoment { limiter: self, instant: now, read: false }
    }

    /// The same operations at this instant, however many there are.
    pub fn now(&self) -> SharedMoment<'_, R, C> {
        SharedMoment { limiter: self, instant: self.clock.now(), read: true }
    }

    /// Takes one unit, or refuses.
    pub async fn check<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>) -> Decision {
        self.now().check(limit, key).await
    }

    /// Takes `cost` units at once, or refuses.
    pub async fn take<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.now().take(limit, key, cost).await
    }

    /// Returns what [`SharedLimiter::take`] would answer; charges nothing. Its `retry_after` is the wait.
    pub async fn peek<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.now().peek(limit, key, cost).await
    }

    /// Units that a key has left, rounded down; negative when in debt. By the default terms only.
    pub async fn balance<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>) -> i64 {
        self.now().balance(limit, key).await
    }

    /// Takes as many units as there are, at most `most`; refuses if there are none.
    pub async fn take_up_to<'k>(
        &self,
        limit: &Limit,
        key: impl Into<Key<'k>>,
        most: u64,
    ) -> Decision {
        self.now().take_up_to(limit, key, most).await
    }

    /// Charges the cost of work that has already happened, if need be into debt, and even if the
    /// key is blocked.
    pub async fn force<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.now().force(limit, key, cost).await
    }

    /// Gives back `units` of what `receipt` says was charged, or all of it if it is less. If the store is
    /// unavailable, the refund waits for it. By the default terms only: see [`SharedLimiter`].
    pub async fn refund<'k>(
        &self,
        limit: &Limit,
        key: impl Into<Key<'k>>,
        receipt: Receipt,
        units: u64,
    ) {
        self.now().refund(limit, key, receipt, units).await;
    }

    /// Gives back `units` for which there is no receipt, as if they had been charged now. By the default
    /// terms only.
    pub async fn grant<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>, units: u64) {
        self.now().grant(limit, key, units).await;
    }

    /// Takes an estimate now and settles later: see [`SharedPermit`]. `Err` is the refusal.
    pub async fn reserve<'a>(
        &'a self,
        limit: &'a Limit,
        key: impl Into<Key<'a>>,
        estimate: u64,
        expires_in: Duration,
    ) -> Result<SharedPermit<'a, R, C>, Decision> {
        self.now().reserve(limit, key, estimate, expires_in).await
    }

    /// Decides several limits as one request: all pass and are charged, or none is charged.
    pub async fn decide(&self, checks: &[Check<'_>]) -> Decision {
        self.now().decide(checks).await
    }

    /// Decides many requests of one check each, as if in order at one instant. Up to
    /// [256](crate::remote_store::BATCH_CALLS_MAX) are sent before the first answer is awaited. `decisions` is
    /// emptied and filled.
    ///
    /// A request that takes two calls may be overtaken by later requests of the same key. In Redis, these are
    /// "up to", and requests that meet changed numbers, a clock that jumped, an unreadable value, a calendar's
    /// next day, or a slot on its way to another node.
    pub async fn decide_batch(&self, checks: &[Check<'_>], decisions: &mut Vec<Decision>) {
        self.now().decide_batch(checks, decisions).await;
    }

    /// Forgets what a key has used of a limit. Returns true if there was anything to forget. By
    /// the default terms only.
    pub async fn reset<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>) -> bool {
        self.now().reset(limit, key).await
    }

    /// Refuses every request of `key`, under all limits, for so long. A longer block
    /// stays. Returns false if the bounded table of blocks is full.
    ///
    /// The block holds in this process. Others get it only if the processes exchange blocks: in Redis, call
    /// `RedisStore::join_instances` in each of them.
    pub async fn block<'k>(&self, key: impl Into<Key<'k>>, duration: Duration) -> bool {
        let now = self.clock.now();
        self.at(now).block(key, now.after(Wait::at_least(duration))).await
    }

    /// Lifts a block. Returns true if there was one. Reaches the processes that [`SharedLimiter::block`] does.
    pub async fn unblock<'k>(&self, key: impl Into<Key<'k>>) -> bool {
        self.now().unblock(key).await
    }

    /// The rest of a key's block; `None` if the key is not blocked. Answers from this process' memory.
    pub fn blocked_for<'k>(&self, key: impl Into<Key<'k>>) -> Option<Wait> {
        self.now().blocked_for(key)
    }
}

/// A shared limiter at one instant; made by [`SharedLimiter::at`].
#[derive(Debug)]
pub struct SharedMoment<'a, R: RemoteStore, C = SystemClock> {
    limiter: &'a SharedLimiter<R, C>,
    instant: Micros,
    /// True if the instant was read from the limiter's clock, and not chosen by the caller.
    read: bool,
}

impl<R: RemoteStore, C> Clone for SharedMoment<'_, R, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: RemoteStore, C> Copy for SharedMoment<'_, R, C> {}

impl<'a, R: RemoteStore, C: Clock> SharedMoment<'a, R, C> {
    /// See [`SharedLimiter::check`].
    pub async fn check<'k>(self, limit: &Limit, key: impl Into<Key<'k>>) -> Decision {
        self.take(limit, key, 1).await
    }

    /// See [`SharedLimiter::take`].
    pub async fn take<'k>(self, limit: &Limit, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.decide(&[Check::new(limit, key.into()).cost(cost)]).await
    }

    /// See [`SharedLimiter::peek`].
    pub async fn peek<'k>(self, limit: &Limit, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.decide(&[Check::new(limit, key.into()).cost(cost).act(Act::Peek)]).await
    }

    /// See [`SharedLimiter::balance`].
    pub async fn balance<'k>(self, limit: &Limit, key: impl Into<Key<'k>>) -> i64 {
        let now = self.now().instant();
        let Ok(units) = self.store().balance(&Check::new(limit, key.into()), now).await;
        units
    }

    /// See [`SharedLimiter::take_up_to`].
    pub async fn take_up_to<'k>(
        self,
        limit: &Limit,
        key: impl Into<Key<'k>>,
        most: u64,
    ) -> Decision {
        self.decide(&[Check::new(limit, key.into()).cost(most).act(Act::UpTo)]).await
    }

    /// See [`SharedLimiter::force`].
    pub async fn force<'k>(self, limit: &Limit, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.decide(&[Check::new(limit, key.into()).cost(cost).act(Act::Force)]).await
    }

    /// See [`SharedLimiter::decide`].
    pub async fn decide(self, checks: &[Check<'_>]) -> Decision {
        if let [_] = checks {
            // The usual request, without the list of outcomes for many.
            return self.decide_each(checks, &mut [Outcome::default()]).await;
        }
        // A request with more limits is refused before any of them has an outcome.
        self.decide_each(checks, &mut [Outcome::default(); MAX_LIMITS]).await
    }

    /// See [`SharedLimiter::decide`]; `outcomes` gets the answer of each limit, in order.
    ///
    /// # Panics
    ///
    /// If `outcomes` is shorter than `checks`.
    pub async fn decide_each(self, checks: &[Check<'_>], outcomes: &mut [Outcome]) -> Decision {
        let Ok(decision) = self.store().decide_each(checks, self.now(), outcomes).await;
        self.notify(checks, &decision);
        decision
    }

    /// See [`SharedLimiter::decide_batch`].
    pub async fn decide_batch(self, checks: &[Check<'_>], decisions: &mut Vec<Decision>) {
        let Ok(()) = self.store().decide_batch(checks, self.now(), decisions).await;
        for (check, decision) in checks.iter().zip(decisions) {
            self.notify(slice::from_ref(check), decision);
        }
    }

    /// See [`SharedLimiter::refund`].
    pub async fn refund<'k>(
        self,
        limit: &Limit,
        key: impl Into<Key<'k>>,
        receipt: Receipt,
        units: u64,
    ) {
        let check = Check::new(limit, key.into()).cost(units);
        let Ok(()) = self.store().refund(&check, Some(receipt), self.now()).await;
    }

    /// See [`SharedLimiter::grant`].
    pub async fn grant<'k>(self, limit: &Limit, key: impl Into<Key<'k>>, units: u64) {
        let check = Check::new(limit, key.into()).cost(units);
        let Ok(()) = self.store().refund(&check, None, self.now()).await;
    }

    /// See [`SharedLimiter::reserve`].
    pub async fn reserve(
        self,
        limit: &'a Limit,
        key: impl Into<Key<'a>>,
        estimate: u64,
        expires_in: Duration,
    ) -> Result<SharedPermit<'a, R, C>, Decision> {
        let key = key.into();
        let decision = self.take(limit, key, estimate).await;
        if !decision.allowed() {
            return Err(decision);
        }
        Ok(SharedPermit {
            limiter: self.limiter,
            limit,
            key,
            receipt: Some(decision.receipt()),
            expires: self.instant.after(Wait::at_least(expires_in)),
            decision,
        })
    }

    /// See [`SharedLimiter::reset`].
    pub async fn reset<'k>(self, limit: &Limit, key: impl Into<Key<'k>>) -> bool {
        let now = self.now().instant();
        let Ok(reset) = self.store().reset(&Check::new(limit, key.into()), now).await;
        reset
    }

    /// See [`SharedLimiter::block`]; until an instant.
    pub async fn block<'k>(self, key: impl Into<Key<'k>>, until: Micros) -> bool {
        let Ok(blocked) = self.store().block(key.into(), until, self.instant).await;
        blocked
    }

    /// See [`SharedLimiter::unblock`].
    pub async fn unblock<'k>(self, key: impl Into<Key<'k>>) -> bool {
        let Ok(unblocked) = self.store().unblock(key.into(), self.instant).await;
        unblocked
    }

    /// See [`SharedLimiter::blocked_for`].
    pub fn blocked_for<'k>(self, key: impl Into<Key<'k>>) -> Option<Wait> {
        self.store().blocked(key.into(), self.instant)
    }

    /// Returns false if certainly no key is blocked.
    pub fn any_blocked(self) -> bool {
        self.store().any_block(self.instant)
    }

    /// The moment by which the store decides: the instant, and the clock to read again if it was read from
    /// the limiter's. A store with its own clock learns from this how far both clocks are apart, so for
    /// such a store a chosen instant is replaced by a reading of the limiter's clock.
    pub fn now(self) -> Now<'a> {
        let clock = &self.limiter.clock;
        match (self.read, self.store().time_source()) {
            (true, _) => Now::read(self.instant, clock),
            (false, TimeSource::Caller) => Now::at(self.instant),
            (false, TimeSource::Server) => Now::live(clock),
        }
    }

    /// The instant.
    pub fn instant(self) -> Micros {
        self.instant
    }

    fn store(self) -> &'a SharedStore<R> {
        &self.limiter.store
    }

    fn notify(self, checks: &[Check<'_>], decision: &Decision) {
        if let Some(observer) = &self.limiter.observer {
            observer.decided(checks, decision);
        }
    }
}

/// Units taken on an estimate, to be settled once.
///
/// [`SharedPermit::commit`] with the true cost refunds what was too much or forces what was too little.
/// Dropping the permit refunds everything, because the work did not happen: in this process at once, in the
/// store in the background; [`SharedLimiter::drain`] waits for it. After its deadline
/// the charge stands, and neither commit nor drop changes anything.
#[derive(Debug)]
#[must_use = "dropping a permit at once refunds it"]
pub struct SharedPermit<'a, R: RemoteStore, C: Clock = SystemClock> {
    limiter: &'a SharedLimiter<R, C>,
    limit: &'a Limit,
    key: Key<'a>,
    /// `None` once settled.
    receipt: Option<Receipt>,
    expires: Micros,
    decision: Decision,
}

impl<R: RemoteStore, C: Clock> SharedPermit<'_, R, C> {
    /// The decision that granted it.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Settles with the true cost.
    pub async fn commit(mut self, actual: u64) {
        let moment = self.limiter.now();
        self.settle(actual, moment).await;
    }

    /// Settles with the true cost, at an instant of your choosing.
    pub async fn commit_at(mut self, actual: u64, now: Micros) {
        let moment = self.limiter.at(now);
        self.settle(actual, moment).await;
    }

    async fn settle(&mut self, actual: u64, moment: SharedMoment<'_, R, C>) {
        let Some(receipt) = self.receipt.take() else { return };
        if moment.instant() >= self.expires {
            return;
        }
        let estimate = receipt.granted();
        if actual < estimate {
            moment.refund(self.limit, self.key, receipt, estimate - actual).await;
        } else if actual > estimate {
            let _ = moment.force(self.limit, self.key, actual - estimate).await;
        }
    }
}

impl<R: RemoteStore, C: Clock> Drop for SharedPermit<'_, R, C> {
    fn drop(&mut self) {
        let Some(receipt) = self.receipt.take().filter(|receipt| receipt.granted() > 0) else {
            return;
        };
        let now = self.limiter.clock.now();
        if now < self.expires {
            self.limiter.store.refund_in_background(self.limit, self.key, receipt, now);
        }
    }
}
