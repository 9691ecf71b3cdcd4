//! A request whose keys are in several slots of a cluster: the checks of each slot in turn, in the
//! order of the checks. While a slot moves, its keys may be in two places: then those of each key.
//!
//! If one refuses, the charges of the others are refunded: usage is never above a limit, and below
//! it at most by the requests in flight. The caller refunds, or this store does it in the
//! background. A caller that stops waiting leaves no ungranted charge except that of the one answer
//! in flight, which is never read, as with a request of one slot; `SharedStore` therefore finishes its calls.

use std::sync::atomic::Ordering;

use tollgate::algorithm::{self, State};
use tollgate::store::stored_state;
use tollgate::{Act, Check, Limit, Micros, Outcome, Receipt, Wait};
use tollgate_shared::remote_store::CallTiming;
use tollgate_shared::up_to;

use crate::error::{ErrorClass, StoreError};
use crate::script;
use crate::script::keys;
use crate::script::request::ScriptRequest;

use super::RedisStore;

/// The answer to a request, on one node or several.
pub(super) struct StoreAnswer {
    /// The instant of the answer; the latest one, if several nodes answered.
    pub(super) answered_at: Micros,
    /// The state of each check. Bound: one for each check.
    pub(super) states: Vec<State>,
    /// The checks that nobody answered, a bit for each; their states mean nothing.
    pub(super) failed_checks: u16,
    /// Charges that were not granted, by check, to be refunded. Bound: one for each check.
    pub(super) to_refund: Vec<(usize, Receipt)>,
}

/// The handling of a request if some nodes answer and others do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartialFailurePolicy {
    /// It fails, and nothing stays charged.
    FailRequest,
    /// The caller decides about the failed checks, and refunds if they refuse.
    ReportFailed,
}

/// Charges of a request that may still be refused: refunded when this is dropped, unless they were
/// taken out before.
struct ChargeGuard<'a> {
    store: &'a RedisStore,
    now: Micros,
    /// Bound: one for each check.
    charges: Vec<(usize, Receipt)>,
    checks: &'a [Check<'a>],
}

impl Drop for ChargeGuard<'_> {
    fn drop(&mut self) {
        self.store.refund_in_background(self.checks, std::mem::take(&mut self.charges), self.now);
    }
}

/// One request on its way from slot to slot.
struct MultiSlotRequest<'a> {
    checks: &'a [Check<'a>],
    outcomes: &'a mut [Outcome],
    /// States by check.
    states: Vec<State>,
    charged: ChargeGuard<'a>,
    refused: bool,
    /// The latest instant that a node told.
    latest_answer_at: Option<Micros>,
    failure: Option<(u16, StoreError)>,
}

impl RedisStore {
    pub(super) async fn answer_multi_slot(
        &self,
        checks: &[Check<'_>],
        when: CallTiming,
        outcomes: &mut [Outcome],
        partly: PartialFailurePolicy,
    ) -> Result<StoreAnswer, StoreError> {
        outcomes.fill(Outcome::default());
        let charged = ChargeGuard { store: self, now: when.now, charges: Vec::new(), checks };
        let states = checks.iter().map(|check| State::fresh(check.limit(), Micros::ZERO)).collect();
        let mut apart = MultiSlotRequest {
            checks,
            outcomes,
            states,
            charged,
            refused: false,
            latest_answer_at: None,
            failure: None,
        };
        for group in groups(0..checks.len(), |index| self.slot_of(&checks[index])) {
            let Err(error) = apart.check_slot(self, &group, when).await else { continue };
            if error.class != ErrorClass::TryAgain {
                apart.mark_failed(&group, error);
                continue;
            }
            // The slot is moving, and no node has all of these keys: each is asked for by itself.
            let key = |index: usize| (checks[index].key(), checks[index].limit().id());
            for group in groups(group.into_iter(), key) {
                if let Err(error) = apart.check_slot(self, &group, when).await {
                    apart.mark_failed(&group, error);
                }
            }
        }
        apart.finish(partly)
    }

    fn slot_of(&self, check: &Check<'_>) -> u16 {
        let subject = self.key_namer.subject(check.key().as_bytes());
        keys::slot(&self.key_namer.key(subject, check.limit(), 0))
    }

    /// Refunds without a caller that waits. A refund that fails expires with the charge.
    pub(super) fn refund_in_background(
        &self,
        checks: &[Check<'_>],
        back: Vec<(usize, Receipt)>,
        now: Micros,
    ) {
        if back.is_empty() {
            return;
        }
        let owned = back.into_iter().map(|(index, receipt)| {
            let check = &checks[index];
            (check.limit().clone(), check.key().as_bytes().to_vec(), receipt)
        });
        let owned: Vec<(Limit, Vec<u8>, Receipt)> = owned.collect();
        let store = self.clone();
        self.runtime.spawn(async move {
            for (limit, key, receipt) in owned {
                let units = receipt.granted();
                let back = store.refund(&limit, key[..].into(), Some(receipt), units, now).await;
                store.state.refunds_lost.fetch_add(u64::from(back.is_err()), Ordering::Relaxed);
            }
        });
    }
}

impl MultiSlotRequest<'_> {
    /// Asks about checks of one slot; once others have refused, only what they would say.
    async fn check_slot(
        &mut self,
        store: &RedisStore,
        group: &[usize],
        when: CallTiming,
    ) -> Result<(), StoreError> {
        let asked = group.iter().map(|&index| match &self.checks[index] {
            check if self.refused && !check.counts_denied() => check.act(Act::Peek),
            check => *check,
        });
        let asked: Vec<Check<'_>> = asked.collect();
        let limits = stored_state::limits_for_keys(&asked);
        let request = ScriptRequest::new(&store.key_namer, &asked, &limits);
        let mut said = vec![Outcome::default(); asked.len()];
        let told = store.decide_in_one_call(&request, when, &mut said).await?;
        self.refused |= !told.admitted;
        self.latest_answer_at = self.latest_answer_at.max(Some(told.at));
        let states = request.states_by_check(told.states);
        for (&index, (outcome, state)) in group.iter().zip(said.iter().zip(states)) {
            self.outcomes[index] = *outcome;
            self.states[index] = state;
            if outcome.charged > 0 && !self.checks[index].counts_denied() {
                self.charged.charges.push((index, outcome.receipt()));
            }
        }
        Ok(())
    }

    /// Nobody answered these.
    fn mark_failed(&mut self, group: &[usize], error: StoreError) {
        let bits = group.iter().fold(0, |bits, index| bits | 1 << index);
        let before = self.failure.as_ref().map_or(0, |(bits, _)| *bits);
        self.failure = Some((before | bits, error));
    }

    fn finish(mut self, partly: PartialFailurePolicy) -> Result<StoreAnswer, StoreError> {
        let (failed, error) = self.failure.take().unzip();
        let failed = failed.unwrap_or(0);
        let at = match (self.latest_answer_at, error) {
            (Some(at), None) => at,
            (Some(at), Some(_)) if partly == PartialFailurePolicy::ReportFailed || self.refused => {
                at
            }
            (_, error) => return Err(error.unwrap_or_else(script::not_understood)),
        };
        let mut back = Vec::new();
        if self.refused {
            self.undo_charges();
            back = std::mem::take(&mut self.charged.charges);
        } else {
            self.charged.charges.clear();
            self.level_up_to_grants(failed, &mut back);
        }
        let (answered_at, states) = (at, self.states);
        Ok(StoreAnswer { answered_at, states, failed_checks: failed, to_refund: back })
    }

    /// Takes what is given back out of what the limits said.
    fn undo_charges(&mut self) {
        for (index, outcome) in self.outcomes.iter_mut().enumerate() {
            if self.checks[index].counts_denied() {
                outcome.charged = 0;
            }
        }
        for place in 0..self.charged.charges.len() {
            let (index, receipt) = &self.charged.charges[place];
            let (index, units, at) = (*index, receipt.granted(), receipt.charged_at());
            self.refund_state(index, units, at);
        }
        for (index, _) in &self.charged.charges {
            let (check, outcome) = (&self.checks[*index], &mut self.outcomes[*index]);
            let limit = check.limit().for_key(check.key().as_bytes());
            let after = algorithm::judge(&limit, &self.states[*index], 0, outcome.served_at);
            let decided_by = outcome.decided_by;
            *outcome = Outcome { charged: 0, delay: Wait::ZERO, decided_by, ..after };
        }
    }

    /// Takes units out of a check's state, as all checks of that state see it.
    fn refund_state(&mut self, index: usize, units: u64, at: Micros) {
        let given = &self.checks[index];
        for (check, state) in self.checks.iter().zip(&mut self.states) {
            let (one, other) = (check.limit(), given.limit());
            let same = one.id() == other.id() && one.fingerprint() == other.fingerprint();
            if same && check.key() == given.key() {
                let limit = one.for_key(check.key().as_bytes());
                algorithm::refund(&limit, state, units, Some(at), at);
            }
        }
    }

    /// Makes all limits of an "up to" grant as much as the smallest grant, and refunds the rest.
    fn level_up_to_grants(&mut self, failed: u16, back: &mut Vec<(usize, Receipt)>) {
        let counts = |index: usize| failed >> index & 1 == 0;
        for (index, units) in up_to::up_to_excess(self.checks, self.outcomes, counts) {
            let (limit, outcome) = (self.checks[index].limit(), &mut self.outcomes[index]);
            back.push((index, Outcome { charged: units, ..*outcome }.receipt()));
            outcome.charged -= units;
            outcome.remaining = (outcome.remaining + units).min(limit.capacity());
        }
        for (index, receipt) in &*back {
            self.refund_state(*index, receipt.granted(), receipt.charged_at());
        }
    }
}

/// The checks that have the same name, names in the order of their first checks.
fn groups<N: PartialEq>(
    checks: impl Iterator<Item = usize>,
    name: impl Fn(usize) -> N,
) -> Vec<Vec<usize>> {
    let mut groups: Vec<(N, Vec<usize>)> = Vec::new();
    for index in checks {
        let name = name(index);
        match groups.iter_mut().find(|(other, _)| *other == name) {
            Some((_, group)) => group.push(index),
            None => groups.push((name, vec![index])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}
