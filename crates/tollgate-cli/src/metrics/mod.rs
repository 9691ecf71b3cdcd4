//! Metrics of the server: `GET /metrics` of the admin listener.
//!
//! Events are counted where they happen; this module only reads the counters. Labels come from closed
//! sets: listeners, outcomes, reasons, statuses and, up to a bound, names of rules. Nothing that a caller
//! sends is ever a label.

pub(crate) mod exposition;
pub(crate) mod histogram;
pub(crate) mod responses;

mod decision_timing;
mod process;
mod stores;
mod waits;

use std::sync::Arc;

use tollgate::{Micros, Wait};
use tollgate_rules::{AdaptiveBoundReport, RuleSet, SettlementOutcome, SettlementTally, Verdict};

use crate::listeners::connection_caps::ConnectionCaps;
use crate::listeners::service::ListenerMetrics;
use crate::live::{LiveRules, RulesStatus};
use crate::peer_instances::PeerInstances;
use crate::server_observer::{REASONS, ServerObserver};
use crate::store::{ServerGatekeeper, ServerStore};
use crate::telemetry::Logs;
use crate::upstream::registry::UpstreamState;
use exposition::{ExpositionFormat, MetricKind, MetricValue, MetricsPage};
use responses::ResponseCounts;

pub(crate) use decision_timing::DecisionTiming;

/// Most rules with series of their own; the others are summed up under [`OTHER_RULES`].
const RULES_MAX: usize = 1_000;
/// Label of all other rules: no rule can have this name.
const OTHER_RULES: &str = "(other)";

/// Counters of a listener.
pub(crate) struct ListenerFigures {
    pub(crate) name: &'static str,
    pub(crate) caps: Arc<ConnectionCaps>,
    /// Responses by status, if the listener speaks HTTP.
    pub(crate) responses: Option<Arc<ResponseCounts>>,
    /// Metrics of this listener alone.
    pub(crate) own: Option<Arc<dyn ListenerMetrics>>,
}

/// All counters of the server.
pub(crate) struct Metrics {
    pub(crate) gatekeeper: Arc<ServerGatekeeper>,
    pub(crate) store: Arc<ServerStore>,
    pub(crate) observer: Arc<ServerObserver>,
    pub(crate) timing: Arc<DecisionTiming>,
    pub(crate) listeners: Vec<ListenerFigures>,
    pub(crate) logs: Logs,
    pub(crate) live: LiveRules,
    pub(crate) peers: PeerInstances,
    /// Start time of the process.
    pub(crate) started: Micros,
}

impl Metrics {
    /// Writes the page with all current values.
    pub(crate) fn page(&self, format: ExpositionFormat) -> String {
        let mut page = MetricsPage::new(format);
        decisions(&mut page, &self.gatekeeper.rules());
        waits::write(&mut page, &self.gatekeeper.rules());
        self.requests(&mut page);
        self.beside_decisions(&mut page);
        self.store(&mut page);
        reloads(&mut page, &self.live.status(), self.gatekeeper.rules().rules().len());
        self.listeners(&mut page);
        page.single_sample(
            "tollgate_log_lines_dropped_total",
            MetricKind::Counter,
            self.logs.dropped(),
            "Log lines dropped because the reader was too slow or writing failed.",
        );
        page.family("tollgate_build_info", MetricKind::Info, "Version of Tollgate.")
            .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1_u64);
        process::write(&mut page, self.started);
        page.finish()
    }

    /// Number of requests that wait in queues.
    pub(crate) fn requests_waiting(&self) -> usize {
        let rules = self.gatekeeper.rules();
        rules.wait_tallies().map(|(_, tally)| tally.figures().waiting).sum()
    }

    /// The upstreams of the gateway; empty without one.
    pub(crate) fn upstreams(&self) -> Vec<Arc<UpstreamState>> {
        let own = self.listeners.iter().filter_map(|listener| listener.own.as_ref());
        own.flat_map(|metrics| metrics.upstreams()).collect()
    }

    /// Number of open connections that have switched protocols.
    pub(crate) fn open_tunnels(&self) -> u64 {
        let own = self.listeners.iter().filter_map(|listener| listener.own.as_ref());
        own.map(|metrics| metrics.open_tunnels()).sum()
    }

    fn requests(&self, page: &mut MetricsPage) {
        let outcomes = self.observer.outcomes();
        page.family(
            "tollgate_requests_total",
            MetricKind::Counter,
            "Requests decided, by outcome.",
        )
        .sample(&[("outcome", "allowed")], outcomes.allowed)
        .sample(&[("outcome", "refused")], outcomes.refused.iter().sum::<u64>());
        let mut family = page.family(
            "tollgate_refusals_total",
            MetricKind::Counter,
            "Requests refused, by reason.",
        );
        for (reason, count) in REASONS.iter().zip(outcomes.refused) {
            family.sample(&[("reason", reason.name())], count);
        }
        page.family("tollgate_decision_seconds", MetricKind::Histogram, decision_timing::HELP)
            .buckets(&self.timing.buckets());
    }

    fn beside_decisions(&self, page: &mut MetricsPage) {
        let stats = self.gatekeeper.stats();
        let mut one =
            |name, kind, value: MetricValue, help| page.single_sample(name, kind, value, help);
        one(
            "tollgate_missing_facts_total",
            MetricKind::Counter,
            stats.without_fact.into(),
            "Rules that did not apply because a fact of their key was missing.",
        );
        one(
            "tollgate_unanswered_total",
            MetricKind::Counter,
            stats.unanswered.into(),
            "Checks answered with an error, because facts were missing for every rule that could refuse.",
        );
        one(
            "tollgate_left_out_limits_total",
            MetricKind::Counter,
            stats.left_out.into(),
            "Shadow and soft limits left out because more than 16 limits applied to one request.",
        );
        let bans = "Callers blocked because of their refusals.";
        one("tollgate_bans_total", MetricKind::Counter, stats.bans.into(), bans);
        one(
            "tollgate_bans_shadow_total",
            MetricKind::Counter,
            stats.shadow_bans.into(),
            "Callers that rules in shadow would have blocked because of their refusals.",
        );
        one(
            "tollgate_shadow_refusals_lost_total",
            MetricKind::Counter,
            stats.shadow_refusals_lost.into(),
            "Refusals in shadow that did not count towards a ban: too many were on their way to the store, or rules were replaced.",
        );
        one(
            "tollgate_bans_without_room_total",
            MetricKind::Counter,
            stats.bans_without_room.into(),
            "Callers that should have been blocked while the table of blocks was full.",
        );
        let open = "Open reservations.";
        one("tollgate_reservations", MetricKind::Gauge, stats.reservations.into(), open);
        let tokens = self.gatekeeper.rules().settings().identify.jwt_stats();
        page.family(
            "tollgate_tokens_total",
            MetricKind::Counter,
            "Signed tokens (JWT) in requests, by result.",
        )
        .sample(&[("result", "verified")], tokens.verified)
        .sample(&[("result", "rejected")], tokens.rejected);
        settlements(page, self.gatekeeper.settlements());
        adaptive_concurrency(page, &self.gatekeeper.adaptive_bounds());
    }

    fn store(&self, page: &mut MetricsPage) {
        let stats = self.store.memory().stats();
        stores::write(page, &self.store, self.peers.control());
        let mut one =
            |name, kind, value: MetricValue, help| page.single_sample(name, kind, value, help);
        let help = "Keys in the table; a key is one caller under one limit.";
        one("tollgate_keys", MetricKind::Gauge, stats.keys.into(), help);
        one(
            "tollgate_keys_capacity",
            MetricKind::Gauge,
            stats.slots.into(),
            "Capacity of the table, in keys.",
        );
        one(
            "tollgate_keys_evicted_total",
            MetricKind::Counter,
            stats.evicted.into(),
            "Keys evicted although they had used something.",
        );
        one(
            "tollgate_overflow_decisions_total",
            MetricKind::Counter,
            stats.overflowed.into(),
            "Decisions for keys that found no room and were counted together with others.",
        );
        let blocked = self.peers.control().map_or(stats.blocked, |all| all.blocks().len());
        one(
            "tollgate_blocks",
            MetricKind::Gauge,
            blocked.into(),
            "Callers in the table of blocks.",
        );
        let help = "Memory of the entries of sliding_window_log limits.";
        one("tollgate_log_entries_bytes", MetricKind::Gauge, stats.log_bytes.into(), help);
    }

    fn listeners(&self, page: &mut MetricsPage) {
        let listeners: Vec<_> =
            self.listeners.iter().map(|listener| (listener, listener.caps.counters())).collect();
        let mut open = page.family("tollgate_connections", MetricKind::Gauge, "Open connections.");
        for (listener, figures) in &listeners {
            open.sample(&[("listener", listener.name)], figures.open);
        }
        let help = "Connections accepted.";
        let mut accepted =
            page.family("tollgate_connections_accepted_total", MetricKind::Counter, help);
        for (listener, figures) in &listeners {
            accepted.sample(&[("listener", listener.name)], figures.accepted);
        }
        let help = "Connections refused, by the setting that they would have exceeded.";
        let mut refused =
            page.family("tollgate_connections_refused_total", MetricKind::Counter, help);
        for (listener, figures) in &listeners {
            let reasons = [
                ("max_connections", figures.refused_in_total),
                ("max_connections_per_ip", figures.refused_per_ip),
            ];
            for (reason, count) in reasons {
                refused.sample(&[("listener", listener.name), ("reason", reason)], count);
            }
        }
        let help = "Idle connections closed to make room for another.";
        let mut evicted =
            page.family("tollgate_connections_evicted_total", MetricKind::Counter, help);
        for (listener, figures) in &listeners {
            evicted.sample(&[("listener", listener.name)], figures.evicted);
        }
        let help = "Responses, by listener and status.";
        let mut sent = page.family("tollgate_http_responses_total", MetricKind::Counter, help);
        for (listener, _) in &listeners {
            for (code, count) in listener.responses.iter().flat_map(|responses| responses.sums()) {
                sent.sample(&[("listener", listener.name), ("code", code)], count);
            }
        }
        for own in self.listeners.iter().filter_map(|listener| listener.own.as_ref()) {
            own.write(page);
        }
    }
}

/// Writes the decisions of each rule. The first rules of the file have series of their own.
fn decisions(page: &mut MetricsPage, rules: &RuleSet) {
    let help = "Requests that a rule applied to, by rule and outcome: one that two rules apply to counts under both.";
    let mut family = page.family("tollgate_decisions_total", MetricKind::Counter, help);
    let mut others = [0_u64; Verdict::ALL.len()];
    for (index, (rule, tally)) in rules.tallies().enumerate() {
        for (other, verdict) in others.iter_mut().zip(Verdict::ALL) {
            let count = tally.count(verdict);
            if index < RULES_MAX {
                family.sample(&[("rule", &rule.name), ("outcome", verdict.name())], count);
            } else {
                *other += count;
            }
        }
    }
    if rules.rules().len() > RULES_MAX {
        for (count, verdict) in others.into_iter().zip(Verdict::ALL) {
            family.sample(&[("rule", OTHER_RULES), ("outcome", verdict.name())], count);
        }
    }
}

/// Costs that were settled by a response.
fn settlements(page: &mut MetricsPage, tally: &SettlementTally) {
    let help =
        "Costs that the response to a request was to show, by the place where they were found.";
    let mut settled = page.family("tollgate_settlements_total", MetricKind::Counter, help);
    let mut unreadable = Vec::new();
    for outcome in SettlementOutcome::ALL {
        let found_in = match outcome {
            SettlementOutcome::Header => "header",
            SettlementOutcome::Bytes => "bytes",
            SettlementOutcome::Json => "json",
            SettlementOutcome::Unreadable(reason) => {
                unreadable.push((reason.name(), tally.count(outcome)));
                continue;
            }
        };
        settled.sample(&[("source", found_in)], tally.count(outcome));
    }
    let help = "Costs that the response did not show, by reason.";
    let mut family =
        page.family("tollgate_settlements_unreadable_total", MetricKind::Counter, help);
    for (reason, count) in unreadable {
        family.sample(&[("reason", reason)], count);
    }
    page.single_sample(
        "tollgate_settlements_broken_total",
        MetricKind::Counter,
        tally.broken(),
        "Responses that ended early and were settled by the part that was seen.",
    );
}

/// The bounds that are found by latency. Bound: the rules with an adaptive bound among 1,024 keys, and at most
/// [`RULES_MAX`].
fn adaptive_concurrency(page: &mut MetricsPage, bounds: &[AdaptiveBoundReport]) {
    let bounds = &bounds[..bounds.len().min(RULES_MAX)];
    if bounds.is_empty() {
        // A family needs a sample.
        return;
    }
    let mut family = |name, help, value: fn(&AdaptiveBoundReport) -> MetricValue| {
        let mut family = page.family(name, MetricKind::Gauge, help);
        for bound in bounds {
            family.sample(&[("rule", &bound.rule)], value(bound));
        }
    };
    family(
        "tollgate_concurrency_limit",
        "Adaptive bound on requests in flight, by rule; the sum of the rule's keys.",
        |bound| bound.limit.into(),
    );
    family(
        "tollgate_concurrency_in_flight",
        "Requests in flight under an adaptive bound, by rule.",
        |bound| bound.in_flight.into(),
    );
    family(
        "tollgate_concurrency_latency_seconds",
        "Mean time to the head of the response under an adaptive bound, by rule; the slowest of its keys.",
        |bound| seconds(bound.mean_latency),
    );
    family(
        "tollgate_concurrency_base_latency_seconds",
        "The same without a queue at the upstream, as last measured.",
        |bound| seconds(bound.base_latency),
    );
}

fn seconds(wait: Wait) -> MetricValue {
    MetricValue::Micros(wait.as_micros().unwrap_or(0))
}

fn reloads(page: &mut MetricsPage, status: &RulesStatus, rules: usize) {
    page.family(
        "tollgate_reloads_total",
        MetricKind::Counter,
        "Times that rules were read, by result, the start included.",
    )
    .sample(&[("result", "loaded")], status.loads + 1)
    .sample(&[("result", "failed")], status.failures)
    .sample(&[("result", "unchanged")], status.unchanged);
    page.single_sample("tollgate_rules", MetricKind::Gauge, rules, "Rules in force.");
    let help = "Version of the rules in force: 1 at the start, one more with every change.";
    page.single_sample("tollgate_rules_version", MetricKind::Gauge, status.version, help);
    page.single_sample(
        "tollgate_rules_last_reload_successful",
        MetricKind::Gauge,
        status.files_are_right(),
        "1 if the rules files and the files that the rules name are valid.",
    );
    page.single_sample(
        "tollgate_rules_last_reload_success_timestamp_seconds",
        MetricKind::Gauge,
        MetricValue::Micros(status.loaded_at.as_u64()),
        "Time at which the rules in force were read, in seconds since 1970.",
    );
    page.single_sample(
        "tollgate_credentials_last_reload_successful",
        MetricKind::Gauge,
        status.credentials_failed.is_none(),
        "1 if the token files and the certificate were valid when they were last read.",
    );
}
