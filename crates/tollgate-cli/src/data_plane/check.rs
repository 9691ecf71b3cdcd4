//! `POST /v1/check`: one check, one decision.

use http::StatusCode;

use super::answer;
use super::check_service::CheckService;
use super::json::{CHECK_FIELDS, CheckBody};
use crate::reply::{self, HttpReply};

pub(super) async fn answer(checks: &CheckService, body: &[u8]) -> HttpReply {
    let check = match CheckBody::read(body, CHECK_FIELDS) {
        Ok(check) => check,
        Err(problem) => return reply::error(StatusCode::BAD_REQUEST, &problem).into(),
    };
    let (rules, now) = (checks.gatekeeper.rules(), checks.gatekeeper.now());
    answer::decision_reply(&checks.decide_body(rules, &check, now).await, None)
}
