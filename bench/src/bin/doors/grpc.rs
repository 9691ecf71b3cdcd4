//! The gRPC part: Envoy's ShouldRateLimit, next to a tonic server that decides nothing.

use std::net::SocketAddr;
use std::rc::Rc;

use testkit::traffic::should_rate_limit;
use tollgate_bench::envoy::OK;
use tollgate_bench::generator;
use tollgate_bench::generator::grpc::{GrpcLoadClient, check};
use tollgate_bench::generator::requests::EncodedRequests;

use crate::part::{self, ConnectionShape, LaunchPaths, ListenerPart, ListenerTarget, TOLLGATE};

pub(crate) const TONIC: &str = "tonic echo";

/// One call at a time on each connection.
pub(crate) const UNARY: ConnectionShape = ConnectionShape { connections: 16, in_flight: 1 };
/// Few connections with many streams, as Envoy opens them.
pub(crate) const MULTIPLEXED: ConnectionShape = ConnectionShape { connections: 4, in_flight: 16 };
const SHAPES: [ConnectionShape; 2] = [UNARY, MULTIPLEXED];

pub(crate) fn start(place: &LaunchPaths<'_>) -> ListenerPart {
    let mut part = ListenerPart::new("gRPC", TONIC);
    let messages = Rc::new(EncodedRequests::generate(1, |callers| should_rate_limit(callers[0])));
    let cases = |who, target: ListenerTarget| {
        check_it_decides(target.address, messages.get(0))?;
        Ok(part::cases(who, &SHAPES, |shape| {
            let messages = Rc::clone(&messages);
            move |span| {
                let talk = |index| GrpcLoadClient::new(&messages, shape.in_flight, index);
                generator::measure(&target.load(shape, span), talk)
            }
        }))
    };
    let tonic = part::start_bench_server(place, "tonic-echo", &[], "grpc");
    part.add_process(TONIC, tonic, |target| cases(TONIC, target));
    part.add_process(TOLLGATE, part::start_tollgate(place, "grpc"), |target| {
        cases(TOLLGATE, target)
    });
    part.sort(&SHAPES);
    part
}

/// Checks that the server decides: one whose rules do not match would look fast.
fn check_it_decides(address: SocketAddr, message: &[u8]) -> Result<(), String> {
    let answer = check(address, message)?;
    let limit = match &answer.statuses[..] {
        [status] if status.code == OK && status.limit_remaining > 0 => &status.current_limit,
        _ => &None,
    };
    match limit {
        Some(limit) if limit.requests_per_unit == 1_000_000 => Ok(()),
        _ => Err(format!("the answer is not one status of the limit per address: {answer:?}")),
    }
}
