//! Explains a refusal at the moment at which observers see it, from what was decided: nothing is
//! looked up again.

use std::sync::Arc;

use tollgate::{DecidedBy, Micros, Refusal, Wait};

use crate::observer::{DecidedRequest, RuleVerdict};
use crate::tally::Verdict;

use super::applied_rule::{RuleContext, plain_rule, refusing_result};
use super::explained_verdict::ExplainedVerdict;
use super::shorten::shorten;
use super::work_in_progress::refusing_bound;
use super::{ExplainedFact, ExplainedRetry, ExplainedRule};
use super::{explained_facts, retry_text, summary};
use crate::credentials::HiddenCredentials;

/// The explanation of a refused request. It has only the rules that applied, and no credentials.
#[derive(Clone, Debug)]
pub struct RefusalExplanation {
    /// The instant of the decision.
    pub at: Micros,
    /// The reason.
    pub refusal: Refusal,
    /// The part of the system that decided.
    pub decided_by: DecidedBy,
    /// The wait after which the same request passes.
    pub retry_after: Wait,
    /// The rule that refused and its limit; `None` if no rule did, as for too many limits.
    pub binding: Option<(Arc<str>, String)>,
    /// The cost under that rule.
    pub cost: Option<u64>,
    /// The explanation in a sentence.
    pub summary: String,
    /// The facts as rules saw them; none for descriptors.
    pub facts: Vec<ExplainedFact>,
    /// The rules that applied, in order.
    pub rules: Vec<ExplainedRule>,
    /// The next try.
    pub retry: Option<ExplainedRetry>,
}

impl DecidedRequest<'_> {
    /// Explains a refusal; `None` if the request was admitted. It takes some microseconds and
    /// allocates, so call it for some refusals of a flood only.
    pub fn explain_refusal(&self) -> Option<RefusalExplanation> {
        let (plan, decision) = (self.plan(), self.decision());
        let refusal = decision.refusal()?;
        let rules = plan.rules();
        let context = RuleContext {
            plan,
            seen: plan.facts.map(|facts| rules.normalized_facts(facts)),
            outcomes: self.outcomes(),
            // A refusal charged nothing, so its outcomes are of the present states.
            present: self.outcomes(),
            states: &[],
            secrets: HiddenCredentials(&rules.settings().identify),
            at: decision.at(),
        };
        let refusing = self.refusing_verdict();
        let mut explained = context.applied_rules();
        if let Some(one) = refusing.filter(|_| refusal == Refusal::Busy) {
            refusing_bound(&mut explained, one);
        }
        let verdict = ExplainedVerdict {
            refusal: Some(refusal),
            binding: refusing.map(|one| (&*one.rule.name, one.limit)),
            at: decision.at(),
            retry_after: decision.retry_after(),
            delay: decision.delay(),
            remaining: decision.remaining(),
            capacity: decision.capacity(),
            missing_facts: None,
        };
        Some(RefusalExplanation {
            at: decision.at(),
            refusal,
            decided_by: decision.decided_by(),
            retry_after: decision.retry_after(),
            binding: refusing.map(|one| (Arc::clone(&one.rule.name), one.limit.to_string())),
            cost: refusing.map(|one| one.cost),
            summary: summary::summary(&verdict, &explained),
            facts: plan
                .facts
                .map(|facts| explained_facts::explain_facts(rules, facts))
                .unwrap_or_default(),
            retry: retry_text::explain_retry(&verdict),
            rules: explained,
        })
    }

    /// The verdict of the rule that refused: of several the one with the longest wait.
    fn refusing_verdict(&self) -> Option<&RuleVerdict<'_>> {
        let refuses =
            |one: &&RuleVerdict<'_>| matches!(one.verdict, Verdict::Refused | Verdict::Unavailable);
        let refusing = self.rule_verdicts().filter(refuses);
        // The first of equals, as everywhere.
        refusing.reduce(|one, next| if next.retry_after > one.retry_after { next } else { one })
    }
}

impl RuleContext<'_, '_> {
    /// All rules of the plan, in order.
    fn applied_rules(&self) -> Vec<ExplainedRule> {
        let limited = self.plan.limits.iter().map(|one| one.limit_ref.rule);
        let unlimited = self.plan.unlimited.iter().map(|one| one.number);
        let mut numbers: Vec<u32> = limited.chain(unlimited).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let rules = self.plan.rules();
        let applied =
            numbers.into_iter().flat_map(|number| self.applied(rules.rule_at(number), number));
        let mut applied: Vec<ExplainedRule> = applied.collect();
        for closed in &self.plan.zero_limits {
            let (rule, key) = (rules.rule_at(closed.rule), self.plan.key_of_zero_limit(closed));
            let (result, why) = refusing_result(closed.enforcement, closed.unit.zero_limit_text());
            let mut entry = plain_rule(rule, result, why);
            entry.key = Some(self.key(rule, Some(key), 0));
            applied.push(entry);
        }
        // A key may have all of a long path: what is recorded is short.
        for key in applied.iter_mut().filter_map(|one| one.key.as_mut()) {
            key.text = key.text.as_ref().map(|text| shorten(text).into_owned());
        }
        applied
    }
}
