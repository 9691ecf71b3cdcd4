//! The patience of clients: the longest wait that a request states.
//!
//! A delay beyond it would be for nothing, because the client has given up by then. Values that cannot be read are
//! ignored.

use std::time::Duration;

use http::HeaderMap;

/// The longest wait that a request states, in any of the ways in which clients and proxies do: `Prefer: wait=5`
/// (RFC 7240, in seconds), `grpc-timeout: 100m` (gRPC), `x-envoy-expected-rq-timeout-ms: 100` (Envoy). The shortest counts.
pub(crate) fn stated_patience(headers: &HeaderMap) -> Option<Duration> {
    let envoy = headers.get("x-envoy-expected-rq-timeout-ms").and_then(|value| value.to_str().ok());
    let grpc = headers.get("grpc-timeout").and_then(|value| value.to_str().ok());
    let stated = [
        preferred_wait(headers),
        grpc.and_then(grpc_timeout),
        envoy.and_then(whole_number).map(Duration::from_millis),
    ];
    stated.into_iter().flatten().min()
}

/// The preference `wait`. The first of several counts, as for every preference.
fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).find_map(|preference| {
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        let is_wait = name.trim().eq_ignore_ascii_case("wait");
        let value = value.trim().trim_matches('"');
        is_wait.then(|| whole_number(value).map(Duration::from_secs))
    })?
}

/// A timeout of gRPC: at most eight digits and a unit.
fn grpc_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number = whole_number(digits).filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3_600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// A number of digits only: `parse` alone would accept a sign.
fn whole_number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_stated_wait_counts_and_bad_values_do_not() {
        type PatienceRow<'a> = (&'a [(&'a str, &'a str)], Option<u64>);
        let table: &[PatienceRow<'_>] = &[
            (&[], None),
            (&[("prefer", "wait=5")], Some(5_000_000)),
            (&[("prefer", "respond-async, Wait = 10 ; a=b")], Some(10_000_000)),
            (&[("prefer", "wait=\"3\"")], Some(3_000_000)),
            (&[("prefer", "return=minimal"), ("prefer", "wait=2, wait=1")], Some(2_000_000)),
            (&[("prefer", "wait")], None),
            (&[("prefer", "wait=-1")], None),
            (&[("prefer", "wait=+1")], None),
            (&[("prefer", "wait=")], None),
            (&[("prefer", "waiting=1")], None),
            (&[("grpc-timeout", "2H")], Some(7_200_000_000)),
            (&[("grpc-timeout", "3M")], Some(180_000_000)),
            (&[("grpc-timeout", "4S")], Some(4_000_000)),
            (&[("grpc-timeout", "100m")], Some(100_000)),
            (&[("grpc-timeout", "7u")], Some(7)),
            (&[("grpc-timeout", "7000n")], Some(7)),
            (&[("grpc-timeout", "99999999H")], Some(359_999_996_400_000_000)),
            (&[("grpc-timeout", "100000000S")], None),
            (&[("grpc-timeout", "S")], None),
            (&[("grpc-timeout", "")], None),
            (&[("grpc-timeout", "1s")], None),
            (&[("x-envoy-expected-rq-timeout-ms", "250")], Some(250_000)),
            (&[("x-envoy-expected-rq-timeout-ms", "0")], Some(0)),
            (&[("x-envoy-expected-rq-timeout-ms", "1.5")], None),
            (&[("prefer", "wait=5"), ("grpc-timeout", "100m")], Some(100_000)),
            (&[("prefer", "wait=x"), ("grpc-timeout", "1S")], Some(1_000_000)),
        ];
        for (fields, expected_us) in table {
            let mut headers = HeaderMap::new();
            for (name, value) in *fields {
                headers.append(*name, value.parse().expect("a field value"));
            }
            let found = stated_patience(&headers);
            assert_eq!(found, expected_us.map(Duration::from_micros), "{fields:?}");
        }
    }
}
