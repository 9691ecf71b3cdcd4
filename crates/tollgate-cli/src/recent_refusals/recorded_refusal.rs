//! One refusal as it is kept: what a list shows of it, and its explanation.

use tollgate::{Micros, Wait};
use tollgate_rules::explain::RefusalExplanation;

use crate::explanation_json::refusal_json;
use crate::key_names::KeyNames;

/// Most bytes of the explanation of one refusal. A longer one is kept without its rules.
pub(super) const STORY_BYTES_MAX: usize = 16 << 10;

/// A refused request. It has no credentials.
#[derive(Debug)]
pub(crate) struct RecordedRefusal {
    /// The name to ask for it by.
    pub(crate) id: String,
    pub(crate) at: Micros,
    /// The rule that refused; `None` if no rule did.
    pub(crate) rule: Option<String>,
    pub(crate) limit: Option<String>,
    /// The key under that rule as people read it.
    pub(crate) key: Option<String>,
    /// The key as logs name it.
    pub(crate) hash: Option<String>,
    pub(crate) cost: Option<u64>,
    pub(crate) retry_after: Wait,
    pub(crate) reason: &'static str,
    pub(crate) decided_by: &'static str,
    pub(crate) method: Option<String>,
    pub(crate) path: Option<String>,
    /// The explanation in JSON.
    pub(crate) story: Box<str>,
}

impl RecordedRefusal {
    /// A refusal with its explanation.
    pub(super) fn new(
        id: String,
        explained: &RefusalExplanation,
        names: &KeyNames,
    ) -> RecordedRefusal {
        let binding = explained.binding.as_ref();
        let of_rule =
            binding.and_then(|(rule, _)| explained.rules.iter().find(|one| one.name == *rule));
        let key = of_rule.and_then(|rule| rule.key.as_ref());
        let fact = |name: &str| {
            explained.facts.iter().find(|fact| fact.name == name).map(|fact| fact.value.clone())
        };
        let mut story = refusal_json(explained, &id, names).to_string();
        if story.len() > STORY_BYTES_MAX {
            let short = RefusalExplanation { rules: Vec::new(), ..explained.clone() };
            story = refusal_json(&short, &id, names).to_string();
        }
        RecordedRefusal {
            id,
            at: explained.at,
            rule: binding.map(|(rule, _)| rule.to_string()),
            limit: binding.map(|(_, limit)| limit.clone()),
            key: key.and_then(|key| key.text.clone()),
            hash: key.and_then(|key| key.caller.as_ref()).map(|key| names.hash(key)),
            cost: explained.cost,
            retry_after: explained.retry_after,
            reason: explained.refusal.name(),
            decided_by: explained.decided_by.name(),
            method: fact("method"),
            path: fact("path"),
            story: story.into(),
        }
    }
}
