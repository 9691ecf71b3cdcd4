//! Stand-in: `RedisStore` as a `Store` and a `Remote`.

use tollgate::algorithm::State;
use tollgate::{Check, Decision, Key, Micros, Outcome, Receipt, Store, Wait};

use crate::error::StoreError;
use crate::remote::{Lend, Lent, Remote, Seen};
use crate::store::RedisStore;

impl Store for RedisStore {
    type Error = StoreError;

    async fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Micros,
        outcomes: &mut [Outcome],
    ) -> Result<Decision, StoreError> {
        RedisStore::decide_each(self, checks, now, outcomes).await
    }

    async fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Micros,
    ) -> Result<(), StoreError> {
        RedisStore::refund(self, check.limit(), check.key(), receipt, check.units(), now).await
    }

    async fn reset(&self, check: &Check<'_>, _now: Micros) -> Result<bool, StoreError> {
        RedisStore::reset(self, check.limit(), check.key()).await
    }

    async fn balance(&self, check: &Check<'_>, now: Micros) -> Result<i64, StoreError> {
        RedisStore::balance(self, check.limit(), check.key(), now).await
    }

    async fn block(&self, key: Key<'_>, until: Micros, now: Micros) -> Result<bool, StoreError> {
        Ok(self.block_key(key, until, now))
    }

    async fn unblock(&self, key: Key<'_>, now: Micros) -> Result<bool, StoreError> {
        Ok(self.unblock_key(key, now))
    }

    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        self.key_blocked(key, now)
    }

    #[inline]
    fn any_block(&self, now: Micros) -> bool {
        self.any_key_blocked(now)
    }
}

impl Remote for RedisStore {
    async fn decide_seen(
        &self,
        checks: &[Check<'_>],
        now: Micros,
        outcomes: &mut [Outcome],
        seen: &mut Seen,
    ) -> Result<Decision, StoreError> {
        let mut states: Vec<State> = Vec::new();
        let tell = |_: &Check<'_>, state: &State| states.push(state.clone());
        let decision = self.decide_telling(checks, now, outcomes, tell).await?;
        seen.at = decision.at();
        seen.states.clear();
        seen.states.extend(states);
        Ok(decision)
    }

    async fn lend(&self, _check: &Check<'_>, _lend: Lend) -> Result<Lent, StoreError> {
        Ok(Lent::default())
    }
}
