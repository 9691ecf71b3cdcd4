//! `PUT /api/rules` and `POST /api/reload`: replaces the rules in force.

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use tollgate_redis::instances::PublishStatus;
use tollgate_rules::Changes;
use tollgate_rules::rule::Mode;

use super::ControlPlane;
use super::guard::AdminCaller;
use crate::listeners::response_body::ResponseBody;
use crate::live::{FailedReload, ReloadOutcome, RulesOrigin};
use crate::peer_instances;
use crate::reply;

impl ControlPlane {
    /// Replaces the rules in force.
    pub(super) async fn put_rules(&self, text: Bytes, by: AdminCaller) -> Response<ResponseBody> {
        let outcome = self.live.put(text).await;
        let told = self.peers.wait_until_shared().await;
        self.reload_response("new rules were sent", outcome, by, Some(told))
    }

    /// Reads the files again.
    pub(super) async fn reload(&self, by: AdminCaller) -> Response<ResponseBody> {
        let outcome = self.live.reload().await;
        let credentials = self.live.status().credentials_failed.clone();
        let refused = credentials.and_then(|failed| credentials_failed_response(&outcome, &failed));
        let answer = self.reload_response("a reload was requested", outcome, by, None);
        refused.unwrap_or(answer)
    }

    fn reload_response(
        &self,
        event: &str,
        outcome: ReloadOutcome,
        by: AdminCaller,
        put: Option<Option<PublishStatus>>,
    ) -> Response<ResponseBody> {
        let (result, mut document) = match outcome {
            ReloadOutcome::Loaded { version, changes, warnings } => {
                let changes = changes_json(&changes);
                let result = json!({ "version": version, "result": "loaded", "changes": changes,
                    "warnings": warnings });
                ("loaded", result)
            }
            ReloadOutcome::Unchanged { version } => {
                ("unchanged", json!({ "version": version, "result": "unchanged" }))
            }
            ReloadOutcome::Refused { diagnostics, errors } => {
                self.log_audit(event, by, &[("result", &"refused"), ("errors", &errors)]);
                let plural = if errors == 1 { "" } else { "s" };
                let message =
                    format!("The rules have {errors} error{plural}; the rules in force stay.");
                return reply::rules_refused(&message, &diagnostics);
            }
            ReloadOutcome::Unable(why) => {
                self.log_audit(event, by, &[("result", &"unable")]);
                return reply::error(StatusCode::SERVICE_UNAVAILABLE, why);
            }
        };
        self.log_audit(event, by, &[("result", &result), ("version", &document["version"])]);
        if let Some(told) = put {
            document["message"] = put_lifetime(told).into();
            if let Some(told) = told {
                document["shared"] = peer_instances::sharing_status(told).into();
            }
        }
        reply::json(StatusCode::OK, document.to_string())
    }
}

/// The response to a reload in which the tokens or the certificate were wrong, whatever the result of the
/// rules; `None` if nothing was read.
fn credentials_failed_response(
    rules: &ReloadOutcome,
    failed: &FailedReload,
) -> Option<Response<ResponseBody>> {
    let (rules, found) = match rules {
        ReloadOutcome::Loaded { version, .. } => {
            (format!("The new rules are in force ({version})"), "")
        }
        ReloadOutcome::Unchanged { version } => {
            (format!("The rules are unchanged ({version})"), "")
        }
        ReloadOutcome::Refused { diagnostics, errors } => {
            (format!("The rules are wrong too ({errors}); the rules in force stay"), &**diagnostics)
        }
        ReloadOutcome::Unable(_) => return None,
    };
    let message =
        format!("The tokens or the certificate are wrong; the old ones stay in force. {rules}.");
    let diagnostics = format!("{}\n{found}", failed.diagnostics);
    Some(reply::rules_refused(&message, diagnostics.trim_end()))
}

/// Tells the operator how long rules apply that were put, and where.
fn put_lifetime(told: Option<PublishStatus>) -> &'static str {
    match told {
        None => "In force until the files change, a reload or a restart: not written to any file.",
        Some(PublishStatus::Published) => {
            "In force until the files change or a reload, also after a restart: not written to any \
             file, but kept in the store. Instances on the same store with the same files use these \
             rules as well."
        }
        Some(PublishStatus::Pending) => {
            "In force until the files change or a reload: not written to any file. The store is \
             unavailable: once it is back, other instances with the same files use these rules as \
             well, and only then do they survive a restart."
        }
        Some(PublishStatus::NoRoom) => {
            "In force until the files change, a reload or a restart: not written to any file. The \
             store has no room for these rules: they apply on this instance only."
        }
        Some(PublishStatus::TooLong) => {
            "In force until the files change, a reload or a restart: not written to any file. These \
             rules are longer than 1 MiB, which is too long to share: they apply on this instance only."
        }
    }
}

/// A mode as in a rules file; a share as its percentage.
pub(super) fn mode(mode: Mode) -> String {
    match mode {
        Mode::Enforce => "enforce".into(),
        Mode::Shadow => "shadow".into(),
        Mode::Off => "off".into(),
        Mode::Share(share) => format!("{}%", f64::from(share) / 100.0),
    }
}

pub(super) fn origin(origin: &RulesOrigin) -> &'static str {
    match origin {
        RulesOrigin::Files(_) => "files",
        RulesOrigin::Limit => "limit",
        RulesOrigin::Demo => "demo",
        RulesOrigin::Put => "api",
    }
}

pub(super) fn changes_json(changes: &Changes) -> Value {
    let Changes { added, removed, changed, fresh, unchanged, settings, overrides } = changes;
    let names = |names: &[std::sync::Arc<str>]| -> Vec<Value> {
        names.iter().map(|name| Value::from(&**name)).collect()
    };
    json!({
        "added": names(added),
        "removed": names(removed),
        "changed": names(changed),
        "fresh": names(fresh),
        "unchanged": unchanged,
        "settings": settings,
        "overrides": overrides,
    })
}
