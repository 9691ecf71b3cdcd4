//! One list, put together from the sketches of all stripes and windows.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::Estimate;
use super::space_saving::Sketch;

/// The numbers of one sketch, copied while it was locked.
pub(super) struct Copied {
    floor: u64,
    /// Hash, count, error. Bound: what a sketch holds.
    held: Vec<(u64, u64, u64)>,
}

impl Copied {
    pub(super) fn of<N>(sketch: &Sketch<N>) -> Copied {
        let held = sketch.held().map(|held| (held.hash, held.count, held.error)).collect();
        Copied { floor: sketch.floor(), held }
    }
}

/// One list, put together from several sketches.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// Bound: all that the sketches hold.
    of: HashMap<u64, Sum>,
    /// The most that somebody can have come whom no sketch holds.
    floor: u64,
}

#[derive(Debug, Default)]
struct Sum {
    count: u64,
    error: u64,
    /// Of those sketches that hold it.
    floor: u64,
}

impl Gathered {
    pub(super) fn add(&mut self, sketch: &Copied) {
        self.floor += sketch.floor;
        for (hash, count, error) in &sketch.held {
            let sum = self.of.entry(*hash).or_default();
            sum.count += count;
            sum.error += error;
            sum.floor += sketch.floor;
        }
    }

    /// Those who are held somewhere, the heaviest first: by what is sure; of equals by what is
    /// possible. The hash only makes the order the same each time.
    pub(super) fn heaviest(&self, most: usize) -> Vec<u64> {
        let mut found: Vec<u64> = self.of.keys().copied().collect();
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
        let none = Sum::default();
        let Sum { count, error, floor } = self.of.get(&hash).unwrap_or(&none);
        let elsewhere = self.floor - floor;
        Estimate { count: count + elsewhere, error: error + elsewhere }
    }
}
