//! `envoy.service.ratelimit.v3.RateLimitResponse`, written directly into the frame that is sent.

use tollgate_rules::descriptors::Unit;

use super::protobuf_writer;

/// Code of a descriptor or of the whole request. The protocol has a third one, UNKNOWN, which is never sent: Envoy lets
/// requests pass on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RlsCode {
    Ok = 1,
    OverLimit = 2,
}

impl RlsCode {
    pub(crate) fn from_over_limit(over: bool) -> RlsCode {
        if over { RlsCode::OverLimit } else { RlsCode::Ok }
    }

    /// Name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            RlsCode::Ok => "OK",
            RlsCode::OverLimit => "OVER_LIMIT",
        }
    }
}

/// `DescriptorStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorStatus<'a> {
    pub(crate) code: RlsCode,
    /// The limit that applies, if any does.
    pub(crate) current_limit: Option<RlsLimit<'a>>,
    pub(crate) limit_remaining: u32,
    /// `duration_until_reset`, in whole seconds, where it is known.
    pub(crate) reset_after_s: Option<u64>,
}

/// `RateLimitResponse.RateLimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RlsLimit<'a> {
    /// Name of the limit; empty if it has none.
    pub(crate) name: &'a str,
    pub(crate) requests_per_unit: u32,
    /// Period; `None` if the protocol has no unit for it.
    pub(crate) unit: Option<Unit>,
}

/// Units with their numbers in the protocol and their names in JSON. Number 0 is UNKNOWN.
const UNITS: [(Unit, u8, &str); 7] = [
    (Unit::Second, 1, "SECOND"),
    (Unit::Minute, 2, "MINUTE"),
    (Unit::Hour, 3, "HOUR"),
    (Unit::Day, 4, "DAY"),
    (Unit::Month, 5, "MONTH"),
    (Unit::Year, 6, "YEAR"),
    (Unit::Week, 7, "WEEK"),
];

/// The number of a unit.
fn unit_number(unit: Unit) -> u8 {
    UNITS.iter().find(|(known, _, _)| *known == unit).map_or(0, |(_, number, _)| *number)
}

/// The name of a unit.
pub(crate) fn unit_name(unit: Unit) -> &'static str {
    UNITS.iter().find(|(known, _, _)| *known == unit).map_or("UNKNOWN", |(_, _, name)| *name)
}

/// The unit with this number in a request. Requests have no weeks.
pub(crate) fn unit_of_number(number: i32) -> Option<Unit> {
    let known =
        UNITS.iter().find(|(unit, known, _)| i32::from(*known) == number && *unit != Unit::Week);
    known.map(|(unit, _, _)| *unit)
}

/// The number of the unit with this name in JSON; 0 for UNKNOWN, `None` for other names.
pub(crate) fn unit_number_of_name(name: &str) -> Option<i32> {
    let known = UNITS.iter().find(|(_, _, known)| *known == name);
    known.map(|(_, number, _)| i32::from(*number)).or((name == "UNKNOWN").then_some(0))
}

/// Writes the code of the whole request.
pub(crate) fn write_overall_code(out: &mut Vec<u8>, verdict: RlsCode) {
    protobuf_writer::write_number(out, 1, verdict as u64);
}

/// Writes the status of the next descriptor.
pub(crate) fn write_status(out: &mut Vec<u8>, status: &DescriptorStatus<'_>) {
    protobuf_writer::write_delimited(out, 2, |out| {
        protobuf_writer::write_number(out, 1, status.code as u64);
        if let Some(limit) = &status.current_limit {
            protobuf_writer::write_delimited(out, 2, |out| {
                protobuf_writer::write_number(out, 1, limit.requests_per_unit.into());
                protobuf_writer::write_number(out, 2, limit.unit.map_or(0, unit_number).into());
                protobuf_writer::write_bytes(out, 3, limit.name.as_bytes());
            });
        }
        protobuf_writer::write_number(out, 3, status.limit_remaining.into());
        if let Some(seconds) = status.reset_after_s {
            protobuf_writer::write_delimited(out, 4, |out| {
                protobuf_writer::write_number(out, 1, seconds)
            });
        }
    });
}

/// Writes a header field for the client of the proxy.
pub(crate) fn write_header(out: &mut Vec<u8>, name: &str, value: impl FnOnce(&mut Vec<u8>)) {
    protobuf_writer::write_delimited(out, 3, |out| {
        protobuf_writer::write_bytes(out, 1, name.as_bytes());
        protobuf_writer::write_delimited(out, 2, value);
    });
}

/// Writes the body for the client of the proxy.
pub(crate) fn write_body(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    protobuf_writer::write_delimited(out, 5, body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_the_protocol() {
        for unit in Unit::ALL {
            let number = i32::from(unit_number(unit));
            assert_eq!(unit_name(unit), unit.name().to_uppercase());
            assert_eq!(unit_number_of_name(unit_name(unit)), Some(number));
            let asked = unit_of_number(number);
            assert_eq!(asked, (unit != Unit::Week).then_some(unit));
        }
        let numbers = UNITS.map(|(unit, number, _)| (unit.seconds(), number));
        let known = [
            (1, 1),
            (60, 2),
            (3_600, 3),
            (86_400, 4),
            (2_592_000, 5),
            (31_536_000, 6),
            (604_800, 7),
        ];
        assert_eq!(numbers, known);
        for number in [i32::MIN, -1, 0, 7, 8, i32::MAX] {
            assert_eq!(unit_of_number(number), None);
        }
        assert_eq!(
            (unit_number_of_name("UNKNOWN"), unit_number_of_name("second")),
            (Some(0), None)
        );
    }
}
