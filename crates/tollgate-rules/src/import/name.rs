//! Names for the rules of imported files, which have none of their own.
//!
//! A name is part of a limit's identity, so it depends on nothing but the domain and the place in the
//! tree: neither the order of the file nor what else is in it changes it.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The longest name of a rule.
const NAME_MAX: usize = 64;

/// Number of hexadecimal digits that tell apart rules whose names would be the same.
const DIGITS: usize = 12;

/// A step of the tree: key and, unless any will do, value.
pub(crate) type DescriptorStep<'a> = (&'a str, Option<&'a str>);

/// `domain--key--key`, if that is a name and can be read back; otherwise the nearest to it, with
/// some digits of a hash at its end. Values are never part of it, for they may be addresses or
/// secrets and names are shown to clients and in logs: where there are some, the hash tells paths
/// apart.
pub(crate) fn rule_name(domain: &str, path: &[DescriptorStep<'_>]) -> String {
    let mut name = String::from(domain);
    let mut is_exact = is_plain(domain);
    for (key, value) in path {
        let _ = write!(name, "--{key}");
        is_exact &= is_plain(key) && value.is_none();
    }
    if is_exact && name.len() <= NAME_MAX {
        return name;
    }
    let mut near: String = name.chars().map(|c| if is_word(c) { c } else { '-' }).collect();
    near.truncate(NAME_MAX - DIGITS - 1);
    format!("{}-{}", near.trim_matches('-'), hash_digits(domain, path))
        .trim_start_matches('-')
        .into()
}

/// Returns true if the part can stand in a name unchanged: nothing in it can be mistaken for a
/// separator.
fn is_plain(part: &str) -> bool {
    let whole = !part.is_empty() && part.chars().all(is_word) && !part.contains("--");
    whole && !part.starts_with('-') && !part.ends_with('-')
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// The first digits of the hash of a path. Lengths are hashed too, so that different paths have
/// different input.
fn hash_digits(domain: &str, path: &[DescriptorStep<'_>]) -> String {
    let mut hash = Sha256::new();
    let mut add = |part: Option<&str>| {
        let length = part.map_or(u64::MAX, |part| part.len() as u64);
        hash.update(length.to_le_bytes());
        hash.update(part.unwrap_or_default().as_bytes());
    };
    add(Some(domain));
    for (key, value) in path {
        add(Some(key));
        add(*value);
    }
    const_hex::encode(&hash.finalize()[..DIGITS / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_readable_or_at_least_their_own() {
        let plain = [("message_type", Some("marketing")), ("to_number", None)];
        assert_eq!(rule_name("my-app", &plain), "my-app--message_type--to_number-ad25c03cfc89");
        assert_eq!(rule_name("basic", &[("key1", None)]), "basic--key1");
        let odd = rule_name("basic", &[("path", Some("files/*"))]);
        assert_eq!(odd, "basic--path-78d4be12decd", "other processes and versions must agree");
        let long = "x".repeat(200);
        let names = [
            rule_name("a", &[("b", Some("c"))]),
            rule_name("a", &[("b", Some("d"))]),
            rule_name("a", &[("b", None), ("c", None)]),
            rule_name("a", &[("b---c", None)]),
            rule_name("a", &[("b-", Some("c"))]),
            rule_name("a--b", &[("c", None)]),
            rule_name("a", &[("b_c", None)]),
            rule_name("a", &[("b", Some(""))]),
            rule_name("a", &[(&long, None)]),
            rule_name("a", &[(&long, Some(&long))]),
            rule_name("*", &[("*", None)]),
            rule_name("ü", &[("ü", None)]),
            rule_name(&long, &[("b", None)]),
        ];
        for (index, one) in names.iter().enumerate() {
            assert!(crate::compile::is_name(one), "{one}");
            assert!(!names[..index].contains(one), "{one}");
        }
    }
}
