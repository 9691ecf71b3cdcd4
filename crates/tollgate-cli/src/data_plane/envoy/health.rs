//! `grpc.health.v1.Health`: readiness of this server.
//!
//! `Watch` is not implemented, which the protocol allows: long-lived streams would need a bound of their own, and Envoy,
//! Kubernetes and load balancers use `Check`.

use bytes::Bytes;

use super::frame;
use super::protobuf_writer;

/// Names of services that a health check can ask for: the whole server, and Envoy's service by its own name and by the
/// name in envoyproxy/ratelimit.
const SERVICES: [&str; 3] = ["", "ratelimit", super::RATE_LIMIT_SERVICE];

/// The framed reply; `None` if there is no such service.
pub(super) fn check(service: &str, stopping: bool) -> Option<Bytes> {
    const SERVING: u64 = 1;
    const NOT_SERVING: u64 = 2;
    let status = if stopping { NOT_SERVING } else { SERVING };
    SERVICES
        .contains(&service)
        .then(|| frame::encode(2, |message| protobuf_writer::write_number(message, 1, status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_stops_says_so() {
        for service in SERVICES {
            assert_eq!(check(service, false).as_deref(), Some(&b"\0\0\0\0\x02\x08\x01"[..]));
            assert_eq!(check(service, true).as_deref(), Some(&b"\0\0\0\0\x02\x08\x02"[..]));
        }
        for service in ["Ratelimit", "grpc.health.v1.Health", " "] {
            assert_eq!(check(service, false), None, "{service}");
        }
    }
}
