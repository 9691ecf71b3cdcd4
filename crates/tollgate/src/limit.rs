//! `Limit`: an algorithm and its numbers, validated once.
//!
//! This is the only place where numbers are checked, in `validation.rs`. A [`Limit`] can be decided
//! exactly in every store, so nothing after this point can fail on a number.
//!
//! ```
//! use tollgate::{Algorithm, Limit};
//!
//! let api = Limit::per_minute(100).burst(20).build()?;
//! assert_eq!(api.algorithm(), Algorithm::TokenBucket);
//!
//! let same: Limit = "100/minute burst 20".parse()?;
//! assert_eq!(api, same);
//!
//! let error = Limit::per_minute(0).build().unwrap_err();
//! assert!(error.to_string().contains("at least 1"));
//! # Ok::<(), tollgate::LimitError>(())
//! ```

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::{
    Algorithm, CompactState, Divisor, LimitStateKind, is_paced, sliding_window_log,
    with_compact_state,
};
use crate::hash::public_hash;
use crate::time::{Micros, Wait};

mod bucket_numbers;
mod builder;
pub(crate) mod calendar;
mod error;
mod identity;
mod notation;
mod options;
mod validation;

pub(crate) use bucket_numbers::BucketNumbers;
pub use builder::LimitBuilder;
pub use calendar::{Calendar, CalendarUnit};
pub use error::LimitError;
pub use notation::{is_monthly, parse_calendar_rate, parse_period, parse_rate};
use options::LimitOptions;
pub use options::{Align, OnChange, Precision};

/// The longest period, and the longest time a bucket may take to refill: 100 years of 365.25 days.
pub const MAX_PERIOD: Duration = Duration::from_secs(100 * 36525 * 864);
const MAX_PERIOD_US: u64 = MAX_PERIOD.as_micros() as u64;

/// Cap on the sub-buckets of [`Precision::Buckets`].
pub const MAX_BUCKETS: u32 = 1_023;

/// An algorithm and its numbers, validated. Cheap to clone; make it once and share it.
///
/// Every check may bring other numbers for the same key: so each client can have its own limit, and
/// a limit can change while the program runs. The state remembers the numbers that wrote it and is
/// converted as [`OnChange`] says: a bucket at the first take under the new numbers, granted or
/// refused, so that it refills at their rate from then on, or from an
/// [earlier instant](Limit::with_numbers_since), and others at the first take that is granted. A store
/// distinguishes up to 65,535 sets of numbers at a time.
#[derive(Clone, Debug)]
pub struct Limit {
    name: Arc<str>,
    algorithm: Algorithm,
    pub(crate) kind: LimitStateKind,
    /// N of "N per period".
    units: u64,
    period: u64,
    capacity: u64,
    options: LimitOptions,
    /// The calendar of this fixed window's windows, if they are not periods.
    calendar: Option<Arc<dyn Calendar>>,
    /// Identity of the states of this limit beside a key. It contains no numbers, so that units
    /// used are kept when the numbers change.
    id: u64,
    /// Identity of these numbers, whatever the limit is called.
    fingerprint: u64,
    pub(crate) bucket: BucketNumbers,
    pub(crate) by_period: Divisor,
    /// Offset of fixed windows after a multiple of the period, from an anchor or a stagger.
    pub(crate) window_offset: u64,
    /// The longest that a window can last, in microseconds.
    window_longest: u64,
    /// The instant at which these numbers replaced others, if it is known. No part of any identity.
    numbers_since: Option<Micros>,
}

impl Limit {
    /// `units` per second. Without a burst or an algorithm this is a sliding window counter, an
    /// estimate: up to twice as many can pass within one period. The same holds for the others below.
    pub fn per_second(units: u64) -> LimitBuilder {
        Limit::per(units, Duration::from_secs(1))
    }

    /// `units` per minute.
    pub fn per_minute(units: u64) -> LimitBuilder {
        Limit::per(units, Duration::from_secs(60))
    }

    /// `units` per hour.
    pub fn per_hour(units: u64) -> LimitBuilder {
        Limit::per(units, Duration::from_secs(3_600))
    }

    /// `units` per day of 24 hours.
    pub fn per_day(units: u64) -> LimitBuilder {
        Limit::per(units, Duration::from_secs(86_400))
    }

    /// `units` per `period`.
    pub fn per(units: u64, period: Duration) -> LimitBuilder {
        LimitBuilder {
            name: String::new(),
            units,
            period,
            burst: None,
            algorithm: None,
            options: LimitOptions::default(),
            calendar: None,
        }
    }

    /// `units` per day, week or month of a calendar: a fixed window that begins and ends as the
    /// calendar says, for all keys at the same instant.
    pub fn per_calendar(units: u64, calendar: Arc<dyn Calendar>) -> LimitBuilder {
        let period = calendar.unit().period();
        LimitBuilder { calendar: Some(calendar), ..Limit::per(units, period) }
    }

    /// A limit from an algorithm's name and its numbers. The error for an unknown name lists the
    /// algorithms.
    pub fn from_parts(
        algorithm: &str,
        units: u64,
        period: Duration,
        burst: Option<u64>,
    ) -> Result<Limit, LimitError> {
        let mut builder = Limit::per(units, period).algorithm(algorithm.parse()?);
        builder.burst = burst;
        builder.build()
    }

    /// The policy name given with [`LimitBuilder::name`], or the empty string.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The algorithm.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The algorithm whose states this limit has: a counter in sub-buckets has those of a log.
    pub fn state_algorithm(&self) -> Algorithm {
        match self.options.precision {
            Precision::Estimate => self.algorithm,
            Precision::Buckets(_) => Algorithm::SlidingWindowLog,
        }
    }

    /// N of "N per period".
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The period. That of a calendar's windows is nominal: 24 hours, 7 days or 31 days.
    pub fn period(&self) -> Duration {
        Duration::from_micros(self.period)
    }

    /// The largest cost that can ever pass at one instant: the burst of a bucket, N of a window.
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns true if admitted requests are delayed so that output is evenly spaced.
    #[inline]
    pub fn is_queue(&self) -> bool {
        self.options.queue
    }

    /// The calendar of the windows, if there is one; see [`Limit::per_calendar`].
    #[inline]
    pub fn calendar(&self) -> Option<&dyn Calendar> {
        self.calendar.as_deref()
    }

    /// The start of fixed windows; without meaning if there is a [`calendar`](Limit::calendar).
    pub fn align(&self) -> Align {
        self.options.align
    }

    /// Returns true if each key's fixed windows begin at an offset of their own.
    #[inline]
    pub fn is_staggered(&self) -> bool {
        self.options.stagger
    }

    /// The way in which a sliding window counter counts.
    #[inline]
    pub fn precision(&self) -> Precision {
        self.options.precision
    }

    /// The treatment of used units when the numbers change.
    pub fn on_change(&self) -> OnChange {
        self.options.on_change
    }

    /// The identity of this limit's states: name, algorithm and its options, period; not N.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Identity of the numbers and of the treatment of used units when they change: limits of one
    /// [`id`](Limit::id) and one fingerprint are the same to every store.
    #[inline]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The instant at which these numbers replaced others, if it is known.
    pub fn numbers_since(&self) -> Option<Micros> {
        self.numbers_since
    }

    /// This limit with the instant at which its numbers replaced others. A bucket of other numbers is refilled
    /// at their rate until then and at the new rate from then on, whoever looks first; without an instant the
    /// first take under the new numbers ends the old rate. It makes no difference to states of these numbers,
    /// and limits that differ in it alone are equal.
    #[must_use]
    pub fn with_numbers_since(self, since: Option<Micros>) -> Limit {
        Limit { numbers_since: since, ..self }
    }

    /// The instant up to which the numbers count that wrote a state with this mark: the old rate is refilled
    /// until then. Never before the mark, because the time before it has been counted, and never after now.
    pub(crate) fn numbers_begin(&self, mark: u64, now: Micros) -> Micros {
        match self.numbers_since {
            Some(since) if is_paced(self) => since.max(Micros::new(mark)).min(now),
            _ => now,
        }
    }

    /// The period in microseconds.
    #[inline]
    pub fn period_us(&self) -> u64 {
        self.period
    }

    /// The longest that a window can last, in microseconds: the period, except with a calendar.
    #[inline]
    pub fn window_longest_us(&self) -> u64 {
        self.window_longest
    }

    /// Offset of fixed windows after a multiple of the period, in microseconds.
    pub fn window_offset_us(&self) -> u64 {
        self.window_offset
    }

    /// Microseconds until an empty bucket is full.
    pub fn full_refill_us(&self) -> u64 {
        self.bucket.full_refill
    }

    /// The time in which a bucket gets so many units back, or a queue lets them pass, rounded down.
    pub fn time_of(&self, units: u64) -> Wait {
        let ticks = u128::from(units) * u128::from(self.bucket.unit);
        let micros = ticks / u128::from(self.bucket.drain);
        Wait::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// The time in which this limit lets as much pass as `other` does in `wait`, rounded up.
    pub fn wait_converted(&self, other: &Limit, wait: Wait) -> Wait {
        let Some(wait_us) = wait.as_micros() else { return wait };
        let (from, to) = (&other.bucket, &self.bucket);
        let ticks = u128::from(wait_us) * u128::from(from.drain);
        let per_micro = u128::from(from.unit) * u128::from(to.drain);
        let micros = match ticks.checked_mul(to.unit.into()) {
            Some(ticks) => ticks.div_ceil(per_micro),
            None => {
                let whole = (ticks / per_micro).saturating_mul(to.unit.into());
                whole.saturating_add(fraction_of(to.unit, ticks % per_micro, per_micro))
            }
        };
        Wait::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Ticks that pass in a microsecond. A bucket counts its debt in ticks: see
    /// [`token_bucket`](crate::algorithm::token_bucket).
    pub fn drain(&self) -> u64 {
        self.bucket.drain
    }

    /// The longest time after its last charge for which a state without debt can differ from a
    /// fresh one, in microseconds.
    pub fn memory_us(&self) -> u64 {
        with_compact_state!(
            self.kind.stored(),
            S => S::memory_us(self),
            else sliding_window_log::memory_us(self)
        )
    }

    /// This limit with other numbers: N, and the burst of a bucket.
    pub fn with_numbers(&self, units: u64, capacity: u64) -> Result<Limit, LimitError> {
        let builder = LimitBuilder {
            name: self.name.to_string(),
            units,
            period: self.period(),
            burst: self.algorithm.is_bucket().then_some(capacity),
            algorithm: Some(self.algorithm),
            options: self.options,
            calendar: self.calendar.clone(),
        };
        Ok(builder.build()?.shifted_like(self))
    }

    /// This limit without the shift of any one key.
    pub(crate) fn unshifted(&self) -> Limit {
        Limit { window_offset: self.options.align.offset(self.period), ..self.clone() }
    }

    /// This limit with the windows of `other`, which differs from it at most in its numbers: with
    /// the shift of its key, and its calendar, which a snapshot does not contain.
    pub(crate) fn shifted_like(&self, other: &Limit) -> Limit {
        Limit {
            window_offset: other.window_offset,
            window_longest: other.window_longest,
            calendar: other.calendar.clone(),
            ..self.clone()
        }
    }

    /// The part of this limit that one of `instances` may admit while they do not share a store:
    /// rate and capacity divided, rounded up. The states stay the same; remaining units scale with
    /// the limit.
    #[must_use]
    pub fn share(&self, instances: u32) -> Limit {
        let part = |whole: u64| whole.div_ceil(u64::from(instances.max(1)));
        let builder = LimitBuilder {
            name: self.name.to_string(),
            units: part(self.units),
            period: self.period(),
            burst: self.algorithm.is_bucket().then(|| part(self.capacity)),
            algorithm: Some(self.algorithm),
            options: LimitOptions { on_change: OnChange::Scale, ..self.options },
            calendar: self.calendar.clone(),
        };
        // Rounding up can make a slow bucket refill more slowly than is valid: 1 per 50 years,
        // burst 3.
        let share = builder.build().unwrap_or_else(|_| self.clone());
        if instances <= 1 { self.clone() } else { share }
    }

    /// This limit as it applies to `key`. The fixed windows of a staggered limit are shifted by a
    /// fixed public hash of the key, so that the quotas of all clients do not return at the same
    /// instant.
    pub fn for_key(&self, key: &[u8]) -> Cow<'_, Limit> {
        if !self.options.stagger {
            return Cow::Borrowed(self);
        }
        let own = public_hash(&[key]) % self.period;
        let window_offset = (self.window_offset + own) % self.period;
        Cow::Owned(Limit { window_offset, ..self.clone() })
    }
}

impl PartialEq for Limit {
    fn eq(&self, other: &Limit) -> bool {
        self.name == other.name
            && (self.algorithm, self.units, self.period, self.capacity, self.options)
                == (other.algorithm, other.units, other.period, other.capacity, other.options)
            && self.calendar().map(calendar::identity) == other.calendar().map(calendar::identity)
    }
}

impl Eq for Limit {}

// The numbers never change, and a calendar is pure: a panic leaves nothing inconsistent.
impl std::panic::UnwindSafe for Limit {}
impl std::panic::RefUnwindSafe for Limit {}

/// Returns `units * part / whole` for a fraction below 1, rounded up; digit by digit, because the product may have more
/// than 128 bits. Neither number of the fraction has more than 126.
fn fraction_of(units: u64, part: u128, whole: u128) -> u128 {
    let (mut quotient, mut rest) = (0, 0);
    for digit in (0..u64::BITS).rev() {
        rest = 2 * rest + u128::from(units >> digit & 1) * part;
        quotient = 2 * quotient + rest / whole;
        rest %= whole;
    }
    quotient + u128::from(rest > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: Duration = Duration::from_secs(31_557_600);

    #[test]
    fn waits_are_converted_by_the_rates_and_rounded_up() {
        // new limit, old limit, a wait under the old one, and under the new one
        let cases = [
            ("10/second", "1/second", 1_000_000, 100_000),
            ("1/second", "10/second", 100_000, 1_000_000),
            ("6000/minute", "60/minute", 2_500_001, 25_001),
            ("3/second", "1/second", 1, 1),
            ("1/second", "3/second", 333_333, 999_999),
            ("1/second", "1/second", 0, 0),
        ];
        for (new, old, wait, expected) in cases {
            let [new, old]: [Limit; 2] = [new, old].map(|text| text.parse().unwrap());
            let converted = new.wait_converted(&old, Wait::from_micros(wait));
            assert_eq!(converted.as_micros(), Some(expected), "{new} {old} {wait}");
            assert_eq!(new.wait_converted(&old, Wait::NEVER), Wait::NEVER);
        }
        // Numbers at the edge are no overflow.
        let slow = Limit::per(1, YEAR * 100).build().unwrap();
        let fast: Limit = "1000000/second".parse().unwrap();
        let longest = Wait::from_micros(crate::time::MAX_EXACT);
        assert!(slow.wait_converted(&fast, longest) >= longest);
        assert_eq!(fast.wait_converted(&slow, longest).as_micros(), Some(3));
        let dense = Limit::per(crate::time::MAX_EXACT, YEAR * 100).build().unwrap();
        let wait = Wait::from_micros(16_000_000);
        assert_eq!(dense.wait_converted(&dense, wait), wait);
    }

    #[test]
    fn a_share_is_rounded_up_and_keeps_the_identity() {
        // limit, instances, units, capacity
        let cases: [(&str, u32, u64, u64); 6] = [
            ("100/minute", 3, 34, 34),
            ("100/minute burst 20", 3, 34, 7),
            ("1/day", 5, 1, 1),
            ("100/minute", 1, 100, 100),
            ("100/minute", 0, 100, 100),
            ("10/minute burst 3", u32::MAX, 1, 1),
        ];
        for (text, instances, units, capacity) in cases {
            let limit: Limit = text.parse().unwrap();
            let share = limit.share(instances);
            assert_eq!((share.units(), share.capacity()), (units, capacity), "{text}");
            assert_eq!(share.id(), limit.id(), "{text}");
            assert_eq!(share.on_change() == OnChange::Scale, instances > 1, "{text}");
        }
    }

    #[test]
    fn the_factory_lists_the_five() {
        let error = Limit::from_parts("tokenbucket", 1, YEAR, None).unwrap_err().to_string();
        for algorithm in Algorithm::ALL {
            assert!(error.contains(algorithm.name()), "{error}");
            let made = Limit::from_parts(algorithm.name(), 5, YEAR, None).unwrap();
            assert_eq!(made.algorithm(), algorithm);
        }
    }
}
