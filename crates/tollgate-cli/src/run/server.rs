//! What is behind each listener: who answers there, how many at once, and how patiently.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tollgate::Micros;

use super::ADMIN_CONNECTIONS_MAX;
use super::heart::Heart;
use crate::control_plane::ControlPlane;
use crate::credentials::Credentials;
use crate::data_plane::envoy::EnvoyListener;
use crate::data_plane::http::DataPlane;
use crate::data_plane::resp::{Audit, RespListener};
use crate::listeners::connection::{Handler, Site};
use crate::listeners::connection_caps::ConnectionCaps;
use crate::listeners::patrol::Patience;
use crate::listeners::tls::Certificate;
use crate::live::LiveRules;
use crate::metrics::{ListenerFigures, Metrics, Timing};
use crate::others::Others;
use crate::settings::Settings;
use crate::telemetry::Logs;
use crate::warnings::Warnings;

/// The most connections of the admin listener from one address. One more closes an idle one, so that nobody
/// keeps a probe out by holding connections open.
const ADMIN_CONNECTIONS_PER_IP_MAX: usize = 32;
/// How long the head of a request to it may take: connections that say nothing make room.
const ADMIN_HEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// A server that is put together and serves nobody yet.
pub(super) struct Server<'a> {
    pub(super) settings: &'a Settings,
    pub(super) logs: &'a Logs,
    pub(super) http: Hall<Site<DataPlane>>,
    pub(super) grpc: Hall<Site<EnvoyListener>>,
    pub(super) resp: Hall<RespListener>,
    pub(super) admin: Hall<Site<ControlPlane>>,
    pub(super) certificate: Option<Arc<Certificate>>,
    pub(super) stopping: Arc<AtomicBool>,
    pub(super) live: LiveRules,
    pub(super) others: Others,
}

/// What is behind a listener: who answers, and how many at once.
pub(super) struct Hall<P> {
    pub(super) protocol: Arc<P>,
    pub(super) caps: Arc<ConnectionCaps>,
}

impl<H: Handler> Hall<Site<H>> {
    fn of_http(
        handler: H,
        patience: Patience,
        stopping: &Arc<AtomicBool>,
        figures: ListenerFigures,
    ) -> Hall<Site<H>> {
        let responses = figures.responses.unwrap_or_default();
        let site = Site::new(handler, patience, stopping.clone(), responses);
        Hall { protocol: Arc::new(site), caps: figures.caps }
    }
}

impl<'a> Server<'a> {
    /// What answers at each listener; data listeners let in at most so many connections.
    pub(super) fn new(
        (settings, connections): (&'a Settings, usize),
        logs: &'a Logs,
        credentials: Credentials,
        heart: Heart,
        started: Micros,
    ) -> Server<'a> {
        let Credentials { tokens, admin_tokens, certificate } = credentials;
        let Heart { gatekeeper, watcher, names, live, others } = heart;
        let stopping = Arc::new(AtomicBool::new(false));
        let patience = Patience {
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
        let timing = Arc::<Timing>::default();
        let data = DataPlane {
            gatekeeper: gatekeeper.clone(),
            tokens: tokens.clone(),
            warnings: Warnings::new(logs),
            timing: timing.clone(),
            can_be_rebound: tokens.is_none() && certificate.is_none(),
            missing_facts: settings.missing_facts,
        };
        let envoy = EnvoyListener {
            gatekeeper: gatekeeper.clone(),
            tokens: tokens.clone(),
            timing: timing.clone(),
            stopping: stopping.clone(),
            codes: Arc::default(),
            warnings: Warnings::new(logs),
        };
        let redis = RespListener::new(
            gatekeeper.clone(),
            tokens,
            timing.clone(),
            patience,
            Audit::new(logs, names.clone()),
            settings.missing_facts,
        );
        let metrics = Metrics {
            gatekeeper: gatekeeper.clone(),
            watcher,
            timing,
            listeners: vec![http.clone(), grpc.clone(), resp.clone(), admin.clone()],
            grpc: envoy.codes.clone(),
            resp: redis.figures(),
            logs: logs.clone(),
            live: live.clone(),
            others: others.clone(),
            started,
        };
        let control = ControlPlane {
            tokens: admin_tokens,
            stopping: stopping.clone(),
            gatekeeper,
            live: live.clone(),
            others: others.clone(),
            names,
            metrics: Arc::new(metrics),
            logs: logs.clone(),
            warnings: Warnings::new(logs),
        };
        let admin_patience = Patience { head: patience.head.min(ADMIN_HEAD_TIMEOUT), ..patience };
        Server {
            settings,
            logs,
            http: Hall::of_http(data, patience, &stopping, http),
            grpc: Hall::of_http(envoy, patience, &stopping, grpc),
            resp: Hall { protocol: Arc::new(redis), caps: resp.caps },
            admin: Hall::of_http(control, admin_patience, &stopping, admin),
            certificate,
            stopping,
            live,
            others,
        }
    }
}
