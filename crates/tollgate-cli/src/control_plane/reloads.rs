//! `GET /api/reloads`: the last attempts to replace the rules.

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::ControlPlane;
use super::query::{QueryError, QueryFields};
use super::rules::changes_json;
use crate::listeners::response_body::ResponseBody;
use crate::live::{RecordedOutcome, ReloadRecord};
use crate::reply;
use crate::telemetry::timestamp;

impl ControlPlane {
    /// The last attempts, the newest first. The load at the start is not one.
    pub(super) fn reloads(
        &self,
        query: Option<&str>,
    ) -> Result<Response<ResponseBody>, QueryError> {
        QueryFields::parse(query, &[])?;
        let records = self.live.reloads_after(0);
        let reloads: Value = records.iter().rev().map(|record| reload_json(record)).collect();
        let document = json!({ "reloads": reloads });
        Ok(reply::json(StatusCode::OK, document.to_string()))
    }
}

fn reload_json(record: &ReloadRecord) -> Value {
    let mut entry = reload_event_json(record);
    let text = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
    let (changes, diagnostics, diff) = match &record.outcome {
        RecordedOutcome::Loaded { changes, names_left_out, warnings, diff } => {
            let mut changes = changes_json(changes);
            changes["names_left_out"] = (*names_left_out).into();
            (changes, text(warnings), text(diff))
        }
        RecordedOutcome::Unchanged => (Value::Null, Value::Null, Value::Null),
        RecordedOutcome::Refused { diagnostics, .. } => {
            (Value::Null, text(diagnostics), Value::Null)
        }
    };
    entry["changes"] = changes;
    entry["diagnostics"] = diagnostics;
    entry["diff"] = diff;
    entry
}

/// An attempt in short, as the event `reload`.
pub(super) fn reload_event_json(record: &ReloadRecord) -> Value {
    let (result, errors) = match &record.outcome {
        RecordedOutcome::Loaded { .. } => ("loaded", 0),
        RecordedOutcome::Unchanged => ("unchanged", 0),
        RecordedOutcome::Refused { errors, .. } => ("refused", *errors),
    };
    json!({
        "at": timestamp(record.at).to_string(),
        "cause": record.cause.as_str(),
        "result": result,
        "version": record.version,
        "errors": errors,
    })
}
