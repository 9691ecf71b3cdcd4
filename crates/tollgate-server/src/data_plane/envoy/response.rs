//! `envoy.service.ratelimit.v3.RateLimitResponse`, written straight into the frame that is sent.

use bytes::BytesMut;

use super::wire;

/// What is said of a descriptor, and of the whole request. There is a third in the protocol, UNKNOWN;
/// Envoy lets requests pass on it, so it is never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ok,
    OverLimit,
}

impl Verdict {
    fn number(self) -> u64 {
        match self {
            Verdict::Ok => 1,
            Verdict::OverLimit => 2,
        }
    }

    /// As JSON spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "OK",
            Verdict::OverLimit => "OVER_LIMIT",
        }
    }
}

/// `DescriptorStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status<'a> {
    pub(crate) verdict: Verdict,
    /// The limit that applies, if any does.
    pub(crate) current_limit: Option<CurrentLimit<'a>>,
    pub(crate) limit_remaining: u32,
    /// Whole seconds until the limit is as good as fresh, where that is known.
    pub(crate) reset_after_s: Option<u64>,
}

/// `RateLimitResponse.RateLimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CurrentLimit<'a> {
    /// Empty: it has none.
    pub(crate) name: &'a str,
    pub(crate) requests_per_unit: u32,
    pub(crate) unit: Unit,
}

/// `RateLimitResponse.RateLimit.Unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// The period is none of the others.
    Unknown,
    Second,
    Minute,
    Hour,
    Day,
    Month,
    Year,
    Week,
}

/// Every unit in the order of its number, with its name and its seconds.
const UNITS: [(Unit, &str, u64); 8] = [
    (Unit::Unknown, "UNKNOWN", 0),
    (Unit::Second, "SECOND", 1),
    (Unit::Minute, "MINUTE", 60),
    (Unit::Hour, "HOUR", 3_600),
    (Unit::Day, "DAY", 86_400),
    (Unit::Month, "MONTH", 2_592_000),
    (Unit::Year, "YEAR", 31_536_000),
    (Unit::Week, "WEEK", 604_800),
];

impl Unit {
    /// The unit that has exactly this length.
    pub(crate) fn of_seconds(seconds: u64) -> Unit {
        let found = UNITS.iter().find(|(_, _, length)| *length == seconds && seconds > 0);
        found.map_or(Unit::Unknown, |(unit, _, _)| *unit)
    }

    /// The unit of a number; `None` if there is none.
    pub(crate) fn of_number(number: i32) -> Option<Unit> {
        let index = usize::try_from(number).ok()?;
        UNITS.get(index).map(|(unit, _, _)| *unit)
    }

    /// The unit that JSON spells like this.
    pub(crate) fn of_name(name: &str) -> Option<Unit> {
        UNITS.iter().find(|(_, spelt, _)| *spelt == name).map(|(unit, _, _)| *unit)
    }

    /// As JSON spells it.
    pub(crate) fn name(self) -> &'static str {
        UNITS[self as usize].1
    }

    /// Its number.
    pub(crate) fn number(self) -> i32 {
        self as i32
    }
}

/// What is said of the request as a whole.
pub(crate) fn write_overall(out: &mut BytesMut, verdict: Verdict) {
    wire::number(out, 1, verdict.number());
}

/// What is said of the next descriptor.
pub(crate) fn write_status(out: &mut BytesMut, status: &Status<'_>) {
    wire::delimited(out, 2, |out| {
        wire::number(out, 1, status.verdict.number());
        if let Some(limit) = &status.current_limit {
            wire::delimited(out, 2, |out| {
                wire::number(out, 1, limit.requests_per_unit.into());
                wire::number(out, 2, limit.unit as u64);
                wire::bytes(out, 3, limit.name.as_bytes());
            });
        }
        wire::number(out, 3, status.limit_remaining.into());
        if let Some(seconds) = status.reset_after_s {
            wire::delimited(out, 4, |out| wire::number(out, 1, seconds));
        }
    });
}

/// A header field that the client of the proxy is to get.
pub(crate) fn write_header(out: &mut BytesMut, name: &str, value: impl FnOnce(&mut BytesMut)) {
    wire::delimited(out, 3, |out| {
        wire::bytes(out, 1, name.as_bytes());
        wire::delimited(out, 2, value);
    });
}

/// The body that the client of the proxy is to get.
pub(crate) fn write_body(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    wire::delimited(out, 5, body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_the_protocol() {
        for (index, (unit, name, seconds)) in UNITS.into_iter().enumerate() {
            let number = i32::try_from(index).unwrap();
            assert_eq!((unit.number(), unit.name()), (number, name));
            assert_eq!(Unit::of_number(number), Some(unit));
            assert_eq!(Unit::of_name(name), Some(unit));
            assert_eq!(Unit::of_seconds(seconds), unit);
        }
        assert_eq!(Unit::of_seconds(90), Unit::Unknown);
        assert_eq!((Unit::of_number(8), Unit::of_number(-1)), (None, None));
        assert_eq!(Unit::of_name("second"), None);
    }
}
