//! Keys in readable form: `user=42`, `user=42,path=/x`, `global`.
//!
//! What is shown is read back as the same key, whatever a caller has put into it: a comma in a value
//! of several parts and control characters are shown as `%2C` and the like, and so is a `%` that
//! would otherwise begin such an escape. Everything else stands for itself.

use std::borrow::Cow;
use std::net::IpAddr;

use percent_encoding::percent_encode_byte;
use tollgate::KeyBuf;

use super::{FACTS, KeyFactName, KeyTemplate, add_ip};
use crate::host::normalize_host;
use crate::identify::api_key::{hash_api_key, is_hashed};
use crate::identify::{Identify, network, without_scheme};
use crate::matcher::to_uppercase;
use crate::path::{self, hex};
use crate::problem::Problem;

/// The name in the key that all callers share.
const GLOBAL: &str = "global";

/// A key as people read it: `user=42`, `user=42,path=/x`, `global`. What [`KeyTemplate::parse_key`]
/// reads.
pub fn key_text(key: &KeyBuf) -> String {
    let several = key.parts().count() > 1;
    key.parts().map(|part| part_text(part, several)).collect::<Vec<_>>().join(",")
}

/// Each part of a key as the key of a rule that counts by this fact alone. A comma in a value is always escaped:
/// such a text means the same beside other parts and without them. None for the key of all callers.
pub fn key_part_texts(key: &KeyBuf) -> Vec<String> {
    key.parts().filter(|(name, _)| *name != GLOBAL).map(|part| part_text(part, true)).collect()
}

/// A part of a key; `several` if a comma would end it.
fn part_text((name, value): (&str, &str), several: bool) -> String {
    match name {
        GLOBAL => name.to_string(),
        // A path has escapes of its own, and a comma means the same with and without.
        "path" if several => format!("path={}", value.replace(',', "%2C")),
        "path" => format!("path={value}"),
        _ => format!("{name}={}", escaped(value, several)),
    }
}

impl KeyTemplate {
    /// Reads a key as people write it, such as `user=42` or, where it can mean only one thing,
    /// `42`; several parts as `user=42,path=/x`. An API key may be plain or hashed; `api_key=` also
    /// stands for the user where users are identified by their API key, and so does a text without a
    /// name. Addresses get the form that `identify` gives those of requests.
    pub fn parse_key(&self, text: &str, identify: &Identify) -> Result<KeyBuf, Problem> {
        let mut key = KeyBuf::new();
        if self.parts.is_empty() {
            if text != GLOBAL {
                return Err(Problem::new(format!(
                    "this rule counts all callers together; it has no key {text:?}"
                ))
                .hint("write `global`"));
            }
            return Ok(key.with(GLOBAL, ""));
        }
        let texts = match self.parts.len() {
            1 => vec![text],
            _ => text.split(',').collect(),
        };
        if texts.len() != self.parts.len() {
            let hint = format!("write `{}`, and a comma in a value as %2C", self.example());
            let text = self.redacted(text, identify);
            let problem = format!("the key {text:?} does not have the rule's parts");
            return Err(Problem::new(problem).hint(hint));
        }
        for (facts, text) in self.parts.iter().zip(texts) {
            let (fact, value) = self.choose(facts, text.trim_start(), identify)?;
            if value.is_empty() && !matches!(fact, KeyFactName::Entry(_)) {
                return Err(Problem::new(format!("the key {text:?} has an empty value"))
                    .hint(format!("write `{}`", self.example())));
            }
            let added = fact.add_text(&mut key, &value, identify);
            added.map_err(|InvalidIpValue| self.no_address(&value, identify))?;
        }
        Ok(key)
    }

    /// Returns true if a part of the key may be the fact of this name, also if the name is misspelt as `parse_key` says.
    pub(crate) fn counts_by(&self, name: &str, identify: &Identify) -> bool {
        let guessed = KeyFactName::guess(name);
        let is_api_key = name == "api_key" && identify.users_are_api_keys();
        self.parts.iter().flatten().any(|fact| {
            fact.name() == name
                || guessed.as_ref() == Some(fact)
                || is_api_key && *fact == KeyFactName::User
        })
    }

    /// Finds the fact that a text gives, and its value. After a name, the value is all that
    /// follows, with the spaces at its end, because a caller's name may have them.
    fn choose<'a>(
        &self,
        facts: &[KeyFactName],
        text: &'a str,
        identify: &Identify,
    ) -> Result<(KeyFactName, Cow<'a, str>), Problem> {
        if let Some((name, value)) = text.split_once('=') {
            if let Some(fact) = facts.iter().find(|fact| fact.name() == name) {
                return Ok((fact.clone(), value.into()));
            }
            if name == "api_key"
                && facts.contains(&KeyFactName::User)
                && identify.users_are_api_keys()
            {
                return Ok((
                    KeyFactName::User,
                    hash_unless_hashed(&unescaped(value)).into_owned().into(),
                ));
            }
        }
        if let Some((name, value)) = text.split_once(['=', ':'])
            && let Some(meant) = KeyFactName::guess(name)
        {
            let right = meant.name();
            let value = self.redacted(value.trim_start(), identify);
            return Err(match facts.contains(&meant) {
                true => Problem::new(format!("the key begins with {:?}", name.trim_end()))
                    .hint(format!("write `{right}={value}`")),
                false => Problem::new(format!("the rule's key has no fact `{right}` here"))
                    .hint(format!("write `{}`", self.example())),
            });
        }
        let text = text.trim_end();
        let is_address = address_of(text).is_some();
        let fitting = facts.iter().filter(|fact| is_address || **fact != KeyFactName::Ip);
        match &fitting.collect::<Vec<_>>()[..] {
            // No user has another name than the hash of a key, so a bare text is the key.
            [fact @ KeyFactName::User] if identify.users_are_api_keys() => {
                let hashed = hash_unless_hashed(&unescaped(text)).into_owned();
                Ok(((*fact).clone(), hashed.into()))
            }
            [fact] => Ok(((*fact).clone(), text.into())),
            [] => Err(self.no_address(text, identify)),
            several => {
                let text = self.redacted(text, identify);
                let readings = several.iter().map(|fact| format!("`{}={text}`", fact.name()));
                let hint = format!("write {}", readings.collect::<Vec<_>>().join(" or "));
                Err(Problem::new(format!("the key {text:?} is ambiguous")).hint(hint))
            }
        }
    }

    fn no_address(&self, text: &str, identify: &Identify) -> Problem {
        Problem::new(format!("{:?} is not an address", self.redacted(text, identify)))
            .hint("the rule counts addresses: write `192.0.2.1`")
    }

    /// The part of a text that an error may show: nothing that may be an API key, because errors in
    /// rules files are logged.
    fn redacted<'a>(&self, text: &'a str, identify: &Identify) -> &'a str {
        let in_key = self.parts.iter().flatten().any(KeyFactName::is_api_key);
        let in_use = identify.api_key_header.is_some() || identify.users_are_api_keys();
        if in_key || in_use { "…" } else { text }
    }

    /// An example of a key of this template.
    fn example(&self) -> String {
        let first = |facts: Vec<String>| format!("{}=…", facts[0]);
        self.parts().map(first).collect::<Vec<_>>().join(",")
    }
}

impl KeyFactName {
    /// Guesses the fact that was meant by `USER` or `api-key`.
    fn guess(name: &str) -> Option<KeyFactName> {
        let small = name.trim().to_ascii_lowercase();
        if small.starts_with("header.") {
            return KeyFactName::parse(&small).ok();
        }
        if small.starts_with("entry.") {
            return KeyFactName::parse(name.trim()).ok();
        }
        let bare = |name: &str| name.replace(['-', '_', ' '], "");
        let found = FACTS.iter().find(|(known, _)| bare(known) == bare(&small));
        found.map(|(_, fact)| fact.clone())
    }

    /// Adds a value as people write it to a key, in the form that requests have it.
    fn add_text(
        &self,
        key: &mut KeyBuf,
        value: &str,
        identify: &Identify,
    ) -> Result<(), InvalidIpValue> {
        let unescaped = unescaped(value);
        match self {
            KeyFactName::Path => key.add("path", &path::key_text(value)),
            KeyFactName::Method => key.add("method", &to_uppercase(unescaped)),
            KeyFactName::Host => key.add("host", &normalize_host(&unescaped).unwrap_or_default()),
            KeyFactName::Header(name) => key.add(&self.name(), &without_scheme(name, unescaped)),
            KeyFactName::Ip => {
                let (ip, prefix) = address_of(value.trim()).ok_or(InvalidIpValue)?;
                add_ip(key, identify.canonical_address(ip), (prefix, identify.ipv6_prefix));
            }
            fact if fact.is_api_key() => key.add(&fact.name(), &hash_unless_hashed(&unescaped)),
            fact => key.add(&fact.name(), &unescaped),
        }
        Ok(())
    }
}

/// Reads an address, or a network that Envoy counts as one client.
fn address_of(text: &str) -> Option<(IpAddr, Option<u8>)> {
    match text.contains('/') {
        true => network(text),
        false => Some((text.parse().ok()?, None)),
    }
}

/// The error for a value of `ip` that is not an address.
struct InvalidIpValue;

/// Hashes an API key, unless an operator wrote the hash.
fn hash_unless_hashed(api_key: &str) -> Cow<'_, str> {
    match api_key.is_empty() || is_hashed(api_key) {
        true => Cow::Borrowed(api_key),
        false => Cow::Owned(hash_api_key(api_key).to_string()),
    }
}

/// Returns true if a byte may be shown as an escape. Only these escapes are decoded: anything else
/// that looks like one, such as `%20`, stands for itself.
fn is_escaped(byte: u8) -> bool {
    byte.is_ascii_control() || matches!(byte, b',' | b'%')
}

/// The byte of the escape that a text begins with.
fn escape_at(text: &str) -> Option<u8> {
    let [b'%', high, low, ..] = text.as_bytes() else { return None };
    Some(hex(*high)? << 4 | hex(*low)?).filter(|byte| is_escaped(*byte))
}

fn escaped(value: &str, several: bool) -> Cow<'_, str> {
    if !value.bytes().any(is_escaped) {
        return Cow::Borrowed(value);
    }
    let mut text = String::with_capacity(value.len() + 8);
    for (index, one) in value.char_indices() {
        let needed = match one {
            ',' => several,
            '%' => escape_at(&value[index..]).is_some(),
            other => other.is_ascii_control(),
        };
        match needed {
            true => text.push_str(percent_encode_byte(one as u8)),
            false => text.push(one),
        }
    }
    Cow::Owned(text)
}

fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let (mut value, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(one) = rest.chars().next() {
        let (one, length) = match escape_at(rest) {
            Some(byte) => (char::from(byte), "%XX".len()),
            None => (one, one.len_utf8()),
        };
        value.push(one);
        rest = &rest[length..];
    }
    Cow::Owned(value)
}

#[cfg(test)]
mod tests;
