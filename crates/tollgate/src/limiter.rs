//! `Limiter`: a store and a clock, the interface that a program embeds.
//!
//! Every operation reads the clock once, and a second time only if a state is so far ahead of it
//! that the clock may have gone back. [`Limiter::at`] gives the same operations at a given instant,
//! for tests, simulation and replies that must agree on one time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::check::{Act, Check, Key};
use crate::clock::{Clock, Now, SystemClock};
use crate::decision::{Decision, Outcome, Receipt};
use crate::limit::Limit;
use crate::observer::Observer;
use crate::store::MemoryStore;
use crate::store::memory::HashedKey;
use crate::time::{Micros, Wait};
use crate::wait::WaitingLines;

/// Decides which requests may pass. Share it: all methods take `&self`.
///
/// ```
/// use tollgate::{Limit, Limiter};
///
/// let limiter = Limiter::with_capacity(100_000);
/// let limit = Limit::per_minute(100).burst(20).build()?;
///
/// let decision = limiter.check(&limit, "user:42");
/// assert!(decision.allowed());
/// assert_eq!(decision.remaining(), 19);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
///
/// One for the whole process:
///
/// ```
/// use std::sync::LazyLock;
/// use tollgate::{Limit, Limiter};
///
/// static LIMITER: LazyLock<Limiter> = LazyLock::new(|| Limiter::with_capacity(1_000_000));
/// static LOGIN: LazyLock<Limit> = LazyLock::new(|| "5/minute".parse().expect("a valid limit"));
///
/// fn may_log_in(address: &str) -> bool {
///     LIMITER.check(&LOGIN, address).allowed()
/// }
///
/// assert!(may_log_in("192.0.2.1"));
/// ```
pub struct Limiter<S = MemoryStore, C = SystemClock> {
    store: S,
    clock: C,
    observer: Option<Arc<dyn Observer>>,
    pub(crate) waiting_lines: WaitingLines,
}

impl<S: fmt::Debug, C> fmt::Debug for Limiter<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Limiter {
    /// A limiter in memory for `max_keys` keys, on the system's clock. A key is one client under
    /// one limit; about 40 bytes each are allocated now: see [`MemoryStore::new`].
    pub fn with_capacity(max_keys: usize) -> Limiter {
        Limiter::new(MemoryStore::new(max_keys), SystemClock)
    }
}

impl<S, C> Limiter<S, C> {
    /// A limiter of these parts.
    pub fn new(store: S, clock: C) -> Limiter<S, C> {
        Limiter { store, clock, observer: None, waiting_lines: WaitingLines::new() }
    }

    /// Adds an observer, which is called after every decision and after the observers added before
    /// it.
    #[must_use]
    pub fn observed_by(mut self, observer: impl Observer + 'static) -> Limiter<S, C> {
        self.observer = Some(match self.observer {
            None => Arc::new(observer),
            Some(first) => Arc::new((first, observer)),
        });
        self
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }
}

impl<C: Clock> Limiter<MemoryStore, C> {
    /// The same operations at a given instant.
    #[inline]
    pub fn at(&self, now: Micros) -> Moment<'_, C> {
        Moment { limiter: self, instant: now, read: false }
    }

    /// The same operations at the present instant, read once for all of them.
    #[inline]
    pub fn now(&self) -> Moment<'_, C> {
        Moment { limiter: self, instant: self.clock.now(), read: true }
    }

    /// Takes one unit, or refuses.
    #[inline]
    pub fn check<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>) -> Decision {
        self.take(limit, key, 1)
    }

    /// Takes `cost` units at once, or refuses.
    #[inline]
    pub fn take<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        let check = Check { cost, ..Check::new(limit, key.into()) };
        // In this order, so that memory is fetched while the clock is read.
        let located = self.store.hash_and_prefetch(&check);
        self.now().decide_hashed(&check, located)
    }

    /// Answers like [`Limiter::take`], but charges nothing. Its `retry_after` is the wait.
    pub fn peek<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.now().peek(limit, key, cost)
    }

    /// Units that a key has left, rounded down; negative when in debt.
    pub fn balance<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>) -> i64 {
        self.now().balance(limit, key)
    }

    /// Takes as many units as there are, at most `most`; refuses if there are none.
    pub fn take_up_to<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>, most: u64) -> Decision {
        self.now().take_up_to(limit, key, most)
    }

    /// Charges the cost of work that has already been done, into debt if necessary, and even if the
    /// key is blocked.
    pub fn force<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.now().force(limit, key, cost)
    }

    /// Gives back `units` of the charge that `receipt` stands for, or all of it if it is less.
    /// Units that have returned since (a window that is over, a bucket that has refilled) are not
    /// given back again.
    pub fn refund<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>, receipt: Receipt, units: u64) {
        self.now().refund(limit, key, receipt, units);
    }

    /// Gives back `units` without a receipt, as if they had been charged now.
    pub fn grant<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>, units: u64) {
        self.now().grant(limit, key, units);
    }

    /// Takes an estimate now and settles later: see [`Permit`]. `Err` is the refusal.
    pub fn reserve<'a>(
        &'a self,
        limit: &'a Limit,
        key: impl Into<Key<'a>>,
        estimate: u64,
        expires_in: Duration,
    ) -> Result<Permit<'a, C>, Decision> {
        self.now().reserve(limit, key, estimate, expires_in)
    }

    /// Decides several limits as one request: all pass and are charged, or none is charged.
    pub fn decide(&self, checks: &[Check<'_>]) -> Decision {
        self.now().decide(checks)
    }

    /// Decides many requests of one check each, as if in order at one instant. It is faster than
    /// one by one, because the memory of all keys is fetched together. `decisions` is emptied and
    /// filled.
    pub fn decide_batch(&self, checks: &[Check<'_>], decisions: &mut Vec<Decision>) {
        self.now().decide_batch(checks, decisions);
    }

    /// Drops what a key has used of a limit. Returns true if there was anything to drop.
    pub fn reset<'k>(&self, limit: &Limit, key: impl Into<Key<'k>>) -> bool {
        self.now().reset(limit, key)
    }

    /// Refuses all requests of `key`, under any limit, for this long. A longer block stays. Returns
    /// false if the bounded table of blocks is full.
    pub fn block<'k>(&self, key: impl Into<Key<'k>>, duration: Duration) -> bool {
        let now = self.clock.now();
        self.at(now).block(key, now.after(Wait::at_least(duration)))
    }

    /// Lifts a block. Returns true if there was one.
    pub fn unblock<'k>(&self, key: impl Into<Key<'k>>) -> bool {
        self.now().unblock(key)
    }

    /// Time for which `key` is still blocked; `None` if it is not. While no key is blocked, nothing
    /// is looked up.
    ///
    /// ```
    /// use tollgate::{Limiter, Micros, Wait};
    ///
    /// let limiter = Limiter::with_capacity(1_000);
    /// let at = |seconds| limiter.at(Micros::from_secs(seconds));
    /// at(100).block("user:42", Micros::from_secs(160));
    /// assert_eq!(at(110).blocked_for("user:42"), Some(Wait::from_micros(50_000_000)));
    /// assert_eq!(at(160).blocked_for("user:42"), None);
    /// ```
    pub fn blocked_for<'k>(&self, key: impl Into<Key<'k>>) -> Option<Wait> {
        self.now().blocked_for(key)
    }
}

/// A limiter at one instant; made by [`Limiter::at`].
#[derive(Debug)]
pub struct Moment<'a, C = SystemClock> {
    limiter: &'a Limiter<MemoryStore, C>,
    instant: Micros,
    /// True if the instant was read from the limiter's clock, false if it was given by the caller.
    read: bool,
}

impl<C> Clone for Moment<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Moment<'_, C> {}

impl<'a, C: Clock> Moment<'a, C> {
    /// See [`Limiter::check`].
    #[inline]
    pub fn check<'k>(self, limit: &Limit, key: impl Into<Key<'k>>) -> Decision {
        self.take(limit, key, 1)
    }

    /// See [`Limiter::take`].
    #[inline]
    pub fn take<'k>(self, limit: &Limit, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.decide_one(&Check { cost, ..Check::new(limit, key.into()) })
    }

    /// See [`Limiter::peek`].
    pub fn peek<'k>(self, limit: &Limit, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.decide_one(&Check { cost, act: Act::Peek, ..Check::new(limit, key.into()) })
    }

    /// See [`Limiter::balance`].
    pub fn balance<'k>(self, limit: &Limit, key: impl Into<Key<'k>>) -> i64 {
        self.limiter.store.balance(limit, key.into(), self.instant)
    }

    /// See [`Limiter::take_up_to`].
    pub fn take_up_to<'k>(self, limit: &Limit, key: impl Into<Key<'k>>, most: u64) -> Decision {
        self.decide_one(&Check { cost: most, act: Act::UpTo, ..Check::new(limit, key.into()) })
    }

    /// See [`Limiter::force`].
    pub fn force<'k>(self, limit: &Limit, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.decide_one(&Check { cost, act: Act::Force, ..Check::new(limit, key.into()) })
    }

    #[inline]
    fn decide_one(self, check: &Check<'_>) -> Decision {
        self.decide_hashed(check, self.limiter.store.hash_and_prefetch(check))
    }

    #[inline]
    fn decide_hashed(self, check: &Check<'_>, located: HashedKey) -> Decision {
        let decision = self.limiter.store.decide_hashed(check, located, self.now());
        if self.limiter.observer.is_some() {
            self.notify_one(*check, decision);
        }
        decision
    }

    /// Calls the observers. It takes copies, so that a decision without observers can stay in
    /// registers.
    #[cold]
    fn notify_one(self, check: Check<'_>, decision: Decision) {
        self.notify(&[check], &decision);
    }

    /// Books units for a waiter; see [`MemoryStore::book`].
    pub(crate) fn book(self, check: &Check<'_>, deadline: Micros) -> Decision {
        let decision = self.limiter.store.book(check, deadline, self.now());
        self.notify(std::slice::from_ref(check), &decision);
        decision
    }

    /// See [`Limiter::decide`].
    pub fn decide(self, checks: &[Check<'_>]) -> Decision {
        let decision = self.limiter.store.decide_now(checks, self.now());
        self.notify(checks, &decision);
        decision
    }

    /// See [`Limiter::decide`]; `outcomes` receives the outcome of each limit, in order.
    ///
    /// # Panics
    ///
    /// If `outcomes` is shorter than `checks`.
    pub fn decide_each(self, checks: &[Check<'_>], outcomes: &mut [Outcome]) -> Decision {
        let decision = self.limiter.store.decide_each(checks, self.now(), outcomes);
        self.notify(checks, &decision);
        decision
    }

    /// See [`Limiter::decide_batch`].
    pub fn decide_batch(self, checks: &[Check<'_>], decisions: &mut Vec<Decision>) {
        self.limiter.store.decide_batch(checks, self.now(), decisions);
        if self.limiter.observer.is_some() {
            for (check, decision) in checks.iter().zip(decisions) {
                self.notify(std::slice::from_ref(check), decision);
            }
        }
    }

    /// See [`Limiter::refund`].
    pub fn refund<'k>(self, limit: &Limit, key: impl Into<Key<'k>>, receipt: Receipt, units: u64) {
        self.limiter.store.refund(limit, key.into(), Some(receipt), units, self.instant);
    }

    /// See [`Limiter::grant`].
    pub fn grant<'k>(self, limit: &Limit, key: impl Into<Key<'k>>, units: u64) {
        self.limiter.store.refund(limit, key.into(), None, units, self.instant);
    }

    /// See [`Limiter::reserve`].
    pub fn reserve(
        self,
        limit: &'a Limit,
        key: impl Into<Key<'a>>,
        estimate: u64,
        expires_in: Duration,
    ) -> Result<Permit<'a, C>, Decision> {
        let key = key.into();
        let decision = self.take(limit, key, estimate);
        if !decision.allowed() {
            return Err(decision);
        }
        Ok(Permit {
            limiter: self.limiter,
            limit,
            key,
            receipt: Some(decision.receipt()),
            expires: self.instant.after(Wait::at_least(expires_in)),
            decision,
        })
    }

    /// See [`Limiter::reset`].
    pub fn reset<'k>(self, limit: &Limit, key: impl Into<Key<'k>>) -> bool {
        self.limiter.store.reset(limit, key.into(), self.instant)
    }

    /// See [`Limiter::block`]; until an instant.
    pub fn block<'k>(self, key: impl Into<Key<'k>>, until: Micros) -> bool {
        self.limiter.store.block(key.into(), until, self.instant)
    }

    /// See [`Limiter::unblock`].
    pub fn unblock<'k>(self, key: impl Into<Key<'k>>) -> bool {
        self.limiter.store.unblock(key.into(), self.instant)
    }

    /// See [`Limiter::blocked_for`].
    #[inline]
    pub fn blocked_for<'k>(self, key: impl Into<Key<'k>>) -> Option<Wait> {
        self.limiter.store.blocked(key.into(), self.instant)
    }

    /// Returns false if certainly no key is blocked, so that no key has to be built for
    /// [`Moment::blocked_for`].
    #[inline]
    pub fn any_blocked(self) -> bool {
        self.limiter.store.any_block(self.instant)
    }

    /// The instant, with the clock to read again if it was read from the limiter's.
    #[inline]
    pub fn now(self) -> Now<'a> {
        match self.read {
            true => Now::read(self.instant, &self.limiter.clock),
            false => Now::at(self.instant),
        }
    }

    /// The instant.
    #[inline]
    pub fn instant(self) -> Micros {
        self.instant
    }

    fn notify(self, checks: &[Check<'_>], decision: &Decision) {
        if let Some(observer) = &self.limiter.observer {
            observer.decided(checks, decision);
        }
    }
}

/// Units taken on an estimate, to be settled once.
///
/// [`Permit::commit`] with the true cost refunds the excess or forces what was missing. Dropping
/// the permit refunds everything: the work was not done. After its deadline the charge stands, so
/// that a crashed or stuck holder cannot hold units back forever, and neither commit nor drop
/// changes anything. Dropping reads the limiter's clock.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limit, Limiter};
///
/// let limiter = Limiter::with_capacity(1_000);
/// let tokens = Limit::per_day(100_000).build()?;
/// let permit = limiter.reserve(&tokens, "anna", 2_000, Duration::from_secs(60)).unwrap();
/// // … the work turns out to cost less …
/// permit.commit(350);
/// assert_eq!(limiter.peek(&tokens, "anna", 0).remaining(), 99_650);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping a permit at once refunds it"]
pub struct Permit<'a, C: Clock = SystemClock> {
    limiter: &'a Limiter<MemoryStore, C>,
    limit: &'a Limit,
    key: Key<'a>,
    /// The receipt; `None` once settled.
    receipt: Option<Receipt>,
    expires: Micros,
    decision: Decision,
}

impl<C: Clock> Permit<'_, C> {
    /// The decision that granted it.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Settles with the true cost.
    pub fn commit(mut self, actual: u64) {
        let moment = self.limiter.now();
        self.settle(actual, moment);
    }

    /// Settles with the true cost at a given instant.
    pub fn commit_at(mut self, actual: u64, now: Micros) {
        let moment = self.limiter.at(now);
        self.settle(actual, moment);
    }

    fn settle(&mut self, actual: u64, moment: Moment<'_, C>) {
        let Some(receipt) = self.receipt.take() else { return };
        if moment.instant() >= self.expires {
            return;
        }
        let estimate = receipt.granted();
        if actual < estimate {
            moment.refund(self.limit, self.key, receipt, estimate - actual);
        } else if actual > estimate {
            let _ = moment.force(self.limit, self.key, actual - estimate);
        }
    }
}

impl<C: Clock> Drop for Permit<'_, C> {
    fn drop(&mut self) {
        if self.receipt.is_some() {
            let moment = self.limiter.now();
            self.settle(0, moment);
        }
    }
}
