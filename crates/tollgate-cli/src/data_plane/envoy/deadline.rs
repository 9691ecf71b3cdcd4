//! The deadline of a call: `grpc-timeout`.

use std::time::Duration;

use http::HeaderMap;

/// Maximum digits of a timeout.
const DIGITS_MAX: usize = 8;

/// Reads `grpc-timeout`, such as `20m` for 20 ms. `Err` if it is invalid.
pub(super) fn grpc_timeout(headers: &HeaderMap) -> Result<Option<Duration>, ()> {
    headers.get("grpc-timeout").map(|value| parse(value.as_bytes()).ok_or(())).transpose()
}

fn parse(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    let all = (1..=DIGITS_MAX).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    let number: u64 = std::str::from_utf8(digits).ok().filter(|_| all)?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3_600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_a_number_and_a_unit() {
        let rows = [
            ("20m", Some(Duration::from_millis(20))),
            ("0m", Some(Duration::ZERO)),
            ("1S", Some(Duration::from_secs(1))),
            ("99999999H", Some(Duration::from_secs(359_999_996_400))),
            ("3M", Some(Duration::from_secs(180))),
            ("100u", Some(Duration::from_micros(100))),
            ("00000001n", Some(Duration::from_nanos(1))),
            ("000000001n", None),
            ("20", None),
            ("m", None),
            ("", None),
            ("20s", None),
            ("-1m", None),
            ("+1m", None),
            ("1.5S", None),
            (" 1S", None),
            ("1\u{e9}", None),
        ];
        for (text, want) in rows {
            assert_eq!(parse(text.as_bytes()), want, "{text}");
        }
    }
}
