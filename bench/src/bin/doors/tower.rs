//! The tower layer: a route of axum with it, next to the same route without.

use std::net::SocketAddr;
use std::rc::Rc;

use tollgate_bench::generator::http::{Http, ask};
use tollgate_bench::generator::requests::Requests;
use tollgate_bench::generator::{self, Load, shown};
use tollgate_bench::process::Process;

use crate::part::{self, Case, Part, Place, Running, Shape};

pub(crate) const BARE: &str = "bare route";
pub(crate) const LIMITED: &str = "with the layer";

pub(crate) const SHAPE: Shape = Shape { connections: 16, at_once: 1 };

pub(crate) fn start(place: &Place<'_>) -> Part {
    let mut part = Part::new("tower", BARE);
    let requests = Rc::new(Requests::of(1, |callers| {
        let caller = callers[0];
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-User-Id: {caller:05}\r\n\r\n")
    }));
    for (who, word, sign) in [(BARE, "bare", "200 OK"), (LIMITED, "limited", "ratelimit")] {
        let started = part::own(place, "axum-route", &[word], "http");
        part.add(who, started.and_then(|started| contestant(who, sign, started, &requests)));
    }
    part
}

fn contestant(
    who: &'static str,
    sign: &str,
    (process, address): (Process, SocketAddr),
    requests: &Rc<Requests>,
) -> Result<(Option<Running>, Vec<Case>), String> {
    let answer = ask(address, requests.get(0))?;
    if answer.status != 200 || !answer.text.contains(sign) {
        // A layer that is not asked would be measured to be fast.
        let said = shown(answer.text.as_bytes());
        return Err(format!("the answer is not 200 with `{sign}`; it said:\n{said}"));
    }
    let server = process.id();
    let cases = part::cases(who, &[SHAPE], |shape| {
        let requests = Rc::clone(requests);
        move |span| {
            let load = Load { address, server, connections: shape.connections, span };
            generator::measure(&load, |index| Http::new(&requests, index))
        }
    });
    Ok((Some(Running::Process { _alive: process }), cases))
}
