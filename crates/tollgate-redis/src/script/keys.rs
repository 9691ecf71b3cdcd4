//! Names of keys: `PREFIX:1:{hash of the subject}:limit`.
//!
//! 1 is the format of values. Whose limit it is shows only as 128 bits of a hash, under a secret if
//! there is one. All limits of one subject are in one slot of a cluster: the hash stands in braces.
//! With a number of slots in the store's URL, one of as many tags stands in braces and the hash behind it,
//! `PREFIX:1:{t17}HASH:limit`, so that requests of different subjects can share a script call.

use std::num::NonZeroU16;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use tollgate::Limit;
use tollgate_shared::blocks::KeyHash;

use crate::options::RedisOptions;

/// Makes names.
#[derive(Debug)]
pub(crate) struct RedisKeyNamer {
    /// Up to the opening brace.
    prefix: Vec<u8>,
    secret: Option<Hmac<Sha256>>,
    /// Hash tags that subjects share, with their braces; none if each subject has its own. Bound:
    /// [`SLOTS_MAX`].
    tags: Vec<Box<[u8]>>,
}

/// The most slots that a URL can ask for.
pub(crate) const SLOTS_MAX: u16 = 1_024;
/// Number of slots in a cluster.
const CLUSTER_SLOTS: u16 = 16_384;

/// 128 bits of the hash of a subject, as text, and the number of its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubjectHash {
    text: [u8; 22],
    /// Index of the shared tag; 0 if each subject has its own.
    tag: u16,
}

impl RedisKeyNamer {
    /// Makes names with as many shared tags as `slots` says; without it, each subject has its own.
    pub(crate) fn new(options: &RedisOptions, slots: Option<NonZeroU16>) -> RedisKeyNamer {
        let secret = options.key_secret.as_ref();
        RedisKeyNamer {
            prefix: format!("{}:1:", options.prefix).into_bytes(),
            tags: slots.map_or(Vec::new(), shared_tags),
            secret: secret.map(|secret| {
                Hmac::new_from_slice(secret).expect("a secret of any length is a key")
            }),
        }
    }

    /// 128 bits of the hash of a subject.
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        let hash: [u8; 32] = match &self.secret {
            Some(secret) => secret.clone().chain_update(key).finalize().into_bytes().into(),
            None => Sha256::digest(key).into(),
        };
        *hash.first_chunk().expect("32 bytes have a first half")
    }

    pub(crate) fn subject(&self, key: &[u8]) -> SubjectHash {
        self.subject_of(&self.hash(key))
    }

    /// The subject that has this hash.
    pub(crate) fn subject_of(&self, hash: &KeyHash) -> SubjectHash {
        let mut text = [0; 22];
        base64url(hash, &mut text);
        let bits = u32::from_le_bytes(*hash.first_chunk().expect("a hash has 16 bytes"));
        // Below the number of tags, each as likely as the others.
        let tag = ((u64::from(bits) * self.tags.len() as u64) >> 32) as u16;
        SubjectHash { text, tag }
    }

    /// The key of a limit's state. Within one request, limits of one id with different numbers have
    /// different `twin`s; the first has 0.
    pub(crate) fn key(&self, subject: SubjectHash, limit: &Limit, twin: u8) -> Vec<u8> {
        let mut id = [0; 11];
        base64url(&limit.id().to_be_bytes(), &mut id);
        let mut key = Vec::with_capacity(self.prefix.len() + 48);
        key.extend_from_slice(&self.prefix);
        match self.tags.get(usize::from(subject.tag)) {
            Some(tag) => {
                key.extend_from_slice(tag);
                key.extend_from_slice(&subject.text);
            }
            None => {
                key.push(b'{');
                key.extend_from_slice(&subject.text);
                key.push(b'}');
            }
        }
        key.push(b':');
        key.extend_from_slice(&id);
        if twin > 0 {
            key.extend_from_slice(format!(":{twin}").as_bytes());
        }
        key
    }
}

/// The tags that subjects share, with their braces: `{t0}` and so on, chosen so that the cluster's slots,
/// divided into as many equal ranges, have one tag in each. So nodes with equal ranges of slots have equal
/// numbers of tags.
fn shared_tags(slots: NonZeroU16) -> Vec<Box<[u8]>> {
    let mut tags = vec![None; usize::from(slots.get())];
    let mut missing = tags.len();
    for number in 0_u32.. {
        let tag = format!("{{t{number}}}").into_bytes();
        let range = usize::from(slot(&tag)) * tags.len() / usize::from(CLUSTER_SLOTS);
        if tags[range].is_none() {
            tags[range] = Some(tag.into());
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
    }
    tags.into_iter().flatten().collect()
}

/// The slot of a key in a cluster: of what stands between the first braces, if there is anything.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let open = key.iter().position(|byte| *byte == b'{');
    let tag = open.and_then(|open| {
        let length = key[open + 1..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &key[open + 1..][..length])
    });
    crc16(tag.unwrap_or(key)) % CLUSTER_SLOTS
}

/// The CRC that a cluster goes by: polynomial 0x1021, from 0.
fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let (mut crc, mut bit) = ((index as u16) << 8, 0);
            while bit < 8 {
                crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
                bit += 1;
            }
            table[index] = crc;
            index += 1;
        }
        table
    };
    bytes.iter().fold(0, |crc, byte| crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

/// Writes as many characters as `text` has room for: six bits each, the last filled up with zeros.
fn base64url(bytes: &[u8], text: &mut [u8]) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for (index, character) in text.iter_mut().enumerate() {
        let (at, shift) = (index * 6 / 8, index * 6 % 8);
        let next = bytes.get(at + 1).copied().unwrap_or(0);
        let sixteen = u16::from_be_bytes([bytes[at], next]);
        *character = ALPHABET[usize::from(sixteen >> (10 - shift) & 63)];
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_what_the_documents_say() {
        let options = RedisOptions { prefix: "tg".parse().unwrap(), ..RedisOptions::default() };
        let limit = Limit::per_minute(100).burst(20).name("api").build().unwrap();
        let names = RedisKeyNamer::new(&options, None);
        // printf user:42 | sha256sum | cut -c-32 | xxd -r -p | basenc --base64url
        let key = names.key(names.subject(b"user:42"), &limit, 0);
        let text = String::from_utf8(key).unwrap();
        assert_eq!(text, "tg:1:{6j_UO-HlfWLhY9rhn8dAvQ}:d6s7yoQk5Qc");
        let salted = names.key(names.subject(b"user:42"), &limit, 2);
        assert_eq!(String::from_utf8(salted).unwrap(), format!("{text}:2"));
        let secret = RedisOptions { key_secret: Some(b"secret".to_vec()), ..options };
        // printf user:42 | openssl dgst -sha256 -hmac secret -binary | head -c 16 | basenc --base64url
        let subject = RedisKeyNamer::new(&secret, None).subject(b"user:42");
        assert_eq!(std::str::from_utf8(&subject.text), Ok("SqdVGOxU47NBnmXarZBrkg"));
    }

    #[test]
    fn subjects_share_as_many_tags_as_slots_are_asked_for() {
        let options = RedisOptions { prefix: "tg".parse().unwrap(), ..RedisOptions::default() };
        let limit = Limit::per_minute(100).burst(20).name("api").build().unwrap();
        let key = |slots, user: &str| {
            let names = RedisKeyNamer::new(&options, NonZeroU16::new(slots));
            let key = names.key(names.subject(user.as_bytes()), &limit, 0);
            (slot(&key), String::from_utf8(key).unwrap())
        };
        let (_, shared) = key(3, "user:42");
        assert_eq!(shared, "tg:1:{t2}6j_UO-HlfWLhY9rhn8dAvQ:d6s7yoQk5Qc");
        for slots in [1, 2, 3, 16, 64, SLOTS_MAX] {
            let mut used = HashSet::new();
            for user in 0..20 * usize::from(slots) {
                used.insert(key(slots, &format!("user:{user}")).0);
            }
            assert_eq!(used.len(), usize::from(slots));
            let ranges: HashSet<u32> = used
                .iter()
                .map(|used| u32::from(*used) * u32::from(slots) / u32::from(CLUSTER_SLOTS))
                .collect();
            assert_eq!(ranges.len(), usize::from(slots), "one in each range");
        }
    }

    #[test]
    fn text_of_bytes() {
        for (bytes, want) in [
            (&[0_u8; 16][..], "AAAAAAAAAAAAAAAAAAAAAA"),
            (&[255; 16], "_____________________w"),
            (b"tollgate redis!!", "dG9sbGdhdGUgcmVkaXMhIQ"),
        ] {
            let mut text = [0; 22];
            base64url(bytes, &mut text);
            assert_eq!(std::str::from_utf8(&text), Ok(want));
        }
    }

    #[test]
    fn slots_are_those_of_a_cluster() {
        // redis-cli cluster keyslot KEY
        for (key, want) in [
            ("123456789", 12_739),
            ("foo{hash_tag}", 2_515),
            ("{hash_tag}", 2_515),
            ("foo{}{bar}", 8_363),
            ("foo{bar}{zap}", 5_061),
        ] {
            assert_eq!(slot(key.as_bytes()), want, "{key}");
        }
    }
}
