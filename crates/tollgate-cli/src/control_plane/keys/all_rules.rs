//! `POST /api/keys/*/KEY`: blocks or unblocks one caller in every rule that counts by this fact.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Map, Value, json};
use tollgate_rules::credentials::shown_typed_key;
use tollgate_rules::key_part_texts;
use tollgate_rules::keys::{AllRulesCallers, RuleLeftOut};

use super::{
    AdminCaller, ChangeScope, ControlPlane, KeyRequest, KeyRequestError, NO_SUCH_USER, bad_request,
    block_refusal_text, check_is_shown, decode_path_part,
};
use crate::control_plane::unique_json;
use crate::settings::parse_duration;
use crate::store::ServerCaller;
use crate::telemetry::LogField;

/// Hint for a wrong request.
const HINT: &str = "All rules take POST with {\"block\":\"15m\"} or {\"block\":null} and a key with its fact, such as \
    /api/keys/*/user=42.";

impl ControlPlane {
    /// Blocks or unblocks a caller in all rules.
    pub(super) async fn act_on_all_rules(
        &self,
        key: &str,
        act: KeyRequest<'_>,
        by: AdminCaller,
    ) -> Result<Map<String, Value>, KeyRequestError> {
        let KeyRequest::Change(body) = act else { return Err(bad_request(HINT)) };
        let block = read_block(body)?;
        let Some(key) = decode_path_part(key) else { return Err(bad_request(HINT)) };
        check_is_shown(&key)?;
        let AllRulesCallers { callers, left_out } = self.gatekeeper.callers_in_all_rules(&key)?;
        let Some(first) = callers.first() else { return Err(bad_request(HINT)) };
        // Before the block, which is kept about any caller, also about one that does not exist.
        let was_seen = self.is_seen_in_any(&callers).await;
        if first.names_unhashed_user() && !was_seen {
            return Err(bad_request(NO_SUCH_USER));
        }
        let name = {
            let rules = self.gatekeeper.rules();
            let shown = shown_typed_key(first.key(), &rules.settings().identify);
            key_part_texts(&shown).concat()
        };
        let (mut done, mut skipped) = (Vec::new(), Vec::new());
        for caller in &callers {
            match change_block(caller, block).await {
                Ok(true) => done.push(caller.rule().name.to_string()),
                Ok(false) => {}
                Err(reason) => skipped.push((caller.rule().name.to_string(), reason.into())),
            }
        }
        let reason = |RuleLeftOut { rule, reason }: RuleLeftOut| (rule.into(), reason.to_string());
        skipped.extend(left_out.into_iter().map(reason));
        if block.is_some() && done.is_empty() {
            let (rule, reason) = &skipped[0];
            let message = format!("The caller was blocked under no rule. {rule}: {reason}");
            return Err(KeyRequestError::of(StatusCode::CONFLICT, &message));
        }
        self.audit_all_rules(block, by, first, done.len());
        let done_field = if block.is_some() { "blocked" } else { "unblocked" };
        let skipped =
            skipped.iter().map(|(rule, reason)| json!({ "rule": rule, "reason": reason }));
        let mut report = Map::new();
        report.insert("key".into(), name.into());
        report.insert("seen".into(), was_seen.into());
        report.insert(done_field.into(), done.into());
        report.insert("skipped".into(), skipped.collect());
        self.add_sharing_status(&mut report, ChangeScope::ThisInstance).await;
        Ok(report)
    }

    /// Logs an audit line about a caller under all rules.
    fn audit_all_rules(
        &self,
        block: Option<Duration>,
        by: AdminCaller,
        caller: &ServerCaller<'_>,
        rules: usize,
    ) {
        let event = match block {
            Some(_) => "a key was blocked under all rules",
            None => "blocks of a key were removed under all rules",
        };
        let key = self.names.log_name(&self.gatekeeper.rules(), caller.key());
        let fields: [LogField<'_>; 2] = [("key", &key), ("rules", &rules)];
        self.log_audit(event, by, &fields);
    }

    /// Returns true if the caller is seen under any of the rules. The list of recent callers, which needs no store, comes
    /// first.
    async fn is_seen_in_any(&self, callers: &[ServerCaller<'_>]) -> bool {
        if callers.iter().any(|caller| self.is_recent(caller)) {
            return true;
        }
        for caller in callers {
            if caller.report().await.is_kept {
                return true;
            }
        }
        false
    }
}

/// Blocks a caller under its rule, or removes the block. Returns false if there was none to remove, or the reason why the
/// rule is left out.
async fn change_block(
    caller: &ServerCaller<'_>,
    block: Option<Duration>,
) -> Result<bool, &'static str> {
    let Some(duration) = block else { return Ok(caller.unblock().await) };
    if let Some(leniency) = caller.leniency() {
        return Err(block_refusal_text(leniency));
    }
    match caller.block(duration).await {
        true => Ok(true),
        false => Err("the table of blocks is full"),
    }
}

/// The duration of the block that a body asks for; `None` removes blocks.
fn read_block(body: &[u8]) -> Result<Option<Duration>, KeyRequestError> {
    let body = unique_json::read_object(body).map_err(|_| bad_request(HINT))?;
    match body.get("block") {
        Some(Value::Null) if body.len() == 1 => Ok(None),
        Some(Value::String(text)) if body.len() == 1 => {
            let duration = parse_duration(text)
                .map_err(|problem| bad_request(&format!("block: {problem}.")))?;
            match duration < Duration::from_millis(1) {
                true => Err(bad_request(HINT)),
                false => Ok(Some(duration)),
            }
        }
        _ => Err(bad_request(HINT)),
    }
}
