//! The memory store: all limits of all keys in one bounded table.
//!
//! ```text
//!   check ─▶ secret.rs   hash the key
//!         ─▶ table.rs    find its slot             slot.rs: 32 bytes, a sequence lock
//!         ─▶ take.rs     judge and charge a copy   algorithm/*.rs: take
//!         ─▶ slot.rs     write the new state back
//! ```
//!
//! A decision about a key that is in the table takes only these steps and touches nothing shared:
//! no lock but the slot's own, no allocation, and for a refusal no write. Everything else (new
//! keys, changed numbers, logs that grow, several limits that do not all admit) goes through
//! `MemoryStore::update` or `several_limits.rs`, which lock slots and use the same pure functions.
//! `batch.rs` decides many requests at once.
//!
//! Memory is bounded by the table, whatever keys arrive. Keys for which there is no room share 64
//! *overflow* states per limit, and their decisions say so.

mod arena;
mod batch;
mod blocks;
mod locked_state;
mod numbers;
mod optimistic;
mod page_set;
mod pages;
mod secret;
mod several_limits;
mod slot;
mod slot_state;
mod snapshot;
mod table;
mod take;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use arrayvec::ArrayVec;

use crate::algorithm::{self, LimitStateKind, State, Strategy};
use crate::check::{Act, Check, Key};
use crate::clock::Now;
use crate::decision::{DecidedBy, Decision, MAX_LIMITS, Outcome, Receipt, Refusal};
use crate::limit::Limit;
use crate::store::carried_state::{CarriedState, ChargeReason, Purpose};
use crate::store::one_check::ChargePlan;
use crate::store::stored_state::{StateAssignment, StoredState, limits_for_keys};
use crate::store::{InspectedState, InspectedStates};
use crate::time::{Micros, Wait};

use arena::Arena;
use numbers::{BLOCK_TAG, Numbers, TagGuard};
use secret::HashSecret;
use slot::SlotRecord;
use slot_state::SlotState;
use table::{EvictionPolicy, EvictionScope, InsertResult, SlotTable, StateWorth, UsedShare};

pub use snapshot::{RestoreReport, SnapshotError};

/// Number of overflow states per limit, which keys without room share.
pub const OVERFLOW_STATES: u64 = 64;
/// Default cap on the bytes of all log entries.
const LOG_BYTES: usize = 64 << 20;
/// Divisor of the side tables: the overflow and block tables each hold `max_keys / 64` keys.
const SIDE_TABLE_DIVISOR: usize = 64;
/// Fewest keys of a side table.
const SIDE_TABLE_KEYS_MIN: usize = 4_096;
/// Lines of the table swept for each log that could not grow.
const LOG_SWEEP_LINES: usize = 16;

/// One value per check, without allocation.
type PerCheck<T> = ArrayVec<T, MAX_LIMITS>;

/// All limits of all keys of one process.
#[derive(Debug)]
pub struct MemoryStore {
    secret: HashSecret,
    keys: SlotTable,
    /// States shared by keys without room; made when first needed.
    overflow: OnceLock<SlotTable>,
    /// Blocked keys; made when first needed.
    blocks: OnceLock<SlotTable>,
    /// Number of keys for which those two tables are made.
    side_table_keys: usize,
    numbers: Numbers,
    arena: Arena,
    /// Decisions that were answered by an overflow state.
    overflowed: AtomicU64,
    /// The instant at which the last of all blocks ends; the table of blocks is searched only until
    /// then.
    blocked_until: AtomicU64,
    /// Held while a snapshot is written to a file.
    snapshot_lock: Mutex<()>,
}

/// Figures about a store, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Keys in the table.
    pub keys: usize,
    /// Slots of the table: the largest number of keys it can ever hold.
    pub slots: usize,
    /// Bytes of these slots, whether they are used or not.
    pub slot_bytes: usize,
    /// States that were evicted although they were not fresh.
    pub evicted: usize,
    /// Decisions answered by an overflow state.
    pub overflowed: u64,
    /// Blocked keys, including those whose block has ended and whose slot has not been reused yet.
    pub blocked: usize,
    /// Bytes of the pages that hold entries of logs; a page is 256 KiB.
    pub log_bytes: usize,
}

impl MemoryStore {
    /// A store for `max_keys` keys: about 40 bytes each, allocated now. Small stores are roomier: up to
    /// 1,024 keys take 320 bytes each, up to 4,096 keys 320 KiB in all, up to 16,384 keys 80 bytes each.
    /// Overflow states and blocks get a table each when first needed, for a 64th as many keys and at
    /// least 4,096. Log entries take up to 64 MiB. Nothing else ever grows.
    pub fn new(max_keys: usize) -> MemoryStore {
        MemoryStore::with_log_bytes(max_keys, LOG_BYTES)
    }

    /// A store with another cap on the bytes of log entries. When it is reached, logs merge
    /// neighbouring instants: they may refuse more, but never admit more.
    pub fn with_log_bytes(max_keys: usize, max_log_bytes: usize) -> MemoryStore {
        MemoryStore {
            secret: HashSecret::random(),
            keys: SlotTable::new(max_keys),
            overflow: OnceLock::new(),
            blocks: OnceLock::new(),
            side_table_keys: (max_keys / SIDE_TABLE_DIVISOR).max(SIDE_TABLE_KEYS_MIN),
            numbers: Numbers::new(),
            arena: Arena::new(max_log_bytes),
            overflowed: AtomicU64::new(0),
            blocked_until: AtomicU64::new(0),
            snapshot_lock: Mutex::new(()),
        }
    }

    /// Returns figures for metrics.
    pub fn stats(&self) -> MemoryStats {
        MemoryStats {
            keys: self.keys.len(),
            slots: self.keys.slots(),
            slot_bytes: self.keys.bytes(),
            evicted: self.keys.evicted(),
            overflowed: self.overflowed.load(Ordering::Relaxed),
            blocked: self.blocks.get().map_or(0, SlotTable::len),
            log_bytes: self.arena.bytes(),
        }
    }

    /// Decides one check.
    #[inline]
    pub fn decide_one<'n>(&self, check: &Check<'_>, now: impl Into<Now<'n>>) -> Decision {
        self.decide_hashed(check, self.hash_and_prefetch(check), now.into())
    }

    /// Hashes a check's key and prefetches its slot: the part of a decision that can overlap with
    /// reading the clock, which takes a while.
    #[inline]
    pub(crate) fn hash_and_prefetch(&self, check: &Check<'_>) -> HashedKey {
        let subject = self.secret.hash(check.key.as_bytes());
        self.keys.prefetch(slot_key(subject, check.limit));
        HashedKey(subject)
    }

    /// Decides one check after [`MemoryStore::hash_and_prefetch`].
    #[inline]
    pub(crate) fn decide_hashed(&self, check: &Check<'_>, at: HashedKey, now: Now<'_>) -> Decision {
        self.decide_subject(check, at.0, now, |decision| decision)
    }

    /// Decides several checks as one request: all pass and are charged, or none is charged.
    pub fn decide_now<'n>(&self, checks: &[Check<'_>], now: impl Into<Now<'n>>) -> Decision {
        match checks {
            [check] => self.decide_one(check, now),
            _ => {
                let outcomes = checks.iter().take(MAX_LIMITS).map(|_| Outcome::default());
                self.decide_each(checks, now, &mut outcomes.collect::<PerCheck<Outcome>>())
            }
        }
    }

    /// Decides like [`MemoryStore::decide_now`]; `outcomes` receives the outcome of each limit, in
    /// order.
    ///
    /// # Panics
    ///
    /// If `outcomes` is shorter than `checks`.
    pub fn decide_each<'n>(
        &self,
        checks: &[Check<'_>],
        now: impl Into<Now<'n>>,
        outcomes: &mut [Outcome],
    ) -> Decision {
        let mut subjects = PerCheck::new();
        self.hash_request(checks, &mut subjects);
        self.decide_several(checks, &subjects, now.into(), outcomes)
    }

    /// Decides one request: one check on the fast path, several as all or none.
    #[inline]
    pub(super) fn decide_request(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Decision {
        match checks {
            [check] => {
                let HashedKey(subject) = self.hash_and_prefetch(check);
                self.decide_hashed_request(checks, &[subject], now, outcomes)
            }
            _ => self.decide_each(checks, now, outcomes),
        }
    }

    /// Decides one request whose keys are hashed.
    #[inline]
    fn decide_hashed_request(
        &self,
        checks: &[Check<'_>],
        subjects: &[u64],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Decision {
        match (checks, subjects) {
            ([check], [subject]) if !check.shadow => {
                let decision = self.decide_subject(check, *subject, now, |decision| decision);
                outcomes[0] = decision.outcome();
                decision
            }
            _ => self.decide_several(checks, subjects, now, outcomes),
        }
    }

    /// Decides everything that the hot path does not.
    #[cold]
    #[inline(never)]
    fn decide_slow(&self, check: &Check<'_>, subject: u64, now: Now<'_>) -> Decision {
        if check.shadow {
            let checks = std::slice::from_ref(check);
            return self.decide_several(checks, &[subject], now, &mut [Outcome::default()]);
        }
        let instant = now.instant();
        if check.key.is_empty() {
            return Decision::refused(Refusal::EmptyKey, Wait::NEVER, instant);
        }
        if check.act != Act::Force
            && let Some(wait) = self.blocked_for(subject, instant)
        {
            return Decision::refused(Refusal::Blocked, wait, instant);
        }
        let limit = check.limit.for_key(check.key.as_bytes());
        self.read_only(check, &limit, subject, instant)
            .unwrap_or_else(|| self.decide_locked(check, &limit, subject, now))
    }

    /// The answer if the key has a state and nothing has to be written: most peeks, and refusals by
    /// a log.
    fn read_only(
        &self,
        check: &Check<'_>,
        limit: &Limit,
        subject: u64,
        now: Micros,
    ) -> Option<Decision> {
        let key = slot_key(subject, limit);
        let slot = self.keys.find(key)?;
        let seen = slot.read();
        let record = seen.record();
        if seen.key != key || Some(record.numbers_tag()) != self.numbers.tag(limit) {
            return None;
        }
        let state = SlotState::from_record(limit, record, &self.arena)?;
        let plan = ChargePlan::new(&state, limit, check, now);
        let decision = Decision::of_one(limit, plan.outcome, plan.granted, now);
        (plan.charge.is_none() && slot.is_unchanged(&seen)).then_some(decision)
    }

    /// Decides under the lock of the state.
    fn decide_locked(
        &self,
        check: &Check<'_>,
        limit: &Limit,
        subject: u64,
        now: Now<'_>,
    ) -> Decision {
        let (place, purpose) = (StateLocation::TableThenOverflow, Purpose::of(check));
        let decided = self.update(limit, subject, now, place, purpose, |opened, now| {
            if purpose == Purpose::Take {
                opened.begin_take(limit, now);
            }
            let plan = ChargePlan::new(opened.state(), limit, check, now);
            if let Some((units, why)) = plan.charge {
                opened.charge(limit, units, why, now);
            }
            let outcome = plan.outcome_after(opened.state(), limit, check, now);
            Decision::of_one(limit, outcome, plan.granted, now)
        });
        match decided {
            Ok((decision, decided_by)) => {
                self.count_overflow(decided_by);
                decision.with_decided_by(decided_by)
            }
            Err(refused) => refused,
        }
    }

    fn count_overflow(&self, decided_by: DecidedBy) {
        if decided_by == DecidedBy::Overflow {
            self.overflowed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Runs `act` on the state of a key, under its lock, with the instant to act at. A key without
    /// a state gets one only if `act` writes. `Err` is the decision if there is no room for another
    /// state.
    #[expect(clippy::too_many_arguments, reason = "which state, what for, and the act")]
    fn update<T>(
        &self,
        limit: &Limit,
        subject: u64,
        now: Now<'_>,
        place: StateLocation,
        purpose: Purpose,
        mut act: impl FnMut(&mut CarriedState<SlotState<'_>>, Micros) -> T,
    ) -> Result<(T, DecidedBy), Decision> {
        let Some((_held, tag)) = self.hold_tag(limit) else {
            return Err(Decision::refused(Refusal::TooManyLimits, Wait::NEVER, now.instant()));
        };
        let places: &[DecidedBy] = match place {
            StateLocation::TableThenOverflow => &[DecidedBy::Memory, DecidedBy::Overflow],
            StateLocation::Table => &[DecidedBy::Memory],
            StateLocation::Overflow => &[DecidedBy::Overflow],
        };
        let mut soonest = Wait::NEVER;
        for &decided_by in places {
            let (table, key) = match decided_by {
                DecidedBy::Overflow => (self.overflow(), overflow_key(subject, limit)),
                _ => (&self.keys, slot_key(subject, limit)),
            };
            match self.update_at(table, key, limit, tag, now, purpose, &mut act) {
                Ok(result) => {
                    self.free_idle_logs(now.instant());
                    return Ok((result, decided_by));
                }
                Err(wait) => soonest = soonest.min(wait),
            }
        }
        Err(Decision::no_room(soonest, now.instant()))
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one place, used once")]
    fn update_at<T>(
        &self,
        table: &SlotTable,
        key: u64,
        limit: &Limit,
        tag: u32,
        now: Now<'_>,
        purpose: Purpose,
        act: &mut impl FnMut(&mut CarriedState<SlotState<'_>>, Micros) -> T,
    ) -> Result<T, Wait> {
        loop {
            if let Some(slot) = table.find(key) {
                let mut locked = slot.lock();
                let seen = locked.snapshot();
                if seen.key != key {
                    continue;
                }
                let now = now.reread_if_behind(seen.record().mark).instant();
                let mut opened = self.open_state(limit, tag, seen.record(), purpose, now);
                let result = act(&mut opened, now);
                if let Some(record) = self.close_state(opened, limit, tag) {
                    locked.write(record);
                }
                return Ok(result);
            }
            let now = now.instant();
            let mut opened = CarriedState::new(SlotState::fresh_in_slot(limit, now, &self.arena));
            let result = act(&mut opened, now);
            let policy = self.policy(now);
            let Some(record) = self.close_state(opened, limit, tag) else {
                // Reading a key for which there is no room means reading its overflow state.
                return table.room(key, &policy).map(|()| result);
            };
            match table.insert(key, record, EvictionScope::Unlimited, &policy) {
                InsertResult::New => {
                    table.sweep(&policy);
                    return Ok(result);
                }
                InsertResult::Exists => {}
                InsertResult::NoRoom(wait) => return Err(wait),
            }
        }
    }

    /// Gives all of these limits tags that can be written into slots while the guard is held.
    /// Returns `None` if there are too many limits.
    #[inline]
    fn hold_tags<'l>(
        &self,
        limits: impl Iterator<Item = &'l Limit> + Clone,
    ) -> Option<TagGuard<'_>> {
        loop {
            let held = self.numbers.hold_tags();
            if limits.clone().all(|limit| self.numbers.tag(limit).is_some()) {
                return Some(held);
            }
            // Freeing tags needs the locks that this guard holds.
            drop(held);
            for limit in limits.clone() {
                self.tag(limit)?;
            }
        }
    }

    /// Gives one limit a tag that can be written into slots while the guard is held.
    #[inline]
    fn hold_tag(&self, limit: &Limit) -> Option<(TagGuard<'_>, u32)> {
        let held = self.hold_tags(std::iter::once(limit))?;
        Some((held, self.numbers.tag(limit)?))
    }

    /// The tag of a limit's numbers; assigns one if there is none yet.
    #[inline]
    fn tag(&self, limit: &Limit) -> Option<u32> {
        self.numbers.tag(limit).or_else(|| {
            self.numbers.register(limit, || {
                let tables = [Some(&self.keys), self.overflow.get()].into_iter().flatten();
                let records = tables.flat_map(SlotTable::each);
                records.map(|(_, seen)| seen.record().numbers_tag()).collect::<HashSet<u32>>()
            })
        })
    }

    /// Sweeps a few lines if a log could not grow: logs that are no longer used keep their blocks
    /// until they are swept. Call without holding a lock.
    fn free_idle_logs(&self, now: Micros) {
        if self.arena.take_growth_failed() {
            self.keys.sweep_lines(LOG_SWEEP_LINES, &self.policy(now));
        }
    }

    fn overflow(&self) -> &SlotTable {
        self.overflow.get_or_init(|| SlotTable::new(self.side_table_keys))
    }

    fn policy(&self, now: Micros) -> StoreEvictionPolicy<'_> {
        StoreEvictionPolicy { store: self, now }
    }

    /// Units that a key has left, rounded down; negative when in debt.
    pub fn balance(&self, limit: &Limit, key: Key<'_>, now: Micros) -> i64 {
        let limit = &*limit.for_key(key.as_bytes());
        let subject = self.secret.hash(key.as_bytes());
        let now = Now::at(now);
        let used =
            self.update(limit, subject, now, StateLocation::Table, Purpose::Read, |opened, now| {
                opened.state().used(limit, now)
            });
        limit.capacity() as i64 - used.map_or(0, |(used, _)| used as i64)
    }

    /// Reads the states that a request would be decided on; changes nothing. `None`: there is no
    /// room for their limits.
    pub fn inspect<'n>(
        &self,
        checks: &[Check<'_>],
        now: impl Into<Now<'n>>,
    ) -> Option<InspectedStates> {
        let now = now.into();
        let limits = limits_for_keys(checks.get(..MAX_LIMITS).unwrap_or(checks));
        let request = StateAssignment::new(checks, &limits);
        let mut read = InspectedStates::at(now.instant());
        for one in request.first_checks() {
            let subject = self.secret.hash(one.check.key.as_bytes());
            let subject = twin_subject(subject, one.twin);
            let (place, purpose) = (StateLocation::TableThenOverflow, Purpose::Read);
            let found = self.update(one.limit, subject, now, place, purpose, |opened, at| {
                (StoredState::from_carried(opened.copied(SlotState::copy)), at)
            });
            let ((state, at), decided_by) = found.ok()?;
            read.at = read.at.max(at);
            read.states.push(InspectedState { state, decided_by });
        }
        Some(read)
    }

    /// Gives back up to `units` of the charge that `receipt` stands for; without a receipt, as if
    /// charged now.
    pub fn refund(
        &self,
        limit: &Limit,
        key: Key<'_>,
        receipt: Option<Receipt>,
        units: u64,
        now: Micros,
    ) {
        if key.is_empty() {
            return;
        }
        let units = receipt.as_ref().map_or(units, |receipt| units.min(receipt.granted));
        let charged_at = receipt.as_ref().map(|receipt| receipt.charged_at);
        if units == 0 {
            return;
        }
        let limit = &*limit.for_key(key.as_bytes());
        let subject = self.secret.hash(key.as_bytes());
        let (place, subject) = match receipt {
            None => (StateLocation::Table, subject),
            Some(Receipt { decided_by: DecidedBy::Overflow, twin, .. }) => {
                (StateLocation::Overflow, twin_subject(subject, twin))
            }
            Some(Receipt { twin, .. }) => (StateLocation::Table, twin_subject(subject, twin)),
        };
        // A key without a state has nothing to give back.
        let state = match place {
            StateLocation::Overflow => self.overflow().find(overflow_key(subject, limit)),
            _ => self.keys.find(slot_key(subject, limit)),
        };
        if state.is_some() {
            let now = Now::at(now);
            let _ = self.update(limit, subject, now, place, Purpose::Settle, |opened, now| {
                opened.refund(limit, units, charged_at, now);
            });
        }
    }

    /// Books `cost` for a caller that will wait: charges it now, possibly into debt. The decision's
    /// delay is the time until the earlier debt is paid. Only buckets carry debt over. Refused if
    /// the delay would end after `deadline`.
    pub(crate) fn book(&self, check: &Check<'_>, deadline: Micros, now: Now<'_>) -> Decision {
        let (limit, cost) = (check.limit, check.cost);
        let subject = self.secret.hash(check.key.as_bytes());
        if let Some(wait) = self.blocked_for(subject, now.instant()) {
            return Decision::refused(Refusal::Blocked, wait, now.instant());
        }
        let (place, purpose) = (StateLocation::TableThenOverflow, Purpose::Take);
        let booked = self.update(limit, subject, now, place, purpose, |opened, now| {
            opened.begin_take(limit, now);
            let state = opened.state();
            let asked = state.judge(limit, cost, now);
            let backlog = state.judge(limit, 0, now).reset_after;
            let wait = asked.retry_after.max(if limit.is_queue() { backlog } else { Wait::ZERO });
            if wait > now.until(deadline) {
                let refused = Outcome { allowed: false, retry_after: wait, ..asked };
                return Decision::of_one(limit, refused, 0, now);
            }
            opened.charge(limit, cost, ChargeReason::Granted, now);
            let (delay, served_at) = (wait, asked.served_at);
            let after = Outcome { delay, served_at, ..opened.state().judge(limit, 0, now) };
            Decision::of_one(limit, after, cost, now)
        });
        match booked {
            Ok((decision, decided_by)) => decision.with_decided_by(decided_by),
            Err(refused) => refused,
        }
    }

    /// The wait until the last of `costs` may go, if they go in order, each as early as possible,
    /// and nothing else is charged.
    pub(crate) fn wait_in_line(&self, check: &Check<'_>, costs: &[u64], now: Micros) -> Wait {
        let limit = &*check.limit.for_key(check.key.as_bytes());
        let subject = self.secret.hash(check.key.as_bytes());
        let (place, purpose) = (StateLocation::TableThenOverflow, Purpose::Read);
        let copied = self.update(limit, subject, Now::at(now), place, purpose, |opened, _| {
            opened.state().copy()
        });
        let Ok((mut state, _)) = copied else { return Wait::NEVER };
        let mut at = now;
        for &cost in costs.iter().filter(|cost| **cost > 0) {
            let backlog = algorithm::judge(limit, &state, 0, at).reset_after;
            let wait = algorithm::judge(limit, &state, cost, at).retry_after;
            let wait = wait.max(if limit.is_queue() { backlog } else { Wait::ZERO });
            if wait.is_never() {
                return wait;
            }
            // A bucket is charged when its waiter gets to the head of the line, other algorithms
            // when it goes.
            let charged_at = if limit.algorithm().is_bucket() { at } else { at.after(wait) };
            algorithm::charge(limit, &mut state, cost, charged_at);
            at = at.after(wait);
        }
        Wait::from_micros(at.as_u64() - now.as_u64())
    }

    /// Replaces a key's state by a copy from another store, under the numbers of `limit`, so that
    /// decisions can continue here if that store fails. Does nothing if there is no room: a copy
    /// never evicts a state that has used a larger share.
    pub fn seed(&self, limit: &Limit, key: Key<'_>, state: &State, now: Micros) {
        let limit = &*limit.for_key(key.as_bytes());
        let key_hash = slot_key(self.secret.hash(key.as_bytes()), limit);
        if key.is_empty() || state.is_fresh(limit, now) {
            self.keys.remove(key_hash, &self.policy(now));
            return;
        }
        let Some((_held, tag)) = self.hold_tag(limit) else { return };
        loop {
            if let Some(slot) = self.keys.find(key_hash) {
                let mut locked = slot.lock();
                let seen = locked.snapshot();
                if seen.key != key_hash {
                    continue;
                }
                let mut opened = self.open_state(limit, tag, seen.record(), Purpose::Take, now);
                opened.replace(limit, now, |held| held.become_copy_of(state));
                if let Some(record) = self.close_state(opened, limit, tag) {
                    locked.write(record);
                }
                drop(locked);
                return self.free_idle_logs(now);
            }
            let mut copy = SlotState::fresh_in_slot(limit, now, &self.arena);
            if !copy.become_copy_of(state) {
                return;
            }
            let (record, policy) = (copy.into_record(limit, tag, &self.arena), self.policy(now));
            match self.keys.insert(key_hash, record, EvictionScope::LessWorth, &policy) {
                InsertResult::New => return self.keys.sweep(&policy),
                InsertResult::NoRoom(_) => return,
                InsertResult::Exists => {}
            }
        }
    }

    /// Drops a key's state, so that it starts fresh. Returns true if there was one.
    pub fn reset(&self, limit: &Limit, key: Key<'_>, now: Micros) -> bool {
        let key = slot_key(self.secret.hash(key.as_bytes()), limit);
        self.keys.remove(key, &self.policy(now))
    }
}

/// A key that is hashed and whose slot is being prefetched.
#[derive(Clone, Copy)]
pub(crate) struct HashedKey(u64);

/// The table in which a state may be.
#[derive(Clone, Copy)]
enum StateLocation {
    TableThenOverflow,
    Table,
    Overflow,
}

/// Reads records as states, so that the table can choose which to evict.
struct StoreEvictionPolicy<'a> {
    store: &'a MemoryStore,
    now: Micros,
}

impl EvictionPolicy for StoreEvictionPolicy<'_> {
    fn worth(&self, record: SlotRecord) -> StateWorth {
        if record.tag == BLOCK_TAG {
            let left = record.a.saturating_sub(self.now.as_u64());
            return if left == 0 {
                StateWorth::Fresh
            } else {
                StateWorth::Limited(Wait::from_micros(left))
            };
        }
        self.store.numbers.with_limit(record.numbers_tag(), |limit| {
            let Some(limit) = limit else { return StateWorth::Fresh };
            let Some(state) = SlotState::from_record(limit, record, &self.store.arena) else {
                return StateWorth::Limited(Wait::ZERO);
            };
            let present = state.judge(limit, 0, self.now);
            match present.reset_after {
                _ if state.is_fresh(limit, self.now) => StateWorth::Fresh,
                reset_after if present.remaining > 0 => {
                    let capacity = limit.capacity();
                    StateWorth::Open(UsedShare {
                        used: capacity - present.remaining,
                        capacity,
                        reset_after,
                    })
                }
                reset => StateWorth::Limited(reset),
            }
        })
    }

    fn forget(&self, record: SlotRecord) {
        self.store.numbers.with_limit(record.numbers_tag(), |limit| {
            if limit.is_some_and(|limit| limit.kind == LimitStateKind::Log) {
                self.store.arena.discard(record);
            }
        });
    }
}

/// The table's key for a limit and a subject. The hash of the subject is secret, so it stays
/// unpredictable when the limit's public identity is added. Never 0, which means empty.
#[inline]
fn slot_key(subject: u64, limit: &Limit) -> u64 {
    (subject ^ limit.id()).max(1)
}

/// The subject of one of several limits of a request that differ only in their numbers: each has
/// its own state. See [`Outcome::twin`].
#[inline]
fn twin_subject(subject: u64, twin: u8) -> u64 {
    subject ^ u64::from(twin).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

#[inline]
fn overflow_key(subject: u64, limit: &Limit) -> u64 {
    let group = subject % OVERFLOW_STATES;
    (limit.id() ^ (group + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1)
}

#[cfg(test)]
mod tests;
