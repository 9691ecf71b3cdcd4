//! Durations as people write them: `60s`, `250ms`, `5m`, `1h`.

use std::time::Duration;

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Longest duration: a year.
const MILLIS_MAX: u64 = 365 * 86_400_000;

pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let millis_per_unit = UNITS.iter().find(|(name, _)| *name == unit.trim()).map(|(_, ms)| *ms);
    let millis = number
        .parse::<u64>()
        .ok()
        .zip(millis_per_unit)
        .and_then(|(number, unit)| number.checked_mul(unit));
    match millis {
        Some(0) => Err("the time is zero: write at least 1ms".into()),
        Some(millis) if millis <= MILLIS_MAX => Ok(Duration::from_millis(millis)),
        Some(_) => Err("longer than a year: write at most 365d".into()),
        None => Err("write a number and a unit: 60s, 250ms, 5m, 1h or 1d".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_number_and_a_unit() {
        let rows = [
            ("60s", Ok(60_000)),
            ("250ms", Ok(250)),
            ("5 m", Ok(300_000)),
            ("365d", Ok(MILLIS_MAX)),
            ("366d", Err("longer than a year")),
            ("0s", Err("the time is zero")),
            ("60", Err("write a number and a unit")),
            ("-1s", Err("write a number and a unit")),
            ("1.5s", Err("write a number and a unit")),
            ("s", Err("write a number and a unit")),
            ("99999999999999999999s", Err("write a number and a unit")),
            ("99999999999999999d", Err("write a number and a unit")),
        ];
        for (text, want) in rows {
            match (parse_duration(text), want) {
                (Ok(found), Ok(want)) => assert_eq!(found, Duration::from_millis(want), "{text}"),
                (Err(found), Err(want)) => assert!(found.starts_with(want), "{text}: {found}"),
                (found, want) => panic!("{text}: {found:?} instead of {want:?}"),
            }
        }
    }
}
