//! Instants and waits, both in whole microseconds.
//!
//! Microseconds since 1970 fit in the 53 bits that a Lua number holds exactly, nanoseconds do
//! not: with one unit everywhere a shared store computes the very same answers as this process.

use std::fmt;
use std::time::Duration;

/// The largest count, cost or instant that every store represents exactly: 2^53 − 1.
pub const MAX_EXACT: u64 = (1 << 53) - 1;

/// An instant: microseconds since the Unix epoch. Reaches the year 2255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// The Unix epoch.
    pub const ZERO: Micros = Micros(0);
    /// The last instant that can be represented.
    pub const MAX: Micros = Micros(MAX_EXACT);

    /// The instant `micros` after the epoch, at most [`Micros::MAX`].
    #[inline]
    pub const fn new(micros: u64) -> Micros {
        if micros > MAX_EXACT { Micros::MAX } else { Micros(micros) }
    }

    /// The instant `secs` seconds after the epoch.
    pub const fn from_secs(secs: u64) -> Micros {
        Micros::new(secs.saturating_mul(1_000_000))
    }

    /// Microseconds since the epoch.
    #[inline]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The wait until a later instant; zero if that has passed.
    #[inline]
    pub const fn until(self, later: Micros) -> Wait {
        Wait(later.0.saturating_sub(self.0))
    }

    /// The instant `wait` later; [`Wait::NEVER`] leads to [`Micros::MAX`].
    #[inline]
    pub const fn after(self, wait: Wait) -> Micros {
        Micros::new(self.0.saturating_add(wait.0))
    }
}

/// A wait in microseconds, or never.
///
/// Every wait that Tollgate reports is rounded up and minimal: waiting this long is enough, one
/// microsecond less is not. `NEVER` is greater than every number, so the longest of several waits
/// is simply their maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wait(u64);

impl Wait {
    /// No wait at all.
    pub const ZERO: Wait = Wait(0);
    /// No amount of waiting helps.
    pub const NEVER: Wait = Wait(u64::MAX);

    /// A wait of `micros` microseconds.
    #[inline]
    pub const fn from_micros(micros: u64) -> Wait {
        Wait(micros)
    }

    /// A wait of at least `duration`: a part of a microsecond counts as a whole one.
    pub fn at_least(duration: Duration) -> Wait {
        Wait(u64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX - 1))
    }

    /// Returns true if no amount of waiting helps.
    #[inline]
    pub const fn is_never(self) -> bool {
        self.0 == u64::MAX
    }

    /// Returns true if there is nothing to wait for.
    #[inline]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Microseconds, or `None` for never.
    #[inline]
    pub const fn as_micros(self) -> Option<u64> {
        if self.is_never() { None } else { Some(self.0) }
    }

    /// The wait as a [`Duration`], or `None` for never.
    pub fn duration(self) -> Option<Duration> {
        self.as_micros().map(Duration::from_micros)
    }

    /// Whole seconds, rounded up, or `None` for never.
    pub const fn seconds(self) -> Option<u64> {
        match self.as_micros() {
            Some(micros) => Some(micros.div_ceil(1_000_000)),
            None => None,
        }
    }

    /// Whole milliseconds, rounded up, or `None` for never.
    pub const fn millis(self) -> Option<u64> {
        match self.as_micros() {
            Some(micros) => Some(micros.div_ceil(1_000)),
            None => None,
        }
    }
}

impl fmt::Display for Wait {
    /// Writes the wait for people: `never`, `0 s`, `250 us`, `1.5 ms`, `36 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(micros) = self.as_micros() else { return f.write_str("never") };
        let (unit, per_unit) = match micros {
            0 => return f.write_str("0 s"),
            1..1_000 => ("us", 1),
            1_000..1_000_000 => ("ms", 1_000),
            _ => ("s", 1_000_000),
        };
        let (whole, part) = (micros / per_unit, micros % per_unit);
        if part == 0 {
            return write!(f, "{whole} {unit}");
        }
        let width = if per_unit == 1_000 { 3 } else { 6 };
        let decimals = format!("{part:0width$}");
        write!(f, "{whole}.{} {unit}", decimals.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_and_waits_saturate() {
        assert_eq!(Micros::new(u64::MAX), Micros::MAX);
        assert_eq!(Micros::new(5).after(Wait::NEVER), Micros::MAX);
        assert_eq!(Micros::new(5).after(Wait::from_micros(7)), Micros::new(12));
        assert!(Wait::NEVER > Wait::from_micros(u64::MAX - 1));
        assert!(!Wait::at_least(Duration::MAX).is_never());
    }

    #[test]
    fn waits_round_up() {
        assert_eq!(Wait::at_least(Duration::from_nanos(1)), Wait::from_micros(1));
        assert_eq!(Wait::from_micros(1).seconds(), Some(1));
        assert_eq!(Wait::from_micros(1_000_001).seconds(), Some(2));
        assert_eq!(Wait::from_micros(1_001).millis(), Some(2));
        assert_eq!(Wait::NEVER.seconds(), None);
    }

    #[test]
    fn waits_read_well() {
        let shown = [0, 250, 1_500, 36_000_000, 333_334, 1_000_001]
            .map(|us| Wait::from_micros(us).to_string());
        assert_eq!(shown, ["0 s", "250 us", "1.5 ms", "36 s", "333.334 ms", "1.000001 s"]);
        assert_eq!(Wait::NEVER.to_string(), "never");
    }
}
