//! The contestants: each decides a block of keys as its users would call it.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, RateLimiter};
use tollgate::{Algorithm, Check, Clock, Decision, Limit, Limiter, Micros, SystemClock};
use tollgate_bench::keys::KeyStream;

use crate::floor::FloorLimiter;

/// Number of checks in one call of `decide_batch`.
const BATCH: usize = 64;

pub(crate) const GOVERNOR: &str = "governor keyed (DashMap)";
pub(crate) const FLOOR: &str = "floor";
pub(crate) const FLOOR_BATCH: &str = "floor batched";
pub(crate) const TOLLGATE: &str = "tollgate token_bucket";
pub(crate) const TOLLGATE_BATCH: &str = "tollgate batch";

/// The state of the limits under the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LibraryQuota {
    /// 1 million per second, burst 4 billion, of which every key has used a part: every check finds a state and
    /// writes it.
    Allowed,
    /// 1 per hour, burst 1: every check finds a state and leaves it unchanged.
    Refused,
    /// 1 million per second, burst 10: the bucket is full again at every check, so a limiter may have evicted it.
    Idle,
}

impl LibraryQuota {
    pub(crate) fn name(self) -> &'static str {
        match self {
            LibraryQuota::Allowed => "allowed",
            LibraryQuota::Refused => "refused",
            LibraryQuota::Idle => "idle",
        }
    }

    /// Units per period, the period in seconds, and the burst.
    fn numbers(self) -> (u32, u64, u32) {
        match self {
            LibraryQuota::Allowed => (1_000_000, 1, 4_000_000_000),
            LibraryQuota::Refused => (1, 3_600, 1),
            LibraryQuota::Idle => (1_000_000, 1, 10),
        }
    }
}

/// A limiter that is measured.
pub(crate) trait LibraryContestant: Sync {
    fn name(&self) -> &'static str;

    /// Gives every key its state before the clock starts.
    fn fill(&self, stream: &KeyStream, desk: &mut CallerBuffers) {
        self.ask(stream, 0..stream.len(), desk);
    }

    /// Checks the keys of `stream` in `range`, one after the other.
    fn ask(&self, stream: &KeyStream, range: Range<usize>, desk: &mut CallerBuffers);
}

/// Buffers that a caller reuses for all of its checks.
#[derive(Default)]
pub(crate) struct CallerBuffers {
    key: String,
    decisions: Vec<Decision>,
}

/// The wanted contestants with room for `keys` keys, still empty.
pub(crate) fn all(
    keys: u64,
    quota: LibraryQuota,
    wanted: impl Fn(&'static str) -> bool,
) -> Vec<Box<dyn LibraryContestant>> {
    let (units, period, burst) = quota.numbers();
    let mut contestants: Vec<Box<dyn LibraryContestant>> = Vec::new();
    if wanted(GOVERNOR) {
        contestants.push(Box::new(GovernorContestant::new(quota)));
    }
    if wanted(FLOOR) || wanted(FLOOR_BATCH) {
        let interval_us = period * 1_000_000 / u64::from(units);
        let table = Arc::new(FloorLimiter::new(keys, interval_us, burst.into()));
        contestants.push(Box::new(FloorContestant { table: Arc::clone(&table), batched: false }));
        contestants.push(Box::new(FloorContestant { table, batched: true }));
    }
    if wanted(TOLLGATE) || wanted(TOLLGATE_BATCH) {
        let limiter = Arc::new(Limiter::with_capacity(keys as usize));
        let limit = Limit::per(units.into(), Duration::from_secs(period)).burst(burst.into());
        let limit = limit.build().expect("numbers within the ranges of semantics 1");
        let used = match quota {
            LibraryQuota::Allowed => 1_000_000_000,
            LibraryQuota::Refused => 1,
            LibraryQuota::Idle => 0,
        };
        // Both use one limiter, so its keys are charged twice before the start if the quota allows it.
        for (name, batched) in [(TOLLGATE, false), (TOLLGATE_BATCH, true)] {
            let (limiter, limit) = (Arc::clone(&limiter), limit.clone());
            contestants.push(Box::new(TollgateContestant { name, used, limiter, limit, batched }));
        }
    }
    contestants.retain(|contestant| wanted(contestant.name()));
    contestants
}

/// Tollgate with each algorithm, with room for `keys` keys. Each key has used some of its quota; with the sliding
/// window counter, also some of the previous window's.
pub(crate) fn algorithms(keys: u64) -> Vec<Box<dyn LibraryContestant>> {
    let one = |algorithm: Algorithm| {
        let limit = match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                Limit::per_second(1_000_000).burst(4_000_000_000)
            }
            // A key is checked about ten times a second, which makes a few entries each.
            Algorithm::SlidingWindowLog => Limit::per(100, Duration::from_millis(250)),
            _ => Limit::per_hour(4_000_000_000),
        };
        let limit = limit.algorithm(algorithm).build().expect("valid numbers");
        let used = if algorithm.is_bucket() { 1_000_000_000 } else { 1 };
        let limiter = Arc::new(Limiter::with_capacity(keys as usize));
        let name = algorithm.name();
        Box::new(TollgateContestant { name, used, limiter, limit, batched: false })
            as Box<dyn LibraryContestant>
    };
    Algorithm::ALL.into_iter().map(one).collect()
}

struct GovernorContestant(DefaultKeyedRateLimiter<String>);

impl GovernorContestant {
    fn new(quota: LibraryQuota) -> GovernorContestant {
        let (units, period, burst) = quota.numbers();
        let number = |number| NonZeroU32::new(number).expect("no quota is zero");
        let quota = match period {
            1 => governor::Quota::per_second(number(units)),
            _ => governor::Quota::per_hour(number(units)),
        };
        GovernorContestant(RateLimiter::keyed(quota.allow_burst(number(burst))))
    }
}

impl LibraryContestant for GovernorContestant {
    fn name(&self) -> &'static str {
        GOVERNOR
    }

    fn ask(&self, stream: &KeyStream, range: Range<usize>, desk: &mut CallerBuffers) {
        for index in range {
            desk.key.clear();
            desk.key.push_str(stream.key(index));
            black_box(self.0.check_key(&desk.key).is_ok());
        }
    }
}

struct FloorContestant {
    table: Arc<FloorLimiter>,
    batched: bool,
}

impl LibraryContestant for FloorContestant {
    fn name(&self) -> &'static str {
        if self.batched { FLOOR_BATCH } else { FLOOR }
    }

    fn ask(&self, stream: &KeyStream, range: Range<usize>, _: &mut CallerBuffers) {
        if !self.batched {
            for index in range {
                black_box(self.table.check(stream.key(index), SystemClock.now().as_u64()));
            }
            return;
        }
        for from in range.clone().step_by(BATCH) {
            let mut keys = [""; BATCH];
            let count = BATCH.min(range.end - from);
            keys[..count].iter_mut().zip(from..).for_each(|(key, index)| *key = stream.key(index));
            let now = SystemClock.now().as_u64();
            self.table.check_batch(&keys[..count], now, |allowed| {
                black_box(allowed);
            });
        }
    }
}

struct TollgateContestant {
    name: &'static str,
    /// Units that each key has used before; 0 means those of an ordinary check.
    used: u64,
    limiter: Arc<Limiter>,
    limit: Limit,
    batched: bool,
}

impl LibraryContestant for TollgateContestant {
    fn name(&self) -> &'static str {
        self.name
    }

    fn fill(&self, stream: &KeyStream, desk: &mut CallerBuffers) {
        if self.used == 0 {
            return self.ask(stream, 0..stream.len(), desk);
        }
        let now = SystemClock.now().as_u64();
        let before = now.saturating_sub(self.limit.period().as_micros() as u64);
        for index in 0..stream.len() {
            let key = stream.key(index);
            if !self.limit.algorithm().is_bucket() {
                let _ = self.limiter.at(Micros::new(before)).take(&self.limit, key, self.used);
            }
            let _ = self.limiter.at(Micros::new(now)).take(&self.limit, key, self.used);
        }
    }

    fn ask(&self, stream: &KeyStream, range: Range<usize>, desk: &mut CallerBuffers) {
        if !self.batched {
            for index in range {
                consume(&self.limiter.check(&self.limit, stream.key(index)));
            }
            return;
        }
        for from in range.clone().step_by(BATCH) {
            let count = BATCH.min(range.end - from);
            let mut checks = [Check::new(&self.limit, ""); BATCH];
            for (check, index) in checks[..count].iter_mut().zip(from..) {
                *check = Check::new(&self.limit, stream.key(index));
            }
            self.limiter.decide_batch(&checks[..count], &mut desk.decisions);
            desk.decisions.iter().for_each(consume);
        }
    }
}

/// Uses the whole decision, so that no part of it is optimised away.
#[inline]
fn consume(decision: &Decision) {
    black_box((
        decision.allowed(),
        decision.remaining(),
        decision.retry_after(),
        decision.reset_after(),
        decision.more_after(),
    ));
}
