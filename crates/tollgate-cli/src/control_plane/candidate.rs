//! `/api/candidate`: what other rules would have done to the recorded traffic. Nothing is put in force.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tollgate::Micros;
use tollgate_rules::compile::compile_at;
use tollgate_rules::{Compilation, Diagnostics, RuleSet, Source};

use super::ControlPlane;
use crate::listeners::response_body::ResponseBody;
use crate::recording::{SampleShare, TrafficRecorder};
use crate::replay::{
    AffectedCaller, ChangedExample, ExampleAnswer, RecordedReplay, ReplayFailure, replay_recorded,
};
use crate::reply;
use crate::telemetry::timestamp;

/// Most replays at the same time.
const REPLAYS_MAX: usize = 2;

/// Most callers in a response.
const CALLERS_MAX: usize = 25;

/// The recorded traffic and the replays of it.
pub(crate) struct CandidateReplays {
    /// `None` if traffic is not recorded.
    recorder: Option<Arc<TrafficRecorder>>,
    running: Arc<Semaphore>,
    /// Folder for relative paths in candidate rules.
    folder: PathBuf,
}

impl CandidateReplays {
    pub(crate) fn new(recorder: Option<Arc<TrafficRecorder>>, folder: PathBuf) -> CandidateReplays {
        CandidateReplays { recorder, running: Arc::new(Semaphore::new(REPLAYS_MAX)), folder }
    }
}

impl ControlPlane {
    /// Replays the recorded traffic through the rules in force and through these.
    pub(super) async fn candidate(&self, text: Bytes) -> Response<ResponseBody> {
        let Some(recorder) = self.candidates.recorder.clone() else {
            let message = "Traffic is not recorded: start the server without --recent-traffic 0.";
            return reply::error(StatusCode::CONFLICT, message);
        };
        let Ok(permit) = self.candidates.running.clone().try_acquire_owned() else {
            return busy();
        };
        let (now, folder) = (self.gatekeeper.now(), self.candidates.folder.clone());
        let in_force = self.gatekeeper.rules().for_replay();
        // Compiling and replaying take time, which no other request of this listener may wait for.
        let trial = tokio::task::spawn_blocking(move || {
            // A client that leaves does not free the place before the replay has ended.
            let _permit = permit;
            try_candidate(&text, &folder, in_force, (&recorder, now))
        });
        match trial.await {
            Ok(Ok(document)) => reply::json(StatusCode::OK, document.to_string()),
            Ok(Err(refused)) => refused.response(),
            Err(_) => reply::panicked(),
        }
    }
}

/// The reason why a candidate was not tried.
enum CandidateRefusal {
    Wrong(Box<Diagnostics>),
    Failed(ReplayFailure),
    RecorderEnded,
}

impl CandidateRefusal {
    fn response(self) -> Response<ResponseBody> {
        match self {
            CandidateRefusal::Wrong(diagnostics) => wrong_rules(&diagnostics),
            CandidateRefusal::Failed(ReplayFailure::NothingRecorded) => {
                let message = "No traffic is recorded yet: send requests, then try again.";
                reply::error(StatusCode::CONFLICT, message)
            }
            CandidateRefusal::Failed(ReplayFailure::TookTooLong) => {
                let message = "The replay took too long: record fewer requests with --recent-traffic, or use fewer rules.";
                reply::error(StatusCode::SERVICE_UNAVAILABLE, message)
            }
            CandidateRefusal::RecorderEnded => {
                reply::error(StatusCode::SERVICE_UNAVAILABLE, "The server is stopping.")
            }
        }
    }
}

fn busy() -> Response<ResponseBody> {
    let message = "Other candidate rules are being tried: try again in a moment.";
    let mut response = reply::error(StatusCode::SERVICE_UNAVAILABLE, message);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// The response to rules with errors: as text for people, and each with its line and column.
fn wrong_rules(diagnostics: &Diagnostics) -> Response<ResponseBody> {
    let errors: Vec<Value> = diagnostics.iter().map(tollgate_rules::Diagnostic::to_json).collect();
    let document = json!({
        "error": StatusCode::BAD_REQUEST.canonical_reason(),
        "message": "The candidate rules have errors; nothing was tried.",
        "diagnostics": diagnostics.to_string(),
        "errors": errors,
    });
    reply::json(StatusCode::BAD_REQUEST, document.to_string())
}

fn try_candidate(
    text: &[u8],
    folder: &std::path::Path,
    in_force: RuleSet,
    (recorder, now): (&TrafficRecorder, Micros),
) -> Result<Value, CandidateRefusal> {
    let of_one = |diagnostic: Box<tollgate_rules::Diagnostic>| {
        let mut diagnostics = Diagnostics::default();
        diagnostics.push(*diagnostic);
        CandidateRefusal::Wrong(Box::new(diagnostics))
    };
    let source = Source::from_bytes("candidate", text).map_err(of_one)?.in_folder(folder);
    let Compilation { rules, diagnostics, .. } = compile_at(&[source], Some(now));
    let Some(candidate) = rules else {
        return Err(CandidateRefusal::Wrong(Box::new(diagnostics)));
    };
    let recorded = recorder.recorded(now).map_err(|_| CandidateRefusal::RecorderEnded)?;
    let replay = replay_recorded(&recorded, recorder.missing(), [in_force, candidate]);
    let replay = replay.map_err(CandidateRefusal::Failed)?;
    Ok(replay_json(&replay, recorded.share, &diagnostics))
}

fn replay_json(replay: &RecordedReplay, share: SampleShare, diagnostics: &Diagnostics) -> Value {
    let RecordedReplay { comparison, requests, from, to, warnings } = replay;
    let totals =
        |refused: u64| json!({ "allowed": *requests as u64 - refused, "refused": refused });
    let rules: Vec<Value> = comparison
        .refused_by_rule()
        .map(|(name, now, then)| json!({ "name": name, "now_refused": now, "then_refused": then }))
        .collect();
    let series = &comparison.series;
    let column = |of: fn(&crate::replay::ReplayStep) -> u64| -> Value {
        series.steps().iter().map(of).collect()
    };
    let warnings: String = std::iter::once(diagnostics.to_string())
        .filter(|text| !text.is_empty())
        .chain(warnings.iter().map(|warning| format!("{warning}\n")))
        .collect();
    json!({
        "recorded": {
            "requests": requests,
            "from": timestamp(*from).to_string(),
            "to": timestamp(*to).to_string(),
            "sampled": sampled(share),
            "note": "Every caller begins with full limits, under both rule sets.",
        },
        "now": totals(comparison.now.refused),
        "then": totals(comparison.then.refused),
        "changed": comparison.changed(),
        "rules": rules,
        "callers": comparison.most_affected(CALLERS_MAX).iter().map(caller_json).collect::<Value>(),
        "examples": comparison.examples.iter().map(example_json).collect::<Value>(),
        "series": {
            "step_s": series.step_s(),
            "from_s": series.start_s(),
            "offered": column(|step| step.offered),
            "now_refused": column(|step| step.now_refused),
            "then_refused": column(|step| step.then_refused),
        },
        "warnings": warnings,
    })
}

/// The sampling of a recording, for people.
fn sampled(share: SampleShare) -> String {
    match share.one_in() {
        1 => "all callers".into(),
        one_in => format!("1 caller in {one_in}, each with all of its requests"),
    }
}

fn caller_json(caller: &AffectedCaller) -> Value {
    json!({
        "rule": &*caller.rule,
        "key": caller.name,
        "requests": caller.requests,
        "now_refused": caller.now_refused,
        "then_refused": caller.then_refused,
        "changed": caller.changed,
    })
}

fn example_json(example: &ChangedExample) -> Value {
    let answer = |answer: &ExampleAnswer| {
        let or_null = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
        json!({ "allowed": answer.allowed, "rule": or_null(&answer.rule), "limit": or_null(&answer.limit) })
    };
    json!({
        "at": timestamp(example.at).to_string(),
        "method": example.method,
        "path": example.path,
        "key": example.caller,
        "now": answer(&example.now),
        "then": answer(&example.then),
    })
}
