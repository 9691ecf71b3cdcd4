//! Windows of the calendar: "1000 a day in Berlin", "5000 a month".
//!
//! A day has 23, 24 or 25 hours where clocks change, and a month 28 to 31 days, so such windows are
//! no multiples of a period. A [`Calendar`] knows where they begin and end. This crate has no
//! time-zone data; a crate that has implements three methods.
//!
//! ```
//! use std::ops::Range;
//! use std::sync::Arc;
//! use tollgate::limit::{Calendar, CalendarUnit};
//! use tollgate::{Limit, Micros};
//!
//! /// The days of a place that is always an hour ahead of UTC.
//! #[derive(Debug)]
//! struct Lagos;
//!
//! impl Calendar for Lagos {
//!     fn unit(&self) -> CalendarUnit {
//!         CalendarUnit::Day
//!     }
//!     fn zone(&self) -> &str {
//!         "Africa/Lagos"
//!     }
//!     fn window(&self, at: Micros) -> Range<Micros> {
//!         const HOUR: u64 = 3_600;
//!         let day = (at.as_u64() / 1_000_000 + HOUR) / (24 * HOUR);
//!         let midnight = |day: u64| Micros::from_secs((day * 24 * HOUR).saturating_sub(HOUR));
//!         midnight(day)..midnight(day + 1)
//!     }
//! }
//!
//! let daily = Limit::per_calendar(1_000, Arc::new(Lagos)).name("reports").build()?;
//! assert_eq!(daily.to_string(), "1000/day in Africa/Lagos");
//! # Ok::<(), tollgate::LimitError>(())
//! ```

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use super::LimitError;
use crate::hash::public_hash;
use crate::time::Micros;

/// A calendar: it knows where its windows begin and end.
///
/// It must be pure: the same instant is always in the same window. It is called during a decision
/// about a key that has used nothing of the window yet, and by refunds, so it should neither
/// allocate nor wait. Later decisions do not call it: the state remembers when its window ends.
pub trait Calendar: fmt::Debug + Send + Sync {
    /// The unit into which it divides time.
    fn unit(&self) -> CalendarUnit;

    /// The name of its time zone, such as `Europe/Berlin` or `UTC`. Zone and unit are the identity
    /// of the calendar: limits of different zones never share a state, and limits whose calendars
    /// have the same zone and unit do. 1 to 64 characters of printable ASCII without spaces.
    fn zone(&self) -> &str;

    /// The window that contains `at`: from its start to just before its end. Windows leave no gaps
    /// and last no longer than [`CalendarUnit::longest`].
    fn window(&self, at: Micros) -> Range<Micros>;
}

/// The unit into which a calendar divides time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// From midnight to midnight.
    Day,
    /// Seven days; the calendar defines on which day it begins.
    Week,
    /// From the first of a month to the first of the next.
    Month,
}

const DAY_S: u64 = 86_400;

impl CalendarUnit {
    /// The one list of units.
    pub const ALL: [CalendarUnit; 3] = [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month];

    /// The name used in rates: `day`, `week`, `month`.
    pub const fn name(self) -> &'static str {
        match self {
            CalendarUnit::Day => "day",
            CalendarUnit::Week => "week",
            CalendarUnit::Month => "month",
        }
    }

    /// Length of the unit without a change of clocks; `None` for months, which differ even then.
    pub const fn nominal(self) -> Option<Duration> {
        match self {
            CalendarUnit::Day | CalendarUnit::Week => Some(self.period()),
            CalendarUnit::Month => None,
        }
    }

    /// The longest that a unit can last anywhere: its days at 24 hours each, and one day more,
    /// because no place sets its clocks back further.
    pub const fn longest(self) -> Duration {
        Duration::from_secs((self.max_days() + 1) * DAY_S)
    }

    /// The period of a limit: the nominal one, and the longest for a month.
    pub(super) const fn period(self) -> Duration {
        Duration::from_secs(self.max_days() * DAY_S)
    }

    const fn max_days(self) -> u64 {
        match self {
            CalendarUnit::Day => 1,
            CalendarUnit::Week => 7,
            CalendarUnit::Month => 31,
        }
    }
}

impl fmt::Display for CalendarUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Microseconds from `at` to the end of its window. If a calendar is wrong, a window is too short
/// or too long, and nothing worse happens.
#[cold]
pub(crate) fn window_left_at(calendar: &dyn Calendar, at: u64) -> u64 {
    let longest = calendar.unit().longest().as_micros() as u64;
    calendar.window(Micros::new(at)).end.as_u64().saturating_sub(at).clamp(1, longest)
}

/// The identity of a calendar.
pub(super) fn identity(calendar: &dyn Calendar) -> (CalendarUnit, &str) {
    (calendar.unit(), calendar.zone())
}

pub(super) fn identity_hash(calendar: &dyn Calendar) -> u64 {
    public_hash(&[calendar.unit().name().as_bytes(), calendar.zone().as_bytes()])
}

pub(super) fn check_zone(zone: &str) -> Result<(), LimitError> {
    if zone.is_empty() || zone.len() > 64 || !zone.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(LimitError::new(format!(
            "the time zone {zone:?} is not usable: write 1 to 64 characters of printable ASCII \
             without spaces, such as Europe/Berlin"
        )));
    }
    Ok(())
}

/// A calendar of which only the name is known, because it comes from a snapshot. Its states know
/// when their windows end. It is called only if the clock jumped, and then no window ends too
/// early.
#[derive(Debug)]
pub(crate) struct RestoredCalendar {
    pub(crate) unit: CalendarUnit,
    pub(crate) zone: Box<str>,
}

impl Calendar for RestoredCalendar {
    fn unit(&self) -> CalendarUnit {
        self.unit
    }

    fn zone(&self) -> &str {
        &self.zone
    }

    fn window(&self, at: Micros) -> Range<Micros> {
        at..Micros::new(at.as_u64() + self.unit.longest().as_micros() as u64)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use super::super::{Align, Limit, LimitBuilder};
    use super::*;
    use crate::algorithm::Algorithm;

    pub(crate) const HOUR: u64 = 3_600_000_000;

    /// Windows of these numbers of hours, one after the other, repeated.
    #[derive(Debug)]
    pub(crate) struct HoursCalendar {
        pub(crate) unit: CalendarUnit,
        pub(crate) zone: &'static str,
        pub(crate) hours: &'static [u64],
    }

    impl Calendar for HoursCalendar {
        fn unit(&self) -> CalendarUnit {
            self.unit
        }

        fn zone(&self) -> &str {
            self.zone
        }

        fn window(&self, at: Micros) -> Range<Micros> {
            let mut start = 0;
            for length in self.hours.iter().cycle().map(|hours| hours * HOUR) {
                if at.as_u64() - start < length {
                    return Micros::new(start)..Micros::new(start + length);
                }
                start += length;
            }
            unreachable!("the hours repeat without end")
        }
    }

    /// Days that end at hour 24, 47 (a short one), 72 (a long one), 96, 120, and so on.
    pub(crate) const DAYS: HoursCalendar =
        HoursCalendar { unit: CalendarUnit::Day, zone: "Europe/Berlin", hours: &[24, 23, 25, 24] };

    /// Months of 31, 28, 31 (less an hour) and 30 days: they end at hour 744, 1416, 2159 and 2879.
    pub(crate) const MONTHS: HoursCalendar =
        HoursCalendar { unit: CalendarUnit::Month, zone: "UTC", hours: &[744, 672, 743, 720] };

    pub(crate) fn by(calendar: HoursCalendar, units: u64) -> LimitBuilder {
        Limit::per_calendar(units, Arc::new(calendar))
    }

    fn zone(zone: &'static str) -> LimitBuilder {
        by(HoursCalendar { zone, ..DAYS }, 5)
    }

    #[test]
    fn what_contradicts_a_calendar_is_said() {
        let anchor = Align::Anchor(Micros::from_secs(9));
        let rows = [
            (by(DAYS, 5).stagger(), "`stagger` and a calendar contradict each other"),
            (by(DAYS, 5).align(Align::FirstHit), "`align: first_hit` and a calendar contradict"),
            (by(DAYS, 5).align(anchor), "`align to an anchor` and a calendar contradict"),
            (by(DAYS, 5).burst(2), "`burst` means nothing to fixed_window"),
            (by(DAYS, 5).queue(), "`queue` means nothing to fixed_window"),
            (by(DAYS, 5).buckets(4), "means nothing to fixed_window"),
            (
                by(DAYS, 5).algorithm(Algorithm::TokenBucket),
                "token_bucket cannot count by the calendar",
            ),
            (by(DAYS, 0), "the rate is zero"),
            (zone(""), "the time zone \"\" is not usable"),
            (zone("Europe/Berlin now"), "is not usable"),
            (zone("na\u{ef}ve"), "is not usable"),
        ];
        for (builder, want) in rows {
            let error = builder.build().expect_err(want).to_string();
            assert!(error.contains(want), "{error}");
        }
        let named = by(DAYS, 5).algorithm(Algorithm::FixedWindow).build().unwrap();
        assert_eq!(named, by(DAYS, 5).build().unwrap());
        assert_eq!(named.algorithm(), Algorithm::FixedWindow);
    }

    #[test]
    fn unit_and_zone_are_part_of_a_limit_s_identity() {
        let berlin = by(DAYS, 5).build().unwrap();
        let again = by(HoursCalendar { hours: &[24], ..DAYS }, 5).build().unwrap();
        assert_eq!(
            (&berlin, berlin.id()),
            (&again, again.id()),
            "calendars of one unit and zone are the same"
        );
        assert_eq!(berlin.fingerprint(), again.fingerprint());
        let more = by(DAYS, 6).build().unwrap();
        assert_eq!(berlin.id(), more.id(), "another number keeps the state");
        assert_ne!(berlin.fingerprint(), more.fingerprint());
        for other in [
            zone("UTC"),
            by(HoursCalendar { unit: CalendarUnit::Week, ..DAYS }, 5),
            by(HoursCalendar { unit: CalendarUnit::Month, ..DAYS }, 5),
            Limit::per_day(5).algorithm(Algorithm::FixedWindow),
        ] {
            let other = other.build().unwrap();
            assert_ne!(berlin, other);
            assert_ne!(berlin.id(), other.id(), "{other}");
            assert_ne!(berlin.fingerprint(), other.fingerprint(), "{other}");
        }
    }

    #[test]
    fn they_read_as_people_write_them() {
        let week = HoursCalendar { unit: CalendarUnit::Week, zone: "UTC", hours: &[168] };
        let rows = [
            (DAYS, "1000/day", "1000/day in Europe/Berlin", 24),
            (week, "1000/week", "1000/week in UTC", 7 * 24),
            (MONTHS, "1000/month", "1000/month in UTC", 31 * 24),
        ];
        for (calendar, rate, shown, hours) in rows {
            let limit = by(calendar, 1_000).build().unwrap();
            assert_eq!((limit.rate().to_string(), limit.to_string()), (rate.into(), shown.into()));
            assert_eq!(limit.period(), Duration::from_micros(hours * HOUR));
            assert_eq!(limit.calendar().unwrap().unit().name(), &rate[5..]);
        }
        assert_eq!(
            Limit::per_minute(100).burst(2).build().unwrap().rate().to_string(),
            "100/minute"
        );
    }

    #[test]
    fn a_calendar_that_breaks_its_word_breaks_nothing_else() {
        #[derive(Debug)]
        struct BrokenCalendar(Range<u64>);
        impl Calendar for BrokenCalendar {
            fn unit(&self) -> CalendarUnit {
                CalendarUnit::Day
            }
            fn zone(&self) -> &str {
                "Nowhere"
            }
            fn window(&self, _at: Micros) -> Range<Micros> {
                Micros::new(self.0.start)..Micros::new(self.0.end)
            }
        }
        // window, left of it at instant 100
        let rows =
            [(90..101, 1), (90..100, 1), (0..50, 1), (100..100, 1), (0..u64::MAX, 48 * HOUR)];
        for (window, left) in rows {
            assert_eq!(window_left_at(&BrokenCalendar(window.clone()), 100), left, "{window:?}");
        }
        assert_eq!(window_left_at(&DAYS, Micros::MAX.as_u64()), 1, "the end of time ends a window");
    }
}
