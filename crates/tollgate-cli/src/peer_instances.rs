//! The other instances on the same store: what this one publishes to them, and what it receives.
//!
//! A server with a memory store has no peers: publishing completes at once.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::{KeyBuf, Micros};
use tollgate_redis::instances::{
    InstanceChannel, InstanceSink, PublishStatus, SharedOverride, SharedRules,
};
use tollgate_rules::{OverrideChange, key_text};

use crate::live::LiveRules;

/// Longest time that an operator's request waits until the store has a change for the other instances.
const SHARE_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval between two polls of counters.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The other instances. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct PeerInstances(Arc<OnceLock<InstanceChannel>>);

impl PeerInstances {
    /// Starts to exchange changes over this channel.
    pub(crate) fn join(&self, control: InstanceChannel) {
        let _ = self.0.set(control);
    }

    pub(crate) fn control(&self) -> Option<&InstanceChannel> {
        self.0.get()
    }

    /// Waits until the first exchange with the store is done. The caller sets the timeout.
    pub(crate) async fn first_exchange(&self) {
        let Some(control) = self.control() else { return };
        while control.stats().calls == 0 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Publishes an override that was set here; `set` is its JSON.
    pub(crate) fn set_override(
        &self,
        rule: &str,
        key: &KeyBuf,
        set: &Value,
        until: Option<Micros>,
    ) {
        if let Some(control) = self.control() {
            let key = key_text(key);
            let text = json!({ "rule": rule, "key": key, "set": set }).to_string();
            let _ = control.set_override((rule, &key), &text, until);
        }
    }

    pub(crate) fn remove_override(&self, rule: &str, key: &KeyBuf) {
        if let Some(control) = self.control() {
            let key = key_text(key);
            let text = json!({ "rule": rule, "key": key }).to_string();
            let _ = control.remove_override((rule, &key), &text);
        }
    }

    /// Publishes rules that were put here in place of files with this fingerprint.
    pub(crate) fn put_rules(&self, text: &[u8], over: &str) {
        // Rules that are in force are UTF-8.
        if let (Some(control), Ok(text)) = (self.control(), std::str::from_utf8(text)) {
            let _ = control.put_rules(text, over);
        }
    }

    /// Withdraws rules that were put, at all instances.
    pub(crate) fn withdraw_rules(&self) {
        if let Some(control) = self.control() {
            let _ = control.remove_rules();
        }
    }

    /// Waits until the store has the changes made here, so that the other instances learn of them, or for
    /// [`SHARE_TIMEOUT`]. `None` without a shared store.
    pub(crate) async fn wait_until_shared(&self) -> Option<PublishStatus> {
        let control = self.control()?;
        Some(control.published(control.last_change(), SHARE_TIMEOUT).await)
    }
}

/// Receives changes made at other instances, and passes them to the thread that replaces rules.
pub(crate) struct PeerChangeSink {
    pub(crate) live: LiveRules,
    /// Callback with the number of live instances.
    pub(crate) set_instance_count: Box<dyn Fn(u32) + Send + Sync>,
}

impl InstanceSink for PeerChangeSink {
    fn live_instances(&self, count: u32) {
        (self.set_instance_count)(count);
    }

    fn overrides_changed(&self, changed: Vec<SharedOverride>) {
        self.live.receive_overrides(changed);
    }

    fn rules_changed(&self, rules: Option<SharedRules>) {
        self.live.receive_rules(rules);
    }
}

/// Reads an override that [`PeerInstances::set_override`] wrote; `None` if the text is something else.
pub(crate) fn read_override(told: &SharedOverride) -> Option<OverrideChange> {
    let mut entry: Value = serde_json::from_str(&told.text).ok()?;
    let set = match told.removed {
        true => None,
        false => Some(entry.get_mut("set")?.take()),
    };
    let text = |name: &str| entry.get(name).and_then(Value::as_str).map(String::from);
    Some(OverrideChange { rule: text("rule")?, key: text("key")?, set })
}

/// The word for the status in an answer to an operator.
pub(crate) fn sharing_status(told: PublishStatus) -> &'static str {
    match told {
        PublishStatus::Published => "yes",
        PublishStatus::Pending => "later",
        PublishStatus::NoRoom => "no_room",
        PublishStatus::TooLong => "too_long",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_of_others_are_read_and_nonsense_is_not() {
        let told =
            |text: &str, gone| SharedOverride { id: [0; 16], text: text.into(), removed: gone };
        let set = r#"{"rule":"api","key":"user=42","set":{"limits":["5/hour"]}}"#;
        let want = |set| OverrideChange { rule: "api".into(), key: "user=42".into(), set };
        let limits = json!({ "limits": ["5/hour"] });
        assert_eq!(read_override(&told(set, false)), Some(want(Some(limits))));
        assert_eq!(read_override(&told(set, true)), Some(want(None)));
        for text in
            ["", "5", "{}", r#"{"rule":"api","key":"k"}"#, r#"{"rule":5,"key":"k","set":[]}"#]
        {
            assert_eq!(read_override(&told(text, false)), None, "{text}");
        }
    }
}
