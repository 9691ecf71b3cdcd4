//! The Space-Saving sketch (Metwally, Agrawal and El Abbadi, 2005): the most frequent of a stream, in
//! memory that does not grow.
//!
//! It holds at most k names. Whoever is named counts; who is not takes the place of the one with the
//! smallest count, and inherits that count as its error. After n counts:
//!
//! - whoever came more than n/k times is held;
//! - count − error ≤ how often it really came ≤ count, and error ≤ n/k;
//! - whoever is not held came at most [`Sketch::floor`] times.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

/// One name and how often it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held<N> {
    /// The keyed hash that stands for the name: of 1,024 names two are equal once in 10^13.
    hash: u64,
    pub(super) name: N,
    pub(super) count: u64,
    pub(super) error: u64,
    /// Where it is in the heap.
    at: u16,
}

impl<N> Held<N> {
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }
}

/// The sketch.
#[derive(Debug)]
pub(super) struct Sketch<N> {
    /// Bound: `entries_max`.
    held: Vec<Held<N>>,
    /// Where the one with a hash is held.
    places: HashMap<u64, u16, BuildHasherDefault<Already>>,
    /// Places of `held`, the smallest count first.
    heap: Vec<u16>,
    entries_max: usize,
}

impl<N> Sketch<N> {
    /// Holds at most so many names.
    pub(super) fn new(entries_max: u16) -> Sketch<N> {
        let entries_max = entries_max.into();
        Sketch { held: Vec::new(), places: HashMap::default(), heap: Vec::new(), entries_max }
    }

    /// Counts one that has this hash. `name` writes who it is, into the place of whoever leaves.
    #[inline]
    pub(super) fn count(&mut self, hash: u64, name: impl FnOnce(Option<N>) -> N)
    where
        N: Default,
    {
        if let Some(place) = self.places.get(&hash) {
            let held = &mut self.held[usize::from(*place)];
            held.count += 1;
            let at = held.at;
            return self.sink(at);
        }
        if self.held.len() < self.entries_max {
            return self.push(hash, name(None));
        }
        let place = self.heap[0];
        let held = &mut self.held[usize::from(place)];
        self.places.remove(&held.hash);
        held.name = name(Some(std::mem::take(&mut held.name)));
        held.hash = hash;
        held.error = held.count;
        held.count += 1;
        self.places.insert(hash, place);
        self.sink(0);
    }

    fn push(&mut self, hash: u64, name: N) {
        let place = self.held.len() as u16;
        self.held.push(Held { hash, name, count: 1, error: 0, at: place });
        self.places.insert(hash, place);
        // No count is smaller than 1, so there is nothing to rise above but equals.
        self.heap.push(place);
        self.rise(place);
    }

    /// Moves a count that grew down to where it belongs.
    fn sink(&mut self, mut at: u16) {
        loop {
            let first = 2 * usize::from(at) + 1;
            let children = first..(first + 2).min(self.heap.len());
            let Some(least) = children.min_by_key(|child| self.count_at(*child)) else { return };
            if self.count_at(least) >= self.count_at(at.into()) {
                return;
            }
            at = self.swap(at, least as u16);
        }
    }

    /// Moves a new count up to where it belongs.
    fn rise(&mut self, mut at: u16) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.count_at(parent.into()) <= self.count_at(at.into()) {
                return;
            }
            at = self.swap(at, parent);
        }
    }

    /// Swaps two places of the heap; where the first one is now.
    fn swap(&mut self, one: u16, other: u16) -> u16 {
        self.heap.swap(one.into(), other.into());
        for at in [one, other] {
            let place = self.heap[usize::from(at)];
            self.held[usize::from(place)].at = at;
        }
        other
    }

    fn count_at(&self, at: usize) -> u64 {
        self.held[usize::from(self.heap[at])].count
    }

    /// The most often that somebody who is not held can have come.
    pub(super) fn floor(&self) -> u64 {
        if self.held.len() < self.entries_max { 0 } else { self.count_at(0) }
    }

    /// All that are held, in no order.
    pub(super) fn held(&self) -> &[Held<N>] {
        &self.held
    }

    /// The one with this hash.
    pub(super) fn get(&self, hash: u64) -> Option<&Held<N>> {
        self.places.get(&hash).map(|place| &self.held[usize::from(*place)])
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.held.clear();
        self.places.clear();
        self.heap.clear();
    }
}

/// A map by numbers that are keyed hashes already.
#[derive(Debug, Default)]
pub(super) struct Already(u64);

impl Hasher for Already {
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

/// Hashes the two parts of a name under a secret of this process, so that nobody can make two
/// callers share a place.
#[derive(Debug, Default)]
pub(super) struct Hashes(RandomState);

impl Hashes {
    pub(super) fn hash(&self, rule: &str, key: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(rule.as_bytes());
        hasher.write_u8(0xff);
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
    fn what_is_frequent_is_held_with_its_count_between_its_bounds() {
        for (entries_max, seed) in [(16, 1), (64, 2), (1_024, 3), (1_024, 0x9e37_79b9)] {
            let (mut sketch, mut exact) = (Sketch::<u64>::new(entries_max), HashMap::new());
            let (mut state, n) = (seed, 200_000_u64);
            for _ in 0..n {
                let name = zipf(&mut state);
                *exact.entry(name).or_insert(0_u64) += 1;
                sketch.count(name.wrapping_mul(0x9e37_79b9_7f4a_7c15), |_| name);
            }
            let share = n / u64::from(entries_max);
            assert!(sketch.held().len() <= entries_max.into());
            assert!(sketch.floor() <= share);
            assert_eq!(sketch.held().iter().map(|held| held.count).sum::<u64>(), n);
            for held in sketch.held() {
                let truly = exact[&held.name];
                assert!(held.count - held.error <= truly && truly <= held.count, "{held:?}");
                assert!(held.error <= share, "{held:?}");
            }
            for (name, truly) in exact {
                let held = sketch.get(name.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                assert!(held.is_some() || truly <= sketch.floor(), "{name} came {truly} times");
                assert!(held.is_none_or(|held| held.name == name));
            }
        }
    }

    #[test]
    fn a_flood_of_new_names_takes_no_more_room() {
        let mut sketch = Sketch::<u64>::new(8);
        for name in 0..100_000 {
            sketch.count(name, |_| name);
        }
        assert_eq!((sketch.held().len(), sketch.heap.len(), sketch.places.len()), (8, 8, 8));
        assert_eq!(sketch.floor(), 12_500);
        sketch.clear();
        assert_eq!((sketch.held().len(), sketch.floor()), (0, 0));
        sketch.count(1, |_| 1);
        assert_eq!(sketch.get(1).map(|held| (held.count, held.error)), Some((1, 0)));
    }
}
