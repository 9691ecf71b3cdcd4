//! Who is calling when somebody lies: each row is a trick, with whom it must be taken for. What is
//! found is compared with what is written here and with the oracle of the fuzz target, which was
//! written independently.

mod paths;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use crate::bodies::oracle;
use tollgate::{MemoryStore, Micros, SystemClock};
use tollgate_rules::{Ask, Facts, Gatekeeper, Identify, Source, compile};

/// Configurations by name.
const CONFIGURATIONS: [(&str, &str); 13] = [
    ("nothing", ""),
    ("nobody", "trusted_peers: [], user: { header: x-user }, tier: { header: x-tier }"),
    (
        "xff",
        "trusted_peers: [10.0.0.0/8, 2001:db8:ffff::/48], user: { header: x-user }, tier: { header: x-tier }",
    ),
    ("forwarded", "trusted_peers: [10.0.0.0/8, 2001:db8:ffff::/48], ip: forwarded"),
    ("real-ip", "trusted_peers: [10.0.0.0/8], ip: x-real-ip"),
    ("peer", "trusted_peers: [10.0.0.0/8], ip: none"),
    ("1 hop", "trusted_peers: [10.0.0.0/8], ip: { trusted_hops: 1 }"),
    ("2 hops", "trusted_peers: [10.0.0.0/8], ip: { trusted_hops: 2 }"),
    (
        "2 hops, forwarded",
        "trusted_peers: [10.0.0.0/8], ip: { header: forwarded, trusted_hops: 2 }",
    ),
    ("nat64", "trusted_peers: [10.0.0.0/8], ip: { nat64: true }"),
    ("nat64 proxies", "trusted_peers: [10.0.0.0/8, 64:ff9b::/96], ip: { nat64: true }"),
    (
        "api key",
        "trusted_peers: [10.0.0.0/8], user: { api_key: { header: x-key } }, tier: { header: x-tier }",
    ),
    ("one proxy", "trusted_peers: [10.0.0.1], user: { header: x-user }"),
];

/// A trick: what it is about, configuration, peer, header fields, and the address, user and tier that
/// must be found.
type SpoofingRow = (
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
    [&'static str; 3],
);

const XFF: &str = "X-Forwarded-For";
const FWD: &str = "Forwarded";
/// The client, the liar, a proxy of ours, and whom the liar would like to be.
const C: &str = "203.0.113.9";
const P: &str = "10.0.0.1";
const V: &str = "198.51.100.7";

#[rustfmt::skip]
const ROWS: &[SpoofingRow] = &[
    // Who is not trusted says nothing about anybody.
    ("a stranger's list", "xff", C, &[(XFF, V)], [C, "", ""]),
    ("a stranger's user", "xff", C, &[("X-User", "admin")], [C, "", ""]),
    ("a stranger's tier", "xff", C, &[("X-Tier", "gold")], [C, "", ""]),
    ("a stranger with all of them", "xff", C, &[(XFF, V), ("X-User", "a"), ("X-Tier", "gold"), (FWD, "for=198.51.100.7")], [C, "", ""]),
    ("a stranger names a proxy of ours", "xff", C, &[(XFF, P)], [C, "", ""]),
    ("a stranger next to our network", "xff", "11.0.0.0", &[(XFF, V)], ["11.0.0.0", "", ""]),
    ("the last address of our network", "xff", "10.255.255.255", &[(XFF, C)], [C, "", ""]),
    ("nobody is trusted", "nobody", P, &[(XFF, V), ("X-User", "a"), ("X-Tier", "b")], [P, "", ""]),
    ("loopback when others are trusted", "xff", "127.0.0.1", &[(XFF, V)], ["127.0.0.1", "", ""]),
    ("loopback by default", "nothing", "127.0.0.1", &[(XFF, C)], [C, "", ""]),
    ("IPv6 loopback by default", "nothing", "::1", &[(XFF, C)], [C, "", ""]),
    ("no headers of users by default", "nothing", "127.0.0.1", &[("X-User", "a"), ("X-Tier", "b")], ["127.0.0.1", "", ""]),
    ("a neighbour of the only proxy", "one proxy", "10.0.0.2", &[(XFF, V), ("X-User", "a")], ["10.0.0.2", "", ""]),
    ("the only proxy", "one proxy", P, &[(XFF, C), ("X-User", "a")], [C, "a", ""]),
    // The list is walked from the right.
    ("one proxy, one client", "xff", P, &[(XFF, C)], [C, "", ""]),
    ("the client wrote the left end", "xff", P, &[(XFF, "198.51.100.7, 203.0.113.9")], [C, "", ""]),
    ("the client wrote much", "xff", P, &[(XFF, "1.1.1.1, 2.2.2.2, 10.0.0.9, 198.51.100.7, 203.0.113.9")], [C, "", ""]),
    ("through two proxies", "xff", P, &[(XFF, "198.51.100.7, 203.0.113.9, 10.0.0.2")], [C, "", ""]),
    ("the client names our proxies", "xff", P, &[(XFF, "198.51.100.7, 10.0.0.7, 203.0.113.9")], [C, "", ""]),
    ("a client inside our network", "xff", P, &[(XFF, "10.0.0.3, 10.0.0.2")], ["10.0.0.3", "", ""]),
    ("two lines are one list", "xff", P, &[(XFF, V), (XFF, C)], [C, "", ""]),
    ("two lines in other capitals", "xff", P, &[("x-forwarded-for", V), ("X-FORWARDED-FOR", C)], [C, "", ""]),
    ("another header between the lines", "xff", P, &[(XFF, V), ("X-Tier", "b"), (XFF, C)], [C, "", "b"]),
    ("a line without a value at the end", "xff", P, &[(XFF, V), (XFF, "")], [P, "", ""]),
    ("no list", "xff", P, &[], [P, "", ""]),
    ("an empty list", "xff", P, &[(XFF, "")], [P, "", ""]),
    ("only commas", "xff", P, &[(XFF, ",,,")], [P, "", ""]),
    ("a comma at the end", "xff", P, &[(XFF, "198.51.100.7,")], [P, "", ""]),
    ("a comma at the beginning", "xff", P, &[(XFF, ",203.0.113.9")], [C, "", ""]),
    // What cannot be read ends the walk at the last good address.
    ("garbage", "xff", P, &[(XFF, "garbage")], [P, "", ""]),
    ("garbage at the right", "xff", P, &[(XFF, "198.51.100.7, garbage")], [P, "", ""]),
    ("garbage behind a proxy", "xff", P, &[(XFF, "198.51.100.7, garbage, 10.0.0.2")], ["10.0.0.2", "", ""]),
    ("garbage left of the client", "xff", P, &[(XFF, "<script>, 203.0.113.9")], [C, "", ""]),
    ("unknown", "xff", P, &[(XFF, "198.51.100.7, unknown")], [P, "", ""]),
    ("an address with spaces inside", "xff", P, &[(XFF, "203.0.113.9 198.51.100.7")], [P, "", ""]),
    ("octal", "xff", P, &[(XFF, "0313.0.113.9")], [P, "", ""]),
    ("leading zeros", "xff", P, &[(XFF, "203.000.113.009")], [P, "", ""]),
    ("one number", "xff", P, &[(XFF, "3405803785")], [P, "", ""]),
    ("hexadecimal", "xff", P, &[(XFF, "0xcb.0x00.0x71.0x09")], [P, "", ""]),
    ("a network", "xff", P, &[(XFF, "203.0.113.0/24")], [P, "", ""]),
    ("digits of another script", "xff", P, &[(XFF, "２03.0.113.9")], [P, "", ""]),
    // Spellings.
    ("a port", "xff", P, &[(XFF, "203.0.113.9:8080")], [C, "", ""]),
    ("too large a port", "xff", P, &[(XFF, "203.0.113.9:99999")], [P, "", ""]),
    ("tabs and spaces", "xff", P, &[(XFF, "198.51.100.7 ,\t 203.0.113.9\t")], [C, "", ""]),
    ("a space that is none", "xff", P, &[(XFF, "\u{a0}203.0.113.9")], [P, "", ""]),
    ("quotes", "xff", P, &[(XFF, "\"203.0.113.9\"")], [C, "", ""]),
    ("a comma in quotes is a comma", "xff", P, &[(XFF, "\"198.51.100.7,203.0.113.9\"")], [P, "", ""]),
    ("IPv6", "xff", P, &[(XFF, "2001:db8::1")], ["2001:db8::1", "", ""]),
    ("IPv6 in brackets with a port", "xff", P, &[(XFF, "[2001:db8::1]:443")], ["2001:db8::1", "", ""]),
    ("IPv6 with a zone", "xff", P, &[(XFF, "fe80::1%eth0")], ["fe80::1", "", ""]),
    ("IPv6 in brackets with a zone", "xff", P, &[(XFF, "[fe80::1%25en0]:443")], ["fe80::1", "", ""]),
    ("IPv4 in brackets", "xff", P, &[(XFF, "[203.0.113.9]")], [P, "", ""]),
    ("IPv4 in IPv6 clothes", "xff", P, &[(XFF, "::ffff:203.0.113.9")], [C, "", ""]),
    ("the same in hexadecimal", "xff", P, &[(XFF, "[::ffff:cb00:7109]:80")], [C, "", ""]),
    ("a proxy in IPv6 clothes vouches", "xff", "::ffff:10.0.0.1", &[(XFF, C)], [C, "", ""]),
    ("a stranger in IPv6 clothes", "xff", "::ffff:203.0.113.9", &[(XFF, V)], [C, "", ""]),
    ("a proxy of the list in IPv6 clothes", "xff", P, &[(XFF, "203.0.113.9, ::ffff:10.0.0.2")], [C, "", ""]),
    ("an IPv6 proxy", "xff", "2001:db8:ffff::1", &[(XFF, "198.51.100.7, 203.0.113.9")], [C, "", ""]),
    ("an IPv6 stranger", "xff", "2001:db8:fffe::1", &[(XFF, V)], ["2001:db8:fffe::1", "", ""]),
    // Exactly one header counts.
    ("Forwarded beside the list", "xff", P, &[(FWD, "for=198.51.100.7"), (XFF, C)], [C, "", ""]),
    ("Forwarded in place of the list", "xff", P, &[(FWD, "for=198.51.100.7")], [P, "", ""]),
    ("the list in place of Forwarded", "forwarded", P, &[(XFF, V)], [P, "", ""]),
    ("X-Real-IP where it does not count", "xff", P, &[("X-Real-IP", V), (XFF, C)], [C, "", ""]),
    ("all of them where the peer counts", "peer", P, &[("X-Real-IP", V), (XFF, V), (FWD, "for=198.51.100.7")], [P, "", ""]),
    ("one address", "real-ip", P, &[("X-Real-IP", C)], [C, "", ""]),
    ("one address, twice", "real-ip", P, &[("X-Real-IP", V), ("X-Real-IP", C)], [P, "", ""]),
    ("the same address twice", "real-ip", P, &[("X-Real-IP", C), ("x-real-ip", C)], [P, "", ""]),
    ("a list where one address should be", "real-ip", P, &[("X-Real-IP", "198.51.100.7, 203.0.113.9")], [P, "", ""]),
    ("one address from a stranger", "real-ip", C, &[("X-Real-IP", V)], [C, "", ""]),
    // Users and tiers.
    ("a proxy names both", "xff", P, &[("X-User", "42"), ("X-Tier", "gold")], [P, "42", "gold"]),
    ("a user added before the proxy's", "xff", P, &[("X-User", "admin"), ("X-User", "42")], [P, "", ""]),
    ("a tier added in other capitals", "xff", P, &[("x-tier", "gold"), ("X-Tier", "free")], [P, "", ""]),
    ("the same user twice", "xff", P, &[("X-User", "42"), ("X-User", "42")], [P, "", ""]),
    ("users are not lists", "xff", P, &[("X-User", "admin,42")], [P, "admin,42", ""]),
    ("a header with an underscore", "xff", P, &[("X_User", "admin")], [P, "", ""]),
    ("a trusted client names no user", "xff", C, &[(XFF, P), ("X-User", "42")], [C, "", ""]),
    // Forwarded.
    ("an element", "forwarded", P, &[(FWD, "for=203.0.113.9;proto=https;by=10.0.0.1")], [C, "", ""]),
    ("the client wrote an element", "forwarded", P, &[(FWD, "for=198.51.100.7, for=203.0.113.9")], [C, "", ""]),
    ("the client sent a line", "forwarded", P, &[(FWD, "for=198.51.100.7"), (FWD, "for=203.0.113.9")], [C, "", ""]),
    ("through two proxies, with ports", "forwarded", P, &[(FWD, "for=198.51.100.7, For=\"203.0.113.9:4711\", FOR=10.0.0.2")], [C, "", ""]),
    ("IPv6 in quotes", "forwarded", P, &[(FWD, "for=\"[2001:db8::1]:4711\"")], ["2001:db8::1", "", ""]),
    ("an open quote swallows nothing", "forwarded", P, &[(FWD, "for=\"198.51.100.7, for=203.0.113.9")], [C, "", ""]),
    ("an open quote in its own line", "forwarded", P, &[(FWD, "for=\""), (FWD, "for=\"203.0.113.9:1\"")], [C, "", ""]),
    ("an open quote with a backslash", "forwarded", P, &[(FWD, "for=\"\\"), (FWD, "for=\"203.0.113.9\"")], [C, "", ""]),
    ("a comma that the proxy quoted", "forwarded", P, &[(FWD, "for=203.0.113.9;host=\"a,b\"")], [C, "", ""]),
    ("an element inside quotes", "forwarded", P, &[(FWD, "for=203.0.113.9;host=\"a, for=198.51.100.7;b=\"")], [C, "", ""]),
    ("an element inside escaped quotes", "forwarded", P, &[(FWD, "for=203.0.113.9;host=\"\\\", for=198.51.100.7;b=\\\"\"")], [C, "", ""]),
    ("a `for` inside quotes", "forwarded", P, &[(FWD, "host=\";for=198.51.100.7;\";for=203.0.113.9")], [C, "", ""]),
    ("two of them", "forwarded", P, &[(FWD, "for=198.51.100.7;for=203.0.113.9")], [P, "", ""]),
    ("none of them", "forwarded", P, &[(FWD, "for=198.51.100.7, proto=https")], [P, "", ""]),
    ("a hidden client", "forwarded", P, &[(FWD, "for=198.51.100.7, for=_SEVKISEK")], [P, "", ""]),
    ("an unknown client", "forwarded", P, &[(FWD, "for=198.51.100.7, for=unknown")], [P, "", ""]),
    ("a hidden port", "forwarded", P, &[(FWD, "for=\"203.0.113.9:_x\"")], [C, "", ""]),
    ("`by` is not `for`", "forwarded", P, &[(FWD, "by=198.51.100.7")], [P, "", ""]),
    ("a name that ends like it", "forwarded", P, &[(FWD, "for=203.0.113.9;x-for=198.51.100.7")], [C, "", ""]),
    ("an address alone", "forwarded", P, &[(FWD, "198.51.100.7")], [P, "", ""]),
    // Hops.
    ("one hop", "1 hop", P, &[(XFF, "198.51.100.7, 203.0.113.9")], [C, "", ""]),
    ("one hop, from a proxy's address", "1 hop", P, &[(XFF, "198.51.100.7, 10.0.0.9")], ["10.0.0.9", "", ""]),
    ("two hops", "2 hops", P, &[(XFF, "198.51.100.7, 203.0.113.9, 192.0.2.1")], [C, "", ""]),
    ("two hops, the client wrote nothing", "2 hops", P, &[(XFF, "203.0.113.9, 192.0.2.1")], [C, "", ""]),
    ("past the first proxy", "2 hops", P, &[(XFF, C)], [P, "", ""]),
    ("two hops, no list", "2 hops", P, &[], [P, "", ""]),
    ("two hops, garbage at its place", "2 hops", P, &[(XFF, "198.51.100.7, garbage, 192.0.2.1")], [P, "", ""]),
    ("two hops from a stranger", "2 hops", C, &[(XFF, "198.51.100.7, 192.0.2.1")], [C, "", ""]),
    ("two hops of elements", "2 hops, forwarded", P, &[(FWD, "for=203.0.113.9, for=unknown")], [C, "", ""]),
    ("two hops over what is no element", "2 hops, forwarded", P, &[(FWD, "for=198.51.100.7, for=\"")], [P, "", ""]),
    // Translated addresses.
    ("a translated peer", "nat64", "64:ff9b::203.0.113.9", &[(XFF, V)], [C, "", ""]),
    ("a translated client", "nat64", P, &[(XFF, "64:ff9b::cb00:7109")], [C, "", ""]),
    ("a translated address of ours is a stranger's", "nat64", "64:ff9b::10.0.0.1", &[(XFF, V)], [P, "", ""]),
    ("also in a list", "nat64", P, &[(XFF, "198.51.100.7, 64:ff9b::10.0.0.2")], ["10.0.0.2", "", ""]),
    ("unless translators are trusted", "nat64 proxies", P, &[(XFF, "203.0.113.9, 64:ff9b::10.0.0.2")], [C, "", ""]),
    ("not translated by default", "xff", P, &[(XFF, "64:ff9b::203.0.113.9")], ["64:ff9b::cb00:7109", "", ""]),
    // API keys.
    ("a key is a user", "api key", C, &[("X-Key", "abc")], [C, "sha256:ba7816bf8f01cfea414140de5dae2223", ""]),
    ("through a proxy, too", "api key", P, &[("X-Key", "abc"), (XFF, C)], [C, "sha256:ba7816bf8f01cfea414140de5dae2223", ""]),
    ("a hash is not the key", "api key", C, &[("X-Key", "sha256:ba7816bf8f01cfea414140de5dae2223")], [C, "sha256:a588b7f800645b87ab7e2fd5666a1f42", ""]),
    ("a key sent twice is a key", "api key", C, &[("X-Key", "abc"), ("X-Key", "def")], [C, "sha256:ba7816bf8f01cfea414140de5dae2223", ""]),
    ("an empty key is none", "api key", C, &[("X-Key", "")], [C, "", ""]),
    ("a key brings no tier", "api key", C, &[("X-Key", "abc"), ("X-Tier", "gold")], [C, "sha256:ba7816bf8f01cfea414140de5dae2223", ""]),
];

fn identify(name: &str) -> Identify {
    let (_, text) = CONFIGURATIONS.iter().find(|(one, _)| *one == name).expect("a configuration");
    let rules = "rules: [{ name: api, key: global, limits: [1/s] }]";
    let text = format!("identify: {{ {text} }}\n{rules}\n");
    let compiled = compile(&[Source::from_text("t.yaml", &text)]);
    compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics)).settings().identify.clone()
}

#[test]
fn nobody_is_taken_for_somebody_else() {
    assert!(ROWS.len() >= 100);
    let mut wrong = Vec::new();
    for (about, configuration, peer, fields, [ip, user, tier]) in ROWS {
        let identify = identify(configuration);
        let peer: IpAddr = peer.parse().unwrap();
        let headers: Vec<(&str, String)> =
            fields.iter().map(|(name, value)| (*name, value.to_string())).collect();
        let got = identify.identify(peer, &headers, Micros::new(0));
        let want = (Some(ip.parse().unwrap()), some(user), some(tier));
        if (got.ip, got.user.as_deref(), got.tier.as_deref()) != want {
            wrong.push(format!("{about}: {got:?}, not {want:?}"));
        }
        let other = oracle(&identify, peer, &headers);
        if got != other {
            wrong.push(format!("{about}: {got:?}, the oracle says {other:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn some(text: &'static str) -> Option<&'static str> {
    (!text.is_empty()).then_some(text)
}

#[test]
fn lists_of_any_length_are_read_from_their_end() {
    let identify = identify("xff");
    // What the client writes, and whom it is taken for behind one proxy.
    let rows = [
        ("1.1.1.1,".repeat(40), C),
        ("x".repeat(5_000) + ",", C),
        ("\u{fffd},".into(), C),
        ("10.0.0.7,".repeat(10_000), C),
        (String::new(), C),
    ];
    for (left, want) in rows {
        let headers = vec![(XFF, left + C + ", 10.0.0.2")];
        let got = identify.identify(P.parse().unwrap(), &headers, Micros::new(0));
        assert_eq!(got.ip, want.parse().ok(), "{} bytes", headers[0].1.len());
        assert_eq!(got, oracle(&identify, P.parse().unwrap(), &headers));
    }
    // Proxies alone, more than are looked at: the walk ends, and nobody is asked further.
    let headers = vec![(XFF, C.to_owned() + &", 10.0.0.7".repeat(32))];
    let got = identify.identify(P.parse().unwrap(), &headers, Micros::new(0));
    assert_eq!(got.ip, "10.0.0.7".parse().ok());
}

/// A gatekeeper of one rule that allows 100 requests an hour per address, and few keys in all.
fn by_address(ip: &str) -> Gatekeeper<Arc<MemoryStore>> {
    by_address_on(&Arc::new(MemoryStore::new(1_000)), ip)
}

/// The same, with its table.
fn by_address_on(store: &Arc<MemoryStore>, ip: &str) -> Gatekeeper<Arc<MemoryStore>> {
    let text = format!(
        "identify: {{ ip: {{ {ip} }} }}\n\
         rules: [{{ name: a, key: '{{ip}}', limits: [{{ rate: 100/hour, burst: 100 }}] }}]\n"
    );
    let compiled = compile(&[Source::from_text("t.yaml", &text)]);
    let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
    Gatekeeper::new(rules, Arc::clone(store), SystemClock)
}

/// How many requests of these addresses pass at one instant.
fn passing(
    gatekeeper: &Gatekeeper<Arc<MemoryStore>>,
    addresses: impl Iterator<Item = IpAddr>,
) -> usize {
    let allowed = |ip: IpAddr| {
        let facts = Facts { ip: Some(ip), ..Facts::default() };
        gatekeeper.decide_at(&Ask { facts, ..Ask::default() }, Micros::from_secs(1)).allowed()
    };
    addresses.filter(|ip| allowed(*ip)).count()
}

/// So many addresses of the network that this one is in, all over its 64 bits.
fn addresses(network: &str, many: u64) -> impl Iterator<Item = IpAddr> {
    let network = u128::from(network.parse::<Ipv6Addr>().unwrap());
    let host = |n: u64| u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (1..=many).map(move |n| IpAddr::V6(Ipv6Addr::from(network | host(n))))
}

#[test]
fn a_million_addresses_of_one_network_are_one_caller() {
    let store = Arc::new(MemoryStore::new(1_000));
    let gatekeeper = by_address_on(&store, "header: none");
    assert_eq!(passing(&gatekeeper, addresses("2001:db8:0:1::", 1 << 20)), 100);
    assert_eq!(store.stats().keys, 1, "the table does not fill");
    for neighbour in ["2001:db8::", "2001:db8:0:2::", "2001:db8:0:8001::"] {
        assert_eq!(passing(&gatekeeper, addresses(neighbour, 1_000)), 100, "{neighbour}");
    }
    let stats = store.stats();
    assert_eq!((stats.keys, stats.evicted, stats.overflowed), (4, 0, 0));
}

#[test]
fn how_much_of_an_address_is_one_caller_can_be_chosen() {
    let networks = || ["2001:db8:0:1::", "2001:db8:0:2::", "2001:db8:1:1::"].into_iter();
    for (ip, want) in
        [("ipv6_prefix: 48", 200), ("ipv6_prefix: 32", 100), ("ipv6_prefix: 128", 600)]
    {
        let gatekeeper = by_address(ip);
        let addresses = networks().flat_map(|network| addresses(network, 200));
        assert_eq!(passing(&gatekeeper, addresses), want, "{ip}");
    }
    // IPv4 is whole, also in its two disguises.
    let clothed = |n: u128| IpAddr::V6(Ipv6Addr::from((0xffff << 32) | 0xcb00_7100 | n));
    assert_eq!(passing(&by_address("ipv6_prefix: 64"), (0..200).map(clothed)), 200);
    let translated = |n: u128| IpAddr::V6(Ipv6Addr::from((0x0064_ff9b << 96) | 0xcb00_7100 | n));
    assert_eq!(passing(&by_address("nat64: true"), (0..200).map(translated)), 200);
    assert_eq!(passing(&by_address("nat64: false"), (0..200).map(translated)), 100);
}
