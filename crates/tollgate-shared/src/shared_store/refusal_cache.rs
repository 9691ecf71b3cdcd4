//! The refusal cache: whom the store has refused, and until when.
//!
//! A refused cost, and any larger one, is refused until the wait is over, so the store need not be
//! asked. Another instance may refund units meanwhile: therefore no entry is valid for longer than
//! a second. Limits that count refused requests are never answered from here, because each refusal
//! changes the next answer. Reading takes no lock; a new entry takes the lock of its set.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{DecidedBy, Micros, Outcome, Wait};

use super::unit_table::lock;

/// The longest that the store is not asked again.
const STALE_US_MAX: u64 = 1_000_000;
/// Number of entries that a key can be in.
const ENTRIES_PER_SET: usize = 4;
/// Bound: so many sets, made at once.
const SETS_COUNT: usize = 4_096;

/// Refused keys. Bound: `ENTRIES_PER_SET` × `SETS_COUNT` of them; who needs room takes the place of whose wait ends first.
#[derive(Debug)]
pub(super) struct RefusalCache {
    sets: Box<[RefusalSet]>,
    /// Refusals answered from here by entries that have been emptied since.
    answered: AtomicU64,
}

#[derive(Debug, Default)]
struct RefusalSet {
    /// Held by the writer.
    writing: Mutex<()>,
    entries: [CachedRefusal; ENTRIES_PER_SET],
}

#[derive(Debug, Default)]
struct CachedRefusal {
    /// Above: a version, odd while the rest is written. Below: refusals answered since.
    version_and_hits: AtomicU64,
    tag: AtomicU64,
    /// The least cost that is refused.
    cost: AtomicU64,
    /// The end of the entry's validity, which may come before the store's wait ends; 0 if it is
    /// invalid.
    until: AtomicU64,
    /// The end of the store's wait.
    retry_at: AtomicU64,
    remaining: AtomicU64,
    reset_at: AtomicU64,
    more_at: AtomicU64,
    /// The end of a debt; in the past if there is none.
    debt_at: AtomicU64,
}

const HITS_MASK: u64 = u32::MAX as u64;
const VERSION_STEP: u64 = 1 << 32;

impl RefusalCache {
    pub(super) fn new() -> RefusalCache {
        RefusalCache {
            sets: (0..SETS_COUNT).map(|_| RefusalSet::default()).collect(),
            answered: AtomicU64::new(0),
        }
    }

    /// The answer to a key that certainly has to be refused `cost`. A cost above the refused one
    /// waits longer: `larger` computes its wait, if it is known.
    #[inline]
    pub(super) fn lookup(
        &self,
        tag: u64,
        cost: u64,
        now: Micros,
        larger: impl Fn() -> Option<Outcome>,
    ) -> Option<Outcome> {
        let entry = self.set(tag).find(tag)?;
        let mut word = entry.version_and_hits.load(Ordering::Acquire);
        loop {
            let [until, least] = [&entry.until, &entry.cost].map(|one| one.load(Ordering::Relaxed));
            let written = word & VERSION_STEP == 0 && word & HITS_MASK < HITS_MASK;
            let mine = entry.tag.load(Ordering::Relaxed) == tag;
            if !written || !mine || cost < least || until <= now.as_u64() {
                return None;
            }
            let outcome = if cost == least { entry.outcome(now) } else { larger()? };
            // That the word is unchanged proves that all of this is of one refusal.
            let counted = word + 1;
            match entry.version_and_hits.compare_exchange_weak(
                word,
                counted,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(outcome),
                Err(other) => word = other,
            }
        }
    }

    /// Remembers a refusal of the store. `answered` is the caller's clock when the answer arrived,
    /// not when the request was sent: a caller that waits for the given time comes back when the
    /// store admits, however long the answer took.
    pub(super) fn remember(&self, tag: u64, cost: u64, outcome: &Outcome, answered: Micros) {
        let Some(wait) = outcome.retry_after.as_micros().filter(|wait| *wait > 0) else { return };
        let set = self.set(tag);
        let _alone = lock(&set.writing);
        let entry = set.find(tag).unwrap_or_else(|| set.victim());
        let ((), hits) = entry.write(|| {
            let values = [
                (&entry.tag, tag),
                (&entry.cost, cost),
                (&entry.until, answered.as_u64() + wait.min(STALE_US_MAX)),
                (&entry.retry_at, answered.after(outcome.retry_after).as_u64()),
                (&entry.remaining, outcome.remaining),
                (&entry.reset_at, answered.after(outcome.reset_after).as_u64()),
                (&entry.more_at, answered.after(outcome.more_after).as_u64()),
                (&entry.debt_at, answered.after(outcome.debt_for).as_u64()),
            ];
            values.into_iter().for_each(|(place, value)| place.store(value, Ordering::Relaxed));
        });
        self.answered.fetch_add(hits, Ordering::Relaxed);
    }

    /// Asks the store about this key again: it was given something back here.
    pub(super) fn forget(&self, tag: u64) {
        if let Some(entry) = self.set(tag).find(tag) {
            let _alone = lock(&self.set(tag).writing);
            if entry.tag.load(Ordering::Relaxed) == tag {
                entry.end();
            }
        }
    }

    /// Asks the store about everybody again.
    pub(super) fn forget_all(&self) {
        for set in &self.sets {
            let _alone = lock(&set.writing);
            set.entries.iter().for_each(CachedRefusal::end);
        }
    }

    /// Refusals answered from here.
    pub(super) fn count(&self) -> u64 {
        let entries = self.sets.iter().flat_map(|set| &set.entries);
        let standing: u64 =
            entries.map(|entry| entry.version_and_hits.load(Ordering::Relaxed) & HITS_MASK).sum();
        self.answered.load(Ordering::Relaxed) + standing
    }

    #[inline]
    fn set(&self, tag: u64) -> &RefusalSet {
        &self.sets[tag as usize % SETS_COUNT]
    }
}

impl RefusalSet {
    #[inline]
    fn find(&self, tag: u64) -> Option<&CachedRefusal> {
        self.entries.iter().find(|entry| entry.tag.load(Ordering::Relaxed) == tag)
    }

    /// The entry that makes room: whichever ends first.
    fn victim(&self) -> &CachedRefusal {
        let until = |entry: &&CachedRefusal| entry.until.load(Ordering::Relaxed);
        self.entries.iter().min_by_key(until).expect("a set has entries")
    }
}

impl CachedRefusal {
    fn outcome(&self, now: Micros) -> Outcome {
        let left = |at: &AtomicU64| {
            Wait::from_micros(at.load(Ordering::Relaxed).saturating_sub(now.as_u64()))
        };
        Outcome {
            allowed: false,
            remaining: self.remaining.load(Ordering::Relaxed),
            retry_after: left(&self.retry_at),
            reset_after: left(&self.reset_at),
            more_after: left(&self.more_at),
            debt_for: left(&self.debt_at),
            decided_by: DecidedBy::RefusalCache,
            served_at: now,
            ..Outcome::default()
        }
    }

    /// Writes while nobody trusts it; what `write` returns, and the refusals that were counted before.
    /// Call under the lock of the set.
    fn write<T>(&self, write: impl FnOnce() -> T) -> (T, u64) {
        let before = self.version_and_hits.fetch_or(VERSION_STEP, Ordering::AcqRel);
        let written = write();
        let after = self.version_and_hits.load(Ordering::Relaxed);
        debug_assert_eq!(before | VERSION_STEP, after, "nobody counts in an entry that is written");
        self.version_and_hits
            .store((after & !HITS_MASK).wrapping_add(VERSION_STEP), Ordering::Release);
        (written, before & HITS_MASK)
    }

    /// Ends a refusal. What was answered by it stays counted.
    fn end(&self) {
        let ((), hits) = self.write(|| self.until.store(0, Ordering::Relaxed));
        self.version_and_hits.fetch_add(hits, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros::from_secs(1_795_000_000);

    fn at(micros: u64) -> Micros {
        NOW.after(Wait::from_micros(micros))
    }

    fn refused(wait_us: u64) -> Outcome {
        Outcome {
            retry_after: Wait::from_micros(wait_us),
            reset_after: Wait::from_micros(wait_us * 2),
            more_after: Wait::from_micros(wait_us),
            remaining: 2,
            ..Outcome::default()
        }
    }

    #[test]
    fn costs_from_the_refused_one_on_are_refused_until_the_wait_is_over() {
        let refusals = RefusalCache::new();
        refusals.remember(9, 3, &refused(700), NOW);
        // at µs, cost, what a larger one waits for, wait left
        for (micros, cost, larger, wait) in [
            (0, 3, None, Some(700)),
            (0, 4, Some(900), Some(900)),
            (0, 2, Some(900), None),
            (0, 4, None, None),
            (699, 3, None, Some(1)),
            (700, 3, None, None),
            (700, 4, Some(900), None),
        ] {
            let outcome = refusals.lookup(9, cost, at(micros), || larger.map(refused));
            let left = outcome.and_then(|outcome| outcome.retry_after.as_micros());
            assert_eq!(left, wait, "cost {cost} after {micros} us");
        }
        assert!(refusals.lookup(10, 3, NOW, || None).is_none());
        assert_eq!(refusals.count(), 3);
    }

    #[test]
    fn nothing_is_remembered_longer_than_a_second_and_never_is_not_remembered() {
        let refusals = RefusalCache::new();
        refusals.remember(9, 1, &refused(60_000_000), NOW);
        // The wait in the answer is the store's, however long it is.
        let last = refusals.lookup(9, 1, at(STALE_US_MAX - 1), || None).unwrap();
        let waits = [last.retry_after, last.more_after, last.reset_after];
        assert_eq!(waits, [59_000_001, 59_000_001, 119_000_001].map(Wait::from_micros));
        assert!(refusals.lookup(9, 1, at(STALE_US_MAX), || None).is_none());
        let never = Outcome { retry_after: Wait::NEVER, ..Outcome::default() };
        refusals.remember(8, 1, &never, NOW);
        assert!(refusals.lookup(8, 1, NOW, || None).is_none());
    }

    #[test]
    fn what_is_forgotten_is_asked_about_again() {
        let refusals = RefusalCache::new();
        for tag in [7, 8] {
            refusals.remember(tag, 1, &refused(700), NOW);
            assert!(refusals.lookup(tag, 1, NOW, || None).is_some());
        }
        refusals.forget(7);
        assert!(refusals.lookup(7, 1, NOW, || None).is_none());
        assert!(refusals.lookup(8, 1, NOW, || None).is_some());
        refusals.forget_all();
        assert!(refusals.lookup(8, 1, NOW, || None).is_none());
        assert_eq!(refusals.count(), 3);
    }

    #[test]
    fn a_flood_of_refused_keys_takes_places_and_is_counted() {
        let refusals = RefusalCache::new();
        let tags = (0..10 * ENTRIES_PER_SET as u64).map(|key| 1 + key * SETS_COUNT as u64);
        for (wait, tag) in (100..).zip(tags.clone()) {
            refusals.remember(tag, 1, &refused(wait), NOW);
            assert!(refusals.lookup(tag, 1, NOW, || None).is_some());
        }
        let standing = tags.filter(|tag| refusals.lookup(*tag, 1, NOW, || None).is_some());
        assert_eq!(standing.count(), ENTRIES_PER_SET);
        assert_eq!(refusals.count(), 10 * ENTRIES_PER_SET as u64 + ENTRIES_PER_SET as u64);
    }

    #[test]
    fn every_refusal_is_counted_once_whatever_threads_do() {
        let refusals = RefusalCache::new();
        refusals.remember(9, 1, &refused(1_000_000), NOW);
        let answered: usize = std::thread::scope(|scope| {
            let refusals = &refusals;
            let asking =
                || (0..50_000).filter(|_| refusals.lookup(9, 1, NOW, || None).is_some()).count();
            let threads: Vec<_> = (0..2).map(|_| scope.spawn(asking)).collect();
            for _ in 0..1_000 {
                refusals.remember(9, 1, &refused(1_000_000), NOW);
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(answered as u64, refusals.count());
    }
}
