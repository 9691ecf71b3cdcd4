//! Responses of a listener by status.

use http::StatusCode;
use tollgate_rules::stripes::StripedCounters;

/// Statuses of Tollgate's replies, and frequent ones of servers behind the gateway. Bound of the label: these and `other`.
const STATUSES: [(u16, &str); 24] = [
    (200, "200"),
    (429, "429"),
    (101, "101"),
    (201, "201"),
    (204, "204"),
    (206, "206"),
    (301, "301"),
    (302, "302"),
    (304, "304"),
    (400, "400"),
    (401, "401"),
    (403, "403"),
    (404, "404"),
    (405, "405"),
    (408, "408"),
    (410, "410"),
    (413, "413"),
    (415, "415"),
    (500, "500"),
    (502, "502"),
    (503, "503"),
    (504, "504"),
    (505, "505"),
    (508, "508"),
];
const OTHER_STATUS: usize = STATUSES.len();

/// Counts responses.
#[derive(Debug, Default)]
pub(crate) struct ResponseCounts(StripedCounters<{ OTHER_STATUS + 1 }>);

impl ResponseCounts {
    #[inline]
    pub(crate) fn count(&self, status: StatusCode) {
        let place = STATUSES.iter().position(|(code, _)| *code == status.as_u16());
        self.0.add(place.unwrap_or(OTHER_STATUS), 1);
    }

    /// Each status and the number of its responses.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = STATUSES.iter().map(|(_, name)| *name).chain(["other"]);
        names.zip(self.0.sums())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_counted_under_its_name_or_as_another() {
        let responses = ResponseCounts::default();
        for code in [200, 429, 429, 418, 999] {
            responses.count(StatusCode::from_u16(code).unwrap());
        }
        let counted: Vec<_> = responses.sums().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("200", 1), ("429", 2), ("other", 2)]);
        for (code, name) in STATUSES {
            assert_eq!(code.to_string(), name);
        }
    }
}
