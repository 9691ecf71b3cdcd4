//! Overrides set at run time, and those that ended a short time ago.
//!
//! An override that has ended is remembered until its numbers would have refilled every bucket that they wrote:
//! so long a state of them may be left, which is converted as of the end.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate::{KeyBuf, Micros};

use super::RUN_TIME_OVERRIDES_MAX;
use crate::rule_set::{Override, RuleSet};

/// The overrides of a gatekeeper, beside those of its rules' files.
#[derive(Debug, Default)]
pub(super) struct RunTimeOverrides {
    /// Overrides that outlive a reload. Bound: [`RUN_TIME_OVERRIDES_MAX`].
    pub(super) list: Vec<Arc<Override>>,
    /// Overrides that have ended, the latest last, also those of files. Bound: [`RUN_TIME_OVERRIDES_MAX`]; the
    /// first ones of more are forgotten.
    ended: Vec<Arc<Override>>,
}

type OverridesByCaller<'a> = HashMap<(&'a str, &'a KeyBuf), &'a Arc<Override>>;

fn by_caller(list: &[Arc<Override>]) -> OverridesByCaller<'_> {
    list.iter().map(|one| ((&*one.rule, &one.key), one)).collect()
}

impl RunTimeOverrides {
    /// The overrides in force.
    pub(super) fn active_at(&self, now: Micros) -> Vec<Arc<Override>> {
        self.list.iter().filter(|one| one.is_active_at(now)).cloned().collect()
    }

    /// Replaces the overrides by others. What is new takes effect now, and what is missing ends.
    pub(super) fn change(&mut self, changed: Vec<Arc<Override>>, rules: &RuleSet, now: Micros) {
        let known = by_caller(&self.list);
        let is_new = |one: &Arc<Override>| {
            let old = known.get(&(&*one.rule, &one.key));
            old.is_none_or(|old| !Arc::ptr_eq(old, one))
        };
        let new: Vec<bool> = changed.iter().map(is_new).collect();
        let dated = rules.dated_overrides(changed.iter().zip(&new), now);
        let left = by_caller(&dated);
        let ended = self.list.iter().filter(|one| !left.contains_key(&(&*one.rule, &one.key)));
        let ended: Vec<_> = ended.map(|one| one.ended(now)).collect();
        self.list = dated;
        self.remember(ended, now);
    }

    /// Remembers the overrides of files that no longer apply once `rules` replace `before`.
    pub(super) fn end_file_overrides(&mut self, before: &RuleSet, rules: &RuleSet, now: Micros) {
        let left = by_caller(rules.file_overrides());
        let gone = before.decisive_file_overrides();
        let gone = gone.filter(|one| !left.contains_key(&(&*one.rule, &one.key)));
        let ended = gone.map(|one| one.ended(now)).collect();
        self.remember(ended, now);
    }

    fn remember(&mut self, ended: Vec<Arc<Override>>, now: Micros) {
        self.ended.extend(ended);
        self.ended.retain(|one| one.may_have_states_at(now));
        let surplus = self.ended.len().saturating_sub(RUN_TIME_OVERRIDES_MAX);
        self.ended.drain(..surplus);
    }

    /// These rules with the overrides.
    pub(super) fn applied_to(&self, rules: &RuleSet) -> RuleSet {
        rules.with_overrides(&self.list, &self.ended)
    }

    /// Returns true if rules need no change by them.
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.ended.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Source, compile};

    /// Would catch: overrides that are set and removed again and again fill the memory.
    #[test]
    fn ended_overrides_are_bounded_and_forgotten() {
        let text = "rules: [{ name: api, key: '{user}', limits: [60/hour burst 5] }]\n\
                    overrides: [{ rule: api, key: user=0, limits: [60/hour burst 9] }]";
        let rules = compile(&[Source::from_text("rules.yaml", text)]).rules.unwrap();
        let one = &rules.file_overrides()[0];
        let mut overrides = RunTimeOverrides::default();
        let at = |minute: u64| Micros::from_secs(1_795_000_000 + 60 * minute);
        for round in 0..2u64 {
            let users = (0..RUN_TIME_OVERRIDES_MAX as u64).map(|user| {
                let key = KeyBuf::new().with("user", &format!("{round} {user}"));
                Arc::new(Override { key, ..(**one).clone() })
            });
            overrides.change(users.collect(), &rules, at(round));
            assert_eq!(overrides.list.len(), RUN_TIME_OVERRIDES_MAX);
        }
        overrides.change(Vec::new(), &rules, at(2));
        assert_eq!((overrides.list.len(), overrides.ended.len()), (0, RUN_TIME_OVERRIDES_MAX));
        assert!(overrides.ended[0].key.parts().any(|(_, value)| value.starts_with("1 ")));
        // Nine units take nine minutes.
        overrides.change(Vec::new(), &rules, Micros::new(at(11).as_u64() - 1));
        assert!(!overrides.is_empty());
        overrides.change(Vec::new(), &rules, at(11));
        assert!(overrides.is_empty());
    }
}
