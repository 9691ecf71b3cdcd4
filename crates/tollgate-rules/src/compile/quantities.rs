//! Small values of a rules file: durations, shares, instants, rates of bytes.

use std::time::Duration;

use jiff::Timestamp;
use tollgate::Micros;
use tollgate::limit::{MAX_PERIOD, parse_period};

use crate::Problem;
use crate::shape::octal_hint;

/// A duration above zero, such as `90s`.
pub(super) fn duration(text: &str) -> Result<Duration, Problem> {
    if text.starts_with('-') {
        return Err(Problem::new(format!("the duration {text:?} is negative"))
            .hint("write a duration such as 90s"));
    }
    let duration = parse_period(text)?;
    if duration.is_zero() || duration > MAX_PERIOD {
        return Err(Problem::new(format!(
            "the duration {text:?} is not between 1us and 100 years"
        ))
        .hint("write a duration such as 90s"));
    }
    Ok(duration)
}

/// A timeout or an interval of the gateway.
pub(super) fn timeout(text: &str) -> Result<Duration, Problem> {
    let possible = Duration::from_millis(1)..=Duration::from_secs(86_400);
    let duration = duration(text)?;
    possible.contains(&duration).then_some(duration).ok_or_else(|| {
        Problem::new(format!("the time {text:?} is not between 1ms and 24h"))
            .hint("write a time such as 500ms or 2s")
    })
}

/// A share in whole percent, such as `10%`.
pub(super) fn whole_percent(text: &str) -> Result<u8, Problem> {
    let share = share(text)?;
    let percent = (share % 100 == 0).then_some(share / 100);
    percent.and_then(|percent| u8::try_from(percent).ok()).ok_or_else(|| {
        Problem::new(format!("the share {text:?} is not in whole percent"))
            .hint("write a percentage such as 10%")
    })
}

/// The window of the short form: a number of seconds, or a duration.
pub(super) fn window(text: &str) -> Result<Duration, Problem> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return duration(text);
    }
    if let Some(hint) = octal_hint("window", text) {
        let problem = format!(
            "a window of {text} seconds: YAML 1.1 readers take a number with a leading 0 for octal"
        );
        return Err(Problem::new(problem).hint(hint));
    }
    duration(&format!("{text}s")).map_err(|_| {
        Problem::new(format!("a window of {text} seconds is not between 1 second and 100 years"))
            .hint("write a number of seconds such as 60, or a duration such as 1m")
    })
}

/// A share such as `25%`, in ten-thousandths.
pub(super) fn share(text: &str) -> Result<u16, Problem> {
    let bad = |what: &str| {
        Problem::new(format!("the share {text:?} {what}"))
            .hint("write a percentage from 0% to 100%, such as 25% or 0.5%")
    };
    let number = text.strip_suffix('%').ok_or_else(|| bad("has no `%`"))?.trim_end();
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(decimals) {
        return Err(bad("is not a number"));
    }
    if decimals.len() > 2 {
        return Err(bad("has more than two decimals"));
    }
    let hundredths = format!("{whole}{decimals:0<2}").parse().unwrap_or(u32::MAX);
    let share = u16::try_from(hundredths).ok().filter(|share| *share <= 10_000);
    share.ok_or_else(|| bad("is above 100%"))
}

/// Reads the interval at which instances synchronize, in milliseconds.
pub(super) fn sync_interval(text: &str) -> Result<u32, Problem> {
    let millis = duration(text)?.as_millis();
    let possible = (10..=3_600_000).contains(&millis);
    possible.then_some(millis as u32).ok_or_else(|| {
        Problem::new(format!("instances cannot settle every {text}"))
            .hint("write an interval from 10ms to 1h, such as 1s")
    })
}

/// An instant in the manner of RFC 3339.
pub(super) fn instant(text: &str) -> Result<Micros, Problem> {
    let bad = |what: &str| {
        Problem::new(format!("the instant {text:?} {what}")).hint(
            "write it with its zone, such as 2027-01-01T00:00:00Z or 2027-01-01T00:00:00+01:00",
        )
    };
    let instant: Timestamp = text.parse().map_err(|_| bad("cannot be read"))?;
    let micros = u64::try_from(instant.as_microsecond()).map_err(|_| bad("lies before 1970"))?;
    Ok(Micros::new(micros))
}

/// Names of units of bytes.
const BYTE_UNITS: [(&str, u64); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// A number of bytes such as `64KiB`.
pub(super) fn bytes(text: &str) -> Result<u64, Problem> {
    byte_count(text).map_err(|what| {
        Problem::new(format!("the number of bytes {text:?} {what}"))
            .hint("write a whole number and B, kB, KiB, MB, MiB, GB or GiB: 64KiB")
    })
}

/// A rate of bytes such as `64KiB/second`: bytes, and in which time.
pub(super) fn byte_rate(text: &str) -> Result<(u64, Duration), Problem> {
    let bad = |what: &str| {
        Problem::new(format!("the rate of bytes {text:?} {what}")).hint(
            "write a whole number, B, kB, KiB, MB, MiB, GB or GiB, and a period: 64KiB/second",
        )
    };
    let (amount, period) = text.split_once('/').ok_or_else(|| bad("has no period"))?;
    Ok((byte_count(amount).map_err(bad)?, duration(period)?))
}

/// A number of bytes above zero, or what is wrong with it.
fn byte_count(text: &str) -> Result<u64, &'static str> {
    let text = text.trim();
    let unit = BYTE_UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    let (number, bytes) = unit.unwrap_or((text, &1));
    let number: u64 = number.trim().parse().map_err(|_| "does not begin with a whole number")?;
    let bytes = number.checked_mul(*bytes).filter(|bytes| *bytes > 0);
    bytes.ok_or("is zero or too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_in_ten_thousandths() {
        let good = [("25%", 2_500), ("0%", 0), ("100%", 10_000), ("0.5%", 50), ("12.34 %", 1_234)];
        for (text, want) in good {
            assert_eq!(share(text), Ok(want), "{text}");
        }
        for text in ["25", "%", "-1%", "100.01%", "0.001%", "1e2%", "9999999999999%", ".5%"] {
            assert!(share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_of_bytes_are_read() {
        let second = Duration::from_secs(1);
        assert_eq!(byte_rate("64KiB/second"), Ok((65_536, second)));
        assert_eq!(byte_rate("5 MB / s"), Ok((5_000_000, second)));
        assert_eq!(byte_rate("100/s"), Ok((100, second)));
        for text in ["", "64KiB", "x/second", "0B/second", "1TiB/second", "1.5MB/second", "5B/0s"] {
            assert!(byte_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn windows_are_seconds_or_durations() {
        assert_eq!(window("60"), Ok(Duration::from_secs(60)));
        assert_eq!(window("1m"), Ok(Duration::from_secs(60)));
        for text in ["060", "00", "0", "-1", "", "1.5", "99999999999999999999", "0s"] {
            assert!(window(text).is_err(), "{text}");
        }
    }

    #[test]
    fn instants_need_a_zone() {
        assert_eq!(instant("1970-01-01T00:00:01Z"), Ok(Micros::new(1_000_000)));
        for text in ["2027-01-01", "2027-01-01T00:00:00", "1969-01-01T00:00:00Z", "soon"] {
            assert!(instant(text).is_err(), "{text}");
        }
    }
}
