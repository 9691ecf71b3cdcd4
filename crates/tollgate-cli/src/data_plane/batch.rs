//! `POST /v1/check/batch`: many checks, decided in order at one instant.

use http::{Response, StatusCode};
use tollgate_rules::{Answer, Policies};

use super::answer::{write_decision, write_missing_facts};
use super::check_service::CheckService;
use super::json::read_batch;
use crate::listeners::handler::ReceivedRequest;
use crate::listeners::response_body::ResponseBody;
use crate::reply;

/// Bytes reserved for one decision.
const DECISION_BYTES: usize = 512;

/// Checks that are decided together.
const STRIDE: usize = 128;

pub(super) async fn answer(
    checks: &CheckService,
    request: &mut ReceivedRequest<'_>,
) -> Response<ResponseBody> {
    // All are read before the first is decided: a batch with an error in it charges nothing.
    let batch = match read_batch(request.body) {
        Ok(batch) => batch,
        Err(problem) => return reply::error(StatusCode::BAD_REQUEST, &problem),
    };
    let bytes = 2 + batch.len() * DECISION_BYTES;
    if !request.has_room_for(bytes) {
        return reply::no_room();
    }
    // One rules version for the whole batch, even if the rules change meanwhile.
    let (rules, now) = (checks.gatekeeper.rules(), checks.gatekeeper.now());
    let mut out = Vec::with_capacity(bytes);
    out.push(b'[');
    for stride in batch.chunks(STRIDE) {
        checks.decide_bodies(&rules, stride, now, |answer| write_entry(&mut out, answer)).await;
    }
    // After the last entry there is a comma too much.
    out.pop_if(|byte| *byte == b',');
    out.push(b']');
    // The reply may wait for a slow reader, and the allowance counts its length, not its capacity.
    out.shrink_to_fit();
    reply::json(StatusCode::OK, out)
}

/// Writes one decision and a comma.
fn write_entry(out: &mut Vec<u8>, answer: &Answer) {
    match answer.unanswered() {
        // Only this entry is an error; the others are decided.
        Some(missing) => write_missing_facts(out, &missing),
        None => {
            // Only refusals name their policies.
            let policies = if answer.allowed() { Policies::new() } else { answer.policies() };
            write_decision(out, answer, &answer.reply(&policies), None);
        }
    }
    out.push(b',');
}
