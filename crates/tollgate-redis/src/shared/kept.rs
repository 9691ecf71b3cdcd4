//! A check that outlives its request: for what happens in the background.

use std::sync::Arc;

use tollgate::{Act, Check, Limit, Micros, Outcome, Receipt, Terms};

use crate::remote::{Remote, Seen};

use super::Inner;

/// A check that owns what it is about.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    limit: Limit,
    key: Box<[u8]>,
    units: u64,
    act: Act,
    terms: Terms,
}

impl Kept {
    pub(super) fn of(check: &Check<'_>) -> Kept {
        Kept {
            limit: check.limit().clone(),
            key: check.key().as_bytes().into(),
            units: check.units(),
            act: check.what(),
            terms: check.its_terms(),
        }
    }

    /// Whether it is about a limit of these numbers.
    pub(super) fn is_of(&self, limit: &Limit) -> bool {
        self.limit.fingerprint() == limit.fingerprint()
    }

    pub(super) fn check(&self) -> Check<'_> {
        Check::new(&self.limit, &*self.key).cost(self.units).act(self.act).terms(self.terms)
    }
}

impl<R: Remote> Inner<R> {
    /// Charges for what has happened without waiting for the store, now or when it answers again.
    pub(super) fn soon(self: &Arc<Self>, check: Check<'_>, now: Micros) {
        let (inner, kept) = (Arc::clone(self), Kept::of(&check));
        self.runtime.spawn(async move {
            let check = kept.check();
            let store = &inner.asked(&check).store;
            let mut outcome = [Outcome::default()];
            let mut seen = Seen::default();
            match store.decide_seen(&[check], now, &mut outcome, &mut seen).await {
                Ok(_) => inner.refusals.forget(inner.tag(&check)),
                Err(error) => inner.owe_charge(&check, now, &error),
            }
        });
    }

    /// Gives units back to a store without waiting for it.
    pub(super) fn refund_soon(self: &Arc<Self>, check: Check<'_>, receipt: Receipt, now: Micros) {
        let (inner, kept) = (Arc::clone(self), Kept::of(&check));
        self.runtime
            .spawn(async move { inner.refund_to_store(&kept.check(), Some(receipt), now).await });
    }
}
