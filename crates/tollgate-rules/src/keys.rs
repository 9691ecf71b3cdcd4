//! Operations on one caller under one rule: what it has used, and what an operator can do about it.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Value, json};
use tollgate::{
    Act, Check, Clock, Decision, KeyBuf, Limit, MemoryStore, Micros, Now, Outcome, SystemClock,
    Wait,
};

use crate::compile::read_overrides;
use crate::credentials::has_unhashed_user;
use crate::descriptors::Unit;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::gatekeeper::{
    Gatekeeper, InfallibleStore, RUN_TIME_OVERRIDES_MAX, RulesVersion, SHADOW_BLOCK,
    SHADOW_REFUSALS,
};
use crate::import::ImportedAllowance;
use crate::key_template::key_text;
use crate::limit_spec::RuleLimit;
use crate::plan::tier_key;
use crate::problem::Problem;
use crate::rule::{Mode, Rule};
use crate::rule_set::{Override, RuleSettings};
use crate::source::Source;
use crate::suggest::suggest;

mod all_rules;

pub use all_rules::{AllRulesCallers, RuleLeftOut};

/// One caller under one rule; made by [`Gatekeeper::caller`].
#[derive(Debug)]
pub struct Caller<'a, S = MemoryStore, C = SystemClock> {
    gatekeeper: &'a Gatekeeper<S, C>,
    rules: RulesVersion,
    rule: u32,
    key: KeyBuf,
    now: Now<'a>,
}

/// The use of a rule by one caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReport {
    /// Time until the block ends; `None` if the caller is not blocked.
    pub blocked_for: Option<Wait>,
    /// The override that applies instead of the rule's limits.
    pub replaced_by: Option<Arc<Override>>,
    /// True if the override was set at run time.
    pub at_run_time: bool,
    /// The reason why the rule does not refuse this caller, whatever it has used.
    pub leniency: Option<Leniency>,
    /// True if an imported file refuses every request that meets this rule.
    pub refuses_everything: bool,
    /// The tier that the caller counts under, if it is known: that of the table of users, else the only one that
    /// something is used of, else the default, where requests cannot name another.
    pub tier: Option<Box<str>>,
    /// True if something is kept about the caller: units in use, a block or an override. False of a caller that was
    /// never seen, or so long ago that all of it has expired.
    pub is_kept: bool,
    /// Each limit that applies. For a rule with tiers, those of all tiers if the table of users
    /// does not have the tier of the caller.
    pub limits: Vec<KeyLimit>,
}

/// A reason why a rule does not refuse a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leniency {
    /// No rule applies to it.
    Exempt,
    /// The rule is switched off.
    Off,
    /// The rule is in shadow, or not enforced for this caller.
    Shadow,
    /// The rule only warns.
    Soft,
    /// The rule has no limit on purpose.
    Unlimited,
}

/// The use of one limit by one caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyLimit {
    /// The tier of the limit; `None` if it is for callers without a tier, for all callers, or of an
    /// override.
    pub tier: Option<Box<str>>,
    /// The limit in readable form.
    pub limit: Box<str>,
    /// Rate and burst as an override can name them; it takes everything else from the rule's limit of
    /// the same period.
    pub rate: Box<str>,
    /// The capacity.
    pub capacity: u64,
    /// Units left; negative in debt.
    pub balance: i64,
    /// The decision that one unit would get.
    pub decision: Decision,
}

impl KeyLimit {
    /// Returns true if units are in use, or if that is unknown because the store is unavailable.
    fn is_used(&self) -> bool {
        let is_full = i64::try_from(self.capacity).is_ok_and(|capacity| self.balance >= capacity);
        !is_full || !self.decision.outcome().is_known()
    }
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// A caller by the name of a rule and its key as people write it: `user=42`, or `42` where that can
    /// mean only one thing.
    pub fn caller(&self, rule: &str, key: &str) -> Result<Caller<'_, S, C>, CallerError> {
        self.caller_at(rule, key, self.clock_instant(self.now()))
    }

    /// The same at an instant of your choosing.
    pub fn caller_at<'a>(
        &'a self,
        rule: &str,
        key: &str,
        now: impl Into<Now<'a>>,
    ) -> Result<Caller<'a, S, C>, CallerError> {
        let rules = self.rules();
        let names = || rules.rules().map(|rule| &*rule.name);
        let Some(number) = names().position(|name| name == rule) else {
            let problem = Problem::new(format!("there is no rule {rule:?}"));
            let hint = suggest(rule, names()).map(|name| format!("did you mean `{name}`?"));
            let problem = match hint {
                Some(hint) => problem.hint(hint),
                None => problem,
            };
            return Err(CallerError::NoRule(problem));
        };
        let number = number as u32;
        let identify = &rules.settings().identify;
        let key =
            rules.rule_at(number).key.parse_key(key, identify).map_err(CallerError::BadKey)?;
        Ok(Caller { gatekeeper: self, rules, rule: number, key, now: now.into() })
    }
}

/// The reason why a caller cannot be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallerError {
    /// There is no such rule.
    NoRule(Problem),
    /// This cannot be one of the rule's keys.
    BadKey(Problem),
}

impl<S: InfallibleStore, C: Clock> Caller<'_, S, C> {
    /// The rule.
    pub fn rule(&self) -> &Rule {
        self.rules.rule_at(self.rule)
    }

    /// The hash of the rule's name, with which observers tell rules apart.
    pub fn rule_hash(&self) -> u64 {
        self.rules.name_hash_of(self.rule)
    }

    /// The key that is counted.
    pub fn key(&self) -> &KeyBuf {
        &self.key
    }

    /// The instant of all operations.
    pub fn at(&self) -> Micros {
        self.now.instant()
    }

    /// Reports what the caller has used.
    pub async fn report(&self) -> KeyReport {
        let mut limits = Vec::new();
        for one in &self.applying_limits() {
            limits.push(self.report_of(one).await);
        }
        let blocked_for = self.store().blocked((&self.block_key()).into(), self.at());
        let is_used = limits.iter().any(KeyLimit::is_used);
        KeyReport {
            blocked_for,
            replaced_by: self.replaced_by().cloned(),
            tier: self.known_tier(&limits).map(Box::from),
            is_kept: is_used || blocked_for.is_some() || self.replaced_by().is_some(),
            at_run_time: self.override_number().is_some_and(|one| self.rules.is_run_time(one)),
            leniency: self.leniency(),
            refuses_everything: Unit::ALL
                .into_iter()
                .any(|unit| self.allows(ImportedAllowance::Nothing(unit))),
            limits,
        }
    }

    async fn report_of(&self, one: &CallerLimit<'_>) -> KeyLimit {
        let limit = &one.limit.limit;
        let check = self.check(limit, &one.key).act(Act::Peek);
        let outcome = &mut [Outcome::default()];
        let Ok(decision) = self.store().decide_each(&[check], self.now, outcome).await;
        let Ok(balance) = self.store().balance(&check, self.at()).await;
        KeyLimit {
            tier: one.tier.map(Box::from),
            limit: one.limit.text.clone(),
            rate: rate_text(limit),
            capacity: limit.capacity(),
            balance,
            decision,
        }
    }

    fn check<'k>(&self, limit: &'k Limit, key: &'k KeyBuf) -> Check<'k> {
        Check::new(limit, key).terms(self.rule().terms)
    }

    fn store(&self) -> &S {
        self.gatekeeper.store()
    }

    /// The reason why the rule does not refuse this caller, if there is one.
    pub fn leniency(&self) -> Option<Leniency> {
        let rule = self.rule();
        match rule.mode {
            _ if self.is_exempt() => Some(Leniency::Exempt),
            Mode::Off => Some(Leniency::Off),
            mode if !mode.enforces(&rule.name, &self.key) => Some(Leniency::Shadow),
            _ if rule.soft => Some(Leniency::Soft),
            _ if self.allows(ImportedAllowance::Everything) => Some(Leniency::Unlimited),
            _ => None,
        }
    }

    /// Returns true if the imported file has this allowance for the caller, and no override
    /// replaces it.
    fn allows(&self, how_much: ImportedAllowance) -> bool {
        let imported = self.rule().imported.as_ref();
        imported.is_some_and(|one| one.allows == how_much) && self.replaced_by().is_none()
    }

    /// Returns true if no rule applies to the caller that the key names. Requests may also be
    /// exempt for facts that are not in the key.
    fn is_exempt(&self) -> bool {
        let RuleSettings { exempt_ips, exempt_users, identify, .. } = self.rules.settings();
        // A key of IPv6 is a network: all of it has to be exempt.
        let holds = |net: &IpNet, ip: IpAddr| {
            net.contains(&ip) && (ip.is_ipv4() || net.prefix_len() <= identify.ipv6_prefix)
        };
        self.key.parts().any(|(name, value)| match name {
            "user" => exempt_users.contains(value),
            "ip" => value.parse().is_ok_and(|ip| exempt_ips.iter().any(|net| holds(net, ip))),
            _ => false,
        })
    }

    /// Resets the counts, refusals that count towards a ban, and a block. Returns true if there was
    /// anything.
    pub async fn reset(&self) -> bool {
        let unblocked = self.unblock().await;
        self.reset_use().await | unblocked
    }

    /// The same, but a block stays.
    pub async fn reset_use(&self) -> bool {
        let mut found = false;
        for (limit, key) in self.limits_with_keys() {
            let Ok(reset) = self.store().reset(&self.check(limit, &key), self.at()).await;
            found |= reset;
            self.gatekeeper.waiting.free_limit(limit, &key);
        }
        if let Some(ban) = &self.rule().ban {
            let counts = [
                (&ban.refusals, "refusals"),
                (&ban.refusals, SHADOW_REFUSALS),
                (&ban.shadow_block, SHADOW_BLOCK),
            ];
            for (limit, scope) in counts {
                let key = self.rule().scoped(scope, &self.key);
                let Ok(reset) = self.store().reset(&self.check(limit, &key), self.at()).await;
                found |= reset;
            }
        }
        self.forget_derived();
        found
    }

    /// Gives back units of every limit, as far as they are used.
    pub async fn grant(&self, units: u64) {
        for (limit, key) in self.limits_with_keys() {
            let check = self.check(limit, &key).cost(units);
            let Ok(()) = self.store().refund(&check, None, self.now).await;
            self.gatekeeper.waiting.free_limit(limit, &key);
        }
        self.forget_derived();
    }

    /// Makes the store forget remembered refusals if a count is kept under several sets of numbers:
    /// it remembers them by these numbers, and the change before named only one set.
    fn forget_derived(&self) {
        if self.has_several_numbers() {
            self.store().limits_changed();
        }
    }

    /// Refuses everything under this rule, for so long; a longer block stays. `false`: the bounded
    /// table of blocks is full.
    pub async fn block(&self, duration: Duration) -> bool {
        let until = self.at().after(Wait::at_least(duration));
        let Ok(blocked) = self.store().block((&self.block_key()).into(), until, self.at()).await;
        blocked
    }

    /// Lifts a block, also one that follows from a ban. Returns true if there was one.
    pub async fn unblock(&self) -> bool {
        let Ok(found) = self.store().unblock((&self.block_key()).into(), self.at()).await;
        found
    }

    /// Sets other limits for this caller, as `overrides:` of a file does; `fields` has `limits` and
    /// may have `until`. They replace any set before.
    pub fn set_override(&self, fields: &Value) -> Result<Arc<Override>, OverrideError> {
        let one = self.read_override(fields).map_err(OverrideError::Wrong)?;
        self.gatekeeper.change_overrides(self.at(), |overrides| {
            overrides.retain(|other| !self.is_for_this_caller(other));
            if overrides.len() >= RUN_TIME_OVERRIDES_MAX {
                return Err(OverrideError::TooMany);
            }
            overrides.push(one.clone());
            Ok(one)
        })
    }

    /// Removes the override of [`set_override`](Caller::set_override). Returns true if there was
    /// one.
    pub fn remove_override(&self) -> bool {
        let removed = self.gatekeeper.change_overrides(self.at(), |overrides| {
            let before = overrides.len();
            overrides.retain(|other| !self.is_for_this_caller(other));
            Ok::<bool, OverrideError>(overrides.len() < before)
        });
        removed.unwrap_or(false)
    }

    fn is_for_this_caller(&self, other: &Override) -> bool {
        *other.rule == *self.rule().name && other.key == self.key
    }

    /// Reads an override in the syntax of a rules file.
    pub(crate) fn read_override(&self, fields: &Value) -> Result<Arc<Override>, Diagnostics> {
        let mut entry = json!({ "rule": &*self.rule().name, "key": key_text(&self.key) });
        match fields.as_object() {
            None => entry["limits"] = fields.clone(),
            Some(fields) => {
                for (name, value) in fields {
                    // A `Caller` already has its rule and its key.
                    if name == "rule" || name == "key" {
                        let problem = Problem::new(format!("`{name}` cannot be given here"))
                            .hint("write `limits` and, if it is to end, `until`");
                        return Err(Diagnostic::of_file("override", problem).into());
                    }
                    entry[name] = value.clone();
                }
            }
        }
        let text = json!({ "overrides": [entry] }).to_string();
        let source = Source::from_text("override", &escape_for_yaml(&text));
        let mut read = read_overrides(&source, &self.rules, self.at())?;
        let one = read.pop().expect("an entry without errors is an override");
        Ok(Arc::new(Override {
            rule: self.rule().name.as_ref().into(),
            key: self.key.clone(),
            ..one
        }))
    }

    fn replaced_by(&self) -> Option<&Arc<Override>> {
        Some(&self.rules.overrides()[self.override_number()? as usize])
    }

    fn override_number(&self) -> Option<u32> {
        self.rules.override_of(self.rule, &self.key, self.at())
    }

    fn block_key(&self) -> KeyBuf {
        self.rule().scoped("block", &self.key)
    }

    /// The limits that apply.
    fn applying_limits(&self) -> Vec<CallerLimit<'_>> {
        if let Some(other) = self.replaced_by() {
            let counted = |limit| CallerLimit { tier: None, limit, key: self.key.clone() };
            return other.limits.iter().map(counted).collect();
        }
        let mut all = self.limits_of_all_tiers();
        if let Some(tier) = self.tier() {
            let own = all.iter().any(|one| one.tier == Some(tier)).then_some(tier);
            all.retain(|one| one.tier == own);
        }
        all
    }

    /// The tier of the key's user, if the rules have a table of tiers by user.
    fn tier(&self) -> Option<&str> {
        let (_, user) = self.key.parts().find(|(name, _)| *name == "user")?;
        let tier = self.rules.settings().identify.tier_of_user.get(user)?;
        Some(tier)
    }

    /// The tier that the caller counts under, judged by the use of its limits.
    fn known_tier<'t>(&'t self, limits: &'t [KeyLimit]) -> Option<&'t str> {
        let used = || {
            let mut tiers =
                limits.iter().filter(|one| one.is_used()).map(|one| one.tier.as_deref());
            let first = tiers.next()??;
            tiers.all(|other| other == Some(first)).then_some(first)
        };
        let identify = &self.rules.settings().identify;
        let default = || identify.default_tier.as_deref().filter(|_| !identify.finds_tiers());
        self.tier().or_else(used).or_else(default)
    }

    /// Returns true if users are identified by their API key and the key has a user that is no hash of one: only a
    /// check that states its user can mean it.
    pub fn names_unhashed_user(&self) -> bool {
        has_unhashed_user(&self.key, &self.rules.settings().identify)
    }

    /// The limits of callers without a tier, then of each tier that counts on its own.
    fn limits_of_all_tiers(&self) -> Vec<CallerLimit<'_>> {
        let limits = &self.rule().limits;
        let names = self.rules.tiers().into_iter().enumerate();
        let own = names.filter_map(|(index, name)| {
            let (list, own) = limits.of(Some(index));
            own.then(|| (list, Some(name), tier_key(&self.key, name)))
        });
        let plain = self.rules.limits_after_override(self.rule, &self.key);
        std::iter::once((plain.unwrap_or_else(|| limits.plain()), None, self.key.clone()))
            .chain(own)
            .flat_map(|(list, tier, key)| {
                list.iter().map(move |limit| CallerLimit { tier, limit, key: key.clone() })
            })
            .collect()
    }

    /// Returns true if a count of this caller is kept under several sets of numbers, for example
    /// those of a tier or an override. [`reset`](Caller::reset) and [`grant`](Caller::grant) name
    /// only one of them to the store.
    fn has_several_numbers(&self) -> bool {
        let replaced = self.replaced_by().map_or(0, |other| other.limits.len());
        self.limits_of_all_tiers().len() + replaced > self.limits_with_keys().len()
    }

    /// Every count that this caller can have under the rule, each once.
    fn limits_with_keys(&self) -> Vec<(&Limit, KeyBuf)> {
        let mut seen = HashSet::new();
        let replaced = self.replaced_by().map(|other| &other.limits[..]).unwrap_or_default();
        let replaced = replaced.iter().map(|one| (&*one.limit, self.key.clone()));
        let all = self.limits_of_all_tiers();
        let all = all.into_iter().map(|one| (&*one.limit.limit, one.key));
        all.chain(replaced).filter(|(limit, key)| seen.insert((limit.id(), key.clone()))).collect()
    }
}

/// The rate of a limit, with the burst of a bucket, as a rules file has it.
fn rate_text(limit: &Limit) -> Box<str> {
    let burst = limit.algorithm().is_bucket().then(|| format!(" burst {}", limit.capacity()));
    format!("{}{}", limit.rate(), burst.unwrap_or_default()).into()
}

/// Escapes the characters in JSON texts that YAML does not allow.
fn escape_for_yaml(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for one in json.chars() {
        match one {
            '\u{7f}'..='\u{9f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(one)));
            }
            one => text.push(one),
        }
    }
    text
}

/// A limit and the key that it counts.
struct CallerLimit<'a> {
    tier: Option<&'a str>,
    limit: &'a RuleLimit,
    key: KeyBuf,
}

/// The reason why an override was not set.
#[derive(Debug)]
pub enum OverrideError {
    /// The override has errors.
    Wrong(Diagnostics),
    /// There are [`RUN_TIME_OVERRIDES_MAX`] already.
    TooMany,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile;
    use crate::gatekeeper::expect_ready;

    #[test]
    fn the_rates_of_a_report_are_an_override_with_the_same_limits() {
        let limits = [
            "100/minute",
            "[10/second, 100/minute burst 20, 1000/day]",
            "{ rate: 5/minute, algorithm: sliding_window_log }",
            "{ rate: 2/second, burst: 20, algorithm: leaky_bucket, queue: true }",
            "{ rate: 4/second, algorithm: leaky_bucket, queue: true }",
            "{ rate: 60/minute, algorithm: token_bucket }",
            "{ rate: 1000/day, algorithm: fixed_window, align: calendar, time_zone: Europe/Berlin }",
            "{ rate: 5000/month, time_zone: Europe/Berlin }",
            "{ rate: 7/90s, algorithm: fixed_window, align: first_hit }",
            "{ rate: 60/minute, algorithm: sliding_window_counter, buckets: 6 }",
        ];
        for limits in limits {
            let text = format!("rules: [{{ name: api, key: '{{user}}', limits: {limits} }}]");
            let rules = compile(&[Source::from_text("rules.yaml", &text)]).rules.unwrap();
            let gatekeeper = Gatekeeper::in_memory(rules, 100);
            let report = || {
                let caller = gatekeeper.caller("api", "user=42").unwrap();
                (expect_ready(caller.report()), caller)
            };
            let (before, caller) = report();
            let rates: Vec<&str> = before.limits.iter().map(|one| &*one.rate).collect();
            caller.set_override(&json!({ "limits": rates })).expect(limits);
            let texts = |report: &KeyReport| -> Vec<Box<str>> {
                report.limits.iter().map(|one| one.limit.clone()).collect()
            };
            let (after, _) = report();
            assert!(after.replaced_by.is_some(), "{limits}");
            assert_eq!(texts(&after), texts(&before), "{limits}");
        }
    }

    #[test]
    fn overrides_at_run_time_are_bounded() {
        let text = "rules: [{ name: api, key: '{user}', limits: [10/hour] }]";
        let rules = compile(&[Source::from_text("rules.yaml", text)]).rules.unwrap();
        let gatekeeper = Gatekeeper::in_memory(rules, 1_000);
        let set = |user: usize| {
            let caller = gatekeeper.caller("api", &format!("user={user}")).unwrap();
            caller.set_override(&json!(["5/hour"]))
        };
        let one = set(0).unwrap();
        let fill = |overrides: &mut Vec<Arc<Override>>| {
            overrides.extend((1..RUN_TIME_OVERRIDES_MAX).map(|user| {
                let key = KeyBuf::new().with("user", &user.to_string());
                Arc::new(Override { key, ..(*one).clone() })
            }));
            Ok::<(), ()>(())
        };
        gatekeeper.change_overrides(gatekeeper.now(), fill).unwrap();
        assert!(matches!(set(RUN_TIME_OVERRIDES_MAX), Err(OverrideError::TooMany)));
        assert!(set(7).is_ok(), "one takes the place of its own");
        assert!(gatekeeper.caller("api", "user=9").unwrap().remove_override());
        assert!(set(RUN_TIME_OVERRIDES_MAX).is_ok());
        assert_eq!(gatekeeper.overrides().len(), RUN_TIME_OVERRIDES_MAX);
    }
}
