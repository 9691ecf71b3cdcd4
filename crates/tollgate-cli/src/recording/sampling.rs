//! `SampleShare`: the share of callers whose requests are recorded. A caller is in the share or not, whatever
//! it sends, so that every request of a recorded caller is there and its limits can be replayed.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};

use tollgate_rules::Facts;

/// The smallest share: one caller in 2^32.
const HALVINGS_MAX: u32 = 32;

/// The callers in a share are those whose hash begins with this many zero bits: each bit halves the share, and
/// a smaller share is part of every larger one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SampleShare(u32);

impl SampleShare {
    /// All callers.
    pub(crate) const ALL: SampleShare = SampleShare(0);

    /// Hardly any caller: nothing wants to be recorded.
    pub(crate) const NONE: SampleShare = SampleShare(64);

    pub(crate) fn includes(self, caller: u64) -> bool {
        caller.leading_zeros() >= self.0
    }

    /// Half of this share; the smallest share stays as it is.
    pub(crate) fn halved(self) -> SampleShare {
        SampleShare((self.0 + 1).min(HALVINGS_MAX))
    }

    /// Twice this share; all callers stay all callers.
    pub(crate) fn doubled(self) -> SampleShare {
        SampleShare(self.0.saturating_sub(1))
    }

    pub(crate) fn is_smallest(self) -> bool {
        self.0 == HALVINGS_MAX
    }

    /// The n of "one caller in n".
    pub(crate) fn one_in(self) -> u64 {
        1 << self.0
    }
}

/// The share in force, which threads that decide read.
#[derive(Debug, Default)]
pub(super) struct CurrentShare(AtomicU32);

impl CurrentShare {
    pub(super) fn get(&self) -> SampleShare {
        SampleShare(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, share: SampleShare) {
        self.0.store(share.0, Ordering::Relaxed);
    }
}

/// Hashes callers under a secret of this process, so that nobody can choose to be recorded or not.
#[derive(Debug, Default)]
pub(super) struct CallerSampler(RandomState);

impl CallerSampler {
    /// The hash of the caller: of its user, else its API key, else its address. Requests without any of these
    /// are one caller. An IPv6 caller is its network, as in keys.
    pub(super) fn hash(&self, facts: &Facts<'_>, ipv6_prefix: u8) -> u64 {
        let mut hasher = self.0.build_hasher();
        let named = |text: Option<&'_ str>| text.is_some_and(|text| !text.is_empty());
        if named(facts.user) {
            hasher.write_u8(b'u');
            hasher.write(facts.user.unwrap_or_default().as_bytes());
        } else if named(facts.api_key) {
            hasher.write_u8(b'k');
            hasher.write(facts.api_key.unwrap_or_default().as_bytes());
        } else {
            match facts.ip.map(|ip| ip.to_canonical()) {
                Some(IpAddr::V4(ip)) => hasher.write_u32(ip.to_bits()),
                Some(IpAddr::V6(ip)) => hasher.write_u128(network_bits(ip, ipv6_prefix)),
                None => hasher.write_u8(0),
            }
        }
        hasher.finish()
    }
}

/// The bits of an address that identify one caller.
pub(super) fn network_bits(ip: Ipv6Addr, prefix: u8) -> u128 {
    ip.to_bits() & u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_share_is_part_of_a_larger_one() {
        let sampler = CallerSampler::default();
        let users: Vec<String> = (0..20_000).map(|user| user.to_string()).collect();
        let hash =
            |user: &String| sampler.hash(&Facts { user: Some(user), ..Facts::default() }, 64);
        let (mut share, mut before) = (SampleShare::ALL, users.len());
        for halvings in 1..=6 {
            let smaller = share.halved();
            assert!(
                users
                    .iter()
                    .all(|user| share.includes(hash(user)) || !smaller.includes(hash(user)))
            );
            let kept = users.iter().filter(|user| smaller.includes(hash(user))).count();
            let want = 20_000 >> halvings;
            assert!(kept.abs_diff(want) * 4 < want, "{kept} of {before}, about {want} expected");
            assert_eq!((smaller.one_in(), smaller.doubled()), (1 << halvings, share));
            (share, before) = (smaller, kept);
        }
        assert_eq!(SampleShare::ALL.doubled(), SampleShare::ALL);
        let smallest = (0..100).fold(SampleShare::ALL, |share, _| share.halved());
        assert!(smallest.is_smallest() && smallest.includes(0) && !smallest.includes(u64::MAX));
    }

    #[test]
    fn a_caller_is_its_user_else_its_key_else_its_network() {
        let sampler = CallerSampler::default();
        let ip = |text: &str| text.parse().ok();
        let of = |user, api_key, text| {
            sampler.hash(&Facts { user, api_key, ip: ip(text), ..Facts::default() }, 64)
        };
        assert_eq!(of(Some("a"), Some("k"), "192.0.2.1"), of(Some("a"), None, "192.0.2.2"));
        assert_eq!(of(None, Some("k"), "192.0.2.1"), of(Some(""), Some("k"), "192.0.2.2"));
        assert_ne!(of(Some("k"), None, ""), of(None, Some("k"), ""));
        assert_eq!(of(None, None, "192.0.2.1"), of(None, None, "::ffff:192.0.2.1"));
        assert_ne!(of(None, None, "192.0.2.1"), of(None, None, "192.0.2.2"));
        assert_eq!(of(None, None, "2001:db8::1"), of(None, None, "2001:db8::2"));
        assert_ne!(of(None, None, "2001:db8::1"), of(None, None, "2001:db8:0:1::1"));
    }
}
