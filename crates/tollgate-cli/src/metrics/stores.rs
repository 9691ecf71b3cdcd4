//! Metrics of the store: its availability, and decisions made without it.
//!
//! Labels are names of stores, from the settings, and words of closed lists. Families of a shared store
//! exist only with one.

use tollgate_redis::SharedStats;
use tollgate_redis::instances::{InstanceChannel, SealRefusal};

use super::exposition::{MetricKind, MetricValue, MetricsPage};
use crate::store::ServerStore;
use crate::store::open_stores::{OpenStores, StoreFigures};

pub(super) fn write(
    page: &mut MetricsPage,
    store: &ServerStore,
    control: Option<&InstanceChannel>,
) {
    let help = "1 while the store answers.";
    let mut up = page.family("tollgate_store_up", MetricKind::Gauge, help);
    let figures = store.shared().map(OpenStores::figures).unwrap_or_default();
    for store in &figures {
        up.sample(&[("store", &store.address.name)], store.is_up());
    }
    if store.shared().is_none() {
        up.sample(&[("store", "memory")], true);
    }
    let stats = store.shared().map(OpenStores::stats).unwrap_or_default();
    let SharedStats { degraded_local, degraded_open, degraded_closed, .. } = stats;
    let help = "Checks answered without the store, by the rule's on_store_failure.";
    page.family("tollgate_degraded_total", MetricKind::Counter, help)
        .sample(&[("policy", "local")], degraded_local)
        .sample(&[("policy", "open")], degraded_open)
        .sample(&[("policy", "closed")], degraded_closed);
    if store.shared().is_some() {
        links(page, &figures);
        values(page, &figures);
        let help = "Times that the store had lost data that it had before.";
        let family = ("tollgate_store_data_lost_total", MetricKind::Counter, help);
        family_per_store(page, family, &figures, |store| store.data_losses.into());
        hot_keys(page, &stats);
    }
    if let Some(control) = control {
        instances(page, control);
    }
}

/// Writes one family with a sample for each store.
fn family_per_store(
    page: &mut MetricsPage,
    (name, kind, help): (&'static str, MetricKind, &str),
    stores: &[StoreFigures<'_>],
    value: impl Fn(&StoreFigures<'_>) -> MetricValue,
) {
    let mut family = page.family(name, kind, help);
    for store in stores {
        family.sample(&[("store", &store.address.name)], value(store));
    }
}

/// Writes the families of the connections to each store.
fn links(page: &mut MetricsPage, stores: &[StoreFigures<'_>]) {
    let help = "Calls to the store that failed, by class; including those that a retry repaired.";
    let mut errors = page.family("tollgate_store_errors_total", MetricKind::Counter, help);
    for store in stores {
        for (class, count) in store.link.errors {
            let labels = [("store", &*store.address.name), ("class", class.name())];
            errors.sample(&labels, count);
        }
    }
    let counter = |name, help| (name, MetricKind::Counter, help);
    let gauge = |name, help| (name, MetricKind::Gauge, help);
    let calls = counter("tollgate_store_calls_total", "Calls to the store.");
    family_per_store(page, calls, stores, |store| store.link.calls.into());
    let batches = "Commands that carried the calls: waiting calls are batched.";
    let batches = counter("tollgate_store_batches_total", batches);
    family_per_store(page, batches, stores, |store| store.link.commands.into());
    let retries = counter("tollgate_store_retries_total", "Calls that were retried.");
    family_per_store(page, retries, stores, |store| store.link.retries.into());
    let connections = counter("tollgate_store_connections_total", "Connections made to the store.");
    family_per_store(page, connections, stores, |store| store.link.connections.into());
    let open = "Servers of the store whose circuit breaker is open, because they have not answered lately.";
    family_per_store(page, gauge("tollgate_store_breakers_open", open), stores, |store| {
        store.link.nodes.iter().filter(|node| node.breaker_open).count().into()
    });
    let opened = counter("tollgate_store_breaker_opened_total", "Times that a breaker opened.");
    family_per_store(page, opened, stores, |store| {
        store.link.nodes.iter().map(|node| node.breaker_opened).sum::<u64>().into()
    });
    let flight = "Calls that wait to be sent or answered.";
    family_per_store(page, gauge("tollgate_store_in_flight", flight), stores, |store| {
        store.link.nodes.iter().map(|node| node.waiting + node.in_flight).sum::<usize>().into()
    });
    let evicts = "1 if the store may evict limits when its memory is full.";
    family_per_store(page, gauge("tollgate_store_evicts", evicts), stores, |store| {
        store.health().evicts.unwrap_or(false).into()
    });
}

/// Writes the families of the values in each store.
fn values(page: &mut MetricsPage, stores: &[StoreFigures<'_>]) {
    let unreadable =
        "Values in the store that are foreign or damaged; each was treated as nothing used.";
    let unreadable = ("tollgate_store_unreadable_values_total", MetricKind::Counter, unreadable);
    family_per_store(page, unreadable, stores, |store| store.values.unreadable.into());
    let mismatches = "Decisions in which the script and this program disagreed: a bug.";
    let mismatches = ("tollgate_store_mismatches_total", MetricKind::Counter, mismatches);
    family_per_store(page, mismatches, stores, |store| store.values.mismatches.into());
    let retold = "Requests that took more than one call.";
    let retold = ("tollgate_store_retold_total", MetricKind::Counter, retold);
    family_per_store(page, retold, stores, |store| store.values.multi_call.into());
}

/// Writes the families of decisions made without a call to the store.
fn hot_keys(page: &mut MetricsPage, stats: &SharedStats) {
    let mut one = |name, kind, value: u64, help: &str| page.single_sample(name, kind, value, help);
    let help = "Refusals answered from the cache, without calling the store.";
    one("tollgate_refusal_cache_total", MetricKind::Counter, stats.refusals_cached, help);
    let help = "Units leased in advance, for rules with `consistency: leased`.";
    one("tollgate_lease_units_total", MetricKind::Counter, stats.units_lent, help);
    let help = "Leased units that were returned.";
    one("tollgate_lease_units_returned_total", MetricKind::Counter, stats.units_returned, help);
    let help = "Leased units that were neither spent nor returned.";
    one("tollgate_lease_units_unused_total", MetricKind::Counter, stats.units_unused, help);
    one("tollgate_leases", MetricKind::Gauge, stats.leases, "Keys that hold leased units now.");
    let help = "Keys that are decided locally and synced to the store afterwards.";
    one("tollgate_local_sync_keys", MetricKind::Gauge, stats.sync_keys, help);
    let help = "Units not yet synced to the store.";
    one("tollgate_local_sync_untold_units", MetricKind::Gauge, stats.sync_units_unsent, help);
    let help = "Failed syncs.";
    one("tollgate_local_sync_failures_total", MetricKind::Counter, stats.sync_failures, help);
    let help = "Keys that the store decided, because too many others are synced afterwards.";
    one(
        "tollgate_local_sync_without_room_total",
        MetricKind::Counter,
        stats.sync_without_room,
        help,
    );
    let help = "Units of failed syncs that the store may have received: they are not sent again.";
    one(
        "tollgate_local_sync_unsure_units_total",
        MetricKind::Counter,
        stats.sync_units_uncertain,
        help,
    );
    let help = "Refunds and charges queued until the store answers again.";
    one("tollgate_store_owed", MetricKind::Gauge, stats.pending_changes, help);
    let help = "Charges for work already done that were lost: they stay uncharged.";
    one("tollgate_store_charges_lost_total", MetricKind::Counter, stats.charges_lost, help);
    let help = "Refunds that may not have reached the store: their units stay charged.";
    one("tollgate_store_refunds_lost_total", MetricKind::Counter, stats.refunds_lost, help);
    let help = "The largest part of a limit that all servers held unspent at once.";
    let ratio = MetricValue::Micros(stats.outstanding_max_millionths);
    page.single_sample("tollgate_lease_outstanding_max_ratio", MetricKind::Gauge, ratio, help);
}

/// Writes the families of the exchange between instances.
fn instances(page: &mut MetricsPage, control: &InstanceChannel) {
    let stats = control.stats();
    let help = "Live servers on the store, this one included.";
    page.single_sample(
        "tollgate_instances",
        MetricKind::Gauge,
        u64::from(stats.live_instances.max(1)),
        help,
    );
    let help = "Blocks, overrides and rules not yet sent to the other servers.";
    page.single_sample("tollgate_control_untold", MetricKind::Gauge, stats.unpublished, help);
    page.family(
        "tollgate_control_calls_total",
        MetricKind::Counter,
        "Exchanges with the other servers, by result.",
    )
    .sample(&[("result", "answered")], stats.calls)
    .sample(&[("result", "failed")], stats.failures);
    let help =
        "Blocks and overrides that apply on this server only, because the store holds the maximum.";
    page.single_sample("tollgate_control_no_room_total", MetricKind::Counter, stats.no_room, help);
    let help =
        "Blocks, overrides and rules in the store that cannot be read, each time they are seen.";
    page.single_sample(
        "tollgate_control_unreadable_total",
        MetricKind::Counter,
        stats.unreadable_facts,
        help,
    );
    let help =
        "Overrides and rules in the store that were not taken, by reason, each time they are seen.";
    let mut refused = page.family("tollgate_control_refused_total", MetricKind::Counter, help);
    for (reason, count) in SealRefusal::ALL.into_iter().zip(stats.refused_facts) {
        refused.sample(&[("reason", reason.name())], count);
    }
}
