//! A store that has to be waited for: every answer takes two polls. Its futures are large, like those of a
//! store behind a network.

use std::convert::Infallible;
use std::future::poll_fn;
use std::hint::black_box;
use std::task::Poll;

use tollgate::store::DetachedCheck;
use tollgate::{Check, Decision, Key, MemoryStore, Micros, Now, Outcome, Receipt, Store, Wait};

#[derive(Debug)]
pub(crate) struct YieldingStore(MemoryStore);

impl YieldingStore {
    pub(crate) fn new(max_keys: usize) -> YieldingStore {
        YieldingStore(MemoryStore::new(max_keys))
    }
}

/// Waits for one more poll.
async fn travel() {
    let buffer = black_box([0_u8; 4_096]);
    let mut polled = false;
    poll_fn(|_| match std::mem::replace(&mut polled, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
    black_box(&buffer);
}

impl Store for YieldingStore {
    type Error = Infallible;

    async fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Result<Decision, Infallible> {
        travel().await;
        Store::decide_each(&self.0, checks, now, outcomes).await
    }

    fn decide_detached(&self, check: DetachedCheck, now: Now<'_>) -> bool {
        self.0.decide_detached(check, now)
    }

    async fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Now<'_>,
    ) -> Result<(), Infallible> {
        travel().await;
        Store::refund(&self.0, check, receipt, now).await
    }

    async fn reset(&self, check: &Check<'_>, now: Micros) -> Result<bool, Infallible> {
        travel().await;
        Store::reset(&self.0, check, now).await
    }

    async fn balance(&self, check: &Check<'_>, now: Micros) -> Result<i64, Infallible> {
        travel().await;
        Store::balance(&self.0, check, now).await
    }

    async fn block(&self, key: Key<'_>, until: Micros, now: Micros) -> Result<bool, Infallible> {
        travel().await;
        Store::block(&self.0, key, until, now).await
    }

    async fn unblock(&self, key: Key<'_>, now: Micros) -> Result<bool, Infallible> {
        travel().await;
        Store::unblock(&self.0, key, now).await
    }

    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        self.0.blocked(key, now)
    }

    fn any_block(&self, now: Micros) -> bool {
        self.0.any_block(now)
    }
}
