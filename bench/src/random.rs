//! Pseudo-random numbers, the same in every run.

/// splitmix64 (Vigna): one multiplication chain per number, every seed is good.
#[derive(Clone, Debug)]
pub struct BenchRandom(u64);

impl BenchRandom {
    /// Makes a generator from a seed.
    pub fn new(seed: u64) -> BenchRandom {
        BenchRandom(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`, all equally likely (to one part in 2^64 / `end`).
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The time to the next event of a Poisson process with this mean distance.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_published_values() {
        let mut random = BenchRandom::new(1_234_567);
        let got = [(); 3].map(|()| random.bits());
        let published =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(got, published);
    }
}
