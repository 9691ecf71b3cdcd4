//! A request that has to be put together: several checks, several stores, several ways to decide.
//!
//! Units that are available locally are taken first: if a store then refuses, they are simply put
//! back. Then the stores are asked in turn. The first refusal ends the request: all charges before
//! it are refunded, except for limits that count refused requests. The same happens if the caller
//! stops waiting.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::{
    Act, Check, Consistency, DecidedBy, Decision, Limit, Micros, Now, Outcome, Refusal, Wait,
};

use crate::remote_store::RemoteStore;
use crate::time_source::TimeSource;
use crate::up_to;

use super::SharedStoreInner;
use super::decision_call::RemoteAnswer;
use super::local_sync::ChargePeriod;

/// Something of each check, without allocating.
type CheckList<T> = ArrayVec<T, MAX_LIMITS>;

/// The way in which a check was decided.
#[derive(Clone, Debug)]
enum CheckRoute {
    /// Nobody yet: its store will be asked, unless another refuses before.
    Undecided,
    /// Its store.
    Store,
    /// Budget that was borrowed.
    Lease,
    /// The table of this process; the store is informed later.
    LocalSync,
    /// The table of this process by a share of the limit: the store does not answer.
    Share(Arc<Limit>),
    /// Decided and not charged, because a check decided with it refused.
    Refused,
}

/// One request on its way. Dropped before its end, it gives back what it has taken.
struct SharedRequest<'a, R: RemoteStore> {
    store: &'a Arc<SharedStoreInner<R>>,
    checks: &'a [Check<'a>],
    now: Micros,
    /// The clock that `now` was read from.
    asked_at: Now<'a>,
    tags: CheckList<u64>,
    routes: CheckList<CheckRoute>,
    /// The outcome of each limit so far.
    outcomes: &'a mut [Outcome],
    ended: bool,
}

impl<R: RemoteStore> Drop for SharedRequest<'_, R> {
    fn drop(&mut self) {
        if !self.ended {
            for index in 0..self.checks.len() {
                // Where refused requests count, so does one that nobody waits for.
                if !self.checks[index].counts_denied() {
                    self.give_back(index, u64::MAX);
                }
            }
        }
    }
}

impl<R: RemoteStore> SharedStoreInner<R> {
    /// Decides any request.
    pub(super) async fn decide(
        self: &Arc<Self>,
        checks: &[Check<'_>],
        asked_at: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Decision {
        let now = asked_at.instant();
        let outcomes = &mut outcomes[..checks.len().min(MAX_LIMITS)];
        outcomes.fill(Outcome::default());
        let empty = checks.iter().any(|check| check.key().is_empty());
        if checks.is_empty() || checks.len() > MAX_LIMITS || empty {
            // The table of this process says why not as well as any store.
            return self.local.decide_each(checks, asked_at, outcomes);
        }
        if self.any_block(now) {
            let waits = checks.iter().filter(|check| check.requested_act() != Act::Force);
            let wait = waits.filter_map(|check| self.blocked(check.key(), now)).max();
            if let Some(wait) = wait {
                let decision = Decision::refused(Refusal::Blocked, wait, now);
                if let ([outcome], false) = (outcomes, checks[0].is_shadow()) {
                    *outcome = decision.outcome();
                }
                return decision;
            }
        }
        if let [check] = checks
            && self.is_simple(check)
        {
            outcomes[0] = self.check_store(check, asked_at).await;
            return Decision::of_outcomes(checks, outcomes, now);
        }
        let tags = checks.iter().map(|check| self.tag(check)).collect();
        let mut request = SharedRequest {
            store: self,
            checks,
            now,
            // However many stores it asks, all of them have one deadline.
            asked_at: asked_at.begin_operation(),
            tags,
            routes: checks.iter().map(|_| CheckRoute::Undecided).collect(),
            outcomes: &mut *outcomes,
            ended: false,
        };
        request.decide().await;
        request.ended = true;
        drop(request);
        Decision::of_outcomes(checks, outcomes, now)
    }
}

impl<R: RemoteStore> SharedStoreInner<R> {
    /// Returns true if the cache has a refusal of one of the checks, each of a state of its own; `outcomes`
    /// then have it, and of the other checks what this process knows.
    pub(super) fn refuse_from_cache(
        &self,
        checks: &[Check<'_>],
        tags: &[u64],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> bool {
        // Of several limits, those that count refused requests have to be told of each.
        if checks.len() > 1 && checks.iter().any(Check::counts_denied) {
            return false;
        }
        let mut known = 0_u16;
        for (index, (check, &tag)) in checks.iter().zip(tags).enumerate() {
            let takes = matches!(check.requested_act(), Act::Take | Act::UpTo) && check.units() > 0;
            let may = takes
                && !check.is_shadow()
                && !check.is_at_once()
                && self.leased_outcome(check, tag, now.instant()).is_none();
            let found = may.then(|| self.cached_refusal(check, tag, now));
            if let Some(outcome) = found.flatten() {
                outcomes[index] = outcome;
                known |= 1 << index;
            }
        }
        for index in (0..checks.len()).filter(|index| known != 0 && known >> index & 1 == 0) {
            outcomes[index] = self.peek_local(&checks[index], now);
        }
        known != 0
    }

    /// The outcome of a check that leased units cover.
    pub(super) fn leased_outcome(
        &self,
        check: &Check<'_>,
        tag: u64,
        now: Micros,
    ) -> Option<Outcome> {
        let leased = matches!(check.requested_terms().consistency, Consistency::Leased { .. });
        leased.then(|| self.peek_lease(check, tag, now)).flatten()
    }
}

impl<R: RemoteStore> SharedRequest<'_, R> {
    async fn decide(&mut self) {
        // Checks of one state are judged for what they ask together: only a store does that.
        let apart = self.store.time == TimeSource::Server && !self.asks_one_state_twice();
        if apart
            && self.store.refuse_from_cache(self.checks, &self.tags, self.asked_at, self.outcomes)
        {
            return;
        }
        if apart && !self.take_locally() {
            return self.undo();
        }
        for number in 0..self.store.stores.len() {
            if !self.ask_store(number).await {
                return self.undo();
            }
        }
        self.level_up_to_grants();
    }

    fn asks_one_state_twice(&self) -> bool {
        (0..self.tags.len()).any(|index| self.shares_state(index))
    }

    /// Returns true if another check has the same state: then it was judged for more than its own
    /// cost.
    fn shares_state(&self, index: usize) -> bool {
        self.tags.iter().filter(|tag| **tag == self.tags[index]).count() > 1
    }

    /// Takes what needs no store; whether nothing refuses.
    fn take_locally(&mut self) -> bool {
        let shared = self.store;
        let mut alone = CheckList::new();
        for (index, check) in self.checks.iter().enumerate() {
            let plain =
                check.requested_act() == Act::Take && !check.is_shadow() && check.units() > 0;
            match check.requested_terms().consistency {
                Consistency::Leased { .. } if plain => {
                    if let Some(outcome) = shared.spend_lease(check, self.tags[index], self.now) {
                        self.outcomes[index] = outcome;
                        self.routes[index] = CheckRoute::Lease;
                    }
                }
                Consistency::LocalSync { .. }
                    if shared.local_sync.is_ready(self.tags[index], check.limit()) =>
                {
                    alone.push(index);
                }
                _ => {}
            }
        }
        // Those of each store by its own clock.
        shared.stores.iter().all(|asked| {
            let its = |index: &&usize| std::ptr::eq(shared.store_for(&self.checks[**index]), asked);
            let group: CheckList<usize> = alone.iter().filter(its).copied().collect();
            group.is_empty() || self.take_local_sync(asked.to_store_now(self.asked_at), &group)
        })
    }

    /// Takes what is decided in the table of this process and told to one store; whether nothing refuses.
    fn take_local_sync(&mut self, at: Now<'_>, group: &[usize]) -> bool {
        let shared = self.store;
        let checks: CheckList<Check<'_>> = group.iter().map(|&index| self.checks[index]).collect();
        let mut answers = [Outcome::default(); MAX_LIMITS];
        let admitted = shared.decide_in_table(&checks, at, &mut answers);
        let way = if admitted { CheckRoute::LocalSync } else { CheckRoute::Refused };
        for (&index, answer) in group.iter().zip(answers) {
            (self.outcomes[index], self.routes[index]) = (answer, way.clone());
            let units = if admitted { answer.charged } else { self.refused_charge(index) };
            let stretch =
                || ChargePeriod::of(self.checks[index].limit(), &answer, at.instant(), units);
            // The charges of a slot that was released meanwhile are sent now.
            if units > 0 && !shared.local_sync.add(self.tags[index], stretch()) {
                self.charge_in_background(index, units);
            }
        }
        admitted
    }

    /// Units that a limit charges for a refused request.
    fn refused_charge(&self, index: usize) -> u64 {
        let check = &self.checks[index];
        match check.requested_act() {
            Act::Take | Act::Force if check.counts_denied() => check.units(),
            Act::UpTo if check.counts_denied() => check.units().min(1),
            _ => 0,
        }
    }

    /// Charges for what has happened without waiting for the store.
    fn charge_in_background(&self, index: usize, units: u64) {
        let check = &self.checks[index];
        let when = self.store.store_for(check).call_timing(self.asked_at);
        self.store.charge_in_background(check, units, when);
    }

    /// Asks a store about its checks; whether nothing refuses.
    async fn ask_store(&mut self, number: usize) -> bool {
        let shared = self.store;
        let asked = &shared.stores[number];
        let of_it = |index: &usize| {
            let its = std::ptr::eq(shared.store_for(&self.checks[*index]), asked);
            its && matches!(self.routes[*index], CheckRoute::Undecided)
        };
        let group: CheckList<usize> = (0..self.checks.len()).filter(of_it).collect();
        if group.is_empty() {
            return true;
        }
        let when = asked.call_timing(self.asked_at);
        for &index in &group {
            shared.flush_before_check(&self.checks[index], self.tags[index], when).await;
        }
        // On the heap: a future that waits for a store would carry them around.
        let checks: Vec<Check<'_>> = group.iter().map(|&index| self.checks[index]).collect();
        shared.caller_clock.observe(self.now);
        let RemoteAnswer { result, outcomes: answers, mut seen, .. } =
            shared.begin_decision(number as u8, &checks, when).await;
        if let Err(error) = result {
            if self.checks.iter().all(|check| check.requested_act() == Act::Force) {
                shared.keep_unsent_work(&checks, when.now, &error);
            }
            return self.fall_back(&group);
        }
        let answered = self.asked_at.again().instant();
        asked.observe_clock(seen.answered_at, answered);
        for (place, receipt) in std::mem::take(&mut seen.to_refund) {
            let check = checks[place].cost(receipt.granted());
            drop(shared.send_change(shared.pending_refund(&check, Some(&receipt)), when));
        }
        let mut unanswered = CheckList::new();
        for (place, &index) in group.iter().enumerate() {
            let (check, tag) = (&self.checks[index], self.tags[index]);
            if seen.failed_checks >> place & 1 == 1 {
                unanswered.push(index);
                continue;
            }
            self.outcomes[index] = answers[place];
            shared.copy_state(check, &seen, place);
            match self.shares_state(index) {
                true => shared.refusal_cache.forget(tag),
                false => shared.remember_answer(check, tag, (self.now, answered), &answers[place]),
            }
        }
        let refuses =
            |index: &usize| !self.checks[*index].is_shadow() && !self.outcomes[*index].allowed;
        let answered = group.iter().filter(|index| !unanswered.contains(index));
        let refused = answered.clone().any(refuses);
        let way = if refused { CheckRoute::Refused } else { CheckRoute::Store };
        answered.for_each(|&index| self.routes[index] = way.clone());
        // One node of several fails: the others' limits are theirs.
        !refused && (unanswered.is_empty() || self.fall_back(&unanswered))
    }

    /// Decides the checks of a store that does not answer; whether nothing refuses.
    fn fall_back(&mut self, group: &[usize]) -> bool {
        let checks: CheckList<Check<'_>> = group.iter().map(|&index| self.checks[index]).collect();
        let at = self.store.store_for(&checks[0]).to_store_now(self.asked_at.again());
        let mut answers = [Outcome::default(); MAX_LIMITS];
        let answers = &mut answers[..checks.len()];
        let share = |check: &Check<'_>| {
            self.store.share_cache.share_of(check.limit(), self.store.live_instances())
        };
        let shares: CheckList<Arc<Limit>> = checks.iter().map(share).collect();
        let admitted = self.store.decide_without_store(&checks, &shares, at, answers);
        for ((&index, answer), share) in group.iter().zip(answers).zip(shares) {
            let way = if admitted { CheckRoute::Share(share) } else { CheckRoute::Refused };
            (self.outcomes[index], self.routes[index]) = (*answer, way);
        }
        admitted
    }

    /// Gives back what was taken before another refused.
    fn undo(&mut self) {
        for index in 0..self.checks.len() {
            match self.routes[index] {
                CheckRoute::Refused => {}
                CheckRoute::Undecided => {
                    self.outcomes[index] =
                        self.store.peek_local(&self.checks[index], self.asked_at);
                    let counted = self.refused_charge(index);
                    if counted > 0 {
                        self.charge_in_background(index, counted);
                    }
                }
                _ if self.checks[index].counts_denied() => self.outcomes[index].charged = 0,
                _ => self.give_back(index, u64::MAX),
            }
            self.outcomes[index].delay = Wait::ZERO;
        }
    }

    /// Gives back up to `units` of what a check was charged.
    fn give_back(&mut self, index: usize, units: u64) {
        let (shared, check, tag) = (self.store, &self.checks[index], self.tags[index]);
        let outcome = &mut self.outcomes[index];
        let units = units.min(outcome.charged);
        if units == 0 {
            return;
        }
        let charged = *outcome;
        *outcome = charged.refunded(units, check.limit());
        let receipt = Outcome { charged: units, ..charged }.receipt();
        let asked = shared.store_for(check);
        let when = asked.call_timing(self.asked_at);
        let tell = |units: u64| {
            let debt = shared.pending_refund(&check.cost(units), Some(&receipt));
            drop(shared.send_change(debt, when));
        };
        match &self.routes[index] {
            CheckRoute::Lease if shared.leases.put_back(tag, units) => {}
            CheckRoute::Store | CheckRoute::Lease => {
                shared.refund_local_copy(&check.cost(units), Some(&receipt), self.now);
                tell(units);
            }
            CheckRoute::LocalSync => {
                let told = shared.refund_local_sync(check, tag, Some(&receipt), self.now);
                if told > 0 {
                    tell(told);
                }
            }
            CheckRoute::Share(share) => {
                let at = asked.to_store_clock(self.now);
                shared.local.refund(share, check.key(), Some(receipt), units, at);
            }
            CheckRoute::Undecided | CheckRoute::Refused => {}
        }
    }

    /// Makes all limits of an "up to" grant as much as the smallest grant. Limits that admit
    /// without a store do not count.
    fn level_up_to_grants(&mut self) {
        // One store that decides about all of them has done it.
        let first = self.store.store_for(&self.checks[0]);
        let by_first = |check: &Check<'_>| std::ptr::eq(self.store.store_for(check), first);
        if self.routes.iter().all(|way| matches!(way, CheckRoute::Store))
            && self.checks.iter().all(by_first)
        {
            return;
        }
        let counts = |index: usize| self.outcomes[index].decided_by != DecidedBy::Open;
        for (index, more) in up_to::up_to_excess(self.checks, self.outcomes, counts) {
            self.give_back(index, more);
        }
    }
}
