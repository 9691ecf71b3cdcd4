//! Stores: they decide a list of checks atomically. All are charged or none is.
//!
//! [`MemoryStore`] answers at once and cannot fail. A store that several processes share answers
//! later, or fails. [`Store`] is what both have in common, so that the code that calls them is
//! written once.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::slice;

use crate::check::{Check, Key};
use crate::clock::Now;
use crate::decision::{Decision, Outcome, Receipt};
use crate::time::{Micros, Wait};

pub mod breaker;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
/// Joins of futures, for the crates that wait for stores.
#[doc(hidden)]
pub mod join;
pub mod memory;
pub mod stored_state;

mod all_or_none;
mod carried_state;
mod detached_check;
mod either;
mod inspected_states;
mod one_check;
mod request_list;

pub use detached_check::{DetachedCheck, OwnedCheck};
pub use either::Either;
pub use inspected_states::{InspectedState, InspectedStates};
pub use memory::MemoryStore;
pub use request_list::RequestList;

/// A place where states are kept and checks are decided. `now` is the caller's clock; a shared store
/// may use its own. A store that decides in this process reads the clock [again](Now::again) if a state
/// is far ahead of `now`, before it concludes that the clock went back.
pub trait Store: Send + Sync {
    /// The reason why there is no answer. A refusal is an answer and never an error.
    type Error;

    /// Decides several checks as one request: all pass and are charged, or none is charged.
    /// `outcomes`, which is as long as `checks`, receives the outcome of each limit, in order.
    fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> impl Future<Output = Result<Decision, Self::Error>> + Send;

    /// Decides like [`Store::decide_each`], if that needs no waiting; otherwise `None`, and nothing is
    /// charged. A store that [answers at once](Store::answers_at_once) always decides here: a call without a
    /// future costs a fraction of one with it.
    #[inline]
    fn decide_at_once(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Option<Decision> {
        let _ = (checks, now, outcomes);
        None
    }

    /// Decides many requests, as if in order at one instant. `outcomes`, which is as long as the list of
    /// checks, receives the outcome of each limit; `decisions` is emptied and filled in the order of the
    /// requests. A store that can look up many keys at once, or send many requests together, does so.
    fn decide_requests(
        &self,
        requests: RequestList<'_, '_>,
        now: Now<'_>,
        outcomes: &mut [Outcome],
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send {
        async move {
            decisions.clear();
            for range in requests.ranges() {
                let (checks, outcomes) = (&requests.checks()[range.clone()], &mut outcomes[range]);
                decisions.push(self.decide_each(checks, now, outcomes).await?);
            }
            Ok(())
        }
    }

    /// Decides many requests of one check each, as if in order at one instant. `decisions` is emptied
    /// and filled in the same order. A store that can look up many keys at once does so.
    /// In a remote store, a request that takes several calls may be overtaken by later ones of its key.
    fn decide_batch(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send {
        async move {
            decisions.clear();
            for check in checks {
                let mut outcome = [Outcome::default()];
                decisions.push(self.decide_each(slice::from_ref(check), now, &mut outcome).await?);
            }
            Ok(())
        }
    }

    /// Decides a check about which nobody waits, and those that follow from its decision. Returns false if that is not
    /// done: a store that has to be waited for needs an implementation of its own, and a bound on such checks. The
    /// answers go to nobody, so what they charge stays, also if the client of the request leaves.
    fn decide_detached(&self, check: DetachedCheck, now: Now<'_>) -> bool {
        let mut next = Some(check);
        while let Some((check, then)) = next.map(DetachedCheck::into_parts) {
            let outcomes = &mut [Outcome::default()];
            let Some(decision) = self.decide_at_once(&[check.check()], now, outcomes) else {
                return false;
            };
            next = then(decision);
        }
        true
    }

    /// Gives back up to the check's cost of the charge that `receipt` stands for; without a receipt, as
    /// if charged now.
    fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Now<'_>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Drops what a key has used of a limit. Returns true if there was anything.
    fn reset(
        &self,
        check: &Check<'_>,
        now: Micros,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Units left, rounded down; negative when in debt.
    fn balance(
        &self,
        check: &Check<'_>,
        now: Micros,
    ) -> impl Future<Output = Result<i64, Self::Error>> + Send;

    /// Reads the states that a request of at most [`MAX_LIMITS`](crate::decision::MAX_LIMITS) checks would be
    /// decided on, for explanations; changes nothing. Blocks are not part of them: see [`Store::blocked`].
    /// `None`: this store does not show them, which is what a store says that does not implement this.
    fn inspect(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
    ) -> impl Future<Output = Result<Option<InspectedStates>, Self::Error>> + Send {
        let _ = (checks, now);
        async { Ok(None) }
    }

    /// Refuses all requests of a key until an instant; a later end stays. Returns false if there is no
    /// room for the block.
    fn block(
        &self,
        key: Key<'_>,
        until: Micros,
        now: Micros,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Lifts a block. Returns true if there was one.
    fn unblock(
        &self,
        key: Key<'_>,
        now: Micros,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Time for which a key is still blocked, as far as this process knows: nothing is sent to a remote
    /// store.
    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait>;

    /// Returns false if certainly no key is blocked, so that no key has to be built for
    /// [`Store::blocked`].
    fn any_block(&self, now: Micros) -> bool;

    /// Returns true if every future of this store is ready when it is first polled, because it
    /// never waits.
    fn answers_at_once(&self) -> bool {
        false
    }

    /// Drops everything that was derived from limits, such as remembered refusals. Called when rules or
    /// overrides have changed.
    fn limits_changed(&self) {}
}

impl Store for MemoryStore {
    type Error = Infallible;

    #[inline]
    fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> impl Future<Output = Result<Decision, Infallible>> + Send {
        ready(Ok(self.decide_request(checks, now, outcomes)))
    }

    #[inline]
    fn decide_at_once(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Option<Decision> {
        Some(self.decide_request(checks, now, outcomes))
    }

    #[inline]
    fn decide_requests(
        &self,
        requests: RequestList<'_, '_>,
        now: Now<'_>,
        outcomes: &mut [Outcome],
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<(), Infallible>> + Send {
        MemoryStore::decide_requests(self, requests, now, outcomes, decisions);
        ready(Ok(()))
    }

    #[inline]
    fn decide_batch(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<(), Infallible>> + Send {
        match checks {
            // Most batches of a protocol are one request and need no prefetching.
            [check] => {
                decisions.clear();
                decisions.push(self.decide_one(check, now));
            }
            _ => MemoryStore::decide_batch(self, checks, now, decisions),
        }
        ready(Ok(()))
    }

    fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Now<'_>,
    ) -> impl Future<Output = Result<(), Infallible>> + Send {
        MemoryStore::refund(self, check.limit, check.key, receipt, check.cost, now.instant());
        ready(Ok(()))
    }

    fn reset(
        &self,
        check: &Check<'_>,
        now: Micros,
    ) -> impl Future<Output = Result<bool, Infallible>> + Send {
        ready(Ok(MemoryStore::reset(self, check.limit, check.key, now)))
    }

    fn balance(
        &self,
        check: &Check<'_>,
        now: Micros,
    ) -> impl Future<Output = Result<i64, Infallible>> + Send {
        ready(Ok(MemoryStore::balance(self, check.limit, check.key, now)))
    }

    fn inspect(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
    ) -> impl Future<Output = Result<Option<InspectedStates>, Infallible>> + Send {
        ready(Ok(MemoryStore::inspect(self, checks, now)))
    }

    fn block(
        &self,
        key: Key<'_>,
        until: Micros,
        now: Micros,
    ) -> impl Future<Output = Result<bool, Infallible>> + Send {
        ready(Ok(MemoryStore::block(self, key, until, now)))
    }

    fn unblock(
        &self,
        key: Key<'_>,
        now: Micros,
    ) -> impl Future<Output = Result<bool, Infallible>> + Send {
        ready(Ok(MemoryStore::unblock(self, key, now)))
    }

    #[inline]
    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        MemoryStore::blocked(self, key, now)
    }

    #[inline]
    fn any_block(&self, now: Micros) -> bool {
        MemoryStore::any_block(self, now)
    }

    #[inline]
    fn answers_at_once(&self) -> bool {
        true
    }
}
