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
}

impl ReadHeaders {
    pub(super) fn insert(&mut self, name: &str) {
        let names = self.names.entry(confusable(name).into()).or_default();
        if !names.iter().any(|known| **known == *name) {
            names.push(name.into());
        }
        self.has_odd_name |= !name.bytes().all(is_plain);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns true if a header of another name is confused with one of these.
    #[inline]
    pub(super) fn is_mistakable(&self, header: &str) -> bool {
        // Nearly all names of requests and of rules are plain.
        if !self.has_odd_name && header.bytes().all(is_plain) {
            return false;
        }
        let names = self.names.get(&*confusable(header));
        names.is_some_and(|names| !names.iter().any(|name| name.eq_ignore_ascii_case(header)))
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

/// The name as servers see it that keep only letters and digits.
fn confusable(name: &str) -> Cow<'_, str> {
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
        let rows: [(&[&str], &str, bool); 9] = [
            (&["x-tenant"], "x-tenant", false),
            (&["x-tenant"], "x_tenant", true),
            (&["x-tenant"], "x.tenant", true),
            (&["x-tenant"], "x-other", false),
            (&["x-tenant"], "x_other", false),
            (&["x_user_id"], "x-user-id", true),
            (&["x_user_id"], "X-User_id", true),
            (&["x_user_id", "x-user-id"], "x-user-id", false),
            (&[], "x_tenant", false),
        ];
        for (names, header, want) in rows {
            assert_eq!(headers(names).is_mistakable(header), want, "{names:?} {header}");
        }
    }
}
