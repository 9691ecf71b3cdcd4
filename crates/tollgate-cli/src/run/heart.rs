//! What decides, put together: store, limiter, rules and gatekeeper, and whoever keeps them up to date.

use std::sync::Arc;

use tollgate::{Limiter, MemoryStore, SystemClock};
use tollgate_rules::RuleSet;

use super::cannot_start;
use crate::cli::Failure;
use crate::credentials::Credentials;
use crate::key_names::{KeyNames, Secret};
use crate::live::{self, LiveRules};
use crate::others::{Ears, Others};
use crate::settings::Settings;
use crate::snapshot;
use crate::store::shared::SharedStore;
use crate::store::{Gatekeeper, ServerStore};
use crate::telemetry::Logs;
use crate::watcher::Watcher;

/// What decides, and whoever keeps it up to date or watches it.
pub(super) struct Heart {
    pub(super) gatekeeper: Arc<Gatekeeper>,
    pub(super) watcher: Arc<Watcher>,
    pub(super) names: Arc<KeyNames>,
    pub(super) live: LiveRules,
    pub(super) others: Others,
}

impl Heart {
    pub(super) fn start(
        settings: &Settings,
        logs: &Logs,
        secret: Option<&Secret>,
        shared: Option<SharedStore>,
        credentials: &Credentials,
        (rules, first): (RuleSet, live::First),
    ) -> Result<Heart, Failure> {
        let max_keys = usize::try_from(settings.max_keys).unwrap_or(usize::MAX);
        let store = match shared {
            Some(shared) => ServerStore::Shared(Box::new(shared)),
            None => {
                let empty = MemoryStore::new(max_keys);
                let store = snapshot::load(empty, settings.snapshot.as_deref(), logs);
                ServerStore::Memory(Box::new(store.map_err(Failure::Input)?))
            }
        };
        let limiter = Limiter::new(store, SystemClock);
        let names = Arc::new(KeyNames::new(secret).map_err(Failure::Input)?);
        let watcher = Arc::new(Watcher::new(logs, names.clone()));
        let gatekeeper = Arc::new(Gatekeeper::new(rules, limiter).observed_by(watcher.clone()));
        let others = Others::default();
        let beside = (others.clone(), credentials.clone());
        let live = LiveRules::start(gatekeeper.clone(), first, beside, logs.clone());
        let live = live.map_err(|error| cannot_start(&error))?;
        join(&others, &gatekeeper, &live);
        Ok(Heart { gatekeeper, watcher, names, live, others })
    }
}

/// Lets the other instances on the same store know of this one, if there can be others.
fn join(others: &Others, gatekeeper: &Arc<Gatekeeper>, live: &LiveRules) {
    if let Some(store) = gatekeeper.limiter().store().shared() {
        let shared = store.shared.clone();
        let count = Box::new(move |live| shared.set_live(live));
        others.join(store.start_control(Arc::new(Ears { live: live.clone(), count })));
    }
}
