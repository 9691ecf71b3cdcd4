//! gRPC: Envoy's ShouldRateLimit, next to a tonic server that decides nothing.

use std::net::SocketAddr;
use std::rc::Rc;

use tollgate_bench::envoy::{OK, framed, request};
use tollgate_bench::generator::grpc::{Grpc, check};
use tollgate_bench::generator::requests::Requests;
use tollgate_bench::generator::{self, Load};
use tollgate_bench::process::Process;

use crate::part::{self, Case, Part, Place, Running, Shape, TOLLGATE};

pub(crate) const TONIC: &str = "tonic echo";

/// One call at a time on each connection.
pub(crate) const UNARY: Shape = Shape { connections: 16, at_once: 1 };
/// Few connections, many streams: what Envoy does.
pub(crate) const MULTIPLEXED: Shape = Shape { connections: 4, at_once: 16 };
const SHAPES: [Shape; 2] = [UNARY, MULTIPLEXED];

pub(crate) fn start(place: &Place<'_>) -> Part {
    let mut part = Part::new("gRPC", TONIC);
    let messages = Rc::new(Requests::of(1, |callers| message(callers[0])));
    for who in [TONIC, TOLLGATE] {
        let started = match who {
            TONIC => part::own(place, "tonic-echo", &[], "grpc"),
            _ => part::tollgate(place, "grpc"),
        };
        part.add(who, started.and_then(|started| contestant(who, started, &messages)));
    }
    part.sort(&SHAPES);
    part
}

fn contestant(
    who: &'static str,
    (process, address): (Process, SocketAddr),
    messages: &Rc<Requests>,
) -> Result<(Option<Running>, Vec<Case>), String> {
    it_decides(address, messages.get(0))?;
    let server = process.id();
    let cases = part::cases(who, &SHAPES, |shape| {
        let messages = Rc::clone(messages);
        move |span| {
            let load = Load { address, server, connections: shape.connections, span };
            generator::measure(&load, |index| Grpc::new(&messages, shape.at_once, index))
        }
    });
    Ok((Some(Running::Process { _alive: process }), cases))
}

/// A call about an address of its own for each caller.
fn message(caller: u64) -> Vec<u8> {
    let [.., a, b, c] = caller.to_be_bytes();
    framed(&request("bench", &format!("10.{a}.{b}.{c}")))
}

/// A server whose rules do not match would be measured to be fast.
fn it_decides(address: SocketAddr, message: &[u8]) -> Result<(), String> {
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
