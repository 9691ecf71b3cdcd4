//! The client's address in the lists of addresses that proxies write, read from the right.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The most bytes of a forwarding list that are read, from its end: no chain of trusted proxies is
/// longer.
const LIST_BYTES_MAX: usize = 2_048;
/// The same for the number of its entries.
pub(crate) const ENTRIES_MAX: usize = 32;

/// The entries of a list, from its end.
///
/// Whatever the client wrote at the beginning, what trusted proxies wrote is at the end. That is
/// also why quotes are paired from the right: a quote that a client leaves open at the left would
/// otherwise swallow the entries of the proxies, and a comma that a proxy copied into a quoted text
/// would begin an entry of the client's choosing.
pub(super) struct ReverseListEntries<'a> {
    /// The part that is not yet read.
    rest: Option<&'a str>,
    /// True if commas in quotes belong to an entry.
    quotes: bool,
    /// Bound: `LIST_BYTES_MAX`.
    bytes_left: usize,
    /// Bound: `ENTRIES_MAX`.
    entries_left: usize,
}

impl<'a> ReverseListEntries<'a> {
    pub(super) fn new(list: &'a str, quotes: bool) -> ReverseListEntries<'a> {
        let (bytes_left, entries_left) = (LIST_BYTES_MAX, ENTRIES_MAX);
        ReverseListEntries { rest: Some(list), quotes, bytes_left, entries_left }
    }

    /// The start of the last entry; `None` if it is too far away.
    fn start(&self, list: &str) -> Option<usize> {
        let bytes = list.as_bytes();
        let end = bytes.len().saturating_sub(self.bytes_left);
        let mut quoted = false;
        for at in (end..bytes.len()).rev() {
            match bytes[at] {
                b'"' if self.quotes && !(quoted && is_escaped(&bytes[..at])) => quoted = !quoted,
                b',' if !quoted => return Some(at + 1),
                _ => {}
            }
        }
        (end == 0).then_some(0)
    }
}

impl<'a> Iterator for ReverseListEntries<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let list = self.rest.take()?;
        self.entries_left = self.entries_left.checked_sub(1)?;
        let start = self.start(list)?;
        self.rest = start.checked_sub(1).map(|comma| &list[..comma]);
        self.bytes_left -= list.len() - start + usize::from(start > 0);
        Some(&list[start..])
    }
}

/// Returns true if the character after these bytes of a quoted text is escaped: an odd number of
/// backslashes.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// The address of an entry of `X-Forwarded-For`, or of a header that has one address.
pub(super) fn entry(text: &str) -> Option<IpAddr> {
    let text = trimmed(text);
    let quoted = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    address(quoted.unwrap_or(text))
}

/// Reads `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`, each
/// IPv6 address also with a zone, which means nothing outside that machine and is dropped.
/// Everything else, such as `unknown` and `_hidden`, is no address.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    let ip = if let Some(rest) = text.strip_prefix('[') {
        let (ip, after) = rest.split_once(']')?;
        if !after.is_empty() && !is_port(after.strip_prefix(':')?) {
            return None;
        }
        IpAddr::V6(without_zone(ip)?)
    } else if let Ok(ip) = text.parse::<Ipv4Addr>() {
        IpAddr::V4(ip)
    } else if let Some((ip, port)) = text.split_once(':').filter(|(_, rest)| !rest.contains(':')) {
        IpAddr::V4(ip.parse().ok().filter(|_| is_port(port))?)
    } else {
        IpAddr::V6(without_zone(text)?)
    };
    Some(ip.to_canonical())
}

/// An address as above, or a network such as `192.0.2.0/24`: its first address and the length of
/// its prefix. A network of one address is that address.
pub(crate) fn network(text: &str) -> Option<(IpAddr, Option<u8>)> {
    if !text.contains('/') {
        return Some((address(text)?, None));
    }
    let net = text.parse::<IpNet>().ok()?.trunc();
    let (ip, prefix) = (net.addr().to_canonical(), net.prefix_len());
    let unwrapped = ip.is_ipv4() && net.addr().is_ipv6();
    let prefix = if unwrapped { prefix.checked_sub(96)? } else { prefix };
    let width = if ip.is_ipv4() { 32 } else { 128 };
    Some((ip, (prefix < width).then_some(prefix)))
}

fn without_zone(text: &str) -> Option<Ipv6Addr> {
    let (ip, zone) = text.split_once('%').unwrap_or((text, "0"));
    let named = !zone.is_empty() && zone.bytes().all(is_name_byte);
    ip.parse().ok().filter(|_| named)
}

/// Returns true for a port, and for the placeholder of a proxy that hides it.
fn is_port(text: &str) -> bool {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let hidden = text.strip_prefix('_').is_some_and(|name| !name.is_empty());
    match digits {
        true => text.parse::<u16>().is_ok(),
        false => hidden && text.bytes().all(is_name_byte),
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

/// Removes the spaces and tabs that may surround values in header fields.
pub(super) fn trimmed(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

/// The IPv4 address in a translated one of 64:ff9b::/96 (RFC 6052); any other address as it is.
pub(super) fn translated(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) if v6.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] => {
            let [.., a, b, c, d] = v6.octets();
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_from_the_right() {
        let cases: [(&str, bool, &[&str]); 8] = [
            ("a,b", false, &["b", "a"]),
            ("", false, &[""]),
            (",", false, &["", ""]),
            ("a\"b,c\"", false, &["c\"", "a\"b"]),
            ("a,\"b,c\"", true, &["\"b,c\"", "a"]),
            ("a,\"b\\\",c\",d", true, &["d", "\"b\\\",c\"", "a"]),
            ("\",a,\"b\"", true, &["\"b\"", "a", "\""]),
            ("a,b\",c", true, &["c", "a,b\""]),
        ];
        for (list, quotes, want) in cases {
            let got: Vec<&str> = ReverseListEntries::new(list, quotes).collect();
            assert_eq!(got, want, "{list}");
        }
    }

    #[test]
    fn only_the_end_of_a_list_is_read() {
        let entries = |list: &str| ReverseListEntries::new(list, true).count();
        assert_eq!(entries(&"a,".repeat(100)), ENTRIES_MAX);
        // The comma before the last entry is the 2,048th byte from the end, or is too far away.
        for (bytes, want) in [(2_046, 1), (2_047, 1), (2_048, 0)] {
            let list = "aaa,".to_owned() + &"b".repeat(bytes);
            assert_eq!(entries(&list), want, "{bytes}");
        }
        assert_eq!((entries(&"a".repeat(2_048)), entries(&"a".repeat(2_049))), (1, 0));
        assert_eq!(entries(&("\"".to_owned() + &"a,".repeat(1_100) + "\"")), 0, "no end in sight");
    }

    #[test]
    fn addresses_have_these_spellings() {
        let cases = [
            ("192.0.2.1", Some("192.0.2.1")),
            ("192.0.2.1:80", Some("192.0.2.1")),
            ("192.0.2.1:65535", Some("192.0.2.1")),
            ("192.0.2.1:65536", None),
            ("192.0.2.1:", None),
            ("192.0.2.1:+80", None),
            ("192.0.2.1:_hidden", Some("192.0.2.1")),
            ("192.0.2.1:_", None),
            ("192.0.2.1:_a\"b", None),
            ("192.0.2.1%eth0", None),
            ("192.0.2", None),
            ("010.0.0.1", None),
            ("3221225985", None),
            ("2001:db8::1", Some("2001:db8::1")),
            ("2001:DB8::1", Some("2001:db8::1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("[2001:db8::1]:80", Some("2001:db8::1")),
            ("[2001:db8::1]:", None),
            ("[2001:db8::1]80", None),
            ("[2001:db8::1", None),
            ("2001:db8::1]", None),
            ("[[2001:db8::1]]", None),
            ("[192.0.2.1]", None),
            ("fe80::1%eth0", Some("fe80::1")),
            ("fe80::1%25eth0", Some("fe80::1")),
            ("[fe80::1%3]:80", Some("fe80::1")),
            ("fe80::1%", None),
            ("fe80::1%a b", None),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("[::ffff:c000:201]:80", Some("192.0.2.1")),
            ("::192.0.2.1", Some("::192.0.2.1")),
            ("unknown", None),
            ("_hidden", None),
            ("", None),
            (" 192.0.2.1", None),
        ];
        for (text, want) in cases {
            assert_eq!(address(text), want.map(|ip| ip.parse().unwrap()), "{text:?}");
        }
        assert_eq!(entry("\t\"192.0.2.1\" "), Some("192.0.2.1".parse().unwrap()));
        assert_eq!(entry("\"192.0.2.1"), None);
        assert_eq!(entry("\u{a0}192.0.2.1"), None);
    }

    #[test]
    fn networks_keep_their_prefix() {
        let cases = [
            ("192.0.2.0/24", Some(("192.0.2.0", Some(24)))),
            ("192.0.2.9/24", Some(("192.0.2.0", Some(24)))),
            ("192.0.2.9/32", Some(("192.0.2.9", None))),
            ("192.0.2.9", Some(("192.0.2.9", None))),
            ("0.0.0.0/0", Some(("0.0.0.0", Some(0)))),
            ("192.0.2.0/33", None),
            ("192.0.2.0/", None),
            ("192.0.2.0/x", None),
            ("192.0.2.0/+8", None),
            ("192.0.2.0/24/24", None),
            ("192.0.2.0:80/24", None),
            ("2001:db8::/48", Some(("2001:db8::", Some(48)))),
            ("2001:db8::/129", None),
            ("fe80::1%eth0", Some(("fe80::1", None))),
            ("::ffff:192.0.2.9/120", Some(("192.0.2.0", Some(24)))),
            ("somebody", None),
            ("", None),
        ];
        for (text, want) in cases {
            let want = want.map(|(ip, prefix)| (ip.parse().unwrap(), prefix));
            assert_eq!(network(text), want, "{text:?}");
        }
    }

    #[test]
    fn translators_speak_for_others() {
        let cases = [
            ("64:ff9b::192.0.2.1", "192.0.2.1"),
            ("64:ff9b:1::192.0.2.1", "64:ff9b:1::c000:201"),
            ("64:ff9b::1:192.0.2.1", "64:ff9b::1:c000:201"),
            ("192.0.2.1", "192.0.2.1"),
        ];
        for (ip, want) in cases {
            assert_eq!(translated(ip.parse().unwrap()), want.parse::<IpAddr>().unwrap());
        }
    }
}
