//! Log lines about the servers of upstreams: one for each change of a server's state.

use tollgate_rules::UpstreamUrl;

use super::registry::UpstreamState;
use super::server_state::{FailureReason, ServerState};
use crate::telemetry::{LogField, Logs};

/// The log of the upstreams; without one, nothing is written.
#[derive(Clone, Default)]
pub(crate) struct UpstreamLog(Option<Logs>);

impl std::fmt::Debug for UpstreamLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UpstreamLog")
    }
}

impl UpstreamLog {
    pub(crate) fn new(logs: &Logs) -> UpstreamLog {
        UpstreamLog(Some(logs.clone()))
    }

    /// Writes that the state of a server has changed.
    pub(super) fn server_changed(
        &self,
        upstream: &UpstreamState,
        url: &UpstreamUrl,
        (before, state): (ServerState, ServerState),
        reason: Option<FailureReason>,
    ) {
        let Some(logs) = &self.0 else { return };
        let (url, reason, name) = (url.to_string(), reason_text(reason), state.name());
        let available = upstream.servers_in(ServerState::Available);
        let all = upstream.server_reports().len();
        let mut fields: Vec<LogField<'_>> = vec![
            ("upstream", &upstream.settings.name),
            ("server", &url),
            ("state", &name),
            ("available", &available),
            ("servers", &all),
        ];
        if state == ServerState::Available {
            return logs.info("a server of an upstream answers again", &fields);
        }
        fields.push(("reason", &reason));
        let event = match (before, state) {
            (ServerState::Ejected, ServerState::Failing) => {
                return logs.info("the ejection of a server has ended: it is tried again", &fields);
            }
            (_, ServerState::Failing) => {
                "a server of an upstream fails, and is still tried because at most half are ejected"
            }
            (_, ServerState::Ejected) => {
                "a server of an upstream is ejected: for some time it gets no requests"
            }
            _ => "a server of an upstream fails its health checks, and gets no requests",
        };
        logs.warn(event, &fields);
    }

    /// Writes that an upstream has lost its last available server, or has one again.
    pub(super) fn upstream_changed(
        &self,
        upstream: &UpstreamState,
        is_without_server: bool,
        reason: Option<FailureReason>,
    ) {
        let Some(logs) = &self.0 else { return };
        let (name, reason) = (&upstream.settings.name, reason_text(reason));
        match is_without_server {
            true => logs.error(
                "no server of an upstream is available: its requests are tried, and fail",
                &[("upstream", name), ("reason", &reason)],
            ),
            false => logs.info("an upstream has an available server again", &[("upstream", name)]),
        }
    }
}

fn reason_text(reason: Option<FailureReason>) -> String {
    reason.map(|reason| reason.to_string()).unwrap_or_default()
}
