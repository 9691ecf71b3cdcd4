//! A request that has to be put together: several checks, several stores, several ways to decide.
//!
//! What can be taken here is taken first: a store that refuses then costs nothing but putting it back.
//! Then the stores are asked in turn. Whoever refuses ends it: all that was taken before is given back,
//! but for limits that count refused requests.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::time::MAX_EXACT;
use tollgate::{
    Act, Check, Consistency, DecidedBy, Decision, Limit, Micros, Now, Outcome, Refusal, Wait,
};

use crate::level;
use crate::options::TimeOf;
use crate::remote::{Remote, Seen};

use super::Inner;
use super::refusals::Unreported;

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

/// One request on its way.
struct Request<'a, R> {
    shared: &'a Arc<Inner<R>>,
    checks: &'a [Check<'a>],
    now: Micros,
    /// The clock that `now` was read from.
    asked_at: Now<'a>,
    tags: List<u64>,
    ways: List<Way>,
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
            return self.local.decide_each(checks, now, outcomes);
        }
        if self.any_block(now) {
            let waits = checks.iter().filter(|check| check.what() != Act::Force);
            let wait = waits.filter_map(|check| self.blocked(check.key(), now)).max();
            if let Some(wait) = wait {
                return Decision::refused(Refusal::Blocked, wait, now);
            }
        }
        if let [check] = checks
            && self.is_simple(check)
        {
            outcomes[0] = self.ask_one(check, asked_at).await;
            return Decision::of_outcomes(checks, outcomes, now);
        }
        let tags = checks.iter().map(|check| self.tag(check)).collect();
        let ways = checks.iter().map(|_| Way::Unasked).collect();
        let mut request = Request { shared: self, checks, now, asked_at, tags, ways };
        request.decide(outcomes).await;
        Decision::of_outcomes(checks, outcomes, now)
    }
}

impl<R: Remote> Request<'_, R> {
    async fn decide(&mut self, outcomes: &mut [Outcome]) {
        // Checks of one state are judged for what they ask together: only a store does that.
        let apart = self.shared.time == TimeOf::Server && !self.has_twins();
        if apart && self.recall(outcomes) {
            return;
        }
        if apart && !self.take_here(outcomes) {
            return self.undo(outcomes);
        }
        for number in 0..self.shared.stores.len() {
            if !self.ask_store(number, outcomes).await {
                return self.undo(outcomes);
            }
        }
        self.level(outcomes);
    }

    fn has_twins(&self) -> bool {
        let tags = &self.tags;
        (1..tags.len()).any(|index| tags[..index].contains(&tags[index]))
    }

    /// Whether a limit is known to refuse; then `outcomes` say so.
    fn recall(&self, outcomes: &mut [Outcome]) -> bool {
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
                outcomes[index] = outcome;
                known |= 1 << index;
            }
        }
        for index in (0..self.checks.len()).filter(|index| known != 0 && known >> index & 1 == 0) {
            outcomes[index] = self.shared.glance(&self.checks[index], now);
        }
        known != 0
    }

    fn has_lease(&self, index: usize) -> bool {
        let consistency = self.checks[index].its_terms().consistency;
        matches!(consistency, Consistency::Leased { .. })
            && self.shared.leases.covers(self.tags[index], self.checks[index].units())
    }

    /// Takes what needs no store; whether nothing refuses.
    fn take_here(&mut self, outcomes: &mut [Outcome]) -> bool {
        let shared = self.shared;
        let mut alone = List::new();
        for (index, check) in self.checks.iter().enumerate() {
            let plain = check.what() == Act::Take && !check.is_shadow() && check.units() > 0;
            match check.its_terms().consistency {
                Consistency::Leased { .. } if plain => {
                    if let Some(outcome) = shared.spend_lease(check, self.tags[index], self.now) {
                        outcomes[index] = outcome;
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
            (outcomes[index], self.ways[index]) = (answer, way.clone());
            let units = if admitted { answer.charged } else { self.counted(index) };
            // A place that was given up meanwhile is told now.
            if units > 0 && !shared.sync.add(self.tags[index], units) {
                shared.soon(self.checks[index].cost(units).act(Act::Force), self.now);
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

    /// Asks a store about its checks; whether nothing refuses.
    async fn ask_store(&mut self, number: usize, outcomes: &mut [Outcome]) -> bool {
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
        for &index in &group {
            shared.tell_before(&self.checks[index], self.tags[index]).await;
        }
        let drain =
            |&index: &usize| shared.unreported(&self.checks[index], self.tags[index], self.now);
        let unreported: List<Unreported> = group.iter().map(drain).collect();
        let mut checks: ArrayVec<Check<'_>, { 2 * MAX_LIMITS }> = ArrayVec::new();
        for (&index, before) in group.iter().zip(&unreported) {
            checks.extend(counted_before(&self.checks[index], before));
        }
        let before = checks.len();
        checks.extend(group.iter().map(|&index| self.checks[index]));
        if checks.len() > MAX_LIMITS {
            // No room for them in this request: on their own, just before it.
            checks.drain(..before).for_each(|check| shared.soon(check, self.now));
        }
        let before = checks.len() - group.len();
        let sent = shared.pace.saw(self.now);
        let mut answers = [Outcome::default(); MAX_LIMITS];
        let mut seen = Seen::default();
        let answer = asked.store.decide_seen(&checks, self.now, &mut answers, &mut seen).await;
        if answer.is_err() {
            for (&index, before) in group.iter().zip(unreported) {
                shared.refusals.put_back(self.tags[index], before);
            }
            return self.go_on_without(&group, outcomes);
        }
        asked.saw(seen.at, sent);
        for (place, receipt) in std::mem::take(&mut seen.back) {
            let check = checks[place].cost(receipt.granted());
            shared.refund_soon(check, receipt, self.now);
        }
        let mut unanswered = List::new();
        for (place, &index) in group.iter().enumerate() {
            let (check, tag) = (&self.checks[index], self.tags[index]);
            if seen.failed >> (before + place) & 1 == 1 {
                shared.refusals.put_back(tag, unreported[place]);
                unanswered.push(index);
                continue;
            }
            outcomes[index] = answers[before + place];
            shared.copy_state(check, &seen, before + place);
            shared.learn(check, tag, self.now, &mut outcomes[index], unreported[place]);
        }
        let refuses = |index: &usize| !self.checks[*index].is_shadow() && !outcomes[*index].allowed;
        let answered = group.iter().filter(|index| !unanswered.contains(index));
        let refused = answered.clone().any(refuses);
        let way = if refused { Way::Refused } else { Way::Store };
        answered.for_each(|&index| self.ways[index] = way.clone());
        // One node of several fails: the others' limits are theirs.
        !refused && (unanswered.is_empty() || self.go_on_without(&unanswered, outcomes))
    }

    /// Decides the checks of a store that does not answer; whether nothing refuses.
    fn go_on_without(&mut self, group: &[usize], outcomes: &mut [Outcome]) -> bool {
        let checks: List<Check<'_>> = group.iter().map(|&index| self.checks[index]).collect();
        let at = self.shared.asked(&checks[0]).clock_now(self.asked_at.again());
        let mut answers = [Outcome::default(); MAX_LIMITS];
        let answers = &mut answers[..checks.len()];
        let share = |check: &Check<'_>| self.shared.shares.of(check.limit(), self.shared.live());
        let shares: List<Arc<Limit>> = checks.iter().map(share).collect();
        let admitted = self.shared.decide_without(&checks, &shares, at, answers);
        for ((&index, answer), share) in group.iter().zip(answers).zip(shares) {
            let way = if admitted { Way::Share(share) } else { Way::Refused };
            (outcomes[index], self.ways[index]) = (*answer, way);
        }
        admitted
    }

    /// Gives back what was taken before another refused.
    fn undo(&self, outcomes: &mut [Outcome]) {
        for (index, outcome) in outcomes.iter_mut().enumerate() {
            match self.ways[index] {
                Way::Refused => {}
                Way::Unasked => {
                    *outcome = self.shared.glance(&self.checks[index], self.asked_at);
                    let counted = self.counted(index);
                    if counted > 0 {
                        self.shared
                            .soon(self.checks[index].cost(counted).act(Act::Force), self.now);
                    }
                }
                _ if self.checks[index].counts_denied() => outcome.charged = 0,
                _ => self.give_back(index, outcome, u64::MAX),
            }
            outcome.delay = Wait::ZERO;
        }
    }

    /// Gives back up to `units` of what a check was charged.
    fn give_back(&self, index: usize, outcome: &mut Outcome, units: u64) {
        let (shared, check, tag) = (self.shared, &self.checks[index], self.tags[index]);
        let units = units.min(outcome.charged);
        if units == 0 {
            return;
        }
        let charged = *outcome;
        outcome.charged -= units;
        outcome.remaining = (outcome.remaining + units).min(check.limit().capacity());
        let receipt = Outcome { charged: units, ..charged }.receipt();
        let at = shared.asked(check).clock(self.now);
        match &self.ways[index] {
            Way::Lease if shared.leases.put_back(tag, units) => {}
            Way::Store | Way::Lease => {
                shared.refund_copy(&check.cost(units), Some(&receipt), self.now);
                shared.refund_soon(check.cost(units), receipt, self.now);
            }
            Way::Alone => {
                let told = shared.refund_alone(check, tag, Some(&receipt), self.now);
                if told > 0 {
                    shared.refund_soon(check.cost(told), receipt, self.now);
                }
            }
            Way::Share(share) => {
                shared.local.refund(share, check.key(), Some(receipt), units, at);
            }
            Way::Unasked | Way::Refused => {}
        }
    }

    /// Of "up to", all limits grant what the one with the least does. Nobody counts where the rule
    /// admits without a store.
    fn level(&self, outcomes: &mut [Outcome]) {
        let counts = |index: usize| outcomes[index].decided_by != DecidedBy::Open;
        for (index, more) in level::excess(self.checks, outcomes, counts) {
            self.give_back(index, &mut outcomes[index], more);
        }
    }
}

/// Refusals that a limit counts and its store has not heard of, to be charged before the check.
pub(super) fn counted_before<'a>(check: &Check<'a>, refusals: &Unreported) -> Option<Check<'a>> {
    let units = refusals.cost.saturating_mul(refusals.unknown.into()).min(MAX_EXACT);
    let force = check.cost(units).act(Act::Force);
    (check.counts_denied() && units > 0).then_some(force)
}
