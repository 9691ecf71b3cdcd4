//! Paths in one spelling, so that no other spelling of a path escapes the rules for it.
//!
//! `/api/../admin`, `//admin/`, `/%61dmin`, `/admin?x=1` and `http://host/admin` all name `/admin`
//! to every server behind us. Every path is brought to one form before a rule looks at it, and the
//! patterns of rules are written in that form too. `/api%2Fadmin`, `/api\\admin` and `/api/admin;x=1`
//! name `/api/admin` to some servers and something else to others: such a path has a *loose* form
//! beside its normal one, and meets the rules of both. What comes in is untrusted, so this cannot fail:
//! whatever the bytes, there is a normal form, and the normal form of that is itself.
//!
//! * the query and what follows it, and the scheme and host of a full URL, are dropped;
//! * characters that need no escape are unescaped (`%61` → `a`), all others are escaped in capitals
//!   (`é` → `%C3%A9`, `%2f` → `%2F`); a `%` that escapes nothing is itself escaped;
//! * `.` and `..` are resolved, never above the root; empty segments disappear, and with them a
//!   slash at the end.

use std::borrow::Cow;

/// The one spelling of a path.
pub fn normalise(raw: &str) -> Cow<'_, str> {
    let path = path_of(raw);
    if is_normal(path) { Cow::Borrowed(path) } else { Cow::Owned(rewrite(path)) }
}

/// What remains without scheme, host, query and fragment.
fn path_of(raw: &str) -> &str {
    let end = raw.bytes().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(raw.len());
    let path = &raw[..end];
    if path.starts_with('/') {
        return path;
    }
    match path.split_once("://") {
        Some((scheme, rest)) if scheme.bytes().all(is_of_scheme) => {
            rest.find('/').map_or("", |slash| &rest[slash..])
        }
        _ => path,
    }
}

fn is_of_scheme(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)
}

/// The form that servers see which unescape slashes, take backslashes for them, or cut parameters off
/// segments; `None` if it is the same.
pub fn loosen(normal: &str) -> Option<String> {
    // Most paths have neither, and one look at each byte says so.
    if !normal.bytes().any(|byte| matches!(byte, b';' | b'%')) {
        return None;
    }
    let differs = normal.contains(';') || normal.contains("%2F") || normal.contains("%5C");
    differs.then(|| {
        let whole = normal.replace("%2F", "/").replace("%5C", "/");
        let segments =
            whole.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
        rewrite(&segments.collect::<Vec<_>>().join("/"))
    })
}

/// Whether nothing is to be done; the usual case, and so the fast one.
fn is_normal(path: &str) -> bool {
    let bytes = path.as_bytes();
    if bytes.first() != Some(&b'/') || (bytes.len() > 1 && bytes.ends_with(b"/")) {
        return false;
    }
    // A dot matters only at the start of a segment, where it may be all there is.
    let mut after_slash = false;
    for &byte in bytes {
        match byte {
            b'/' | b'.' if after_slash => return false,
            b'/' => after_slash = true,
            _ if is_plain(byte) => after_slash = false,
            _ => return false,
        }
    }
    true
}

fn rewrite(path: &str) -> String {
    let mut normal = String::with_capacity(path.len() + 1);
    for segment in path.split('/') {
        let before = normal.len();
        normal.push('/');
        push_spelled(&mut normal, segment.as_bytes());
        match &normal[before + 1..] {
            "" | "." => normal.truncate(before),
            ".." => normal.truncate(normal[..before].rfind('/').unwrap_or(0)),
            _ => {}
        }
    }
    if normal.is_empty() {
        normal.push('/');
    }
    normal
}

/// Writes a segment with exactly those characters escaped that need it.
pub(crate) fn push_spelled(normal: &mut String, segment: &[u8]) {
    let mut rest = segment;
    while let [byte, after @ ..] = rest {
        let (byte, after) = match (byte, after) {
            (b'%', [high, low, after @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                _ => (b'%', &rest[1..]),
            },
            _ => (*byte, after),
        };
        if is_plain(byte) {
            normal.push(char::from(byte));
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            normal.push('%');
            normal.push(char::from(DIGITS[usize::from(byte >> 4)]));
            normal.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        rest = after;
    }
}

/// What a segment may carry as it is (RFC 3986: pchar).
fn is_plain(byte: u8) -> bool {
    PLAIN[usize::from(byte)]
}

/// A table, because every byte of every path is looked up.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let signs = b"-._~!$&'()*+,;=:@";
    let mut index = 0;
    while index < signs.len() {
        plain[signs[index] as usize] = true;
        index += 1;
    }
    let mut byte = 0;
    while byte < 128 {
        plain[byte] |= (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    plain
};

pub(crate) fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling_for_each_path() {
        let cases = [
            ("/", "/"),
            ("", "/"),
            ("/api/search", "/api/search"),
            ("/api/search/", "/api/search"),
            ("/api//search", "/api/search"),
            ("/api/search?q=1&x=/../y", "/api/search"),
            ("/api/search#top", "/api/search"),
            ("/api/./search", "/api/search"),
            ("/api/x/../search", "/api/search"),
            ("/api/%2e%2E/search", "/search"),
            ("/../../etc", "/etc"),
            ("/..", "/"),
            ("/%61pi/s%65arch", "/api/search"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a\\b", "/a%5Cb"),
            ("/caf\u{e9}", "/caf%C3%A9"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/a b", "/a%20b"),
            ("/100%", "/100%25"),
            ("/%zz", "/%25zz"),
            ("/%2", "/%252"),
            ("/%25zz", "/%25zz"),
            ("/%2561", "/%2561"),
            ("/a%00b", "/a%00b"),
            ("/.well-known/x", "/.well-known/x"),
            ("/a/...", "/a/..."),
            ("http://example.org/api?x", "/api"),
            ("http://example.org", "/"),
            ("https://example.org?x=/y", "/"),
            ("api", "/api"),
            ("*", "/*"),
        ];
        for (raw, want) in cases {
            assert_eq!(normalise(raw), want, "{raw:?}");
            assert_eq!(normalise(want), want, "{want:?} is not stable");
        }
    }

    #[test]
    fn what_servers_disagree_about_has_a_loose_form() {
        let cases = [
            ("/api/login", None),
            ("/api%2Flogin", Some("/api/login")),
            ("/api/login%2f", Some("/api/login")),
            ("/api/x%2F..%2Flogin", Some("/api/login")),
            ("/api/login;x=1", Some("/api/login")),
            ("/api;a/login;b=/..", Some("/api")),
            ("/api\\login", Some("/api/login")),
            ("/;/", Some("/")),
        ];
        for (raw, want) in cases {
            let loose = loosen(&normalise(raw));
            assert_eq!(loose.as_deref(), want, "{raw}");
            assert!(
                loose.is_none_or(|loose| normalise(&loose) == loose && loosen(&loose).is_none())
            );
        }
        assert_eq!(normalise("http+unix://host/api"), "/api");
    }

    #[test]
    fn the_usual_path_is_not_copied() {
        assert!(matches!(normalise("/api/v1/users/42?x=1"), Cow::Borrowed("/api/v1/users/42")));
    }
}
