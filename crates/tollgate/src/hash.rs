//! Hashes: a fixed public one for identities, a secret one for keys (in `store::memory`).

/// FNV-1a over length-prefixed parts: the same in every process and every version. It identifies
/// limits and staggers windows. For input that an attacker chooses, it only decides which of 64
/// locks a waiter takes for a moment; keys are looked up by the secret hash of the store.
pub(crate) fn public_hash(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut absorb = |bytes: &[u8]| {
        for &byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    for part in parts {
        absorb(&(part.len() as u64).to_le_bytes());
        absorb(part);
    }
    // FNV leaves the high bits of short input poorly mixed; one multiply-xor round mixes them.
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^ hash >> 32
}

#[cfg(test)]
mod tests {
    use super::public_hash;

    #[test]
    fn parts_have_lengths_not_separators() {
        assert_ne!(public_hash(&[b"a_b", b"c"]), public_hash(&[b"a", b"b_c"]));
        assert_ne!(public_hash(&[b"ab"]), public_hash(&[b"a", b"b"]));
    }
}
