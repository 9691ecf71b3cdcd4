//! `/api/keys/{rule}/{key}`: one caller under one rule, looked at or changed.

use std::borrow::Cow;
use std::time::Duration;

use http::{Response, StatusCode};
use serde_json::{Map, Value, json};
use tollgate::{Refusal, Wait};
use tollgate_rules::keys::{CallerError, KeyLimit, Leniency, OverrideError};
use tollgate_rules::{Override, key_text};

use super::ControlPlane;
use super::guard::AdminCaller;
use super::unique_json::{self, ObjectError};
use crate::listeners::connection::ResponseBody;
use crate::peer_instances;
use crate::reply;
use crate::settings::parse_duration;
use crate::store::{ChangeConfirmer, ServerCaller};
use crate::telemetry::{LogField, timestamp};

/// The most units that a grant can give: more than any limit has.
const GRANT_MAX: u64 = 1 << 53;

/// What to write after `/api/keys`.
const PATH_HINT: &str = "Write /api/keys/RULE/KEY, such as /api/keys/api/user=42.";

/// What to send to it.
const CHANGES_HINT: &str = "Send one of {\"block\":\"15m\"}, {\"block\":null}, {\"grant\":50}, \
    {\"override\":{\"limits\":[\"100/minute\"],\"until\":\"2027-01-01T00:00:00Z\"}}, \
    {\"override\":null}.";

/// What is to be done.
pub(super) enum KeyRequest<'a> {
    Show,
    Reset,
    /// As the body says.
    Change(&'a [u8]),
}

/// Where it was done.
enum ChangeScope {
    /// Here, for others to be told of.
    ThisInstance,
    /// In the store that the rule is on, and so for all.
    InStore,
    /// That did not answer.
    NotInStore,
}

impl ControlPlane {
    /// Does it; `path` is what follows `/api/keys/`.
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
        let caller = self.caller(path)?;
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
                let done = self.change(&caller, body, by).await?;
                // What was set is part of a newer version of the rules.
                let mut report = self.report(&self.caller(path)?).await;
                self.add_sharing_status(&mut report, done).await;
                Ok(report)
            }
        }
    }

    /// Whether what was done holds at all instances on the store, if there can be others. What is
    /// done in the store itself is not made up for when it is back.
    async fn add_sharing_status(&self, report: &mut Map<String, Value>, done: ChangeScope) {
        if self.peers.control().is_none() {
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
        ChangeConfirmer(self.store.clone())
    }

    fn caller(&self, path: &str) -> Result<ServerCaller<'_>, KeyRequestError> {
        let parts = path
            .split_once('/')
            .and_then(|(rule, key)| Some((decode_path_part(rule)?, decode_path_part(key)?)));
        let Some((rule, key)) = parts.filter(|(rule, key)| !rule.is_empty() && !key.is_empty())
        else {
            return Err(bad_request(PATH_HINT));
        };
        self.gatekeeper.caller(&rule, &key).map_err(|error| match error {
            CallerError::NoRule(problem) => {
                KeyRequestError::of(StatusCode::NOT_FOUND, &problem.to_string())
            }
            CallerError::BadKey(problem) => bad_request(&problem.to_string()),
        })
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
                self.audit("a block was lifted", by, caller, &[("found", &found)]);
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
            return Err(bad_request("A block lasts at least 1ms; {\"block\":null} lifts it."));
        }
        if let Some(leniency) = caller.leniency() {
            return Err(KeyRequestError::of(StatusCode::CONFLICT, block_refusal_text(leniency)));
        }
        if !caller.block(duration).await {
            return Err(KeyRequestError::of(
                StatusCode::SERVICE_UNAVAILABLE,
                "The table of blocks is full: lift some, or, if the store is memory, start with a \
                 larger --max-keys.",
            ));
        }
        // A longer one stays.
        let blocked_for = caller.report().await.blocked_for.unwrap_or(Wait::ZERO);
        self.audit("a key was blocked", by, caller, &[("for", &blocked_for)]);
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
                "There are too many overrides set at run time: remove some, or write them into a \
                 rules file.",
            ),
        })?;
        self.peers.set_override(&caller.rule().name, caller.key(), fields, set.until);
        let limits = limit_texts(&set).join(", ");
        let until = set.until.map_or_else(|| "none".into(), |until| timestamp(until).to_string());
        let fields: [LogField<'_>; 2] = [("limits", &limits), ("until", &until)];
        self.audit("an override was set", by, caller, &fields);
        Ok(())
    }

    /// Who did what to whom.
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

    async fn report(&self, caller: &ServerCaller<'_>) -> Map<String, Value> {
        let report = caller.report().await;
        let limits: Vec<Value> = report.limits.iter().map(limit_json).collect();
        let document = json!({
            "rule": &*caller.rule().name,
            "key": key_text(caller.key()),
            "hash": self.names.hash(caller.key()),
            "mode": super::rules::mode(caller.rule().mode),
            "blocked_for_ms": report.blocked_for.and_then(Wait::millis),
            "soft": caller.rule().soft,
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

/// An override, and whether it was set at run time.
pub(super) fn override_json(other: &Override, run_time: bool) -> Value {
    json!({
        "limits": limit_texts(other),
        "until": other.until.map(|until| timestamp(until).to_string()),
        "run_time": run_time,
    })
}

/// A block that nobody would feel is worse than none: whoever set it believes in it.
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

/// What one limit says of a caller.
fn limit_json(one: &KeyLimit) -> Value {
    let decision = &one.decision;
    // While the store does not answer nobody knows.
    let known = decision.outcome().is_known();
    json!({
        "tier": one.tier,
        "limit": one.limit,
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

/// A part of a path; `None` if it is not UTF-8.
fn decode_path_part(part: &str) -> Option<Cow<'_, str>> {
    if !part.contains('%') {
        return Some(part.into());
    }
    let (mut bytes, mut rest) = (Vec::with_capacity(part.len()), part.as_bytes());
    while let [byte, after @ ..] = rest {
        let escaped = (*byte == b'%').then(|| after.get(..2)).flatten();
        let escaped = escaped.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let escaped = escaped.and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escaped.unwrap_or(*byte));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Why nothing was done.
struct KeyRequestError(Box<Response<ResponseBody>>);

impl KeyRequestError {
    fn of(status: StatusCode, message: &str) -> KeyRequestError {
        KeyRequestError(reply::error(status, message).into())
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
