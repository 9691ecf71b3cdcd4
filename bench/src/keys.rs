//! Streams of keys, generated before the clock starts.
//!
//! Keys are `user:NNNNNNN`, 12 bytes, packed one behind the other, so that reading them is as
//! cheap as reading a request buffer and what is measured is the limiter.

use std::fmt::Write;
use std::hint::black_box;
use std::ops::Range;

use crate::random::BenchRandom;

/// Number of keys in a stream, enough that nearly all of a million keys occur. After the last key the stream starts
/// again.
const LENGTH: usize = 1 << 21;

/// The distribution of requests over keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyDistribution {
    /// All keys equally likely: the worst case for caches.
    Uniform,
    /// Zipf with exponent 0.99, as in YCSB: most requests are for few keys, which are scattered over the
    /// numbers.
    Zipf,
}

impl KeyDistribution {
    /// The word in tables.
    pub fn name(self) -> &'static str {
        match self {
            KeyDistribution::Uniform => "uniform",
            KeyDistribution::Zipf => "zipf",
        }
    }
}

/// A stream of keys.
#[derive(Debug)]
pub struct KeyStream {
    text: String,
    /// Bytes of a key. A field, and read through `black_box`, because in a program the length of a
    /// key is not known to the compiler either.
    width: usize,
    length: usize,
}

impl KeyStream {
    /// Generates keys with numbers in `range`, distributed as `shape` says.
    pub fn new(range: Range<u64>, shape: KeyDistribution, seed: u64) -> KeyStream {
        let mut random = BenchRandom::new(seed);
        let count = range.end - range.start;
        let length = if count == 1 { 1 << 12 } else { LENGTH };
        match shape {
            KeyDistribution::Uniform => {
                KeyStream::from_numbers((0..length).map(|_| range.start + random.below(count)))
            }
            KeyDistribution::Zipf => {
                let zipf = ZipfRanks::new(count);
                let number = |rank| range.start + scatter(rank, count);
                KeyStream::from_numbers((0..length).map(|_| number(zipf.rank(&mut random))))
            }
        }
    }

    /// Every key of `range` once, in order.
    pub fn each_once(range: Range<u64>) -> KeyStream {
        KeyStream::from_numbers(range)
    }

    fn from_numbers(numbers: impl Iterator<Item = u64>) -> KeyStream {
        let mut text = String::new();
        let mut length = 0;
        for number in numbers {
            write!(text, "user:{number:07}").expect("writing to a String cannot fail");
            length += 1;
        }
        assert_eq!(text.len(), 12 * length, "a key of another length: use numbers of 7 digits");
        KeyStream { text, width: black_box(12), length }
    }

    /// Number of keys before the stream starts again.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true if the stream has no keys.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The key at `index`, below `len`.
    #[inline]
    pub fn key(&self, index: usize) -> &str {
        let start = index * self.width;
        &self.text[start..start + self.width]
    }
}

/// A permutation of 0..count, for any count without this prime factor.
fn scatter(rank: u64, count: u64) -> u64 {
    const PRIME: u64 = 2_654_435_761;
    (u128::from(rank) * u128::from(PRIME) % u128::from(count)) as u64
}

/// Ranks by the method of Gray et al., "Quickly generating billion-record synthetic databases".
#[derive(Debug)]
struct ZipfRanks {
    count: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl ZipfRanks {
    const THETA: f64 = 0.99;

    fn new(count: u64) -> ZipfRanks {
        let zeta = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-ZipfRanks::THETA)).sum();
        let (all, two): (f64, f64) = (zeta(count), zeta(2));
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - ZipfRanks::THETA)) / (1.0 - two / all);
        ZipfRanks { count: count as f64, zeta: all, alpha: 1.0 / (1.0 - ZipfRanks::THETA), eta }
    }

    fn rank(&self, random: &mut BenchRandom) -> u64 {
        let unit = random.unit();
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            0
        } else if scaled < 1.0 + 0.5f64.powf(ZipfRanks::THETA) {
            1
        } else {
            let rank = self.count * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
            (rank as u64).min(self.count as u64 - 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn counts(stream: &KeyStream) -> Vec<usize> {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        (0..stream.len()).for_each(|index| *counts.entry(stream.key(index)).or_default() += 1);
        let mut counts: Vec<usize> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    #[test]
    fn uniform_asks_about_all_alike_and_zipf_about_few() {
        let uniform = counts(&KeyStream::new(0..1_000, KeyDistribution::Uniform, 1));
        assert_eq!(uniform.len(), 1_000);
        assert!(uniform[0] < 2 * uniform[999]);
        let zipf = counts(&KeyStream::new(0..1_000, KeyDistribution::Zipf, 1));
        let all: usize = zipf.iter().sum();
        // The first rank has 1 / zeta(1000) = 13 % of all, the second half of that.
        assert!((0.12..0.14).contains(&(zipf[0] as f64 / all as f64)));
        assert!((1.9..2.1).contains(&(zipf[0] as f64 / zipf[1] as f64)));
    }

    #[test]
    fn scattering_loses_no_key() {
        for count in [1_u64, 2, 1_000, 999_983] {
            let mut seen = vec![false; count as usize];
            (0..count).for_each(|rank| seen[scatter(rank, count) as usize] = true);
            assert!(seen.iter().all(|seen| *seen), "{count}");
        }
    }
}
