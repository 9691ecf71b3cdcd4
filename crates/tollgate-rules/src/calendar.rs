//! Days, weeks and months of a time zone, for limits that people count by the calendar.

use std::ops::Range;

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use tollgate::Micros;
use tollgate::limit::{Calendar, CalendarUnit};

use crate::problem::Problem;

/// The days, weeks (from Monday) or months of one time zone. A day has 23 or 25 hours where clocks
/// are changed.
#[derive(Debug)]
pub struct ZonedCalendar {
    unit: CalendarUnit,
    zone: Box<str>,
    rules: TimeZone,
}

impl ZonedCalendar {
    /// Creates a calendar for a zone of the time zone database, such as `Europe/Berlin`.
    pub fn new(unit: CalendarUnit, zone: &str) -> Result<ZonedCalendar, Problem> {
        // Programs that do not know their zone write `Etc/Unknown`.
        let rules = TimeZone::get(zone).ok().filter(|rules| !rules.is_unknown());
        let rules = rules.ok_or_else(|| {
            Problem::new(format!("there is no time zone {zone:?}"))
                .hint("write a name such as `UTC`, `Europe/Berlin` or `America/New_York`")
        })?;
        // As the database spells it: the name is part of a limit's identity.
        let zone = rules.iana_name().unwrap_or(zone).into();
        Ok(ZonedCalendar { unit, zone, rules })
    }

    /// The first day of the window that holds a day, and the first after it.
    fn days(&self, day: Date) -> Option<(Date, Date)> {
        let (first, length) = match self.unit {
            CalendarUnit::Day => (day, 1.day()),
            CalendarUnit::Week => {
                let since_monday = i64::from(day.weekday().since(Weekday::Monday));
                (day.checked_sub(since_monday.days()).ok()?, 1.week())
            }
            CalendarUnit::Month => (day.first_of_month(), 1.month()),
        };
        Some((first, first.checked_add(length).ok()?))
    }

    fn midnight(&self, day: Date) -> Option<Micros> {
        let instant = day.to_zoned(self.rules.clone()).ok()?.timestamp().as_microsecond();
        // The window that holds 1970-01-01 began before it in zones east of Greenwich.
        Some(Micros::new(u64::try_from(instant).unwrap_or(0)))
    }

    fn checked_window(&self, at: Micros) -> Option<Range<Micros>> {
        let instant = Timestamp::from_microsecond(i64::try_from(at.as_u64()).ok()?).ok()?;
        let (first, next) = self.days(instant.to_zoned(self.rules.clone()).date())?;
        Some(self.midnight(first)?..self.midnight(next)?)
    }
}

impl Calendar for ZonedCalendar {
    fn unit(&self) -> CalendarUnit {
        self.unit
    }

    fn zone(&self) -> &str {
        &self.zone
    }

    fn window(&self, at: Micros) -> Range<Micros> {
        // Instants end in the year 2255, where every calendar still has an answer.
        self.checked_window(at).unwrap_or_else(|| {
            let length = self.unit.longest().as_micros() as u64;
            let start = at.as_u64() - at.as_u64() % length;
            Micros::new(start)..Micros::new(start + length)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(text: &str) -> u64 {
        text.parse::<Timestamp>().unwrap().as_microsecond() as u64
    }

    #[test]
    fn windows_follow_the_calendar() {
        let (day, week, month) = (CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month);
        let cases = [
            (day, "UTC", "2026-11-15T12:00:00Z", "2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z"),
            (day, "UTC", "2026-11-15T00:00:00Z", "2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z"),
            // Clocks go forward: 23 hours.
            (
                day,
                "Europe/Berlin",
                "2026-03-29T12:00:00Z",
                "2026-03-28T23:00:00Z",
                "2026-03-29T22:00:00Z",
            ),
            // And back: 25.
            (
                day,
                "Europe/Berlin",
                "2026-10-25T12:00:00Z",
                "2026-10-24T22:00:00Z",
                "2026-10-25T23:00:00Z",
            ),
            // In Beirut that day begins at 01:00.
            (
                day,
                "Asia/Beirut",
                "2022-03-27T12:00:00Z",
                "2022-03-26T22:00:00Z",
                "2022-03-27T21:00:00Z",
            ),
            (week, "UTC", "2026-11-15T12:00:00Z", "2026-11-09T00:00:00Z", "2026-11-16T00:00:00Z"),
            (month, "UTC", "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
            (
                month,
                "Asia/Tokyo",
                "2026-11-30T15:00:00Z",
                "2026-11-30T15:00:00Z",
                "2026-12-31T15:00:00Z",
            ),
        ];
        for (unit, zone, at, start, end) in cases {
            let calendar = ZonedCalendar::new(unit, zone).unwrap();
            let window = calendar.window(Micros::new(micros(at)));
            let got = (window.start.as_u64(), window.end.as_u64());
            assert_eq!(got, (micros(start), micros(end)), "{unit:?} {zone} {at}");
        }
    }

    #[test]
    fn the_ends_of_time_have_windows() {
        for zone in ["UTC", "Asia/Tokyo", "America/New_York"] {
            for unit in [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month] {
                let calendar = ZonedCalendar::new(unit, zone).unwrap();
                // Instants end at 2^53 microseconds; the window of the last one has no end.
                for at in [0, 1, (1 << 53) - 3_000_000_000_000].map(Micros::new) {
                    let window = calendar.window(at);
                    assert!(window.contains(&at), "{zone} {unit:?} {at:?}");
                }
            }
        }
    }

    #[test]
    fn a_zone_has_one_spelling() {
        let cases = [
            ("europe/berlin", "Europe/Berlin"),
            ("EUROPE/BERLIN", "Europe/Berlin"),
            ("utc", "UTC"),
        ];
        for (given, want) in cases {
            assert_eq!(ZonedCalendar::new(CalendarUnit::Day, given).unwrap().zone(), want);
        }
        for zone in ["Europe/Berlino", "Etc/Unknown", "etc/unknown", "", "+01:00"] {
            let problem = ZonedCalendar::new(CalendarUnit::Day, zone).unwrap_err();
            assert!(problem.message.contains("no time zone"), "{zone}");
        }
    }
}
