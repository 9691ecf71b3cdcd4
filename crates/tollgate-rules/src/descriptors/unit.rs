//! `Unit`: the periods of Envoy and of its files.

use std::time::Duration;

/// The period of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// 1 s.
    Second,
    /// 60 s.
    Minute,
    /// 3,600 s.
    Hour,
    /// 86,400 s.
    Day,
    /// 7 days.
    Week,
    /// 30 days, whatever the calendar says.
    Month,
    /// 365 days, whatever the calendar says.
    Year,
}

impl Unit {
    /// All units, shortest first.
    pub const ALL: [Unit; 7] =
        [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// The word for it, in small letters.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Second => "second",
            Unit::Minute => "minute",
            Unit::Hour => "hour",
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }

    /// A limit of zero in this unit, in readable form.
    pub(crate) const fn zero_limit_text(self) -> &'static str {
        match self {
            Unit::Second => "0/second",
            Unit::Minute => "0/minute",
            Unit::Hour => "0/hour",
            Unit::Day => "0/day",
            Unit::Week => "0/week",
            Unit::Month => "0/month",
            Unit::Year => "0/year",
        }
    }

    /// The length in seconds.
    pub const fn seconds(self) -> u64 {
        match self {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3_600,
            Unit::Day => 86_400,
            Unit::Week => 7 * 86_400,
            Unit::Month => 30 * 86_400,
            Unit::Year => 365 * 86_400,
        }
    }

    /// The length.
    pub const fn period(self) -> Duration {
        Duration::from_secs(self.seconds())
    }

    /// The unit of this name, however it is capitalised.
    pub fn parse(name: &str) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// The unit that is exactly this long.
    pub fn of_period(period: Duration) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.period() == period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_have_names_and_lengths() {
        for unit in Unit::ALL {
            assert_eq!(Unit::parse(unit.name()), Some(unit));
            assert_eq!(Unit::parse(&unit.name().to_uppercase()), Some(unit));
            assert_eq!(Unit::of_period(unit.period()), Some(unit));
        }
        assert_eq!((Unit::parse("seconds"), Unit::parse("")), (None, None));
        assert_eq!(Unit::of_period(Duration::from_secs(61)), None);
        let lengths = [1, 60, 3_600, 86_400, 604_800, 2_592_000, 31_536_000];
        assert_eq!(Unit::ALL.map(Unit::seconds), lengths);
    }
}
