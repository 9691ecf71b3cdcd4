//! `/api/keys/{rule}/{key}`: one caller under one rule, looked at or changed.

use std::borrow::Cow;
use std::time::Duration;

use http::{Response, StatusCode};
use serde_json::{Map, Value, json};
use tollgate::{Refusal, Wait};
use tollgate_rules::keys::{CallerError, KeyLimit, Leniency, OverrideError};
use tollgate_rules::{Caller, Override, key_text};

use super::ControlPlane;
use super::guard::By;
use super::unique_json::{self, NoObject};
use crate::listeners::connection::Body;
use crate::others;
use crate::reply;
use crate::settings::parse_duration;
use crate::store::ServerStore;
use crate::telemetry::{Field, timestamp};

/// The most units that a grant can give: more than any limit has.
const GRANT_MAX: u64 = 1 << 53;

/// What to write after `/api/keys`.
const FORM: &str = "Write /api/keys/RULE/KEY, such as /api/keys/api/user=42.";

/// What to send to it.
const CHANGES: &str = "Send one of {\"block\":\"15m\"}, {\"block\":null}, {\"grant\":50}, \
    {\"override\":{\"limits\":[\"100/minute\"],\"until\":\"2027-01-01T00:00:00Z\"}}, \
    {\"override\":null}.";

/// What is to be done.
pub(super) enum Act<'a> {
    Show,
    Reset,
    /// As the body says.
    Change(&'a [u8]),
}

/// Where it was done.
enum Done {
    /// Here, for others to be told of.
    Here,
    /// In the store that the rule is on, and so for all.
    InStore,
    /// That did not answer.
    NotInStore,
}

impl ControlPlane {
    /// Does it; `path` is what follows `/api/keys/`.
    pub(super) async fn key(&self, path: &str, act: Act<'_>, by: By) -> Response<Body> {
        match self.act_on_key(path, act, by).await {
            Ok(report) => reply::json(StatusCode::OK, Value::Object(report).to_string()),
            Err(refused) => *refused.0,
        }
    }

    async fn act_on_key(
        &self,
        path: &str,
        act: Act<'_>,
        by: By,
    ) -> Result<Map<String, Value>, Refused> {
        let caller = self.caller(path)?;
        match act {
            Act::Show => Ok(self.report(&caller).await),
            Act::Reset => {
                let store = self.gatekeeper.limiter().store();
                let (reset, reached) = store.change(&caller, caller.reset()).await;
                self.audit("a key was reset", by, &caller, &[("found", &reset)]);
                let mut report = self.report(&caller).await;
                report.insert("reset".into(), reset.into());
                let done = if reached { Done::Here } else { Done::NotInStore };
                self.say_whether_shared(&mut report, done).await;
                Ok(report)
            }
            Act::Change(body) => {
                let done = self.change(&caller, body, by).await?;
                // What was set is part of a newer version of the rules.
                let mut report = self.report(&self.caller(path)?).await;
                self.say_whether_shared(&mut report, done).await;
                Ok(report)
            }
        }
    }

    /// Whether what was done holds at all instances on the store, if there can be others. What is
    /// done in the store itself is not made up for when it is back.
    async fn say_whether_shared(&self, report: &mut Map<String, Value>, done: Done) {
        if self.others.control().is_none() {
            return;
        }
        let shared = match done {
            Done::Here => self.others.told().await.map_or("no", others::shared),
            Done::InStore => "yes",
            Done::NotInStore => "no",
        };
        report.insert("shared".into(), shared.into());
    }

    fn caller(&self, path: &str) -> Result<Caller<'_, ServerStore>, Refused> {
        let parts =
            path.split_once('/').and_then(|(rule, key)| Some((decode(rule)?, decode(key)?)));
        let Some((rule, key)) = parts.filter(|(rule, key)| !rule.is_empty() && !key.is_empty())
        else {
            return Err(bad(FORM));
        };
        self.gatekeeper.caller(&rule, &key).map_err(|error| match error {
            CallerError::NoRule(problem) => {
                Refused::of(StatusCode::NOT_FOUND, &problem.to_string())
            }
            CallerError::BadKey(problem) => bad(&problem.to_string()),
        })
    }

    async fn change(
        &self,
        caller: &Caller<'_, ServerStore>,
        body: &[u8],
        by: By,
    ) -> Result<Done, Refused> {
        let body = unique_json::object(body).map_err(|problem| match problem {
            NoObject::Twice(twice) => bad(&twice),
            NoObject::Other => bad(CHANGES),
        })?;
        let mut fields = body.iter();
        let (Some((name, value)), None) = (fields.next(), fields.next()) else {
            return Err(bad(CHANGES));
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
                    bad(&format!("A grant is a whole number from 1 to {GRANT_MAX}."))
                })?;
                let store = self.gatekeeper.limiter().store();
                let ((), reached) = store.change(caller, caller.grant(units)).await;
                self.audit("a key was granted units", by, caller, &[("units", &units)]);
                return Ok(if reached { Done::InStore } else { Done::NotInStore });
            }
            ("override", Value::Null) => {
                let found = caller.remove_override();
                self.others.remove_override(&caller.rule().name, caller.key());
                self.gatekeeper.limiter().store().forget_refusals();
                self.audit("an override was removed", by, caller, &[("found", &found)]);
            }
            ("override", fields) => self.set_override(caller, fields, by)?,
            _ => return Err(bad(CHANGES)),
        }
        Ok(Done::Here)
    }

    async fn block(
        &self,
        caller: &Caller<'_, ServerStore>,
        text: &str,
        by: By,
    ) -> Result<(), Refused> {
        let duration =
            parse_duration(text).map_err(|problem| bad(&format!("block: {problem}.")))?;
        if duration < Duration::from_millis(1) {
            return Err(bad("A block lasts at least 1ms; {\"block\":null} lifts it."));
        }
        if let Some(leniency) = caller.lenient() {
            return Err(Refused::of(StatusCode::CONFLICT, why_no_block(leniency)));
        }
        if !caller.block(duration).await {
            return Err(Refused::of(
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
        caller: &Caller<'_, ServerStore>,
        fields: &Value,
        by: By,
    ) -> Result<(), Refused> {
        let set = caller.set_override(fields).map_err(|error| match error {
            OverrideError::Wrong(diagnostics) => Refused(Box::new(reply::rules_refused(
                "The override is wrong; nothing was set.",
                &diagnostics.to_string(),
            ))),
            OverrideError::TooMany => Refused::of(
                StatusCode::SERVICE_UNAVAILABLE,
                "There are too many overrides set at run time: remove some, or write them into a \
                 rules file.",
            ),
        })?;
        self.others.set_override(&caller.rule().name, caller.key(), fields, set.until);
        self.gatekeeper.limiter().store().forget_refusals();
        let limits = texts(&set).join(", ");
        let until = set.until.map_or_else(|| "none".into(), |until| timestamp(until).to_string());
        let fields: [Field<'_>; 2] = [("limits", &limits), ("until", &until)];
        self.audit("an override was set", by, caller, &fields);
        Ok(())
    }

    /// Who did what to whom.
    fn audit(&self, event: &str, by: By, caller: &Caller<'_, ServerStore>, more: &[Field<'_>]) {
        let key = self.names.in_logs(&self.gatekeeper.rules(), caller.key());
        let fields: [Field<'_>; 2] = [("rule", &caller.rule().name), ("key", &key)];
        self.tell(event, by, &[&fields, more].concat());
    }

    async fn report(&self, caller: &Caller<'_, ServerStore>) -> Map<String, Value> {
        let report = caller.report().await;
        let limits: Vec<Value> = report.limits.iter().map(limit).collect();
        let document = json!({
            "rule": &*caller.rule().name,
            "key": key_text(caller.key()),
            "hash": self.names.hash(caller.key()),
            "mode": super::rules::mode(caller.rule().mode),
            "blocked_for_ms": report.blocked_for.and_then(Wait::millis),
            "soft": caller.rule().soft,
            "exempt": report.lenient == Some(Leniency::Exempt),
            "enforced": report.lenient.is_none(),
            "closed": report.closed,
            "override": report.replaced_by.map(|one| override_of(&one, report.at_run_time)),
            "limits": limits,
        });
        match document {
            Value::Object(report) => report,
            _ => Map::new(),
        }
    }
}

/// An override, and whether it was set at run time.
pub(super) fn override_of(other: &Override, run_time: bool) -> Value {
    json!({
        "limits": texts(other),
        "until": other.until.map(|until| timestamp(until).to_string()),
        "run_time": run_time,
    })
}

/// A block that nobody would feel is worse than none: whoever set it believes in it.
fn why_no_block(leniency: Leniency) -> &'static str {
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
fn limit(one: &KeyLimit) -> Value {
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

fn texts(other: &Override) -> Vec<&str> {
    other.limits.iter().map(|limit| &*limit.text).collect()
}

/// A part of a path; `None` if it is not UTF-8.
fn decode(part: &str) -> Option<Cow<'_, str>> {
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
struct Refused(Box<Response<Body>>);

impl Refused {
    fn of(status: StatusCode, message: &str) -> Refused {
        Refused(reply::error(status, message).into())
    }
}

fn bad(message: &str) -> Refused {
    Refused::of(StatusCode::BAD_REQUEST, message)
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
            assert_eq!(decode(part).as_deref(), want, "{part}");
        }
    }
}
