//! The data plane: the listeners that decide requests. Each file turns one kind of request into facts and
//! the gatekeeper's answer into a reply.

pub(crate) mod check_service;
pub(crate) mod envoy;
pub(crate) mod explained_check;
pub(crate) mod gateway;
pub(crate) mod http;
pub(crate) mod json;
pub(crate) mod resp;

mod answer;
mod batch;
mod check;
mod facts;
mod forward_auth;
mod forwarded;
mod reserve;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use check_service::CheckService;
use gateway::overload::WorkerBounds;
use tollgate_rules::UpstreamUrl;

use crate::listeners::header_fields;

use crate::drain::ServerDrain;
use crate::key_names::KeyNames;
use crate::listeners::handler::Handler;
use crate::listeners::service::ListenerService;
use crate::listeners::tokens::Tokens;
use crate::listeners::watchdog::ConnectionTimeouts;
use crate::metrics::DecisionTiming;
use crate::settings::OnMissingFacts;
use crate::store::{ChangeConfirmer, ServerGatekeeper};
use crate::telemetry::Logs;
use crate::warnings::Warnings;

/// Everything that data listeners are built from.
pub(crate) struct DataContext<'a> {
    pub(crate) gatekeeper: &'a Arc<ServerGatekeeper>,
    /// Confirms that resets have reached the store.
    pub(crate) changes: ChangeConfirmer,
    pub(crate) timing: &'a Arc<DecisionTiming>,
    /// Treatment of checks that lack the facts every rule needs.
    pub(crate) missing_facts: OnMissingFacts,
    /// The gateway's upstream of requests that no route matches.
    pub(crate) upstream: Option<&'a UpstreamUrl>,
    /// The gateway's bounds on requests, for each worker.
    pub(crate) gateway_bounds: WorkerBounds,
    /// Bytes of bodies that the gateway reads before it decides about their requests.
    pub(crate) gateway_body_memory: usize,
    /// The longest time that limits hold back a request of the gateway.
    pub(crate) gateway_max_delay: Duration,
    /// Accepted tokens; `None` admits every client that reaches a listener.
    pub(crate) tokens: Option<Arc<Tokens>>,
    /// True if the listeners use TLS.
    pub(crate) has_certificate: bool,
    /// True if the listener that is built is a Unix socket.
    pub(crate) is_unix_socket: bool,
    pub(crate) timeouts: ConnectionTimeouts,
    /// Set while the server stops.
    pub(crate) stopping: &'a Arc<AtomicBool>,
    pub(crate) drain: &'a Arc<ServerDrain>,
    /// Names of callers in logs.
    pub(crate) names: &'a Arc<KeyNames>,
    pub(crate) logs: &'a Logs,
    /// The access log of the gateway; `None` if there is none.
    pub(crate) access_log: Option<&'a Logs>,
}

impl DataContext<'_> {
    fn checks(&self) -> CheckService {
        CheckService {
            gatekeeper: self.gatekeeper.clone(),
            timing: self.timing.clone(),
            warnings: Warnings::new(self.logs),
            missing_facts: self.missing_facts,
        }
    }

    fn http_service(&self, handler: impl Handler) -> ListenerService {
        ListenerService::http(handler, self.timeouts, self.stopping, Arc::default())
    }
}
