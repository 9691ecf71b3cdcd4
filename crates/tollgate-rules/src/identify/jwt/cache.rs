//! Tokens that were verified, by their hash, so that a signature is verified once and not for each
//! request. Rejected tokens are not kept, because anybody can make any number of them.

use std::sync::{Mutex, PoisonError};

use tollgate::Micros;

use super::VerifiedToken;

/// Number of sets; the hash of a token selects one.
const SETS: usize = 512;
/// Number of tokens in one set. 512 × 8 are 4,096, about 2.5 MiB if all claims have the maximum
/// length.
const WAYS: usize = 8;

/// At most 4,096 verified tokens. A new token replaces the oldest of a full set.
pub(super) struct JwtCache {
    /// Bound: `SETS` lists of `WAYS` tokens. A lock is held for a comparison of 8 hashes.
    sets: Box<[Mutex<Vec<JwtCacheEntry>>]>,
}

struct JwtCacheEntry {
    digest: [u8; 32],
    verified: VerifiedToken,
}

impl JwtCache {
    pub(super) fn new() -> JwtCache {
        JwtCache { sets: (0..SETS).map(|_| Mutex::new(Vec::new())).collect() }
    }

    fn set(&self, digest: &[u8; 32]) -> &Mutex<Vec<JwtCacheEntry>> {
        &self.sets[usize::from(u16::from_be_bytes([digest[0], digest[1]])) % SETS]
    }

    /// The claims of a token, if it is in the cache and valid now.
    pub(super) fn get(&self, digest: &[u8; 32], now: Micros) -> Option<VerifiedToken> {
        let set = self.set(digest).lock().unwrap_or_else(PoisonError::into_inner);
        let entry = set.iter().find(|entry| entry.digest == *digest)?;
        entry.verified.is_valid_at(now).then(|| entry.verified.clone())
    }

    /// Remembers a token.
    pub(super) fn put(&self, digest: [u8; 32], verified: VerifiedToken, now: Micros) {
        let mut set = self.set(&digest).lock().unwrap_or_else(PoisonError::into_inner);
        set.retain(|entry| entry.digest != digest && entry.verified.is_valid_at(now));
        if set.len() == WAYS {
            set.remove(0);
        }
        set.push(JwtCacheEntry { digest, verified });
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.sets.iter().map(|set| set.lock().unwrap().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    fn digest(number: u64) -> [u8; 32] {
        Sha256::digest(number.to_be_bytes()).into()
    }

    fn until(secs: u64) -> VerifiedToken {
        let (from, until) = (Micros::from_secs(10), Micros::from_secs(secs));
        VerifiedToken { user: Some("a".into()), tier: None, from, until }
    }

    #[test]
    fn any_number_of_tokens_takes_bounded_room() {
        let cache = JwtCache::new();
        let now = Micros::from_secs(10);
        for number in 0..50_000 {
            cache.put(digest(number), until(20), now);
            assert_eq!(cache.get(&digest(number), now), Some(until(20)), "the newest stays");
        }
        assert!((4_000..=SETS * WAYS).contains(&cache.len()), "{}", cache.len());
    }

    #[test]
    fn a_token_is_known_while_it_counts() {
        let cache = JwtCache::new();
        cache.put(digest(1), until(20), Micros::from_secs(10));
        for (secs, known) in [(9, false), (10, true), (19, true), (20, false), (10, true)] {
            assert_eq!(cache.get(&digest(1), Micros::from_secs(secs)).is_some(), known, "{secs}");
        }
        assert_eq!(cache.get(&digest(2), Micros::from_secs(10)), None);
        cache.put(digest(1), until(30), Micros::from_secs(10));
        assert_eq!(cache.len(), 1, "once");
    }
}
