//! gRPC status codes of this listener, and their counters.

use tollgate_rules::stripes::StripedCounters;

use crate::listeners::service::ListenerMetrics;
use crate::metrics::exposition::{MetricKind, MetricsPage};

/// A gRPC status code that this listener uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrpcCode {
    Ok,
    Cancelled,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    ResourceExhausted,
    Unimplemented,
    Internal,
    Unauthenticated,
}

/// All codes, with number and name. Bound of the label `code`: these.
const CODES: [(GrpcCode, &str, &str); 9] = [
    (GrpcCode::Ok, "0", "OK"),
    (GrpcCode::Cancelled, "1", "CANCELLED"),
    (GrpcCode::InvalidArgument, "3", "INVALID_ARGUMENT"),
    (GrpcCode::DeadlineExceeded, "4", "DEADLINE_EXCEEDED"),
    (GrpcCode::NotFound, "5", "NOT_FOUND"),
    (GrpcCode::ResourceExhausted, "8", "RESOURCE_EXHAUSTED"),
    (GrpcCode::Unimplemented, "12", "UNIMPLEMENTED"),
    (GrpcCode::Internal, "13", "INTERNAL"),
    (GrpcCode::Unauthenticated, "16", "UNAUTHENTICATED"),
];

impl GrpcCode {
    /// The number, as in `grpc-status`.
    pub(crate) fn digits(self) -> &'static str {
        CODES[self as usize].1
    }
}

/// Counts replies by code.
#[derive(Debug, Default)]
pub(crate) struct GrpcCodeCounters(StripedCounters<{ CODES.len() }>);

impl GrpcCodeCounters {
    #[inline]
    pub(crate) fn count(&self, code: GrpcCode) {
        self.0.add(code as usize, 1);
    }

    /// Number of replies with each code, by name.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CODES.iter().map(|(_, _, name)| *name).zip(self.0.sums())
    }
}

impl ListenerMetrics for GrpcCodeCounters {
    fn write(&self, page: &mut MetricsPage) {
        let help = "Calls answered on the grpc listener, by gRPC code.";
        let mut answered = page.family("tollgate_grpc_responses_total", MetricKind::Counter, help);
        for (code, count) in self.sums() {
            answered.sample(&[("code", code)], count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_stands_in_its_place() {
        let codes = GrpcCodeCounters::default();
        for (index, (code, _, name)) in CODES.iter().enumerate() {
            assert_eq!(*code as usize, index, "{name}");
            for _ in 0..=index {
                codes.count(*code);
            }
        }
        let sums: Vec<_> = codes.sums().collect();
        assert_eq!(sums[0], ("OK", 1));
        assert_eq!(sums[8], ("UNAUTHENTICATED", 9));
        assert_eq!(GrpcCode::Unimplemented.digits(), "12");
    }
}
