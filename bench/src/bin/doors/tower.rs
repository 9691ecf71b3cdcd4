//! The tower layer: a route of axum with it, next to the same route without.

use std::net::SocketAddr;
use std::rc::Rc;

use tollgate_bench::generator::http::{Http, ask};
use tollgate_bench::generator::requests::Requests;
use tollgate_bench::generator::{self, shown};

use crate::part::{self, Part, Place, Shape};

pub(crate) const BARE: &str = "bare route";
pub(crate) const LIMITED: &str = "with the layer";
pub(crate) const SILENT: &str = "with the layer, no headers";

pub(crate) const SHAPE: Shape = Shape { connections: 16, at_once: 1 };

pub(crate) fn start(place: &Place<'_>) -> Part {
    let mut part = Part::new("tower", BARE);
    let requests = Rc::new(Requests::of(1, |callers| {
        let caller = callers[0];
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-User-Id: {caller:05}\r\n\r\n")
    }));
    // Without headers nothing shows that it decides; it is the same layer as the one with them.
    let contestants =
        [(BARE, "bare", "200 OK"), (LIMITED, "limited", "ratelimit"), (SILENT, "silent", "200 OK")];
    for (who, word, sign) in contestants {
        part.add_process(who, part::own(place, "axum-route", &[word], "http"), |target| {
            it_shows(target.address, requests.get(0), sign)?;
            Ok(part::cases(who, &[SHAPE], |shape| {
                let requests = Rc::clone(&requests);
                move |span| {
                    let talk = |index| Http::new(&requests, index);
                    generator::measure(&target.load(shape, span), talk)
                }
            }))
        });
    }
    part
}

/// A layer that is not asked would be measured to be fast.
fn it_shows(address: SocketAddr, request: &[u8], sign: &str) -> Result<(), String> {
    let answer = ask(address, request)?;
    if answer.status == 200 && answer.text.contains(sign) {
        return Ok(());
    }
    let said = shown(answer.text.as_bytes());
    Err(format!("the answer is not 200 with `{sign}`; it said:\n{said}"))
}
