//! The address of a client behind proxies, from `X-Forwarded-For`, read from right to left.
//!
//! Each proxy appends the address it received the request from, so the right end is written by trusted proxies.
//! The walk starts at the peer and goes on while the address is a trusted proxy's. The first address that is not
//! is the client; everything to the left of it may be forged. An entry that cannot be parsed ends the walk.
//! The rules of a gatekeeper find the same client in the same list; a test compares the two.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use http::{HeaderMap, HeaderName};

/// Maximum number of entries read, from the right; no chain of trusted proxies is longer.
pub const ENTRIES_MAX: usize = 32;
/// Maximum number of bytes of the list that are read, from the right.
pub const LIST_BYTES_MAX: usize = 2_048;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The networks of your proxies, whose `X-Forwarded-For` is trusted.
///
/// ```
/// use tollgate_tower::{KeyFrom, TrustedProxies};
///
/// let proxies = TrustedProxies::new(["10.0.0.0/8", "2001:db8:1::/48", "192.0.2.10"])?;
/// let key = KeyFrom::client_ip_behind(proxies);
/// # drop(key);
/// # Ok::<(), tollgate_tower::client_ip::NetworkError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies(Box<[Network]>);

/// The error for text that is not a network; its message says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkError(String);

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NetworkError {}

impl TrustedProxies {
    /// Reads networks such as `10.0.0.0/8` and single addresses.
    pub fn new<'t>(
        networks: impl IntoIterator<Item = &'t str>,
    ) -> Result<TrustedProxies, NetworkError> {
        networks.into_iter().map(str::parse).collect::<Result<_, _>>().map(TrustedProxies)
    }

    /// Returns true if the address belongs to one of your proxies.
    pub fn trusts(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|network| network.contains(ip))
    }

    /// The client on whose behalf `peer` sends the request. It is the peer itself if the peer is not a trusted
    /// proxy or names no client.
    pub fn client_of(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        if !self.trusts(peer) {
            return peer;
        }
        let mut client = peer;
        for entry in entries(headers).map_while(address) {
            client = entry;
            if !self.trusts(entry) {
                break;
            }
        }
        client
    }
}

/// The entries of all header lines, from the right. Several lines are one list, in their order.
fn entries(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    let mut bytes_left = LIST_BYTES_MAX;
    lines
        .flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','))
        .take(ENTRIES_MAX)
        .take_while(move |entry| match bytes_left.checked_sub(entry.len()) {
            Some(left) => {
                bytes_left = left.saturating_sub(1);
                true
            }
            None => false,
        })
}

/// Parses `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1` or `[2001:db8::1]:80`, also with a zone or in quotes.
fn address(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?.trim_matches([' ', '\t']);
    let quoted = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let text = quoted.unwrap_or(text);
    let ip = match text.strip_prefix('[') {
        Some(rest) => {
            let (ip, after) = rest.split_once(']')?;
            let port = after.strip_prefix(':');
            (after.is_empty() || port.is_some_and(is_port)).then_some(())?;
            IpAddr::V6(without_zone(ip)?)
        }
        // Exactly one colon: an IPv4 address with a port.
        None => match text.split_once(':').filter(|(_, port)| !port.contains(':')) {
            Some((ip, port)) => IpAddr::V4(Ipv4Addr::from_str(ip).ok().filter(|_| is_port(port))?),
            None => Ipv4Addr::from_str(text)
                .map(IpAddr::V4)
                .ok()
                .or_else(|| without_zone(text).map(IpAddr::V6))?,
        },
    };
    Some(ip.to_canonical())
}

fn without_zone(text: &str) -> Option<Ipv6Addr> {
    let (ip, zone) = text.split_once('%').unwrap_or((text, "0"));
    ip.parse().ok().filter(|_| is_name(zone))
}

/// Returns true for a port number, or for an obfuscated port such as `_hidden`.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => is_name(name),
        None => text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok(),
    }
}

fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && text.bytes().all(plain)
}

/// A network: an address and a prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    /// Length of the prefix in bits: at most 32 for IPv4 and 128 for IPv6.
    prefix: u8,
}

impl Network {
    fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.address.is_ipv4() && first_bits(ip, self.prefix) == self.address
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let bad = |what: String| NetworkError(format!("the network {text:?} {what}"));
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let example = "write `10.0.0.0/8`, `2001:db8::/32` or `192.0.2.1`";
        let address = address
            .parse::<IpAddr>()
            .map_err(|_| bad(format!("does not begin with an address: {example}")))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => most,
            Some(prefix) => prefix
                .parse::<u8>()
                .ok()
                .filter(|prefix| *prefix <= most)
                .ok_or_else(|| bad(format!("needs a length from 0 to {most}: {example}")))?,
        };
        // Addresses are compared in canonical form, so networks are stored in it too.
        let (address, prefix) = match (address.to_canonical(), prefix) {
            (plain @ IpAddr::V4(_), 96..) if address.is_ipv6() => (plain, prefix - 96),
            _ => (address, prefix),
        };
        let network = first_bits(address, prefix);
        if network != address {
            return Err(bad(format!("has bits beyond its length: write `{network}/{prefix}`")));
        }
        Ok(Network { address, prefix })
    }
}

/// Returns the address with all bits after the prefix cleared.
pub(crate) fn first_bits(ip: IpAddr, prefix: u8) -> IpAddr {
    let cleared = |bits: u32| bits.saturating_sub(prefix.into());
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(cleared(32)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & mask))
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(cleared(128)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn client(peer: &str, lines: &[&[u8]]) -> IpAddr {
        let proxies = TrustedProxies::new(["10.0.0.0/8", "2001:db8:1::/48"]).unwrap();
        let line = |line: &&[u8]| (X_FORWARDED_FOR, HeaderValue::from_bytes(line).unwrap());
        proxies.client_of(ip(peer), &lines.iter().map(line).collect())
    }

    #[test]
    fn the_client_is_found_from_the_right() {
        // Peer, header lines, client.
        type Row<'a> = (&'a str, &'a [&'a [u8]], &'a str);
        let rows: [Row<'_>; 20] = [
            ("10.0.0.1", &[b"203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &[b"6.6.6.6, 203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &[b"6.6.6.6, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),
            ("10.0.0.1", &[b"6.6.6.6", b"203.0.113.9", b"10.0.0.2"], "203.0.113.9"),
            ("10.0.0.1", &[b"10.0.0.3,10.0.0.2"], "10.0.0.3"),
            ("::ffff:10.0.0.1", &[b"203.0.113.9"], "203.0.113.9"),
            ("2001:db8:1::7", &[b"[2001:db8:2::1]:443"], "2001:db8:2::1"),
            ("10.0.0.1", &[b"::ffff:203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &[b"203.0.113.9:8080"], "203.0.113.9"),
            ("10.0.0.1", &[b"\"203.0.113.9\""], "203.0.113.9"),
            ("10.0.0.1", &[b"fe80::1%eth0"], "fe80::1"),
            ("203.0.113.1", &[b"6.6.6.6"], "203.0.113.1"),
            ("::ffff:203.0.113.1", &[b"6.6.6.6"], "203.0.113.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &[b""], "10.0.0.1"),
            ("10.0.0.1", &[b"6.6.6.6, unknown"], "10.0.0.1"),
            ("10.0.0.1", &[b"unknown, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &[b"6.6.6.6, \xff"], "10.0.0.1"),
            ("10.0.0.1", &[b"\xff, 203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &[b"203.0.113.9:99999"], "10.0.0.1"),
        ];
        for (peer, lines, want) in rows {
            assert_eq!(client(peer, lines), ip(want), "{peer} {lines:?}");
        }
    }

    #[test]
    fn only_the_end_of_a_list_is_read() {
        let chain = |entries| ["10.0.0.2"].repeat(entries).join(",");
        // As many trusted entries as are read, and one more in front of them.
        for (entries, want) in [(31, "203.0.113.9"), (32, "10.0.0.2")] {
            let list = format!("203.0.113.9,{}", chain(entries));
            assert_eq!(client("10.0.0.1", &[list.as_bytes()]), ip(want), "{entries}");
        }
        let long = format!("{},10.0.0.2", " ".repeat(LIST_BYTES_MAX));
        assert_eq!(client("10.0.0.1", &[long.as_bytes()]), ip("10.0.0.2"));
    }

    #[test]
    fn networks_are_read_strictly() {
        let rows = [
            ("10.0.0.0/8", ""),
            ("0.0.0.0/0", ""),
            ("::/0", ""),
            ("192.0.2.1", ""),
            ("2001:db8::/32", ""),
            ("::ffff:10.0.0.0/104", ""),
            ("::ffff:10.0.0.1/104", "has bits beyond its length: write `10.0.0.0/8`"),
            ("10.0.0.1/8", "has bits beyond its length: write `10.0.0.0/8`"),
            ("10.0.0.0/33", "needs a length from 0 to 32"),
            ("2001:db8::/129", "needs a length from 0 to 128"),
            ("10.0.0.0/", "needs a length"),
            ("10.0.0/8", "does not begin with an address"),
            ("localhost", "does not begin with an address"),
        ];
        for (text, want) in rows {
            let error = TrustedProxies::new([text]).err().map(|error| error.to_string());
            let error = error.unwrap_or_default();
            assert!(error.contains(want) && error.is_empty() == want.is_empty(), "{text}: {error}");
        }
        let all = TrustedProxies::new(["0.0.0.0/0"]).unwrap();
        assert!(all.trusts(ip("203.0.113.9")) && all.trusts(ip("::ffff:203.0.113.9")));
        assert!(!all.trusts(ip("2001:db8::1")), "families do not mix");
    }
}
