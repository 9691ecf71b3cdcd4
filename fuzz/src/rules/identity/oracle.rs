//! An oracle for the caller's identity: it parses whole lists by trying every reading, and only then decides which
//! entry counts. It is slow and follows the documentation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sha2::{Digest, Sha256};
use tollgate_rules::identify::{AddressSource, UserSource};
use tollgate_rules::{Identify, Identity};

type OracleHeaders<'a> = [(&'a str, String)];

/// Identifies the caller.
pub fn oracle<'a>(
    identify: &Identify,
    peer: IpAddr,
    headers: &'a OracleHeaders<'a>,
) -> Identity<'a> {
    let all = |wanted: &str| -> Vec<&'a str> {
        let named = headers.iter().filter(|(name, _)| name.to_lowercase() == wanted);
        named.map(|(_, value)| value.as_str()).collect()
    };
    let only = |name: &str| all(name).pop().filter(|_| all(name).len() == 1);
    let peer = unmapped(peer);
    let trusted = is_trusted(identify, peer);
    let user = match &identify.user {
        UserSource::Header(name) if trusted => only(name).map(Into::into),
        UserSource::ApiKey(name) => match all(name).first() {
            None | Some(&"") => None,
            Some(key) => Some(hash(key).into()),
        },
        _ => None,
    };
    let named_tier = || only(identify.tier_header.as_deref()?).map(Into::into);
    let ip = if trusted { client(identify, peer, &all) } else { peer };
    Identity {
        ip: Some(if identify.nat64 { embedded(ip) } else { ip }),
        user,
        api_key: identify
            .api_key_header
            .as_deref()
            .and_then(|name| all(name).first().copied())
            .map(Into::into),
        tier: if trusted { named_tier() } else { None },
    }
}

fn client<'a>(identify: &Identify, peer: IpAddr, all: &dyn Fn(&str) -> Vec<&'a str>) -> IpAddr {
    let said = match &identify.address {
        AddressSource::Peer => return peer,
        AddressSource::XForwardedFor => addresses(&all("x-forwarded-for")),
        AddressSource::Forwarded => elements(&all("forwarded")),
        AddressSource::Header(name) => match all(name)[..] {
            [one] => return unquoted_address(one).unwrap_or(peer),
            _ => return peer,
        },
    };
    if let Some(hops) = identify.trusted_hops {
        return said.get(usize::from(hops) - 1).copied().flatten().unwrap_or(peer);
    }
    // The chain of hops from here to the client. Each trusted one vouches for the one before it.
    let known = said.iter().map_while(|ip| *ip);
    let chain: Vec<IpAddr> = std::iter::once(peer).chain(known).collect();
    let trusted = chain.iter().take_while(|ip| is_trusted(identify, **ip)).count();
    chain[trusted.min(chain.len() - 1)]
}

/// The lines of a header as one list, and the start of its last 2,048 bytes.
fn joined(lines: &[&str]) -> Option<(String, usize)> {
    let list = lines.join(",");
    let seen_from = list.len().saturating_sub(2_048);
    (!lines.is_empty()).then_some((list, seen_from))
}

/// The addresses in `X-Forwarded-For`, the last one first.
fn addresses(lines: &[&str]) -> Vec<Option<IpAddr>> {
    let Some((list, seen_from)) = joined(lines) else { return Vec::new() };
    let mut found = Vec::new();
    let mut start = 0;
    for entry in list.split(',') {
        // With the comma before it.
        if start == 0 && seen_from == 0 || start > seen_from {
            found.push(unquoted_address(entry));
        }
        start += entry.len() + 1;
    }
    found.reverse();
    found.truncate(32);
    found
}

/// The addresses in `Forwarded`, the last one first. An element is any end of the remaining text that parses
/// as one.
fn elements(lines: &[&str]) -> Vec<Option<IpAddr>> {
    let Some((list, seen_from)) = joined(lines) else { return Vec::new() };
    let mut found = Vec::new();
    let mut end = Some(list.len());
    while let Some(to) = end
        && found.len() < 32
    {
        let commas = list[..to].match_indices(',').map(|(at, _)| at + 1).rev();
        let starts = commas.filter(|start| *start > seen_from).chain((seen_from == 0).then_some(0));
        let mut read = starts.map(|start| (start, element(&list[start..to])));
        let Some((start, Some(said))) = read.find(|(_, said)| said.is_some()) else { break };
        found.push(said);
        end = start.checked_sub(1);
    }
    found
}

/// The `for` of an element, if this is one.
fn element(text: &str) -> Option<Option<IpAddr>> {
    let mut values = Vec::new();
    for pair in pairs(text)? {
        let pair = pair.trim_matches([' ', '\t']);
        if pair.is_empty() {
            continue;
        }
        let (name, value) = pair.split_once('=')?;
        let odd = |c: char| !c.is_ascii_graphic() || "\"(),/:;<=>?@[\\]{}".contains(c);
        if name.is_empty() || name.contains(odd) {
            return None;
        }
        let value = match value.strip_prefix('"') {
            Some(quoted) => unescaped(quoted.strip_suffix('"')?)?,
            None if value.is_empty() || value.contains([',', '"', '\\', ' ', '\t']) => return None,
            None => value.to_owned(),
        };
        if name.to_lowercase() == "for" {
            values.push(value);
        }
    }
    match &values[..] {
        [] => Some(None),
        [one] => Some(address(one)),
        _ => None,
    }
}

/// The texts between semicolons that are not in quotes; `None` if a quote is not closed.
fn pairs(text: &str) -> Option<Vec<String>> {
    let mut pairs = vec![String::new()];
    let (mut quoted, mut escaped) = (false, false);
    for c in text.chars() {
        let last = pairs.last_mut().expect("never empty");
        match c {
            ';' if !quoted => pairs.push(String::new()),
            _ => last.push(c),
        }
        match (quoted, escaped, c) {
            (true, true, _) => escaped = false,
            (true, false, '\\') => escaped = true,
            (_, _, '"') => quoted = !quoted,
            _ => {}
        }
    }
    (!quoted).then_some(pairs)
}

/// The inside of quotes. A quote in it must be escaped, and the last backslash must escape something.
fn unescaped(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut escaped = false;
    for c in text.chars() {
        match (escaped, c) {
            (false, '\\') => escaped = true,
            (false, '"') => return None,
            (_, c) => {
                out.push(c);
                escaped = false;
            }
        }
    }
    (!escaped).then_some(out)
}

/// Returns true if the address is in a trusted network.
pub fn is_trusted(identify: &Identify, ip: IpAddr) -> bool {
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

pub fn unmapped(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) if v6.to_bits() >> 32 == 0xffff => {
            IpAddr::V4(Ipv4Addr::from_bits(v6.to_bits() as u32))
        }
        ip => ip,
    }
}

fn embedded(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) if v6.to_bits() >> 32 == 0x0064_ff9b_u128 << 64 => {
            IpAddr::V4(Ipv4Addr::from_bits(v6.to_bits() as u32))
        }
        ip => ip,
    }
}

fn unquoted_address(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches([' ', '\t']);
    let is_quoted = text.len() > 1 && text.starts_with('"') && text.ends_with('"');
    address(if is_quoted { &text[1..text.len() - 1] } else { text })
}

/// `1.2.3.4`, `1.2.3.4:80`, `::1`, `[::1]`, `[::1]:80`, with a zone or without: cut into its parts from
/// the end.
fn address(text: &str) -> Option<IpAddr> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c);
    let is_port = |port: &str| match port.strip_prefix('_') {
        Some(name) => !name.is_empty() && name.chars().all(is_name),
        None => port.parse::<u16>().is_ok() && port.chars().all(|c| c.is_ascii_digit()),
    };
    let v6 = |text: &str| -> Option<IpAddr> {
        let mut parts = text.splitn(2, '%');
        let ip: Ipv6Addr = parts.next()?.parse().ok()?;
        let zone = parts.next().unwrap_or("none");
        (!zone.is_empty() && zone.chars().all(is_name)).then_some(unmapped(IpAddr::V6(ip)))
    };
    if text.starts_with('[') {
        let end = text.find(']')?;
        let after = &text[end + 1..];
        let good = after.is_empty() || after.starts_with(':') && is_port(&after[1..]);
        return v6(&text[1..end]).filter(|_| good);
    }
    match text.matches(':').count() {
        0 => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        1 => {
            let colon = text.find(':')?;
            let ip = text[..colon].parse::<Ipv4Addr>().ok().map(IpAddr::V4);
            ip.filter(|_| is_port(&text[colon + 1..]))
        }
        _ => v6(text),
    }
}

/// The hash that replaces an API key.
pub fn hash(key: &str) -> String {
    let digits: String = Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{}", &digits[..32])
}
