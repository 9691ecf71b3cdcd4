//! Instants as people read them: `12:00:01.250 UTC`.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tollgate::Micros;

/// The time of day of an instant in UTC, with its date if that is not the date of `now`. Later instants are
/// rounded up to milliseconds, others down.
pub(super) fn instant_text(at: Micros, now: Micros) -> String {
    let civil = |at: Micros| {
        let at_us = i64::try_from(at.as_u64()).unwrap_or(i64::MAX);
        let time = Timestamp::from_microsecond(at_us).unwrap_or_default();
        time.to_zoned(TimeZone::UTC).datetime()
    };
    let later_us = if at > now { 999 } else { 0 };
    let at = Micros::new((at.as_u64() + later_us) / 1_000 * 1_000);
    let (then, today) = (civil(at), civil(now).date());
    let fraction = match at.as_u64() % 1_000_000 {
        0 => String::new(),
        part => format!(".{:03}", part / 1_000),
    };
    let time = then.time();
    let time =
        format!("{:02}:{:02}:{:02}{fraction} UTC", time.hour(), time.minute(), time.second());
    match then.date() == today {
        true => time,
        false => format!("{} {time}", then.date()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_times_of_day() {
        let noon = 1_800_014_400_000_000;
        for (at_us, want) in [
            (noon, "12:00:00 UTC"),
            (noon + 1_250_000, "12:00:01.250 UTC"),
            (noon + 1_250_001, "12:00:01.251 UTC"),
            (noon + 1_250_999, "12:00:01.251 UTC"),
            (noon + 86_400_000_000, "2027-01-16 12:00:00 UTC"),
        ] {
            assert_eq!(instant_text(Micros::new(at_us), Micros::new(noon)), want);
        }
        let now = Micros::new(noon + 1_250_999);
        assert_eq!(instant_text(now, now), "12:00:01.250 UTC");
    }
}
