//! `ReadHeaders`: the headers whose values count, and the names that servers confuse with theirs.

use std::borrow::Cow;
use std::collections::HashMap;

/// The headers that rules look at and that identify callers.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadHeaders {
    /// The names in lower case, by their confusable form. Bound: the headers that the files name.
    names: HashMap<Box<str>, Vec<Box<str>>>,
    /// True if some name has other characters than letters, digits and `-`, so that plain names can be mistaken for it.
    has_odd_name: bool,
    /// The lengths of the names, one bit each: a header of another length is mistaken for none of them.
    lengths: u64,
}

impl ReadHeaders {
    pub(super) fn insert(&mut self, name: &str) {
        let names = self.names.entry(confusable_header_name(name).into()).or_default();
        if !names.iter().any(|known| **known == *name) {
            names.push(name.into());
        }
        self.has_odd_name |= !is_plain_name(name);
        self.lengths |= length_bit(name);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns true if a header of another name is confused with one of these.
    #[inline]
    pub(super) fn is_mistakable(&self, header: &str) -> bool {
        // Nearly all names of requests and of rules are plain.
        if self.lengths & length_bit(header) == 0 || (!self.has_odd_name && is_plain_name(header)) {
            return false;
        }
        let names = self.names.get(&*confusable_header_name(header));
        names.is_some_and(|names| !names.iter().any(|name| name.eq_ignore_ascii_case(header)))
    }

    /// Returns true if servers may take a field of this name for one of these: it has the same name, or is confused with it.
    pub(super) fn may_be_taken_for_one(&self, header: &str) -> bool {
        self.names.contains_key(&*confusable_header_name(header))
    }
}

/// The bit of a name's length; long names share the last one. The confusable form of a name has the same length.
fn length_bit(name: &str) -> u64 {
    1 << name.len().min(63)
}

/// Bytes that servers do not confuse with others.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        plain[byte] = (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'-';
        byte += 1;
    }
    plain
};

fn is_plain(byte: u8) -> bool {
    PLAIN[usize::from(byte)]
}

/// Returns true if all bytes are plain. Each request asks this about its headers, and a loop without branches is the
/// fastest.
fn is_plain_name(name: &str) -> bool {
    name.bytes().fold(true, |plain, byte| plain & is_plain(byte))
}

/// The name of a header as servers see it that keep only letters and digits, such as CGI and WSGI: `x-tenant` for `X_Tenant`. Two
/// headers with one such name are confused. It is borrowed from a name that is written so.
pub fn confusable_header_name(name: &str) -> Cow<'_, str> {
    if name.bytes().all(|byte| is_plain(byte) && !byte.is_ascii_uppercase()) {
        return Cow::Borrowed(name);
    }
    let plain = |byte| if is_plain(byte) { char::from(byte.to_ascii_lowercase()) } else { '-' };
    Cow::Owned(name.bytes().map(plain).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_mistaken_that_differ_in_underscores() {
        let headers = |names: &[&str]| {
            let mut headers = ReadHeaders::default();
            names.iter().for_each(|name| headers.insert(name));
            headers
        };
        // Names that count | a header | may be mistaken for one of them
        let long = ["x-".to_owned() + &"a".repeat(80), "x_".to_owned() + &"a".repeat(80)];
        let rows: [(&[&str], &str, bool); 11] = [
            (&["x-tenant"], "x-tenant", false),
            (&["x-tenant"], "x_tenant", true),
            (&["x-tenant"], "x.tenant", true),
            (&["x-tenant"], "x-other", false),
            (&["x-tenant"], "x_other", false),
            (&["x_user_id"], "x-user-id", true),
            (&["x_user_id"], "X-User_id", true),
            (&["x_user_id", "x-user-id"], "x-user-id", false),
            (&[], "x_tenant", false),
            (&[&long[0]], &long[1], true),
            (&[&long[0]], &long[0], false),
        ];
        for (names, header, want) in rows {
            assert_eq!(headers(names).is_mistakable(header), want, "{names:?} {header}");
        }
    }
}
