//! The store of this server: one handle for the gatekeeper, which decides, and one view for operators.

pub(crate) mod open_stores;

use std::sync::Arc;

use open_stores::OpenStores;
use tollgate::{Either, MemoryStore, SystemClock};
use tollgate_redis::{RedisStore, SharedStore};
use tollgate_rules::{Caller, Gatekeeper};

use crate::cli::Report;
use crate::settings::ServerSettings;
use crate::snapshot;
use crate::telemetry::Logs;

/// The store as the gatekeeper knows it: the table of this process, or a store shared with other servers.
type DecisionStore = Either<Arc<MemoryStore>, SharedStore<RedisStore>>;

/// Gatekeeper over the store of this server.
pub(crate) type ServerGatekeeper = Gatekeeper<DecisionStore, SystemClock>;

/// One caller under one rule of this server.
pub(crate) type ServerCaller<'a> = Caller<'a, DecisionStore>;

/// Changes to what callers have used, with a confirmation that the store has them.
#[derive(Clone, Debug)]
pub(crate) struct ChangeConfirmer {
    store: Arc<ServerStore>,
}

/// The store as operators see it: figures, table statistics, snapshot.
#[derive(Debug)]
pub(crate) enum ServerStore {
    /// The table of this process.
    Memory(Arc<MemoryStore>),
    /// Stores shared with other servers.
    Shared(Box<OpenStores>),
}

impl ServerStore {
    /// Opens the store of the settings; `shared` are the shared stores that were opened before.
    pub(crate) fn open(
        settings: &ServerSettings,
        shared: Option<OpenStores>,
        logs: &Logs,
    ) -> Result<ServerStore, Report> {
        if let Some(shared) = shared {
            return Ok(ServerStore::Shared(Box::new(shared)));
        }
        let empty = MemoryStore::new(usize::try_from(settings.max_keys).unwrap_or(usize::MAX));
        let store = snapshot::load(empty, settings.snapshot.as_deref(), logs)?;
        Ok(ServerStore::Memory(Arc::new(store)))
    }

    /// The handle for the gatekeeper.
    pub(crate) fn for_decisions(&self) -> DecisionStore {
        match self {
            ServerStore::Memory(store) => Either::Left(store.clone()),
            ServerStore::Shared(store) => Either::Right(store.shared.clone()),
        }
    }

    /// The table of this process: the store itself, or the fallback of a shared one.
    pub(crate) fn memory(&self) -> &MemoryStore {
        match self {
            ServerStore::Memory(store) => store,
            ServerStore::Shared(store) => store.shared.local(),
        }
    }

    /// The shared stores, if this server has any.
    pub(crate) fn shared(&self) -> Option<&OpenStores> {
        match self {
            ServerStore::Memory(_) => None,
            ServerStore::Shared(store) => Some(store),
        }
    }

    /// Number of changes so far that did not reach a store.
    fn unreached_changes(&self, store: u8) -> u64 {
        let Some(shared) = self.shared() else { return 0 };
        shared.shared.stores().nth(usize::from(store)).map_or(0, |store| store.stats().unanswered)
    }
}

impl ChangeConfirmer {
    /// The confirmer of changes in this store.
    pub(crate) fn new(store: Arc<ServerStore>) -> ChangeConfirmer {
        ChangeConfirmer { store }
    }

    /// Makes a change, and returns true beside its result if the store of the caller's rule has it. A change
    /// of somebody else that did not reach the store at the same moment also makes this false.
    pub(crate) async fn change<T>(
        &self,
        caller: &ServerCaller<'_>,
        change: impl Future<Output = T>,
    ) -> (T, bool) {
        let unreached = || self.store.unreached_changes(caller.rule().terms.store);
        let before = unreached();
        let done = change.await;
        (done, unreached() == before)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of_val;

    use tollgate_rules::{Ask, DescriptorAsk, RuleSet, RuleSettings};

    use super::*;

    #[test]
    fn futures_of_decisions_are_small() {
        let rules = RuleSet::new(Vec::new(), &[], Vec::new(), RuleSettings::default());
        let store = Either::Left(Arc::new(MemoryStore::new(10)));
        let gate: ServerGatekeeper = Gatekeeper::new(rules, store, SystemClock);
        let (ask, now) = (Ask::default(), gate.clock_instant(gate.now()));
        let described = DescriptorAsk { domain: "d", descriptors: &[] };
        let sizes = [
            ("decide_by", size_of_val(&gate.decide_by(gate.rules(), &ask, now))),
            ("peek_by", size_of_val(&gate.peek_by(gate.rules(), &ask, now))),
            ("refund_by", size_of_val(&gate.refund_by(gate.rules(), &ask, now))),
            (
                "decide_descriptors_by",
                size_of_val(&gate.decide_descriptors_by(gate.rules(), &described, now)),
            ),
        ];
        for (future, bytes) in sizes {
            println!("{future}: {bytes} bytes");
            assert!(bytes <= 2_048, "{future}: {bytes} bytes");
        }
    }
}
