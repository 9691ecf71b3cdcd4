//! `POST /v1/check`: one question, one decision.

use http::{Response, StatusCode};

use super::answer;
use super::http::DataPlane;
use super::json::{Asked, CHECK};
use crate::listeners::connection::Body;
use crate::reply;

pub(super) async fn answer(plane: &DataPlane, body: &[u8]) -> Response<Body> {
    let asked = match Asked::read(body, CHECK) {
        Ok(asked) => asked,
        Err(problem) => return reply::error(StatusCode::BAD_REQUEST, &problem),
    };
    let (rules, now) = (plane.gatekeeper.rules(), plane.gatekeeper.now());
    answer::decision(&plane.decide_asked(rules, &asked, now).await, None)
}
