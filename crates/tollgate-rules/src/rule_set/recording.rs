//! Support for recordings: the headers that a replay needs, and a copy of the rules that a replay may count in.

use std::borrow::Cow;
use std::sync::Arc;

use super::{BaseRules, RuleSet};
use crate::credentials::HiddenCredentials;
use crate::facts::Facts;
use crate::identify::api_key::hash_api_key;
use crate::identify::without_scheme;
use crate::matcher::Condition;
use crate::rule::Rule;

/// The most headers of one rule set that are worth recording.
const RECORDED_HEADERS_MAX: usize = 32;

/// A header that rules look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedHeader {
    /// The name in lower case.
    pub name: Box<str>,
    /// True if it carries a credential: only a hash of it may be recorded.
    pub is_credential: bool,
    /// True if keys are made of it.
    pub is_in_key: bool,
}

impl RuleSet {
    /// The headers that rules look at in conditions and keys, by name, at most 32.
    pub fn recorded_headers(&self) -> &[RecordedHeader] {
        &self.base.recorded_headers
    }

    /// The same rules with counts of their own, for a replay that must not change those of the server.
    #[must_use]
    pub fn for_replay(&self) -> RuleSet {
        let mut base = BaseRules::clone(&self.base);
        for indexed in base.rules.iter_mut().chain(&mut base.stated) {
            (indexed.tally, indexed.waits) = (Arc::default(), Arc::default());
        }
        let at_run_time = &self.overrides.list[self.overrides.file_count..];
        RuleSet::of(Arc::new(base), at_run_time, &[])
    }

    /// The tier that rules assign to the caller of these facts.
    pub fn tier_of_caller<'a>(&'a self, facts: &'a Facts<'a>) -> Option<&'a str> {
        self.normalized_facts(facts).tier
    }

    /// The API key as rules see it: without the scheme of `Authorization`.
    pub fn api_key_of_caller<'a>(&self, facts: &Facts<'a>) -> Option<&'a str> {
        let api_key = facts.api_key.map(|api_key| self.settings().identify.without_scheme(api_key));
        api_key.filter(|api_key| !api_key.is_empty())
    }

    /// The user as rules see it: the stated one, or the hash of a stated API key where that identifies users.
    pub fn user_of_caller<'a>(&'a self, facts: &'a Facts<'a>) -> Option<Cow<'a, str>> {
        let stated = facts.user.filter(|user| !user.is_empty()).map(Cow::Borrowed);
        // Recording asks for each request: the facts are made ready only where a key can be the user.
        let may_be_key =
            facts.api_key.is_some() && self.settings().identify.finds_users_by_api_key();
        if stated.is_some() || !may_be_key {
            return stated;
        }
        Some(Cow::Owned(self.normalized_facts(facts).user()?.to_owned()))
    }
}

/// The hash of a header's credential, without the scheme of `Authorization`, as keys have it: `Bearer k` and `bearer  k`
/// are one caller.
pub fn hash_header_credential(name: &str, value: Cow<'_, str>) -> String {
    hash_credential(&without_scheme(name, value))
}

/// The hash of a credential, as keys and recordings have it.
pub fn hash_credential(credential: &str) -> String {
    hash_api_key(credential).to_string()
}

impl BaseRules {
    /// Notes the headers that a rule looks at.
    pub(super) fn note_headers(&mut self, rule: &Rule) {
        let mut names: Vec<&str> = Vec::new();
        if let Some(condition) = &rule.condition {
            add_headers(condition, &mut names);
        }
        if rule.websocket.is_some() {
            names.push("upgrade");
        }
        if rule.reads_host() {
            names.push("host");
        }
        let in_keys = rule.key.headers().map(|name| (name, true));
        for (name, is_in_key) in names.into_iter().map(|name| (name, false)).chain(in_keys) {
            // A host has no namesake: servers find it by its own name only.
            if name != "host" {
                self.read_headers.insert(name);
            }
            let is_credential = HiddenCredentials(&self.settings.identify).hides_header(name);
            let headers = &mut self.recorded_headers;
            match headers.binary_search_by(|known| (*known.name).cmp(name)) {
                Ok(index) => headers[index].is_in_key |= is_in_key,
                Err(_) if headers.len() >= RECORDED_HEADERS_MAX => {}
                Err(index) => {
                    let name = name.into();
                    headers.insert(index, RecordedHeader { name, is_credential, is_in_key });
                }
            }
        }
    }
}

fn add_headers<'a>(condition: &'a Condition, names: &mut Vec<&'a str>) {
    match condition {
        Condition::Header { name, .. } => names.push(name),
        Condition::Upgrade(_) => names.push("upgrade"),
        Condition::All(parts) | Condition::Any(parts) => {
            parts.iter().for_each(|part| add_headers(part, names));
        }
        Condition::Not(inner) => add_headers(inner, names),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gatekeeper::{Ask, Gatekeeper};
    use crate::tally::Verdict;
    use crate::{Source, compile};

    fn rules(text: &str) -> RuleSet {
        let compiled = compile(&[Source::from_text("rules.yaml", text)]);
        compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics))
    }

    #[test]
    fn headers_of_conditions_and_keys_are_recorded() {
        let rules = rules(
            "identify: { api_key: { header: x-own-key } }
rules:
  - name: a
    match: { all: [{ path: /a }, { not: { header: { X-Tenant: acme } } }], header: { cookie: { present: true } } }
    key: '{header.x-tenant|ip}'
    limits: [1/s]
  - { name: b, match: { path: /b }, key: '{header.x-own-key}:{header.x-team}', limits: [1/s] }
  - { name: ws, match: { path: /ws, upgrade: websocket }, key: global, limits: [1/s] }
",
        );
        let told: Vec<_> = rules
            .recorded_headers()
            .iter()
            .map(|one| (&*one.name, one.is_credential, one.is_in_key))
            .collect();
        let want = [
            ("cookie", true, false),
            ("upgrade", false, false),
            ("x-own-key", true, true),
            ("x-team", false, true),
            ("x-tenant", false, true),
        ];
        assert_eq!(told, want);
        assert_eq!(hash_credential("abc"), "sha256:ba7816bf8f01cfea414140de5dae2223");
    }

    #[test]
    fn the_list_of_headers_is_bounded() {
        let names: String = (0..50).map(|number| format!("{{header.x-{number}}}")).collect();
        let parts: Vec<&str> = names.split_inclusive('}').collect();
        let rules: String = parts
            .chunks(5)
            .enumerate()
            .map(|(n, keys)| {
                format!("  - {{ name: r{n}, key: '{}', limits: [1/s] }}\n", keys.concat())
            })
            .collect();
        let rules = self::rules(&format!("rules:\n{rules}"));
        assert_eq!(rules.recorded_headers().len(), RECORDED_HEADERS_MAX);
    }

    #[test]
    fn a_replay_counts_for_itself() {
        let text = "rules: [{ name: api, key: global, limits: [2/h] }]\n\
            overrides: [{ rule: api, key: global, limits: [1/h] }]";
        let live = Gatekeeper::in_memory(rules(text), 100);
        let copy = live.rules().for_replay();
        assert_eq!(copy.overrides().len(), 1);
        let replayed = Gatekeeper::in_memory(copy, 100);
        let allowed = (0..3).filter(|_| replayed.decide(&Ask::default()).allowed()).count();
        assert_eq!(allowed, 1, "overrides apply");
        let refused = |rules: &RuleSet| {
            rules.tallies().map(|(_, tally)| tally.count(Verdict::Refused)).sum::<u64>()
        };
        assert_eq!((refused(&replayed.rules()), refused(&live.rules())), (2, 0));
    }
}
