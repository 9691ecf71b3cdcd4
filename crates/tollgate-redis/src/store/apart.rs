//! A request whose keys are in several slots of a cluster: the checks of each slot in turn, in the
//! order of the checks. While a slot moves, its keys may be in two places: then those of each key.
//!
//! If one refuses, what the others were charged is given back: never above a limit, below it at most by
//! the requests on their way. Whoever asked does that, or has it done here. An asker who no longer waits
//! leaves nothing charged that was not granted, but for the one answer that was on its way: nobody is
//! there to read what it charged, as with a request of one slot that its asker gives up.

use std::sync::atomic::Ordering;

use tollgate::algorithm::{self, State};
use tollgate::{Act, Check, Decision, Limit, Micros, Outcome, Receipt, Wait};

use crate::error::{ErrorClass, StoreError};
use crate::keys;
use crate::level;
use crate::remote::When;
use crate::request::{self, Request};
use crate::script;

use super::{RedisStore, Told};

/// What checks came to, wherever their keys are.
pub(super) struct Answer {
    /// States are by check.
    pub(super) told: Told,
    /// The checks that nobody answered, a bit for each; their states mean nothing.
    pub(super) failed: u16,
    /// What is charged and was not granted, by check: to be given back. Bound: one for each check.
    pub(super) back: Vec<(usize, Receipt)>,
}

/// What becomes of a request if some nodes answer and others do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Partly {
    /// It fails, and nothing stays charged.
    Fails,
    /// Whoever asks decides about the rest, and gives back if that refuses.
    Told,
}

/// What was charged for a request that may be refused yet: given back when this is dropped, unless it
/// was taken out before.
struct Charged<'a> {
    store: &'a RedisStore,
    now: Micros,
    /// Bound: one for each check.
    list: Vec<(usize, Receipt)>,
    checks: &'a [Check<'a>],
}

impl Drop for Charged<'_> {
    fn drop(&mut self) {
        self.store.give_back(self.checks, std::mem::take(&mut self.list), self.now);
    }
}

/// One request on its way from slot to slot.
struct Apart<'a> {
    checks: &'a [Check<'a>],
    outcomes: &'a mut [Outcome],
    /// By check.
    states: Vec<State>,
    charged: Charged<'a>,
    refused: bool,
    /// The latest instant that a node told.
    at: Option<Micros>,
    failure: Option<(u16, StoreError)>,
}

impl RedisStore {
    pub(super) async fn answer_apart(
        &self,
        checks: &[Check<'_>],
        when: When,
        outcomes: &mut [Outcome],
        partly: Partly,
    ) -> Result<Answer, StoreError> {
        outcomes.fill(Outcome::default());
        let charged = Charged { store: self, now: when.now, list: Vec::new(), checks };
        let states = checks.iter().map(|check| State::fresh(check.limit(), Micros::ZERO)).collect();
        let mut apart =
            Apart { checks, outcomes, states, charged, refused: false, at: None, failure: None };
        for group in groups(0..checks.len(), |index| self.slot_of(&checks[index])) {
            let Err(error) = apart.ask(self, &group, when).await else { continue };
            if error.class != ErrorClass::TryAgain {
                apart.failed(&group, error);
                continue;
            }
            // The slot is moving, and no node has all of these keys: each is asked for by itself.
            let key = |index: usize| (checks[index].key(), checks[index].limit().id());
            for group in groups(group.into_iter(), key) {
                if let Err(error) = apart.ask(self, &group, when).await {
                    apart.failed(&group, error);
                }
            }
        }
        apart.end(partly)
    }

    fn slot_of(&self, check: &Check<'_>) -> u16 {
        let subject = self.names.subject(check.key().as_bytes());
        keys::slot(&self.names.key(subject, check.limit(), 0))
    }

    /// Gives back without anybody waiting for it. What cannot be given back runs out by itself.
    pub(super) fn give_back(&self, checks: &[Check<'_>], back: Vec<(usize, Receipt)>, now: Micros) {
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
                store.kept.refunds_lost.fetch_add(u64::from(back.is_err()), Ordering::Relaxed);
            }
        });
    }
}

impl Apart<'_> {
    /// Asks about checks of one slot; once others have refused, only what they would say.
    async fn ask(
        &mut self,
        store: &RedisStore,
        group: &[usize],
        when: When,
    ) -> Result<(), StoreError> {
        let asked = group.iter().map(|&index| match &self.checks[index] {
            check if self.refused && !check.counts_denied() => check.act(Act::Peek),
            check => *check,
        });
        let asked: Vec<Check<'_>> = asked.collect();
        let limits = request::shifted(&asked);
        let request = Request::new(&store.names, &asked, &limits);
        let mut said = vec![Outcome::default(); asked.len()];
        let told = store.decide_together(&request, when, &mut said).await?;
        self.refused |= !told.decision.allowed();
        self.at = self.at.max(Some(told.decision.at()));
        for (&index, (outcome, place)) in group.iter().zip(said.iter().zip(&request.places)) {
            self.outcomes[index] = *outcome;
            self.states[index] = told.states[*place].clone();
            if outcome.charged > 0 && !self.checks[index].counts_denied() {
                self.charged.list.push((index, outcome.receipt()));
            }
        }
        Ok(())
    }

    /// Nobody answered these.
    fn failed(&mut self, group: &[usize], error: StoreError) {
        let bits = group.iter().fold(0, |bits, index| bits | 1 << index);
        let before = self.failure.as_ref().map_or(0, |(bits, _)| *bits);
        self.failure = Some((before | bits, error));
    }

    fn end(mut self, partly: Partly) -> Result<Answer, StoreError> {
        let (failed, error) = self.failure.take().unzip();
        let failed = failed.unwrap_or(0);
        let at = match (self.at, error) {
            (Some(at), None) => at,
            (Some(at), Some(_)) if partly == Partly::Told || self.refused => at,
            (_, error) => return Err(error.unwrap_or_else(script::not_understood)),
        };
        let mut back = Vec::new();
        if self.refused {
            self.take_back();
            back = std::mem::take(&mut self.charged.list);
        } else {
            self.charged.list.clear();
            self.level(failed, &mut back);
        }
        let decision = Decision::of_outcomes(self.checks, self.outcomes, at);
        Ok(Answer { told: Told { decision, states: self.states }, failed, back })
    }

    /// Takes what is given back out of what the limits said.
    fn take_back(&mut self) {
        for (index, outcome) in self.outcomes.iter_mut().enumerate() {
            if self.checks[index].counts_denied() {
                outcome.charged = 0;
            }
        }
        for place in 0..self.charged.list.len() {
            let (index, receipt) = &self.charged.list[place];
            let (index, units, at) = (*index, receipt.granted(), receipt.charged_at());
            self.take_out(index, units, at);
        }
        for (index, _) in &self.charged.list {
            let (check, outcome) = (&self.checks[*index], &mut self.outcomes[*index]);
            let limit = check.limit().for_key(check.key().as_bytes());
            let after = algorithm::judge(&limit, &self.states[*index], 0, outcome.served_at);
            let decided_by = outcome.decided_by;
            *outcome = Outcome { charged: 0, delay: Wait::ZERO, decided_by, ..after };
        }
    }

    /// Takes units out of a check's state, as all checks of that state see it.
    fn take_out(&mut self, index: usize, units: u64, at: Micros) {
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

    /// Of "up to", all limits grant what the one with the least does.
    fn level(&mut self, failed: u16, back: &mut Vec<(usize, Receipt)>) {
        let counts = |index: usize| failed >> index & 1 == 0;
        for (index, units) in level::excess(self.checks, self.outcomes, counts) {
            let (limit, outcome) = (self.checks[index].limit(), &mut self.outcomes[index]);
            back.push((index, Outcome { charged: units, ..*outcome }.receipt()));
            outcome.charged -= units;
            outcome.remaining = (outcome.remaining + units).min(limit.capacity());
        }
        for (index, receipt) in &*back {
            self.take_out(*index, receipt.granted(), receipt.charged_at());
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
