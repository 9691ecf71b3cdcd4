//! Who is calling, against a walk of its own: only trusted peers say anything about others, and what
//! they say is found from the right.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tollgate_rules::identify::AddressFrom;
use tollgate_rules::{Identify, Identity};

use super::source::Source;

/// A peer, its headers, and whom it asks for.
pub fn identity(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    let identify = identify(&mut source);
    let peer: IpAddr = source.pick(&PEERS).parse().expect("an address");
    let headers = headers(&mut source);
    let got = identify.identify(peer, &headers);
    let want = oracle(&identify, peer, &headers);
    assert_eq!(got, want, "{identify:?} {peer} {headers:?}");
    assert!(is_known(&got, peer, &headers), "{got:?} came from nowhere: {peer} {headers:?}");
    if !NETS.iter().any(|(net, hosts)| trusts(&identify, net) && hosts.contains(&plain(peer))) {
        let key = |(name, _): &&(&str, String)| name.eq_ignore_ascii_case("x-key");
        let only_key: Vec<_> = headers.iter().filter(key).cloned().collect();
        assert_eq!(identify.identify(peer, &only_key), got, "a stranger's header counts");
    }
}

/// Networks that may be trusted, and which of `PEERS` and `ADDRESSES` are in them.
const NETS: [(&str, &[&str]); 4] = [
    ("10.0.0.0/8", &["10.0.0.1", "10.255.255.255"]),
    ("192.0.2.7/32", &["192.0.2.7"]),
    ("2001:db8::/32", &["2001:db8::1"]),
    ("::1/128", &["::1"]),
];

const PEERS: [&str; 8] = [
    "10.0.0.1",
    "::ffff:10.0.0.1",
    "192.0.2.7",
    "2001:db8::1",
    "::1",
    "203.0.113.9",
    "2001:db9::1",
    "::ffff:203.0.113.9",
];

const ADDRESSES: [&str; 24] = [
    "203.0.113.9",
    "10.0.0.1",
    "10.255.255.255",
    "11.0.0.0",
    "192.0.2.7",
    "192.0.2.8",
    "2001:db8::1",
    "[2001:db8::1]",
    "[2001:db8::1]:443",
    "[2001:db9::1]:0",
    "::1",
    "[::1]",
    "::ffff:10.0.0.1",
    "[::ffff:203.0.113.9]:1",
    "203.0.113.9:65535",
    "203.0.113.9:65536",
    "10.0.0.1:",
    "[10.0.0.1]",
    "[10.0.0.1]:80",
    "[fe80::1%3]:80",
    "fe80::1%3",
    "unknown",
    "_hidden",
    "010.0.0.1",
];

fn trusts(identify: &Identify, net: &str) -> bool {
    identify.trusted_peers.iter().any(|one| one.to_string() == net)
}

fn plain(ip: IpAddr) -> &'static str {
    let known = NETS.iter().flat_map(|(_, hosts)| *hosts);
    let same = |text: &&&str| text.parse::<IpAddr>().ok() == Some(unmapped(ip));
    known.copied().find(|text| same(&text)).unwrap_or("")
}

fn identify(source: &mut Source<'_>) -> Identify {
    let flags = source.byte();
    let trusted = NETS.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 == 1);
    let name = |set: bool, name: &str| set.then(|| name.into());
    Identify {
        trusted_peers: trusted.map(|(_, (net, _))| net.parse().expect("a network")).collect(),
        user_header: name(flags & 16 == 0, "x-user"),
        api_key_header: name(flags & 32 == 0, "x-key"),
        tier_header: name(flags & 64 == 0, "x-tier"),
        address: match source.below(6) {
            0 | 1 => AddressFrom::XForwardedFor,
            2 | 3 => AddressFrom::Forwarded,
            4 => AddressFrom::Header("x-real-ip".into()),
            _ => AddressFrom::Peer,
        },
        ..Identify::default()
    }
}

fn headers(source: &mut Source<'_>) -> Vec<(&'static str, String)> {
    const NAMES: [&str; 8] = [
        "X-Forwarded-For",
        "x-forwarded-for",
        "Forwarded",
        "FORWARDED",
        "X-Real-IP",
        "x-user",
        "X-Tier",
        "X-Key",
    ];
    let mut headers = Vec::new();
    for _ in 0..source.below(5) {
        let name = source.pick(&NAMES);
        let mut value = String::new();
        for part in 0..source.below(6) {
            if part > 0 {
                value.push_str(source.pick(&[",", ", ", " ,\t", ",,", ";", ""]));
            }
            element(&mut value, source);
        }
        if source.one_in(16) {
            value = vec![value; 1 + source.below(40)].join(",");
        }
        if source.one_in(16) {
            value.push_str(&" ".repeat(2_000 + source.below(60)));
        }
        headers.push((name, value));
    }
    headers
}

/// An address, or an element of `Forwarded`, or anything.
fn element(value: &mut String, source: &mut Source<'_>) {
    const SPACES: [&str; 5] = ["", "", " ", "\t", "\u{a0}"];
    let address = source.pick(&ADDRESSES);
    value.push_str(source.pick(&SPACES));
    match source.below(8) {
        0..=2 => value.push_str(address),
        3 | 4 => {
            value.push_str(&format!("{}={address}", source.pick(&["for", "For", "FOR ", "by"])))
        }
        5 => value.push_str(&format!("proto=https;for=\"{address}\"")),
        6 => value.push_str(source.pick(&["for=\"", "\"", "=", "for", "for=;for=1.1.1.1", "\\\""])),
        _ => value.push(char::from(source.byte())),
    }
    value.push_str(source.pick(&SPACES));
}

/// The same, as the documentation says it.
fn oracle<'a>(
    identify: &Identify,
    peer: IpAddr,
    headers: &'a [(&'static str, String)],
) -> Identity<'a> {
    let all = |wanted: &str| -> Vec<&'a str> {
        let named = headers.iter().filter(|(name, _)| name.to_lowercase() == wanted);
        named.map(|(_, value)| value.as_str()).collect()
    };
    let first = |name: &Option<Box<str>>| Some((*all(name.as_deref()?).first()?).into());
    let only = |name: &Option<Box<str>>| match all(name.as_deref()?)[..] {
        [value] => Some(value.into()),
        _ => None,
    };
    let peer = unmapped(peer);
    let mut identity = Identity {
        ip: Some(peer),
        api_key: first(&identify.api_key_header),
        ..Identity::default()
    };
    if !is_trusted(identify, peer) {
        return identity;
    }
    identity.user = only(&identify.user_header);
    identity.tier = only(&identify.tier_header);
    let (values, in_forwarded) = match &identify.address {
        AddressFrom::Peer => return identity,
        AddressFrom::XForwardedFor => (all("x-forwarded-for"), false),
        AddressFrom::Forwarded => (all("forwarded"), true),
        AddressFrom::Header(name) => {
            let values = all(name);
            let only = values.first().filter(|_| values.len() == 1);
            identity.ip = only.and_then(|value| address(value)).or(Some(peer));
            return identity;
        }
    };
    // However long the list is, only its end is looked at.
    let list = values.join(",");
    let mut start = list.len().saturating_sub(2_048);
    while !list.is_char_boundary(start) {
        start -= 1;
    }
    let cut = usize::from(list.len() > 2_048);
    let entries: Vec<&str> = list[start..].split(',').skip(cut).collect();
    let entries = &entries[entries.len().saturating_sub(32)..];
    // Each trusted hop vouches for the one before it.
    for entry in entries.iter().rev() {
        let said = if in_forwarded { for_of(entry) } else { address(entry) };
        let Some(said) = said.filter(|_| is_trusted(identify, identity.ip.unwrap_or(peer))) else {
            break;
        };
        identity.ip = Some(said);
    }
    identity
}

/// The bits of an address that a network fixes are the network's.
fn is_trusted(identify: &Identify, ip: IpAddr) -> bool {
    identify.trusted_peers.iter().any(|net| match (net.network(), ip) {
        (IpAddr::V4(net_ip), IpAddr::V4(ip)) => {
            let free = 32 - u32::from(net.prefix_len());
            u64::from(net_ip.to_bits()) >> free == u64::from(ip.to_bits()) >> free
        }
        (IpAddr::V6(net_ip), IpAddr::V6(ip)) => {
            let free = 128 - u32::from(net.prefix_len());
            net_ip.to_bits().checked_shr(free) == ip.to_bits().checked_shr(free)
        }
        _ => false,
    })
}

fn unmapped(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) if v6.to_bits() >> 32 == 0xffff => {
            IpAddr::V4(Ipv4Addr::from_bits(v6.to_bits() as u32))
        }
        ip => ip,
    }
}

/// `1.2.3.4`, `1.2.3.4:80`, `::1`, `[::1]`, `[::1]:80`.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let is_port = |port: &str| {
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        digits && port.parse::<u16>().is_ok()
    };
    if let Some((inner, port)) = text.strip_prefix('[').and_then(|rest| rest.rsplit_once(']')) {
        if port.is_empty() {
            return inner.parse().ok().map(unmapped);
        }
        let (inner, zone) = inner.split_once('%').unwrap_or((inner, "0"));
        let is_zone = zone.bytes().all(|byte| byte.is_ascii_digit()) && zone.parse::<u32>().is_ok();
        let ip = inner.parse::<Ipv6Addr>().ok().filter(|_| is_zone);
        return ip
            .filter(|_| port.strip_prefix(':').is_some_and(is_port))
            .map(IpAddr::V6)
            .map(unmapped);
    }
    if let Some((ip, port)) = text.split_once(':')
        && let Ok(ip) = ip.parse::<Ipv4Addr>()
    {
        return is_port(port).then_some(IpAddr::V4(ip));
    }
    text.parse().ok().map(unmapped)
}

/// The address of an element of `Forwarded` that has one `for`.
fn for_of(element: &str) -> Option<IpAddr> {
    let mut found = None;
    for pair in element.split(';') {
        let Some(equals) = pair.find('=') else { continue };
        if !pair[..equals].trim().eq_ignore_ascii_case("for") {
            continue;
        }
        if found.is_some() {
            return None;
        }
        found = Some(pair[equals + 1..].trim());
    }
    let value = found?;
    let is_quoted = value.len() > 1 && value.starts_with('"') && value.ends_with('"');
    address(if is_quoted { &value[1..value.len() - 1] } else { value })
}

/// Whether everything that is said stands somewhere: the address is the peer's or is in a header.
fn is_known(got: &Identity<'_>, peer: IpAddr, headers: &[(&'static str, String)]) -> bool {
    let Some(ip) = got.ip else { return false };
    let ends = |c: char| !c.is_ascii_hexdigit() && c != '.' && c != ':';
    let mut words = headers.iter().flat_map(|(_, value)| value.split(ends)).flat_map(|word| {
        // With and without a port.
        [Some(word), word.rsplit_once(':').map(|(word, _)| word)]
    });
    let said = words.any(|word| word.and_then(|word| word.parse().ok()).map(unmapped) == Some(ip));
    let values = [&got.user, &got.tier, &got.api_key].into_iter().flatten();
    let texts = values.into_iter().all(|text| headers.iter().any(|(_, value)| value == text));
    texts && (said || ip == unmapped(peer))
}
