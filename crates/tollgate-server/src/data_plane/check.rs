//! `POST /v1/check`: one question, one decision.

use http::{Response, StatusCode};
use tollgate_rules::{Ask, Gatekeeper};

use super::answer;
use super::facts::with_facts;
use super::json::{Asked, CHECK};
use crate::doors::connection::Body;
use crate::reply;

pub(super) fn answer(gatekeeper: &Gatekeeper, body: &[u8]) -> Response<Body> {
    let asked = match Asked::read(body, CHECK) {
        Ok(asked) => asked,
        Err(problem) => return reply::error(StatusCode::BAD_REQUEST, &problem),
    };
    let answer = with_facts(gatekeeper, &asked, |facts| {
        gatekeeper.decide(&Ask { facts, cost: asked.cost, ..Ask::default() })
    });
    answer::decision(&answer, None)
}
