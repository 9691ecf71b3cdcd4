//! Where this server keeps state.

pub(crate) mod open_stores;

use std::convert::Infallible;
use std::sync::Arc;

use open_stores::OpenStores;
use tollgate::{
    Check, Decision, Key, MemoryStore, Micros, Now, Outcome, Receipt, Store, SystemClock, Wait,
};
use tollgate_rules::Caller;

/// Decides by rules, over whichever store this server has.
pub(crate) type ServerGatekeeper = tollgate_rules::Gatekeeper<Arc<ServerStore>, SystemClock>;

/// One caller under one rule of this server.
pub(crate) type ServerCaller<'a> = Caller<'a, Arc<ServerStore>>;

/// Changes to what callers have used, with a confirmation that the store has them.
#[derive(Clone, Debug)]
pub(crate) struct ChangeConfirmer(pub(crate) Arc<ServerStore>);

/// The store of this server.
#[derive(Debug)]
pub(crate) enum ServerStore {
    /// In this process alone.
    Memory(Box<MemoryStore>),
    /// Where other servers find it as well.
    Shared(Box<OpenStores>),
}

impl ServerStore {
    /// The table of this process: the store itself, or what stands in for a shared one.
    pub(crate) fn memory(&self) -> &MemoryStore {
        match self {
            ServerStore::Memory(store) => store,
            ServerStore::Shared(store) => store.shared.local(),
        }
    }

    /// What is shared with other servers, if anything is.
    pub(crate) fn shared(&self) -> Option<&OpenStores> {
        match self {
            ServerStore::Memory(_) => None,
            ServerStore::Shared(store) => Some(store),
        }
    }

    /// Changes so far that did not reach a store.
    fn unreached_changes(&self, store: u8) -> u64 {
        let Some(shared) = self.shared() else { return 0 };
        shared.shared.stores().nth(usize::from(store)).map_or(0, |store| store.stats().unanswered)
    }
}

impl ChangeConfirmer {
    /// Makes a change, and returns true beside its result if the store of the caller's rule has it. A change
    /// of somebody else that did not reach the store at the same moment also makes this false.
    pub(crate) async fn change<T>(
        &self,
        caller: &ServerCaller<'_>,
        change: impl Future<Output = T>,
    ) -> (T, bool) {
        let unreached = || self.0.unreached_changes(caller.rule().terms.store);
        let before = unreached();
        let done = change.await;
        (done, unreached() == before)
    }
}

impl Store for ServerStore {
    type Error = Infallible;

    #[inline]
    async fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Result<Decision, Infallible> {
        match self {
            ServerStore::Memory(store) => Store::decide_each(&**store, checks, now, outcomes).await,
            ServerStore::Shared(store) => store.shared.decide_each(checks, now, outcomes).await,
        }
    }

    #[inline]
    async fn decide_batch(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), Infallible> {
        match self {
            ServerStore::Memory(store) => {
                Store::decide_batch(&**store, checks, now, decisions).await
            }
            ServerStore::Shared(store) => store.shared.decide_batch(checks, now, decisions).await,
        }
    }

    async fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Now<'_>,
    ) -> Result<(), Infallible> {
        match self {
            ServerStore::Memory(store) => Store::refund(&**store, check, receipt, now).await,
            ServerStore::Shared(store) => store.shared.refund(check, receipt, now).await,
        }
    }

    async fn reset(&self, check: &Check<'_>, now: Micros) -> Result<bool, Infallible> {
        match self {
            ServerStore::Memory(store) => Store::reset(&**store, check, now).await,
            ServerStore::Shared(store) => store.shared.reset(check, now).await,
        }
    }

    async fn balance(&self, check: &Check<'_>, now: Micros) -> Result<i64, Infallible> {
        match self {
            ServerStore::Memory(store) => Store::balance(&**store, check, now).await,
            ServerStore::Shared(store) => store.shared.balance(check, now).await,
        }
    }

    async fn block(&self, key: Key<'_>, until: Micros, now: Micros) -> Result<bool, Infallible> {
        match self {
            ServerStore::Memory(store) => Store::block(&**store, key, until, now).await,
            ServerStore::Shared(store) => store.shared.block(key, until, now).await,
        }
    }

    async fn unblock(&self, key: Key<'_>, now: Micros) -> Result<bool, Infallible> {
        match self {
            ServerStore::Memory(store) => Store::unblock(&**store, key, now).await,
            ServerStore::Shared(store) => store.shared.unblock(key, now).await,
        }
    }

    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        match self {
            ServerStore::Memory(store) => store.blocked(key, now),
            ServerStore::Shared(store) => store.shared.blocked(key, now),
        }
    }

    #[inline]
    fn any_block(&self, now: Micros) -> bool {
        match self {
            ServerStore::Memory(store) => store.any_block(now),
            ServerStore::Shared(store) => store.shared.any_block(now),
        }
    }

    #[inline]
    fn answers_at_once(&self) -> bool {
        matches!(self, ServerStore::Memory(_))
    }

    fn limits_changed(&self) {
        if let Some(store) = self.shared() {
            store.shared.limits_changed();
        }
    }
}
