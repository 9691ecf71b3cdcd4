//! `grpc.health.v1.Health`: whether this server wants calls.
//!
//! `Watch` is not there, which the protocol allows: a stream that is open for as long as somebody looks
//! would be one more thing to bound, and Envoy, Kubernetes and load balancers ask with `Check`.

use bytes::Bytes;

use super::frame;
use super::protobuf_writer;

/// The services that can be asked for: all of them together, Envoy's by its name, and by the name that
/// envoyproxy/ratelimit has for it.
const SERVICES: [&str; 3] = ["", "ratelimit", super::RATE_LIMIT_SERVICE];

/// The framed answer; `None`: there is no such service.
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
