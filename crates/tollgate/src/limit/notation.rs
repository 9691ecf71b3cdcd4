//! Rates as people write them: `100/minute`, `5 per 90s`, `10/1s`, `0.4/second`,
//! `100/minute burst 20`, by the calendar `5000/month`; and the canonical way back.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::bucket_numbers::gcd;
use super::{CalendarUnit, Limit, LimitBuilder, LimitError, Precision};
use crate::algorithm::Algorithm;
use crate::display_fn::DisplayFn;

/// Names and lengths of units. The first name of each row is the canonical one.
const UNITS: [(&[&str], u64); 7] = [
    (&["us", "microsecond", "microseconds"], 1),
    (&["ms", "millisecond", "milliseconds"], 1_000),
    (&["s", "sec", "second", "seconds"], 1_000_000),
    (&["m", "min", "minute", "minutes"], 60_000_000),
    (&["h", "hr", "hour", "hours"], 3_600_000_000),
    (&["d", "day", "days"], 86_400_000_000),
    (&["w", "week", "weeks"], 604_800_000_000),
];

/// Words for units that a misspelt one is compared with. Of equally near ones the first is suggested.
const UNIT_WORDS: [&str; 8] =
    ["second", "minute", "hour", "day", "week", "month", "millisecond", "microsecond"];

/// Advice that names all units.
const UNITS_ADVICE: &str =
    "write second, minute, hour, day or week, or a number and us, ms, s, m, h, d or w, such as 90s";

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Limit, LimitError> {
        parse_rate(text)?.build()
    }
}

/// Reads a rate, with or without a burst, into a builder that can be refined further.
pub fn parse_rate(text: &str) -> Result<LimitBuilder, LimitError> {
    let bad = |problem: &str| {
        let advice = match meant_rate(text) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "write `100/minute`, `5 per 90s` or `100/minute burst 20`".into(),
        };
        LimitError::new(format!("the rate {text:?} {problem}: {advice}"))
    };
    check_one_rate(text)?;
    let (rate, burst) = match split_word(text, "burst") {
        Some((rate, burst)) => (rate, Some(burst)),
        None => (text, None),
    };
    let (units, period) = split_rate(rate).ok_or_else(|| bad("has no period"))?;
    let (numerator, denominator) = parse_decimal(units.trim()).map_err(|problem| bad(&problem))?;
    let period = parse_period(period)?;
    let period = period
        .checked_mul(denominator)
        .ok_or_else(|| bad("has more decimals than a period can hold"))?;
    let mut builder = Limit::per(numerator, period);
    if let Some(burst) = burst {
        let burst =
            burst.trim().parse().map_err(|_| bad("has a burst that is not a whole number"))?;
        builder = builder.burst(burst);
    }
    Ok(builder)
}

/// Reads a rate by the calendar, such as `1000/day`, `10 per week` or `5000/month`: whole units, and
/// exactly one day, week or month, because calendars have no others.
///
/// ```
/// use tollgate::limit::{CalendarUnit, is_monthly, parse_calendar_rate};
///
/// assert_eq!(parse_calendar_rate("1000/day")?, (1_000, CalendarUnit::Day));
/// assert_eq!(parse_calendar_rate("5 per month")?, (5, CalendarUnit::Month));
/// assert!(is_monthly("5 per month") && !is_monthly("1000/day"));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub fn parse_calendar_rate(text: &str) -> Result<(u64, CalendarUnit), LimitError> {
    let bad = |problem: &str| {
        LimitError::new(format!(
            "the rate {text:?} {problem}: write a whole number per day, week or month, such as \
             `1000/day`"
        ))
    };
    check_one_rate(text)?;
    if split_word(text, "burst").is_some() {
        return Err(bad("has a burst, which windows of the calendar cannot have"));
    }
    let (units, period) = split_rate(text).ok_or_else(|| bad("has no period"))?;
    let (numerator, denominator) = parse_decimal(units.trim()).map_err(|problem| bad(&problem))?;
    if denominator != 1 {
        return Err(bad("is not a whole number, and windows of the calendar cannot be stretched"));
    }
    let (count, name) = split_count(period);
    let unit = calendar_unit(name).ok_or_else(|| {
        bad(&format!("has the period {:?}, which no calendar has", period.trim()))
    })?;
    if !matches!(count, "" | "1") {
        return Err(bad(&format!("has a period of {count} {unit}s, which no calendar has")));
    }
    Ok((numerator, unit))
}

/// Returns true if a rate is one per month. Months have no fixed length: [`parse_rate`] refuses it,
/// and only [`parse_calendar_rate`] reads it.
pub fn is_monthly(text: &str) -> bool {
    let rate = split_word(text, "burst").map_or(text, |(rate, _)| rate);
    let unit = split_rate(rate).and_then(|(_, period)| calendar_unit(split_count(period).1));
    unit == Some(CalendarUnit::Month)
}

/// Reports several rates in one text.
fn check_one_rate(text: &str) -> Result<(), LimitError> {
    let by_sign = text.split([',', ';', '+', '&']);
    let rates: Vec<&str> = by_sign
        .flat_map(|part| match split_word(part, "and") {
            Some((one, other)) => vec![one, other],
            None => vec![part],
        })
        .map(str::trim)
        .collect();
    if rates.len() < 2 || rates.iter().any(|rate| split_rate(rate).is_none()) {
        return Ok(());
    }
    Err(LimitError::new(format!(
        "{text:?} holds several rates: write each as a limit of its own: `[{}]`",
        rates.join(", ")
    )))
}

/// The units and the period of a rate.
fn split_rate(text: &str) -> Option<(&str, &str)> {
    text.split_once('/').or_else(|| split_word(text, "per"))
}

/// The number before a unit, and the unit.
fn split_count(period: &str) -> (&str, &str) {
    let period = period.trim();
    let unit = period.trim_start_matches(|c: char| c.is_ascii_digit());
    (&period[..period.len() - unit.len()], unit.trim_start())
}

fn calendar_unit(name: &str) -> Option<CalendarUnit> {
    let name = name.to_ascii_lowercase();
    if matches!(name.as_str(), "mo" | "month" | "months") {
        return Some(CalendarUnit::Month);
    }
    let length = unit_micros(&name).map(Duration::from_micros);
    length.and_then(|length| {
        CalendarUnit::ALL.into_iter().find(|unit| unit.nominal() == Some(length))
    })
}

/// Splits at a word that stands alone.
fn split_word<'a>(text: &'a str, word: &str) -> Option<(&'a str, &'a str)> {
    let mut from = 0;
    while let Some(found) = text[from..].find(word) {
        let (start, end) = (from + found, from + found + word.len());
        let bounded = |c: Option<char>| c.is_none_or(char::is_whitespace);
        if bounded(text[..start].chars().next_back()) && bounded(text[end..].chars().next()) {
            return Some((&text[..start], &text[end..]));
        }
        from = end;
    }
    None
}

/// A decimal as an exact fraction in lowest terms: 0.4 is 2 / 5.
fn parse_decimal(text: &str) -> Result<(u64, u32), String> {
    if text.starts_with('-') {
        return Err("is negative, and a limit is at least 1".into());
    }
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = format!("{whole}{decimals}");
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !all_digits || (decimals.is_empty() && text.contains('.')) {
        return Err(if text.is_empty() {
            "does not begin with a number".into()
        } else {
            format!("begins with {text:?}, which is not a number")
        });
    }
    let too_large = || "has a number that is too large".to_string();
    let numerator: u64 = digits.parse().map_err(|_| too_large())?;
    let denominator = 10u32
        .checked_pow(decimals.len() as u32)
        .ok_or_else(|| "has more than nine decimals".to_string())?;
    let common = gcd(numerator, u64::from(denominator)).max(1);
    Ok((numerator / common, (u64::from(denominator) / common) as u32))
}

/// Reads a period: `minute`, `90s`, `5m`, `1h30m`, `250 ms`.
pub fn parse_period(text: &str) -> Result<Duration, LimitError> {
    let trimmed = text.trim();
    let bad = |problem: String| {
        LimitError::new(format!("the period {trimmed:?} {problem}: {UNITS_ADVICE}"))
    };
    if trimmed.is_empty() {
        return Err(bad("is empty".into()));
    }
    if trimmed.contains('/') {
        return Err(LimitError::new(format!(
            "the period {trimmed:?} has one `/` too many: write one period, such as 100/minute; another rate is a limit of its own"
        )));
    }
    let mut total: u64 = 0;
    let mut rest = trimmed;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let after = after.trim_start();
        let letters = after.len() - after.trim_start_matches(char::is_alphabetic).len();
        let (unit, after) = after.split_at(letters);
        let micros = unit_micros(unit).ok_or_else(|| match nearest_unit(unit) {
            Some(near) => LimitError::new(format!(
                "the period {trimmed:?} has the unknown unit {unit:?}: did you mean `{near}`?"
            )),
            None => bad(unit_problem(unit, after)),
        })?;
        let number = match number {
            "" if total == 0 && after.is_empty() => 1,
            "" => return Err(bad(format!("has no number before {unit:?}"))),
            digits => digits.parse().map_err(|_| bad("has a number that is too large".into()))?,
        };
        total = micros
            .checked_mul(number)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(|| bad("is too long".into()))?;
        rest = after.trim_start();
    }
    Ok(Duration::from_micros(total))
}

/// The rate that a text in another notation most likely means: `10rpm`, `1,000/hour`, `10k/day`, `10 requests per minute`.
fn meant_rate(text: &str) -> Option<String> {
    const NOUNS: [&str; 7] = ["requests", "request", "reqs", "req", "calls", "hits", "times"];
    let text = text.trim().to_ascii_lowercase();
    let digits = text.len()
        - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == ',' || c == '_').len();
    let (number, rest) = text.split_at(digits);
    let mut groups = number.split([',', '_']);
    let first = groups.next().filter(|first| !first.is_empty())?;
    let number = groups
        .try_fold(first.to_owned(), |number, group| (group.len() == 3).then(|| number + group))?;
    let (number, rest) = match rest.strip_prefix('k') {
        Some(rest) if !rest.starts_with(char::is_alphabetic) => (number + "000", rest),
        _ => (number, rest),
    };
    let rest = rest.trim_start();
    let rest = NOUNS.iter().find_map(|noun| rest.strip_prefix(noun)).unwrap_or(rest).trim_start();
    let period = match rest {
        "rps" | "qps" => "second",
        "rpm" | "qpm" => "minute",
        "rph" => "hour",
        _ => ["/", "per ", "a ", "every "].iter().find_map(|word| rest.strip_prefix(word))?.trim(),
    };
    let meant = format!("{number}/{period}");
    (meant != text && parse_rate(&meant).is_ok()).then_some(meant)
}

fn unit_micros(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    UNITS.iter().find(|(names, _)| names.contains(&unit.as_str())).map(|(_, micros)| *micros)
}

/// The word that a misspelt unit was most likely meant to be: the same first letter, and at most two
/// letters in its middle that differ.
fn nearest_unit(unit: &str) -> Option<&'static str> {
    let unit = unit.to_ascii_lowercase();
    if calendar_unit(&unit).is_some() || !unit.is_ascii() {
        return None;
    }
    let differing = |word: &str| {
        let pairs = || unit.bytes().zip(word.bytes());
        let prefix = pairs().take_while(|(a, b)| a == b).count();
        let shorter = unit.len().min(word.len());
        let ends = unit.bytes().rev().zip(word.bytes().rev());
        let suffix = ends.take(shorter - prefix).take_while(|(a, b)| a == b).count();
        (prefix > 0).then_some(unit.len().max(word.len()) - prefix - suffix)
    };
    // The short spelling counts as well: `mn` is near `min`.
    let short = |word: &'static str| &word[..word.len().min(3)];
    let distances = UNIT_WORDS.into_iter().filter_map(|word| {
        let plural = format!("{word}s");
        let spellings = [word, &plural, short(word)];
        let least = spellings.into_iter().filter_map(differing).min()?;
        (least <= 2 && least < unit.len()).then_some((least, word))
    });
    distances.min_by_key(|(least, _)| *least).map(|(_, word)| word)
}

fn unit_problem(unit: &str, after: &str) -> String {
    if calendar_unit(unit) == Some(CalendarUnit::Month) {
        return format!(
            "has the unit {unit:?}, whose length varies; it needs a calendar window of a rules file"
        );
    }
    match unit {
        "year" | "years" => format!("has the unit {unit:?}, whose length varies"),
        "" if after.is_empty() => "has no unit".into(),
        "" if after.starts_with('.') => "is not in whole numbers".into(),
        "" => format!("has no unit before {after:?}"),
        _ => format!("has the unknown unit {unit:?}"),
    }
}

/// The canonical period: `minute`, `90s`, `250ms`.
pub(super) fn show_period(micros: u64) -> String {
    let words = [
        ("second", 1_000_000),
        ("minute", 60_000_000),
        ("hour", 3_600_000_000),
        ("day", 86_400_000_000),
    ];
    if let Some((word, _)) = words.iter().find(|(_, length)| *length == micros) {
        return (*word).into();
    }
    let (names, length) = UNITS
        .iter()
        .rev()
        .find(|(_, length)| micros.is_multiple_of(*length))
        .expect("every period is a multiple of the smallest unit");
    format!("{}{}", micros / length, names[0])
}

impl Limit {
    /// The bare rate, N per period, as people write it: `100/minute`, `5000/month`.
    pub fn rate(&self) -> impl fmt::Display {
        DisplayFn(|f: &mut fmt::Formatter<'_>| match self.calendar() {
            Some(calendar) => write!(f, "{}/{}", self.units, calendar.unit()),
            None => write!(f, "{}/{}", self.units, show_period(self.period)),
        })
    }
}

impl fmt::Display for Limit {
    /// Writes `100/minute burst 20`, with the algorithm if the short form would mean another one;
    /// by the calendar `1000/day in Europe/Berlin`. Alignment, stagger and `OnChange` are not
    /// shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.rate())?;
        if let Some(calendar) = self.calendar() {
            return write!(f, " in {}", calendar.zone());
        }
        let short_form_means = if self.capacity == self.units {
            Algorithm::SlidingWindowCounter
        } else {
            Algorithm::TokenBucket
        };
        if self.algorithm.is_bucket() && (self.capacity != self.units || !self.is_queue()) {
            write!(f, " burst {}", self.capacity)?;
        }
        if self.algorithm != short_form_means && self.algorithm != Algorithm::TokenBucket {
            write!(f, " {}", self.algorithm)?;
        }
        if self.is_queue() {
            f.write_str(" queue")?;
        }
        match self.precision() {
            Precision::Estimate => Ok(()),
            Precision::Buckets(buckets) => write!(f, " buckets({buckets})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_shown() {
        let cases = [
            ("100/minute", "100/minute"),
            ("5 per 90s", "5/90s"),
            ("10/1s", "10/second"),
            ("  10 / 2 hours ", "10/2h"),
            ("0.4/second", "2/5s"),
            ("2.50/minute", "5/2m"),
            ("7/1h30m", "7/90m"),
            ("100/minute burst 20", "100/minute burst 20"),
            ("3 per day burst 9", "3/day burst 9"),
            ("25/250ms", "25/250ms"),
            ("1/7us", "1/7us"),
            ("1000/w", "1000/1w"),
            ("10/Minute", "10/minute"),
        ];
        for (text, want) in cases {
            let limit: Limit = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(limit.to_string(), want);
            assert_eq!(
                limit.to_string().parse::<Limit>().unwrap(),
                limit,
                "{text} does not round trip"
            );
        }
    }

    #[test]
    fn rates_by_the_calendar_are_one_day_week_or_month() {
        let rows = [
            ("1000/day", Ok((1_000, CalendarUnit::Day)), false),
            ("1000 per Day", Ok((1_000, CalendarUnit::Day)), false),
            ("10/week", Ok((10, CalendarUnit::Week)), false),
            ("10/1w", Ok((10, CalendarUnit::Week)), false),
            (" 5 per month ", Ok((5, CalendarUnit::Month)), true),
            ("5.0/1 month", Ok((5, CalendarUnit::Month)), true),
            ("5/mo", Ok((5, CalendarUnit::Month)), true),
            ("0.5/month", Err("is not a whole number"), true),
            ("0.5/day", Err("is not a whole number"), false),
            ("2/3d", Err("has a period of 3 days, which no calendar has"), false),
            ("2/0 days", Err("has a period of 0 days"), false),
            ("2/12 months", Err("has a period of 12 months"), true),
            ("2/day 1h", Err("has the period \"day 1h\""), false),
            ("2/24h", Err("has the period \"24h\", which no calendar has"), false),
            ("100/minute", Err("has the period \"minute\""), false),
            ("5/year", Err("has the period \"year\""), false),
            ("5/m", Err("has the period \"m\""), false),
            ("5/month burst 2", Err("has a burst"), true),
            ("5", Err("has no period"), false),
            ("-5/month", Err("is negative"), true),
            ("month/5", Err("not a number"), false),
            ("5/day, 50/month", Err("holds several rates"), false),
            ("", Err("has no period"), false),
        ];
        for (text, want, monthly) in rows {
            assert_eq!(is_monthly(text), monthly, "{text}");
            match (parse_calendar_rate(text), want) {
                (Ok(found), Ok(want)) => assert_eq!(found, want, "{text}"),
                (Err(error), Err(want)) => {
                    let error = error.to_string();
                    assert!(error.contains(want), "{error}");
                    assert!(error.ends_with("`1000/day`") || error.ends_with("]`"), "{error}");
                }
                (found, want) => panic!("{text}: {found:?} instead of {want:?}"),
            }
        }
    }

    #[test]
    fn bad_rates_say_what_to_write() {
        let cases = [
            ("", "has no period"),
            ("100", "has no period"),
            ("/minute", "does not begin with a number"),
            ("ten/minute", "\"ten\", which is not a number"),
            ("-5/minute", "is negative"),
            ("1./minute", "not a number"),
            ("0/minute", "the rate is zero"),
            ("99999999999999999999/minute", "too large"),
            ("0.1234567891/minute", "more than nine decimals"),
            ("5/", "the period \"\" is empty"),
            ("5/90", "has no unit"),
            ("5/fortnight", "unknown unit \"fortnight\": write second, minute"),
            ("5/secnd", "unknown unit \"secnd\": did you mean `second`?"),
            ("5/mn", "did you mean `minute`?"),
            ("5/mns", "did you mean `minute`?"),
            ("5/mintues", "did you mean `minute`?"),
            ("5/90 Secounds", "did you mean `second`?"),
            ("5/hor", "did you mean `hour`?"),
            ("5/hurs", "did you mean `hour`?"),
            ("5/dy", "did you mean `day`?"),
            ("5/dya", "did you mean `day`?"),
            ("5/wek", "did you mean `week`?"),
            ("5/mnth", "did you mean `month`?"),
            ("5/milisecond", "did you mean `millisecond`?"),
            ("5/x", "unknown unit \"x\": write second"),
            (
                "60/minute, 1000/hour",
                "holds several rates: write each as a limit of its own: `[60/minute, 1000/hour]`",
            ),
            ("1/s;2 per m burst 3 and 4/h", "`[1/s, 2 per m burst 3, 4/h]`"),
            ("60/minute, 1000", "the period \"minute, 1000\""),
            ("5/month", "calendar window"),
            ("5/2 Months", "calendar window"),
            ("5/year", "whose length varies"),
            ("5/0s", "the period is zero"),
            ("5/99999999999999999w", "is too long"),
            ("5/101w200000000d", "longer than 100 years"),
            ("5/1h m", "has no number before \"m\""),
            ("5/1.5h", "is not in whole numbers"),
            ("5//minute", "has one `/` too many"),
            ("5 RPS", "did you mean `5/second`?"),
            ("5rpm", "did you mean `5/minute`?"),
            ("5 req/s", "did you mean `5/s`?"),
            ("5 times a day", "did you mean `5/day`?"),
            ("1_000/hour", "did you mean `1000/hour`?"),
            ("1,000,000 per day", "did you mean `1000000/day`?"),
            ("10k/day", "did you mean `10000/day`?"),
            ("1,5/minute", "write `100/minute`"),
            ("10 requests", "write `100/minute`"),
            ("10k/fortnight", "write `100/minute`"),
            ("5/minute burst", "burst that is not a whole number"),
            ("5/minute burst -1", "burst that is not a whole number"),
            ("5/minute burst 0", "the burst is zero"),
            ("5/mi\u{0}nute", "unit"),
        ];
        for (text, want) in cases {
            let error = text.parse::<Limit>().expect_err(text).to_string();
            assert!(error.contains(want), "{text:?}: {error}");
        }
    }
}
