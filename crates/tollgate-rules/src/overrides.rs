//! Many overrides in one step, for servers that share overrides with others.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;
use tollgate::{Clock, KeyBuf};

use crate::gatekeeper::{Gatekeeper, InfallibleStore, RUN_TIME_OVERRIDES_MAX};
use crate::key_text;
use crate::rule_set::Override;

/// A change of one caller's override.
#[derive(Clone, Debug, PartialEq)]
pub struct OverrideChange {
    /// The name of the rule.
    pub rule: String,
    /// The key as people write it.
    pub key: String,
    /// The fields for [`Caller::set_override`](crate::Caller::set_override); `None` removes the
    /// override.
    pub set: Option<Value>,
}

/// A rule and a key.
type OverrideTarget = (Box<str>, KeyBuf);

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Makes changes in one step; the last one for a caller wins. Returns the indices of changes
    /// that were not made: the rule does not exist or does not allow them, or there is no room. A
    /// removal needs no rule, so that a rule that comes back does not bring the override back.
    pub fn change_many_overrides(&self, changes: &[OverrideChange]) -> Vec<usize> {
        let now = self.now();
        let mut left_out = Vec::new();
        let mut named: HashMap<OverrideTarget, (usize, Option<Arc<Override>>)> = HashMap::new();
        // By names alone, because the rule that could read the key is missing.
        let mut gone: HashSet<(&str, &str)> = HashSet::new();
        for (number, change) in changes.iter().enumerate() {
            let caller = self.caller_at(&change.rule, &change.key, now).ok();
            let read = caller.and_then(|caller| {
                let set = change.set.as_ref().map(|fields| caller.read_override(fields));
                let whose = (Box::from(&*caller.rule().name), caller.key().clone());
                Some((whose, set.transpose().ok()?))
            });
            match read {
                Some((whose, set)) => drop(named.insert(whose, (number, set))),
                None if change.set.is_none() => drop(gone.insert((&change.rule, &change.key))),
                None => left_out.push(number),
            }
        }
        let changed = self.change_overrides(now, |overrides| {
            overrides.retain(|one| !named.contains_key(&(one.rule.clone(), one.key.clone())));
            if !gone.is_empty() {
                overrides.retain(|one| !gone.contains(&(&*one.rule, &*key_text(&one.key))));
            }
            for (number, set) in named.into_values() {
                match set {
                    Some(_) if overrides.len() >= RUN_TIME_OVERRIDES_MAX => left_out.push(number),
                    Some(one) => overrides.push(one),
                    None => {}
                }
            }
            Ok::<(), std::convert::Infallible>(())
        });
        let Ok(()) = changed;
        left_out
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Source, compile};

    #[test]
    fn many_changes_are_one_step_and_what_does_not_fit_the_rules_is_told() {
        let text = "rules: [{ name: api, key: '{user}', limits: [10/hour] }]";
        let rules = compile(&[Source::from_text("rules.yaml", text)]).rules.unwrap();
        let gatekeeper = Gatekeeper::in_memory(rules, 1_000);
        let change = |rule: &str, key: &str, set: Option<Value>| OverrideChange {
            rule: rule.into(),
            key: key.into(),
            set,
        };
        let left_out = gatekeeper.change_many_overrides(&[
            change("api", "user=1", Some(json!({ "limits": ["5/hour"] }))),
            change("gone", "user=1", Some(json!({ "limits": ["5/hour"] }))),
            change("api", "ip=192.0.2.1", Some(json!({ "limits": ["5/hour"] }))),
            change("api", "user=2", Some(json!({ "limits": ["nonsense"] }))),
            change("api", "user=3", Some(json!({ "limits": ["6/hour"] }))),
            change("api", "user=3", Some(json!({ "limits": ["7/hour"] }))),
            change("api", "user=4", None),
        ]);
        assert_eq!(left_out, [1, 2, 3]);
        let mut texts: Vec<String> = gatekeeper
            .overrides()
            .iter()
            .map(|one| format!("{} {}", key_text(&one.key), one.limits[0].text))
            .collect();
        texts.sort();
        assert_eq!(texts, ["user=1 5/hour", "user=3 7/hour"]);
        assert!(gatekeeper.change_many_overrides(&[change("api", "user=1", None)]).is_empty());
        assert_eq!(gatekeeper.overrides().len(), 1);
    }

    #[test]
    fn what_is_taken_back_while_its_rule_is_gone_does_not_come_back_with_it() {
        let rules = |name: &str| {
            let text = format!("rules: [{{ name: {name}, key: '{{user}}', limits: [10/hour] }}]");
            compile(&[Source::from_text("rules.yaml", &text)]).rules.unwrap()
        };
        let gatekeeper = Gatekeeper::in_memory(rules("api"), 1_000);
        let change = |key: &str, set: Option<Value>| OverrideChange {
            rule: "api".into(),
            key: key.into(),
            set,
        };
        let set = || Some(json!(["5/hour"]));
        let both = [change("user=1", set()), change("user=2", set())];
        assert!(gatekeeper.change_many_overrides(&both).is_empty());
        gatekeeper.replace(rules("other"));
        assert!(gatekeeper.change_many_overrides(&[change("user=1", None)]).is_empty());
        gatekeeper.replace(rules("api"));
        let left: Vec<String> =
            gatekeeper.overrides().iter().map(|one| key_text(&one.key)).collect();
        assert_eq!(left, ["user=2"]);
    }

    #[test]
    fn many_are_bounded() {
        let text = "rules: [{ name: api, key: '{user}', limits: [10/hour] }]";
        let rules = compile(&[Source::from_text("rules.yaml", text)]).rules.unwrap();
        let gatekeeper = Gatekeeper::in_memory(rules, 1_000);
        let changes: Vec<OverrideChange> = (0..RUN_TIME_OVERRIDES_MAX + 3)
            .map(|user| OverrideChange {
                rule: "api".into(),
                key: format!("user={user}"),
                set: Some(json!(["5/hour"])),
            })
            .collect();
        assert_eq!(gatekeeper.change_many_overrides(&changes).len(), 3);
        assert_eq!(gatekeeper.overrides().len(), RUN_TIME_OVERRIDES_MAX);
    }
}
