//! The tower part: an axum route with the layer, next to the same route without it.

use std::net::SocketAddr;
use std::rc::Rc;

use tollgate_bench::generator::http::{HttpLoadClient, ask};
use tollgate_bench::generator::requests::RequestList;
use tollgate_bench::generator::{self, answer_excerpt};

use crate::part::{self, ConnectionShape, LaunchPaths, ListenerPart};

pub(crate) const BARE: &str = "bare route";
pub(crate) const LIMITED: &str = "with the layer";
pub(crate) const SILENT: &str = "with the layer, no headers";

pub(crate) const SHAPE: ConnectionShape = ConnectionShape { connections: 16, in_flight: 1 };

pub(crate) fn start(place: &LaunchPaths<'_>) -> ListenerPart {
    let mut part = ListenerPart::new("tower", BARE);
    let requests = Rc::new(RequestList::generate(1, |callers| {
        let caller = callers[0];
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-User-Id: {caller:05}\r\n\r\n")
    }));
    // Without headers the answer cannot show that the layer decides; it is the same layer as the one with headers.
    let contestants =
        [(BARE, "bare", "200 OK"), (LIMITED, "limited", "ratelimit"), (SILENT, "silent", "200 OK")];
    for (who, word, sign) in contestants {
        part.add_process(
            who,
            part::start_bench_server(place, "axum-route", &[word], "http"),
            |target| {
                check_answer_contains(target.address, requests.get(0), sign)?;
                Ok(part::cases(who, &[SHAPE], |shape| {
                    let requests = Rc::clone(&requests);
                    move |span| {
                        let talk = |index| HttpLoadClient::new(&requests, index);
                        generator::measure(&target.load(shape, span), talk)
                    }
                }))
            },
        );
    }
    part
}

/// Checks the answer: a layer that does not decide would look fast.
fn check_answer_contains(address: SocketAddr, request: &[u8], sign: &str) -> Result<(), String> {
    let answer = ask(address, request)?;
    if answer.status == 200 && answer.text.contains(sign) {
        return Ok(());
    }
    let said = answer_excerpt(answer.text.as_bytes());
    Err(format!("the answer is not 200 with `{sign}`; it said:\n{said}"))
}
