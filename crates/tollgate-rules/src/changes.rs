//! `Changes`: what a new set of rules changes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::limit_spec::RuleLimit;
use crate::rule::Rule;
use crate::rule_set::RuleSet;

/// How one set of rules differs from the one before, by the names of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// New ones.
    pub added: Vec<Arc<str>>,
    /// Those that are gone.
    pub removed: Vec<Arc<str>>,
    /// Those that say something else.
    pub changed: Vec<Arc<str>>,
    /// Of those that changed: the ones with a limit that nobody has used anything of yet, because its
    /// key, its algorithm or its period is another.
    pub fresh: Vec<Arc<str>>,
    /// How many stay as they are.
    pub unchanged: usize,
    /// Whether something beside the rules changed: who is calling, who is exempt, headers, logs.
    pub settings: bool,
    /// Whether the overrides of the file changed.
    pub overrides: bool,
}

impl Changes {
    /// From one set to the next.
    pub fn between(before: &RuleSet, after: &RuleSet) -> Changes {
        let mut known: HashMap<&str, &Rule> =
            before.rules().map(|rule| (&*rule.name, rule)).collect();
        let mut changes = Changes {
            settings: before.settings() != after.settings() || before.tiers() != after.tiers(),
            overrides: before.file_overrides() != after.file_overrides(),
            ..Changes::default()
        };
        for rule in after.rules() {
            match known.remove(&*rule.name) {
                None => changes.added.push(rule.name.clone()),
                Some(old) if old == rule => changes.unchanged += 1,
                Some(old) => {
                    changes.changed.push(rule.name.clone());
                    if starts_fresh(old, rule) {
                        changes.fresh.push(rule.name.clone());
                    }
                }
            }
        }
        let gone = before.rules().filter(|rule| known.contains_key(&*rule.name));
        changes.removed = gone.map(|rule| rule.name.clone()).collect();
        changes
    }

    /// Whether both say the same.
    pub fn is_empty(&self) -> bool {
        let lists = [&self.added, &self.removed, &self.changed];
        lists.iter().all(|list| list.is_empty()) && !self.settings && !self.overrides
    }
}

/// Whether a limit of the new rule has no counts yet: they are kept by key and by the limit's
/// identity, which has no numbers in it.
fn starts_fresh(old: &Rule, new: &Rule) -> bool {
    let ids = |rule: &Rule| -> HashSet<u64> {
        rule.limits.all().flatten().map(|one: &RuleLimit| one.limit.id()).collect()
    };
    old.key != new.key || !ids(new).is_subset(&ids(old))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Source, compile};

    fn rules(text: &str) -> RuleSet {
        let compiled = compile(&[Source::from_text("rules.yaml", text)]);
        compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics))
    }

    #[test]
    fn rules_are_told_apart_by_what_they_say() {
        let rule = |rest: &str| format!("rules: [{{ name: api, key: '{{user}}', {rest} }}]");
        let before = rules(&rule("limits: [10/minute]"));
        // The new file; added, removed, changed, fresh, unchanged, settings
        let rows: [(&str, [usize; 5], bool); 9] = [
            (&rule("limits: [10/minute]"), [0, 0, 0, 0, 1], false),
            (&rule("limits: [20/minute]"), [0, 0, 1, 0, 0], false),
            (&rule("limits: [10/hour]"), [0, 0, 1, 1, 0], false),
            (&rule("limits: [10/minute burst 5]"), [0, 0, 1, 1, 0], false),
            (&rule("limits: [10/minute, 10/hour]"), [0, 0, 1, 1, 0], false),
            (&rule("limits: [10/minute], match: { path: /x }"), [0, 0, 1, 0, 0], false),
            ("rules: [{ name: api, key: '{ip}', limits: [10/minute] }]", [0, 0, 1, 1, 0], false),
            ("rules: [{ name: all, key: '{user}', limits: [10/minute] }]", [1, 1, 0, 0, 0], false),
            (&format!("headers: none\n{}", rule("limits: [10/minute]")), [0, 0, 0, 0, 1], true),
        ];
        for (text, counts, settings) in rows {
            let changes = Changes::between(&before, &rules(text));
            let Changes { added, removed, changed, fresh, unchanged, .. } = &changes;
            let lists = [added, removed, changed, fresh].map(Vec::len);
            assert_eq!([lists[0], lists[1], lists[2], lists[3], *unchanged], counts, "{text}");
            assert_eq!(changes.settings, settings, "{text}");
            assert_eq!(changes.is_empty(), counts == [0, 0, 0, 0, 1] && !settings, "{text}");
        }
    }
}
