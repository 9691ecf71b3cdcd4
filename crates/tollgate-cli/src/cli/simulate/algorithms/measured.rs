//! Measurements of one limit with each algorithm: the most that a burst gets, the most that an adversary gets in a
//! period, memory for each key, time for each check.
//!
//! Bursts are counted on a virtual clock, memory is what a filled store has allocated: both are the same in every run.
//! The time is that of this machine.

use tollgate::{Check, Clock, Limit, MemoryStore, Micros, SystemClock};

use super::course::most_in;

/// Start of the probes: long after the epoch.
const START_US: u64 = 1 << 50;

/// Most requests of one probe.
const PROBE_REQUESTS_MAX: u64 = 200_000;

/// Polls of the adversary in each period.
const POLLS: u64 = 1_000;

/// Keys of the table that memory and time are measured on.
pub(super) const KEYS: u64 = 40_000;

/// Most requests for each key before memory is read: a log has an entry for each of them.
const REQUESTS_PER_KEY_MAX: u64 = 10;

/// Bytes of log entries: enough for every key.
const LOG_BYTES: usize = 1 << 30;

/// Rounds of timing; the median counts.
const ROUNDS: usize = 5;

/// Checks of a round. Each key is checked once, with the unit that it has left.
const TIMED_CHECKS: u64 = KEYS / ROUNDS as u64;

/// The measurements of one limit.
#[derive(Debug)]
pub(super) struct MeasuredLimit {
    /// Units that a rested caller is served at one instant; `None` if counting them takes too many requests.
    pub(super) at_once: Option<u64>,
    /// Units that an adversary is served in some period; `None` as above.
    pub(super) attacked: Option<u64>,
    /// Memory that the store has taken for each key.
    pub(super) bytes_per_key: u64,
    pub(super) ns_per_check: u64,
}

/// Measures each limit.
pub(super) fn measure(limits: &[&Limit]) -> Vec<MeasuredLimit> {
    let filled: Vec<FilledStore<'_>> = limits.iter().map(|limit| FilledStore::new(limit)).collect();
    let mut times: Vec<Vec<u64>> = vec![Vec::new(); limits.len()];
    // In turn, so that a busy moment of the machine does not fall on one algorithm.
    for round in 0..ROUNDS as u64 {
        for (store, times) in filled.iter().zip(&mut times) {
            times.push(store.time_checks(round));
        }
    }
    let measured = filled.iter().zip(times).map(|(store, mut times)| {
        times.sort_unstable();
        MeasuredLimit {
            at_once: at_once(store.limit),
            attacked: attacked(store.limit),
            bytes_per_key: store.bytes_per_key(),
            ns_per_check: times[ROUNDS / 2],
        }
    });
    measured.collect()
}

/// Requests of each key before memory is read. The last unit stays, so that a check is an admission when it is timed.
pub(super) fn requests_per_key(limit: &Limit) -> u64 {
    limit.capacity().saturating_sub(1).clamp(1, REQUESTS_PER_KEY_MAX)
}

/// A caller of one key who notes when it is served.
struct ProbeCaller<'a> {
    limit: &'a Limit,
    store: MemoryStore,
    requests: u64,
    /// Instants at which units are served. Bound: [`PROBE_REQUESTS_MAX`].
    served: Vec<(u64, u64)>,
}

impl ProbeCaller<'_> {
    fn new(limit: &Limit) -> ProbeCaller<'_> {
        ProbeCaller { limit, store: MemoryStore::new(1), requests: 0, served: Vec::new() }
    }

    /// The most units that were served in a time of this length; `None` if the requests did not suffice to find out.
    fn most_in(self, length_us: u64) -> Option<u64> {
        (self.requests < PROBE_REQUESTS_MAX).then(|| most_in(self.served, length_us))
    }

    /// Asks for one unit after the other at one instant, until one is refused.
    fn take_all(&mut self, at_us: u64) {
        while self.requests < PROBE_REQUESTS_MAX {
            self.requests += 1;
            let check = Check::new(self.limit, b"probe".as_slice());
            let decision = self.store.decide_one(&check, Micros::new(at_us));
            if !decision.allowed() {
                return;
            }
            self.served.push((at_us + decision.delay().as_micros().unwrap_or(0), 1));
        }
    }
}

/// The most units that are served at one instant.
fn at_once(limit: &Limit) -> Option<u64> {
    let mut caller = ProbeCaller::new(limit);
    caller.take_all(START_US);
    caller.most_in(1)
}

/// The most units that are served in a period to one who takes all in the last microsecond of a window, and then
/// whatever is given for two periods.
fn attacked(limit: &Limit) -> Option<u64> {
    let period_us = limit.period_us();
    let boundary = (START_US / period_us + 1) * period_us;
    let mut caller = ProbeCaller::new(limit);
    caller.take_all(boundary - 1);
    for poll in 0..=2 * POLLS {
        caller.take_all(boundary + period_us * poll / POLLS);
    }
    caller.most_in(period_us)
}

/// A store with many keys that have used the limit.
struct FilledStore<'a> {
    limit: &'a Limit,
    store: MemoryStore,
    full_at: u64,
}

impl FilledStore<'_> {
    fn new(limit: &Limit) -> FilledStore<'_> {
        let store = MemoryStore::with_log_bytes(KEYS as usize, LOG_BYTES);
        let mut full_at = START_US;
        for _ in 0..requests_per_key(limit) {
            full_at += 1;
            for key in 0..KEYS {
                take(&store, limit, key, full_at);
            }
        }
        FilledStore { limit, store, full_at }
    }

    fn bytes_per_key(&self) -> u64 {
        let stats = self.store.stats();
        ((stats.slot_bytes + stats.log_bytes) / stats.keys.max(1)) as u64
    }

    /// Nanoseconds for each check. Each round has keys of its own, in no order.
    fn time_checks(&self, round: u64) -> u64 {
        let clock = SystemClock;
        let began = clock.now();
        for check in 0..TIMED_CHECKS {
            // A prime number of steps goes through all keys.
            let key = (round * TIMED_CHECKS + check).wrapping_mul(7_919) % KEYS;
            take(&self.store, self.limit, key, self.full_at + 1);
        }
        let taken_us = began.until(clock.now()).as_micros().unwrap_or(0);
        taken_us * 1_000 / TIMED_CHECKS
    }
}

fn take(store: &MemoryStore, limit: &Limit, key: u64, at_us: u64) {
    let key = key.to_le_bytes();
    let _ = store.decide_one(&Check::new(limit, key.as_slice()), Micros::new(at_us));
}

#[cfg(test)]
mod tests {
    use tollgate::Algorithm;

    use super::*;

    fn limit(algorithm: Algorithm) -> Limit {
        Limit::per_minute(100).algorithm(algorithm).build().unwrap()
    }

    #[test]
    fn probes_find_the_known_extremes() {
        let table = [
            (Algorithm::FixedWindow, 100, 200),
            (Algorithm::SlidingWindowLog, 100, 100),
            (Algorithm::SlidingWindowCounter, 100, 200),
        ];
        for (algorithm, burst, most) in table {
            let limit = limit(algorithm);
            let found = (at_once(&limit), attacked(&limit));
            assert_eq!(found, (Some(burst), Some(most)), "{algorithm:?}");
        }
        let bucket = Limit::per_minute(100).burst(20).build().unwrap();
        // Not 120: the hundredth unit comes back a whole period after the burst, and a window excludes its start.
        assert_eq!((at_once(&bucket), attacked(&bucket)), (Some(20), Some(119)));
        let queue = Limit::per_minute(100).burst(20).algorithm(Algorithm::LeakyBucket).queue();
        let queue = queue.build().unwrap();
        assert_eq!((at_once(&queue), attacked(&queue)), (Some(1), Some(100)));
    }

    #[test]
    fn what_takes_too_many_requests_is_not_guessed() {
        let limit = Limit::per_minute(PROBE_REQUESTS_MAX).build().unwrap();
        assert_eq!((at_once(&limit), attacked(&limit)), (None, None));
    }
}
