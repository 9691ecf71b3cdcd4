//! The caller's identity against an oracle: only trusted peers may name other clients, and their lists are read
//! from the right.

pub(crate) mod oracle;

use std::net::IpAddr;

use tollgate::Micros;
use tollgate_rules::identify::{AddressSource, UserSource};
use tollgate_rules::{Identify, Identity};

use super::source::FuzzSource;
use oracle::{hash, is_trusted, oracle, unmapped};

/// Identifies the caller behind a peer with its headers.
pub fn identity(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let identify = identify(&mut source);
    let peer: IpAddr = source.pick(&PEERS).parse().expect("an address");
    let headers = headers(&mut source);
    let now = Micros::new(0);
    let got = identify.identify(peer, &headers, now);
    let want = oracle(&identify, peer, &headers);
    assert_eq!(got, want, "{identify:?} {peer} {headers:?}");
    assert!(is_known(&got, peer, &headers), "{got:?} came from nowhere: {peer} {headers:?}");
    if !is_trusted(&identify, unmapped(peer)) {
        let key = |(name, _): &&(&str, String)| name.eq_ignore_ascii_case("x-key");
        let only_key: Vec<_> = headers.iter().filter(key).cloned().collect();
        assert_eq!(identify.identify(peer, &only_key, now), got, "a stranger's header counts");
    }
}

/// Networks that may be trusted.
const NETS: [&str; 5] = ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32", "::1/128", "64:ff9b::/96"];

const PEERS: [&str; 9] = [
    "10.0.0.1",
    "::ffff:10.0.0.1",
    "192.0.2.7",
    "2001:db8::1",
    "::1",
    "203.0.113.9",
    "2001:db9::1",
    "::ffff:203.0.113.9",
    "64:ff9b::cb00:7109",
];

const ADDRESSES: [&str; 32] = [
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
    "64:ff9b::10.0.0.1",
    "[64:ff9b::cb00:7109]:80",
    "64:ff9b:1::1",
    "fe80::1%25eth0",
    "[2001:db8::1%]",
    "10.0.0.1:_port",
    "[::1]:_",
    "\"10.0.0.1\"",
];

fn identify(source: &mut FuzzSource<'_>) -> Identify {
    let flags = source.byte();
    let more = source.byte();
    let trusted = NETS.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 == 1);
    let name = |set: bool, name: &str| set.then(|| name.into());
    Identify {
        trusted_peers: trusted.map(|(_, net)| net.parse().expect("a network")).collect(),
        user: match more & 3 {
            0 | 1 => UserSource::Header("x-user".into()),
            2 => UserSource::ApiKey("x-key".into()),
            _ => UserSource::Nowhere,
        },
        api_key_header: name(flags & 32 == 0, "x-key"),
        tier_header: name(flags & 64 == 0, "x-tier"),
        address: match source.below(6) {
            0 | 1 => AddressSource::XForwardedFor,
            2 | 3 => AddressSource::Forwarded,
            4 => AddressSource::Header("x-real-ip".into()),
            _ => AddressSource::Peer,
        },
        trusted_hops: (more & 0x18 == 0x18).then_some(1 + (more >> 5) % 4),
        nat64: more & 4 == 4,
        ..Identify::default()
    }
}

fn headers(source: &mut FuzzSource<'_>) -> Vec<(&'static str, String)> {
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

/// Values that an attacker would like proxies to copy between quotes.
const QUOTED: [&str; 8] = [
    "a,b",
    "a, for=203.0.113.9",
    "a, for=203.0.113.9;b=",
    "a\\\", for=203.0.113.9;b=\\\"",
    "a\\\\",
    "\\\"",
    ";for=203.0.113.9",
    "\", for=203.0.113.9, \"",
];

/// Writes an address, an element of `Forwarded`, or anything else.
fn element(value: &mut String, source: &mut FuzzSource<'_>) {
    const SPACES: [&str; 5] = ["", "", " ", "\t", "\u{a0}"];
    let address = source.pick(&ADDRESSES);
    value.push_str(source.pick(&SPACES));
    match source.below(10) {
        0..=2 => value.push_str(address),
        3 | 4 => {
            value.push_str(&format!("{}={address}", source.pick(&["for", "For", "FOR ", "by"])))
        }
        5 => value.push_str(&format!("proto=https;for=\"{address}\"")),
        6 => value.push_str(&format!("for={address};host=\"{}\"", source.pick(&QUOTED))),
        7 => value.push_str(source.pick(&QUOTED)),
        8 => value.push_str(source.pick(&["for=\"", "\"", "=", "for", "for=;for=1.1.1.1", "\\\""])),
        _ => value.push(char::from(source.byte())),
    }
    value.push_str(source.pick(&SPACES));
}

/// Returns true if the result has a source: the address is the peer's or is in a header.
fn is_known(got: &Identity<'_>, peer: IpAddr, headers: &[(&'static str, String)]) -> bool {
    let Some(ip) = got.ip else { return false };
    let ends = |c: char| !c.is_ascii_hexdigit() && c != '.' && c != ':';
    let words = headers.iter().flat_map(|(_, value)| value.split(ends)).flat_map(|word| {
        // With and without a port.
        [Some(word), word.rsplit_once(':').map(|(word, _)| word)]
    });
    let mut said = words.filter_map(|word| word?.parse().ok()).chain([peer]);
    // A translated address has the IPv4 address in its last four bytes.
    let is_it = |one: IpAddr| match (unmapped(one), ip) {
        (IpAddr::V6(one), IpAddr::V4(ip)) => one.octets()[12..] == ip.octets(),
        (one, ip) => one == ip,
    };
    let escaped = headers.iter().any(|(_, value)| value.contains('\\'));
    let stands = |text: &str| headers.iter().any(|(_, value)| value == text || hash(value) == text);
    let values = [&got.user, &got.tier, &got.api_key].into_iter().flatten();
    values.into_iter().all(|text| stands(text)) && (escaped || said.any(is_it))
}
