//! `POST /v1/reserve`, `/v1/commit` and `/v1/refund`: work whose cost is known afterwards.

use std::time::Duration;

use http::{Response, StatusCode};
use tollgate_rules::reservation::{EXPIRES_IN_MAX, RESERVATIONS_MAX};
use tollgate_rules::{ReservationId, ReserveError, SettleError};

use super::answer;
use super::check_service::CheckService;
use super::facts::{identify_caller, rules_for_identity, stated_facts};
use super::json::{COMMIT_FIELDS, CheckBody, REFUND_FIELDS, RESERVE_FIELDS};
use crate::listeners::response_body::ResponseBody;
use crate::reply;

/// Lifetime of a reservation without `expires_in_ms`.
const DEFAULT_EXPIRES_IN_MS: u64 = 60_000;

const COST_REQUIRED: &str = "A reservation takes at least 1: send \"cost\":1, or leave it out to use the cost of the \
    rules. To look without taking, send \"cost\":0 to /v1/check.";

/// Charges an estimate and returns the id of the reservation.
pub(super) async fn reserve(checks: &CheckService, body: &[u8]) -> Response<ResponseBody> {
    let check = match CheckBody::read(body, RESERVE_FIELDS) {
        Ok(check) => check,
        Err(problem) => return bad_request(&problem),
    };
    let expires_in = Duration::from_millis(check.expires_in_ms.unwrap_or(DEFAULT_EXPIRES_IN_MS));
    if expires_in.is_zero() || expires_in > EXPIRES_IN_MAX {
        let most_ms = EXPIRES_IN_MAX.as_millis();
        return bad_request(&format!("\"expires_in_ms\" must be from 1 to {most_ms}."));
    }
    let (rules, now) = (checks.gatekeeper.rules(), checks.gatekeeper.now());
    let (stated, identifying) = (stated_facts(&check), rules_for_identity(&rules, &check));
    let identity = identify_caller(identifying.as_deref(), &stated, now);
    let ask = checks.ask(identity.complete(stated), check.cost);
    let reserving =
        checks.gatekeeper.reserve_by(rules, &ask, expires_in, checks.gatekeeper.clock_instant(now));
    match checks.timing.measure(reserving).await {
        Ok(reserved) => {
            reply::no_store(answer::decision_reply(&reserved.answer, reserved.id).into_response())
        }
        Err(ReserveError::NoCost) => bad_request(COST_REQUIRED),
        Err(ReserveError::TableFull) => {
            let message = format!(
                "Too many reservations are open ({RESERVATIONS_MAX}, or fewer with long keys): commit or \
                 refund some of them."
            );
            reply::error(StatusCode::SERVICE_UNAVAILABLE, &message)
        }
    }
}

/// Settles a reservation with its actual cost.
pub(super) async fn commit(checks: &CheckService, body: &[u8]) -> Response<ResponseBody> {
    let check = match CheckBody::read(body, COMMIT_FIELDS) {
        Ok(check) => check,
        Err(problem) => return bad_request(&problem),
    };
    let (Some(reservation), Some(cost)) = (check.reservation, check.cost) else {
        return bad_request("A commit needs both \"reservation\" and \"cost\".");
    };
    let gatekeeper = &checks.gatekeeper;
    let now = gatekeeper.now();
    let outcome = match reservation.parse::<ReservationId>() {
        Ok(id) => gatekeeper.commit_by(id, cost, gatekeeper.clock_instant(now)).await,
        Err(error) => Err(error),
    };
    settle_response(outcome, cost)
}

/// Refunds a reservation, or the cost of a check with these facts.
pub(super) async fn refund(checks: &CheckService, body: &[u8]) -> Response<ResponseBody> {
    let gatekeeper = &checks.gatekeeper;
    let check = match CheckBody::read(body, REFUND_FIELDS) {
        Ok(check) => check,
        Err(problem) => return bad_request(&problem),
    };
    if let Some(reservation) = &check.reservation {
        if check.has_check_fields() {
            return bad_request(
                "A refund has either \"reservation\" alone or the fields of a check.",
            );
        }
        let outcome = match reservation.parse::<ReservationId>() {
            Ok(id) => gatekeeper.cancel_by(id, gatekeeper.now()).await,
            Err(error) => Err(error),
        };
        return settle_response(outcome, 0);
    }
    if !check.has_check_fields() {
        return bad_request("A refund needs \"reservation\" or the fields of a check.");
    }
    let (rules, now) = (gatekeeper.rules(), gatekeeper.now());
    let (stated, identifying) = (stated_facts(&check), rules_for_identity(&rules, &check));
    let identity = identify_caller(identifying.as_deref(), &stated, now);
    let ask = checks.ask(identity.complete(stated), check.cost);
    let refunded = gatekeeper.refund_by(rules, &ask, gatekeeper.clock_instant(now)).await;
    answer::decision_reply(&refunded, None).into_response()
}

fn settle_response(outcome: Result<(), SettleError>, cost: u64) -> Response<ResponseBody> {
    match outcome {
        Ok(()) => reply::json(StatusCode::OK, format!(r#"{{"settled":true,"cost":{cost}}}"#)),
        Err(SettleError::Unknown) => reply::error(
            StatusCode::NOT_FOUND,
            "There is no open reservation with this id: it is unknown or already settled.",
        ),
        Err(SettleError::Expired) => {
            reply::error(StatusCode::GONE, "This reservation has expired: its charge stands.")
        }
    }
}

fn bad_request(problem: &str) -> Response<ResponseBody> {
    reply::error(StatusCode::BAD_REQUEST, problem)
}
