//! Limits made of the parameters that every call of `CL.THROTTLE` carries; each set of parameters is one limit.
//!
//! A store holds a bounded number of different limits, and rules need some of them, so the number of limits in use by
//! this listener is bounded too. A call that writes nothing does not use its limit. Calls beyond the bound are decided in
//! the gatekeeper's overflow table: on an error applications would let everything pass, and one client that invents
//! parameters could cause that for all.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollgate::limit::MAX_PERIOD;
use tollgate::time::MAX_EXACT;
use tollgate::{Limit, Micros};

use super::counters::RespCounters;

/// Maximum limits in use at a time: a quarter of what a store holds.
pub(super) const LIMITS_IN_USE_MAX: usize = 16_384;

/// Resolution of the time of last use, in microseconds: a limit that is used often updates it only this often.
const LAST_USED_RESOLUTION_US: u64 = 1_000_000;

/// Parameters of a call: `count` units per `period` seconds, and a burst of `max_burst` beyond the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ThrottleParams {
    pub(super) max_burst: i64,
    pub(super) count: i64,
    pub(super) period: i64,
}

/// Meaning of parameters.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "taken apart where it is made")]
pub(super) enum ParsedLimit {
    /// A limit.
    Limit(Limit),
    /// Nothing ever passes: the bucket is empty or its rate is negative.
    NothingPasses,
}

/// Error in the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThrottleParamsError {
    ZeroRate,
    PeriodTooLong,
    CountTooLarge,
}

impl fmt::Display for ThrottleParamsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Text of redis-cell.
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
    /// The limit in replies: `max_burst` + 1, saturated.
    pub(super) fn reported_limit(self) -> i64 {
        self.max_burst.saturating_add(1)
    }

    pub(super) fn to_limit(self) -> Result<ParsedLimit, ThrottleParamsError> {
        let (count, period) = (self.count.unsigned_abs(), self.period.unsigned_abs());
        // redis-cell needs at least one nanosecond per unit.
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
        // Capped so that the bucket fills within 100 years.
        let fills = u128::from(MAX_PERIOD.as_secs()) * u128::from(count) / u128::from(period);
        let most = MAX_EXACT.min(u64::try_from(fills).unwrap_or(u64::MAX));
        let capacity = (self.max_burst.unsigned_abs() + 1).min(most);
        // The name is empty, which no rule has: these counts never mix with those of rules.
        let limit = Limit::per(count, Duration::from_secs(period)).burst(capacity).build();
        Ok(ParsedLimit::Limit(limit.expect("the params are in range")))
    }
}

/// A limit in use.
#[derive(Debug)]
pub(super) struct LimitInUse {
    pub(super) limit: Limit,
    /// Time of last use in microseconds; it may lag by up to [`LAST_USED_RESOLUTION_US`].
    last_used: AtomicU64,
}

impl LimitInUse {
    fn new(limit: Limit, now: Micros) -> LimitInUse {
        LimitInUse { limit, last_used: AtomicU64::new(now.as_u64()) }
    }

    /// Time at which no state written under this limit can be left.
    fn expires_at(&self) -> u64 {
        let used = self.last_used.load(Ordering::Relaxed);
        used.saturating_add(self.limit.memory_us()).saturating_add(2 * LAST_USED_RESOLUTION_US)
    }

    /// Marks the limit as used. Returns false if the table may have dropped it.
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

/// All limits in use at this listener.
#[derive(Debug, Default)]
pub(super) struct ThrottleLimits {
    table: Mutex<LimitTable>,
    counters: Arc<RespCounters>,
}

/// Result of a lookup: the place where a call has to be decided.
#[derive(Debug)]
pub(super) enum LimitLookup {
    /// The store decides; the limit is in use from now on.
    InUse(Arc<LimitInUse>),
    /// The store decides, but the call writes nothing, so the limit is not in use.
    ReadOnly(Limit),
    /// The gatekeeper's overflow table decides, because too many limits are in use.
    Overflow(Limit),
}

#[derive(Debug, Default)]
struct LimitTable {
    /// Bound: [`LIMITS_IN_USE_MAX`].
    entries: HashMap<ThrottleParams, Arc<LimitInUse>>,
    /// Instant before which no entry can be dropped, in microseconds.
    full_until_us: u64,
}

impl ThrottleLimits {
    pub(super) fn new(counters: Arc<RespCounters>) -> ThrottleLimits {
        ThrottleLimits { counters, ..ThrottleLimits::default() }
    }

    /// The limit of these parameters, if it is in use.
    pub(super) fn get(&self, params: ThrottleParams, now: Micros) -> Option<Arc<LimitInUse>> {
        self.lock_table().get(params, now)
    }

    /// The limit of these parameters; if it is not in use, the place to decide a call that takes `units`.
    pub(super) fn find_or_insert(
        &self,
        params: ThrottleParams,
        limit: Limit,
        units: u64,
        now: Micros,
    ) -> LimitLookup {
        let mut table = self.lock_table();
        if let Some(entry) = table.get(params, now) {
            return LimitLookup::InUse(entry);
        }
        if !table.has_room(now.as_u64()) {
            return LimitLookup::Overflow(limit);
        }
        // More than the capacity is refused, and a refusal writes nothing.
        if units == 0 || units > limit.capacity() {
            return LimitLookup::ReadOnly(limit);
        }
        let entry = Arc::new(LimitInUse::new(limit, now));
        table.entries.insert(params, entry.clone());
        self.counters.set_limits_in_use(table.entries.len());
        LimitLookup::InUse(entry)
    }

    fn lock_table(&self) -> MutexGuard<'_, LimitTable> {
        // The table is consistent after every statement.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LimitTable {
    fn get(&self, params: ThrottleParams, now: Micros) -> Option<Arc<LimitInUse>> {
        let entry = self.entries.get(&params)?;
        entry.last_used.fetch_max(now.as_u64(), Ordering::Relaxed);
        Some(entry.clone())
    }

    /// Returns true if there is room for one more limit, after dropping expired ones if needed.
    fn has_room(&mut self, now: u64) -> bool {
        if self.entries.len() < LIMITS_IN_USE_MAX {
            return true;
        }
        if now >= self.full_until_us {
            self.entries.retain(|_, entry| entry.expires_at() > now);
            // Scanned again when the first entry can expire, not at every call.
            self.full_until_us =
                self.entries.values().map(|entry| entry.expires_at()).min().unwrap_or(0);
        }
        self.entries.len() < LIMITS_IN_USE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(max_burst: i64, count: i64, period: i64) -> ThrottleParams {
        ThrottleParams { max_burst, count, period }
    }

    #[test]
    fn numbers_become_limits_or_say_why_not() {
        let (max, min) = (i64::MAX, i64::MIN);
        let century: i64 = 3_155_760_000;
        // Parameters, and the capacity; 0: nothing passes
        let rows = [
            (params(15, 30, 60), Ok(16)),
            (params(0, 1, 1), Ok(1)),
            (params(-1, 5, 60), Ok(0)),
            (params(min, 5, 60), Ok(0)),
            (params(4, -5, 60), Ok(0)),
            (params(4, 5, -60), Ok(0)),
            (params(4, -5, -60), Ok(5)),
            (params(4, min, min), Err(ThrottleParamsError::PeriodTooLong)),
            (params(4, 0, 60), Err(ThrottleParamsError::ZeroRate)),
            (params(4, 5, 0), Err(ThrottleParamsError::ZeroRate)),
            (params(4, 0, 0), Err(ThrottleParamsError::ZeroRate)),
            (params(4, 1_000_000_000, 1), Ok(5)),
            (params(4, 1_000_000_001, 1), Err(ThrottleParamsError::ZeroRate)),
            (params(max, 1, 60), Ok(52_596_000)),
            (params(max, 1_000_000_000, 1), Ok(MAX_EXACT)),
            (params(max, 1, century), Ok(1)),
            (params(0, 1, century + 1), Err(ThrottleParamsError::PeriodTooLong)),
            (params(0, 1, max), Err(ThrottleParamsError::PeriodTooLong)),
            (params(0, MAX_EXACT as i64, century), Ok(1)),
            (params(0, MAX_EXACT as i64 + 1, century), Err(ThrottleParamsError::CountTooLarge)),
            (params(0, max, century), Err(ThrottleParamsError::ZeroRate)),
        ];
        for (params, want) in rows {
            let got = params.to_limit().map(|meaning| match meaning {
                ParsedLimit::Limit(limit) => limit.capacity(),
                ParsedLimit::NothingPasses => 0,
            });
            assert_eq!(got, want, "{params:?}");
        }
        assert_eq!(params(max, 1, 1).reported_limit(), max);
        assert_eq!(params(min, 1, 1).reported_limit(), min + 1);
    }

    #[test]
    fn the_identity_holds_neither_count_nor_burst() {
        let id = |params: ThrottleParams| match params.to_limit() {
            Ok(ParsedLimit::Limit(limit)) => limit.id(),
            other => panic!("{other:?}"),
        };
        assert_eq!(id(params(15, 30, 60)), id(params(4, 5, 60)));
        assert_ne!(id(params(15, 30, 60)), id(params(15, 30, 61)));
    }

    fn limit(params: ThrottleParams) -> Limit {
        match params.to_limit() {
            Ok(ParsedLimit::Limit(limit)) => limit,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_limit_too_many_goes_to_the_overflow_table_until_another_expires() {
        let limits = ThrottleLimits::default();
        let find = |count: usize, now: u64| {
            // One second to fill.
            let params = params(0, count as i64, count as i64);
            limits.find_or_insert(params, limit(params), 1, Micros::from_secs(now))
        };
        let used = |found: LimitLookup| match found {
            LimitLookup::InUse(entry) => entry,
            other => panic!("{other:?}"),
        };
        let first = used(find(1, 100));
        for count in 2..=LIMITS_IN_USE_MAX {
            used(find(count, 100));
        }
        let size = || limits.table.lock().unwrap().entries.len();
        assert!(matches!(find(LIMITS_IN_USE_MAX + 1, 102), LimitLookup::Overflow(_)));
        used(find(7, 102));
        assert!(first.touch(Micros::from_secs(102)), "a limit in use stays");
        used(find(LIMITS_IN_USE_MAX + 1, 103));
        // The first, the seventh, the new one.
        assert_eq!(size(), 3);
        assert!(!first.touch(Micros::from_secs(105)), "it may be dropped now");
        assert!(Arc::ptr_eq(&first, &used(find(1, 104))));
    }

    #[test]
    fn calls_that_write_nothing_take_up_no_room() {
        let limits = ThrottleLimits::default();
        let now = Micros::from_secs(100);
        // Units | such a call can write
        for (units, writes) in [(0, false), (6, false), (u64::MAX, false), (1, true), (5, true)] {
            for period in 1..=10 {
                let params = params(4, units.min(9) as i64 + 1, period);
                let found = limits.find_or_insert(params, limit(params), units, now);
                assert_eq!(matches!(found, LimitLookup::InUse(_)), writes, "{units}");
                assert_eq!(limits.get(params, now).is_some(), writes, "{units}");
            }
        }
    }
}
