//! Facts as rules see them: the path in one spelling, the address in one form, the tier looked up.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

use crate::facts::Facts;
use crate::identify::api_key::{HashedApiKey, hash_api_key};
use crate::matcher::{MatchBudget, to_uppercase};
use crate::path::{Spelling, Spellings};

/// The facts of one request, made ready once for all rules.
pub(crate) struct NormalizedFacts<'a> {
    pub(crate) facts: &'a Facts<'a>,
    /// The method in capitals, because some servers accept `post` for POST.
    method: Option<Cow<'a, str>>,
    path: Option<Spellings<'a>>,
    /// The address; an IPv4-mapped IPv6 address is an IPv4 address.
    pub(crate) ip: Option<IpAddr>,
    /// Length of the prefix, if the client is a network that is counted as one.
    pub(crate) ip_prefix: Option<u8>,
    /// The tier that the caller states, or that the rules assign.
    pub(crate) tier: Option<&'a str>,
    /// Only where a key asks for it.
    hashed_api_key: OnceCell<HashedApiKey>,
    /// The budget for comparing the request with expressions.
    pub(crate) match_budget: MatchBudget,
}

impl<'a> NormalizedFacts<'a> {
    pub(crate) fn new(facts: &'a Facts<'a>, tier: Option<&'a str>) -> NormalizedFacts<'a> {
        NormalizedFacts {
            facts,
            method: facts.method.map(|method| to_uppercase(Cow::Borrowed(method))),
            path: facts.path.map(Spellings::of),
            ip: facts.ip.map(|ip| ip.to_canonical()),
            ip_prefix: facts.ip_prefix,
            tier,
            hashed_api_key: OnceCell::new(),
            match_budget: MatchBudget::default(),
        }
    }

    pub(crate) fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// Number of spellings of the path that rules are matched against; 1 also without a path.
    pub(crate) fn spelling_count(&self) -> usize {
        self.path.as_ref().map_or(1, Spellings::len)
    }

    /// A spelling of the path by its number; `None` if there is no path.
    pub(crate) fn spelling(&self, number: usize) -> Option<&Spelling<'_>> {
        self.path.as_ref()?.get(number)
    }

    /// The user. An empty name is no name: a proxy that sends the header without a value names no
    /// user.
    pub(crate) fn user(&self) -> Option<&'a str> {
        self.facts.user.filter(|user| !user.is_empty())
    }

    /// Returns true if the address, or all of the network, is in one of these.
    pub(crate) fn is_in(&self, nets: &[IpNet]) -> bool {
        let whole = |net: &IpNet| self.ip_prefix.is_none_or(|prefix| net.prefix_len() <= prefix);
        self.ip.is_some_and(|ip| nets.iter().any(|net| whole(net) && net.contains(&ip)))
    }

    pub(crate) fn api_key(&self) -> Option<&'a str> {
        self.facts.api_key.filter(|key| !key.is_empty())
    }

    /// The API key as keys have it: nobody who sees a key may be able to use it.
    pub(crate) fn hashed_api_key(&self) -> Option<&str> {
        let api_key = self.api_key()?;
        Some(self.hashed_api_key.get_or_init(|| hash_api_key(api_key)))
    }
}

/// The network that counts as one caller: an IPv4 address itself, or a prefix of IPv6, because one
/// customer usually controls all of it.
pub(crate) fn network_of(ip: IpAddr, ipv6_prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(ipv6_prefix)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(address) & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_a_network() {
        let cases = [
            ("192.0.2.1", 64, "192.0.2.1"),
            ("2001:db8::1", 64, "2001:db8::"),
            ("2001:db8:0:0:ffff::1", 64, "2001:db8::"),
            ("2001:db8:0:1::1", 64, "2001:db8:0:1::"),
            ("2001:db8:0:1::1", 48, "2001:db8::"),
            ("2001:db8::1", 128, "2001:db8::1"),
            ("2001:db8::1", 0, "::"),
        ];
        for (ip, prefix, want) in cases {
            assert_eq!(network_of(ip.parse().unwrap(), prefix), want.parse::<IpAddr>().unwrap());
        }
    }
}
