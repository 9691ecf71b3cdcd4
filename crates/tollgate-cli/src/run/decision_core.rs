//! Assembles the parts that decide: store, rules and gatekeeper, and the threads that keep them up to date.

use std::sync::Arc;

use tollgate::{Clock, SystemClock};
use tollgate_rules::RuleSet;

use super::cannot_start;
use crate::cli::CommandFailure;
use crate::credentials::Credentials;
use crate::key_names::{KeyNames, KeySecret};
use crate::live::{self, LiveRules};
use crate::peer_instances::{PeerChangeSink, PeerInstances};
use crate::recording::{RecorderThread, TrafficRecorder};
use crate::server_observer::ServerObserver;
use crate::settings::ServerSettings;
use crate::store::open_stores::OpenStores;
use crate::store::{ServerGatekeeper, ServerStore};
use crate::telemetry::Logs;

/// The gatekeeper, its observer, and the handles that keep its rules up to date.
pub(super) struct DecisionCore {
    pub(super) gatekeeper: Arc<ServerGatekeeper>,
    pub(super) store: Arc<ServerStore>,
    pub(super) observer: Arc<ServerObserver>,
    /// `None` if traffic is not recorded.
    pub(super) recording: Option<RecorderThread>,
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
        let store = ServerStore::open(settings, shared, logs).map_err(CommandFailure::Input)?;
        let store = Arc::new(store);
        let names = Arc::new(KeyNames::new(secret).map_err(CommandFailure::Input)?);
        let now = SystemClock.now();
        let recording = TrafficRecorder::start_by(settings, &names, logs, now);
        let recording = recording.map_err(CommandFailure::Input)?;
        let recorder = recording.as_ref().map(RecorderThread::recorder);
        let observer = Arc::new(ServerObserver::new(logs, names.clone(), now, recorder));
        let gatekeeper = ServerGatekeeper::new(rules, store.for_decisions(), SystemClock);
        let gatekeeper = Arc::new(gatekeeper.observed_by(observer.clone()));
        let peers = PeerInstances::default();
        let peers_and_credentials = (peers.clone(), credentials.clone());
        let live = LiveRules::start(gatekeeper.clone(), first, peers_and_credentials, logs.clone());
        let live = live.map_err(|error| cannot_start(&error))?;
        join_peers(&peers, &store, &live);
        Ok(DecisionCore { gatekeeper, store, observer, names, live, peers, recording })
    }
}

/// Joins the other instances on the same store, if it is a shared one.
fn join_peers(peers: &PeerInstances, store: &ServerStore, live: &LiveRules) {
    if let Some(store) = store.shared() {
        let shared = store.shared.clone();
        let count = Box::new(move |live| shared.set_live_instances(live));
        peers.join(store.start_control(Arc::new(PeerChangeSink {
            live: live.clone(),
            set_instance_count: count,
        })));
    }
}
