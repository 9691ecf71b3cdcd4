//! Facts as rules see them: the path in one spelling, the address in one form, the tier looked up.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

use crate::facts::{Facts, Headers};
use crate::host::normalize_host;
use crate::identify::Identify;
use crate::identify::api_key::{HashedApiKey, hash_api_key};
use crate::matcher::{MatchBudget, to_uppercase};
use crate::path::{Spelling, Spellings};

/// The facts of one request, made ready once for all rules.
pub(crate) struct NormalizedFacts<'a> {
    pub(crate) facts: &'a Facts<'a>,
    /// The method in capitals, because some servers accept `post` for POST.
    method: Option<Cow<'a, str>>,
    path: Option<Spellings<'a>>,
    /// The host in its one spelling, if a rule looks at it.
    host: Option<Cow<'a, str>>,
    /// The address; an IPv4-mapped IPv6 address is an IPv4 address.
    pub(crate) ip: Option<IpAddr>,
    /// Length of the prefix, if the client is a network that is counted as one.
    pub(crate) ip_prefix: Option<u8>,
    /// The tier that the caller states, or that the rules assign.
    pub(crate) tier: Option<&'a str>,
    /// The API key without the scheme of `Authorization`.
    api_key: Option<&'a str>,
    /// True if the API key is the user's, so that its hash is the user.
    is_user_by_api_key: bool,
    /// Only where a key asks for it.
    hashed_api_key: OnceCell<HashedApiKey>,
    /// The budget for comparing the request with expressions.
    pub(crate) match_budget: MatchBudget,
}

impl<'a> NormalizedFacts<'a> {
    pub(crate) fn new(facts: &'a Facts<'a>, identify: &Identify) -> NormalizedFacts<'a> {
        let api_key = facts.api_key.map(|api_key| identify.without_scheme(api_key));
        NormalizedFacts {
            facts,
            method: facts.method.map(|method| to_uppercase(Cow::Borrowed(method))),
            path: facts.path.map(Spellings::of),
            ip: facts.ip.map(|ip| ip.to_canonical()),
            ip_prefix: facts.ip_prefix,
            tier: None,
            host: None,
            api_key: api_key.filter(|api_key| !api_key.is_empty()),
            is_user_by_api_key: identify.finds_users_by_api_key(),
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
    /// user. Where users are identified by their API key, a stated API key names the user as the header does.
    pub(crate) fn user(&self) -> Option<&str> {
        let stated = self.facts.user.filter(|user| !user.is_empty());
        match stated {
            None if self.is_user_by_api_key => self.hashed_api_key(),
            stated => stated,
        }
    }

    /// The same facts with the host, for rules that look at it.
    pub(crate) fn with_host(self) -> NormalizedFacts<'a> {
        let of_headers = |headers: &'a dyn Headers| match headers.header("host")? {
            Cow::Borrowed(host) => normalize_host(host),
            Cow::Owned(host) => normalize_host(&host).map(|host| Cow::Owned(host.into_owned())),
        };
        let host = match self.facts.host {
            Some(host) => normalize_host(host),
            None => self.facts.headers.and_then(of_headers),
        };
        NormalizedFacts { host, ..self }
    }

    /// The host that the request is for, in its one spelling.
    pub(crate) fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// Returns true if the address, or all of the network, is in one of these.
    pub(crate) fn is_in(&self, nets: &[IpNet]) -> bool {
        let whole = |net: &IpNet| self.ip_prefix.is_none_or(|prefix| net.prefix_len() <= prefix);
        self.ip.is_some_and(|ip| nets.iter().any(|net| whole(net) && net.contains(&ip)))
    }

    pub(crate) fn api_key(&self) -> Option<&'a str> {
        self.api_key
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
