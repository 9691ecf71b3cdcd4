//! Index of the numbers that wrote states: from the tags in slots to limits and back.
//!
//! A slot has room for a tag, not for a limit. The tag identifies the limit whose numbers wrote the
//! state. It is needed if the numbers have changed since, and if another key needs to know whether
//! it may evict this state. An ordinary decision needs neither: it compares two tags, and finds its
//! own in a cache with one load.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::limit::Limit;

use super::slot::TAG_BITS;

/// Cap on the limits with different numbers that a store can distinguish at once.
pub(crate) const MAX_NUMBERS: usize = 65_535;
/// The tag of a block; no limit has it.
pub(crate) const BLOCK_TAG: u32 = 0;

/// Interval of scans while the index is full: every 4,096th new limit looks for numbers that no
/// slot holds.
const SCAN_EVERY: u64 = 4_096;

const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
const CACHE_SLOTS: usize = 4_096;

/// Number of locks among which the threads that write tags into slots are spread.
const HOLDER_LOCKS: usize = 64;

#[derive(Debug)]
pub(crate) struct Numbers {
    index: RwLock<TagIndex>,
    /// Locks that keep tags from being dropped. A thread holds one of them from looking up a tag
    /// until it is written into a slot, and all of them while it scans the slots.
    holder_locks: Box<[HolderLock; HOLDER_LOCKS]>,
    /// Number of requests for one more tag while the index was full.
    attempts: AtomicU64,
    /// High bits of a fingerprint next to its tag, at the index given by its low bits.
    cache: Box<[AtomicU64; CACHE_SLOTS]>,
}

/// A lock on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct HolderLock(RwLock<()>);

/// Keeps tags from being dropped until they are written.
pub(crate) struct TagGuard<'a> {
    _holder: RwLockReadGuard<'a, ()>,
}

/// The index proper. Bounded by [`MAX_NUMBERS`].
#[derive(Debug, Default)]
struct TagIndex {
    tags: HashMap<u64, u32>,
    /// Limit of each tag, with its serial number.
    limits: HashMap<u32, (u64, Limit)>,
    /// The tag assigned last.
    next: u32,
    /// Number of limits ever registered: the last serial number.
    registered: u64,
}

impl Numbers {
    pub(crate) fn new() -> Numbers {
        Numbers {
            index: RwLock::default(),
            holder_locks: Box::new(std::array::from_fn(|_| HolderLock::default())),
            attempts: AtomicU64::new(0),
            cache: Box::new([const { AtomicU64::new(0) }; CACHE_SLOTS]),
        }
    }

    /// The tag of a limit's numbers, if it is in the cache.
    #[inline]
    fn cached_tag(&self, limit: &Limit) -> Option<u32> {
        let fingerprint = limit.fingerprint();
        let cached = self.cache[fingerprint as usize % CACHE_SLOTS].load(Ordering::Relaxed);
        let known = cached >> TAG_BITS == fingerprint >> TAG_BITS && cached & TAG_MASK != 0;
        known.then_some((cached & TAG_MASK) as u32)
    }

    /// The tag of a limit's numbers, if it has one.
    #[inline]
    pub(crate) fn tag(&self, limit: &Limit) -> Option<u32> {
        self.cached_tag(limit).or_else(|| self.indexed_tag(limit))
    }

    /// The same for a limit that is not in the cache, such as one that shares its place with another.
    #[cold]
    fn indexed_tag(&self, limit: &Limit) -> Option<u32> {
        // Cached under the lock, because dropping tags clears the cache under it, too.
        let index = self.read();
        let tag = *index.tags.get(&limit.fingerprint())?;
        self.remember(limit, tag);
        Some(tag)
    }

    /// Assigns a tag to a limit's numbers. If there are too many, those that `in_use` does not name
    /// are dropped first. Returns `None` if that does not help.
    #[cold]
    pub(crate) fn register(&self, limit: &Limit, in_use: impl Fn() -> HashSet<u32>) -> Option<u32> {
        if self.read().limits.len() >= MAX_NUMBERS {
            // The last scan was in vain, and the next ones would be, too.
            if !self.attempts.fetch_add(1, Ordering::Relaxed).is_multiple_of(SCAN_EVERY) {
                return self.tag(limit);
            }
            // A thread that has a tag to write either has written it before the slots are scanned,
            // or looks it up again afterwards. The index is not locked during the scan; limits
            // registered meanwhile are younger than `known` and stay.
            let holders: Vec<_> = self.holder_locks.iter().map(|one| one.0.write()).collect();
            let known = self.read().registered;
            self.forget_all_but(&in_use(), known);
            drop(holders);
            if self.read().limits.len() < MAX_NUMBERS {
                // The scan helped and would help again: many numbers are only peeked at.
                self.attempts.store(0, Ordering::Relaxed);
            }
        }
        let mut index = self.index.write().unwrap_or_else(|poison| poison.into_inner());
        if let Some(tag) = index.tags.get(&limit.fingerprint()) {
            return Some(*tag);
        }
        if index.limits.len() >= MAX_NUMBERS {
            return None;
        }
        // Tags go round, so that a dropped tag is reused as late as possible.
        let tag = loop {
            index.next = if u64::from(index.next) == TAG_MASK { 1 } else { index.next + 1 };
            if !index.limits.contains_key(&index.next) {
                break index.next;
            }
        };
        index.registered += 1;
        let entry = (index.registered, limit.unshifted());
        index.tags.insert(limit.fingerprint(), tag);
        index.limits.insert(tag, entry);
        self.remember(limit, tag);
        Some(tag)
    }

    /// Keeps tags from being dropped: tags that are looked up while the guard is held can be
    /// written into slots. A thread that holds it must not register limits.
    #[inline]
    pub(crate) fn hold_tags(&self) -> TagGuard<'_> {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed) % HOLDER_LOCKS;
        }
        let holder = &self.holder_locks[THREAD.with(|thread| *thread)].0;
        TagGuard { _holder: holder.read().unwrap_or_else(PoisonError::into_inner) }
    }

    fn forget_all_but(&self, in_use: &HashSet<u32>, known: u64) {
        let mut index = self.index.write().unwrap_or_else(|poison| poison.into_inner());
        for cached in self.cache.iter() {
            cached.store(0, Ordering::Relaxed);
        }
        let TagIndex { tags, limits, .. } = &mut *index;
        limits.retain(|tag, (serial, _)| *serial > known || in_use.contains(tag));
        tags.retain(|_, tag| limits.contains_key(tag));
    }

    fn remember(&self, limit: &Limit, tag: u32) {
        let fingerprint = limit.fingerprint();
        let word = fingerprint & !TAG_MASK | u64::from(tag);
        self.cache[fingerprint as usize % CACHE_SLOTS].store(word, Ordering::Relaxed);
    }

    /// Calls `read` with the limit that a tag stands for.
    pub(crate) fn with_limit<T>(&self, tag: u32, read: impl FnOnce(Option<&Limit>) -> T) -> T {
        read(self.read().limits.get(&tag).map(|(_, limit)| limit))
    }

    /// All limits with their tags.
    pub(crate) fn all(&self) -> Vec<(u32, Limit)> {
        self.read().limits.iter().map(|(tag, (_, limit))| (*tag, limit.clone())).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, TagIndex> {
        self.index.read().unwrap_or_else(|poison| poison.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(units: u64) -> Limit {
        Limit::per_minute(units).build().unwrap()
    }

    #[test]
    fn tags_are_stable_and_told_apart() {
        let numbers = Numbers::new();
        assert_eq!(numbers.tag(&limit(1)), None);
        let tags: HashSet<u32> = (1..=5_000)
            .map(|units| numbers.register(&limit(units), HashSet::new).unwrap())
            .collect();
        assert_eq!(tags.len(), 5_000);
        for units in 1..=5_000 {
            let tag = numbers.tag(&limit(units)).unwrap();
            assert!(tag != BLOCK_TAG && tags.contains(&tag));
            numbers.with_limit(tag, |found| assert_eq!(found.unwrap().units(), units));
        }
    }

    #[test]
    fn the_index_is_bounded_and_forgets_what_no_slot_holds() {
        let numbers = Numbers::new();
        let first = numbers.register(&limit(1), HashSet::new).unwrap();
        for units in 2..=MAX_NUMBERS as u64 {
            numbers.register(&limit(units), || unreachable!("there is room")).unwrap();
        }
        let everything = || numbers.all().into_iter().map(|(tag, _)| tag).collect();
        let all: HashSet<u32> = everything();
        assert_eq!(numbers.register(&limit(1 << 20), || all.clone()), None);
        for _ in 1..SCAN_EVERY {
            let asked_too_often = || unreachable!("a scan too soon after one in vain");
            assert_eq!(numbers.register(&limit(1 << 20), asked_too_often), None);
        }
        assert!(numbers.register(&limit(1 << 20), || HashSet::from([first])).is_some());
        assert_eq!(numbers.tag(&limit(1)), Some(first));
        assert_eq!(numbers.tag(&limit(2)), None);
        assert_eq!(numbers.all().len(), 2);
        // Full again with numbers that no slot holds: no limit is refused for that.
        for units in 2..=3 * MAX_NUMBERS as u64 {
            assert!(numbers.register(&limit(units), || HashSet::from([first])).is_some());
        }
        assert_eq!(numbers.tag(&limit(1)), Some(first));
    }

    /// Would catch: numbers that are dropped before their tag is written into a slot, so that the
    /// units charged under them are lost.
    #[test]
    fn numbers_are_not_forgotten_while_their_tag_is_written() {
        use std::sync::{Mutex, mpsc};
        let (numbers, slots) = (Numbers::new(), Mutex::new(HashSet::new()));
        for units in 1..=MAX_NUMBERS as u64 {
            numbers.register(&limit(units), || unreachable!("there is room")).unwrap();
        }
        let (looked_up, is_looked_up) = mpsc::channel();
        let (scanning, is_scanning) = mpsc::channel();
        std::thread::scope(|scope| {
            let (numbers, slots) = (&numbers, &slots);
            scope.spawn(move || {
                let held = numbers.hold_tags();
                let tag = numbers.tag(&limit(1)).unwrap();
                looked_up.send(()).unwrap();
                // The scan must not start until the tag is written, so this normally times out.
                let _ = is_scanning.recv_timeout(std::time::Duration::from_millis(100));
                slots.lock().unwrap().insert(tag);
                drop(held);
            });
            is_looked_up.recv().unwrap();
            let in_use = || {
                let found = slots.lock().unwrap().clone();
                let _ = scanning.send(());
                found
            };
            assert!(numbers.register(&limit(1 << 20), in_use).is_some());
        });
        let tag = slots.into_inner().unwrap().into_iter().next().unwrap();
        numbers.with_limit(tag, |found| assert_eq!(found.map(Limit::units), Some(1)));
    }
}
