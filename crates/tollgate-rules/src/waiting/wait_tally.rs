//! `WaitTally`: counts of the requests of one rule that waited.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tollgate::Wait;

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitOutcome {
    /// It was its turn, and the request was admitted.
    Admitted,
    /// A limit with `queue: true` delayed the request, which was admitted before.
    Delayed,
    /// The longest wait was over.
    Expired,
    /// The request had to make room for a caller with fewer waiting requests.
    Displaced,
    /// The queue was full, so the request did not wait.
    Full,
    /// It was its turn, or it was about to wait, and no further wait could help.
    Refused,
    /// The client left, while it waited or while the store was asked about it.
    Left,
}

impl WaitOutcome {
    /// All of them.
    pub const ALL: [WaitOutcome; 7] = [
        WaitOutcome::Admitted,
        WaitOutcome::Delayed,
        WaitOutcome::Expired,
        WaitOutcome::Displaced,
        WaitOutcome::Full,
        WaitOutcome::Refused,
        WaitOutcome::Left,
    ];

    /// The name in metrics and on the admin API.
    pub fn name(self) -> &'static str {
        match self {
            WaitOutcome::Admitted => "admitted",
            WaitOutcome::Delayed => "delayed",
            WaitOutcome::Expired => "expired",
            WaitOutcome::Displaced => "displaced",
            WaitOutcome::Full => "full",
            WaitOutcome::Refused => "refused",
            WaitOutcome::Left => "left",
        }
    }
}

/// Upper bounds of the buckets of wait times, in milliseconds; one more bucket holds longer waits.
pub const WAIT_BUCKETS_MS: [u64; 11] =
    [1, 5, 10, 50, 100, 500, 1_000, 2_000, 5_000, 10_000, 60_000];

/// The waits of one rule so far.
#[derive(Debug, Default)]
pub struct WaitTally {
    waiting: AtomicUsize,
    /// Those of them that wait in a fair queue. The others are delayed and take no place there.
    queued: AtomicUsize,
    outcomes: [AtomicU64; WaitOutcome::ALL.len()],
    /// Waits that ended with an admission, by duration.
    buckets: [AtomicU64; WAIT_BUCKETS_MS.len() + 1],
    sum_us: AtomicU64,
}

/// A copy of the counts of a [`WaitTally`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitFigures {
    /// Requests that wait now.
    pub waiting: usize,
    /// Waits that have ended, in the order of [`WaitOutcome::ALL`].
    pub outcomes: [u64; WaitOutcome::ALL.len()],
    /// Waits that ended with an admission, by the bounds of [`WAIT_BUCKETS_MS`]; the last are longer.
    pub buckets: [u64; WAIT_BUCKETS_MS.len() + 1],
    /// Sum of these waits, in microseconds.
    pub sum_us: u64,
}

impl WaitFigures {
    /// Adds the counts of another rule.
    pub fn add(&mut self, other: &WaitFigures) {
        self.waiting += other.waiting;
        self.sum_us += other.sum_us;
        let counters = self.outcomes.iter_mut().zip(other.outcomes);
        let buckets = self.buckets.iter_mut().zip(other.buckets);
        counters.chain(buckets).for_each(|(sum, more)| *sum += more);
    }

    /// Number of waits that ended like this.
    pub fn count(&self, outcome: WaitOutcome) -> u64 {
        self.outcomes[outcome as usize]
    }
}

impl WaitTally {
    /// The counts now.
    pub fn figures(&self) -> WaitFigures {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WaitFigures {
            waiting: self.waiting.load(Ordering::Relaxed),
            outcomes: self.outcomes.each_ref().map(count),
            buckets: self.buckets.each_ref().map(count),
            sum_us: count(&self.sum_us),
        }
    }

    /// Number of requests that wait in a fair queue now.
    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Counts a request that begins to wait in a fair queue.
    pub(super) fn begin_queued(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        self.begin();
    }

    /// Counts the end of a wait that [`begin_queued`](WaitTally::begin_queued) counted.
    pub(super) fn end_queued(&self, outcome: WaitOutcome, waited: Wait) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
        self.end(outcome, waited);
    }

    /// Counts a request that begins to wait.
    pub(super) fn begin(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a wait that [`begin`](WaitTally::begin) counted.
    pub(super) fn end(&self, outcome: WaitOutcome, waited: Wait) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.count(outcome);
        if matches!(outcome, WaitOutcome::Admitted | WaitOutcome::Delayed) {
            let waited_us = waited.as_micros().unwrap_or_default();
            let bucket = WAIT_BUCKETS_MS.partition_point(|most_ms| most_ms * 1_000 < waited_us);
            self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
            self.sum_us.fetch_add(waited_us, Ordering::Relaxed);
        }
    }

    /// Counts a request that did not wait.
    pub(super) fn count(&self, outcome: WaitOutcome) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }
}
