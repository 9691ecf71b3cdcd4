//! `POST /v1/reserve`, `/v1/commit` and `/v1/refund`: work whose cost is known afterwards.

use std::time::Duration;

use http::{Response, StatusCode};
use tollgate_rules::reservation::{EXPIRES_IN_MAX, RESERVATIONS_MAX};
use tollgate_rules::{ReservationId, ReserveError, SettleError};

use super::answer;
use super::facts::{identifying, identity, stated};
use super::http::DataPlane;
use super::json::{Asked, COMMIT, REFUND, RESERVE};
use crate::listeners::connection::Body;
use crate::reply;
use crate::store::Gatekeeper;

/// How long a reservation stays open if nobody says.
const EXPIRES_IN_MS: u64 = 60_000;

const NO_COST: &str = "A reservation takes at least 1: write \"cost\":1, or leave it out for what the \
    rules say. To look without taking, send \"cost\":0 to /v1/check.";

/// Takes an estimate, and names it.
pub(super) async fn reserve(plane: &DataPlane, body: &[u8]) -> Response<Body> {
    let asked = match Asked::read(body, RESERVE) {
        Ok(asked) => asked,
        Err(problem) => return bad_request(&problem),
    };
    let expires_in = Duration::from_millis(asked.expires_in_ms.unwrap_or(EXPIRES_IN_MS));
    if expires_in.is_zero() || expires_in > EXPIRES_IN_MAX {
        let most_ms = EXPIRES_IN_MAX.as_millis();
        return bad_request(&format!("\"expires_in_ms\" has to be from 1 to {most_ms}."));
    }
    let (rules, now) = (plane.gatekeeper.rules(), plane.gatekeeper.now());
    let (stated, identifying) = (stated(&asked), identifying(&rules, &asked));
    let identity = identity(identifying.as_deref(), &stated, now);
    let ask = plane.ask(identity.complete(stated), asked.cost);
    let reserving =
        plane.gatekeeper.reserve_by(rules, &ask, expires_in, plane.gatekeeper.as_read(now));
    match plane.timing.of(reserving).await {
        Ok(reserved) => reply::no_store(answer::decision(&reserved.answer, reserved.id)),
        Err(ReserveError::NoCost) => bad_request(NO_COST),
        Err(ReserveError::TableFull) => {
            let message = format!(
                "There is no room for another open reservation ({RESERVATIONS_MAX}, or fewer with long \
                 keys): settle some of them."
            );
            reply::error(StatusCode::SERVICE_UNAVAILABLE, &message)
        }
    }
}

/// Settles with the true cost.
pub(super) async fn commit(gatekeeper: &Gatekeeper, body: &[u8]) -> Response<Body> {
    let asked = match Asked::read(body, COMMIT) {
        Ok(asked) => asked,
        Err(problem) => return bad_request(&problem),
    };
    let (Some(reservation), Some(cost)) = (asked.reservation, asked.cost) else {
        return bad_request("A commit has \"reservation\" and \"cost\", both.");
    };
    let now = gatekeeper.now();
    let outcome = match reservation.parse::<ReservationId>() {
        Ok(id) => gatekeeper.commit_by(id, cost, gatekeeper.as_read(now)).await,
        Err(error) => Err(error),
    };
    settled(outcome, cost)
}

/// Gives back a reservation, or what a check like this one would have cost.
pub(super) async fn refund(plane: &DataPlane, body: &[u8]) -> Response<Body> {
    let gatekeeper = &plane.gatekeeper;
    let asked = match Asked::read(body, REFUND) {
        Ok(asked) => asked,
        Err(problem) => return bad_request(&problem),
    };
    if let Some(reservation) = &asked.reservation {
        if asked.is_a_check() {
            return bad_request("A refund has \"reservation\" alone, or the fields of a check.");
        }
        let outcome = match reservation.parse::<ReservationId>() {
            Ok(id) => gatekeeper.cancel_by(id, gatekeeper.now()).await,
            Err(error) => Err(error),
        };
        return settled(outcome, 0);
    }
    if !asked.is_a_check() {
        return bad_request("A refund names a \"reservation\", or has the fields of a check.");
    }
    let (rules, now) = (gatekeeper.rules(), gatekeeper.now());
    let (stated, identifying) = (stated(&asked), identifying(&rules, &asked));
    let identity = identity(identifying.as_deref(), &stated, now);
    let ask = plane.ask(identity.complete(stated), asked.cost);
    answer::decision(&gatekeeper.refund_by(rules, &ask, gatekeeper.as_read(now)).await, None)
}

fn settled(outcome: Result<(), SettleError>, cost: u64) -> Response<Body> {
    match outcome {
        Ok(()) => reply::json(StatusCode::OK, format!(r#"{{"settled":true,"cost":{cost}}}"#)),
        Err(SettleError::Unknown) => reply::error(
            StatusCode::NOT_FOUND,
            "There is no open reservation of this name: it is unknown, or has been settled.",
        ),
        Err(SettleError::Expired) => {
            reply::error(StatusCode::GONE, "This reservation has expired: what it charged stands.")
        }
    }
}

fn bad_request(problem: &str) -> Response<Body> {
    reply::error(StatusCode::BAD_REQUEST, problem)
}
