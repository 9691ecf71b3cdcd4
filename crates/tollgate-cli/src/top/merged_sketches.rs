//! One list, merged from the sketches of all stripes and windows.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::Estimate;
use super::heavy_hitters::HeavyHitterSketch;

/// The numbers of one sketch, copied while it was locked.
pub(super) struct SketchCopy {
    floor: u64,
    /// Hash, count, error. Bound: the size of a sketch.
    entries: Vec<(u64, u64, u64)>,
}

impl SketchCopy {
    pub(super) fn of<N>(sketch: &HeavyHitterSketch<N>) -> SketchCopy {
        let held = sketch.entries().map(|held| (held.hash, held.count, held.error)).collect();
        SketchCopy { floor: sketch.floor(), entries: held }
    }
}

/// One list, merged from several sketches.
#[derive(Debug, Default)]
pub(super) struct MergedSketches {
    /// Counts by hash. Bound: the entries of all sketches.
    counts: HashMap<u64, MergedCount>,
    /// Sum of the floors of all sketches.
    floor: u64,
}

#[derive(Debug, Default)]
struct MergedCount {
    count: u64,
    error: u64,
    /// Sum of the floors of the sketches that contain it.
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

    /// The heaviest callers: ordered by lowest possible count, then by estimated count. The hash only makes
    /// the order stable.
    pub(super) fn heaviest(&self, most: usize) -> Vec<u64> {
        let mut found: Vec<u64> = self.counts.keys().copied().collect();
        found.sort_by_cached_key(|hash| {
            let Estimate { count, error } = self.estimate(*hash);
            Reverse((count - error, count, *hash))
        });
        found.truncate(most);
        found
    }

    /// The estimate over all sketches. In a sketch that does not contain the caller, its count is estimated
    /// as the smallest count there.
    pub(super) fn estimate(&self, hash: u64) -> Estimate {
        let none = MergedCount::default();
        let MergedCount { count, error, floor } = self.counts.get(&hash).unwrap_or(&none);
        let elsewhere = self.floor - floor;
        Estimate { count: count + elsewhere, error: error + elsewhere }
    }
}
