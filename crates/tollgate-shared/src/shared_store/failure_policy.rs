//! What is answered while a store is not: in one request closed beats local beats open.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::{Act, Check, DecidedBy, Limit, Micros, Now, OnFailure, Outcome, Wait};

use crate::remote_store::RemoteStore;

use super::SharedStoreInner;

/// The wait after a refusal without the store: its return is noticed within this time.
const CLOSED_RETRY_AFTER: Wait = Wait::from_micros(1_000_000);

impl<R: RemoteStore> SharedStoreInner<R> {
    /// Decides the checks of a store that does not answer; true if all enforced ones admit.
    /// `shares` are this instance's parts of the limits, `at` is the present time by the store's
    /// clock, read again after a wait for its answer.
    pub(super) fn decide_without_store(
        &self,
        checks: &[Check<'_>],
        shares: &[Arc<Limit>],
        at: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> bool {
        let instant = at.instant();
        let policy = |check: &Check<'_>| check.requested_terms().on_failure;
        let closed = |check: &Check<'_>| policy(check) == OnFailure::Closed;
        let refused = checks.iter().any(|check| closed(check) && can_refuse(check));
        let local = || {
            let each = checks.iter().zip(shares).enumerate();
            each.filter(|(_, (check, _))| policy(check) == OnFailure::Local)
        };
        let alone: ArrayVec<Check<'_>, MAX_LIMITS> =
            local().map(|(_, (check, share))| with_limit(check, share, refused)).collect();
        let mut answers = [Outcome::default(); MAX_LIMITS];
        let admitted = self.decide_in_table(&alone, at, &mut answers);
        for (check, outcome) in checks.iter().zip(&mut *outcomes) {
            self.counts.degraded(policy(check));
            *outcome = match policy(check) {
                OnFailure::Closed if can_refuse(check) || check.is_shadow() => {
                    closed_outcome(instant)
                }
                _ => open_outcome(check, instant),
            };
        }
        for ((index, (check, _)), answer) in local().zip(answers) {
            outcomes[index] = local_share_outcome(check, answer);
        }
        !refused && admitted
    }
}

/// Returns true if a check can refuse at all.
fn can_refuse(check: &Check<'_>) -> bool {
    let asks =
        matches!(check.requested_act(), Act::Take | Act::UpTo | Act::Peek) && check.units() > 0;
    asks && !check.is_shadow()
}

/// The same question about this instance's share; only asked, if the answer is known to be no.
fn with_limit<'a>(check: &Check<'a>, share: &'a Limit, refused: bool) -> Check<'a> {
    let mut same =
        Check::new(share, check.key()).cost(check.units()).terms(check.requested_terms());
    same =
        same.act(if refused && !check.counts_denied() { Act::Peek } else { check.requested_act() });
    if check.is_shadow() {
        same = same.shadow();
    }
    if check.counts_denied() {
        same = same.count_denied();
    }
    if check.is_at_once() { same.at_once() } else { same }
}

/// A cost that only the whole limit has room for fits again when the store is back.
fn local_share_outcome(check: &Check<'_>, answer: Outcome) -> Outcome {
    let fits = check.units() <= check.limit().capacity();
    let never = answer.retry_after.is_never() && fits;
    let retry_after = if never { CLOSED_RETRY_AFTER } else { answer.retry_after };
    Outcome { decided_by: DecidedBy::Local, retry_after, ..answer }
}

fn closed_outcome(at: Micros) -> Outcome {
    Outcome {
        allowed: false,
        retry_after: CLOSED_RETRY_AFTER,
        reset_after: CLOSED_RETRY_AFTER,
        more_after: CLOSED_RETRY_AFTER,
        decided_by: DecidedBy::Closed,
        served_at: at,
        ..Outcome::default()
    }
}

/// Nothing is charged: nobody counts.
fn open_outcome(check: &Check<'_>, at: Micros) -> Outcome {
    let decided_by = match check.requested_terms().on_failure {
        OnFailure::Closed => DecidedBy::Closed,
        OnFailure::Local | OnFailure::Open => DecidedBy::Open,
    };
    let remaining = check.limit().capacity();
    Outcome { allowed: true, remaining, decided_by, served_at: at, ..Outcome::default() }
}
