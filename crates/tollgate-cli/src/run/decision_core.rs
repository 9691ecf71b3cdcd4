//! What decides, put together: store, limiter, rules and gatekeeper, and whoever keeps them up to date.

use std::sync::Arc;

use tollgate::{MemoryStore, SystemClock};
use tollgate_rules::RuleSet;

use super::cannot_start;
use crate::cli::CommandFailure;
use crate::credentials::Credentials;
use crate::key_names::{KeyNames, KeySecret};
use crate::live::{self, LiveRules};
use crate::peer_instances::{PeerChangeSink, PeerInstances};
use crate::server_observer::ServerObserver;
use crate::settings::ServerSettings;
use crate::snapshot;
use crate::store::open_stores::OpenStores;
use crate::store::{ServerGatekeeper, ServerStore};
use crate::telemetry::Logs;

/// What decides, and whoever keeps it up to date or watches it.
pub(super) struct DecisionCore {
    pub(super) gatekeeper: Arc<ServerGatekeeper>,
    pub(super) store: Arc<ServerStore>,
    pub(super) observer: Arc<ServerObserver>,
    pub(super) names: Arc<KeyNames>,
    pub(super) live: LiveRules,
    pub(super) peers: PeerInstances,
}

impl DecisionCore {
    pub(super) fn start(
        settings: &ServerSettings,
        logs: &Logs,
        secret: Option<&KeySecret>,
        shared: Option<OpenStores>,
        credentials: &Credentials,
        (rules, first): (RuleSet, live::InitialRules),
    ) -> Result<DecisionCore, CommandFailure> {
        let max_keys = usize::try_from(settings.max_keys).unwrap_or(usize::MAX);
        let store = match shared {
            Some(shared) => ServerStore::Shared(Box::new(shared)),
            None => {
                let empty = MemoryStore::new(max_keys);
                let store = snapshot::load(empty, settings.snapshot.as_deref(), logs);
                ServerStore::Memory(Box::new(store.map_err(CommandFailure::Input)?))
            }
        };
        let store = Arc::new(store);
        let names = Arc::new(KeyNames::new(secret).map_err(CommandFailure::Input)?);
        let watcher = Arc::new(ServerObserver::new(logs, names.clone()));
        let gatekeeper = ServerGatekeeper::new(rules, store.clone(), SystemClock);
        let gatekeeper = Arc::new(gatekeeper.observed_by(watcher.clone()));
        let others = PeerInstances::default();
        let beside = (others.clone(), credentials.clone());
        let live = LiveRules::start(gatekeeper.clone(), first, beside, logs.clone());
        let live = live.map_err(|error| cannot_start(&error))?;
        join_peers(&others, &store, &live);
        Ok(DecisionCore { gatekeeper, store, observer: watcher, names, live, peers: others })
    }
}

/// Lets the other instances on the same store know of this one, if there can be others.
fn join_peers(others: &PeerInstances, store: &ServerStore, live: &LiveRules) {
    if let Some(store) = store.shared() {
        let shared = store.shared.clone();
        let count = Box::new(move |live| shared.set_live_instances(live));
        others.join(store.start_control(Arc::new(PeerChangeSink {
            live: live.clone(),
            set_instance_count: count,
        })));
    }
}
