//! Warnings about problems that nothing else would show: at most one line a minute of each kind, because
//! callers can cause them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::peer_instances::PeerInstances;
use crate::store::open_stores::StoreFigures;
use crate::store::{ServerGatekeeper, ServerStore};
use tollgate::Micros;
use tollgate::decision::MAX_LIMITS;
use tollgate_redis::instances::{InstanceChannelStats, SealRefusal};
use tollgate_rules::RuleSet;
use tollgate_rules::descriptors::DescriptorError;
use tollgate_rules::matcher::Condition;

use crate::telemetry::{LogField, Logs};

/// Shortest time between two lines of one kind.
const SILENCE: Duration = Duration::from_secs(60);

/// Interval between two polls of counters.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Warnings that requests can cause.
pub(crate) struct Warnings {
    logs: Logs,
    untrusted_proxy: WarningTimer,
    too_many_limits: WarningTimer,
    silent_proxy: WarningTimer,
    dns_rebinding: WarningTimer,
    admin_refused: WarningTimer,
    /// Refused admin requests since the last line about them.
    admin_refusals: AtomicU64,
    wrong_token: WarningTimer,
    wrong_tokens: AtomicU64,
    too_many_numbers: WarningTimer,
}

impl Warnings {
    pub(crate) fn new(logs: &Logs) -> Warnings {
        Warnings {
            logs: logs.clone(),
            untrusted_proxy: WarningTimer::default(),
            too_many_limits: WarningTimer::default(),
            silent_proxy: WarningTimer::default(),
            dns_rebinding: WarningTimer::default(),
            admin_refused: WarningTimer::default(),
            admin_refusals: AtomicU64::new(0),
            wrong_token: WarningTimer::default(),
            wrong_tokens: AtomicU64::new(0),
            too_many_numbers: WarningTimer::default(),
        }
    }

    /// Warns of a proxy that the rules do not trust: its forwarded headers are ignored, and all its clients
    /// count as one.
    #[cold]
    pub(crate) fn untrusted_proxy(&self, peer: IpAddr, now: Micros) {
        if self.untrusted_proxy.is_due(now) {
            self.logs.warn(
                "a forward-auth request comes from a peer that is not trusted, so its X-Forwarded-* and \
                 X-Original-* headers are ignored: if it is your proxy, add it to identify.trusted_peers",
                &[("peer", &peer)],
            );
        }
    }

    /// Warns of a request with a `Host` that a web page could use: from a proxy that forwards its client's
    /// `Host`, or from a page that attacks by DNS rebinding.
    #[cold]
    pub(crate) fn dns_rebinding(&self, peer: IpAddr, host: Option<&str>, now: Micros) {
        if self.dns_rebinding.is_due(now) {
            self.logs.warn(
                "a request to the http listener was refused, because a web page in a browser could send it with this \
                 Host: if it comes from your proxy, configure the proxy to send Tollgate's own address as \
                 Host, or a token (--auth-token-file)",
                &[("peer", &peer), ("host", &host.unwrap_or_default())],
            );
        }
    }

    /// Warns of a trusted proxy that does not forward the method or the path: rules that match on them do
    /// not apply. `said` tells which of method and path it forwards.
    #[cold]
    pub(crate) fn silent_proxy(&self, peer: IpAddr, said: [bool; 2], rules: &RuleSet, now: Micros) {
        if !self.silent_proxy.is_due(now) {
            return;
        }
        let [method, path] = said;
        let is_unknown = |condition: &Condition| match condition {
            Condition::Path(_) | Condition::PathText(_) => !path,
            Condition::Method(_) => !method,
            _ => false,
        };
        let mut conditions = rules.rules().filter_map(|rule| rule.condition.as_ref());
        if conditions.any(|when| when.has(&is_unknown)) {
            self.logs.warn(
                "a forward-auth request does not carry the method and path of the original request, so rules \
                 that match on them do not apply: configure the proxy to send X-Forwarded-Method and \
                 X-Forwarded-Uri, or X-Original-Method and X-Original-URI",
                &[("peer", &peer)],
            );
        }
    }
}

impl Warnings {
    /// Warns of a request with descriptors that was refused because too many limits apply to it.
    #[cold]
    pub(crate) fn too_many_limits(&self, why: DescriptorError, now: Micros) {
        if self.too_many_limits.is_due(now) {
            self.logs.warn("a request with descriptors was refused", &[("reason", &why)]);
        }
    }

    /// Warns of a request that the admin listener refused: with a wrong token, or from a web page.
    #[cold]
    pub(crate) fn admin_refused(&self, peer: SocketAddr, status: u16, now: Micros) {
        let more = self.admin_refusals.fetch_add(1, Ordering::Relaxed) + 1;
        if self.admin_refused.is_due(now) {
            self.admin_refusals.fetch_sub(more, Ordering::Relaxed);
            let fields: [LogField<'_>; 3] =
                [("peer", &peer), ("status", &status), ("since_last", &more)];
            self.logs.warn("a request to the admin listener was refused", &fields);
        }
    }

    /// Warns that more sets of numbers are in use at the resp listener than are kept. `calls` used further
    /// sets since the start.
    #[cold]
    pub(crate) fn too_many_numbers(&self, sets: u64, calls: u64, now: Micros) {
        if self.too_many_numbers.is_due(now) {
            self.logs.warn(
                "CL.THROTTLE is called with too many different sets of numbers: further sets are counted \
                 separately, with less room for keys; use one set for each kind of limit",
                &[("sets", &sets), ("calls", &calls)],
            );
        }
    }

    /// Warns of a wrong token at the resp listener.
    #[cold]
    pub(crate) fn wrong_token(&self, peer: SocketAddr, now: Micros) {
        let more = self.wrong_tokens.fetch_add(1, Ordering::Relaxed) + 1;
        if self.wrong_token.is_due(now) {
            self.wrong_tokens.fetch_sub(more, Ordering::Relaxed);
            let fields: [LogField<'_>; 2] = [("peer", &peer), ("since_last", &more)];
            self.logs.warn("a client of the resp listener sent a wrong token", &fields);
        }
    }
}

/// Warns of limits that were left out, until the runtime ends.
pub(crate) async fn watch_left_out(gatekeeper: Arc<ServerGatekeeper>, logs: Logs) {
    let (sampled, mut told) = (WarningTimer::default(), 0);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let left_out = gatekeeper.stats().left_out;
        if left_out > told && sampled.is_due(gatekeeper.now()) {
            let event = format!(
                "more than {MAX_LIMITS} limits apply to a request, and the rest were left out: \
                 make the rules more specific"
            );
            logs.warn(&event, &[("left_out", &(left_out - told))]);
            told = left_out;
        }
    }
}

/// Timer of one kind of line.
#[derive(Debug, Default)]
struct WarningTimer {
    /// The instant of the last line, in microseconds; 0 before the first.
    last_us: AtomicU64,
}

impl WarningTimer {
    /// Returns true if a line may be written now; to one thread only.
    fn is_due(&self, now: Micros) -> bool {
        let (last_us, now_us) = (self.last_us.load(Ordering::Relaxed), now.as_u64().max(1));
        // After the clock was set back, warnings must not stop for that time.
        let silent_us = last_us.abs_diff(now_us);
        if last_us > 0 && silent_us < SILENCE.as_micros() as u64 {
            return false;
        }
        let order = Ordering::Relaxed;
        self.last_us.compare_exchange(last_us, now_us, order, order).is_ok()
    }
}

/// Logs when a shared store becomes unavailable, when it is back, and what is wrong with its settings.
pub(crate) async fn watch_store(
    store: Arc<ServerStore>,
    gatekeeper: Arc<ServerGatekeeper>,
    logs: Logs,
) {
    let Some(store) = store.shared() else { return };
    // For each store: whether it was up, and the last warning about its settings.
    let mut last: Vec<(Option<bool>, Option<String>)> = Vec::new();
    let mut losses: Vec<DataLossWarnings> = Vec::new();
    loop {
        // Also before the first poll: connecting takes a moment.
        tokio::time::sleep(LOOK_EVERY).await;
        let figures = store.figures();
        last.resize(figures.len(), (None, None));
        losses.resize_with(figures.len(), DataLossWarnings::default);
        for (figures, losses) in figures.iter().zip(&mut losses) {
            losses.log(figures, &logs, gatekeeper.now());
        }
        for (figures, (up, warned)) in figures.iter().zip(&mut last) {
            let name = &figures.address.name;
            if up.replace(figures.is_up()) != Some(figures.is_up()) {
                log_store_state(&logs, figures);
            }
            let warning = &figures.health().warning;
            if warning.is_some() && *warning != *warned {
                let warning = warning.as_deref().unwrap_or_default();
                let fields: [LogField<'_>; 2] = [("store", name), ("warning", &warning)];
                logs.warn("the store is configured so that it may lose limits", &fields);
            }
            warned.clone_from(warning);
        }
    }
}

/// Number of polls in a row with a failed exchange between instances before a warning: a restarted store
/// gets a moment.
const LOOKS_WITHOUT_PEERS: u32 = 5;

/// Warns when instances cannot exchange operators' changes although their store answers decisions: nothing
/// else would show it.
pub(crate) async fn watch_peers(
    others: PeerInstances,
    gatekeeper: Arc<ServerGatekeeper>,
    store: Arc<ServerStore>,
    logs: Logs,
) {
    let Some(store) = store.shared() else { return };
    let (sampled, mut without) = (WarningTimer::default(), 0);
    let mut shared = SharedChangeWarnings::default();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(control) = others.control() else { return };
        shared.log(&control.stats(), &logs, gatekeeper.now());
        let up = store.figures().first().is_some_and(StoreFigures::is_up);
        let why = control.last_error().filter(|_| up);
        without = if why.is_some() { without + 1 } else { 0 };
        if let Some(why) = why.filter(|_| without >= LOOKS_WITHOUT_PEERS)
            && sampled.is_due(gatekeeper.now())
        {
            logs.warn(
                "servers cannot share blocks, overrides and rules through the store, although it answers: \
                 check the error, and the permissions of the store's user",
                &[("why", &why)],
            );
        }
    }
}

/// Warnings about what is in a shared store. Bound: a line a minute of each kind.
#[derive(Default)]
struct SharedChangeWarnings {
    refused: WarningTimer,
    unchecked: WarningTimer,
    /// The figures at the last line of each kind.
    told_refused: [u64; SealRefusal::ALL.len()],
    told_unchecked: u64,
}

impl SharedChangeWarnings {
    fn log(&mut self, stats: &InstanceChannelStats, logs: &Logs, now: Micros) {
        if stats.refused_facts != self.told_refused && self.refused.is_due(now) {
            let more = |why: SealRefusal| {
                stats.refused_facts[why as usize] - self.told_refused[why as usize]
            };
            let [unsealed, wrong, replayed] = SealRefusal::ALL.map(more);
            logs.warn(
                "rules or overrides in the store were not taken, because no server with our --key-secret-file wrote \
                 them: if they are not yours, somebody else writes to the store; else give all servers the same \
                 secret",
                &[("unsealed", &unsealed), ("wrong_seal", &wrong), ("replayed", &replayed)],
            );
            self.told_refused = stats.refused_facts;
        }
        if stats.unchecked_facts > self.told_unchecked && self.unchecked.is_due(now) {
            let more = stats.unchecked_facts - self.told_unchecked;
            logs.warn(
                "another server on the store has a --key-secret-file and this one has none: it counts callers apart \
                 from the other, and cannot tell whether the other has written the shared rules and overrides",
                &[("changes", &more)],
            );
            self.told_unchecked = stats.unchecked_facts;
        }
    }
}

/// Warnings about a store that has lost data. Bound: a line a minute.
#[derive(Default)]
struct DataLossWarnings {
    timer: WarningTimer,
    /// The losses at the last line.
    told: u64,
}

impl DataLossWarnings {
    fn log(&mut self, figures: &StoreFigures<'_>, logs: &Logs, now: Micros) {
        if figures.data_losses <= self.told || !self.timer.is_due(now) {
            return;
        }
        let more = figures.data_losses - self.told;
        let name = &figures.address.name;
        logs.warn(
            "the store has lost data that it had: it was restarted without persistence, emptied, or evicts keys; \
             what callers had used counts from zero; persistence of the store (AOF) keeps it over a restart",
            &[("store", name), ("times", &more)],
        );
        self.told = figures.data_losses;
    }
}

fn log_store_state(logs: &Logs, figures: &StoreFigures<'_>) {
    let (name, url) = (&figures.address.name, &figures.address.url);
    let mut fields: Vec<LogField<'_>> = vec![("store", name), ("url", url)];
    if figures.is_up() {
        return logs.info("the store is available", &fields);
    }
    let why = figures.why_down().unwrap_or_else(|| "not connected yet".into());
    fields.push(("why", &why));
    logs.warn("the store is unavailable: rules follow their on_store_failure", &fields);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_is_due() {
        let sampled = WarningTimer::default();
        // at_us, due
        let rows = [
            (0, true),
            (1, false),
            (60_000_000, false),
            (60_000_001, true),
            (120_000_000, false),
            (180_000_000, true),
            (150_000_000, false),
            (100_000_000, true),
        ];
        for (at_us, due) in rows {
            assert_eq!(sampled.is_due(Micros::new(at_us)), due, "{at_us}");
        }
    }
}
