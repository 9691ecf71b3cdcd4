//! Warnings about what would go wrong unseen: of each kind at most one line a minute, because
//! whoever sends requests can cause them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::peer_instances::PeerInstances;
use crate::store::open_stores::StoreFigures;
use crate::store::{ServerGatekeeper, ServerStore};
use tollgate::Micros;
use tollgate::decision::MAX_LIMITS;
use tollgate_rules::RuleSet;
use tollgate_rules::descriptors::DescriptorError;
use tollgate_rules::matcher::Condition;

use crate::telemetry::{LogField, Logs};

/// Between two lines of one kind.
const SILENCE: Duration = Duration::from_secs(60);

/// How often is looked at what only counts.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the planes warn about.
pub(crate) struct Warnings {
    logs: Logs,
    untrusted_proxy: WarningTimer,
    too_many_limits: WarningTimer,
    silent_proxy: WarningTimer,
    dns_rebinding: WarningTimer,
    admin_refused: WarningTimer,
    /// Since the last line about them.
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

    /// A proxy asks whom the rules do not trust: what it says about its client is not believed, and
    /// all its clients count as one.
    #[cold]
    pub(crate) fn untrusted_proxy(&self, peer: IpAddr, now: Micros) {
        if self.untrusted_proxy.is_due(now) {
            self.logs.warn(
                "forward-auth is asked by a peer that is not trusted, and its X-Forwarded-* and \
                 X-Original-* are ignored: if it is your proxy, add it to identify.trusted_peers",
                &[("peer", &peer)],
            );
        }
    }

    /// Somebody asks under a name that a page in a browser could have: a proxy that sends its client's
    /// `Host`, or such a page.
    #[cold]
    pub(crate) fn dns_rebinding(&self, peer: IpAddr, host: Option<&str>, now: Micros) {
        if self.dns_rebinding.is_due(now) {
            self.logs.warn(
                "a request to the http listener was refused, because a page in a browser could send it under this \
                 name: if it comes from your proxy, let that send Tollgate's own address as Host, or a \
                 token (--auth-token-file)",
                &[("peer", &peer), ("host", &host.unwrap_or_default())],
            );
        }
    }

    /// A proxy that is trusted does not say what it asks about: rules about what it leaves out do not
    /// apply, and nobody would notice. `said` are method and path.
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
                "forward-auth is asked by a peer that does not say which method and path its request \
                 has, and rules about them do not apply: let it send X-Forwarded-Method and \
                 X-Forwarded-Uri, or X-Original-Method and X-Original-URI",
                &[("peer", &peer)],
            );
        }
    }
}

impl Warnings {
    /// A request of descriptors was refused because too many limits apply to it.
    #[cold]
    pub(crate) fn too_many_limits(&self, why: DescriptorError, now: Micros) {
        if self.too_many_limits.is_due(now) {
            self.logs.warn("a request of descriptors was refused", &[("reason", &why)]);
        }
    }

    /// Somebody was turned away from the admin listener: with a wrong token, or from a page.
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

    /// More sets of numbers are in use at the resp listener than are kept; so many calls had others since the
    /// start.
    #[cold]
    pub(crate) fn too_many_numbers(&self, sets: u64, calls: u64, now: Micros) {
        if self.too_many_numbers.is_due(now) {
            self.logs.warn(
                "CL.THROTTLE is called with too many different numbers: further ones are counted apart, \
                 where there is less room for keys; use one set for each kind of limit",
                &[("sets", &sets), ("calls", &calls)],
            );
        }
    }

    /// Somebody showed a wrong token at the resp listener.
    #[cold]
    pub(crate) fn wrong_token(&self, peer: SocketAddr, now: Micros) {
        let more = self.wrong_tokens.fetch_add(1, Ordering::Relaxed) + 1;
        if self.wrong_token.is_due(now) {
            self.wrong_tokens.fetch_sub(more, Ordering::Relaxed);
            let fields: [LogField<'_>; 2] = [("peer", &peer), ("since_last", &more)];
            self.logs.warn("a wrong token was shown at the resp listener", &fields);
        }
    }
}

/// Warns of limits that were left out, as long as the runtime lives.
pub(crate) async fn watch_left_out(gatekeeper: Arc<ServerGatekeeper>, logs: Logs) {
    let (sampled, mut told) = (WarningTimer::default(), 0);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let left_out = gatekeeper.stats().left_out;
        if left_out > told && sampled.is_due(gatekeeper.now()) {
            let event = format!(
                "more than {MAX_LIMITS} limits apply to a request, and the others were left out: \
                 narrow the rules down"
            );
            logs.warn(&event, &[("left_out", &(left_out - told))]);
            told = left_out;
        }
    }
}

/// Says when the next line is due.
#[derive(Debug, Default)]
struct WarningTimer {
    /// The instant of the last line, in microseconds; 0 before the first.
    last_us: AtomicU64,
}

impl WarningTimer {
    /// Whether a line may be written now; only one of those who ask at once may.
    fn is_due(&self, now: Micros) -> bool {
        let (last_us, now_us) = (self.last_us.load(Ordering::Relaxed), now.as_u64().max(1));
        // A clock that was set back must not make it silent for as long.
        let silent_us = last_us.abs_diff(now_us);
        if last_us > 0 && silent_us < SILENCE.as_micros() as u64 {
            return false;
        }
        let order = Ordering::Relaxed;
        self.last_us.compare_exchange(last_us, now_us, order, order).is_ok()
    }
}

/// Tells when a shared store stops answering, when it is back, and what is wrong with its settings.
pub(crate) async fn watch_store(store: Arc<ServerStore>, logs: Logs) {
    let Some(store) = store.shared() else { return };
    // Of each store: whether it answered, and what was said about its settings.
    let mut last: Vec<(Option<bool>, Option<String>)> = Vec::new();
    loop {
        // Before the first look as well: connecting takes a moment.
        tokio::time::sleep(LOOK_EVERY).await;
        let figures = store.figures();
        last.resize(figures.len(), (None, None));
        for (figures, (up, warned)) in figures.iter().zip(&mut last) {
            let name = &figures.address.name;
            if up.replace(figures.is_up()) != Some(figures.is_up()) {
                log_store_state(&logs, figures);
            }
            let warning = &figures.health().warning;
            if warning.is_some() && *warning != *warned {
                let warning = warning.as_deref().unwrap_or_default();
                let fields: [LogField<'_>; 2] = [("store", name), ("warning", &warning)];
                logs.warn("the store is set up so that limits may forget", &fields);
            }
            warned.clone_from(warning);
        }
    }
}

/// Looks in a row at which instances could not tell each other, before that is worth a line: a store that
/// was restarted has a moment.
const LOOKS_WITHOUT_PEERS: u32 = 5;

/// Warns when instances cannot tell each other what an operator does although their store answers
/// decisions: nothing else would show it.
pub(crate) async fn watch_peers(
    others: PeerInstances,
    gatekeeper: Arc<ServerGatekeeper>,
    store: Arc<ServerStore>,
    logs: Logs,
) {
    let Some(store) = store.shared() else { return };
    let (sampled, mut without) = (WarningTimer::default(), 0);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(control) = others.control() else { return };
        let up = store.figures().first().is_some_and(StoreFigures::is_up);
        let why = control.last_error().filter(|_| up);
        without = if why.is_some() { without + 1 } else { 0 };
        if let Some(why) = why.filter(|_| without >= LOOKS_WITHOUT_PEERS)
            && sampled.is_due(gatekeeper.now())
        {
            logs.warn(
                "servers on the store cannot tell each other of blocks, overrides and rules, although \
                 it answers: look at what it says, and at the rights of its user",
                &[("why", &why)],
            );
        }
    }
}

fn log_store_state(logs: &Logs, figures: &StoreFigures<'_>) {
    let (name, url) = (&figures.address.name, &figures.address.url);
    let mut fields: Vec<LogField<'_>> = vec![("store", name), ("url", url)];
    if figures.is_up() {
        return logs.info("the store answers", &fields);
    }
    let why = figures.why_down().unwrap_or_else(|| "not connected yet".into());
    fields.push(("why", &why));
    logs.warn("the store does not answer: rules go by their on_store_failure", &fields);
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
