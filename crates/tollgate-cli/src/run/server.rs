//! Assembles the service behind each listener: handler, connection caps and timeouts.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tollgate::Micros;

use super::ADMIN_CONNECTIONS_MAX;
use super::decision_core::DecisionCore;
use crate::control_plane::ControlPlane;
use crate::credentials::Credentials;
use crate::data_plane::check_service::CheckService;
use crate::data_plane::envoy::EnvoyListener;
use crate::data_plane::http::DataPlane;
use crate::data_plane::resp::{Audit, RespListener};
use crate::listeners::connection::{Handler, HttpProtocol};
use crate::listeners::connection_caps::ConnectionCaps;
use crate::listeners::tls::Certificate;
use crate::listeners::watchdog::ConnectionTimeouts;
use crate::live::LiveRules;
use crate::metrics::{DecisionTiming, ListenerFigures, Metrics};
use crate::peer_instances::PeerInstances;
use crate::settings::ServerSettings;
use crate::store::{ChangeConfirmer, ServerStore};
use crate::telemetry::Logs;
use crate::warnings::Warnings;

/// Most connections of the admin listener from one address. One more closes an idle one, so that open
/// connections cannot block a probe.
const ADMIN_CONNECTIONS_PER_IP_MAX: usize = 32;
/// Header timeout of the admin listener: silent connections make room.
const ADMIN_HEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// A server that is assembled but not listening yet.
pub(super) struct AssembledServer<'a> {
    pub(super) settings: &'a ServerSettings,
    pub(super) logs: &'a Logs,
    pub(super) http: ListenerService<HttpProtocol<DataPlane>>,
    pub(super) grpc: ListenerService<HttpProtocol<EnvoyListener>>,
    pub(super) resp: ListenerService<RespListener>,
    pub(super) admin: ListenerService<HttpProtocol<ControlPlane>>,
    pub(super) certificate: Option<Arc<Certificate>>,
    pub(super) stopping: Arc<AtomicBool>,
    pub(super) store: Arc<ServerStore>,
    pub(super) live: LiveRules,
    pub(super) peers: PeerInstances,
}

/// Protocol handler and connection caps of a listener.
pub(super) struct ListenerService<P> {
    pub(super) protocol: Arc<P>,
    pub(super) caps: Arc<ConnectionCaps>,
}

impl<H: Handler> ListenerService<HttpProtocol<H>> {
    fn of_http(
        handler: H,
        patience: ConnectionTimeouts,
        stopping: &Arc<AtomicBool>,
        figures: ListenerFigures,
    ) -> ListenerService<HttpProtocol<H>> {
        let responses = figures.responses.unwrap_or_default();
        let protocol = HttpProtocol::new(handler, patience, stopping.clone(), responses);
        ListenerService { protocol: Arc::new(protocol), caps: figures.caps }
    }
}

impl<'a> AssembledServer<'a> {
    /// Assembles the services; `connections` is the cap of each data listener.
    pub(super) fn new(
        (settings, connections): (&'a ServerSettings, usize),
        logs: &'a Logs,
        credentials: Credentials,
        core: DecisionCore,
        started: Micros,
    ) -> AssembledServer<'a> {
        let Credentials { tokens, admin_tokens, certificate } = credentials;
        let DecisionCore { gatekeeper, store, observer: watcher, names, live, peers: others } =
            core;
        let stopping = Arc::new(AtomicBool::new(false));
        let patience = ConnectionTimeouts {
            head: settings.header_timeout,
            idle: settings.idle_timeout,
            body: settings.body_timeout,
        };
        let per_ip = settings.max_connections_per_ip.get();
        let caps = || ConnectionCaps::new(connections, per_ip);
        let http = ListenerFigures::of_http("http", caps());
        let grpc = ListenerFigures::of_http("grpc", caps());
        let resp = ListenerFigures::new("resp", caps());
        let caps = ConnectionCaps::evicting(ADMIN_CONNECTIONS_MAX, ADMIN_CONNECTIONS_PER_IP_MAX);
        let admin = ListenerFigures::of_http("admin", caps);
        let timing = Arc::<DecisionTiming>::default();
        let checks = || CheckService {
            gatekeeper: gatekeeper.clone(),
            timing: timing.clone(),
            warnings: Warnings::new(logs),
            missing_facts: settings.missing_facts,
        };
        let data = DataPlane {
            checks: checks(),
            tokens: tokens.clone(),
            is_open_to_dns_rebinding: tokens.is_none() && certificate.is_none(),
        };
        let envoy = EnvoyListener {
            checks: checks(),
            tokens: tokens.clone(),
            stopping: stopping.clone(),
            codes: Arc::default(),
        };
        let redis = RespListener::new(
            (gatekeeper.clone(), ChangeConfirmer(store.clone())),
            tokens,
            timing.clone(),
            patience,
            Audit::new(logs, names.clone()),
            settings.missing_facts,
        );
        let metrics = Metrics {
            gatekeeper: gatekeeper.clone(),
            store: store.clone(),
            observer: watcher,
            timing,
            listeners: vec![http.clone(), grpc.clone(), resp.clone(), admin.clone()],
            grpc: envoy.codes.clone(),
            resp: redis.counters(),
            logs: logs.clone(),
            live: live.clone(),
            peers: others.clone(),
            started,
        };
        let control = ControlPlane {
            tokens: admin_tokens,
            stopping: stopping.clone(),
            gatekeeper,
            store: store.clone(),
            live: live.clone(),
            peers: others.clone(),
            names,
            metrics: Arc::new(metrics),
            logs: logs.clone(),
            warnings: Warnings::new(logs),
        };
        let admin_patience =
            ConnectionTimeouts { head: patience.head.min(ADMIN_HEAD_TIMEOUT), ..patience };
        AssembledServer {
            settings,
            logs,
            http: ListenerService::of_http(data, patience, &stopping, http),
            grpc: ListenerService::of_http(envoy, patience, &stopping, grpc),
            resp: ListenerService { protocol: Arc::new(redis), caps: resp.caps },
            admin: ListenerService::of_http(control, admin_patience, &stopping, admin),
            certificate,
            stopping,
            store,
            live,
            peers: others,
        }
    }
}
