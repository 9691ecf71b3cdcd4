//! Since when callers have the numbers of their limits.
//!
//! A bucket of other numbers is refilled at their rate until the new ones took effect; see
//! [`Limit::numbers_since`](tollgate::Limit::numbers_since). The estimate of a counter keeps falling at the pace of the
//! old numbers for two periods, which those who wait for it have to know. Numbers take effect when a gatekeeper starts, when
//! rules are replaced, and when an override is set, is removed or ends. Numbers that stay keep their instant.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate::{Algorithm, KeyBuf, Limit, Micros, Wait};

use super::{BaseRules, Override, OverrideTable, RuleSet};
use crate::limit_spec::RuleLimit;
use crate::rule::TierLimits;

/// Rules by name.
pub(super) type RuleNumbers<'a> = HashMap<&'a str, u32>;

/// Limits of rules for callers whose override has ended, by rule and key, dated then.
pub(super) type LimitsAfterOverride = HashMap<u32, HashMap<KeyBuf, Vec<RuleLimit>>>;

impl RuleLimit {
    /// The same limit with the instant at which its numbers took effect. Only buckets and counters need one.
    fn dated(&self, since: Option<Micros>) -> RuleLimit {
        if self.effect_of_old_numbers().is_zero() || self.limit.numbers_since() == since {
            return self.clone();
        }
        let limit = Limit::clone(&self.limit).with_numbers_since(since);
        RuleLimit { limit: Arc::new(limit), ..self.clone() }
    }

    /// The longest time for which other numbers have an effect after these replaced them.
    fn effect_of_old_numbers(&self) -> Wait {
        Wait::from_micros(match self.limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.limit.full_refill_us(),
            Algorithm::SlidingWindowCounter => self.limit.period_us().saturating_mul(2),
            Algorithm::FixedWindow | Algorithm::SlidingWindowLog => 0,
        })
    }

    /// The same limit, for a caller who had other numbers until `instant`.
    fn not_before(&self, instant: Micros) -> RuleLimit {
        self.dated(self.limit.numbers_since().max(Some(instant)))
    }
}

/// Dates limits that replace those of `before`.
fn date_limits(limits: &mut [RuleLimit], before: &[RuleLimit], now: Micros) {
    for one in limits {
        let numbers = |one: &RuleLimit| (one.limit.id(), one.limit.fingerprint());
        let same = before.iter().find(|other| numbers(other) == numbers(one));
        let replaces = || before.iter().any(|other| other.limit.id() == one.limit.id());
        let since = match same {
            Some(same) => same.limit.numbers_since(),
            // A store may know the bucket from an earlier start.
            None => (one.limit.algorithm().is_bucket() || replaces()).then_some(now),
        };
        *one = one.dated(since);
    }
}

impl Override {
    /// The same override with dated limits, which replace those of `before`.
    fn dated(&self, before: &[RuleLimit], now: Micros) -> Arc<Override> {
        let mut limits = self.limits.clone();
        date_limits(&mut limits, before, now);
        Arc::new(Override { limits, ..self.clone() })
    }

    /// This override as one that ended, at the latest now.
    pub(crate) fn ended(&self, now: Micros) -> Arc<Override> {
        let until = self.until.map_or(now, |until| until.min(now));
        Arc::new(Override { until: Some(until), ..self.clone() })
    }

    /// Returns true if a state that these numbers wrote before the override ended may still have an effect.
    pub(crate) fn may_have_states_at(&self, now: Micros) -> bool {
        let longest = self.limits.iter().map(RuleLimit::effect_of_old_numbers).max();
        longest.zip(self.until).is_some_and(|(longest, until)| now < until.after(longest))
    }
}

impl RuleSet {
    /// Dates the numbers of a set that replaces `before`, or that is the first one. Only before the set is
    /// shared.
    pub(crate) fn date_numbers(&mut self, before: Option<&RuleSet>, now: Micros) {
        let Some(base) = Arc::get_mut(&mut self.base) else { return };
        let known = before.map(RuleSet::numbers_by_name).unwrap_or_default();
        let tiers_before: HashMap<usize, usize> = before
            .into_iter()
            .flat_map(|before| &before.base.tiers)
            .filter_map(|(name, then)| Some((*base.tiers.get(name)?, *then)))
            .collect();
        for one in &mut base.rules {
            let old = known.get(&*one.rule.name).map(|(_, limits)| *limits);
            let before = |tier: Option<usize>| -> &[RuleLimit] {
                let Some(old) = old else { return &[] };
                match tier.map(|tier| old.of(tiers_before.get(&tier).copied())) {
                    None => old.plain(),
                    Some((own, true)) => own,
                    Some((_, false)) => &[],
                }
            };
            for (tier, list) in one.rule.limits.lists_mut() {
                date_limits(list, before(tier), now);
            }
        }
        if !base.overrides.is_empty() {
            let files = base.overrides.iter().map(|one| (one, &true));
            base.overrides = match before {
                Some(before) => before.dated_overrides(files, now),
                None => files.map(|(one, _)| one.dated(&[], now)).collect(),
            };
        }
        let at_run_time = self.overrides.list.split_off(self.overrides.file_count);
        *self = RuleSet::of(Arc::clone(&self.base), &at_run_time, &[]);
    }

    /// Overrides with the new ones of them dated, which replace the numbers that their callers have now.
    pub(crate) fn dated_overrides<'o>(
        &self,
        overrides: impl Iterator<Item = (&'o Arc<Override>, &'o bool)>,
        now: Micros,
    ) -> Vec<Arc<Override>> {
        let known = self.numbers_by_name();
        let dated = overrides.map(|(one, is_new)| match (is_new, known.get(&*one.rule)) {
            (false, _) => Arc::clone(one),
            (true, None) => one.dated(&[], now),
            (true, Some((rule, _))) => one.dated(self.limits_of_caller(*rule, &one.key, now), now),
        });
        dated.collect()
    }

    /// The overrides of files that no override set at run time replaces.
    pub(crate) fn decisive_file_overrides(&self) -> impl Iterator<Item = &Arc<Override>> {
        let numbers = self.overrides.by_rule.values().flat_map(HashMap::values);
        let of_files = numbers.filter(|number| !self.is_run_time(**number));
        of_files.map(|number| &self.overrides.list[*number as usize])
    }

    /// The limits of a caller whose tier has none of its own.
    fn limits_of_caller(&self, rule: u32, key: &KeyBuf, now: Micros) -> &[RuleLimit] {
        match self.override_of(rule, key, now) {
            Some(number) => self.limits_of_override(number),
            None => self
                .limits_after_override(rule, key)
                .unwrap_or_else(|| self.rule_at(rule).limits.plain()),
        }
    }

    fn numbers_by_name(&self) -> HashMap<&str, (u32, &TierLimits)> {
        self.rules().zip(0..).map(|(rule, number)| (&*rule.name, (number, &rule.limits))).collect()
    }

    /// The limits of a rule for a caller whose override has ended; `None` for all others, for whom they are
    /// those of the rule. They differ from those in the instant alone.
    #[inline]
    pub(crate) fn limits_after_override(&self, rule: u32, key: &KeyBuf) -> Option<&[RuleLimit]> {
        if self.overrides.after.is_empty() {
            return None;
        }
        self.overrides.after.get(&rule)?.get(key).map(|limits| &**limits)
    }
}

impl OverrideTable {
    /// Adds the end of an override: from then on its caller has the limits of the rule.
    pub(super) fn add_end(&mut self, rules: &RuleNumbers<'_>, base: &BaseRules, one: &Override) {
        let (Some(&rule), Some(end)) = (rules.get(&*one.rule), one.until) else { return };
        let plain = base.rules[rule as usize].rule.limits.plain();
        let keys = self.after.entry(rule).or_default();
        let after = keys.entry(one.key.clone()).or_insert_with(|| plain.to_vec());
        after.iter_mut().for_each(|limit| *limit = limit.not_before(end));
    }

    /// Dates an override that applies again because another one has ended.
    pub(super) fn date_again(&mut self, rules: &RuleNumbers<'_>, ended: &Override) {
        let (Some(rule), Some(end)) = (rules.get(&*ended.rule), ended.until) else { return };
        let number = self.by_rule.get(rule).and_then(|keys| keys.get(&ended.key));
        let Some(one) = number.and_then(|number| self.list.get_mut(*number as usize)) else {
            return;
        };
        let limits = one.limits.iter().map(|limit| limit.not_before(end)).collect();
        *one = Arc::new(Override { limits, ..(**one).clone() });
    }
}
