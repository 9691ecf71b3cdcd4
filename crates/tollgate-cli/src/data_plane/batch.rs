//! `POST /v1/check/batch`: many checks, decided in order at one instant.

use std::sync::Arc;

use http::{Response, StatusCode};
use tollgate_rules::RulesVersion;

use super::answer::{write_decision, write_missing_facts};
use super::check_service::CheckService;
use super::json::read_batch;
use crate::listeners::handler::ReceivedRequest;
use crate::listeners::response_body::ResponseBody;
use crate::reply;

/// Bytes reserved for one decision.
const DECISION_BYTES: usize = 512;

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
    for (index, check) in batch.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let rules = RulesVersion::from_inner(Arc::clone(&rules));
        let answer = checks.decide_body(rules, check, now).await;
        match answer.unanswered() {
            // Only this entry is an error; the others are decided.
            Some(missing) => write_missing_facts(&mut out, &missing),
            None => {
                let policies = answer.policies();
                write_decision(&mut out, &answer, &answer.reply(&policies), None);
            }
        }
    }
    out.push(b']');
    // The reply may wait for a slow reader, and the allowance counts its length, not its capacity.
    out.shrink_to_fit();
    reply::json(StatusCode::OK, out)
}
