//! Hosts in their one spelling: `API.Example.:443` and `api.example` are one host to every server.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use idna::AsciiDenyList;
use percent_encoding::percent_decode_str;

/// The most bytes of a host that are looked up in tables of letters. No name of the DNS is longer than 253.
const INTERNATIONAL_BYTES_MAX: usize = 1_024;

/// The one spelling of a host, as `Host`, `:authority` or an operator writes it: in lower case, without a user, a port
/// and dots at its end, international names in ASCII (IDNA), IPv6 addresses in brackets and short. `None` if nothing is
/// left. A text that is no host only becomes lower case, so that it is still a value. Allocates nothing for a host that
/// is already spelt so, whether or not a port or a dot follows.
pub fn normalize_host(text: &str) -> Option<Cow<'_, str>> {
    let text = text.trim_matches([' ', '\t']);
    let text = text.rsplit('@').next().unwrap_or(text);
    if text.starts_with('[') {
        return Some(bracketed(text));
    }
    let name = match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => return Some(many_colons(text)),
        Some((name, _)) => name,
        None => text,
    };
    let name = name.trim_end_matches('.');
    match name.bytes().all(is_normal) {
        true => (!name.is_empty()).then_some(Cow::Borrowed(name)),
        false => Some(respelt(name)).filter(|name| !name.is_empty()).map(Cow::Owned),
    }
}

/// Returns true for the bytes of names in their one spelling.
fn is_normal(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.' | b'_')
}

/// A name with capitals, escapes or letters beyond ASCII.
#[cold]
fn respelt(name: &str) -> String {
    let decoded = match name.contains('%') {
        true => percent_decode_str(name).decode_utf8().unwrap_or(Cow::Borrowed(name)),
        false => Cow::Borrowed(name),
    };
    if !decoded.is_ascii() && decoded.len() <= INTERNATIONAL_BYTES_MAX {
        let ascii = idna::domain_to_ascii_cow(decoded.as_bytes(), AsciiDenyList::URL);
        if let Ok(ascii) = ascii {
            return ascii.trim_end_matches('.').into();
        }
    }
    let mut name = decoded.into_owned();
    name.make_ascii_lowercase();
    name
}

/// `[2001:DB8::1]:443` as `[2001:db8::1]`.
fn bracketed(text: &str) -> Cow<'_, str> {
    let end = text.find(']').unwrap_or(text.len());
    let (inside, behind) = (&text[1..end], text.get(end + 1..).unwrap_or_default());
    match inside.parse::<Ipv6Addr>() {
        Ok(address) if behind.is_empty() || behind.starts_with(':') => {
            let normal = format!("[{address}]");
            let written = &text[..=end];
            if normal == written { Cow::Borrowed(written) } else { Cow::Owned(normal) }
        }
        _ => Cow::Owned(text.to_ascii_lowercase()),
    }
}

/// An IPv6 address that lacks its brackets, or no host.
#[cold]
fn many_colons(text: &str) -> Cow<'_, str> {
    match text.parse::<Ipv6Addr>() {
        Ok(address) => Cow::Owned(format!("[{address}]")),
        Err(_) => Cow::Owned(text.to_ascii_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_spelling() {
        let rows = [
            ("api.example", Some("api.example")),
            ("API.Example", Some("api.example")),
            ("api.example.", Some("api.example")),
            ("api.example..", Some("api.example")),
            ("api.example:1", Some("api.example")),
            ("api.example.:443", Some("api.example")),
            ("api.example:", Some("api.example")),
            (" api.example\t", Some("api.example")),
            ("user:secret@api.example:80", Some("api.example")),
            ("%41pi.example", Some("api.example")),
            ("b\u{fc}cher.example", Some("xn--bcher-kva.example")),
            ("BU\u{308}CHER.example.:80", Some("xn--bcher-kva.example")),
            ("b%C3%BCcher.example", Some("xn--bcher-kva.example")),
            ("XN--BCHER-KVA.example", Some("xn--bcher-kva.example")),
            ("\u{ff41}\u{ff50}\u{ff49}\u{3002}example\u{3002}", Some("api.example")),
            ("stra\u{df}e.example", Some("xn--strae-oqa.example")),
            ("192.0.2.1:80", Some("192.0.2.1")),
            ("[2001:DB8:0::1]:443", Some("[2001:db8::1]")),
            ("[2001:db8::1]", Some("[2001:db8::1]")),
            ("2001:DB8::1", Some("[2001:db8::1]")),
            ("my_service", Some("my_service")),
            ("", None),
            (".", None),
            (":80", None),
            // No hosts: still values, of which none is mistaken for another host.
            ("api.example:80:80", Some("api.example:80:80")),
            ("[::1].Evil", Some("[::1].evil")),
            ("[", Some("[")),
            ("a b", Some("a b")),
            ("%FFa", Some("%ffa")),
        ];
        for (text, want) in rows {
            assert_eq!(normalize_host(text).as_deref(), want, "{text:?}");
            let again = want.and_then(normalize_host);
            assert_eq!(again.as_deref(), want, "{text:?} twice");
        }
        let long = "\u{fc}".repeat(INTERNATIONAL_BYTES_MAX);
        assert_eq!(normalize_host(&long).as_deref(), Some(&*long), "bounded work");
    }

    #[test]
    fn a_normal_host_is_borrowed() {
        for text in ["api.example", "api.example:80", "api.example.", "192.0.2.1:1", "[::1]:80"] {
            assert!(matches!(normalize_host(text), Some(Cow::Borrowed(_))), "{text}");
        }
    }
}
