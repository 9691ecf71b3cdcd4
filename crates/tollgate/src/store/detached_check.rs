//! Checks that live as long as the work about them, whoever asked: `OwnedCheck`, and `DetachedCheck`, for whose decision
//! nobody waits.

use std::fmt;

use crate::check::{Act, Check, Terms};
use crate::decision::Decision;
use crate::limit::Limit;

/// A check that owns its limit and its key.
#[derive(Debug)]
pub struct OwnedCheck {
    limit: Limit,
    /// Bound: the key of a request.
    key: Box<[u8]>,
    cost: u64,
    act: Act,
    terms: Terms,
    is_shadow: bool,
    counts_denied: bool,
    is_at_once: bool,
}

impl OwnedCheck {
    /// A copy of a check.
    pub fn of(check: &Check<'_>) -> OwnedCheck {
        OwnedCheck {
            limit: check.limit().clone(),
            key: check.key().as_bytes().into(),
            cost: check.units(),
            act: check.requested_act(),
            terms: check.requested_terms(),
            is_shadow: check.is_shadow(),
            counts_denied: check.counts_denied(),
            is_at_once: check.is_at_once(),
        }
    }

    /// The check.
    pub fn check(&self) -> Check<'_> {
        let check = Check::new(&self.limit, &*self.key).cost(self.cost).act(self.act);
        let check = check.terms(self.terms);
        let check = if self.is_shadow { check.shadow() } else { check };
        let check = if self.counts_denied { check.count_denied() } else { check };
        if self.is_at_once { check.at_once() } else { check }
    }
}

/// The next check after a decision, if there is one.
type NextCheck = Box<dyn FnOnce(Decision) -> Option<DetachedCheck> + Send>;

/// A check for whose decision nobody waits, and what follows from it: see
/// [`Store::decide_detached`](super::Store::decide_detached).
pub struct DetachedCheck {
    check: OwnedCheck,
    then: NextCheck,
}

impl fmt::Debug for DetachedCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedCheck").field("check", &self.check).finish_non_exhaustive()
    }
}

impl DetachedCheck {
    /// A check, and what happens after its decision: it may ask one more.
    pub fn new(
        check: OwnedCheck,
        then: impl FnOnce(Decision) -> Option<DetachedCheck> + Send + 'static,
    ) -> DetachedCheck {
        DetachedCheck { check, then: Box::new(then) }
    }

    /// The check, and the function that takes its decision.
    pub fn into_parts(self) -> (OwnedCheck, impl FnOnce(Decision) -> Option<DetachedCheck> + Send) {
        (self.check, self.then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_asks_the_same() {
        let limit = Limit::per_second(10).burst(5).algorithm(crate::Algorithm::LeakyBucket);
        let limit = limit.queue().build().unwrap();
        let terms = Terms { store: 3, ..Terms::default() };
        let plain = Check::new(&limit, "key");
        let forced = plain.cost(7).act(Act::Force).terms(terms);
        for check in [plain, forced, plain.shadow(), plain.count_denied(), plain.at_once()] {
            let copy = OwnedCheck::of(&check);
            assert_eq!(format!("{:?}", copy.check()), format!("{check:?}"));
        }
    }
}
