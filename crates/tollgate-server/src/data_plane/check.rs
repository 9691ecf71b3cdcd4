//! `POST /v1/check`: one question, one decision.

use http::{Response, StatusCode};
use tollgate_rules::Ask;

use super::answer;
use super::facts::with_facts;
use super::http::DataPlane;
use super::json::{Asked, CHECK};
use crate::doors::connection::Body;
use crate::reply;

pub(super) fn answer(plane: &DataPlane, body: &[u8]) -> Response<Body> {
    let asked = match Asked::read(body, CHECK) {
        Ok(asked) => asked,
        Err(problem) => return reply::error(StatusCode::BAD_REQUEST, &problem),
    };
    let (rules, now) = (plane.gatekeeper.rules(), plane.gatekeeper.now());
    let answer = with_facts(rules, now, &asked, |rules, facts| {
        plane.decide(rules, &Ask { facts, cost: asked.cost, ..Ask::default() }, now)
    });
    answer::decision(&answer, None)
}
