//! Changes made at other instances on the same store: rules that were put there, and overrides.
//!
//! Rules that were put replace files with a certain content, at every instance, until other rules are put or
//! an operator requests a reload. An instance with other files keeps its files, and uses the rules that were
//! put as soon as its files have that content. So instances with the same files have the same rules,
//! whatever was in their files before.

use std::collections::HashMap;
use std::sync::PoisonError;

use aws_lc_rs::digest::{Context, SHA256};
use tollgate_redis::instances::{OVERRIDES_MAX, SharedOverride, SharedRules};
use tollgate_rules::{Diagnostic, OverrideChange, Problem, RuleSet};

use super::origin::RulesContent;
use super::reloader::Reloader;
use super::{LiveRules, Message, ReloadCause};
use crate::peer_instances::{self, PeerInstances};
use crate::telemetry::LogField;

/// Changes received since the thread last looked.
#[derive(Default)]
pub(super) struct PeerInbox {
    rules: Option<Option<SharedRules>>,
    /// The latest state of each override. Bound: twice `OVERRIDES_MAX`; further ones are dropped until the
    /// thread looks.
    overrides: HashMap<[u8; 16], SharedOverride>,
    /// Number of overrides dropped for lack of room.
    dropped: u64,
}

/// Changes from other instances that the thread knows.
#[derive(Default)]
pub(super) struct PeerChanges {
    pub(super) peers: PeerInstances,
    /// The rules that were put last, at any instance.
    offered: Option<OfferedRules>,
    /// Overrides that the rules in force do not allow, such as for a rule that only other instances have
    /// yet. Bound: `OVERRIDES_MAX`.
    waiting_overrides: HashMap<[u8; 16], OverrideChange>,
}

/// Rules that were put, and their state here.
struct OfferedRules {
    text: Box<[u8]>,
    /// The fingerprint of the files that they replace.
    files_fingerprint: Box<str>,
    /// True if our files have that fingerprint and the rules have been applied, or found invalid.
    applied: bool,
    /// True if they were put here, or at an instance with our secret.
    verified: bool,
}

impl LiveRules {
    /// Receives rules that were put at another instance, or their withdrawal.
    pub(crate) fn receive_rules(&self, rules: Option<SharedRules>) {
        self.add_to_inbox(|heard| heard.rules = Some(rules));
    }

    /// Receives overrides that were set or removed at another instance.
    pub(crate) fn receive_overrides(&self, changed: Vec<SharedOverride>) {
        self.add_to_inbox(|heard| {
            for one in changed {
                let room = heard.overrides.len() < 2 * OVERRIDES_MAX;
                match room || heard.overrides.contains_key(&one.id) {
                    true => drop(heard.overrides.insert(one.id, one)),
                    false => heard.dropped += 1,
                }
            }
        });
    }

    fn add_to_inbox(&self, add: impl FnOnce(&mut PeerInbox)) {
        add(&mut self.state.peer_inbox.lock().unwrap_or_else(PoisonError::into_inner));
        // If the channel is full, the thread is about to wake up anyway.
        let _ = self.state.messages.try_send(Message::Wake);
    }

    fn take_inbox(&self) -> PeerInbox {
        let mut heard = self.state.peer_inbox.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *heard)
    }
}

impl Reloader {
    pub(super) fn set_peers(&mut self, others: PeerInstances) {
        self.peer_changes.peers = others;
    }

    /// Applies the changes from other instances.
    pub(super) fn apply_peer_changes(&mut self) {
        let PeerInbox { rules, overrides, dropped } = self.live.take_inbox();
        match rules {
            None => {}
            Some(Some(SharedRules { text, replaced_fingerprint: over, verified, .. })) => {
                let text = text.into_boxed_bytes();
                self.peer_changes.offered =
                    Some(OfferedRules { text, files_fingerprint: over, applied: false, verified });
                if !self.apply_offered_rules() {
                    self.logs.info("ignored rules set on another instance: its rules files differ from this server's", &[]);
                }
            }
            Some(None) => {
                self.peer_changes.offered = None;
                if self.files_when_put.is_some() {
                    self.reload(ReloadCause::ReloadAtPeer);
                }
            }
        }
        if !overrides.is_empty() {
            self.apply_peer_overrides(overrides);
        }
        self.warn_of_dropped(dropped);
    }

    /// Applies rules that were put if they replace our files. Returns true if they do.
    pub(super) fn apply_offered_rules(&mut self) -> bool {
        let ours = content_fingerprint(&self.files_input.content);
        let Some(offered) = &mut self.peer_changes.offered else { return false };
        let is_for_us = Some(&*offered.files_fingerprint) == ours.as_deref();
        let is_due = is_for_us && !offered.applied;
        offered.applied = is_for_us;
        if is_due {
            let (text, verified) = (offered.text.clone(), offered.verified);
            let cause = match verified {
                true => ReloadCause::PutAtPeer,
                false => ReloadCause::PutAtUnknownPeer,
            };
            self.put_for(&text, cause);
        }
        is_for_us
    }

    /// Publishes rules that were put here, for instances with the same files.
    pub(super) fn publish_put_rules(&mut self, text: &[u8]) {
        self.peer_changes.offered = None;
        let over = content_fingerprint(&self.files_input.content);
        if let (Some(over), Some(_)) = (over, self.peer_changes.peers.control()) {
            self.peer_changes.peers.put_rules(text, &over);
            let (text, over) = (text.into(), over.into());
            self.peer_changes.offered =
                Some(OfferedRules { text, files_fingerprint: over, applied: true, verified: true });
        }
    }

    /// Withdraws rules that were put, at all instances, after a requested reload.
    pub(super) fn withdraw_put_rules(&mut self) {
        self.peer_changes.offered = None;
        self.peer_changes.peers.withdraw_rules();
    }

    /// Returns true if rules would send traffic elsewhere, or take other callers for granted, than those in
    /// force.
    pub(super) fn redirects(&self, rules: &RuleSet) -> bool {
        let in_force = self.gatekeeper.rules();
        let (now, then) = (in_force.settings(), rules.settings());
        now.gateway != then.gateway || now.identify != then.identify
    }

    fn apply_peer_overrides(&mut self, heard: HashMap<[u8; 16], SharedOverride>) {
        let (mut ids, mut changes, mut strange) = (Vec::new(), Vec::new(), 0_u64);
        for (id, told) in heard {
            self.peer_changes.waiting_overrides.remove(&id);
            match peer_instances::read_override(&told) {
                Some(change) => {
                    ids.push(id);
                    changes.push(change);
                }
                None => strange += 1,
            }
        }
        let heard = changes.len();
        self.change_overrides(&ids, changes);
        let waiting = self.peer_changes.waiting_overrides.len();
        let fields: [LogField<'_>; 3] =
            [("changed", &heard), ("waiting", &waiting), ("not_understood", &strange)];
        self.logs.info("overrides were changed at another instance", &fields);
    }

    /// Tries the waiting overrides again with new rules.
    pub(super) fn retry_overrides(&mut self) {
        if !self.peer_changes.waiting_overrides.is_empty() {
            let waiting = std::mem::take(&mut self.peer_changes.waiting_overrides);
            let (ids, changes): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
            self.change_overrides(&ids, changes);
        }
    }

    /// Warns that overrides of other instances do not apply here.
    fn warn_of_dropped(&self, dropped: u64) {
        if dropped > 0 {
            let event = "overrides of other instances do not apply here, because too many came at \
                         once; a restart reads them again";
            self.logs.warn(event, &[("dropped", &dropped)]);
        }
    }

    fn change_overrides(&mut self, ids: &[[u8; 16]], changes: Vec<OverrideChange>) {
        let left_out = self.gatekeeper.change_many_overrides(&changes);
        let mut changes: Vec<Option<OverrideChange>> = changes.into_iter().map(Some).collect();
        let mut dropped = 0;
        for number in left_out {
            let Some(change) = changes[number].take() else { continue };
            match self.peer_changes.waiting_overrides.len() < OVERRIDES_MAX {
                true => drop(self.peer_changes.waiting_overrides.insert(ids[number], change)),
                false => dropped += 1,
            }
        }
        self.warn_of_dropped(dropped);
    }
}

/// The error of rules from the store that nobody has proved to have put.
pub(super) fn unproven_change() -> Diagnostic {
    let problem = Problem::new(
        "rules put at another server change `upstreams`, `routes` or `identify`, and without a secret anyone who can write \
         to the store could have put them",
    );
    let hint =
        "give all servers on this store the same --key-secret-file, or change the rules files";
    Diagnostic::of_file(ReloadCause::PutAtUnknownPeer.as_str(), problem.hint(hint))
}

/// Hash of the contents, in 64 hexadecimal digits, independent of names and paths; `None` if they cannot be
/// read.
pub(super) fn content_fingerprint(found: &RulesContent) -> Option<String> {
    let mut context = Context::new(&SHA256);
    let mut add = |text: &str| {
        // The length keeps ("ab", "c") apart from ("a", "bc").
        context.update(&(text.len() as u64).to_le_bytes());
        context.update(text.as_bytes());
    };
    match found {
        RulesContent::Texts(sources) => {
            add("texts");
            sources.iter().for_each(|source| add(source.text()));
        }
        RulesContent::Limit(rate) => {
            add("limit");
            add(rate);
        }
        RulesContent::Unreadable(_) => return None,
    }
    Some(const_hex::encode(context.finish()))
}

#[cfg(test)]
mod tests {
    use tollgate_rules::Source;

    use super::*;

    #[test]
    fn fingerprints_tell_texts_apart_and_not_where_they_stand() {
        let of = |texts: &[(&str, &str)]| {
            let sources = texts.iter().map(|(name, text)| Source::from_text(name, text));
            content_fingerprint(&RulesContent::Texts(sources.collect())).unwrap()
        };
        assert_eq!(of(&[("a", "x")]), of(&[("b", "x")]));
        assert_ne!(of(&[("a", "x")]), of(&[("a", "y")]));
        assert_ne!(of(&[("a", "ab"), ("b", "c")]), of(&[("a", "a"), ("b", "bc")]));
        let limit = content_fingerprint(&RulesContent::Limit("x".into())).unwrap();
        assert!(limit.len() == 64 && limit != of(&[("a", "x")]));
    }
}
