//! One list, put together from the sketches of all stripes and windows.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::Estimate;
use super::space_saving::SpaceSavingSketch;

/// The numbers of one sketch, copied while it was locked.
pub(super) struct SketchCopy {
    floor: u64,
    /// Hash, count, error. Bound: what a sketch holds.
    entries: Vec<(u64, u64, u64)>,
}

impl SketchCopy {
    pub(super) fn of<N>(sketch: &SpaceSavingSketch<N>) -> SketchCopy {
        let held = sketch.entries().map(|held| (held.hash, held.count, held.error)).collect();
        SketchCopy { floor: sketch.floor(), entries: held }
    }
}

/// One list, put together from several sketches.
#[derive(Debug, Default)]
pub(super) struct MergedSketches {
    /// Bound: all that the sketches hold.
    counts: HashMap<u64, MergedCount>,
    /// The most that somebody can have come whom no sketch holds.
    floor: u64,
}

#[derive(Debug, Default)]
struct MergedCount {
    count: u64,
    error: u64,
    /// Of those sketches that hold it.
    floor: u64,
}

impl MergedSketches {
    pub(super) fn add(&mut self, sketch: &SketchCopy) {
        self.floor += sketch.floor;
        for (hash, count, error) in &sketch.entries {
            let sum = self.counts.entry(*hash).or_default();
            sum.count += count;
            sum.error += error;
            sum.floor += sketch.floor;
        }
    }

    /// Those who are held somewhere, the heaviest first: by what is sure; of equals by what is
    /// possible. The hash only makes the order the same each time.
    pub(super) fn heaviest(&self, most: usize) -> Vec<u64> {
        let mut found: Vec<u64> = self.counts.keys().copied().collect();
        found.sort_by_cached_key(|hash| {
            let Estimate { count, error } = self.estimate(*hash);
            Reverse((count - error, count, *hash))
        });
        found.truncate(most);
        found
    }

    /// What all sketches together say: by one that does not hold somebody, it came at most as often
    /// as the least of those that are held.
    pub(super) fn estimate(&self, hash: u64) -> Estimate {
        let none = MergedCount::default();
        let MergedCount { count, error, floor } = self.counts.get(&hash).unwrap_or(&none);
        let elsewhere = self.floor - floor;
        Estimate { count: count + elsewhere, error: error + elsewhere }
    }
}
