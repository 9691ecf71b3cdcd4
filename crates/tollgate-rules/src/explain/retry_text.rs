//! What a refused request would see if it were sent again after its wait.

use tollgate::{Micros, Refusal};

use super::ExplainedRetry;
use super::explained_verdict::ExplainedVerdict;
use super::instant_text::instant_text;
use super::wait_text::wait_text;

/// The next try of a refused request; `None` if the request is admitted.
pub(super) fn explain_retry(verdict: &ExplainedVerdict<'_>) -> Option<ExplainedRetry> {
    let refusal = verdict.refusal?;
    let after = verdict.retry_after;
    if after.is_never() {
        let text = match refusal {
            Refusal::NeverFits => "No wait helps: the cost is above what the limit holds.",
            Refusal::EmptyKey => "No wait helps: the request lacks facts that the rules need.",
            _ => "No wait helps.",
        };
        return Some(ExplainedRetry { after, at: None, allowed: false, text: text.into() });
    }
    // Rounded up to the milliseconds of the text: a request at that time passes.
    let at = Micros::new(verdict.at.after(after).as_u64().div_ceil(1_000) * 1_000);
    let (wait, time) = (wait_text(after), instant_text(at, verdict.at));
    let (allowed, text) = match refusal {
        Refusal::StoreUnavailable => {
            (false, format!("In {wait}, at {time}, the store may be back."))
        }
        Refusal::Blocked => {
            (false, format!("In {wait}, at {time}, the block ends, and the limits decide again."))
        }
        Refusal::Busy => (false, format!("In {wait}, at {time}, some of the work may have ended.")),
        _ => (
            true,
            format!("In {wait}, at {time}, the same request passes if nothing else is charged."),
        ),
    };
    Some(ExplainedRetry { after, at: Some(at), allowed, text })
}
