//! Log lines of this listener for operators: resets with the client that sent them, wrong tokens, and too many
//! different limits.

use std::net::SocketAddr;
use std::sync::Arc;

use tollgate::Micros;

use super::counters::RespCounters;
use super::reset_log::{ResetLog, ResetSummary};
use crate::key_names::KeyNames;
use crate::store::{ServerCaller, ServerGatekeeper};
use crate::telemetry::{LogField, Logs};
use crate::warnings::Warnings;

/// Writes the log lines.
pub(crate) struct Audit {
    logs: Logs,
    names: Arc<KeyNames>,
    warnings: Warnings,
    resets: ResetLog,
}

/// A client, as the log names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RespPeer {
    pub(super) peer: SocketAddr,
    /// Number of its token in the token file, from 1, not counting empty lines.
    pub(super) token: Option<usize>,
}

impl Audit {
    pub(crate) fn new(logs: &Logs, names: Arc<KeyNames>) -> Audit {
        let warnings = Warnings::new(logs);
        Audit { logs: logs.clone(), names, warnings, resets: ResetLog::default() }
    }

    /// Logs a reset, in the same form as one at the admin listener. If one client sends many in a second, the rest
    /// are only counted.
    pub(super) fn log_reset(
        &self,
        gatekeeper: &ServerGatekeeper,
        caller: &ServerCaller<'_>,
        found: bool,
        by: RespPeer,
    ) {
        let (has_line, before) = self.resets.count(by, found, gatekeeper.now());
        self.log_suppressed(before);
        if !has_line {
            return;
        }
        let key = self.names.log_name(&gatekeeper.rules(), caller.key());
        let token = token_text(by.token);
        let fields: [LogField<'_>; 5] = [
            ("rule", &caller.rule().name),
            ("key", &key),
            ("found", &found),
            ("by", &by.peer),
            ("token", &token),
        ];
        self.logs.info("a key was reset", &fields);
    }

    /// Logs the number of resets that had no line of their own, once their second is over.
    pub(super) fn log_due_resets(&self, now: Micros) {
        self.log_suppressed(self.resets.take_due(now));
    }

    /// Logs the number of resets that are left.
    pub(super) fn log_remaining_resets(&self) {
        self.log_suppressed(self.resets.take_remaining());
    }

    fn log_suppressed(&self, resets: ResetSummary) {
        for (client, more) in resets {
            let (by, token) = match client {
                Some((ip, token)) => (ip.to_string(), token_text(token)),
                None => ("others".into(), "others".into()),
            };
            let fields: [LogField<'_>; 4] =
                [("resets", &more.resets), ("found", &more.found), ("by", &by), ("token", &token)];
            self.logs
                .warn("more keys were reset within a second than are logged individually", &fields);
        }
    }

    pub(super) fn warn_too_many_limits(&self, counters: &RespCounters, now: Micros) {
        self.warnings.too_many_numbers(counters.limits_in_use(), counters.overflow_calls(), now);
    }

    pub(super) fn warn_wrong_token(&self, peer: SocketAddr, now: Micros) {
        self.warnings.wrong_token(peer, now);
    }
}

fn token_text(token: Option<usize>) -> String {
    token.map_or_else(|| "none".to_string(), |number| number.to_string())
}
