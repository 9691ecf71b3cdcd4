//! What was decided at another instance of the same store: rules that were put there, and overrides.
//!
//! Rules that were put hold for the files they were put over, here as there: an instance whose files say
//! something else keeps to its files, and takes the others if its files come to say the same.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::PoisonError;

use aws_lc_rs::digest::{Context, SHA256};
use tollgate_redis::control::{OVERRIDES_MAX, SharedOverride, SharedRules};
use tollgate_rules::OverrideChange;

use super::origin::Found;
use super::reloader::Reloader;
use super::{Cause, LiveRules, Message};
use crate::others::{self, Others};
use crate::telemetry::Field;

/// What was heard since the thread last looked.
#[derive(Default)]
pub(super) struct Heard {
    rules: Option<Option<SharedRules>>,
    /// The latest of each. Bound: `OVERRIDES_MAX`, twice; more is not heard before the thread looks.
    overrides: HashMap<[u8; 16], SharedOverride>,
}

/// What the thread knows of others.
#[derive(Default)]
pub(super) struct Elsewhere {
    pub(super) others: Others,
    /// Rules that were put over files other than ours.
    offered: Option<SharedRules>,
    /// Overrides that the rules in force do not allow, such as of a rule that only others have yet.
    /// Bound: `OVERRIDES_MAX`.
    waiting: HashMap<[u8; 16], OverrideChange>,
}

impl LiveRules {
    /// Rules were put at another instance, or are to hold no more.
    pub(crate) fn hear_rules(&self, rules: Option<SharedRules>) {
        self.hear(|heard| heard.rules = Some(rules));
    }

    /// Overrides were set or taken back at another instance.
    pub(crate) fn hear_overrides(&self, changed: Vec<SharedOverride>) {
        self.hear(|heard| {
            for one in changed {
                if heard.overrides.len() < 2 * OVERRIDES_MAX {
                    heard.overrides.insert(one.id, one);
                }
            }
        });
    }

    fn hear(&self, add: impl FnOnce(&mut Heard)) {
        add(&mut self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner));
        // If there is no room, the thread has plenty to wake up for, and looks then.
        let _ = self.shared.messages.try_send(Message::Wake);
    }

    fn take_heard(&self) -> Heard {
        let mut heard = self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *heard)
    }
}

impl Reloader {
    pub(super) fn tell_others(&mut self, others: Others) {
        self.elsewhere.others = others;
    }

    /// Does what others have decided.
    pub(super) fn listen(&mut self) {
        let Heard { rules, overrides } = self.live.take_heard();
        match rules {
            None => {}
            Some(Some(rules)) => {
                self.elsewhere.offered = Some(rules);
                self.take_offered();
            }
            Some(None) => {
                self.elsewhere.offered = None;
                if self.put_over.is_some() {
                    self.reload(Cause::ReloadElsewhere);
                }
            }
        }
        if !overrides.is_empty() {
            self.take_overrides(overrides);
        }
    }

    /// Puts in force what was put elsewhere, if it was put over what our files say.
    pub(super) fn take_offered(&mut self) {
        let ours = fingerprint(&self.files.found);
        let offered =
            self.elsewhere.offered.take_if(|offered| Some(&*offered.over) == ours.as_deref());
        if let Some(offered) = offered {
            self.put_for(offered.text.as_bytes(), Cause::PutElsewhere);
        } else if self.elsewhere.offered.is_some() {
            self.logs.info("rules that were put at another instance are for other files", &[]);
        }
    }

    /// A text was put here: others whose files say the same take it.
    pub(super) fn tell_of_put(&mut self, text: &[u8]) {
        self.elsewhere.offered = None;
        if let Some(over) = fingerprint(&self.files.found) {
            self.elsewhere.others.put_rules(text, &over);
        }
    }

    fn take_overrides(&mut self, heard: HashMap<[u8; 16], SharedOverride>) {
        let (mut ids, mut changes, mut strange) = (Vec::new(), Vec::new(), 0_u64);
        for (id, told) in heard {
            self.elsewhere.waiting.remove(&id);
            match others::read_override(&told) {
                Some(change) => {
                    ids.push(id);
                    changes.push(change);
                }
                None => strange += 1,
            }
        }
        let heard = changes.len();
        self.change_overrides(&ids, changes);
        let waiting = self.elsewhere.waiting.len();
        let fields: [Field<'_>; 3] =
            [("changed", &heard), ("waiting", &waiting), ("not_understood", &strange)];
        self.logs.info("overrides were changed at another instance", &fields);
    }

    /// Overrides that were not allowed before may be now.
    pub(super) fn retry_overrides(&mut self) {
        if !self.elsewhere.waiting.is_empty() {
            let waiting = std::mem::take(&mut self.elsewhere.waiting);
            let (ids, changes): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
            self.change_overrides(&ids, changes);
        }
    }

    fn change_overrides(&mut self, ids: &[[u8; 16]], changes: Vec<OverrideChange>) {
        let left_out = self.gatekeeper.change_many_overrides(&changes);
        let mut changes: Vec<Option<OverrideChange>> = changes.into_iter().map(Some).collect();
        for number in left_out {
            // What is taken back and is not there needs no waiting.
            if let Some(change) = changes[number].take().filter(|change| change.set.is_some())
                && self.elsewhere.waiting.len() < OVERRIDES_MAX
            {
                self.elsewhere.waiting.insert(ids[number], change);
            }
        }
        self.gatekeeper.limiter().store().forget_refusals();
    }
}

/// What files say, in 64 digits, whatever they are called and wherever they are; `None`: they cannot
/// be read.
pub(super) fn fingerprint(found: &Found) -> Option<String> {
    let mut context = Context::new(&SHA256);
    let mut add = |text: &str| {
        // The length keeps ("ab", "c") apart from ("a", "bc").
        context.update(&(text.len() as u64).to_le_bytes());
        context.update(text.as_bytes());
    };
    match found {
        Found::Texts(sources) => {
            add("texts");
            sources.iter().for_each(|source| add(source.text()));
        }
        Found::Limit(rate) => {
            add("limit");
            add(rate);
        }
        Found::Unreadable(_) => return None,
    }
    Some(context.finish().as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

#[cfg(test)]
mod tests {
    use tollgate_rules::Source;

    use super::*;

    #[test]
    fn fingerprints_tell_texts_apart_and_not_where_they_stand() {
        let of = |texts: &[(&str, &str)]| {
            let sources = texts.iter().map(|(name, text)| Source::from_text(name, text));
            fingerprint(&Found::Texts(sources.collect())).unwrap()
        };
        assert_eq!(of(&[("a", "x")]), of(&[("b", "x")]));
        assert_ne!(of(&[("a", "x")]), of(&[("a", "y")]));
        assert_ne!(of(&[("a", "ab"), ("b", "c")]), of(&[("a", "a"), ("b", "bc")]));
        let limit = fingerprint(&Found::Limit("x".into())).unwrap();
        assert!(limit.len() == 64 && limit != of(&[("a", "x")]));
    }
}
