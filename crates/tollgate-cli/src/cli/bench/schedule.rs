//! The times of an open load: each request has one, whatever happens to those before it.

use std::time::Duration;

/// Highest rate, in requests per second.
const RATE_MAX: u64 = 1_000_000;

/// Most requests of one run.
const REQUESTS_MAX: u64 = 1_000_000_000;

/// The intended time of every request, as a time after the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoadSchedule {
    rate_per_s: u64,
    duration: Duration,
    requests: u64,
}

impl LoadSchedule {
    /// Makes a schedule; an error if it is too large or has no request.
    pub(super) fn new(rate_per_s: u64, duration: Duration) -> Result<LoadSchedule, String> {
        let requests = duration.as_millis() * u128::from(rate_per_s) / 1_000;
        match u64::try_from(requests) {
            Ok(0) => Err("no request fits into this duration: raise --rate or --duration".into()),
            Ok(requests) if requests <= REQUESTS_MAX => {
                Ok(LoadSchedule { rate_per_s, duration, requests })
            }
            _ => Err(format!("more than {REQUESTS_MAX} requests: lower --rate or --duration")),
        }
    }

    pub(super) fn duration(&self) -> Duration {
        self.duration
    }

    /// Number of requests.
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    /// The intended time of a request, counted from 0.
    pub(super) fn offset(&self, number: u64) -> Duration {
        let nanos = u128::from(number) * 1_000_000_000 / u128::from(self.rate_per_s);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Reads a rate: `5000/s`, or only the number.
pub(super) fn parse_rate(text: &str) -> Result<u64, String> {
    let number = ["/second", "/sec", "/s"].iter().find_map(|unit| text.strip_suffix(unit));
    let number = number.unwrap_or(text).trim();
    let rate = number.parse::<u64>().ok().filter(|rate| (1..=RATE_MAX).contains(rate));
    rate.ok_or_else(|| format!("write requests per second, from 1/s to {RATE_MAX}/s: 5000/s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second() {
        for (text, want) in [
            ("5000/s", Some(5_000)),
            ("5000", Some(5_000)),
            ("1 /second", Some(1)),
            ("1000000/s", Some(1_000_000)),
            ("1000001/s", None),
            ("0/s", None),
            ("-1/s", None),
            ("5/minute", None),
            ("", None),
        ] {
            assert_eq!(parse_rate(text).ok(), want, "{text}");
        }
    }

    #[test]
    fn every_request_has_its_time_and_the_last_one_is_within_the_duration() {
        let schedule = LoadSchedule::new(3, Duration::from_secs(2)).unwrap();
        let times: Vec<u64> =
            (0..schedule.requests()).map(|n| schedule.offset(n).as_micros() as u64).collect();
        assert_eq!(times, [0, 333_333, 666_666, 1_000_000, 1_333_333, 1_666_666]);
        let year = Duration::from_secs(365 * 86_400);
        assert!(LoadSchedule::new(1_000_000, year).is_err(), "too many");
        assert!(LoadSchedule::new(1, Duration::from_millis(999)).is_err(), "none");
    }
}
