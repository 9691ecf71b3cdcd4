//! Assembles the services behind the listeners: handlers, connection caps and timeouts.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tollgate::Micros;

use super::decision_core::DecisionCore;
use super::{ADMIN_CONNECTIONS_MAX, workers};
use crate::control_plane::{CandidateReplays, ControlPlane, LiveTraffic};
use crate::credentials::Credentials;
use crate::data_plane::DataContext;
use crate::data_plane::gateway::overload::WorkerBounds;
use crate::drain::ServerDrain;
use crate::listener_table::{LISTENERS, ListenerEntry, ListenerPlane};
use crate::listeners::ListenerAddress;
use crate::listeners::connection_caps::ConnectionCaps;
use crate::listeners::service::ListenerService;
use crate::listeners::tls::Certificate;
use crate::listeners::watchdog::ConnectionTimeouts;
use crate::live::{self, LiveRules};
use crate::metrics::responses::ResponseCounts;
use crate::metrics::{DecisionTiming, ListenerFigures, Metrics};
use crate::peer_instances::PeerInstances;
use crate::recording::RecorderThread;
use crate::settings::ServerSettings;
use crate::store::{ChangeConfirmer, ServerStore};
use crate::telemetry::Logs;
use crate::warnings::Warnings;

/// Most connections of the admin listener from one address. One more closes an idle one, so that open
/// connections cannot block a probe: twice as many as event streams, which are never idle.
const ADMIN_CONNECTIONS_PER_IP_MAX: usize = 64;
/// Cap on the header timeout of the admin listener, so that silent connections soon make room.
const ADMIN_HEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// A server that is assembled but not listening yet.
pub(super) struct AssembledServer<'a> {
    pub(super) settings: &'a ServerSettings,
    pub(super) logs: &'a Logs,
    pub(super) access_log: Option<&'a Logs>,
    /// All listeners, in the order of [`LISTENERS`].
    pub(super) listeners: Vec<AssembledListener>,
    pub(super) certificate: Option<Arc<Certificate>>,
    pub(super) stopping: Arc<AtomicBool>,
    pub(super) drain: Arc<ServerDrain>,
    pub(super) store: Arc<ServerStore>,
    pub(super) live: LiveRules,
    pub(super) peers: PeerInstances,
    pub(super) recording: Option<RecorderThread>,
    /// `None` without a control listener, which shows it.
    pub(super) traffic: Option<LiveTraffic>,
}

/// A listener with its service and its connection caps.
pub(super) struct AssembledListener {
    pub(super) entry: &'static ListenerEntry,
    pub(super) service: ListenerService,
    pub(super) caps: Arc<ConnectionCaps>,
}

impl AssembledListener {
    fn figures(&self) -> ListenerFigures {
        ListenerFigures {
            name: self.entry.name,
            caps: self.caps.clone(),
            responses: self.service.responses.clone(),
            own: self.service.metrics.clone(),
        }
    }
}

/// The share of each worker in the gateway's bounds.
fn gateway_bounds(settings: &ServerSettings) -> WorkerBounds {
    let whole = WorkerBounds {
        requests_max: settings.gateway_max_requests.get(),
        waiting_max: settings.gateway_max_waiting,
        wait_max: settings.gateway_max_wait,
    };
    whole.share(workers(settings))
}

impl<'a> AssembledServer<'a> {
    /// Assembles the listeners; `connections` is the cap of each data listener.
    pub(super) fn new(
        (settings, connections): (&'a ServerSettings, usize),
        (logs, access_log): (&'a Logs, Option<&'a Logs>),
        credentials: Credentials,
        core: DecisionCore,
        started: Micros,
    ) -> AssembledServer<'a> {
        let Credentials { tokens, admin_tokens, certificate } = credentials;
        let stopping = Arc::new(AtomicBool::new(false));
        let drain = Arc::<ServerDrain>::default();
        let timeouts = ConnectionTimeouts {
            head: settings.header_timeout,
            idle: settings.idle_timeout,
            body: settings.body_timeout,
        };
        let timing = Arc::<DecisionTiming>::default();
        let mut context = DataContext {
            gatekeeper: &core.gatekeeper,
            changes: ChangeConfirmer::new(core.store.clone()),
            timing: &timing,
            missing_facts: settings.missing_facts,
            upstream: settings.upstream.as_ref(),
            gateway_bounds: gateway_bounds(settings),
            gateway_body_memory: settings.gateway_body_memory,
            gateway_max_delay: settings.gateway_max_delay,
            tokens,
            has_certificate: certificate.is_some(),
            is_unix_socket: false,
            timeouts,
            stopping: &stopping,
            drain: &drain,
            names: &core.names,
            logs,
            access_log,
        };
        let per_ip = settings.max_connections_per_ip.get();
        let mut listeners = Vec::with_capacity(LISTENERS.len());
        let mut shown = None;
        for (entry, address) in settings.listeners.iter() {
            let (service, caps) = match entry.plane {
                ListenerPlane::Data(build) | ListenerPlane::Gateway(build) => {
                    context.is_unix_socket = address.is_unix_socket();
                    (build(&context), ConnectionCaps::new(connections, per_ip))
                }
                ListenerPlane::Control => {
                    let (total, per_ip) = (ADMIN_CONNECTIONS_MAX, ADMIN_CONNECTIONS_PER_IP_MAX);
                    let caps = ConnectionCaps::evicting(total, per_ip);
                    let responses = Arc::<ResponseCounts>::default();
                    // The control listener is the last, and its metrics are those of all.
                    let own = ListenerFigures {
                        name: entry.name,
                        caps: caps.clone(),
                        responses: Some(responses.clone()),
                        own: None,
                    };
                    let before = listeners.iter().map(AssembledListener::figures);
                    let metrics = Arc::new(Metrics {
                        gatekeeper: core.gatekeeper.clone(),
                        store: core.store.clone(),
                        observer: core.observer.clone(),
                        timing: timing.clone(),
                        listeners: before.chain([own]).collect(),
                        logs: logs.clone(),
                        live: core.live.clone(),
                        peers: core.peers.clone(),
                        started,
                    });
                    let traffic = LiveTraffic::new(metrics.clone());
                    if matches!(address, ListenerAddress::At(_)) {
                        shown = Some(traffic.clone());
                    }
                    let control = ControlPlane {
                        tokens: admin_tokens.clone(),
                        stopping: stopping.clone(),
                        gatekeeper: core.gatekeeper.clone(),
                        store: core.store.clone(),
                        live: core.live.clone(),
                        peers: core.peers.clone(),
                        names: core.names.clone(),
                        metrics,
                        traffic,
                        candidates: CandidateReplays::new(
                            core.recording
                                .as_ref()
                                .filter(|_| settings.recent_traffic > 0)
                                .map(RecorderThread::recorder),
                            live::folder_of(&settings.rules),
                        ),
                        logs: logs.clone(),
                        warnings: Warnings::new(logs),
                        missing_facts: settings.missing_facts,
                    };
                    let head = timeouts.head.min(ADMIN_HEAD_TIMEOUT);
                    let timeouts = ConnectionTimeouts { head, ..timeouts };
                    (ListenerService::http(control, timeouts, &stopping, responses), caps)
                }
            };
            listeners.push(AssembledListener { entry, service, caps });
        }
        let DecisionCore { store, live, peers, recording, .. } = core;
        AssembledServer {
            settings,
            logs,
            access_log,
            listeners,
            certificate,
            stopping,
            drain,
            store,
            live,
            peers,
            recording,
            traffic: shown,
        }
    }
}
