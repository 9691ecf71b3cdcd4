//! A bounded table of keys that this instance keeps units of: budget it borrowed, or charges that it
//! has not told the store yet.
//!
//! A decision finds a key's slot and moves units with one compare-and-swap: no lock, no allocation.
//! The swapped word holds the units, a *generation*, which changes whenever the slot gets another
//! meaning, and a bit that closes the slot meanwhile. So a successful swap proves that everything
//! read from the slot before it belonged together, and no units are added to a slot that is being
//! released.

use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};

/// Number of slots that a key can be in.
const SLOTS_PER_SET: usize = 8;
/// The units are in the lower bits of the word; the bit above them is set while the place is closed;
/// the generation is above that.
const UNIT_BITS: u32 = 40;
const CLOSED_BIT: u64 = 1 << UNIT_BITS;
const GENERATION_STEP: u64 = CLOSED_BIT << 1;
/// Number of facts that an answer can use.
pub(super) const SLOT_FACTS: usize = 6;
/// The most units of one place.
pub(super) const UNITS_MAX: u64 = (1 << UNIT_BITS) - 1;

/// The table. Bound: made at once, and never grows; a key whose set is full has no place.
#[derive(Debug)]
pub(super) struct UnitTable<T> {
    /// The tag of each slot; 0 is a free one. Apart from the slots, so that a set of them is one
    /// cache line.
    tags: Box<[AtomicU64]>,
    slots: Box<[UnitSlot<T>]>,
    /// One lock for each set, held while a slot is claimed or released.
    claiming: Box<[Mutex<()>]>,
}

/// One key's place; `T` is what its owner keeps, read off the path of decisions only.
#[derive(Debug)]
pub(super) struct UnitSlot<T> {
    /// Generation, whether it is closed, and units.
    word: AtomicU64,
    /// The tag of its key; 0 if it is free. Written only while the slot is closed.
    tag: AtomicU64,
    /// The facts for answers from this slot. Written under the lock of `owner`.
    pub(super) facts: [AtomicU64; SLOT_FACTS],
    /// True while a request to the store about this key is in flight, or the slot is being
    /// released.
    busy: AtomicBool,
    owner: Mutex<Option<T>>,
}

impl<T> Default for UnitSlot<T> {
    fn default() -> UnitSlot<T> {
        UnitSlot {
            word: AtomicU64::new(CLOSED_BIT),
            tag: AtomicU64::new(0),
            facts: std::array::from_fn(|_| AtomicU64::new(0)),
            busy: AtomicBool::new(false),
            owner: Mutex::new(None),
        }
    }
}

impl<T> UnitTable<T> {
    /// About `keys` places, a power of two.
    pub(super) fn new(keys: usize) -> UnitTable<T> {
        let sets = (keys / SLOTS_PER_SET).next_power_of_two();
        UnitTable {
            tags: (0..sets * SLOTS_PER_SET).map(|_| AtomicU64::new(0)).collect(),
            slots: (0..sets * SLOTS_PER_SET).map(|_| UnitSlot::default()).collect(),
            claiming: (0..sets).map(|_| Mutex::new(())).collect(),
        }
    }

    fn set(&self, tag: u64) -> usize {
        tag as usize & (self.claiming.len() - 1)
    }

    /// The number of a place of this key's set that is `whose`.
    #[inline]
    fn slot_number(&self, tag: u64, whose: u64) -> Option<usize> {
        let first = self.set(tag) * SLOTS_PER_SET;
        let tags = &self.tags[first..first + SLOTS_PER_SET];
        tags.iter().position(|one| one.load(Ordering::Acquire) == whose).map(|place| first + place)
    }

    /// The place of a key, if it has one.
    #[inline]
    pub(super) fn find(&self, tag: u64) -> Option<&UnitSlot<T>> {
        Some(&self.slots[self.slot_number(tag, tag)?])
    }

    /// The place of a key, which gets one if there is room: empty, and kept by `owner`.
    pub(super) fn claim(&self, tag: u64, owner: impl FnOnce() -> T) -> Option<&UnitSlot<T>> {
        if let Some(place) = self.find(tag) {
            return Some(place);
        }
        let _alone = lock(&self.claiming[self.set(tag)]);
        if let Some(place) = self.find(tag) {
            return Some(place);
        }
        let number = self.slot_number(tag, 0)?;
        self.assign(number, tag, owner());
        Some(&self.slots[number])
    }

    /// Claims like [`UnitTable::claim`] before a request to the store: returns the index of the
    /// slot, which is busy from then on. `None` also if it is busy already. A busy slot is not
    /// released by others.
    pub(super) fn claim_busy(&self, tag: u64, owner: impl FnOnce() -> T) -> Option<usize> {
        let _alone = lock(&self.claiming[self.set(tag)]);
        let number = match self.slot_number(tag, tag) {
            Some(number) => number,
            None => self.slot_number(tag, 0)?,
        };
        if !self.slots[number].try_set_busy() {
            return None;
        }
        if self.tags[number].load(Ordering::Acquire) != tag {
            self.assign(number, tag, owner());
        }
        Some(number)
    }

    /// The slot of this index, with any owner.
    pub(super) fn at(&self, number: usize) -> &UnitSlot<T> {
        &self.slots[number]
    }

    /// Gives a place that is nobody's to a key. Call under the lock of its set.
    fn assign(&self, number: usize, tag: u64, owner: T) {
        let place = &self.slots[number];
        let mut kept = place.owner();
        *kept = Some(owner);
        place.tag.store(tag, Ordering::Relaxed);
        place.open(0);
        self.tags[number].store(tag, Ordering::Release);
    }

    /// Takes a key's place away, if it holds no units and its owner is `done`; whether it is gone.
    pub(super) fn release(&self, tag: u64, done: impl FnOnce(&T) -> bool) -> bool {
        let _alone = lock(&self.claiming[self.set(tag)]);
        let Some(number) = self.slot_number(tag, tag) else { return true };
        let gone = self.slots[number].try_vacate(done);
        if gone {
            self.tags[number].store(0, Ordering::Release);
        }
        gone
    }

    /// Every slot that has a key, with its tag.
    pub(super) fn occupied(&self) -> impl Iterator<Item = (u64, &UnitSlot<T>)> {
        let tags = self.tags.iter().map(|tag| tag.load(Ordering::Acquire));
        tags.zip(&self.slots).filter(|(tag, _)| *tag != 0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.occupied().next().is_none()
    }
}

impl<T> UnitSlot<T> {
    /// The owner's data; `None` if the slot was released.
    pub(super) fn owner(&self) -> MutexGuard<'_, Option<T>> {
        lock(&self.owner)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    /// Makes the slot busy; false if it already is.
    pub(super) fn try_set_busy(&self) -> bool {
        !self.busy.swap(true, Ordering::AcqRel)
    }

    /// Ends what was begun with [`UnitSlot::try_set_busy`].
    pub(super) fn clear_busy(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// The units it holds.
    pub(super) fn units(&self) -> u64 {
        self.word.load(Ordering::Acquire) & UNITS_MAX
    }

    /// Takes units away, if it is still this key's, has as many, and `read` makes something of its
    /// facts; what was read, and the units left.
    #[inline]
    pub(super) fn spend<R>(
        &self,
        tag: u64,
        units: u64,
        read: impl Fn(&[AtomicU64; SLOT_FACTS]) -> Option<R>,
    ) -> Option<(R, u64)> {
        self.change(tag, |held| held.checked_sub(units), read)
    }

    /// Adds units, if it is still this key's, has room for them, and `read` says yes to its facts.
    #[inline]
    pub(super) fn add(
        &self,
        tag: u64,
        units: u64,
        read: impl Fn(&[AtomicU64; SLOT_FACTS]) -> bool,
    ) -> bool {
        let more = |held: u64| held.checked_add(units).filter(|sum| *sum <= UNITS_MAX);
        self.change(tag, more, |facts| read(facts).then_some(())).is_some()
    }

    /// Takes all units away, if it is still this key's: what happens to them happens elsewhere.
    pub(super) fn drain(&self, tag: u64) -> u64 {
        let held = std::cell::Cell::new(0);
        let all = |units: u64| {
            held.set(units);
            Some(0)
        };
        self.change(tag, all, |_| Some(())).map_or(0, |_| held.get())
    }

    /// Moves units of this key by `next`; what was read of the facts, and the units after it.
    #[inline]
    fn change<R>(
        &self,
        tag: u64,
        next: impl Fn(u64) -> Option<u64>,
        read: impl Fn(&[AtomicU64; SLOT_FACTS]) -> Option<R>,
    ) -> Option<(R, u64)> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & CLOSED_BIT != 0 || self.tag.load(Ordering::Relaxed) != tag {
                return None;
            }
            let units = next(word & UNITS_MAX)?;
            let fact = read(&self.facts)?;
            match self.swap(word, word & !UNITS_MAX | units) {
                Ok(_) => return Some((fact, units)),
                Err(other) => word = other,
            }
        }
    }

    /// Gives it new facts and units, made of those it has. Call under the lock of its owner.
    pub(super) fn renew(
        &self,
        make: impl FnOnce(u64, &[AtomicU64; SLOT_FACTS]) -> ([u64; SLOT_FACTS], u64),
    ) {
        let left = self.close();
        let (facts, units) = make(left, &self.facts);
        for (place, fact) in self.facts.iter().zip(facts) {
            place.store(fact, Ordering::Relaxed);
        }
        self.open(units.min(UNITS_MAX));
    }

    /// Makes it nobody's, if it holds no units and its owner is `done`.
    fn try_vacate(&self, done: impl FnOnce(&T) -> bool) -> bool {
        let mut owner = self.owner();
        if !owner.as_ref().is_none_or(done) {
            return false;
        }
        let word = self.word.load(Ordering::Acquire);
        let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
        // Closed before anything else changes: units added meanwhile either are in this word, so
        // that the slot stays, or find it closed.
        let free = word & (UNITS_MAX | CLOSED_BIT) == 0
            && self.word.compare_exchange(word, word | CLOSED_BIT, order, failed).is_ok();
        if free {
            *owner = None;
            self.facts.iter().for_each(|fact| fact.store(0, Ordering::Relaxed));
            self.tag.store(0, Ordering::Relaxed);
        }
        free
    }

    /// Takes all units away and keeps others off; how many there were.
    fn close(&self) -> u64 {
        let closed = |word| Some(word & !UNITS_MAX | CLOSED_BIT);
        let word = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, closed);
        word.unwrap_or_else(|word| word) & UNITS_MAX
    }

    /// Opens the slot as the next generation. A reader of this word sees everything written before.
    fn open(&self, units: u64) {
        let word = self.word.load(Ordering::Relaxed);
        let next = (word & !(UNITS_MAX | CLOSED_BIT)).wrapping_add(GENERATION_STEP) | units;
        self.word.store(next, Ordering::Release);
    }

    #[inline]
    fn swap(&self, from: u64, to: u64) -> Result<u64, u64> {
        self.word.compare_exchange_weak(from, to, Ordering::AcqRel, Ordering::Acquire)
    }
}

/// Locks a mutex even if it is poisoned: every change is one assignment, so a panic leaves it
/// whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_full_set_has_no_room_until_a_place_is_given_up() {
        let places = UnitTable::new(SLOTS_PER_SET);
        for tag in 1..=SLOTS_PER_SET as u64 {
            assert!(places.claim(tag, || ()).is_some());
        }
        assert!(places.claim(100, || ()).is_none());
        assert!(places.claim(1, || ()).is_some(), "whoever has one keeps it");
        let place = places.find(1).unwrap();
        assert!(place.add(1, 5, |_| true));
        assert!(!places.release(1, |_| true), "units are never lost");
        assert_eq!((place.drain(2), place.drain(1)), (0, 5));
        assert!(!places.release(1, |_| false), "its owner is not done");
        assert!(places.release(1, |_| true) && places.release(1, |_| true));
        assert!(places.find(1).is_none() && !place.add(1, 5, |_| true));
        assert!(place.owner().is_none());
        assert!(places.claim(100, || ()).is_some());
        assert_eq!(places.occupied().count(), SLOTS_PER_SET);
    }

    #[test]
    fn what_was_read_before_the_place_changed_buys_nothing() {
        let places = UnitTable::new(SLOTS_PER_SET);
        let place = places.claim(7, || ()).unwrap();
        place.renew(|_, _| ([1, 0, 0, 0, 0, 0], 10));
        let renewed = std::cell::Cell::new(false);
        let (fact, left) = place
            .spend(7, 3, |facts| {
                let fact = facts[0].load(Ordering::Relaxed);
                if !renewed.replace(true) {
                    place.renew(|left, _| ([2, 0, 0, 0, 0, 0], left));
                }
                Some(fact)
            })
            .unwrap();
        assert_eq!((fact, left), (2, 7), "the first try read facts of another generation");
        assert!(place.spend(7, 8, |_| Some(())).is_none());
        assert!(place.spend(8, 1, |_| Some(())).is_none());
        assert!(!place.add(7, UNITS_MAX, |_| true));
        assert!(!place.add(7, 1, |facts| facts[0].load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn no_place_stays_busy_whoever_gives_it_up_meanwhile() {
        // One set, more keys than places: places change hands all the time.
        let places = UnitTable::new(SLOTS_PER_SET);
        std::thread::scope(|scope| {
            for thread in 0..2_u64 {
                let places = &places;
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let tag = 1 + (thread + round) % (2 * SLOTS_PER_SET as u64);
                        if let Some(number) = places.claim_busy(tag, || tag) {
                            let place = places.at(number);
                            assert_eq!(*place.owner(), Some(tag), "it is the key's own");
                            place.clear_busy();
                        }
                    }
                });
            }
            for _ in 0..5_000 {
                for (tag, place) in places.occupied() {
                    if place.try_set_busy() {
                        places.release(tag, |_| true);
                        place.clear_busy();
                    }
                }
            }
        });
        assert!(places.slots.iter().all(|place| !place.busy.load(Ordering::Acquire)));
        for (tag, _) in places.occupied() {
            assert!(places.release(tag, |_| true));
        }
        let again: Vec<_> =
            (1..=SLOTS_PER_SET as u64).map(|tag| places.claim_busy(tag, || tag)).collect();
        assert!(again.iter().all(Option::is_some));
        assert!(places.claim_busy(1, || 1).is_none(), "once at a time");
    }

    /// Would catch: units that are added to a place while it is being given up, and so credited to the
    /// key that gets it next.
    #[test]
    fn units_added_while_a_place_is_given_up_are_never_the_next_key_s() {
        const ROUNDS: u64 = 100_000;
        let places = UnitTable::new(SLOTS_PER_SET);
        // Keys whose units tell whose they are: multiples of two numbers.
        let unit = |tag: u64| if tag.is_multiple_of(2) { 1 } else { 1_000_000 };
        let check = |tag: u64, units: u64| match tag.is_multiple_of(2) {
            true => assert!(units < 1_000_000, "key {tag} got {units} units of another"),
            false => assert!(units.is_multiple_of(1_000_000), "key {tag} got {units} units"),
        };
        let tags = 1..=2 * SLOTS_PER_SET as u64;
        std::thread::scope(|scope| {
            for thread in 0..2_u64 {
                let places = &places;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let tag = 1 + (thread * 5 + round) % (2 * SLOTS_PER_SET as u64);
                        if let Some(place) = places.claim(tag, || tag) {
                            place.add(tag, unit(tag), |_| true);
                        }
                    }
                });
            }
            for _ in 0..ROUNDS / 8 {
                for tag in tags.clone() {
                    if let Some(place) = places.find(tag) {
                        check(tag, place.drain(tag));
                        places.release(tag, |_| true);
                    }
                }
            }
        });
        tags.for_each(|tag| check(tag, places.find(tag).map_or(0, |place| place.drain(tag))));
    }

    #[test]
    fn threads_never_spend_more_than_there_is() {
        let places = UnitTable::new(SLOTS_PER_SET);
        let place = places.claim(7, || ()).unwrap();
        let spent: u64 = std::thread::scope(|scope| {
            let spending = || (0..20_000).filter(|_| place.spend(7, 1, |_| Some(())).is_some());
            let threads: Vec<_> =
                (0..3).map(|_| scope.spawn(move || spending().count() as u64)).collect();
            for _ in 0..500 {
                place.renew(|left, _| ([0; SLOT_FACTS], left + 20));
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(spent + place.units(), 10_000);
    }
}
