//! Stores made of other stores: [`Either`] of two kinds, and an `Arc` of one.

use std::future::Future;
use std::sync::Arc;

use super::{DetachedCheck, InspectedStates, RequestList, Store};
use crate::check::{Check, Key};
use crate::clock::Now;
use crate::decision::{Decision, Outcome, Receipt};
use crate::time::{Micros, Wait};

/// One of two kinds of store, chosen when a program starts.
///
/// ```
/// use tollgate::{Either, MemoryStore};
///
/// // A program that also uses a shared store names it as the second kind.
/// let store: Either<MemoryStore, MemoryStore> = Either::Left(MemoryStore::new(1_000));
/// assert!(tollgate::Store::answers_at_once(&store));
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Either<A, B> {
    /// A store of the first kind.
    Left(A),
    /// A store of the second kind.
    Right(B),
}

impl<A: Store, B: Store<Error = A::Error>> Store for Either<A, B> {
    type Error = A::Error;

    #[inline]
    async fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Result<Decision, A::Error> {
        match self {
            Either::Left(store) => store.decide_each(checks, now, outcomes).await,
            Either::Right(store) => store.decide_each(checks, now, outcomes).await,
        }
    }

    #[inline]
    fn decide_at_once(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Option<Decision> {
        match self {
            Either::Left(store) => store.decide_at_once(checks, now, outcomes),
            Either::Right(store) => store.decide_at_once(checks, now, outcomes),
        }
    }

    async fn decide_requests(
        &self,
        requests: RequestList<'_, '_>,
        now: Now<'_>,
        outcomes: &mut [Outcome],
        decisions: &mut Vec<Decision>,
    ) -> Result<(), A::Error> {
        match self {
            Either::Left(store) => store.decide_requests(requests, now, outcomes, decisions).await,
            Either::Right(store) => store.decide_requests(requests, now, outcomes, decisions).await,
        }
    }

    #[inline]
    async fn decide_batch(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), A::Error> {
        match self {
            Either::Left(store) => store.decide_batch(checks, now, decisions).await,
            Either::Right(store) => store.decide_batch(checks, now, decisions).await,
        }
    }

    fn decide_detached(&self, check: DetachedCheck, now: Now<'_>) -> bool {
        match self {
            Either::Left(store) => store.decide_detached(check, now),
            Either::Right(store) => store.decide_detached(check, now),
        }
    }

    async fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Now<'_>,
    ) -> Result<(), A::Error> {
        match self {
            Either::Left(store) => store.refund(check, receipt, now).await,
            Either::Right(store) => store.refund(check, receipt, now).await,
        }
    }

    async fn reset(&self, check: &Check<'_>, now: Micros) -> Result<bool, A::Error> {
        match self {
            Either::Left(store) => store.reset(check, now).await,
            Either::Right(store) => store.reset(check, now).await,
        }
    }

    async fn balance(&self, check: &Check<'_>, now: Micros) -> Result<i64, A::Error> {
        match self {
            Either::Left(store) => store.balance(check, now).await,
            Either::Right(store) => store.balance(check, now).await,
        }
    }

    async fn inspect(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
    ) -> Result<Option<InspectedStates>, A::Error> {
        match self {
            Either::Left(store) => store.inspect(checks, now).await,
            Either::Right(store) => store.inspect(checks, now).await,
        }
    }

    async fn block(&self, key: Key<'_>, until: Micros, now: Micros) -> Result<bool, A::Error> {
        match self {
            Either::Left(store) => store.block(key, until, now).await,
            Either::Right(store) => store.block(key, until, now).await,
        }
    }

    async fn unblock(&self, key: Key<'_>, now: Micros) -> Result<bool, A::Error> {
        match self {
            Either::Left(store) => store.unblock(key, now).await,
            Either::Right(store) => store.unblock(key, now).await,
        }
    }

    #[inline]
    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        match self {
            Either::Left(store) => store.blocked(key, now),
            Either::Right(store) => store.blocked(key, now),
        }
    }

    #[inline]
    fn any_block(&self, now: Micros) -> bool {
        match self {
            Either::Left(store) => store.any_block(now),
            Either::Right(store) => store.any_block(now),
        }
    }

    #[inline]
    fn answers_at_once(&self) -> bool {
        match self {
            Either::Left(store) => store.answers_at_once(),
            Either::Right(store) => store.answers_at_once(),
        }
    }

    fn limits_changed(&self) {
        match self {
            Either::Left(store) => store.limits_changed(),
            Either::Right(store) => store.limits_changed(),
        }
    }
}

/// A store that several parts of a program own together.
impl<S: Store> Store for Arc<S> {
    type Error = S::Error;

    fn decide_detached(&self, check: DetachedCheck, now: Now<'_>) -> bool {
        (**self).decide_detached(check, now)
    }

    #[inline]
    fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> impl Future<Output = Result<Decision, S::Error>> + Send {
        (**self).decide_each(checks, now, outcomes)
    }

    #[inline]
    fn decide_at_once(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Option<Decision> {
        (**self).decide_at_once(checks, now, outcomes)
    }

    fn decide_requests(
        &self,
        requests: RequestList<'_, '_>,
        now: Now<'_>,
        outcomes: &mut [Outcome],
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<(), S::Error>> + Send {
        (**self).decide_requests(requests, now, outcomes, decisions)
    }

    #[inline]
    fn decide_batch(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<(), S::Error>> + Send {
        (**self).decide_batch(checks, now, decisions)
    }

    fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Now<'_>,
    ) -> impl Future<Output = Result<(), S::Error>> + Send {
        (**self).refund(check, receipt, now)
    }

    fn reset(
        &self,
        check: &Check<'_>,
        now: Micros,
    ) -> impl Future<Output = Result<bool, S::Error>> + Send {
        (**self).reset(check, now)
    }

    fn inspect(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
    ) -> impl Future<Output = Result<Option<InspectedStates>, S::Error>> + Send {
        (**self).inspect(checks, now)
    }

    fn balance(
        &self,
        check: &Check<'_>,
        now: Micros,
    ) -> impl Future<Output = Result<i64, S::Error>> + Send {
        (**self).balance(check, now)
    }

    fn block(
        &self,
        key: Key<'_>,
        until: Micros,
        now: Micros,
    ) -> impl Future<Output = Result<bool, S::Error>> + Send {
        (**self).block(key, until, now)
    }

    fn unblock(
        &self,
        key: Key<'_>,
        now: Micros,
    ) -> impl Future<Output = Result<bool, S::Error>> + Send {
        (**self).unblock(key, now)
    }

    #[inline]
    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        (**self).blocked(key, now)
    }

    #[inline]
    fn any_block(&self, now: Micros) -> bool {
        (**self).any_block(now)
    }

    #[inline]
    fn answers_at_once(&self) -> bool {
        (**self).answers_at_once()
    }

    fn limits_changed(&self) {
        (**self).limits_changed();
    }
}
