//! Random numbers that are the same at each run.

// Each test binary uses its own part of this module.
#![allow(dead_code)]

/// SplitMix64.
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Fewer than `end` bytes.
    pub(crate) fn bytes(&mut self, end: u64) -> Vec<u8> {
        let length = self.word() % end;
        (0..length).map(|_| self.word() as u8).collect()
    }
}
