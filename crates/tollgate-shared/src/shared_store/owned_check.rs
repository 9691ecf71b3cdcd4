//! `OwnedCheck`: a copy of a check that lives as long as the call about it, whoever asked.

use tollgate::{Act, Check, Limit, Terms};

/// A check that owns its limit and its key.
#[derive(Debug)]
pub(super) struct OwnedCheck {
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
    pub(super) fn of(check: &Check<'_>) -> OwnedCheck {
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

    pub(super) fn check(&self) -> Check<'_> {
        let check = Check::new(&self.limit, &*self.key).cost(self.cost).act(self.act);
        let check = check.terms(self.terms);
        let check = if self.is_shadow { check.shadow() } else { check };
        let check = if self.counts_denied { check.count_denied() } else { check };
        if self.is_at_once { check.at_once() } else { check }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_asks_the_same() {
        let limit = Limit::per_second(10).burst(5).algorithm(tollgate::Algorithm::LeakyBucket);
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
