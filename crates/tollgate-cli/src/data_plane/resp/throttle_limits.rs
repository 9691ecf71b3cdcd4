//! The numbers that `CL.THROTTLE` brings with every call, made into limits, each once.
//!
//! A store knows a bounded number of different sets of numbers, and rules need some of them. Therefore
//! the sets that callers of this listener have in use at a time are bounded, too. Whoever only asks has none
//! in use. Those beyond the bound are counted apart, in a small store of this listener's own: an error would
//! make applications let everything pass, and one caller who makes up numbers could cause it for all.
//! That store is bounded as every store is: whoever finds no room there shares a count with others.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tollgate::limit::MAX_PERIOD;
use tollgate::time::MAX_EXACT;
use tollgate::{Check, Decision, Limit, MemoryStore, Micros, Now};

use super::counters::RespCounters;

/// The most sets of numbers in use at a time: a quarter of what a store knows.
pub(super) const LIMITS_IN_USE_MAX: usize = 16_384;

/// How many keys are counted with numbers beyond those, or a few more, as a table has slots: fewer than a
/// store knows numbers, so that each may have its own.
const OVERFLOW_KEYS_MAX: usize = 32_768;

/// How exactly it is known when a set was last used, in microseconds: whoever uses one often writes
/// that down once in so long.
const LAST_USED_RESOLUTION_US: u64 = 1_000_000;

/// What a call says beside its key: so many units per period of seconds, and so many at once beyond
/// the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ThrottleParams {
    pub(super) max_burst: i64,
    pub(super) count: i64,
    pub(super) period: i64,
}

/// What numbers mean.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "taken apart where it is made")]
pub(super) enum ParsedLimit {
    /// A limit.
    Limit(Limit),
    /// Nothing ever passes: a bucket for nothing, or one that drains the wrong way.
    NothingPasses,
}

/// Why numbers mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThrottleParamsError {
    ZeroRate,
    PeriodTooLong,
    CountTooLarge,
}

impl fmt::Display for ThrottleParamsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The peer's text.
            ThrottleParamsError::ZeroRate => {
                f.write_str("Cell error: Store error: Zero rates are not supported")
            }
            ThrottleParamsError::PeriodTooLong => {
                let most = MAX_PERIOD.as_secs();
                write!(f, "ERR the period is longer than 100 years: the most is {most} seconds")
            }
            ThrottleParamsError::CountTooLarge => {
                write!(f, "ERR the count per period is too large: the most is {MAX_EXACT}")
            }
        }
    }
}

impl ThrottleParams {
    /// The most at once, as it is told; what no number can tell is told as the largest.
    pub(super) fn reported_limit(self) -> i64 {
        self.max_burst.saturating_add(1)
    }

    pub(super) fn to_limit(self) -> Result<ParsedLimit, ThrottleParamsError> {
        let (count, period) = (self.count.unsigned_abs(), self.period.unsigned_abs());
        // The peer has one unit take a whole number of nanoseconds.
        if count == 0 || u128::from(period) * 1_000_000_000 < u128::from(count) {
            return Err(ThrottleParamsError::ZeroRate);
        }
        let backwards = self.count.is_negative() != self.period.is_negative();
        if backwards || self.max_burst < 0 {
            return Ok(ParsedLimit::NothingPasses);
        }
        if period > MAX_PERIOD.as_secs() {
            return Err(ThrottleParamsError::PeriodTooLong);
        }
        if count > MAX_EXACT {
            return Err(ThrottleParamsError::CountTooLarge);
        }
        // A bucket that would take longer to fill than 100 years is made smaller.
        let fills = u128::from(MAX_PERIOD.as_secs()) * u128::from(count) / u128::from(period);
        let most = MAX_EXACT.min(u64::try_from(fills).unwrap_or(u64::MAX));
        let capacity = (self.max_burst.unsigned_abs() + 1).min(most);
        // No rule has an empty name: what this listener counts is no rule's.
        let limit = Limit::per(count, Duration::from_secs(period)).burst(capacity).build();
        Ok(ParsedLimit::Limit(limit.expect("the numbers are in range")))
    }
}

/// A set of numbers in use.
#[derive(Debug)]
pub(super) struct LimitInUse {
    pub(super) limit: Limit,
    /// When, roughly.
    last_used: AtomicU64,
}

impl LimitInUse {
    fn new(limit: Limit, now: Micros) -> LimitInUse {
        LimitInUse { limit, last_used: AtomicU64::new(now.as_u64()) }
    }

    /// Until when some state can have been written by these numbers.
    fn expires_at(&self) -> u64 {
        let used = self.last_used.load(Ordering::Relaxed);
        used.saturating_add(self.limit.memory_us()).saturating_add(2 * LAST_USED_RESOLUTION_US)
    }

    /// Says that it is used now. `false`: it may have been forgotten.
    #[inline]
    pub(super) fn touch(&self, now: Micros) -> bool {
        let now = now.as_u64();
        let used = self.last_used.load(Ordering::Relaxed);
        if now.saturating_sub(used) < LAST_USED_RESOLUTION_US {
            return true;
        }
        let known = now < self.expires_at();
        if known {
            self.last_used.fetch_max(now, Ordering::Relaxed);
        }
        known
    }
}

/// All sets of numbers in use at this listener.
#[derive(Debug, Default)]
pub(super) struct ThrottleLimits {
    table: Mutex<LimitTable>,
    /// Counts what the pages have no room for. Bound: [`OVERFLOW_KEYS_MAX`]. When it is full nothing is
    /// forgotten that is limited: else whoever is could fill it to be let pass.
    overflow_store: OnceLock<MemoryStore>,
    counters: Arc<RespCounters>,
}

/// Where a call with numbers that are not in use is to be decided.
#[derive(Debug)]
pub(super) enum LimitLookup {
    /// By the store that decides all: they are in use from now on.
    InUse(Arc<LimitInUse>),
    /// The same, but it writes nothing, so that they are not.
    ReadOnly(Limit),
    /// By [`ThrottleLimits::decide_in_overflow`]: there are too many.
    Overflow(Limit),
}

#[derive(Debug, Default)]
struct LimitTable {
    /// Bound: [`LIMITS_IN_USE_MAX`].
    entries: HashMap<ThrottleParams, Arc<LimitInUse>>,
    /// Before this instant none can be forgotten, in microseconds.
    full_until_us: u64,
}

impl ThrottleLimits {
    pub(super) fn new(figures: Arc<RespCounters>) -> ThrottleLimits {
        ThrottleLimits { counters: figures, ..ThrottleLimits::default() }
    }

    /// These numbers, if they are in use.
    pub(super) fn get(&self, numbers: ThrottleParams, now: Micros) -> Option<Arc<LimitInUse>> {
        self.lock_table().get(numbers, now)
    }

    /// The same; if they are not, where so many units are to be taken.
    pub(super) fn find_or_insert(
        &self,
        numbers: ThrottleParams,
        limit: Limit,
        units: u64,
        now: Micros,
    ) -> LimitLookup {
        let mut pages = self.lock_table();
        if let Some(entry) = pages.get(numbers, now) {
            return LimitLookup::InUse(entry);
        }
        if !pages.has_room(now.as_u64()) {
            return LimitLookup::Overflow(limit);
        }
        // More than there can be is refused, and a refusal writes nothing.
        if units == 0 || units > limit.capacity() {
            return LimitLookup::ReadOnly(limit);
        }
        let entry = Arc::new(LimitInUse::new(limit, now));
        pages.entries.insert(numbers, entry.clone());
        self.counters.set_limits_in_use(pages.entries.len());
        LimitLookup::InUse(entry)
    }

    /// Decides a call with numbers for which there is no room.
    pub(super) fn decide_in_overflow(&self, check: &Check<'_>, now: Now<'_>) -> Decision {
        self.counters.count_overflow_call();
        let store = self.overflow_store.get_or_init(|| MemoryStore::new(OVERFLOW_KEYS_MAX));
        store.decide_now(std::slice::from_ref(check), now)
    }

    fn lock_table(&self) -> MutexGuard<'_, LimitTable> {
        // What a panic left is whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LimitTable {
    fn get(&self, numbers: ThrottleParams, now: Micros) -> Option<Arc<LimitInUse>> {
        let entry = self.entries.get(&numbers)?;
        entry.last_used.fetch_max(now.as_u64(), Ordering::Relaxed);
        Some(entry.clone())
    }

    /// Whether there is room for one more set, made if it can be.
    fn has_room(&mut self, now: u64) -> bool {
        if self.entries.len() < LIMITS_IN_USE_MAX {
            return true;
        }
        if now >= self.full_until_us {
            self.entries.retain(|_, entry| entry.expires_at() > now);
            // Looked through again when the first of them can end, not at every call.
            self.full_until_us =
                self.entries.values().map(|entry| entry.expires_at()).min().unwrap_or(0);
        }
        self.entries.len() < LIMITS_IN_USE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(max_burst: i64, count: i64, period: i64) -> ThrottleParams {
        ThrottleParams { max_burst, count, period }
    }

    #[test]
    fn numbers_become_limits_or_say_why_not() {
        let (max, min) = (i64::MAX, i64::MIN);
        let century: i64 = 3_155_760_000;
        // Numbers, and the capacity; 0: nothing passes
        let rows = [
            (numbers(15, 30, 60), Ok(16)),
            (numbers(0, 1, 1), Ok(1)),
            (numbers(-1, 5, 60), Ok(0)),
            (numbers(min, 5, 60), Ok(0)),
            (numbers(4, -5, 60), Ok(0)),
            (numbers(4, 5, -60), Ok(0)),
            (numbers(4, -5, -60), Ok(5)),
            (numbers(4, min, min), Err(ThrottleParamsError::PeriodTooLong)),
            (numbers(4, 0, 60), Err(ThrottleParamsError::ZeroRate)),
            (numbers(4, 5, 0), Err(ThrottleParamsError::ZeroRate)),
            (numbers(4, 0, 0), Err(ThrottleParamsError::ZeroRate)),
            (numbers(4, 1_000_000_000, 1), Ok(5)),
            (numbers(4, 1_000_000_001, 1), Err(ThrottleParamsError::ZeroRate)),
            (numbers(max, 1, 60), Ok(52_596_000)),
            (numbers(max, 1_000_000_000, 1), Ok(MAX_EXACT)),
            (numbers(max, 1, century), Ok(1)),
            (numbers(0, 1, century + 1), Err(ThrottleParamsError::PeriodTooLong)),
            (numbers(0, 1, max), Err(ThrottleParamsError::PeriodTooLong)),
            (numbers(0, MAX_EXACT as i64, century), Ok(1)),
            (numbers(0, MAX_EXACT as i64 + 1, century), Err(ThrottleParamsError::CountTooLarge)),
            (numbers(0, max, century), Err(ThrottleParamsError::ZeroRate)),
        ];
        for (numbers, want) in rows {
            let got = numbers.to_limit().map(|meaning| match meaning {
                ParsedLimit::Limit(limit) => limit.capacity(),
                ParsedLimit::NothingPasses => 0,
            });
            assert_eq!(got, want, "{numbers:?}");
        }
        assert_eq!(numbers(max, 1, 1).reported_limit(), max);
        assert_eq!(numbers(min, 1, 1).reported_limit(), min + 1);
    }

    #[test]
    fn the_identity_holds_neither_count_nor_burst() {
        let id = |numbers: ThrottleParams| match numbers.to_limit() {
            Ok(ParsedLimit::Limit(limit)) => limit.id(),
            other => panic!("{other:?}"),
        };
        assert_eq!(id(numbers(15, 30, 60)), id(numbers(4, 5, 60)));
        assert_ne!(id(numbers(15, 30, 60)), id(numbers(15, 30, 61)));
    }

    fn limit(numbers: ThrottleParams) -> Limit {
        match numbers.to_limit() {
            Ok(ParsedLimit::Limit(limit)) => limit,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_set_too_many_is_counted_apart_until_another_can_be_forgotten() {
        let book = ThrottleLimits::default();
        let find = |count: usize, now: u64| {
            // One second to fill.
            let numbers = numbers(0, count as i64, count as i64);
            book.find_or_insert(numbers, limit(numbers), 1, Micros::from_secs(now))
        };
        let used = |found: LimitLookup| match found {
            LimitLookup::InUse(entry) => entry,
            other => panic!("{other:?}"),
        };
        let first = used(find(1, 100));
        for count in 2..=LIMITS_IN_USE_MAX {
            used(find(count, 100));
        }
        let size = || book.table.lock().unwrap().entries.len();
        assert!(matches!(find(LIMITS_IN_USE_MAX + 1, 102), LimitLookup::Overflow(_)));
        used(find(7, 102));
        assert!(first.touch(Micros::from_secs(102)), "what is used stays");
        used(find(LIMITS_IN_USE_MAX + 1, 103));
        // The first, the seventh, the new one.
        assert_eq!(size(), 3);
        assert!(!first.touch(Micros::from_secs(105)), "it may be forgotten now");
        assert!(Arc::ptr_eq(&first, &used(find(1, 104))));
    }

    #[test]
    fn whoever_only_asks_takes_up_no_room() {
        let book = ThrottleLimits::default();
        let now = Micros::from_secs(100);
        // Units, and whether that can write
        for (units, writes) in [(0, false), (6, false), (u64::MAX, false), (1, true), (5, true)] {
            for period in 1..=10 {
                let numbers = numbers(4, units.min(9) as i64 + 1, period);
                let found = book.find_or_insert(numbers, limit(numbers), units, now);
                assert_eq!(matches!(found, LimitLookup::InUse(_)), writes, "{units}");
                assert_eq!(book.get(numbers, now).is_some(), writes, "{units}");
            }
        }
    }

    #[test]
    fn what_is_counted_apart_stays_counted_whoever_fills_the_store() {
        let book = ThrottleLimits::default();
        let now = Micros::from_secs(100);
        let century = 3_155_760_000;
        let allowed = |call: i64| {
            let limit = limit(numbers(0, 1, century - call));
            let key = call.to_string();
            book.decide_in_overflow(&Check::new(&limit, key.as_bytes()), now.into()).allowed()
        };
        // Each with numbers of its own, more than the store knows numbers, and none ever fades.
        for call in 0..70_000 {
            assert!(allowed(call) || call > 10_000, "{call} is shut out while there is room");
            assert!(!allowed(call), "{call} is not counted");
        }
        for call in 0..10_000 {
            assert!(!allowed(call), "{call} passes again because others came");
        }
        let slots = book.overflow_store.get().unwrap().stats().slots;
        assert!(slots < 60_000, "{slots}: each key may have numbers of its own");
        assert_eq!(book.counters.overflow_calls(), 150_000);
    }
}
