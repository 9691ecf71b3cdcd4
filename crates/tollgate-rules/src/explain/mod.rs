//! Explanations: for one request, which rules apply and why, what each limit has left, and the
//! arithmetic of the verdict in words and numbers. An explanation charges nothing.
//!
//! ```text
//! facts ─▶ rehearsal.rs      decides on copies of the present states, and charges nothing
//!       ─▶ rule_reasons.rs   which rules apply, and why the others do not
//!            applied_rule.rs     key, tier, cost and limits of those that do
//!            condition_text.rs   each condition with the value that was found
//!            limit_text.rs       the arithmetic of each algorithm; level.rs, wait_text.rs
//!       ─▶ retry_text.rs     what the same request would see later
//!       ─▶ summary.rs        all of it in a sentence
//! ```
//!
//! `refusal_explanation.rs` explains a refusal that observers see, from what was decided then.
//! Credentials are never part of an explanation: see `credentials.rs`.

mod applied_rule;
mod ban_text;
mod condition_text;
mod explained_facts;
mod explained_verdict;
mod instant_text;
mod level;
mod limit_text;
mod refusal_explanation;
mod rehearsal;
mod retry_text;
mod rule_reasons;
mod shorten;
mod summary;
mod wait_text;
mod work_in_progress;

use std::sync::Arc;

use tollgate::{Clock, DecidedBy, Micros, Now, Wait};

use crate::answer::Answer;
use crate::gatekeeper::{Ask, Gatekeeper, InfallibleStore, RulesVersion};
use crate::rule_set::Override;
use explained_verdict::ExplainedVerdict;

pub use ban_text::ban_text;
pub use condition_text::rule_condition_text;
pub use level::LimitLevel;
pub use refusal_explanation::RefusalExplanation;
pub use rule_reasons::RULES_LISTED_MAX;

/// The explanation of one request.
#[derive(Debug)]
pub struct Explanation {
    /// The decision that the request would get now.
    pub answer: Answer,
    /// The explanation in a sentence.
    pub summary: String,
    /// The facts as rules see them.
    pub facts: Vec<ExplainedFact>,
    /// The rules in order: all that apply, and others as far as there is room. Bound:
    /// [`RULES_LISTED_MAX`].
    pub rules: Vec<ExplainedRule>,
    /// Number of rules that do not apply and are not listed.
    pub rules_not_listed: usize,
    /// The time at which a refused request would pass; `None` if it is not refused.
    pub retry: Option<ExplainedRetry>,
}

/// A fact as rules see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedFact {
    /// The name.
    pub name: String,
    /// The value, unless it is a credential.
    pub value: String,
    /// A remark, such as where the value comes from.
    pub note: Option<String>,
}

/// The part of one rule in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleResult {
    /// It refuses the request.
    Refused,
    /// It applies and has room.
    Allowed,
    /// It would refuse, but is in shadow or not enforced for this caller.
    Shadow,
    /// It would refuse, but only warns.
    Soft,
    /// The caller is blocked under it.
    Blocked,
    /// Its condition does not hold.
    NotMatched,
    /// The request lacks a fact of its key.
    MissingFacts,
    /// It is switched off.
    Off,
    /// The caller is exempt from all rules.
    Exempt,
    /// It is a fallback, and other rules apply.
    NotNeeded,
    /// The request is refused because more limits apply than one decision holds.
    Closed,
    /// Its store is unavailable, and it refuses then.
    StoreUnavailable,
}

impl RuleResult {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            RuleResult::Refused => "refused",
            RuleResult::Allowed => "allowed",
            RuleResult::Shadow => "shadow",
            RuleResult::Soft => "soft",
            RuleResult::Blocked => "blocked",
            RuleResult::NotMatched => "not_matched",
            RuleResult::MissingFacts => "missing_facts",
            RuleResult::Off => "off",
            RuleResult::Exempt => "exempt",
            RuleResult::NotNeeded => "not_needed",
            RuleResult::Closed => "closed",
            RuleResult::StoreUnavailable => "store_unavailable",
        }
    }
}

/// One rule, and for rules that apply the key that it counts.
#[derive(Clone, Debug)]
pub struct ExplainedRule {
    /// The name.
    pub name: Arc<str>,
    /// The part of the rule in the decision.
    pub result: RuleResult,
    /// The reason of the result.
    pub why: String,
    /// The conditions, all of which have to hold; none if the rule applies always.
    pub conditions: Vec<ExplainedCondition>,
    /// The key; `None` if the rule was not asked for one.
    pub key: Option<ExplainedKey>,
    /// The tier, if it matters to the rule.
    pub tier: Option<ExplainedTier>,
    /// The caller's own limits, and true if they were set at run time.
    pub own_limits: Option<(Arc<Override>, bool)>,
    /// The time for which the caller is still blocked.
    pub blocked_for: Option<Wait>,
    /// The cost of the request under this rule.
    pub cost: Option<ExplainedCost>,
    /// The limits.
    pub limits: Vec<ExplainedLimit>,
    /// The block that follows refusals, as [`ban_text`] says it; `None` if the rule has none.
    pub ban: Option<String>,
}

/// One condition of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedCondition {
    /// The condition: `method is GET`.
    pub text: String,
    /// True if it holds.
    pub holds: bool,
    /// The value that the request has.
    pub found: Option<String>,
}

/// The key of a request under one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedKey {
    /// The template: `{user|ip}`.
    pub template: String,
    /// The caller's key; `None` if a part is missing.
    pub caller: Option<tollgate::KeyBuf>,
    /// The caller's key as people read it, without credentials.
    pub text: Option<String>,
    /// One entry for each part of the template.
    pub parts: Vec<ExplainedKeyPart>,
}

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedKeyPart {
    /// The fact that fills it, or those that could.
    pub name: String,
    /// The value; `None` if the request has none.
    pub value: Option<String>,
    /// The reason why this fact counts.
    pub why: String,
}

/// The tier of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedTier {
    /// The name.
    pub name: String,
    /// The source of the tier, and a remark if it has limits of its own.
    pub why: String,
}

/// The cost of a request under a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedCost {
    /// The units.
    pub units: u64,
    /// The reason of the cost.
    pub why: String,
}

/// One limit of a rule.
#[derive(Clone, Debug)]
pub struct ExplainedLimit {
    /// The limit as people read it.
    pub limit: String,
    /// The algorithm, or `concurrency`.
    pub algorithm: &'static str,
    /// True if it can refuse.
    pub enforced: bool,
    /// True if it admits the request.
    pub allowed: bool,
    /// The capacity.
    pub max: u64,
    /// Whole units left after this decision; `None` if that is not known.
    pub remaining: Option<u64>,
    /// Units that have to fit.
    pub needs: u64,
    /// The level of the state before the request: tokens of a token bucket, units in a leaky
    /// bucket, units used of all others. `None` if it is not known.
    pub level: Option<LimitLevel>,
    /// The wait until the same request fits.
    pub retry_after: Wait,
    /// The wait until the state is as good as fresh; `None` if that is not known.
    pub reset_after: Option<Wait>,
    /// The time for which the request is held.
    pub delay: Wait,
    /// The part of the system that decided.
    pub decided_by: DecidedBy,
    /// The arithmetic in words and numbers.
    pub arithmetic: String,
}

/// The fate of the same request after its wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedRetry {
    /// The wait.
    pub after: Wait,
    /// The instant; `None` if no wait helps.
    pub at: Option<Micros>,
    /// True if the request is certainly admitted then, provided that nothing else is charged.
    pub allowed: bool,
    /// The same in a sentence.
    pub text: String,
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Explains the decision that a request would get now; charges nothing, and observers do not
    /// see it.
    pub async fn explain_by<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> Explanation {
        let now = now.into();
        let (reasons, decided, skipped) = {
            let plan = Box::new(crate::plan::RequestPlan::new(&rules, ask, now.instant()));
            let rehearsal = self.rehearse(&plan, now).await;
            let reasons = rule_reasons::explain_rules(self, &plan, &ask.facts, &rehearsal);
            let skipped = plan.skipped;
            (reasons, rehearsal.decided, skipped)
        };
        let facts = explained_facts::explain_facts(&rules, &ask.facts);
        let answer = Answer::new(rules, decided, skipped);
        let verdict = ExplainedVerdict::of_answer(&answer);
        let retry = retry_text::explain_retry(&verdict);
        let summary = summary::summary(&verdict, &reasons.rules);
        let (rules, rules_not_listed) = (reasons.rules, reasons.not_listed);
        Explanation { answer, summary, facts, rules, rules_not_listed, retry }
    }
}
