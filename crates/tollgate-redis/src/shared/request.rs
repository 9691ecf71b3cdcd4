//! A request that has to be put together: several checks, several stores, several ways to decide.
//!
//! What can be taken here is taken first: a store that refuses then costs nothing but putting it back.
//! Then the stores are asked in turn. Whoever refuses ends it: all that was taken before is given back,
//! but for limits that count refused requests. The same happens if whoever asks does not wait for the end.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::{
    Act, Check, Consistency, DecidedBy, Decision, Limit, Micros, Now, Outcome, Refusal, Wait,
};

use crate::level;
use crate::options::TimeOf;
use crate::remote::{Remote, Seen};

use super::Inner;
use super::local_sync::Stretch;

/// Something of each check, without allocating.
type List<T> = ArrayVec<T, MAX_LIMITS>;

/// Who decided a check.
#[derive(Clone, Debug)]
enum Way {
    /// Nobody yet: its store will be asked, unless another refuses before.
    Unasked,
    /// Its store.
    Store,
    /// Budget that was borrowed.
    Lease,
    /// The table of this process; the store is told.
    Alone,
    /// The table of this process by a share of the limit: the store does not answer.
    Share(Arc<Limit>),
    /// Whoever it was, it was charged nothing: one of those decided with it refused.
    Refused,
}

/// One request on its way. Dropped before its end, it gives back what it has taken.
struct Request<'a, R: Remote> {
    shared: &'a Arc<Inner<R>>,
    checks: &'a [Check<'a>],
    now: Micros,
    /// The clock that `now` was read from.
    asked_at: Now<'a>,
    tags: List<u64>,
    ways: List<Way>,
    /// What each limit has said so far.
    outcomes: List<Outcome>,
    ended: bool,
}

impl<R: Remote> Drop for Request<'_, R> {
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

impl<R: Remote> Inner<R> {
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
            let waits = checks.iter().filter(|check| check.what() != Act::Force);
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
            outcomes[0] = self.ask_one(check, asked_at).await;
            return Decision::of_outcomes(checks, outcomes, now);
        }
        let tags = checks.iter().map(|check| self.tag(check)).collect();
        let mut request = Request {
            shared: self,
            checks,
            now,
            // However many stores it asks, all of them have one deadline.
            asked_at: asked_at.begin(),
            tags,
            ways: checks.iter().map(|_| Way::Unasked).collect(),
            outcomes: checks.iter().map(|_| Outcome::default()).collect(),
            ended: false,
        };
        request.decide().await;
        request.ended = true;
        outcomes.copy_from_slice(&request.outcomes);
        Decision::of_outcomes(checks, outcomes, now)
    }
}

impl<R: Remote> Request<'_, R> {
    async fn decide(&mut self) {
        // Checks of one state are judged for what they ask together: only a store does that.
        let apart = self.shared.time == TimeOf::Server && !self.has_twins();
        if apart && self.recall() {
            return;
        }
        if apart && !self.take_here() {
            return self.undo();
        }
        for number in 0..self.shared.stores.len() {
            if !self.ask_store(number).await {
                return self.undo();
            }
        }
        self.level();
    }

    fn has_twins(&self) -> bool {
        (0..self.tags.len()).any(|index| self.is_twin(index))
    }

    /// Whether another check is about the same state: then it was judged for more than its own cost.
    fn is_twin(&self, index: usize) -> bool {
        self.tags.iter().filter(|tag| **tag == self.tags[index]).count() > 1
    }

    /// Whether a limit is known to refuse; then `outcomes` say so.
    fn recall(&mut self) -> bool {
        let (shared, now) = (self.shared, self.asked_at);
        let counting = |check: &Check<'_>| check.counts_denied();
        // Of several limits, those that count refused requests have to be told of each.
        if self.checks.len() > 1 && self.checks.iter().any(counting) {
            return false;
        }
        let mut known = 0_u16;
        for (index, check) in self.checks.iter().enumerate() {
            let takes = matches!(check.what(), Act::Take | Act::UpTo) && check.units() > 0;
            let may = takes && !check.is_shadow() && !check.is_at_once() && !self.has_lease(index);
            let found = may.then(|| shared.recall(check, self.tags[index], now));
            if let Some(outcome) = found.flatten() {
                self.outcomes[index] = outcome;
                known |= 1 << index;
            }
        }
        for index in (0..self.checks.len()).filter(|index| known != 0 && known >> index & 1 == 0) {
            self.outcomes[index] = self.shared.glance(&self.checks[index], now);
        }
        known != 0
    }

    fn has_lease(&self, index: usize) -> bool {
        let consistency = self.checks[index].its_terms().consistency;
        matches!(consistency, Consistency::Leased { .. })
            && self.shared.leases.covers(self.tags[index], self.checks[index].units())
    }

    /// Takes what needs no store; whether nothing refuses.
    fn take_here(&mut self) -> bool {
        let shared = self.shared;
        let mut alone = List::new();
        for (index, check) in self.checks.iter().enumerate() {
            let plain = check.what() == Act::Take && !check.is_shadow() && check.units() > 0;
            match check.its_terms().consistency {
                Consistency::Leased { .. } if plain => {
                    if let Some(outcome) = shared.spend_lease(check, self.tags[index], self.now) {
                        self.outcomes[index] = outcome;
                        self.ways[index] = Way::Lease;
                    }
                }
                Consistency::LocalSync { .. }
                    if shared.sync.is_ready(self.tags[index], check.limit()) =>
                {
                    alone.push(index);
                }
                _ => {}
            }
        }
        let checks: List<Check<'_>> = alone.iter().map(|&index| self.checks[index]).collect();
        let Some(first) = checks.first() else { return true };
        let at = shared.asked(first).clock_now(self.asked_at);
        let mut answers = [Outcome::default(); MAX_LIMITS];
        let admitted = shared.decide_in_table(&checks, at, &mut answers);
        let way = if admitted { Way::Alone } else { Way::Refused };
        for (&index, answer) in alone.iter().zip(answers) {
            (self.outcomes[index], self.ways[index]) = (answer, way.clone());
            let units = if admitted { answer.charged } else { self.counted(index) };
            let stretch = || Stretch::of(self.checks[index].limit(), &answer, at.instant(), units);
            // A place that was given up meanwhile is told now.
            if units > 0 && !shared.sync.add(self.tags[index], stretch()) {
                self.charge_soon(index, units);
            }
        }
        admitted
    }

    /// What a limit charges for a request that is refused.
    fn counted(&self, index: usize) -> u64 {
        let check = &self.checks[index];
        match check.what() {
            Act::Take | Act::Force if check.counts_denied() => check.units(),
            Act::UpTo if check.counts_denied() => check.units().min(1),
            _ => 0,
        }
    }

    /// Charges for what has happened without waiting for the store.
    fn charge_soon(&self, index: usize, units: u64) {
        let check = &self.checks[index];
        let when = self.shared.asked(check).when(self.asked_at);
        self.shared.charge_soon(check, units, when);
    }

    /// Asks a store about its checks; whether nothing refuses.
    async fn ask_store(&mut self, number: usize) -> bool {
        let shared = self.shared;
        let asked = &shared.stores[number];
        let of_it = |index: &usize| {
            let its = std::ptr::eq(shared.asked(&self.checks[*index]), asked);
            its && matches!(self.ways[*index], Way::Unasked)
        };
        let group: List<usize> = (0..self.checks.len()).filter(of_it).collect();
        if group.is_empty() {
            return true;
        }
        let when = asked.when(self.asked_at);
        for &index in &group {
            shared.tell_before(&self.checks[index], self.tags[index], when).await;
        }
        let checks: List<Check<'_>> = group.iter().map(|&index| self.checks[index]).collect();
        shared.pace.saw(self.now);
        let mut answers = [Outcome::default(); MAX_LIMITS];
        let mut seen = Seen::default();
        let answer = asked.store.decide_seen(&checks, when, &mut answers, &mut seen).await;
        if answer.is_err() {
            return self.go_on_without(&group);
        }
        let answered = self.asked_at.again().instant();
        asked.saw(seen.at, answered);
        for (place, receipt) in std::mem::take(&mut seen.back) {
            let check = checks[place].cost(receipt.granted());
            drop(shared.tell(shared.refund_debt(&check, Some(&receipt)), when));
        }
        let mut unanswered = List::new();
        for (place, &index) in group.iter().enumerate() {
            let (check, tag) = (&self.checks[index], self.tags[index]);
            if seen.failed >> place & 1 == 1 {
                unanswered.push(index);
                continue;
            }
            self.outcomes[index] = answers[place];
            shared.copy_state(check, &seen, place);
            match self.is_twin(index) {
                true => shared.refusals.forget(tag),
                false => shared.learn(check, tag, (self.now, answered), &answers[place]),
            }
        }
        let refuses =
            |index: &usize| !self.checks[*index].is_shadow() && !self.outcomes[*index].allowed;
        let answered = group.iter().filter(|index| !unanswered.contains(index));
        let refused = answered.clone().any(refuses);
        let way = if refused { Way::Refused } else { Way::Store };
        answered.for_each(|&index| self.ways[index] = way.clone());
        // One node of several fails: the others' limits are theirs.
        !refused && (unanswered.is_empty() || self.go_on_without(&unanswered))
    }

    /// Decides the checks of a store that does not answer; whether nothing refuses.
    fn go_on_without(&mut self, group: &[usize]) -> bool {
        let checks: List<Check<'_>> = group.iter().map(|&index| self.checks[index]).collect();
        let at = self.shared.asked(&checks[0]).clock_now(self.asked_at.again());
        let mut answers = [Outcome::default(); MAX_LIMITS];
        let answers = &mut answers[..checks.len()];
        let share = |check: &Check<'_>| self.shared.shares.of(check.limit(), self.shared.live());
        let shares: List<Arc<Limit>> = checks.iter().map(share).collect();
        let admitted = self.shared.decide_without(&checks, &shares, at, answers);
        for ((&index, answer), share) in group.iter().zip(answers).zip(shares) {
            let way = if admitted { Way::Share(share) } else { Way::Refused };
            (self.outcomes[index], self.ways[index]) = (*answer, way);
        }
        admitted
    }

    /// Gives back what was taken before another refused.
    fn undo(&mut self) {
        for index in 0..self.checks.len() {
            match self.ways[index] {
                Way::Refused => {}
                Way::Unasked => {
                    self.outcomes[index] = self.shared.glance(&self.checks[index], self.asked_at);
                    let counted = self.counted(index);
                    if counted > 0 {
                        self.charge_soon(index, counted);
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
        let (shared, check, tag) = (self.shared, &self.checks[index], self.tags[index]);
        let outcome = &mut self.outcomes[index];
        let units = units.min(outcome.charged);
        if units == 0 {
            return;
        }
        let charged = *outcome;
        outcome.charged -= units;
        outcome.remaining = (outcome.remaining + units).min(check.limit().capacity());
        let receipt = Outcome { charged: units, ..charged }.receipt();
        let asked = shared.asked(check);
        let when = asked.when(self.asked_at);
        let tell = |units: u64| {
            let debt = shared.refund_debt(&check.cost(units), Some(&receipt));
            drop(shared.tell(debt, when));
        };
        match &self.ways[index] {
            Way::Lease if shared.leases.put_back(tag, units) => {}
            Way::Store | Way::Lease => {
                shared.refund_copy(&check.cost(units), Some(&receipt), self.now);
                tell(units);
            }
            Way::Alone => {
                let told = shared.refund_alone(check, tag, Some(&receipt), self.now);
                if told > 0 {
                    tell(told);
                }
            }
            Way::Share(share) => {
                let at = asked.clock(self.now);
                shared.local.refund(share, check.key(), Some(receipt), units, at);
            }
            Way::Unasked | Way::Refused => {}
        }
    }

    /// Of "up to", all limits grant what the one with the least does. Nobody counts where the rule
    /// admits without a store.
    fn level(&mut self) {
        // One store that decides about all of them has done it.
        let first = self.shared.asked(&self.checks[0]);
        let by_first = |check: &Check<'_>| std::ptr::eq(self.shared.asked(check), first);
        if self.ways.iter().all(|way| matches!(way, Way::Store)) && self.checks.iter().all(by_first)
        {
            return;
        }
        let counts = |index: usize| self.outcomes[index].decided_by != DecidedBy::Open;
        for (index, more) in level::excess(self.checks, &self.outcomes, counts) {
            self.give_back(index, more);
        }
    }
}
