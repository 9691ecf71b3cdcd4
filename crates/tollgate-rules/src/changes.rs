//! `Changes`: what a new set of rules changes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::limit_spec::RuleLimit;
use crate::rule::Rule;
use crate::rule_set::RuleSet;

/// The difference between two sets of rules, by the names of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// New rules.
    pub added: Vec<Arc<str>>,
    /// Removed rules.
    pub removed: Vec<Arc<str>>,
    /// Rules that have changed, or whose callers have other keys because settings or tiers have
    /// changed.
    pub changed: Vec<Arc<str>>,
    /// Changed rules with a limit that starts without counts for some callers, because its key, its
    /// algorithm or its period has changed.
    pub fresh: Vec<Arc<str>>,
    /// Number of rules that stay as they are.
    pub unchanged: usize,
    /// True if settings beside the rules changed: identification, exemptions, headers, logs, the
    /// list of tiers, upstreams and routes.
    pub settings: bool,
    /// True if the overrides of the file changed.
    pub overrides: bool,
}

impl Changes {
    /// Compares two sets.
    pub fn between(before: &RuleSet, after: &RuleSet) -> Changes {
        let mut known: HashMap<&str, &Rule> =
            before.rules().map(|rule| (&*rule.name, rule)).collect();
        let keys = KeyChanges::between(before, after);
        let mut changes = Changes {
            settings: before.settings() != after.settings() || before.tiers() != after.tiers(),
            overrides: before.file_overrides() != after.file_overrides(),
            ..Changes::default()
        };
        for rule in after.rules() {
            let Some(old) = known.remove(&*rule.name) else {
                changes.added.push(rule.name.clone());
                continue;
            };
            let fresh = keys.differ(old, rule) || starts_fresh(old, rule);
            if fresh {
                changes.fresh.push(rule.name.clone());
            }
            match fresh || old != rule {
                true => changes.changed.push(rule.name.clone()),
                false => changes.unchanged += 1,
            }
        }
        let gone = before.rules().filter(|rule| known.contains_key(&*rule.name));
        changes.removed = gone.map(|rule| rule.name.clone()).collect();
        changes
    }

    /// Returns true if nothing changed.
    pub fn is_empty(&self) -> bool {
        let lists = [&self.added, &self.removed, &self.changed];
        lists.iter().all(|list| list.is_empty()) && !self.settings && !self.overrides
    }
}

/// Changes of keys that come from settings and tiers, not from the rules themselves.
struct KeyChanges {
    /// True if addresses have another form.
    ip: bool,
    /// True if callers can have a tier that they could not have before.
    tier: bool,
    /// Tiers that exist in both sets: the index before, and the index now.
    kept_tiers: Vec<(usize, usize)>,
}

impl KeyChanges {
    fn between(before: &RuleSet, after: &RuleSet) -> KeyChanges {
        let (old, new) = (&before.settings().identify, &after.settings().identify);
        let known: HashMap<&str, usize> = before.tiers().into_iter().zip(0..).collect();
        let tiers = after.tiers();
        let place_before = |(tier, now): (&&str, usize)| Some((*known.get(*tier)?, now));
        let kept_tiers: Vec<_> = tiers.iter().zip(0..).filter_map(place_before).collect();
        KeyChanges {
            ip: (old.ipv6_prefix, old.nat64) != (new.ipv6_prefix, new.nat64),
            tier: old.default_tier != new.default_tier || kept_tiers.len() < tiers.len(),
            kept_tiers,
        }
    }

    /// Returns true if callers of a rule have other keys than before.
    fn differ(&self, old: &Rule, new: &Rule) -> bool {
        let by_tier = (old.limits.depend_on_tier(), new.limits.depend_on_tier());
        let counts_apart = |rule: &Rule, tier: usize| rule.limits.of(Some(tier)).1;
        by_tier.0 != by_tier.1
            || (self.ip && new.key.has_ip())
            || (self.tier && (by_tier.1 || new.key.has_tier()))
            || self
                .kept_tiers
                .iter()
                .any(|&(then, now)| counts_apart(old, then) != counts_apart(new, now))
    }
}

/// Returns true if a limit of the new rule has no counts yet. Counts are kept by key and by the
/// limit's identity, which has no numbers in it.
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

    #[test]
    fn other_keys_start_fresh_whatever_the_rules_say() {
        const BY_IP: &str = "rules: [{ name: api, key: '{ip}', limits: [9/hour], tiered: true }]";
        const BY_USER: &str =
            "rules: [{ name: api, key: '{user}', limits: [9/hour], tiered: true }]";
        const BY_TIER: &str = "rules: [{ name: api, key: '{user}:{tier}', limits: [9/hour] }]";
        let free = "tiers: { free: 1, pro: 10 }\nidentify: { tier: { default: free } }";
        let pro = "tiers: { free: 1, pro: 10 }\nidentify: { tier: { default: pro } }";
        let more = "tiers: { free: 1, pro: 10, max: 99 }\nidentify: { tier: { default: free } }";
        let partner = "tiers: { pro: 10, partner: {} }";
        let partner_here = "tiers: { pro: 10, partner: { api: [7/hour] } }";
        let more_of_pro = "tiers: { partner: {}, pro: 20 }";
        // Rules, settings before and after, whether the counts start fresh
        let rows = [
            (BY_IP, free, free, false),
            (BY_IP, "", free, true),
            (BY_IP, free, "", true),
            (BY_IP, free, pro, true),
            (BY_IP, free, more, true),
            (BY_IP, more, free, false),
            (BY_IP, "", "identify: { ip: { header: x-forwarded-for, ipv6_prefix: 48 } }", true),
            (BY_IP, "", "identify: { ip: { header: x-forwarded-for, nat64: true } }", true),
            (BY_IP, "", "identify: { ip: forwarded }", false),
            (BY_USER, "", free, true),
            (BY_USER, free, pro, true),
            (BY_USER, free, free, false),
            (BY_USER, partner, partner_here, true),
            (BY_USER, partner_here, partner, true),
            (BY_USER, partner, more_of_pro, false),
            (BY_USER, "", "identify: { ip: { header: x-forwarded-for, nat64: true } }", false),
            (BY_TIER, free, pro, true),
            (BY_TIER, free, more, true),
        ];
        for (text, before, after, fresh) in rows {
            let [before, after] = [before, after].map(|top| format!("{top}\n{text}"));
            let changes = Changes::between(&rules(&before), &rules(&after));
            assert_eq!(changes.fresh.len(), usize::from(fresh), "{before} -> {after}: {changes:?}");
            assert_eq!(changes.changed.len() + changes.unchanged, 1, "{changes:?}");
            assert!(!fresh || changes.changed == changes.fresh, "{changes:?}");
        }
    }
}
