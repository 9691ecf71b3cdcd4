//! `Limit`: an algorithm and its numbers, validated once.
//!
//! This is the only place where numbers are checked. Whoever holds a [`Limit`] holds one that can
//! be decided exactly in every store, so nothing after this point can fail on a number.
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
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::token_bucket::Short;
use crate::algorithm::{Algorithm, Divisor};
use crate::hash::public_hash;
use crate::time::{MAX_EXACT, Micros};

pub(crate) mod calendar;
mod notation;

pub use calendar::{Calendar, CalendarUnit};
pub use notation::{is_monthly, parse_calendar_rate, parse_period, parse_rate};

/// The longest period, and the longest time a bucket may take to refill: 100 years of 365.25 days.
pub const MAX_PERIOD: Duration = Duration::from_secs(100 * 36525 * 864);
const MAX_PERIOD_US: u64 = MAX_PERIOD.as_micros() as u64;

/// The most sub-buckets of [`Precision::Buckets`].
pub const MAX_BUCKETS: u32 = 1_023;

/// An algorithm and its numbers, validated. Cheap to clone; make it once and share it.
///
/// Every question may come with other numbers for the same key: that is how each caller has its own
/// limit, and how a limit changes while the program runs. The state remembers which numbers wrote it
/// and is carried over as [`OnChange`] says, at the first take under the new ones. A store knows up
/// to 65,535 different sets of numbers at a time.
#[derive(Clone, Debug)]
pub struct Limit {
    name: Arc<str>,
    algorithm: Algorithm,
    pub(crate) kind: Kind,
    /// N of "N per period".
    units: u64,
    period: u64,
    capacity: u64,
    options: Options,
    /// What divides time into this fixed window's windows, if not the period.
    calendar: Option<Arc<dyn Calendar>>,
    /// Names the state of this limit beside a key. Holds no numbers, so that a change of numbers
    /// keeps what callers have used.
    id: u64,
    /// Tells these numbers from others, whatever the limit is called.
    fingerprint: u64,
    pub(crate) bucket: BucketNumbers,
    pub(crate) by_period: Divisor,
    /// How far fixed windows begin after a multiple of the period: by an anchor, by a stagger.
    pub(crate) window_offset: u64,
    /// The longest that a window can last.
    window_longest: u64,
}

/// What a bucket computes with. One unit is `unit` ticks long and `drain` ticks pass in a
/// microsecond, both without common factor: 3/second is 1,000,000 and 3, 100/hour 36,000,000 and
/// 1. Debt counted in ticks is exact for every rational rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketNumbers {
    pub(crate) unit: u64,
    pub(crate) drain: u64,
    /// A full bucket in ticks.
    pub(crate) capacity: u128,
    /// Microseconds until an empty bucket is full.
    pub(crate) full_refill: u64,
    pub(crate) by_unit: Divisor,
    pub(crate) by_drain: Divisor,
    /// The same for the short way, if the numbers allow it.
    pub(crate) short: Option<Short>,
}

/// Where a fixed window begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Align {
    /// At whole multiples of the period since the Unix epoch: every process agrees.
    #[default]
    Epoch,
    /// At whole multiples of the period since this instant: "resets at 09:00".
    Anchor(Micros),
    /// At the first charged request; it lasts exactly one period.
    FirstHit,
}

impl Align {
    /// How far windows begin after a multiple of the period.
    fn offset(self, period: u64) -> u64 {
        match self {
            Align::Anchor(anchor) => anchor.as_u64() % period,
            Align::Epoch | Align::FirstHit => 0,
        }
    }
}

/// How a sliding window counter counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Two counters, the older weighted by its overlap: small, fast, an estimate.
    #[default]
    Estimate,
    /// This many sub-buckets counted whole: never above N in any trailing period.
    Buckets(u32),
}

/// What becomes of the used part when a limit's numbers change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnChange {
    /// What is used stays used: 40 left of 100 becomes 140 left of 200.
    #[default]
    Keep,
    /// Everybody starts fresh.
    Reset,
    /// What is left grows or shrinks with the limit: 40 of 100 becomes 80 of 200.
    Scale,
}

/// The choices beside the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Options {
    queue: bool,
    align: Align,
    stagger: bool,
    precision: Precision,
    on_change: OnChange,
}

/// Which state a limit keeps, and how it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Token,
    Leaky,
    Window,
    /// A window whose beginning depends on the key.
    Staggered,
    Counter,
    Log,
}

impl Kind {
    fn of(algorithm: Algorithm, options: &Options) -> Kind {
        match (algorithm, options.precision) {
            (Algorithm::TokenBucket, _) => Kind::Token,
            (Algorithm::LeakyBucket, _) => Kind::Leaky,
            (Algorithm::FixedWindow, _) if options.stagger => Kind::Staggered,
            (Algorithm::FixedWindow, _) => Kind::Window,
            (Algorithm::SlidingWindowLog, _) | (_, Precision::Buckets(_)) => Kind::Log,
            (Algorithm::SlidingWindowCounter, Precision::Estimate) => Kind::Counter,
        }
    }
}

impl Limit {
    /// `units` per second.
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
            options: Options::default(),
            calendar: None,
        }
    }

    /// `units` per day, week or month of a calendar: a fixed window that begins and ends when the
    /// calendar says, for everybody at the same instant.
    pub fn per_calendar(units: u64, calendar: Arc<dyn Calendar>) -> LimitBuilder {
        let period = calendar.unit().period();
        LimitBuilder { calendar: Some(calendar), ..Limit::per(units, period) }
    }

    /// The factory: an algorithm by name, its numbers beside it. An unknown name lists the five.
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

    /// Which of the five algorithms decides.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
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

    /// Whether an admitted request is delayed so that output is evenly spaced.
    #[inline]
    pub fn is_queue(&self) -> bool {
        self.options.queue
    }

    /// The calendar whose windows are counted, if it is one; see [`Limit::per_calendar`].
    #[inline]
    pub fn calendar(&self) -> Option<&dyn Calendar> {
        self.calendar.as_deref()
    }

    /// Where a fixed window begins; of no meaning to one of a [`calendar`](Limit::calendar).
    pub fn align(&self) -> Align {
        self.options.align
    }

    /// Whether each key's fixed windows begin at an offset of their own.
    #[inline]
    pub fn is_staggered(&self) -> bool {
        self.options.stagger
    }

    /// How a sliding window counter counts.
    #[inline]
    pub fn precision(&self) -> Precision {
        self.options.precision
    }

    /// What becomes of the used part when the numbers change.
    pub fn on_change(&self) -> OnChange {
        self.options.on_change
    }

    /// The identity of this limit's states: name, algorithm and its options, period; not N.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Which numbers these are, and what becomes of the used part when they change: limits of one
    /// [`id`](Limit::id) and one fingerprint are the same to every store.
    #[inline]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The period in microseconds.
    #[inline]
    pub fn period_us(&self) -> u64 {
        self.period
    }

    /// The longest that a window can last, in microseconds: the period, but for a calendar's.
    #[inline]
    pub fn window_longest_us(&self) -> u64 {
        self.window_longest
    }

    /// How far fixed windows begin after a multiple of the period, in microseconds.
    pub fn window_offset_us(&self) -> u64 {
        self.window_offset
    }

    /// Microseconds until an empty bucket is full.
    pub fn full_refill_us(&self) -> u64 {
        self.bucket.full_refill
    }

    /// Ticks that pass in a microsecond: what a bucket's rate is counted in, see
    /// [`token_bucket`](crate::algorithm::token_bucket).
    pub fn drain(&self) -> u64 {
        self.bucket.drain
    }

    /// How long a state can differ from a fresh one after its last charge, in microseconds, unless
    /// it is in debt.
    pub fn memory_us(&self) -> u64 {
        match self.kind {
            Kind::Token | Kind::Leaky => self.full_refill_us(),
            Kind::Window | Kind::Staggered => self.window_longest,
            Kind::Counter => 2 * self.period,
            // A sub-bucket counts until the last of the period after its end.
            Kind::Log => match self.options.precision {
                Precision::Estimate => self.period,
                Precision::Buckets(_) => 2 * self.period,
            },
        }
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
    /// the shift of its key, and its calendar, which a snapshot does not know.
    pub(crate) fn shifted_like(&self, other: &Limit) -> Limit {
        Limit {
            window_offset: other.window_offset,
            window_longest: other.window_longest,
            calendar: other.calendar.clone(),
            ..self.clone()
        }
    }

    /// What one of `instances` may admit while nobody counts for all of them: rate and capacity
    /// divided, rounded up. The states are the same; what is left of one shrinks or grows with it.
    #[must_use]
    pub fn share(&self, instances: u32) -> Limit {
        let part = |whole: u64| whole.div_ceil(u64::from(instances.max(1)));
        let builder = LimitBuilder {
            name: self.name.to_string(),
            units: part(self.units),
            period: self.period(),
            burst: self.algorithm.is_bucket().then(|| part(self.capacity)),
            algorithm: Some(self.algorithm),
            options: Options { on_change: OnChange::Scale, ..self.options },
            calendar: self.calendar.clone(),
        };
        // Rounding up can make a slow bucket slower to fill than is possible: 1 per 50 years, burst 3.
        let share = builder.build().unwrap_or_else(|_| self.clone());
        if instances <= 1 { self.clone() } else { share }
    }

    /// This limit as it applies to `key`. The fixed windows of a staggered one are shifted by a
    /// fixed public hash of the key, so that not everybody's quota returns at the same instant.
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

// Numbers that never change, and a calendar, which is pure: a panic leaves nothing half done.
impl std::panic::UnwindSafe for Limit {}
impl std::panic::RefUnwindSafe for Limit {}

/// A limit being described; [`LimitBuilder::build`] checks it.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct LimitBuilder {
    name: String,
    units: u64,
    period: Duration,
    burst: Option<u64>,
    algorithm: Option<Algorithm>,
    options: Options,
    calendar: Option<Arc<dyn Calendar>>,
}

impl LimitBuilder {
    /// The most that may pass at one instant; means a token bucket unless an algorithm is named.
    pub fn burst(mut self, units: u64) -> LimitBuilder {
        self.burst = Some(units);
        self
    }

    /// Decides by this algorithm. Without it, a rate with a burst is a token bucket, one of a
    /// calendar a fixed window, and any other a sliding window counter.
    pub fn algorithm(mut self, algorithm: Algorithm) -> LimitBuilder {
        self.algorithm = Some(algorithm);
        self
    }

    /// Leaky bucket as a queue: admitted requests carry a delay instead of passing in a burst.
    pub fn queue(mut self) -> LimitBuilder {
        self.options.queue = true;
        self
    }

    /// Where a fixed window begins.
    pub fn align(mut self, align: Align) -> LimitBuilder {
        self.options.align = align;
        self
    }

    /// Fixed window: each key's windows begin at an offset of their own.
    pub fn stagger(mut self) -> LimitBuilder {
        self.options.stagger = true;
        self
    }

    /// Sliding window counter: count in this many whole sub-buckets, never above N.
    pub fn buckets(mut self, buckets: u32) -> LimitBuilder {
        self.options.precision = Precision::Buckets(buckets);
        self
    }

    /// The policy name, as headers and metrics show it: letters, digits, `_` and `-`, at most 64.
    /// Limits of different names never share state; limits of the same name, algorithm and period
    /// do, whatever their N. Tiers between which one caller can switch need different names: at each
    /// switch what was used is cut to the new capacity.
    pub fn name(mut self, name: impl Into<String>) -> LimitBuilder {
        self.name = name.into();
        self
    }

    /// What becomes of the used part when the numbers change.
    pub fn on_change(mut self, on_change: OnChange) -> LimitBuilder {
        self.options.on_change = on_change;
        self
    }

    /// Checks the numbers and makes the limit.
    pub fn build(self) -> Result<Limit, LimitError> {
        check_name(&self.name)?;
        let period = checked_period(self.period)?;
        checked_count("the rate", self.units, "write at least 1, such as 1/day")?;
        let default = match self.burst {
            _ if self.calendar.is_some() => Algorithm::FixedWindow,
            Some(_) => Algorithm::TokenBucket,
            None => Algorithm::SlidingWindowCounter,
        };
        let algorithm = self.algorithm.unwrap_or(default);
        let calendar = self.calendar.as_deref();
        let capacity = self.burst.unwrap_or(self.units);
        checked_count(
            "the burst",
            capacity,
            "it is the largest cost that can pass at once; write at least 1, or leave it out",
        )?;
        calendar.map_or(Ok(()), |calendar| check_calendar(calendar, algorithm, self.options))?;
        check_options(algorithm, self.burst, self.options, period)?;
        let bucket = BucketNumbers::new(self.units, period, capacity);
        if algorithm.is_bucket() && bucket.full_refill > MAX_PERIOD_US {
            return Err(LimitError::new(format!(
                "a burst of {capacity} at {} per {} takes more than 100 years to refill: \
                 lower the burst or raise the rate",
                self.units,
                notation::show_period(period),
            )));
        }
        let kind = limit_kind(algorithm, period, self.options, calendar);
        let longest = calendar.map(|calendar| calendar.unit().longest().as_micros() as u64);
        Ok(Limit {
            id: public_hash(&[self.name.as_bytes(), &kind.to_le_bytes()]),
            fingerprint: limit_fingerprint(kind, self.options, [self.units, capacity]),
            name: self.name.into(),
            algorithm,
            kind: Kind::of(algorithm, &self.options),
            units: self.units,
            period,
            capacity,
            options: self.options,
            bucket,
            by_period: Divisor::new(period),
            window_offset: self.options.align.offset(period),
            window_longest: longest.unwrap_or(period),
            calendar: self.calendar,
        })
    }
}

impl BucketNumbers {
    fn new(units: u64, period: u64, capacity: u64) -> BucketNumbers {
        let common = gcd(units, period);
        let (drain, unit) = (units / common, period / common);
        let ticks = u128::from(capacity) * u128::from(unit);
        let full_refill = u64::try_from(ticks.div_ceil(u128::from(drain))).unwrap_or(u64::MAX);
        let mut numbers = BucketNumbers {
            unit,
            drain,
            capacity: ticks,
            full_refill,
            by_unit: Divisor::new(unit),
            by_drain: Divisor::new(drain),
            short: None,
        };
        numbers.short = Short::new(&numbers);
        numbers
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn check_name(name: &str) -> Result<(), LimitError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.len() > 64 || !name.bytes().all(allowed) {
        return Err(LimitError::new(format!(
            "the name {name:?} is not usable: write at most 64 letters, digits, `_` or `-`"
        )));
    }
    Ok(())
}

fn checked_period(period: Duration) -> Result<u64, LimitError> {
    let nanos = period.as_nanos();
    if nanos == 0 {
        return Err(LimitError::new("the period is zero: write at least 1us, such as 10/second"));
    }
    if !nanos.is_multiple_of(1_000) {
        return Err(LimitError::new(format!(
            "the period of {nanos} ns is not a whole number of microseconds: \
             multiply rate and period until it is"
        )));
    }
    if period > MAX_PERIOD {
        return Err(LimitError::new("the period is longer than 100 years: write a shorter one"));
    }
    Ok((nanos / 1_000) as u64)
}

fn checked_count(what: &str, count: u64, hint: &str) -> Result<(), LimitError> {
    match count {
        0 => Err(LimitError::new(format!("{what} is zero: {hint}"))),
        1..=MAX_EXACT => Ok(()),
        _ => Err(LimitError::new(format!(
            "{what} of {count} is too large: the most is {MAX_EXACT} (2^53 - 1)"
        ))),
    }
}

/// A calendar says alone when its windows begin.
fn check_calendar(
    calendar: &dyn Calendar,
    algorithm: Algorithm,
    options: Options,
) -> Result<(), LimitError> {
    calendar::check_zone(calendar.zone())?;
    if algorithm != Algorithm::FixedWindow {
        return Err(LimitError::new(format!(
            "{algorithm} cannot count by the calendar: leave the algorithm out, or choose \
             fixed_window"
        )));
    }
    let option = match options.align {
        Align::FirstHit => "align: first_hit",
        Align::Anchor(_) => "align to an anchor",
        Align::Epoch if options.stagger => "stagger",
        Align::Epoch => return Ok(()),
    };
    Err(LimitError::new(format!(
        "`{option}` and a calendar contradict each other: the calendar says when a window begins, \
         for every key; leave one of the two out"
    )))
}

/// An option that its algorithm would ignore is a misunderstanding, so it is an error.
fn check_options(
    algorithm: Algorithm,
    burst: Option<u64>,
    options: Options,
    period: u64,
) -> Result<(), LimitError> {
    let only = |option: &str, wants: &str| {
        Err(LimitError::new(format!(
            "`{option}` means nothing to {algorithm}: leave it out, or choose {wants}"
        )))
    };
    if burst.is_some() && !algorithm.is_bucket() {
        return only("burst", "token_bucket or leaky_bucket");
    }
    if options.queue && algorithm != Algorithm::LeakyBucket {
        return only("queue", "leaky_bucket");
    }
    if options.align != Align::Epoch && algorithm != Algorithm::FixedWindow {
        return only("align", "fixed_window");
    }
    if options.stagger && algorithm != Algorithm::FixedWindow {
        return only("stagger", "fixed_window");
    }
    if options.stagger && options.align == Align::FirstHit {
        return Err(LimitError::new(
            "`stagger` and `align: first_hit` contradict each other: a window that begins with \
             the first request is already each key's own; leave `stagger` out",
        ));
    }
    let Precision::Buckets(buckets) = options.precision else { return Ok(()) };
    if algorithm != Algorithm::SlidingWindowCounter {
        return only("precision: buckets", "sliding_window_counter");
    }
    if buckets == 0 || buckets > MAX_BUCKETS || u64::from(buckets) > period {
        return Err(LimitError::new(format!(
            "buckets({buckets}) is not possible: write between 1 and {}",
            u64::from(MAX_BUCKETS).min(period)
        )));
    }
    Ok(())
}

fn limit_fingerprint(kind: u64, options: Options, numbers: [u64; 2]) -> u64 {
    let [units, capacity] = numbers.map(u64::to_le_bytes);
    let on_change = [options.on_change as u8, u8::from(options.queue)];
    public_hash(&[&kind.to_le_bytes(), &units, &capacity, &on_change])
}

/// What makes the states of two limits mean different things.
fn limit_kind(
    algorithm: Algorithm,
    period: u64,
    options: Options,
    calendar: Option<&dyn Calendar>,
) -> u64 {
    let align = match (calendar, options.align) {
        // No anchor reaches the highest bit.
        (Some(calendar), _) => calendar::identity_hash(calendar) | 1 << 63,
        (None, Align::Epoch) => 0,
        (None, Align::FirstHit) => 1,
        (None, Align::Anchor(anchor)) => 2 + anchor.as_u64() % period,
    };
    let buckets = match options.precision {
        Precision::Estimate => 0,
        Precision::Buckets(buckets) => buckets,
    };
    public_hash(&[
        algorithm.name().as_bytes(),
        &period.to_le_bytes(),
        &align.to_le_bytes(),
        &[u8::from(options.stagger)],
        &buckets.to_le_bytes(),
    ])
}

/// Why numbers do not make a limit, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitError(String);

impl LimitError {
    pub(crate) fn new(message: impl Into<String>) -> LimitError {
        LimitError(message.into())
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LimitError {}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: Duration = Duration::from_secs(31_557_600);

    #[test]
    fn impossible_numbers_say_what_to_write() {
        let cases: [(LimitBuilder, &str); 15] = [
            (Limit::per_minute(0), "the rate is zero: write at least 1"),
            (Limit::per_minute(1).burst(0), "the burst is zero"),
            (Limit::per(1, Duration::ZERO), "the period is zero"),
            (Limit::per(1, Duration::from_nanos(1_500)), "whole number of microseconds"),
            (Limit::per(1, YEAR * 101), "longer than 100 years"),
            (Limit::per_second(1 << 53), "too large: the most is 9007199254740991"),
            (Limit::per_second(1).burst(1 << 53), "the burst of 9007199254740992 is too large"),
            (Limit::per_day(1).burst(36_526), "takes more than 100 years to refill"),
            (Limit::per_day(1).name("a b"), "letters, digits"),
            (Limit::per_day(1).name("x".repeat(65)), "at most 64"),
            (
                Limit::per_day(1).burst(2).algorithm(Algorithm::FixedWindow),
                "`burst` means nothing to fixed_window",
            ),
            (Limit::per_day(1).queue(), "`queue` means nothing to sliding_window_counter"),
            (Limit::per_day(1).buckets(2_000), "between 1 and 1023"),
            (Limit::per(5, Duration::from_micros(7)).buckets(8), "between 1 and 7"),
            (
                Limit::per_day(1)
                    .algorithm(Algorithm::FixedWindow)
                    .align(Align::FirstHit)
                    .stagger(),
                "contradict",
            ),
        ];
        for (builder, want) in cases {
            let error = builder.clone().build().expect_err(want).to_string();
            assert!(error.contains(want), "{builder:?}: {error}");
        }
    }

    #[test]
    fn the_ends_of_the_range_are_accepted() {
        for builder in [
            Limit::per(1, MAX_PERIOD),
            Limit::per(1, Duration::from_micros(1)),
            Limit::per_second(MAX_EXACT),
            Limit::per_day(1).burst(36_525),
            Limit::per_second(1_000_000).burst(4_000_000_000),
        ] {
            builder.clone().build().unwrap_or_else(|error| panic!("{builder:?}: {error}"));
        }
    }

    #[test]
    fn identity_ignores_numbers_and_minds_the_rest() {
        let id = |builder: LimitBuilder| builder.build().unwrap().id();
        let base = id(Limit::per_minute(100));
        assert_eq!(base, id(Limit::per_minute(200)));
        for other in [
            Limit::per_hour(100),
            Limit::per_minute(100).burst(20),
            Limit::per_minute(100).name("api"),
            Limit::per_minute(100).buckets(60),
        ] {
            assert_ne!(base, id(other));
        }
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
