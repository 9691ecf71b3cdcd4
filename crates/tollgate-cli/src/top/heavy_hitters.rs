//! A sketch of the most frequent names of a stream, in bounded memory: Space-Saving (Metwally, Agrawal and
//! El Abbadi, 2005) with randomised admission (Ben Basat, Chen, Einziger, Friedman and Kassner, 2019).
//!
//! It has k slots. A name with a slot is counted there. While there is a free slot, a new name takes it.
//! Afterwards a name without a slot replaces the one with the smallest count m only once in m + 1 times on
//! average; it then gets the count m + 1, and m as its error. Most newcomers come once and are dropped
//! without touching anything.
//!
//! - Counts are exact while there are at most k names.
//! - occurrences ≥ count − error, always.
//! - The smallest count is at most n/k after n counts, always: a count adds at most 1 to the sum. In a flood of
//!   names that come once it is only about √(2n/k).
//! - Chance decides about more than that: a name is still without a slot after x · (m + 1) occurrences with a
//!   probability below e^−x, where m is the smallest count of that time. So one with 10 · n/k occurrences is
//!   never admitted about once in 20,000 times; one that was admitted may also lose its slot again. Plain
//!   Space-Saving excludes that, and replaces an entry at nearly every newcomer.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

/// One name with its count and error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SketchEntry<'a, N> {
    pub(super) hash: u64,
    pub(super) name: &'a N,
    pub(super) count: u64,
    pub(super) error: u64,
}

/// A name in the sketch, and the error that it inherited.
#[derive(Debug)]
struct CounterSlot<N> {
    /// The keyed hash of the name: two of 1,024 names collide once in 10^13.
    hash: u64,
    name: N,
    error: u64,
}

/// A count in the heap. The heap holds the counts themselves, because finding the smallest compares many of
/// them: this way they share a few cache lines.
#[derive(Clone, Copy, Debug)]
struct HeapNode {
    count: u64,
    slot: u16,
}

/// The sketch.
#[derive(Debug)]
pub(super) struct HeavyHitterSketch<N> {
    /// Names. Bound: `entries_max`, also of the next three fields.
    slots: Vec<CounterSlot<N>>,
    /// Index of the slot by hash.
    by_hash: HashMap<u64, u16, BuildHasherDefault<KeyedHashHasher>>,
    /// Min-heap of counts.
    heap: Vec<HeapNode>,
    /// Index in the heap of each slot's count.
    heap_positions: Vec<u16>,
    entries_max: usize,
    /// The state of the generator that decides about admissions.
    random: u64,
}

impl<N> HeavyHitterSketch<N> {
    /// Makes a sketch with this many slots.
    pub(super) fn new(entries_max: u16) -> HeavyHitterSketch<N> {
        HeavyHitterSketch {
            slots: Vec::new(),
            by_hash: HashMap::default(),
            heap: Vec::new(),
            heap_positions: Vec::new(),
            entries_max: entries_max.into(),
            random: 0,
        }
    }

    /// Counts a name by its hash. If it gets a new slot, `name` writes the name over the old one.
    #[inline]
    pub(super) fn count(&mut self, hash: u64, name: impl FnOnce(&mut N))
    where
        N: Default,
    {
        if let Some(place) = self.by_hash.get(&hash) {
            let at = usize::from(self.heap_positions[usize::from(*place)]);
            return self.grow(at);
        }
        if self.slots.len() < self.entries_max {
            return self.push(hash, name);
        }
        let HeapNode { count, slot: number } = self.heap[0];
        if !self.admits(hash, count) {
            return;
        }
        let place = &mut self.slots[usize::from(number)];
        self.by_hash.remove(&place.hash);
        self.by_hash.insert(hash, number);
        (place.hash, place.error) = (hash, count);
        name(&mut place.name);
        self.grow(0);
    }

    /// Returns true if a name without a slot replaces the smallest count: once in `least + 1` times. The
    /// hashes of names, which nobody can predict, feed the generator.
    #[inline]
    fn admits(&mut self, hash: u64, least: u64) -> bool {
        self.random = (self.random ^ hash).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        let chance = self.random.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32;
        // A count of a minute is far below 2^32.
        (chance * (least + 1)) >> 32 == 0
    }

    /// Adds a slot with a count of 1 and moves it up in the heap, as no count is smaller.
    fn push(&mut self, hash: u64, name: impl FnOnce(&mut N))
    where
        N: Default,
    {
        let number = self.slots.len() as u16;
        let mut place = CounterSlot { hash, name: N::default(), error: 0 };
        name(&mut place.name);
        self.slots.push(place);
        self.by_hash.insert(hash, number);
        self.heap_positions.push(0);
        let node = HeapNode { count: 1, slot: number };
        let mut at = self.heap.len();
        self.heap.push(node);
        while at > 0 && self.heap[(at - 1) / 2].count > 1 {
            let above = (at - 1) / 2;
            self.put(at, self.heap[above]);
            at = above;
        }
        self.put(at, node);
    }

    /// Increments a count, and moves it down to its position in the heap.
    fn grow(&mut self, mut at: usize) {
        let mut node = self.heap[at];
        node.count += 1;
        loop {
            let below = 2 * at + 1;
            let Some(first) = self.heap.get(below) else { break };
            let second = self.heap.get(below + 1).is_some_and(|second| second.count < first.count);
            let least = below + usize::from(second);
            if self.heap[least].count >= node.count {
                break;
            }
            self.put(at, self.heap[least]);
            at = least;
        }
        self.put(at, node);
    }

    fn put(&mut self, at: usize, node: HeapNode) {
        self.heap[at] = node;
        self.heap_positions[usize::from(node.slot)] = at as u16;
    }

    /// The smallest count, which stands for that of a name without a slot; 0 while there are free slots.
    pub(super) fn floor(&self) -> u64 {
        let least = self.heap.first().map_or(0, |node| node.count);
        if self.slots.len() < self.entries_max { 0 } else { least }
    }

    /// All names, in no particular order.
    pub(super) fn entries(&self) -> impl Iterator<Item = SketchEntry<'_, N>> {
        self.heap.iter().map(|node| self.entry(*node))
    }

    /// The name with this hash.
    pub(super) fn get(&self, hash: u64) -> Option<SketchEntry<'_, N>> {
        let number = self.by_hash.get(&hash)?;
        Some(self.entry(self.heap[usize::from(self.heap_positions[usize::from(*number)])]))
    }

    fn entry(&self, node: HeapNode) -> SketchEntry<'_, N> {
        let CounterSlot { hash, name, error } = &self.slots[usize::from(node.slot)];
        SketchEntry { hash: *hash, name, count: node.count, error: *error }
    }

    /// Removes all names.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.by_hash.clear();
        self.heap.clear();
        self.heap_positions.clear();
    }
}

/// Hasher for numbers that are keyed hashes already.
#[derive(Debug, Default)]
pub(super) struct KeyedHashHasher(u64);

impl Hasher for KeyedHashHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are whole numbers");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// Hashes keys under a secret of this process, so that nobody can make two callers share a slot.
#[derive(Debug, Default)]
pub(super) struct CallerHasher(RandomState);

impl CallerHasher {
    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(key);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small numbers are more frequent: about n/(r·ln 10^5) times for r.
    fn zipf(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        let even = (*state >> 11) as f64 / (1_u64 << 53) as f64;
        (100_000_f64.powf(even)) as u64
    }

    #[test]
    fn what_is_frequent_is_held_with_nearly_its_count() {
        for (entries_max, seed) in [(16, 1), (64, 2), (1_024, 3), (1_024, 0x9e37_79b9)] {
            let (mut sketch, mut exact) =
                (HeavyHitterSketch::<u64>::new(entries_max), HashMap::new());
            let (mut state, n) = (seed, 200_000_u64);
            for _ in 0..n {
                let name = zipf(&mut state);
                *exact.entry(name).or_insert(0_u64) += 1;
                sketch.count(name.wrapping_mul(0x9e37_79b9_7f4a_7c15), |held| *held = name);
            }
            let share = n / u64::from(entries_max);
            assert!(sketch.entries().count() <= entries_max.into());
            assert!(sketch.floor() <= share);
            for held in sketch.entries() {
                let truly = exact[held.name];
                assert!(held.count - held.error <= truly, "{held:?} came {truly} times");
                assert!(held.error <= share, "{held:?}");
                assert!(truly <= held.count + 10 * (held.error + 1), "{held:?} came {truly} times");
                assert!(held.error > 0 || truly == held.count, "{held:?} came {truly} times");
            }
            for (name, truly) in exact {
                let held = sketch.get(name.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                assert!(held.is_some() || truly <= 10 * share, "{name} came {truly} times");
                assert!(held.is_none_or(|held| *held.name == name));
            }
        }
    }

    #[test]
    fn the_heaviest_of_zipf_traffic_are_listed_in_order() {
        let (mut sketch, mut exact) = (HeavyHitterSketch::<u64>::new(1_024), HashMap::new());
        let mut state = 7;
        for _ in 0..300_000 {
            let name = zipf(&mut state);
            *exact.entry(name).or_insert(0_u64) += 1;
            sketch.count(name.wrapping_mul(0x9e37_79b9_7f4a_7c15), |held| *held = name);
        }
        let mut listed: Vec<_> = sketch.entries().map(|held| (held.count, *held.name)).collect();
        let mut truly: Vec<_> = exact.into_iter().map(|(name, count)| (count, name)).collect();
        listed.sort_unstable_by_key(|entry| std::cmp::Reverse(*entry));
        truly.sort_unstable_by_key(|entry| std::cmp::Reverse(*entry));
        for ((count, _), (want, _)) in listed.iter().zip(&truly).take(100) {
            assert!(count.abs_diff(*want) * 20 <= *want, "{count} instead of {want}");
        }
        assert_eq!(listed[..10], truly[..10]);
    }

    #[test]
    fn a_name_that_comes_late_but_often_gets_a_slot() {
        for seed in 0..100 {
            let mut sketch = HeavyHitterSketch::<u64>::new(64);
            let mut state = 0x9e37_79b9 + seed;
            for _ in 0..10_000 {
                sketch.count(zipf(&mut state).wrapping_mul(0x9e37_79b9_7f4a_7c15), |_| ());
            }
            let late = u64::MAX - seed;
            for turn in 0..20 * (sketch.floor() + 1) {
                sketch.count(late, |_| ());
                sketch.count((turn << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15), |_| ());
            }
            assert!(sketch.get(late).is_some(), "seed {seed}");
        }
    }

    #[test]
    fn a_flood_of_new_names_takes_no_more_room() {
        let mut sketch = HeavyHitterSketch::<u64>::new(8);
        for name in 0..100_000_u64 {
            sketch.count(name.wrapping_mul(0x9e37_79b9_7f4a_7c15), |held| *held = name);
        }
        assert_eq!(
            (sketch.entries().count(), sketch.by_hash.len(), sketch.heap_positions.len()),
            (8, 8, 8)
        );
        // With the smallest count m a slot grows once in m + 1 names: m is about √(2 · 100,000 / 8) = 158.
        assert!((100..250).contains(&sketch.floor()), "{}", sketch.floor());
        sketch.clear();
        assert_eq!((sketch.entries().count(), sketch.floor()), (0, 0));
        sketch.count(1, |held| *held = 1);
        assert_eq!(sketch.get(1).map(|held| (held.count, held.error)), Some((1, 0)));
    }
}
