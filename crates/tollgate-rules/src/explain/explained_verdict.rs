//! What a summary needs to know of a decision, whoever it was made for.

use tollgate::{Micros, Refusal, Wait};

use crate::answer::Answer;

/// A decision, in the terms of the rules.
pub(super) struct ExplainedVerdict<'a> {
    /// `None` if the request is admitted.
    pub(super) refusal: Option<Refusal>,
    /// The rule and the limit that decided.
    pub(super) binding: Option<(&'a str, &'a str)>,
    pub(super) at: Micros,
    pub(super) retry_after: Wait,
    pub(super) delay: Wait,
    pub(super) remaining: u64,
    pub(super) capacity: u64,
    /// The missing facts, if there is no decision because of them.
    pub(super) missing_facts: Option<String>,
}

impl<'a> ExplainedVerdict<'a> {
    pub(super) fn of_answer(answer: &'a Answer) -> ExplainedVerdict<'a> {
        ExplainedVerdict {
            refusal: answer.refusal(),
            binding: answer.binding().map(|one| (one.rule, one.limit)),
            at: answer.at(),
            retry_after: answer.retry_after(),
            delay: answer.delay(),
            remaining: answer.remaining(),
            capacity: answer.capacity(),
            missing_facts: answer.unanswered().map(|missing| missing.to_string()),
        }
    }
}
