//! The table: a fixed number of slots, two slots to a cache line, eight lines to a bucket.
//!
//! A key has 32 possible slots: the 16 slots of each of two buckets given by its hash. Within each
//! bucket the hash also gives a *home*, a line and the one beside it, which is tried first, so most
//! keys are found in the first lines touched. Nothing ever moves, nothing grows, nothing is
//! allocated after the start. If none of the 32 slots is empty, the table asks the
//! [`EvictionPolicy`] for the worth of the states there and evicts the one that has used the
//! smallest share of its capacity.
//!
//! ```text
//!   hash ─▶ bucket 17 │ 136 │ 137 │ 138 ◀ home ▶ 139 │ 140 │ 141 │ 142 │ 143 │
//!        ─▶ bucket 90 │ 720 ◀ home ▶ 721 │ 722 │ 723 │ 724 │ 725 │ 726 │ 727 │
//! ```
//!
//! Filled to 81 % in one go, 73 % of keys are in their first home, 21 % in their second, and all
//! have a slot. After long churn at that fill it is 45 % and 30 %, and 1 new key in about 1,000
//! finds none of its slots empty; with buckets of half the size it would be 1 in 20 (simulated).
//!
//! Searching takes no lock. Inserting takes one of 256 locks, chosen by the hash, so that one key
//! is never inserted twice; two different keys share a lock only by chance.

use std::sync::Mutex;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use crate::time::Wait;

use super::pages::{self, prefetch};
use super::slot::{Slot, SlotRecord, SlotSnapshot};

/// Cache lines per bucket.
const LINES: usize = 8;
/// Slots per cache line.
const SLOTS: usize = 2;
/// Number of locks for inserting.
const STRIPES: usize = 256;
/// Fill of the table, in percent, when it holds the keys it was made for. If it were fuller, too
/// many keys would find no slot; if it were emptier, it would waste memory.
const FILL_PERCENT: usize = 81;
/// Keys of a small table. It fits in a cache even if it is mostly empty, and then nearly all keys
/// are in their first home line: a mispredicted branch would cost more than the memory.
const SMALL_TABLE_KEYS: usize = 16_384;
const FILL_PERCENT_SMALL: usize = 40;
/// Slots per key of a table with few keys, up to [`SPARSE_TABLE_SLOTS`]: most keys are then alone in
/// their first home line.
const SPARSE_SLOTS_PER_KEY: usize = 10;
/// Slots of the largest such table: 320 KiB, which 4,096 keys need anyway.
const SPARSE_TABLE_SLOTS: usize = 10_240;
/// Lines of the largest table, 1 MiB, for which prefetching more than one line does not pay.
const LARGE_LINES: usize = 16_384;
/// The number of keys by which a bucket may be fuller than the other one and still take in a key
/// for its home line. With more, keys are found sooner; with less, fewer find no slot.
const HOME_BIAS: usize = 1;
/// The number of keys up to which a bucket of a small table takes in a key for its home line, however
/// empty the other bucket is. Half of its slots: the choice of two then still keeps a table in balance that
/// fills up.
const HOME_FIRST_KEYS_SMALL: usize = LINES * SLOTS / 2;

/// Lines swept with each insertion: more than an insertion can fill, so that sweeping keeps up.
const SWEEP_LINES: usize = 4;

/// Two slots that share a cache line.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct CacheLine([Slot; SLOTS]);

impl CacheLine {
    pub(crate) fn empty() -> CacheLine {
        CacheLine([Slot::empty(), Slot::empty()])
    }
}

#[derive(Debug)]
pub(crate) struct SlotTable {
    lines: Box<[CacheLine]>,
    /// [`HOME_FIRST_KEYS_SMALL`], or 0 in a large table.
    home_first_keys: usize,
    inserting: Box<[Mutex<()>]>,
    /// Keys in the table. A key can be removed before the thread that inserted it has counted it,
    /// so for a moment this may be too small, even negative.
    live: AtomicIsize,
    /// The next line to sweep.
    cursor: AtomicUsize,
    evicted: AtomicUsize,
}

/// The worth of a state, which decides whether it may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateWorth {
    /// Equal to a fresh state: dropping it changes nothing.
    Fresh,
    /// Would still admit a cost of 1; the share that it has used.
    Open(UsedShare),
    /// Refuses, and therefore stays: otherwise a flood of new keys would reset it. Fresh after this
    /// wait.
    Limited(Wait),
}

/// The share of its capacity that a state has used, in whole units, and the wait until it is fresh
/// again. The smaller share is evicted first, because dropping it gives its client the least. New
/// keys have used little, so a flood of new keys evicts new keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsedShare {
    pub(crate) used: u64,
    pub(crate) capacity: u64,
    pub(crate) reset_after: Wait,
}

impl Ord for UsedShare {
    /// Compares exactly: both products have at most 106 bits.
    fn cmp(&self, other: &UsedShare) -> std::cmp::Ordering {
        let [own, others] = [(self, other), (other, self)]
            .map(|(one, two)| u128::from(one.used) * u128::from(two.capacity));
        own.cmp(&others).then(self.reset_after.cmp(&other.reset_after))
    }
}

impl PartialOrd for UsedShare {
    fn partial_cmp(&self, other: &UsedShare) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for UsedShare {
    fn eq(&self, other: &UsedShare) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for UsedShare {}

impl StateWorth {
    /// Returns true if a state of this worth may be evicted for `newcomer`.
    fn yields_to(self, newcomer: StateWorth) -> bool {
        match (self, newcomer) {
            (StateWorth::Fresh, _) => true,
            (StateWorth::Limited(_), _) | (StateWorth::Open(_), StateWorth::Fresh) => false,
            (StateWorth::Open(_), StateWorth::Limited(_)) => true,
            (StateWorth::Open(own), StateWorth::Open(newcomer)) => own < newcomer,
        }
    }
}

/// Interprets records for the table.
pub(crate) trait EvictionPolicy {
    fn worth(&self, record: SlotRecord) -> StateWorth;
    /// Called under the slot's lock when a record is dropped.
    fn forget(&self, record: SlotRecord);
    /// Returns true if this key's state stays even if it is fresh, because it is about to be
    /// charged.
    fn protects(&self, _key: u64) -> bool {
        false
    }
}

/// The states that may be evicted for a new key if all of its slots are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvictionScope {
    /// All that are not limited: the new key has just been admitted and must be counted somewhere.
    Unlimited,
    /// Only those that are worth less than the new key: it is a copy, and the states in the table
    /// may lose more than it does.
    LessWorth,
}

/// The result of an insertion.
#[derive(Debug)]
pub(crate) enum InsertResult {
    /// The key now has a slot with the given record.
    New,
    /// Another thread has inserted the key meanwhile; the given record is dropped.
    Exists,
    /// Every slot has a state that must stay, and the given record is dropped. The first slot may
    /// be free after this wait.
    NoRoom(Wait),
}

impl SlotTable {
    /// A table that holds `keys` keys.
    pub(crate) fn new(keys: usize) -> SlotTable {
        let filled_to = |percent| keys.saturating_mul(100) / percent;
        let (slots, home_first_keys) = if keys <= SMALL_TABLE_KEYS {
            let sparse = (keys * SPARSE_SLOTS_PER_KEY).min(SPARSE_TABLE_SLOTS);
            (sparse.max(filled_to(FILL_PERCENT_SMALL)), HOME_FIRST_KEYS_SMALL)
        } else {
            (filled_to(FILL_PERCENT), 0)
        };
        let buckets = slots.div_ceil(LINES * SLOTS).max(2);
        SlotTable {
            lines: pages::empty_lines(buckets * LINES),
            home_first_keys,
            inserting: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            live: AtomicIsize::new(0),
            cursor: AtomicUsize::new(0),
            evicted: AtomicUsize::new(0),
        }
    }

    /// Keys in the table.
    pub(crate) fn len(&self) -> usize {
        self.live.load(Ordering::Relaxed).max(0) as usize
    }

    /// Slots in the table.
    pub(crate) fn slots(&self) -> usize {
        self.lines.len() * SLOTS
    }

    /// Bytes of the slots.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val::<[CacheLine]>(&self.lines)
    }

    /// Returns true if most lines are not in a core's own cache.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.lines.len() > LARGE_LINES
    }

    /// Number of states that were evicted although they were not fresh.
    pub(crate) fn evicted(&self) -> usize {
        self.evicted.load(Ordering::Relaxed)
    }

    /// A key's first home line.
    #[inline]
    fn first_home(&self, key: u64) -> usize {
        ((u128::from(key) * self.lines.len() as u128) >> 64) as usize
    }

    /// A key's two home lines.
    #[inline]
    fn homes(&self, key: u64) -> [usize; 2] {
        [self.first_home(key), self.first_home(key.rotate_left(32))]
    }

    /// The two lines of a home, side by side, which processors tend to fetch together.
    #[inline]
    fn pair(home: usize) -> [usize; 2] {
        [home, home ^ 1]
    }

    /// The other lines of a home's bucket.
    #[inline]
    fn outside_home(home: usize) -> impl Iterator<Item = usize> + Clone {
        (2..LINES).map(move |step| home ^ step)
    }

    /// Prefetches the lines where a key most probably is. In a table that is not large, most keys are
    /// in one line.
    #[inline]
    pub(crate) fn prefetch(&self, key: u64) {
        let [near, beside] = SlotTable::pair(self.first_home(key));
        prefetch(&self.lines[near]);
        if self.is_large() {
            prefetch(&self.lines[beside]);
        }
    }

    /// Prefetches the second home if the key is not in the first; call it once the lines of the
    /// first have had time to arrive.
    #[inline]
    pub(crate) fn prefetch_second(&self, key: u64) {
        let [first, second] = self.homes(key);
        if self.find_in_pair(first, key).is_none() {
            for line in SlotTable::pair(second) {
                prefetch(&self.lines[line]);
            }
        }
    }

    #[inline]
    fn find_in_pair(&self, home: usize, key: u64) -> Option<&Slot> {
        let [near, beside] = SlotTable::pair(home);
        self.find_in_line(near, key).or_else(|| self.find_in_line(beside, key))
    }

    /// Finds `key` in a line. The branch predictor cannot guess which of the two slots it is, so
    /// both are compared and one branch is taken.
    #[inline]
    fn find_in_line(&self, line: usize, key: u64) -> Option<&Slot> {
        let slots = &self.lines[line].0;
        let [first, second] = [slots[0].key() == key, slots[1].key() == key];
        if first | second { Some(&slots[usize::from(second)]) } else { None }
    }

    /// The slot that holds `key` at this moment.
    #[inline]
    pub(crate) fn find(&self, key: u64) -> Option<&Slot> {
        self.find_in_pair(self.first_home(key), key).or_else(|| self.find_second_home(key))
    }

    #[inline(never)]
    fn find_second_home(&self, key: u64) -> Option<&Slot> {
        let [first, second] = self.homes(key);
        self.find_in_pair(second, key).or_else(|| self.find_outside_home(first, second, key))
    }

    /// Searches the lines of both buckets outside the homes.
    #[inline(never)]
    fn find_outside_home(&self, first: usize, second: usize, key: u64) -> Option<&Slot> {
        let away = SlotTable::outside_home(first).chain(SlotTable::outside_home(second));
        for line in away.clone() {
            prefetch(&self.lines[line]);
        }
        away.into_iter().find_map(|line| self.find_in_line(line, key))
    }

    /// All slots of a key in the order in which they are filled: the home lines unless their bucket
    /// is the fuller one, then the emptier bucket.
    fn places(&self, key: u64) -> impl Iterator<Item = &Slot> + Clone {
        let homes = self.homes(key);
        let taken = homes.map(|home| {
            let slots = SlotTable::outside_home(home)
                .chain(SlotTable::pair(home))
                .flat_map(|line| &self.lines[line].0);
            slots.filter(|slot| slot.key() != 0).count()
        });
        let [less, more] = if taken[1] < taken[0] { [1, 0] } else { [0, 1] };
        let welcome = move |index: &usize| {
            taken[*index] <= taken[less] + HOME_BIAS || taken[*index] < self.home_first_keys
        };
        let near =
            [0, 1].into_iter().filter(welcome).flat_map(move |index| SlotTable::pair(homes[index]));
        let rest = [less, more].into_iter().flat_map(move |index| {
            std::iter::once(homes[index]).chain(SlotTable::outside_home(homes[index]))
        });
        near.chain(rest).flat_map(|line| &self.lines[line].0)
    }

    /// Finds a slot for `key` and writes `record` there. If it cannot be written, the record is
    /// dropped and its resources, such as the block of a log, are given back.
    #[cold]
    pub(crate) fn insert(
        &self,
        key: u64,
        record: SlotRecord,
        victims: EvictionScope,
        policy: &impl EvictionPolicy,
    ) -> InsertResult {
        let inserted = self.insert_or_leave(key, record, victims, policy);
        if !matches!(inserted, InsertResult::New) {
            policy.forget(record);
        }
        inserted
    }

    fn insert_or_leave(
        &self,
        key: u64,
        record: SlotRecord,
        victims: EvictionScope,
        policy: &impl EvictionPolicy,
    ) -> InsertResult {
        debug_assert!(key != 0);
        let stripe = &self.inserting[key as usize % STRIPES];
        let _one_at_a_time = stripe.lock().unwrap_or_else(|poison| poison.into_inner());
        loop {
            if self.find(key).is_some() {
                return InsertResult::Exists;
            }
            let empty =
                self.places(key).filter(|slot| slot.key() == 0).map(|slot| (slot, slot.read()));
            let mut empty = empty.filter(|(_, seen)| seen.key == 0);
            if empty.any(|(slot, seen)| SlotTable::claim(slot, &seen, key, record, policy)) {
                self.live.fetch_add(1, Ordering::Relaxed);
                return InsertResult::New;
            }
            let (worth, slot, seen) = match self.victim(key, policy) {
                Err(soonest) => return InsertResult::NoRoom(soonest),
                Ok(victim) => victim,
            };
            if victims == EvictionScope::LessWorth && !worth.yields_to(policy.worth(record)) {
                return InsertResult::NoRoom(Wait::ZERO);
            }
            // A victim that has changed meanwhile is judged again.
            if SlotTable::claim(slot, &seen, key, record, policy) {
                self.evicted.fetch_add(usize::from(worth != StateWorth::Fresh), Ordering::Relaxed);
                self.live.fetch_add(isize::from(seen.key == 0), Ordering::Relaxed);
                return InsertResult::New;
            }
        }
    }

    /// Returns `Ok` if there would be a slot for `key`, or the wait until the first may be free.
    pub(crate) fn room(&self, key: u64, policy: &impl EvictionPolicy) -> Result<(), Wait> {
        if self.places(key).any(|slot| slot.key() == 0) {
            return Ok(());
        }
        self.victim(key, policy).map(|_| ())
    }

    /// Takes over a slot if its content is still `seen`.
    fn claim(
        slot: &Slot,
        seen: &SlotSnapshot,
        key: u64,
        record: SlotRecord,
        policy: &impl EvictionPolicy,
    ) -> bool {
        let Some(mut locked) = slot.lock_if_unchanged(seen) else { return false };
        if seen.key != 0 {
            policy.forget(seen.record());
        }
        locked.replace(key, record);
        true
    }

    /// The state among a key's slots that has used the smallest share of its capacity and is not
    /// limited; if all are limited, the wait until the first is fresh.
    fn victim(
        &self,
        key: u64,
        policy: &impl EvictionPolicy,
    ) -> Result<(StateWorth, &Slot, SlotSnapshot), Wait> {
        let mut victim: Option<(UsedShare, &Slot, SlotSnapshot)> = None;
        let mut soonest = Wait::NEVER;
        for slot in self.places(key) {
            let seen = slot.read();
            if policy.protects(seen.key) {
                continue;
            }
            let worth = if seen.key == 0 { StateWorth::Fresh } else { policy.worth(seen.record()) };
            match worth {
                StateWorth::Fresh => return Ok((worth, slot, seen)),
                StateWorth::Limited(reset) => soonest = soonest.min(reset),
                StateWorth::Open(share)
                    if victim.as_ref().is_none_or(|(least, ..)| share < *least) =>
                {
                    victim = Some((share, slot, seen));
                }
                StateWorth::Open(_) => {}
            }
        }
        victim.map(|(share, slot, seen)| (StateWorth::Open(share), slot, seen)).ok_or(soonest)
    }

    /// Empties the slot of `key`. Returns true if there was one.
    pub(crate) fn remove(&self, key: u64, policy: &impl EvictionPolicy) -> bool {
        let Some(slot) = self.find(key) else { return false };
        let mut locked = slot.lock();
        let seen = locked.snapshot();
        if seen.key != key {
            return false;
        }
        policy.forget(seen.record());
        locked.replace(0, SlotRecord::default());
        self.live.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Empties a slot if its content is still `seen`.
    pub(crate) fn remove_if(&self, slot: &Slot, seen: &SlotSnapshot, policy: &impl EvictionPolicy) {
        if SlotTable::claim(slot, seen, 0, SlotRecord::default(), policy) {
            self.live.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Empties slots with fresh states in the next few lines: a little with every insertion, never
    /// all at once. While half the table is empty there is nothing to gain, and finding a returning
    /// key is cheaper than inserting it again.
    pub(crate) fn sweep(&self, policy: &impl EvictionPolicy) {
        if self.len() > self.slots() / 2 {
            self.sweep_lines(SWEEP_LINES, policy);
        }
    }

    /// Empties slots with fresh states in the next `lines` lines.
    pub(crate) fn sweep_lines(&self, lines: usize, policy: &impl EvictionPolicy) {
        let from = self.cursor.fetch_add(lines, Ordering::Relaxed);
        for line in from..from + lines.min(self.lines.len()) {
            for slot in &self.lines[line % self.lines.len()].0 {
                let seen = slot.read();
                if seen.key != 0
                    && policy.worth(seen.record()) == StateWorth::Fresh
                    && !policy.protects(seen.key)
                {
                    self.remove_if(slot, &seen, policy);
                }
            }
        }
    }

    /// All keys with their states, each read at its own moment.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&Slot, SlotSnapshot)> {
        let slots = self.lines.iter().flat_map(|line| &line.0);
        slots.map(|slot| (slot, slot.read())).filter(|(_, seen)| seen.key != 0)
    }

    /// The content of all slots of a key.
    #[cfg(test)]
    pub(crate) fn places_of(&self, key: u64) -> Vec<SlotSnapshot> {
        let slots = self.homes(key).into_iter().flat_map(|home| {
            SlotTable::pair(home)
                .into_iter()
                .chain(SlotTable::outside_home(home))
                .flat_map(|at| &self.lines[at].0)
        });
        slots.map(Slot::read).collect()
    }
}
