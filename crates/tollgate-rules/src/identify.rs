//! Who is calling, from an HTTP request: address, user, API key and tier.
//!
//! Whatever a request says about its sender is a claim. Claims count only if the peer at the other
//! end of the connection is trusted; the others are ignored as if they had not been sent. The
//! address is found by walking a forwarding header from the right, the end that trusted proxies
//! write, and stopping at the first address that is not a trusted proxy's: what stands left of it
//! was written by strangers.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::facts::{Facts, Headers};
use crate::matcher::contains;

/// How callers are recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identify {
    /// Whose forwarding, user and tier headers count.
    pub trusted_peers: Vec<IpNet>,
    /// The header that names the user, in small letters.
    pub user_header: Option<Box<str>>,
    /// The header that carries an API key, in small letters.
    pub api_key_header: Option<Box<str>>,
    /// The header that names the tier, in small letters.
    pub tier_header: Option<Box<str>>,
    /// The tier of users known by name.
    pub tier_of_user: HashMap<Box<str>, Box<str>>,
    /// The tier of everybody else.
    pub default_tier: Option<Box<str>>,
    /// Where the client's address is.
    pub address: AddressFrom,
    /// How many bits of an IPv6 address are one caller.
    pub ipv6_prefix: u8,
}

/// Where the client's address is. Exactly one place: whoever believes two headers believes whichever
/// the client chose to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressFrom {
    /// The peer itself.
    Peer,
    /// `X-Forwarded-For`.
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
    /// Another header, in small letters, that has one address.
    Header(Box<str>),
}

impl Default for Identify {
    /// A proxy on this machine may say for whom it asks; users and tiers are nobody's to claim until
    /// a rules file says whose.
    fn default() -> Identify {
        let loopback = ["127.0.0.0/8", "::1/128"];
        Identify {
            trusted_peers: loopback.map(|net| net.parse().expect("a network")).into(),
            user_header: None,
            api_key_header: None,
            tier_header: None,
            tier_of_user: HashMap::new(),
            default_tier: None,
            address: AddressFrom::XForwardedFor,
            ipv6_prefix: 64,
        }
    }
}

/// Who is calling.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity<'a> {
    /// The client's address.
    pub ip: Option<IpAddr>,
    /// The user.
    pub user: Option<Cow<'a, str>>,
    /// The API key.
    pub api_key: Option<Cow<'a, str>>,
    /// The tier that a trusted peer named.
    pub tier: Option<Cow<'a, str>>,
}

impl Identify {
    /// Whether this peer's claims count.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        contains(&self.trusted_peers, peer)
    }

    /// Who is calling.
    pub fn identify<'a>(&self, peer: IpAddr, headers: &'a dyn Headers) -> Identity<'a> {
        let peer = peer.to_canonical();
        let header = |name: &Option<Box<str>>| headers.only(name.as_deref()?);
        // A key is the caller's own secret, not a claim about somebody: it counts from anyone.
        // Sent twice it is still a key: to take it for none would set its owner free.
        let api_key = self.api_key_header.as_deref().and_then(|name| headers.header(name));
        if !self.trusts(peer) {
            return Identity { ip: Some(peer), api_key, ..Identity::default() };
        }
        Identity {
            ip: Some(self.client_of(peer, headers)),
            user: header(&self.user_header),
            api_key,
            tier: header(&self.tier_header),
        }
    }

    /// Calls `with` with facts that somebody states, completed: who is calling follows from the header
    /// fields where the facts do not say so themselves. As everywhere, user and tier only if the
    /// address they name is trusted; the address itself stays as stated.
    pub fn complete<T>(&self, stated: Facts<'_>, with: impl FnOnce(Facts<'_>) -> T) -> T {
        let (Some(ip), Some(headers)) = (stated.ip, stated.headers) else { return with(stated) };
        let identity = self.identify(ip, headers);
        with(Facts {
            user: stated.user.or(identity.user.as_deref()),
            tier: stated.tier.or(identity.tier.as_deref()),
            api_key: stated.api_key.or(identity.api_key.as_deref()),
            ..stated
        })
    }

    /// The client that a trusted peer asks for.
    fn client_of(&self, peer: IpAddr, headers: &dyn Headers) -> IpAddr {
        let (name, read): (&str, fn(&str) -> Option<IpAddr>) = match &self.address {
            AddressFrom::Peer => return peer,
            AddressFrom::XForwardedFor => ("x-forwarded-for", address),
            AddressFrom::Forwarded => ("forwarded", forwarded_for),
            AddressFrom::Header(name) => (name, address),
        };
        let Some(list) = headers.joined(name) else { return peer };
        if let AddressFrom::Header(_) = self.address {
            // One address, not a chain: two of them are somebody's trick.
            return read(&list).unwrap_or(peer);
        }
        let list = end_of(&list);
        let mut client = peer;
        for entry in list.rsplit(',').take(FORWARDED_ENTRIES_MAX) {
            let Some(ip) = read(entry) else { break };
            client = ip;
            if !self.trusts(ip) {
                break;
            }
        }
        client
    }
}

/// The end of a list, in whole entries. Whatever the client wrote at its beginning, what trusted
/// proxies wrote is at its end.
fn end_of(list: &str) -> &str {
    let start = list.len().saturating_sub(FORWARDED_BYTES_MAX);
    if start == 0 {
        return list;
    }
    let end = &list[list.floor_char_boundary(start)..];
    end.split_once(',').map_or("", |(_, whole)| whole)
}

/// How much of a forwarding list is looked at, from its end: no chain of trusted proxies is longer.
const FORWARDED_BYTES_MAX: usize = 2_048;
/// The same for the number of its entries.
const FORWARDED_ENTRIES_MAX: usize = 32;

/// The address of an entry: bare, in brackets, with or without a port.
fn address(entry: &str) -> Option<IpAddr> {
    let entry = entry.trim();
    let bracketed = entry.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let bare = bracketed.unwrap_or(entry);
    let parsed = bare.parse().ok();
    parsed
        .or_else(|| entry.parse::<SocketAddr>().ok().map(|socket| socket.ip()))
        .map(|ip: IpAddr| ip.to_canonical())
}

/// The `for` of one element of `Forwarded`: `for="[2001:db8::1]:4711";proto=https`.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let pairs = element.split(';').filter_map(|pair| pair.trim().split_once('='));
    let mut values = pairs.filter(|(name, _)| name.trim().eq_ignore_ascii_case("for"));
    let (_, value) = values.next()?;
    if values.next().is_some() {
        return None;
    }
    let value = value.trim();
    let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    address(quoted.unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identify() -> Identify {
        Identify {
            trusted_peers: vec!["10.0.0.0/8".parse().unwrap()],
            user_header: Some("x-user-id".into()),
            tier_header: Some("x-tier".into()),
            ..Identify::default()
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_address_is_found_from_the_right() {
        // Peer, header, client.
        let cases = [
            ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
            ("10.0.0.1", "1.1.1.1, 203.0.113.9", "203.0.113.9"),
            ("10.0.0.1", "1.1.1.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
            ("10.0.0.1", "10.0.0.3,10.0.0.2", "10.0.0.3"),
            ("203.0.113.1", "1.1.1.1", "203.0.113.1"),
            ("10.0.0.1", "", "10.0.0.1"),
            ("10.0.0.1", "garbage", "10.0.0.1"),
            ("10.0.0.1", "1.1.1.1, garbage", "10.0.0.1"),
            ("10.0.0.1", "garbage, 10.0.0.2", "10.0.0.2"),
            ("10.0.0.1", "203.0.113.9:8080", "203.0.113.9"),
            ("10.0.0.1", "[2001:db8::1]:443", "2001:db8::1"),
            ("10.0.0.1", "[2001:db8::1]", "2001:db8::1"),
            ("10.0.0.1", "::ffff:203.0.113.9", "203.0.113.9"),
            ("::ffff:10.0.0.1", "203.0.113.9", "203.0.113.9"),
            ("10.0.0.1", "unknown", "10.0.0.1"),
        ];
        for (peer, list, want) in cases {
            let headers = vec![("X-Forwarded-For", list)];
            let got = identify().identify(ip(peer), &headers);
            assert_eq!(got.ip, Some(ip(want)), "{peer} {list:?}");
        }
        // The client writes the left end: however much it writes there, its address is found.
        for left in ["1.1.1.1,".repeat(40), "x".repeat(5_000) + ",", "\u{fffd},".into()] {
            let list = left + "203.0.113.9, 10.0.0.2";
            let headers = vec![("X-Forwarded-For", list.as_str())];
            let got = identify().identify(ip("10.0.0.1"), &headers);
            assert_eq!(got.ip, Some(ip("203.0.113.9")), "{} bytes", list.len());
        }
    }

    #[test]
    fn lines_are_one_list() {
        let headers = vec![("X-Forwarded-For", "1.1.1.1"), ("X-Forwarded-For", "203.0.113.9")];
        let got = identify().identify(ip("10.0.0.1"), &headers);
        assert_eq!(got.ip, Some(ip("203.0.113.9")));
    }

    #[test]
    fn one_header_is_believed() {
        let headers =
            vec![("X-Forwarded-For", "1.1.1.1"), ("Forwarded", "for=203.0.113.9;proto=https")];
        let forwarded = Identify { address: AddressFrom::Forwarded, ..identify() };
        assert_eq!(forwarded.identify(ip("10.0.0.1"), &headers).ip, Some(ip("203.0.113.9")));
        assert_eq!(identify().identify(ip("10.0.0.1"), &headers).ip, Some(ip("1.1.1.1")));
        let quoted = vec![("Forwarded", "for=1.1.1.1, For=\"[2001:db8::1]:4711\"")];
        let got = forwarded.identify(ip("10.0.0.1"), &quoted);
        assert_eq!(got.ip, Some(ip("2001:db8::1")));
        for hidden in ["for=_hidden", "for=unknown", "proto=https", "for=1.1.1.1;for=2.2.2.2"] {
            let headers = vec![("Forwarded", hidden)];
            let got = forwarded.identify(ip("10.0.0.1"), &headers);
            assert_eq!(got.ip, Some(ip("10.0.0.1")), "{hidden}");
        }
    }

    #[test]
    fn strangers_cannot_name_users_or_tiers() {
        let headers = vec![("X-User-Id", "42"), ("X-Tier", "enterprise")];
        let stranger = identify().identify(ip("203.0.113.1"), &headers);
        assert_eq!((stranger.user, stranger.tier), (None, None));
        let twice = vec![("X-User-Id", "forged"), ("X-User-Id", "42"), ("X-Tier", "pro")];
        let added = identify().identify(ip("10.0.0.1"), &twice);
        assert_eq!((added.user, added.tier.as_deref()), (None, Some("pro")), "whose, of two?");
        let proxy = identify().identify(ip("10.0.0.1"), &headers);
        assert_eq!(
            (proxy.user.as_deref(), proxy.tier.as_deref()),
            (Some("42"), Some("enterprise"))
        );
    }

    #[test]
    fn stated_facts_win_over_headers_and_are_completed_by_them() {
        let identify = Identify { api_key_header: Some("x-api-key".into()), ..identify() };
        let headers = vec![("X-User-Id", "42"), ("X-Tier", "pro"), ("X-Api-Key", "k")];
        let headers: &dyn Headers = &headers;
        let complete = |ip: Option<&str>, user, headers| {
            let stated = Facts { ip: ip.map(self::ip), user, headers, ..Facts::default() };
            identify.complete(stated, |facts| {
                assert_eq!(facts.ip, stated.ip, "the address stays");
                [facts.user, facts.tier, facts.api_key].map(|fact| fact.map(str::to_string))
            })
        };
        // ip, user, headers | user, tier, API key
        let rows = [
            (Some("10.0.0.1"), None, Some(headers), [Some("42"), Some("pro"), Some("k")]),
            (Some("10.0.0.1"), Some("7"), Some(headers), [Some("7"), Some("pro"), Some("k")]),
            (Some("203.0.113.1"), None, Some(headers), [None, None, Some("k")]),
            (None, None, Some(headers), [None, None, None]),
            (Some("10.0.0.1"), Some("7"), None, [Some("7"), None, None]),
        ];
        for (ip, user, headers, want) in rows {
            assert_eq!(complete(ip, user, headers), want.map(|fact| fact.map(str::to_string)));
        }
    }
}
