//! What operators are told of this door: who made a caller's use forgotten, who came with a wrong token,
//! and that there are too many different numbers.

use std::net::SocketAddr;
use std::sync::Arc;

use tollgate::Micros;
use tollgate_rules::Caller;

use super::figures::RespFigures;
use crate::key_names::KeyNames;
use crate::store::{Gatekeeper, ServerStore};
use crate::telemetry::{Field, Logs};
use crate::warnings::Warnings;

/// Writes lines about what was done.
pub(crate) struct Audit {
    logs: Logs,
    names: Arc<KeyNames>,
    warnings: Warnings,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct By {
    pub(super) peer: SocketAddr,
    /// The number of the token in its file, from 1.
    pub(super) token: Option<usize>,
}

impl Audit {
    pub(crate) fn new(logs: &Logs, names: Arc<KeyNames>) -> Audit {
        Audit { logs: logs.clone(), names, warnings: Warnings::new(logs) }
    }

    /// The same line as for a reset at the admin door.
    pub(super) fn reset(
        &self,
        gatekeeper: &Gatekeeper,
        caller: &Caller<'_, ServerStore>,
        found: bool,
        by: By,
    ) {
        let key = self.names.in_logs(&gatekeeper.rules(), caller.key());
        let token = by.token.map_or_else(|| "none".to_string(), |number| number.to_string());
        let fields: [Field<'_>; 5] = [
            ("rule", &caller.rule().name),
            ("key", &key),
            ("found", &found),
            ("by", &by.peer),
            ("token", &token),
        ];
        self.logs.info("a key was reset", &fields);
    }

    pub(super) fn too_many_numbers(&self, figures: &RespFigures, now: Micros) {
        self.warnings.too_many_numbers(figures.sets(), figures.apart(), now);
    }

    pub(super) fn wrong_token(&self, peer: SocketAddr, now: Micros) {
        self.warnings.wrong_token(peer, now);
    }
}
