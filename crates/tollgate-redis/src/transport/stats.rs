//! Figures about the connections of a store, for metrics and diagnosis.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{ErrorClass, StoreError};

/// Counted by all nodes of a store together.
#[derive(Debug, Default)]
pub(crate) struct LinkCounters {
    calls: AtomicU64,
    answered: AtomicU64,
    retries: AtomicU64,
    flights: AtomicU64,
    commands: AtomicU64,
    calls_sent: AtomicU64,
    connections: AtomicU64,
    refreshes: AtomicU64,
    /// Counters by the number of the class. Bound: one for each class.
    errors: [AtomicU64; ErrorClass::ALL.len()],
}

impl LinkCounters {
    pub(crate) fn called(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn sent_flight(&self, calls: usize, commands: usize) {
        self.flights.fetch_add(1, Ordering::Relaxed);
        self.commands.fetch_add(commands as u64, Ordering::Relaxed);
        self.calls_sent.fetch_add(calls as u64, Ordering::Relaxed);
    }

    pub(crate) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refreshed(&self) {
        self.refreshes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, class: ErrorClass) {
        self.errors[class as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self, nodes: Vec<NodeStats>, health: Health) -> LinkStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LinkStats {
            calls: load(&self.calls),
            answered: load(&self.answered),
            retries: load(&self.retries),
            flights: load(&self.flights),
            commands: load(&self.commands),
            calls_sent: load(&self.calls_sent),
            connections: load(&self.connections),
            refreshes: load(&self.refreshes),
            errors: ErrorClass::ALL.map(|class| (class, load(&self.errors[class as usize]))),
            nodes,
            health,
        }
    }
}

/// Figures about the connections of a store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkStats {
    /// Calls that were asked for.
    pub calls: u64,
    /// Calls that were answered in time.
    pub answered: u64,
    /// Calls that were asked again, at the same node or another.
    pub retries: u64,
    /// Times that something was written.
    pub flights: u64,
    /// Commands that were written: script calls, and others.
    pub commands: u64,
    /// Calls in those commands; divided by them, how many share one.
    pub calls_sent: u64,
    /// Connections that became ready.
    pub connections: u64,
    /// Times that the map of a cluster was read.
    pub refreshes: u64,
    /// Failures by class, those included that a second try made good.
    pub errors: [(ErrorClass, u64); ErrorClass::ALL.len()],
    /// Servers that are known. Bound: as many as a cluster may have.
    pub nodes: Vec<NodeStats>,
    /// The result of the periodic check.
    pub health: Health,
}

impl LinkStats {
    /// Failures of a class, those included that a second try made good.
    pub fn errors_of(&self, class: ErrorClass) -> u64 {
        self.errors[class as usize].1
    }

    /// Returns true if any server is connected.
    pub fn is_up(&self) -> bool {
        self.nodes.iter().any(|node| node.up)
    }
}

/// Figures about one server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStats {
    /// Host and port, or the path of a socket; empty as long as it is not known.
    pub address: String,
    /// True if it is connected.
    pub up: bool,
    /// The error of the last attempt to connect, if it failed.
    pub down: Option<StoreError>,
    /// True if calls are refused because it has not answered lately.
    pub breaker_open: bool,
    /// Number of times that the breaker opened.
    pub breaker_opened: u64,
    /// Time until the next call is let through.
    pub breaker_wait: Duration,
    /// Calls that wait to be sent.
    pub waiting: usize,
    /// Calls that are sent and not answered.
    pub in_flight: usize,
}

/// The result of the periodic check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// The server's version, once it is known.
    pub version: Option<String>,
    /// True if the server may evict states when its memory is full; then limits forget.
    pub evicts: Option<bool>,
    /// A warning for operators, in one sentence.
    pub warning: Option<String>,
}
