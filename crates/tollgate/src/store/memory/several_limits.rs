//! Several limits as one request: all are charged, or none is.
//!
//! If all limits admit and no other thread interferes, `optimistic.rs` has the answer. Otherwise
//! every limit is judged without a lock. If one refuses, that is the answer: it was true at that
//! moment, and nothing is written. Only if all would admit are their slots locked, in the order of
//! their addresses so that two requests never wait for each other, and judged again. Slots are
//! locked rather than charged and undone, because an undo would show other requests, for a moment,
//! units as taken that were never granted, and refuse them.

use crate::check::{Act, Check};
use crate::clock::Now;
use crate::decision::{DecidedBy, Decision, MAX_LIMITS, Outcome, Refusal};
use crate::limit::Limit;
use crate::store::all_or_none::{self, LimitCheck, judge_uncharged};
use crate::store::carried_state::{CarriedState, Purpose};
use crate::time::{Micros, Wait};

use super::slot::{LockedSlot, Slot, SlotRecord};
use super::slot_state::SlotState;
use super::table::{EvictionPolicy, EvictionScope, InsertResult, SlotTable, StateWorth};
use super::{MemoryStore, PerCheck, StoreEvictionPolicy, overflow_key, slot_key, twin_subject};

/// One check of a request, with its key in the table.
struct LockedCheck<'a> {
    check: Check<'a>,
    /// The limit, shifted to the key's own windows if it is staggered.
    limit: &'a Limit,
    tag: u32,
    subject: u64,
    key: u64,
    /// Number of the state among those of the same id and key: see [`Outcome::twin`].
    twin: u8,
}

impl LockedCheck<'_> {
    /// The key of the overflow state to use if there is no room. Twins have different ones.
    fn overflow_key(&self) -> u64 {
        overflow_key(twin_subject(self.subject, self.twin), self.limit)
    }
}

impl LimitCheck for LockedCheck<'_> {
    fn check(&self) -> &Check<'_> {
        &self.check
    }

    fn limit(&self) -> &Limit {
        self.limit
    }
}

/// The slot of a check's state, and the key that it must still have once locked.
#[derive(Clone, Copy)]
struct TargetSlot<'a> {
    slot: &'a Slot,
    key: u64,
    decided_by: DecidedBy,
}

/// Keeps the states of one request from evicting each other. They are fresh until all of them are
/// charged, so two that compete for one slot would evict each other in turns forever.
struct RequestEvictionPolicy<'a> {
    checks: &'a [LockedCheck<'a>],
    store_policy: StoreEvictionPolicy<'a>,
}

impl EvictionPolicy for RequestEvictionPolicy<'_> {
    fn worth(&self, record: SlotRecord) -> StateWorth {
        self.store_policy.worth(record)
    }

    fn forget(&self, record: SlotRecord) {
        self.store_policy.forget(record);
    }

    fn protects(&self, key: u64) -> bool {
        let is_one = |one: &LockedCheck<'_>| one.key == key || one.overflow_key() == key;
        self.checks.iter().any(is_one)
    }
}

impl MemoryStore {
    /// Decides several checks, whose keys are hashed, as one request.
    pub(super) fn decide_several(
        &self,
        checks: &[Check<'_>],
        subjects: &[u64],
        asked_at: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Decision {
        let now = asked_at.instant();
        let refuse = |reason, wait, outcomes: &mut [Outcome]| {
            outcomes.fill(Outcome::default());
            Decision::refused(reason, wait, now)
        };
        if checks.len() > MAX_LIMITS {
            return refuse(Refusal::TooManyLimits, Wait::NEVER, &mut outcomes[..MAX_LIMITS]);
        }
        let outcomes = &mut outcomes[..checks.len()];
        if checks.iter().any(|check| check.key.is_empty()) {
            return refuse(Refusal::EmptyKey, Wait::NEVER, outcomes);
        }
        if checks.is_empty() {
            return Decision::unlimited(now);
        }
        if let Some(wait) = self.longest_block(checks, subjects, now) {
            return refuse(Refusal::Blocked, wait, outcomes);
        }
        if let Some(answer) = self.take_optimistic(checks, subjects, now, outcomes) {
            return answer;
        }
        self.decide_by_locks(checks, subjects, asked_at, outcomes)
            .unwrap_or_else(|| refuse(Refusal::TooManyLimits, Wait::NEVER, outcomes))
    }

    /// Decides everything that is not the usual case; `None` if there are too many limits.
    #[inline(never)]
    fn decide_by_locks(
        &self,
        checks: &[Check<'_>],
        subjects: &[u64],
        asked_at: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Option<Decision> {
        let now = asked_at.instant();
        // Kept apart from the list of checks: limits are large, and this list is nearly always
        // empty.
        let staggered = checks.iter().filter(|check| check.limit.is_staggered());
        let shifted: PerCheck<Limit> =
            staggered.map(|check| check.limit.for_key(check.key.as_bytes()).into_owned()).collect();
        let mut shifted = shifted.iter();
        let mut asked = PerCheck::new();
        for (check, &subject) in checks.iter().zip(subjects) {
            let own = if check.limit.is_staggered() { shifted.next() } else { None };
            asked.push(self.prepare_check(check, own.unwrap_or(check.limit), subject, &asked)?);
        }
        if let Some(answer) = self.decide_unlocked(&asked, checks, now, outcomes) {
            return Some(answer);
        }
        // Up to here tags were only replaced by themselves. From here on new states get tags, which
        // must not be dropped before they are written.
        let _held = self.hold_tags(checks.iter().map(|check| check.limit));
        for one in &mut asked {
            one.tag = self.numbers.tag(one.check.limit)?;
        }
        loop {
            match self.targets(&asked, now) {
                Err(refused) => {
                    // No limit was judged: none has refused because of the key's own use.
                    outcomes.fill(refused.outcome());
                    return Some(refused);
                }
                Ok(targets) => {
                    let decision = self.charge_locked(&asked, checks, &targets, asked_at, outcomes);
                    if decision.is_some() {
                        return decision;
                    }
                }
            }
        }
    }

    /// The wait until none of the blocked keys is blocked any more.
    fn longest_block(&self, checks: &[Check<'_>], subjects: &[u64], now: Micros) -> Option<Wait> {
        if !self.any_block(now) {
            return None;
        }
        // A forced cost has already been spent, so a block does not apply.
        let stoppable = checks.iter().zip(subjects).filter(|(check, _)| check.act != Act::Force);
        stoppable.filter_map(|(_, &subject)| self.blocked_for(subject, now)).max()
    }

    /// Computes the key of a check's state; `None` if its numbers get no tag.
    fn prepare_check<'a>(
        &self,
        check: &Check<'a>,
        limit: &'a Limit,
        subject: u64,
        before: &[LockedCheck<'a>],
    ) -> Option<LockedCheck<'a>> {
        let tag = self.tag(check.limit)?;
        // The same limit and key given twice are one state. Limits that differ only in their
        // numbers would share one as well; within one request that is never intended, so each gets
        // its own.
        let (mut same, mut others) = (None, 0);
        for asked in before {
            if asked.subject == subject && asked.limit.id() == check.limit.id() {
                others = others.max(asked.twin + 1);
                same = same.or((asked.tag == tag).then_some(asked.twin));
            }
        }
        let twin = same.unwrap_or(others);
        let key = slot_key(twin_subject(subject, twin), check.limit);
        Some(LockedCheck { check: *check, limit, tag, subject, key, twin })
    }

    /// The answer if nothing has to be written: an enforced limit refuses, or there is nothing to
    /// charge.
    fn decide_unlocked(
        &self,
        asked: &[LockedCheck<'_>],
        checks: &[Check<'_>],
        now: Micros,
        outcomes: &mut [Outcome],
    ) -> Option<Decision> {
        let mut violated = 0;
        for (index, one) in asked.iter().enumerate() {
            let judged =
                all_or_none::cumulative_cost(asked, index, |other| asked[other].key == one.key);
            let (outcome, refuses) = self.judge_unlocked(one, judged, now)?;
            if outcome.jumped || one.check.count_denied {
                return None;
            }
            violated |= u16::from(refuses && !one.check.shadow) << index;
            outcomes[index] = Outcome { twin: one.twin, ..outcome };
        }
        if violated != 0 {
            outcomes.iter_mut().for_each(|outcome| outcome.delay = Wait::ZERO);
        }
        let only_asks = |one: &LockedCheck<'_>| one.check.act == Act::Peek || one.check.cost == 0;
        (violated != 0 || asked.iter().all(only_asks))
            .then(|| Decision::of_all(checks, outcomes, violated, now))
    }

    /// The present outcome of a limit, and true if it refuses; `None` if that takes a lock.
    fn judge_unlocked(
        &self,
        one: &LockedCheck<'_>,
        judged: u64,
        now: Micros,
    ) -> Option<(Outcome, bool)> {
        let limit = one.limit;
        let Some(slot) = self.keys.find(one.key) else {
            let fresh = SlotState::fresh_in_slot(limit, now, &self.arena);
            return Some(judge_uncharged(&fresh, one, judged, now));
        };
        let seen = slot.read();
        let record = seen.record();
        if seen.key != one.key || record.numbers_tag() != one.tag {
            return None;
        }
        let state = SlotState::from_record(limit, record, &self.arena)?;
        let present = judge_uncharged(&state, one, judged, now);
        slot.is_unchanged(&seen).then_some(present)
    }

    /// Finds a slot for every check; keys without a state get a fresh one.
    fn targets(
        &self,
        asked: &[LockedCheck<'_>],
        now: Micros,
    ) -> Result<PerCheck<TargetSlot<'_>>, Decision> {
        let policy = RequestEvictionPolicy { checks: asked, store_policy: self.policy(now) };
        asked.iter().map(|one| self.target(one, &policy)).collect()
    }

    fn target(
        &self,
        one: &LockedCheck<'_>,
        policy: &RequestEvictionPolicy<'_>,
    ) -> Result<TargetSlot<'_>, Decision> {
        let in_table = match self.find_or_insert(&self.keys, one.key, one, policy) {
            Ok(slot) => {
                return Ok(TargetSlot { slot, key: one.key, decided_by: DecidedBy::Memory });
            }
            Err(wait) => wait,
        };
        let key = one.overflow_key();
        match self.find_or_insert(self.overflow(), key, one, policy) {
            Ok(slot) => Ok(TargetSlot { slot, key, decided_by: DecidedBy::Overflow }),
            Err(wait) => {
                let soonest = wait.min(in_table);
                Err(Decision::no_room(soonest, policy.store_policy.now))
            }
        }
    }

    fn find_or_insert<'a>(
        &'a self,
        table: &'a SlotTable,
        key: u64,
        one: &LockedCheck<'_>,
        policy: &RequestEvictionPolicy<'_>,
    ) -> Result<&'a Slot, Wait> {
        loop {
            if let Some(slot) = table.find(key) {
                return Ok(slot);
            }
            // Nothing is charged yet, and a mark would make callers with a slow clock wait.
            let fresh = SlotState::fresh_in_slot(one.limit, Micros::ZERO, &self.arena);
            let fresh = fresh.into_record(one.limit, one.tag, &self.arena);
            table.sweep(policy);
            if let InsertResult::NoRoom(wait) =
                table.insert(key, fresh, EvictionScope::Unlimited, policy)
            {
                return Err(wait);
            }
        }
    }

    /// Judges under all locks, and charges if every enforced limit admits. Returns `None` if a slot
    /// was given to another key before it was locked: begin again.
    fn charge_locked(
        &self,
        asked: &[LockedCheck<'_>],
        checks: &[Check<'_>],
        targets: &[TargetSlot<'_>],
        asked_at: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Option<Decision> {
        let address = |target: &TargetSlot<'_>| std::ptr::from_ref(target.slot) as usize;
        let mut order: PerCheck<usize> = (0..targets.len()).collect();
        order.sort_by_key(|&index| address(&targets[index]));
        dedup(&mut order, |index| address(&targets[index]));
        let mut locked: PerCheck<LockedSlot<'_>> =
            order.iter().map(|&index| targets[index].slot.lock()).collect();
        let of = |target: &TargetSlot<'_>| {
            order
                .iter()
                .position(|&index| address(&targets[index]) == address(target))
                .expect("locked")
        };
        if targets.iter().any(|target| locked[of(target)].snapshot().key != target.key) {
            return None;
        }
        let latest = locked.iter().map(|locked| locked.snapshot().record().mark).max();
        let now = asked_at.reread_if_behind(latest.unwrap_or(0)).instant();
        let places: PerCheck<usize> = targets.iter().map(of).collect();
        let mut states: PerCheck<CarriedState<SlotState<'_>>> = order
            .iter()
            .zip(&locked)
            .enumerate()
            .map(|(place, (&index, locked))| {
                let one = &asked[index];
                let here = asked.iter().zip(&places).filter(|(_, other)| **other == place);
                let purpose = here.map(|(one, _)| Purpose::of(&one.check)).max();
                let purpose = purpose.expect("every locked slot belongs to a check");
                self.open_state(one.limit, one.tag, locked.snapshot().record(), purpose, now)
            })
            .collect();

        let violated = all_or_none::decide(asked, &places, &mut states, now, outcomes);
        for ((outcome, target), one) in outcomes.iter_mut().zip(targets).zip(asked) {
            (outcome.decided_by, outcome.twin) = (target.decided_by, one.twin);
        }
        for ((&index, locked), opened) in order.iter().zip(&mut locked).zip(states) {
            let one = &asked[index];
            if let Some(record) = self.close_state(opened, one.limit, one.tag) {
                locked.write(record);
            }
        }
        drop(locked);
        self.free_idle_logs(now);
        let decision = Decision::of_all(checks, outcomes, violated, now);
        self.count_overflow(decision.decided_by);
        Some(decision)
    }
}

/// Keeps the first of each run of equal elements.
fn dedup(order: &mut PerCheck<usize>, key: impl Fn(usize) -> usize) {
    let mut last = None;
    order.retain(|index| last.replace(key(*index)) != Some(key(*index)));
}
