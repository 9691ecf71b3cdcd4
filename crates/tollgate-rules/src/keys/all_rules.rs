//! One caller under every rule that counts by its fact: `user=42` under `{user}` and `{user|ip}`.

use std::sync::Arc;

use tollgate::Clock;

use super::{Caller, CallerError};
use crate::gatekeeper::{Gatekeeper, InfallibleStore, RulesVersion};
use crate::problem::Problem;
use crate::suggest::suggest;

/// The callers that one fact names.
#[derive(Debug)]
pub struct AllRulesCallers<'a, S, C> {
    /// The caller under each rule that counts by the fact alone; at least one.
    pub callers: Vec<Caller<'a, S, C>>,
    /// The other rules that count by the fact.
    pub left_out: Vec<RuleLeftOut>,
}

/// A rule that counts by a fact, and yet has no key that consists of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLeftOut {
    /// Its name.
    pub rule: Box<str>,
    /// The reason.
    pub reason: Problem,
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// The caller of one key under every rule that counts by its fact alone. The key is `user=42` with the name of
    /// its fact; a comma in its value is written as `%2C`.
    pub fn callers_in_all_rules(
        &self,
        key: &str,
    ) -> Result<AllRulesCallers<'_, S, C>, CallerError> {
        let name = name_of_fact(key).map_err(CallerError::BadKey)?;
        let rules = self.rules();
        let identify = &rules.settings().identify;
        let (mut callers, mut left_out, mut bad_key) = (Vec::new(), Vec::new(), None);
        for (rule, number) in rules.rules().zip(0..) {
            if !rule.key.counts_by(name, identify) {
                continue;
            }
            let reason = match rule.key.parse_key(key, identify) {
                _ if rule.key.parts().count() > 1 => other_parts(&rule.key.to_string()),
                Err(problem) => bad_key.insert(problem).clone(),
                Ok(key) => {
                    // Numbers of rules mean something only in the version that they were taken from.
                    let rules = RulesVersion::from_inner(Arc::clone(&rules));
                    let now = self.clock_instant(self.now());
                    callers.push(Caller { gatekeeper: self, rules, rule: number, key, now });
                    continue;
                }
            };
            left_out.push(RuleLeftOut { rule: rule.name.as_ref().into(), reason });
        }
        match (callers.is_empty(), bad_key, left_out.first()) {
            (false, ..) => Ok(AllRulesCallers { callers, left_out }),
            (true, Some(problem), _) => Err(CallerError::BadKey(problem)),
            (true, None, Some(RuleLeftOut { rule, reason })) => {
                let alone = format!("no rule counts by `{name}` alone; {rule}: {reason}");
                Err(CallerError::NoRule(Problem::new(alone)))
            }
            (true, None, None) => {
                let facts = rules.rules().flat_map(|rule| rule.key.parts().flatten());
                Err(CallerError::NoRule(no_rule_counts_by(name, facts.collect())))
            }
        }
    }
}

/// The name of the fact that a key begins with.
fn name_of_fact(key: &str) -> Result<&str, Problem> {
    let Some((name, value)) = key.split_once('=') else {
        // A bare value would be a user under one rule and an address under the next.
        return Err(Problem::new("the key does not begin with the name of its fact")
            .hint("write it as in user=42"));
    };
    if value.contains(',') {
        let hint = "write a comma in a value as %2C, such as user=a%2Cb; block a key of several parts under its own rule";
        return Err(Problem::new("the key has a comma, which separates parts of a key").hint(hint));
    }
    Ok(name.trim())
}

fn other_parts(key: &str) -> Problem {
    Problem::new(format!("its key is {key}: block the whole key under this rule"))
}

fn no_rule_counts_by(name: &str, mut facts: Vec<String>) -> Problem {
    facts.sort();
    facts.dedup();
    let problem = Problem::new(format!("no rule counts by `{name}`"));
    match suggest(name, facts.iter().map(String::as_str)) {
        Some(fact) => problem.hint(format!("did you mean `{fact}`?")),
        None if facts.is_empty() => problem.hint("all rules count all callers together"),
        None => problem.hint(format!("the rules count by {}", facts.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tollgate::{MemoryStore, Micros};

    use super::*;
    use crate::compile;
    use crate::rule_set::RuleSet;
    use crate::source::Source;

    const RULES: &str = "
rules:
  - { name: api, key: '{user|ip}', limits: [10/hour] }
  - { name: login, key: '{user}', limits: [10/hour] }
  - { name: export, key: '{user}:{path}', limits: [10/hour] }
  - { name: addresses, key: '{ip}', limits: [10/hour] }
  - { name: reports, key: '{tier}:{path}', limits: [10/hour] }
  - { name: all, key: global, limits: [10/hour] }
";

    fn rules(text: &str) -> RuleSet {
        compile(&[Source::from_text("rules.yaml", text)]).rules.expect("right rules")
    }

    /// A clock that does something at its first reading.
    struct ActingClock(Mutex<Option<Box<dyn FnOnce() + Send>>>);

    impl Clock for ActingClock {
        fn now(&self) -> Micros {
            let act = self.0.lock().unwrap().take();
            act.into_iter().for_each(|act| act());
            Micros::new(1_000_000_000)
        }
    }

    /// The callers and the rules left out, as text, or the error.
    fn found(text: &str, key: &str) -> Result<(String, String), String> {
        let rules = rules(text);
        let gatekeeper = Gatekeeper::in_memory(rules, 100);
        let found = gatekeeper.callers_in_all_rules(key).map_err(|error| match error {
            CallerError::NoRule(problem) => format!("no rule: {problem}"),
            CallerError::BadKey(problem) => format!("bad key: {problem}"),
        })?;
        let callers = found.callers.iter().map(|one| {
            format!("{} {}", one.rule().name, crate::key_part_texts(one.key()).join("+"))
        });
        let left_out = found.left_out.iter().map(|one| format!("{}: {}", one.rule, one.reason));
        let joined = |texts: Vec<String>| texts.join("; ");
        Ok((joined(callers.collect()), joined(left_out.collect())))
    }

    #[test]
    fn each_rule_has_its_caller_or_its_reason() {
        let export = "export: its key is {user}:{path}: block the whole key under this rule";
        // key | callers | rules left out
        let rows = [
            ("user=42", "api user=42; login user=42", export),
            ("user=a%2Cb", "api user=a%2Cb; login user=a%2Cb", export),
            ("user=a=b", "api user=a=b; login user=a=b", export),
            ("ip=192.0.2.1", "api ip=192.0.2.1; addresses ip=192.0.2.1", ""),
        ];
        for (key, callers, left_out) in rows {
            assert_eq!(found(RULES, key), Ok((callers.into(), left_out.into())), "{key}");
        }
    }

    #[test]
    fn rules_that_are_replaced_meanwhile_change_no_caller() {
        let clock = Arc::new(ActingClock(Mutex::default()));
        let gatekeeper = Gatekeeper::new(rules(RULES), MemoryStore::new(100), Arc::clone(&clock));
        let gatekeeper = Arc::new(gatekeeper);
        let replaced = Arc::clone(&gatekeeper);
        let replace = move || {
            replaced.replace(rules("rules: [{ name: new, key: '{ip}', limits: [1/hour] }]"));
        };
        *clock.0.lock().unwrap() = Some(Box::new(replace));
        let found = gatekeeper.callers_in_all_rules("user=42").unwrap();
        assert_eq!(gatekeeper.rules().rules().len(), 1);
        let names: Vec<&str> = found.callers.iter().map(|one| &*one.rule().name).collect();
        assert_eq!(names, ["api", "login"]);
    }

    #[test]
    fn a_key_that_means_something_else_is_refused_with_what_to_write() {
        // key | problem | part of the hint
        let rows = [
            ("user=a,b", "bad key: the key has a comma", "user=a%2Cb"),
            ("user=42,path=/x", "bad key: the key has a comma", "under its own rule"),
            ("42", "bad key: the key does not begin with the name of its fact", "user=42"),
            ("usr=42", "no rule: no rule counts by `usr`", "did you mean `user`?"),
            ("method=GET", "no rule: no rule counts by `method`", "count by ip, path, tier, user"),
            ("USER=42", "bad key: the key begins with \"USER\"", "write `user=42`"),
            ("user=", "bad key: the key \"user=\" has an empty value", "user=…"),
            ("ip=10.0.0.999", "bad key: \"10.0.0.999\" is not an address", "192.0.2.1"),
            (
                "tier=pro",
                "no rule: no rule counts by `tier` alone; reports: its key is {tier}:{path}",
                "block the whole key",
            ),
        ];
        for (key, problem, hint) in rows {
            let told = found(RULES, key).unwrap_err();
            assert!(told.starts_with(problem) && told.contains(hint), "{key}: {told}");
        }
        let global = "rules: [{ name: all, key: global, limits: [10/hour] }]";
        assert!(found(global, "user=42").unwrap_err().contains("all callers together"));
    }

    #[test]
    fn a_wrong_value_is_the_reason_and_not_the_parts_of_another_rule() {
        let rules = "
rules:
  - { name: export, key: '{ip}:{path}', limits: [10/hour] }
  - { name: addresses, key: '{ip}', limits: [10/hour] }
";
        let told = found(rules, "ip=nowhere").unwrap_err();
        assert!(told.starts_with("bad key: \"nowhere\" is not an address"), "{told}");
    }

    #[test]
    fn an_api_key_is_the_user_of_every_rule_and_is_not_shown() {
        let rules = "
identify: { user: { api_key: { header: x-api-key } } }
rules:
  - { name: login, key: '{user}', limits: [10/hour] }
  - { name: export, key: '{user}:{path}', limits: [10/hour] }
";
        let (callers, left_out) = found(rules, "api_key=abc").unwrap();
        assert_eq!(callers, "login user=sha256:ba7816bf8f01cfea414140de5dae2223");
        assert!(left_out.starts_with("export: its key is {user}:{path}"), "{left_out}");
        assert!(!found(rules, "api_key=abc,d").unwrap_err().contains("abc"));
    }
}
