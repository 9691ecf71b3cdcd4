//! `/api/keys/{rule}/{key}`: shows or changes one caller under one rule.

use std::borrow::Cow;
use std::time::Duration;

use http::{Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};
use tollgate::{Refusal, Wait};
use tollgate_rules::Override;
use tollgate_rules::credentials::{HIDDEN, shown_typed_key};
use tollgate_rules::keys::{CallerError, KeyLimit, KeyReport, Leniency, OverrideError};
use tollgate_rules::{key_part_texts, key_text};

mod all_rules;

use super::ControlPlane;
use super::guard::AdminCaller;
use super::unique_json::{self, ObjectError};
use crate::listeners::response_body::ResponseBody;
use crate::peer_instances;
use crate::reply;
use crate::settings::parse_duration;
use crate::store::{ChangeConfirmer, ServerCaller};
use crate::telemetry::{LogField, timestamp};

/// Largest grant, in units: more than any limit has.
const GRANT_MAX: u64 = 1 << 53;

/// The error for a user that cannot exist. It does not repeat the name, which may be a key.
const NO_SUCH_USER: &str = "Users are identified by their API keys here, so nobody has this name, and nothing was done: write \
    api_key=KEY, or the hash of the key as in the lists, user=sha256:….";

/// Hint for a key copied from a list that does not show credentials.
const HIDDEN_KEY: &str = "Lists do not show credentials, so this is not the key of a caller, and nothing was done: write \
    the key itself.";

/// Hint for a wrong path.
const PATH_HINT: &str = "Write /api/keys/RULE/KEY, such as /api/keys/api/user=42; \
    blocks also go to all rules, /api/keys/*/user=42.";

/// Hint for a wrong body.
const CHANGES_HINT: &str = "Send one of {\"block\":\"15m\"}, {\"block\":null}, {\"grant\":50}, \
    {\"override\":{\"limits\":[\"100/minute\"],\"until\":\"2027-01-01T00:00:00Z\"}}, \
    {\"override\":null}.";

/// Request to a key.
pub(super) enum KeyRequest<'a> {
    Show,
    Reset,
    /// Change described by this body.
    Change(&'a [u8]),
}

/// Scope of a change.
enum ChangeScope {
    /// Made on this instance, to be sent to the others.
    ThisInstance,
    /// Made in the rule's store, and so for all instances.
    InStore,
    /// Made locally only: the rule's store did not answer.
    NotInStore,
}

impl ControlPlane {
    /// Handles the request; `path` is the part after `/api/keys/`.
    pub(super) async fn key(
        &self,
        path: &str,
        act: KeyRequest<'_>,
        by: AdminCaller,
    ) -> Response<ResponseBody> {
        match self.act_on_key(path, act, by).await {
            Ok(report) => reply::json(StatusCode::OK, Value::Object(report).to_string()),
            Err(refused) => *refused.0,
        }
    }

    async fn act_on_key(
        &self,
        path: &str,
        act: KeyRequest<'_>,
        by: AdminCaller,
    ) -> Result<Map<String, Value>, KeyRequestError> {
        if let Some(key) = path.strip_prefix("*/").or_else(|| path.strip_prefix("%2A/")) {
            return self.act_on_all_rules(key, act, by).await;
        }
        let caller = self.caller(path)?;
        if caller.names_unhashed_user() && !self.is_seen(&caller, &caller.report().await) {
            return Err(bad_request(NO_SUCH_USER));
        }
        match act {
            KeyRequest::Show => Ok(self.report(&caller).await),
            KeyRequest::Reset => {
                let (reset, reached) = self.changes().change(&caller, caller.reset()).await;
                self.audit("a key was reset", by, &caller, &[("found", &reset)]);
                let mut report = self.report(&caller).await;
                report.insert("reset".into(), reset.into());
                let done =
                    if reached { ChangeScope::ThisInstance } else { ChangeScope::NotInStore };
                self.add_sharing_status(&mut report, done).await;
                Ok(report)
            }
            KeyRequest::Change(body) => {
                // Before the change: afterwards something is kept about any caller, also about one that does not exist.
                let was_seen = self.is_seen(&caller, &caller.report().await);
                let done = self.change(&caller, body, by).await?;
                // An override is part of a newer version of the rules.
                let mut report = self.report(&self.caller(path)?).await;
                report.insert("seen".into(), was_seen.into());
                self.add_sharing_status(&mut report, done).await;
                Ok(report)
            }
        }
    }

    /// Adds to the report whether the change applies at all instances, if the store is shared. A change that
    /// missed an unavailable store is not repeated later.
    async fn add_sharing_status(&self, report: &mut Map<String, Value>, done: ChangeScope) {
        if self.peers.control().is_none() {
            // Nothing else keeps an override: a snapshot has counts and blocks.
            if report.get("override").is_some_and(|numbers| numbers["run_time"] == true) {
                report.insert("survives_restart".into(), false.into());
            }
            return;
        }
        let shared = match done {
            ChangeScope::ThisInstance => {
                self.peers.wait_until_shared().await.map_or("no", peer_instances::sharing_status)
            }
            ChangeScope::InStore => "yes",
            ChangeScope::NotInStore => "no",
        };
        report.insert("shared".into(), shared.into());
    }

    fn changes(&self) -> ChangeConfirmer {
        ChangeConfirmer::new(self.store.clone())
    }

    fn caller(&self, path: &str) -> Result<ServerCaller<'_>, KeyRequestError> {
        let parts = path
            .split_once('/')
            .and_then(|(rule, key)| Some((decode_path_part(rule)?, decode_path_part(key)?)));
        let Some((rule, key)) = parts.filter(|(rule, key)| !rule.is_empty() && !key.is_empty())
        else {
            return Err(bad_request(PATH_HINT));
        };
        check_is_shown(&key)?;
        Ok(self.gatekeeper.caller(&rule, &key)?)
    }

    async fn change(
        &self,
        caller: &ServerCaller<'_>,
        body: &[u8],
        by: AdminCaller,
    ) -> Result<ChangeScope, KeyRequestError> {
        let body = unique_json::read_object(body).map_err(|problem| match problem {
            ObjectError::DuplicateField(twice) => bad_request(&twice),
            ObjectError::NotAnObject => bad_request(CHANGES_HINT),
        })?;
        let mut fields = body.iter();
        let (Some((name, value)), None) = (fields.next(), fields.next()) else {
            return Err(bad_request(CHANGES_HINT));
        };
        match (name.as_str(), value) {
            ("block", Value::Null) => {
                let found = caller.unblock().await;
                self.audit("a block was removed", by, caller, &[("found", &found)]);
            }
            ("block", Value::String(text)) => self.block(caller, text, by).await?,
            ("grant", Value::Number(units)) => {
                let units = units.as_u64().filter(|units| (1..=GRANT_MAX).contains(units));
                let units = units.ok_or_else(|| {
                    bad_request(&format!("A grant is a whole number from 1 to {GRANT_MAX}."))
                })?;
                let ((), reached) = self.changes().change(caller, caller.grant(units)).await;
                self.audit("a key was granted units", by, caller, &[("units", &units)]);
                return Ok(if reached { ChangeScope::InStore } else { ChangeScope::NotInStore });
            }
            ("override", Value::Null) => {
                let found = caller.remove_override();
                self.peers.remove_override(&caller.rule().name, caller.key());
                self.audit("an override was removed", by, caller, &[("found", &found)]);
            }
            ("override", fields) => self.set_override(caller, fields, by)?,
            _ => return Err(bad_request(CHANGES_HINT)),
        }
        Ok(ChangeScope::ThisInstance)
    }

    async fn block(
        &self,
        caller: &ServerCaller<'_>,
        text: &str,
        by: AdminCaller,
    ) -> Result<(), KeyRequestError> {
        let duration =
            parse_duration(text).map_err(|problem| bad_request(&format!("block: {problem}.")))?;
        if duration < Duration::from_millis(1) {
            return Err(bad_request("A block lasts at least 1ms; {\"block\":null} removes it."));
        }
        if let Some(leniency) = caller.leniency() {
            return Err(KeyRequestError::of(StatusCode::CONFLICT, block_refusal_text(leniency)));
        }
        if !caller.block(duration).await {
            return Err(KeyRequestError::of(
                StatusCode::SERVICE_UNAVAILABLE,
                "The table of blocks is full: remove some, or, if the store is memory, start with a \
                 larger --max-keys.",
            ));
        }
        // A longer block stays in place.
        let blocked_for = caller.report().await.blocked_for.unwrap_or(Wait::ZERO);
        let blocked_for_ms = blocked_for.millis().unwrap_or(u64::MAX);
        let fields: [LogField<'_>; 2] = [("for", &blocked_for), ("for_ms", &blocked_for_ms)];
        self.audit("a key was blocked", by, caller, &fields);
        Ok(())
    }

    fn set_override(
        &self,
        caller: &ServerCaller<'_>,
        fields: &Value,
        by: AdminCaller,
    ) -> Result<(), KeyRequestError> {
        let set = caller.set_override(fields).map_err(|error| match error {
            OverrideError::Wrong(diagnostics) => KeyRequestError(Box::new(reply::rules_refused(
                "The override is wrong; nothing was set.",
                &diagnostics.to_string(),
            ))),
            OverrideError::TooMany => KeyRequestError::of(
                StatusCode::SERVICE_UNAVAILABLE,
                "Too many overrides are set at run time: remove some, or write them into a rules \
                 file.",
            ),
        })?;
        self.peers.set_override(&caller.rule().name, caller.key(), fields, set.until);
        let limits = limit_texts(&set).join(", ");
        let until = set.until.map_or_else(|| "none".into(), |until| timestamp(until).to_string());
        let survives = self.peers.control().is_some();
        let fields: [LogField<'_>; 3] =
            [("limits", &limits), ("until", &until), ("survives_restart", &survives)];
        self.audit("an override was set", by, caller, &fields);
        Ok(())
    }

    /// Logs an audit line about a caller.
    fn audit(
        &self,
        event: &str,
        by: AdminCaller,
        caller: &ServerCaller<'_>,
        more: &[LogField<'_>],
    ) {
        let key = self.names.log_name(&self.gatekeeper.rules(), caller.key());
        let fields: [LogField<'_>; 2] = [("rule", &caller.rule().name), ("key", &key)];
        self.log_audit(event, by, &[&fields, more].concat());
    }

    /// Returns true if something is kept about a caller, or if it was among the heaviest of the last minutes.
    fn is_seen(&self, caller: &ServerCaller<'_>, report: &KeyReport) -> bool {
        report.is_kept || self.is_recent(caller)
    }

    /// Returns true if a caller was among the heaviest of the last minutes.
    fn is_recent(&self, caller: &ServerCaller<'_>) -> bool {
        let now = self.gatekeeper.now();
        self.metrics.observer.has_recent(caller.rule_hash(), caller.key(), now)
    }

    async fn report(&self, caller: &ServerCaller<'_>) -> Map<String, Value> {
        let report = caller.report().await;
        let seen = self.is_seen(caller, &report);
        let tier = report.tier.as_deref();
        let rules = self.gatekeeper.rules();
        let shown_key = shown_typed_key(caller.key(), &rules.settings().identify);
        let limits: Vec<Value> =
            report.limits.iter().map(|limit| limit_json(limit, tier)).collect();
        let document = json!({
            "rule": &*caller.rule().name,
            "key": key_text(&shown_key),
            "parts": key_part_texts(&shown_key),
            "hash": self.names.hash(caller.key()),
            "mode": super::rules::mode(caller.rule().mode),
            "blocked_for_ms": report.blocked_for.and_then(Wait::millis),
            "soft": caller.rule().soft,
            "seen": seen,
            "tier": report.tier,
            "exempt": report.leniency == Some(Leniency::Exempt),
            "enforced": report.leniency.is_none(),
            "closed": report.refuses_everything,
            "override": report.replaced_by.map(|one| override_json(&one, report.at_run_time)),
            "limits": limits,
        });
        match document {
            Value::Object(report) => report,
            _ => Map::new(),
        }
    }
}

/// An override as JSON; `run_time` tells if it was set at run time.
pub(crate) fn override_json(other: &Override, run_time: bool) -> Value {
    json!({
        "limits": limit_texts(other),
        "until": other.until.map(|until| timestamp(until).to_string()),
        "run_time": run_time,
    })
}

/// The reason for refusing a block that would have no effect: the operator would rely on it.
fn block_refusal_text(leniency: Leniency) -> &'static str {
    match leniency {
        Leniency::Exempt => {
            "This caller is exempt from all rules, so a block would do nothing: take it out of \
             `exempt` first."
        }
        Leniency::Off => "The rule is off, so a block would do nothing: write `mode: enforce`.",
        Leniency::Shadow => {
            "The rule is not enforced for this caller (`mode`), so a block would do nothing: write \
             `mode: enforce`."
        }
        Leniency::Soft => {
            "The rule only warns (`soft: true`), so a block would do nothing: leave out `soft`, or \
             block the caller under another rule."
        }
        Leniency::Unlimited => {
            "The rule is unlimited and asks no store, so a block would do nothing: set an override with \
             limits instead, or leave out `unlimited`."
        }
    }
}

/// One limit of a caller as JSON.
fn limit_json(one: &KeyLimit, tier: Option<&str>) -> Value {
    let decision = &one.decision;
    // Unknown while the store is unavailable.
    let known = decision.outcome().is_known();
    json!({
        "tier": one.tier,
        "current": one.tier.is_some() && one.tier.as_deref() == tier,
        "limit": one.limit,
        "rate": one.rate,
        "max": one.capacity,
        "remaining": known.then(|| decision.remaining()),
        "balance": known.then_some(one.balance),
        "allowed": decision.allowed(),
        "retry_after_ms": decision.retry_after().millis(),
        "reset_after_ms": decision.reset_after().millis().filter(|_| known),
        "reason": decision.refusal().map(Refusal::name),
        "decided_by": decision.decided_by().name(),
    })
}

fn limit_texts(other: &Override) -> Vec<&str> {
    other.limits.iter().map(|limit| &*limit.text).collect()
}

/// Decodes a segment of a path; `None` if it is not UTF-8.
fn decode_path_part(part: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(part).decode_utf8().ok()
}

/// Error response to a request that changed nothing.
struct KeyRequestError(Box<Response<ResponseBody>>);

impl KeyRequestError {
    fn of(status: StatusCode, message: &str) -> KeyRequestError {
        KeyRequestError(reply::error(status, message).into())
    }
}

impl From<CallerError> for KeyRequestError {
    fn from(error: CallerError) -> KeyRequestError {
        match error {
            CallerError::NoRule(problem) => {
                KeyRequestError::of(StatusCode::NOT_FOUND, &problem.to_string())
            }
            CallerError::BadKey(problem) => bad_request(&problem.to_string()),
        }
    }
}

/// Refuses a key copied from a list that does not show credentials.
fn check_is_shown(key: &str) -> Result<(), KeyRequestError> {
    match key.contains(HIDDEN) {
        true => Err(bad_request(HIDDEN_KEY)),
        false => Ok(()),
    }
}

fn bad_request(message: &str) -> KeyRequestError {
    KeyRequestError::of(StatusCode::BAD_REQUEST, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_paths_are_decoded() {
        let rows = [
            ("user=42", Some("user=42")),
            ("user%3D42", Some("user=42")),
            ("a%2Fb%2fc", Some("a/b/c")),
            ("100%", Some("100%")),
            ("%zz%4", Some("%zz%4")),
            ("%+1", Some("%+1")),
            ("%C3%A9", Some("\u{e9}")),
            ("%FF", None),
        ];
        for (part, want) in rows {
            assert_eq!(decode_path_part(part).as_deref(), want, "{part}");
        }
    }
}
