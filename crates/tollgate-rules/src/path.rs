//! Paths in one spelling, so that no other spelling of a path escapes the rules for it.
//!
//! `/api/../admin`, `//admin/`, `/%61dmin`, `/admin?x=1` and `http://host/admin` all name `/admin`
//! to most servers behind us. Every path is brought to one form before a rule looks at it, and the
//! patterns of rules are written in that form too. Where servers read a path differently it has further
//! [spellings](Spellings), and meets the rules of each. What comes in is untrusted, so this cannot fail:
//! whatever the bytes, there is a normal form, and the normal form of that is itself.
//!
//! * the query and what follows it, and the scheme and host of a full URL, are dropped;
//! * characters that need no escape are unescaped (`%61` → `a`), all others are escaped in capitals
//!   (`é` → `%C3%A9`, `%2f` → `%2F`); a `%` that escapes nothing is itself escaped;
//! * `.` and `..` are resolved, never above the root; empty segments disappear, and with them a
//!   slash at the end.

mod reading;
mod spellings;

use std::borrow::Cow;

use percent_encoding::percent_encode_byte;

pub(crate) use reading::{DroppedSlashes, key_text};
pub use spellings::{SPELLINGS_MAX, Spelling, Spellings};
pub(crate) use spellings::{SpellingSet, spelling_numbers};

/// The one spelling of a path.
pub fn normalise(raw: &str) -> Cow<'_, str> {
    if let Some(path) = plain_path(raw) {
        return Cow::Borrowed(path);
    }
    let path = RequestTarget::of(raw).path;
    plain_path(path).map_or_else(|| Cow::Owned(reading::normal(path).0), Cow::Borrowed)
}

/// The parts of a request's target that can be its path.
struct RequestTarget<'a> {
    /// The path without scheme, host, query and fragment.
    path: &'a str,
    /// The same with a fragment, which is for browsers: some servers that are sent one take it for part
    /// of the path.
    with_fragment: Option<&'a str>,
}

impl RequestTarget<'_> {
    fn of(raw: &str) -> RequestTarget<'_> {
        let end = raw.bytes().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(raw.len());
        let with_fragment = (raw.as_bytes().get(end) == Some(&b'#')).then(|| {
            let query = raw.bytes().position(|byte| byte == b'?').unwrap_or(raw.len());
            without_host(&raw[..query])
        });
        RequestTarget { path: without_host(&raw[..end]), with_fragment }
    }
}

fn without_host(path: &str) -> &str {
    if path.starts_with('/') {
        return path;
    }
    match path.split_once("://") {
        Some((scheme, rest)) if scheme.bytes().all(is_of_scheme) => {
            rest.find(['/', '\\', '#']).map_or("", |end| &rest[end..])
        }
        _ => path,
    }
}

fn is_of_scheme(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)
}

/// The path of a target that begins with it, if all servers read it alike and it has its normal form.
/// Nearly every target does, so each byte is looked at once.
#[inline]
fn plain_path(target: &str) -> Option<&str> {
    let bytes = target.as_bytes();
    let mut end = bytes.len();
    // A dot matters only at the start of a segment, where it may be all there is.
    let mut after_slash = false;
    for (index, &byte) in bytes.iter().enumerate() {
        match BYTE_KINDS[usize::from(byte)] {
            ByteKind::Plain => after_slash = false,
            ByteKind::Slash | ByteKind::Dot if after_slash => return None,
            ByteKind::Slash => after_slash = true,
            ByteKind::Dot => {}
            ByteKind::Query => {
                end = index;
                break;
            }
            ByteKind::Other => return None,
        }
    }
    let path = &target[..end];
    (path.starts_with('/') && (!after_slash || end == 1)).then_some(path)
}

/// Writes a segment with exactly those characters escaped that need it.
pub(crate) fn push_escaped(normal: &mut String, segment: &[u8]) {
    let mut rest = segment;
    while let Some((byte, _, after)) = next_byte(rest) {
        push_byte(normal, byte);
        rest = after;
    }
}

/// The byte that a path begins with, whether it is escaped, and what follows. A `%` that escapes nothing
/// is a byte like any other. Not `percent_encoding::percent_decode`, which does not report which bytes
/// were escaped: an escaped slash separates segments for some servers only.
fn next_byte(path: &[u8]) -> Option<(u8, bool, &[u8])> {
    match path {
        [b'%', high, low, after @ ..] if hex(*high).is_some() && hex(*low).is_some() => {
            Some((hex(*high)? << 4 | hex(*low)?, true, after))
        }
        [byte, after @ ..] => Some((*byte, false, after)),
        [] => None,
    }
}

/// Writes a byte as it is or, if a segment may not carry it so, as an escape.
fn push_byte(normal: &mut String, byte: u8) {
    if PLAIN[usize::from(byte)] {
        normal.push(char::from(byte));
    } else {
        normal.push_str(percent_encode_byte(byte));
    }
}

/// The bytes that a segment may carry unescaped (RFC 3986: pchar). A table, because every byte of
/// every path is looked up.
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

/// The meaning of a byte of a target that is read in the usual way.
#[derive(Clone, Copy)]
enum ByteKind {
    /// Part of a segment.
    Plain,
    Dot,
    Slash,
    /// The end of the path.
    Query,
    /// A byte that needs a closer look, such as `;`, before which some servers end a segment.
    Other,
}

const BYTE_KINDS: [ByteKind; 256] = {
    let mut kinds = [ByteKind::Other; 256];
    let mut byte = 0;
    while byte < 256 {
        if PLAIN[byte] {
            kinds[byte] = ByteKind::Plain;
        }
        byte += 1;
    }
    kinds[b';' as usize] = ByteKind::Other;
    kinds[b'.' as usize] = ByteKind::Dot;
    kinds[b'/' as usize] = ByteKind::Slash;
    kinds[b'?' as usize] = ByteKind::Query;
    kinds
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
        assert_eq!(normalise("http+unix://host/api"), "/api");
    }

    #[test]
    fn the_usual_path_is_not_copied() {
        assert!(matches!(normalise("/api/v1/users/42?x=1"), Cow::Borrowed("/api/v1/users/42")));
    }
}
