//! The tower part: an axum route with the layer, next to a route that sets the same header fields, and with a layer
//! that writes none, next to a bare route.

use std::net::SocketAddr;
use std::rc::Rc;

use tollgate_bench::generator::http::{HttpLoadClient, ask};
use tollgate_bench::generator::requests::EncodedRequests;
use tollgate_bench::generator::{self, answer_excerpt};
use tollgate_bench::reply::check_same_shape;

use crate::part::{self, ConnectionShape, LaunchPaths, ListenerPart};

pub(crate) const BARE: &str = "bare route";
pub(crate) const FIELDS: &str = "route with the same fields";
pub(crate) const LIMITED: &str = "with the layer";
pub(crate) const SILENT: &str = "with the layer, no fields";

pub(crate) const SHAPE: ConnectionShape = ConnectionShape { connections: 16, in_flight: 1 };

pub(crate) fn start(place: &LaunchPaths<'_>) -> ListenerPart {
    let mut part = ListenerPart::new("tower", BARE);
    let requests = Rc::new(EncodedRequests::generate(1, |callers| {
        let caller = callers[0];
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-User-Id: {caller:05}\r\n\r\n")
    }));
    // Without fields the answer cannot show that the layer decides; it is the same layer as the one with fields.
    let contestants = [
        (BARE, "bare", "200 OK"),
        (FIELDS, "fields", "ratelimit"),
        (LIMITED, "limited", "ratelimit"),
        (SILENT, "silent", "200 OK"),
    ];
    let mut answers = Vec::new();
    for (who, word, sign) in contestants {
        part.add_process(
            who,
            part::start_bench_server(place, "axum-route", &[word], "http"),
            |target| {
                answers.push((who, answer_with(target.address, requests.get(0), sign)?));
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
    let answer = |who| answers.iter().find(|it| it.0 == who).map(|it| &it.1);
    for (ours, floor) in [(LIMITED, FIELDS), (SILENT, BARE)] {
        if let (Some(ours), Some(bare)) = (answer(ours), answer(floor)) {
            let same = check_same_shape(ours, bare);
            part.problems.extend(same.err().map(|problem| format!("{floor}: {problem}")));
        }
    }
    part
}

/// Asks once and returns the answer, which must be 200 and contain `sign`: a layer that does not decide would look
/// fast.
fn answer_with(address: SocketAddr, request: &[u8], sign: &str) -> Result<String, String> {
    let answer = ask(address, request)?;
    if answer.status == 200 && answer.text.contains(sign) {
        return Ok(answer.text);
    }
    let said = answer_excerpt(answer.text.as_bytes());
    Err(format!("the answer is not 200 with `{sign}`; it said:\n{said}"))
}
