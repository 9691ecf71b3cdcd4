//! Which keys are asked often: a few thousand cells, one for all keys that meet in it.
//!
//! A cell belongs to the key with the most requests: those of other keys lower its count, and a key
//! that finds it at 0 takes the cell over. Counts fade by half every 100 ms, so that a cell shows
//! about twice the requests of its key in that time. It is an estimate, and correctness never
//! depends on it: at worst a key gets a lease that it does not need, or gets none.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Micros;

/// Time in which a count fades by half.
pub(super) const HALF_LIFE_US: u64 = 100_000;
/// Bound: so many cells of 8 bytes, whatever keys there are.
const CELLS: usize = 4_096;

const COUNT_BITS: u32 = 24;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const EPOCH_BITS: u32 = 20;
const EPOCH_MASK: u64 = (1 << EPOCH_BITS) - 1;

/// An estimate of the request rate of keys.
#[derive(Debug)]
pub(super) struct HotKeySketch {
    /// Each 20 bits of a tag, an epoch, and a count.
    cells: Box<[AtomicU64]>,
}

impl HotKeySketch {
    pub(super) fn new() -> HotKeySketch {
        HotKeySketch { cells: (0..CELLS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts a request of a key; about how many it makes in twice [`HALF_LIFE_US`]. 0 for a key that
    /// others outweigh.
    pub(super) fn observe(&self, tag: u64, now: Micros) -> u64 {
        let cell = &self.cells[tag as usize % CELLS];
        let owner = tag >> (COUNT_BITS + EPOCH_BITS);
        let epoch = (now.as_u64() / HALF_LIFE_US) & EPOCH_MASK;
        let word = cell.load(Ordering::Relaxed);
        let age = epoch.wrapping_sub(word >> COUNT_BITS) & EPOCH_MASK;
        // An epoch that lies ahead is one of a clock that went back: nothing has faded.
        let age = if age > EPOCH_MASK / 2 { 0 } else { age };
        let count = (word & COUNT_MAX).checked_shr(age as u32).unwrap_or(0);
        let (owner, count, mine) = match word >> (COUNT_BITS + EPOCH_BITS) {
            same if same == owner => (owner, (count + 1).min(COUNT_MAX), true),
            _ if count <= 1 => (owner, 1, true),
            other => (other, count - 1, false),
        };
        let word = owner << (COUNT_BITS + EPOCH_BITS) | epoch << COUNT_BITS | count;
        // Two threads at once: one of them is not counted.
        cell.store(word, Ordering::Relaxed);
        if mine { count } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two keys that meet in one cell.
    const KEY: u64 = 5;
    const STRANGER: u64 = 5 | 1 << 63;

    #[test]
    fn counts_fade_by_half_each_100_ms() {
        let sketch = HotKeySketch::new();
        let at = |millis: u64| Micros::new(1_795_000_000_000_000 + millis * 1_000);
        for count in 1..=64 {
            assert_eq!(sketch.observe(KEY, at(0)), count);
        }
        assert_eq!(sketch.observe(KEY, at(100)), 33);
        assert_eq!(sketch.observe(KEY, at(50)), 34, "a clock that goes back fades nothing");
        assert_eq!(sketch.observe(KEY, at(60_000)), 1);
    }

    #[test]
    fn the_one_who_asks_most_has_the_cell() {
        let sketch = HotKeySketch::new();
        let now = Micros::from_secs(1_795_000_000);
        for _ in 0..10 {
            sketch.observe(KEY, now);
        }
        assert_eq!(sketch.observe(STRANGER, now), 0);
        assert_eq!(sketch.observe(KEY, now), 10);
        for _ in 0..9 {
            assert_eq!(sketch.observe(STRANGER, now), 0);
        }
        assert_eq!(sketch.observe(STRANGER, now), 1, "worn out and taken over");
    }

    #[test]
    fn a_flood_of_keys_leaves_no_key_hot() {
        let sketch = HotKeySketch::new();
        let now = Micros::from_secs(1_795_000_000);
        let tags = (1..200_000_u64).map(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let hottest = tags.map(|tag| sketch.observe(tag, now)).max();
        assert!(hottest.unwrap() <= 2, "{hottest:?}");
    }
}
