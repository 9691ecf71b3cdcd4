//! The keys of a load: each request is for one of N callers, all equally often or as Zipf's law says.

use std::sync::Arc;

/// Most different keys: the table of Zipf's law takes eight bytes for each.
pub(super) const KEYS_MAX: u64 = 1_000_000;

/// Largest exponent of Zipf's law; with it nearly every request has the same key.
const EXPONENT_MAX: f64 = 10.0;

/// A source of keys. The key of a request depends on its number alone, so two runs send the same.
#[derive(Clone, Debug)]
pub(super) struct KeySampler {
    keys: u64,
    /// Cumulative probabilities under Zipf's law. Bound: [`KEYS_MAX`].
    cumulative: Option<Arc<[f64]>>,
}

impl KeySampler {
    /// Samples from `keys` keys, under Zipf's law if there is an exponent.
    pub(super) fn new(keys: u64, exponent: Option<f64>) -> KeySampler {
        let cumulative = exponent.map(|exponent| {
            let mut sum = 0.0;
            let mut sums: Vec<f64> = (1..=keys)
                .map(|rank| {
                    sum += (rank as f64).powf(-exponent);
                    sum
                })
                .collect();
            sums.iter_mut().for_each(|value| *value /= sum);
            sums.into()
        });
        KeySampler { keys, cumulative }
    }

    /// The key of a request, from 0; with Zipf's law 0 is the most frequent.
    pub(super) fn key(&self, number: u64) -> u64 {
        let random = mixed(number);
        let Some(cumulative) = &self.cumulative else { return random % self.keys };
        let part = (random >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = cumulative.partition_point(|&sum| sum <= part) as u64;
        rank.min(self.keys - 1)
    }
}

/// The number after `number` rounds of splitmix64: evenly spread, and the same on every machine.
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Reads the exponent of Zipf's law.
pub(super) fn parse_exponent(text: &str) -> Result<f64, String> {
    let exponent = text.parse::<f64>().ok();
    let exponent = exponent.filter(|exponent| *exponent > 0.0 && *exponent <= EXPONENT_MAX);
    exponent.ok_or_else(|| format!("write an exponent above 0, at most {EXPONENT_MAX}: 1.1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(sampler: &KeySampler, requests: u64) -> Vec<u64> {
        let mut counts = vec![0; sampler.keys as usize];
        (0..requests).for_each(|number| counts[sampler.key(number) as usize] += 1);
        counts
    }

    #[test]
    fn keys_are_equally_frequent_or_follow_the_law() {
        let even = counts(&KeySampler::new(10, None), 100_000);
        assert!(even.iter().all(|count| (9_500..10_500).contains(count)), "{even:?}");
        let zipf = counts(&KeySampler::new(1_000, Some(1.0)), 100_000);
        // The first of 1,000 keys has 1/7.485 of all requests, the second half of that.
        assert!((12_800..13_900).contains(&zipf[0]), "{}", zipf[0]);
        assert!((6_200..7_200).contains(&zipf[1]), "{}", zipf[1]);
        assert_eq!(counts(&KeySampler::new(1, Some(1.1)), 100), [100]);
    }

    #[test]
    fn exponents_are_positive_and_finite() {
        for (text, want) in [("1.1", true), ("0.5", true), ("10", true)] {
            assert_eq!(parse_exponent(text).is_ok(), want, "{text}");
        }
        for text in ["0", "-1", "11", "NaN", "inf", "x", ""] {
            assert!(parse_exponent(text).is_err(), "{text}");
        }
    }
}
