//! `DecisionCall`: one call that asks a store for a decision.
//!
//! It owns what it asks about, so that it is finished even if its caller stops waiting. Nobody is served then for what the
//! store charges, and it is given back. Two kinds of charges stay: those of work that has happened, and those of limits that
//! count every judged request.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tollgate::store::OwnedCheck;
use tollgate::{Act, Check, Micros, Now, Outcome, Receipt};

use crate::remote_store::{AnswerStates, CallTiming, RemoteStore};

use super::{ClockedStore, SharedStoreInner};

/// The most calls without a caller at a time. One more is dropped with its caller: its charges stay if the store has made
/// them, and count as lost refunds. Each call ends at the timeout of its store, and a store takes few at once: a node of
/// Redis 4,096 of all callers together.
pub(super) const ABANDONED_CALLS_MAX: usize = 8_192;

/// The answer of a store, and copies of the checks that it is about.
pub(super) struct RemoteAnswer<E> {
    checks: Vec<OwnedCheck>,
    pub(super) result: Result<(), E>,
    /// The outcome of each check.
    pub(super) outcomes: Vec<Outcome>,
    pub(super) seen: AnswerStates,
}

/// A call on its way. Until its caller leaves it runs in the caller's task, so that the calls of one caller keep their
/// order.
pub(super) struct DecisionCall<R: RemoteStore> {
    inner: Arc<SharedStoreInner<R>>,
    now: Micros,
    /// True if it charges for work that has happened. It is finished in any case.
    is_forced: bool,
    /// `None` once it is answered.
    call: Option<PendingRemoteAnswer<R::Error>>,
}

type PendingRemoteAnswer<E> = Pin<Box<dyn Future<Output = RemoteAnswer<E>> + Send>>;

impl<R: RemoteStore> SharedStoreInner<R> {
    /// Asks the store of a number about checks, of which there is at least one.
    pub(super) fn begin_decision(
        self: &Arc<Self>,
        store: u8,
        checks: &[Check<'_>],
        when: CallTiming,
    ) -> DecisionCall<R> {
        let inner = Arc::clone(self);
        let is_forced = checks.iter().any(|check| check.requested_act() == Act::Force);
        let checks: Vec<OwnedCheck> = checks.iter().map(OwnedCheck::of).collect();
        let call = Box::pin(async move {
            let ClockedStore { store, .. } = inner.store_by_number(store);
            let borrowed: Vec<Check<'_>> = checks.iter().map(OwnedCheck::check).collect();
            let mut outcomes = vec![Outcome::default(); checks.len()];
            let mut seen = AnswerStates::default();
            let result = store.decide_with_states(&borrowed, when, &mut outcomes, &mut seen).await;
            drop(borrowed);
            RemoteAnswer { checks, result, outcomes, seen }
        });
        DecisionCall { inner: Arc::clone(self), now: when.now, is_forced, call: Some(call) }
    }

    /// Gives back the charges of an answer that nobody waits for.
    async fn refuse_abandoned(self: &Arc<Self>, reply: RemoteAnswer<R::Error>, now: Micros) {
        let RemoteAnswer { checks, result, outcomes, seen } = reply;
        let checks: Vec<Check<'_>> = checks.iter().map(OwnedCheck::check).collect();
        if let Err(error) = result {
            return self.keep_unsent_work(&checks, now, &error);
        }
        let is_taken = |check: &Check<'_>| {
            matches!(check.requested_act(), Act::Take | Act::UpTo) && !check.counts_denied()
        };
        let charged =
            checks.iter().zip(&outcomes).enumerate().filter(|(place, (check, outcome))| {
                let is_answered = seen.failed_checks >> place & 1 == 0;
                is_answered && outcome.charged > 0 && is_taken(check)
            });
        let charged = charged.map(|(place, (_, outcome))| (place, outcome.receipt()));
        let to_refund: Vec<(usize, Receipt)> = charged.chain(seen.to_refund).collect();
        for (place, receipt) in to_refund {
            let check = checks[place].cost(receipt.granted());
            let when = self.store_for(&check).call_timing(Now::at(now));
            self.send_change(self.pending_refund(&check, Some(&receipt)), when).await;
        }
    }

    /// Keeps charges of work that has happened, which the store did not take. Nothing could have refused them.
    pub(super) fn keep_unsent_work(&self, checks: &[Check<'_>], now: Micros, error: &R::Error) {
        if checks.iter().all(|check| check.requested_act() == Act::Force) {
            checks.iter().for_each(|check| self.keep_unsent_forced(check, now, error));
        }
    }
}

impl<R: RemoteStore> Future for DecisionCall<R> {
    type Output = RemoteAnswer<R::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let call = self.call.as_mut().expect("it is polled until it is answered");
        let polled = call.as_mut().poll(context);
        if polled.is_ready() {
            self.call = None;
        }
        polled
    }
}

impl<R: RemoteStore> Drop for DecisionCall<R> {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        if self.inner.runtime.count() >= ABANDONED_CALLS_MAX && !self.is_forced {
            return self.inner.pending_changes.count_lost_refund();
        }
        let (inner, now) = (Arc::clone(&self.inner), self.now);
        self.inner.runtime.spawn(async move {
            let reply = call.await;
            inner.refuse_abandoned(reply, now).await;
        });
    }
}
