//! Repeatable random numbers: a small generator whose whole state is its seed.

/// SplitMix64: every seed gives another sequence, and the same seed gives the same.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The generator of this seed. Print the seed with a failure.
    #[must_use]
    pub const fn seeded(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// The next number, any `u64`.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to but not including `bound`, which is not 0. The bias is below
    /// `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both possible.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        match (high - low).checked_add(1) {
            Some(span) => low + self.below(span),
            None => self.number(),
        }
    }

    /// One of the given.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// True once in `n` times on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_repeats_and_another_does_not() {
        let take = |seed| {
            let mut random = SplitMix64::seeded(seed);
            [random.number(), random.number(), random.below(10), random.between(5, 7)]
        };
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
    }

    #[test]
    fn bounds_are_kept_and_reached() {
        let mut random = SplitMix64::seeded(7);
        let mut seen = [false; 4];
        for _ in 0..1_000 {
            let n = random.between(3, 6);
            seen[(n - 3) as usize] = true;
            assert!(random.below(1) == 0);
        }
        assert_eq!(seen, [true; 4]);
        let _ = random.between(0, u64::MAX);
    }
}
