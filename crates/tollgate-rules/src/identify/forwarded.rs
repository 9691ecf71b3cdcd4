//! One element of the `Forwarded` header (RFC 7239): `for="[2001:db8::1]:4711";proto=https`.
//!
//! Read strictly: an element that is not quite one was not written by a proxy that can be relied
//! on, and a header that two readers could read differently is treated as an attack.

use std::borrow::Cow;
use std::net::IpAddr;

use super::address::{address, trimmed};

/// The address after `for`, if the element has one: proxies may hide it. The outer `None`: this is
/// no element, and nothing left of it can be relied on.
pub(super) fn forwarded_for(element: &str) -> Option<Option<IpAddr>> {
    let mut found = None;
    let mut rest = trimmed(element);
    while !rest.is_empty() {
        if let Some(next) = rest.strip_prefix(';') {
            rest = trimmed(next);
            continue;
        }
        let (name, after) = rest.split_once('=')?;
        let (value, after) = value(after)?;
        rest = trimmed(after);
        let ends = rest.is_empty() || rest.starts_with(';');
        if !is_token(name) || !ends {
            return None;
        }
        if name.eq_ignore_ascii_case("for") && found.replace(value).is_some() {
            return None;
        }
    }
    Some(found.and_then(|value| address(&value)))
}

/// A value, plain or in quotes, and what follows it. Plain ones may have the brackets and colons of
/// addresses: many proxies forget the quotes.
fn value(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([';', ',', '"', '\\', ' ', '\t']).unwrap_or(text.len());
        let (value, after) = text.split_at(end);
        return (!value.is_empty()).then_some((Cow::Borrowed(value), after));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((Cow::Owned(value), &quoted[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            char => value.push(char),
        }
    }
    None
}

/// Returns true for the name of a parameter.
fn is_token(name: &str) -> bool {
    let is_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_read_strictly() {
        let some = |ip: &str| Some(Some(ip.parse().unwrap()));
        let hidden = Some(None);
        let cases = [
            ("for=192.0.2.1", some("192.0.2.1")),
            (" FOR=\"192.0.2.1:80\" ; proto=https ;", some("192.0.2.1")),
            ("by=10.0.0.1;for=192.0.2.1", some("192.0.2.1")),
            ("for=[2001:db8::1]:80", some("2001:db8::1")),
            ("for=\"[2001:db8::1]:_port\"", some("2001:db8::1")),
            ("for=\"192.0.\\2.1\"", some("192.0.2.1")),
            ("for=192.0.2.1;host=\"a,b;for=1.1.1.1\"", some("192.0.2.1")),
            ("for=192.0.2.1;host=\"a\\\";for=1.1.1.1;x=\\\"\"", some("192.0.2.1")),
            (";;for=192.0.2.1", some("192.0.2.1")),
            ("for=\"\"", hidden),
            ("for=\"\\\"192.0.2.1\\\"\"", hidden),
            ("for=\" 192.0.2.1\"", hidden),
            ("for=unknown", hidden),
            ("for=_hidden", hidden),
            ("proto=https", hidden),
            ("", hidden),
            ("for=192.0.2.1;for=192.0.2.1", None),
            ("for=192.0.2.1;For=1.1.1.1", None),
            ("for =192.0.2.1", None),
            ("for= 192.0.2.1", None),
            ("for=", None),
            ("for", None),
            ("for=192.0.2.1;junk", None),
            ("for=192.0.2.1;=a", None),
            ("for=\"192.0.2.1", None),
            ("for=192.0.2.1\"", None),
            ("for=\"192.0.2.1\"x", None),
            ("for=\"192.0.2.1\\", None),
            ("192.0.2.1", None),
        ];
        for (element, want) in cases {
            assert_eq!(forwarded_for(element), want, "{element:?}");
        }
    }
}
