//! Waiting: requests that are refused for now wait their turn, if their rule has a fair queue.
//!
//! A request waits where it cannot go on: at its *bottleneck*, which is the limit and key that
//! refused it, or the `concurrency` of a rule and its key. Each bottleneck has a queue, and the keys
//! of the `fair` rule are its flows. A caller who waits for a limit of its own is alone in that
//! queue and holds nobody back.
//!
//! Only the first of a queue ask the store again: one at a time, and more at once while they are admitted, because a store
//! behind a network takes its time. Only one of them has a timer however long the queue is.
//! A request that waits has charged nothing: whoever leaves has nothing to give back. Requests of
//! other rules neither wait nor are held back.
//!
//! ```text
//! admission.rs         from a request to its queue, and from its turn to its answer
//! waiting_request.rs    one request in its queue: waits for its turn or its deadline
//! bottleneck_queues.rs the queues, and who may try
//! decision_watch.rs    clients that leave while a store decides
//! departures.rs        admitted requests that a limit with `queue: true` delays
//! line_pace.rs         their pace when the limit changes
//! unread_body.rs       the look at a request before its body is read
//! wait_budget.rs        who would wait in vain
//! wait_tally.rs        counts by rule
//! ```

mod admission;
mod bottleneck_queues;
mod decision_watch;
mod departures;
mod head_timer;
mod line_pace;
mod unread_body;
mod wait_budget;
mod wait_tally;
mod waiting_request;

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::time::Duration;

use tollgate::queue::FlowKey;
use tollgate::{KeyBuf, Limit, Micros};

use bottleneck_queues::BottleneckQueues;
pub(crate) use decision_watch::DecisionWatch;
use departures::DepartureLines;

use crate::rule_set::RuleSet;

pub use admission::PatienceFn;
pub use bottleneck_queues::WAITING_MAX;
pub use departures::Departure;
pub use unread_body::BodyNeed;
pub use wait_tally::{WAIT_BUCKETS_MS, WaitFigures, WaitOutcome, WaitTally};
pub use waiting_request::WaitingRequest;

/// A function that sleeps, such as one around `tokio::time::sleep`.
pub type TurnSleepFn = dyn Fn(Duration) -> BoxedSleep + Send + Sync;

/// A future that sleeps.
pub type BoxedSleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The place where requests wait: the hash of a limit and its key, or of a rule's `concurrency` and
/// its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BottleneckId(pub(crate) u64);

/// Everything that waits in this process.
#[derive(Debug, Default)]
pub(crate) struct WaitingTables {
    queues: BottleneckQueues,
    lines: DepartureLines,
    /// Hashes keys, so that nobody can aim at another caller's queue.
    secret: RandomState,
}

impl WaitingTables {
    /// Number of requests that wait.
    pub(crate) fn len(&self) -> usize {
        self.queues.len() + self.lines.len()
    }

    /// Lets everybody find out what it waits for by new rules.
    #[cold]
    pub(crate) fn wake_all(&self) {
        if self.queues.anybody_waits() {
            self.queues.wake_all();
        }
    }

    /// The bottleneck of a limit and the key that it counts.
    fn limit(&self, limit: &Limit, key: &KeyBuf) -> BottleneckId {
        BottleneckId(self.secret.hash_one((limit.id(), key)))
    }

    /// The flow of a caller under a rule.
    fn flow(&self, rule_hash: u64, key: &KeyBuf) -> FlowKey {
        FlowKey(self.secret.hash_one((rule_hash, key)))
    }

    /// Lets the head of a queue try again, because work has ended that it waits for.
    #[inline]
    pub(crate) fn free(&self, bottlenecks: impl IntoIterator<Item = BottleneckId>) {
        if self.queues.anybody_waits() {
            bottlenecks.into_iter().for_each(|one| self.queues.free(one));
        }
    }

    /// Lets the heads of all queues try again, and all lines follow their limits, because rules have changed.
    #[cold]
    pub(crate) fn rules_changed(&self, rules: &RuleSet, now: Micros) {
        if self.queues.anybody_waits() {
            self.queues.free_all();
        }
        self.lines.follow_rules(rules, now);
    }

    /// Lets the head of a limit's queue try again, because units were given back.
    #[inline]
    pub(crate) fn free_limit(&self, limit: &Limit, key: &KeyBuf) {
        if self.queues.anybody_waits() {
            self.queues.free(self.limit(limit, key));
        }
    }
}
