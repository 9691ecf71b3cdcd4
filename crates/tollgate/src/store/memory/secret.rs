//! The secret hash of keys.
//!
//! Clients choose their keys, so an attacker must not be able to choose their slots: keys are
//! hashed with SipHash-1-3 under a random 128-bit secret made with the store. Only the 64-bit hash
//! is stored, so long keys cost no memory, and the table holds no key.

/// Two random words that never leave the store, except in a snapshot; kept as the state in which
/// hashing begins.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct HashSecret(SipState);

impl std::fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl HashSecret {
    /// A new secret from the system's random numbers.
    pub(crate) fn random() -> HashSecret {
        let word = || getrandom::u64().expect("the system gives random numbers");
        HashSecret::from_words([word(), word()])
    }

    pub(crate) fn from_words([k0, k1]: [u64; 2]) -> HashSecret {
        HashSecret(SipState {
            a: k0 ^ SIP_A,
            b: k1 ^ SIP_B,
            c: k0 ^ 0x6c79_6765_6e65_7261,
            d: k1 ^ 0x7465_6462_7974_6573,
        })
    }

    pub(crate) fn words(&self) -> [u64; 2] {
        [self.0.a ^ SIP_A, self.0.b ^ SIP_B]
    }

    /// The hash of a key.
    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        let mut v = self.0;
        let (words, tail) = key.as_chunks::<8>();
        for word in words {
            v.absorb(u64::from_le_bytes(*word));
        }
        v.absorb(last_word(tail, key.len()));
        v.c ^= 0xff;
        for _ in 0..3 {
            v.round();
        }
        v.a ^ v.b ^ v.c ^ v.d
    }
}

/// The last 0–7 bytes, and the length of the key in the top byte.
#[inline]
fn last_word(tail: &[u8], length: usize) -> u64 {
    let count = tail.len();
    let bytes = if count >= 4 {
        // Two overlapping reads cover 4 to 7 bytes without a loop.
        let low = u32::from_le_bytes(tail[..4].try_into().expect("four bytes"));
        let high = u32::from_le_bytes(tail[count - 4..].try_into().expect("four bytes"));
        u64::from(low) | u64::from(high) << (8 * (count - 4))
    } else if count > 0 {
        let byte = |index: usize| u64::from(tail[index]) << (8 * index);
        byte(0) | byte(count / 2) | byte(count - 1)
    } else {
        0
    };
    bytes | (length as u64) << 56
}

const SIP_A: u64 = 0x736f_6d65_7073_6575;
const SIP_B: u64 = 0x646f_7261_6e64_6f6d;

#[derive(Clone, Copy, PartialEq, Eq)]
struct SipState {
    a: u64,
    b: u64,
    c: u64,
    d: u64,
}

impl SipState {
    #[inline(always)]
    fn absorb(&mut self, word: u64) {
        self.d ^= word;
        self.round();
        self.a ^= word;
    }

    #[inline(always)]
    fn round(&mut self) {
        self.a = self.a.wrapping_add(self.b);
        self.c = self.c.wrapping_add(self.d);
        self.b = self.b.rotate_left(13) ^ self.a;
        self.d = self.d.rotate_left(16) ^ self.c;
        self.a = self.a.rotate_left(32);
        self.c = self.c.wrapping_add(self.b);
        self.a = self.a.wrapping_add(self.d);
        self.b = self.b.rotate_left(17) ^ self.c;
        self.d = self.d.rotate_left(21) ^ self.a;
        self.c = self.c.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_standard_library() {
        use std::hash::{DefaultHasher, Hasher};
        // `DefaultHasher::new` is SipHash-1-3 under the key 0, 0.
        let secret = HashSecret::from_words([0, 0]);
        let bytes: Vec<u8> = (0..=255).collect();
        for length in 0..=bytes.len() {
            let mut reference = DefaultHasher::new();
            reference.write(&bytes[..length]);
            assert_eq!(secret.hash(&bytes[..length]), reference.finish(), "{length} bytes");
        }
    }

    #[test]
    fn secrets_differ() {
        assert_ne!(HashSecret::random(), HashSecret::random());
        assert_eq!(format!("{:?}", HashSecret::random()), "Secret");
    }
}
