//! Key templates: the keys that a rule counts. `{user|ip}` is the user or, without one, the
//! address; `{user}:{path}` counts each path of each user; `global` counts everybody together.

mod text;

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::IpAddr;

use ipnet::IpNet;
use tollgate::KeyBuf;

use crate::identify::api_key::hash_api_key;
use crate::identify::without_scheme;
use crate::matcher::{parse_entry_name, parse_header_name};
use crate::normalized_facts::{NormalizedFacts, network_of};
use crate::path::Spelling;
use crate::problem::Problem;
use crate::suggest::suggest;

pub use text::{key_part_texts, key_text};

/// The facts that make up a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyTemplate {
    /// The parts; in each the first fact that is present counts. No parts: one key for all callers.
    parts: Vec<Vec<KeyFactName>>,
}

/// A fact by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum KeyFactName {
    User,
    Ip,
    ApiKey,
    Tier,
    Method,
    Path,
    Domain,
    Host,
    /// A header field, in lower case.
    Header(Box<str>),
    /// An entry of a descriptor.
    Entry(Box<str>),
}

/// The one table of plain facts.
const FACTS: [(&str, KeyFactName); 8] = [
    ("user", KeyFactName::User),
    ("ip", KeyFactName::Ip),
    ("api_key", KeyFactName::ApiKey),
    ("tier", KeyFactName::Tier),
    ("method", KeyFactName::Method),
    ("path", KeyFactName::Path),
    ("domain", KeyFactName::Domain),
    ("host", KeyFactName::Host),
];

/// The facts of a request that its keys are made of.
#[derive(Clone, Copy)]
pub(crate) struct KeyFacts<'a> {
    pub(crate) facts: &'a NormalizedFacts<'a>,
    /// The number of the path's spelling.
    pub(crate) spelling: usize,
    /// Number of bits of an IPv6 address that identify one caller.
    pub(crate) ipv6_prefix: u8,
}

impl KeyFactName {
    fn parse(name: &str) -> Result<KeyFactName, Problem> {
        if let Some(header) = name.strip_prefix("header.") {
            let name = parse_header_name(header)?;
            // The field has many spellings, and HTTP/2 has it elsewhere.
            return Ok(match &*name {
                "host" => KeyFactName::Host,
                _ => KeyFactName::Header(name),
            });
        }
        if let Some(entry) = name.strip_prefix("entry.") {
            return Ok(KeyFactName::Entry(parse_entry_name(entry)?));
        }
        let found = FACTS.iter().find(|(known, _)| *known == name);
        found.map(|(_, fact)| fact.clone()).ok_or_else(|| {
            Problem::new(format!("there is no fact `{name}`")).hint(KeyFactName::advice(name))
        })
    }

    /// Advice for a name that no fact has.
    fn advice(name: &str) -> String {
        let names = || FACTS.iter().map(|(name, _)| *name);
        let words = || name.split(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c));
        let facts: Vec<&str> = words().filter(|word| names().any(|name| name == *word)).collect();
        match (name, &facts[..]) {
            ("global", _) => "write `global` alone, without braces".into(),
            ("header" | "entry", _) => {
                format!("write `{{{name}.NAME}}`, such as `{{{name}.x-tenant}}`")
            }
            (_, [one]) => format!("write `{{{one}}}`"),
            (_, [one, other, ..]) => format!(
                "write `{{{one}|{other}}}` for the first of them that is known, `{{{one}}}:{{{other}}}` for both"
            ),
            _ => match suggest(name, names()) {
                Some(fact) => format!("did you mean `{fact}`?"),
                None => {
                    let names = names().collect::<Vec<_>>().join(", ");
                    format!("write one of {names}, header.NAME or entry.NAME")
                }
            },
        }
    }

    /// The name that a key carries beside the value.
    fn name(&self) -> Cow<'_, str> {
        match self {
            KeyFactName::Header(name) => Cow::Owned(format!("header.{name}")),
            KeyFactName::Entry(name) => Cow::Owned(format!("entry.{name}")),
            plain => {
                let found = FACTS.iter().find(|(_, fact)| fact == plain);
                Cow::Borrowed(found.map_or("", |(name, _)| *name))
            }
        }
    }

    /// Adds its value to the key; `false` if there is none.
    fn add_to(&self, key: &mut KeyBuf, of: &KeyFacts<'_>) -> bool {
        let KeyFacts { facts: seen, spelling, ipv6_prefix } = *of;
        let (name, value) = match self {
            KeyFactName::User => ("user", seen.user()),
            KeyFactName::Ip => {
                let prefixes = (seen.ip_prefix, ipv6_prefix);
                return seen.ip.is_some_and(|ip| add_ip(key, ip, prefixes));
            }
            KeyFactName::ApiKey => ("api_key", seen.hashed_api_key()),
            KeyFactName::Tier => ("tier", seen.tier),
            KeyFactName::Method => ("method", seen.method()),
            KeyFactName::Path => ("path", seen.spelling(spelling).map(Spelling::text)),
            KeyFactName::Domain => ("domain", seen.facts.domain),
            KeyFactName::Host => ("host", seen.host()),
            KeyFactName::Header(_) => return self.add_header(key, seen),
            KeyFactName::Entry(_) => return self.add_entry(key, seen),
        };
        value.is_some_and(|value| {
            key.add(name, value);
            true
        })
    }

    /// Returns true if the value is an API key, which must not be shown.
    fn is_api_key(&self) -> bool {
        match self {
            KeyFactName::ApiKey => true,
            KeyFactName::Entry(name) => &**name == API_KEY,
            _ => false,
        }
    }

    /// Adds the value of the entry. An empty value counts as a value, because the entry was sent on
    /// purpose.
    fn add_entry(&self, key: &mut KeyBuf, seen: &NormalizedFacts<'_>) -> bool {
        let KeyFactName::Entry(name) = self else { return false };
        seen.facts.entries_named(name).next().is_some_and(|value| {
            add_entry(key, name, value);
            true
        })
    }

    fn add_header(&self, key: &mut KeyBuf, seen: &NormalizedFacts<'_>) -> bool {
        let KeyFactName::Header(name) = self else { return false };
        let value = seen.facts.headers.and_then(|headers| headers.header(name));
        let value = value.map(|value| without_scheme(name, value));
        value.filter(|value| !value.is_empty()).is_some_and(|value| {
            key.add(&self.name(), &value);
            true
        })
    }
}

/// One part of a template and what fills it.
pub(crate) struct FilledKeyPart {
    /// The names of the facts that can fill it, in order.
    pub(crate) facts: Vec<String>,
    /// The name and the value of the fact that does; `None` if the request has none of them.
    pub(crate) found: Option<(String, String)>,
}

/// The entry that contains a secret.
pub(crate) const API_KEY: &str = "api_key";

/// Adds an entry of a descriptor under the name that facts of that kind have. An API key is hashed,
/// as it is everywhere: nobody who reads a key may be able to use it.
pub(crate) fn add_entry(key: &mut KeyBuf, name: &str, value: &str) {
    match name == API_KEY && !value.is_empty() {
        true => add_named(key, name, &hash_api_key(value)),
        false => add_named(key, name, value),
    }
}

fn add_named(key: &mut KeyBuf, name: &str, value: &str) {
    let mut fact = arrayvec::ArrayString::<64>::new();
    match write!(fact, "entry.{name}") {
        Ok(()) => key.add(&fact, value),
        Err(_) => key.add(&format!("entry.{name}"), value),
    }
}

/// Adds an address without allocating, because it is part of most keys.
fn add_ip(key: &mut KeyBuf, ip: IpAddr, (prefix, ipv6_prefix): (Option<u8>, u8)) -> bool {
    let mut text = arrayvec::ArrayString::<64>::new();
    // A network is not its first address, but a network within one caller's prefix is that caller.
    let own = if ip.is_ipv4() { 32 } else { ipv6_prefix };
    let net = prefix.filter(|prefix| *prefix < own).and_then(|prefix| IpNet::new(ip, prefix).ok());
    let written = match net {
        Some(net) => write!(text, "{}", net.trunc()),
        None => write!(text, "{}", network_of(ip, ipv6_prefix)),
    };
    debug_assert!(written.is_ok(), "an address has at most 45 characters");
    key.add("ip", &text);
    true
}

impl KeyTemplate {
    /// The most parts.
    pub const PARTS_MAX: usize = 8;

    /// Reads a template.
    pub fn parse(text: &str) -> Result<KeyTemplate, Problem> {
        let bad = |what: &str| {
            Problem::new(format!("the key {text:?} {what}"))
                .hint("write `{user|ip}`, `{user}:{path}` or `global`")
        };
        if text == "global" {
            return Ok(KeyTemplate { parts: Vec::new() });
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            let between = &rest[..open];
            let (inner, after) =
                rest[open + 1..].split_once('}').ok_or_else(|| bad("has a `{` without its `}`"))?;
            if between.contains('}') {
                return Err(bad("has a `}` without its `{`"));
            }
            let facts = inner.split('|').map(|name| KeyFactName::parse(name.trim()));
            parts.push(facts.collect::<Result<Vec<_>, _>>()?);
            rest = after;
        }
        if rest.contains('}') {
            return Err(bad("has a `}` without its `{`"));
        }
        if parts.is_empty() {
            let problem = bad("names no fact, so that all callers would share it");
            return Err(match without_braces(text) {
                Some(meant) => problem.hint(format!("write `{meant}`")),
                None => problem,
            });
        }
        if parts.len() > KeyTemplate::PARTS_MAX {
            return Err(bad(&format!("has more than {} parts", KeyTemplate::PARTS_MAX)));
        }
        Ok(KeyTemplate { parts })
    }

    /// The key of an imported rule: these entries, in order, or one key for all if there are none.
    pub(crate) fn of_entries<'n>(names: impl IntoIterator<Item = &'n str>) -> KeyTemplate {
        let fact = |name: &str| vec![KeyFactName::Entry(name.into())];
        KeyTemplate { parts: names.into_iter().map(fact).collect() }
    }

    /// Returns true if all callers share one key.
    pub fn is_global(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns true if a key may belong to one caller: it contains more than tier, method, host, path
    /// and domain.
    pub fn names_caller(&self) -> bool {
        let is_shared = |fact: &KeyFactName| {
            matches!(
                fact,
                KeyFactName::Tier
                    | KeyFactName::Method
                    | KeyFactName::Host
                    | KeyFactName::Path
                    | KeyFactName::Domain
            )
        };
        !self.parts.iter().flatten().all(is_shared)
    }

    /// Returns true if the address is part of some of its keys.
    pub(crate) fn has_ip(&self) -> bool {
        self.parts.iter().flatten().any(|fact| *fact == KeyFactName::Ip)
    }

    /// Returns true if the tier is part of some of its keys.
    pub(crate) fn has_tier(&self) -> bool {
        self.parts.iter().flatten().any(|fact| *fact == KeyFactName::Tier)
    }

    /// Returns true if the path is part of some of its keys.
    pub(crate) fn has_path(&self) -> bool {
        self.parts.iter().flatten().any(|fact| *fact == KeyFactName::Path)
    }

    /// Returns true if the host is part of some of its keys.
    pub(crate) fn has_host(&self) -> bool {
        self.parts.iter().flatten().any(|fact| *fact == KeyFactName::Host)
    }

    /// The headers that are part of its keys.
    pub(crate) fn headers(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().flatten().filter_map(|fact| match fact {
            KeyFactName::Header(name) => Some(&**name),
            _ => None,
        })
    }

    /// The names of the facts that can fill each part, in order.
    pub fn parts(&self) -> impl Iterator<Item = Vec<String>> + '_ {
        let name = |fact: &KeyFactName| fact.name().into_owned();
        self.parts.iter().map(move |facts| facts.iter().map(name).collect())
    }

    /// Writes the key of a request; `false` if a fact is missing.
    pub(crate) fn write(&self, key: &mut KeyBuf, of: &KeyFacts<'_>) -> bool {
        if self.parts.is_empty() {
            key.add("global", "");
        }
        self.parts.iter().all(|facts| facts.iter().any(|fact| fact.add_to(key, of)))
    }

    /// The facts that can fill each part, and the one that does, with its value. For people.
    pub(crate) fn filled_parts(&self, of: &KeyFacts<'_>) -> Vec<FilledKeyPart> {
        let filled = |facts: &Vec<KeyFactName>| {
            let mut key = KeyBuf::new();
            facts.iter().any(|fact| fact.add_to(&mut key, of));
            let found = key.parts().next().map(|(name, value)| (name.into(), value.into()));
            let name = |fact: &KeyFactName| fact.name().into_owned();
            FilledKeyPart { facts: facts.iter().map(name).collect(), found }
        };
        self.parts.iter().map(filled).collect()
    }

    /// The parts that no fact of a request fills, one bit each.
    pub(crate) fn missing(&self, seen: &NormalizedFacts<'_>, ipv6_prefix: u8) -> u8 {
        const { assert!(KeyTemplate::PARTS_MAX <= u8::BITS as usize) };
        let mut scratch = KeyBuf::new();
        let of = KeyFacts { facts: seen, spelling: 0, ipv6_prefix };
        let mut filled =
            |facts: &[KeyFactName]| facts.iter().any(|fact| fact.add_to(&mut scratch, &of));
        let parts = self.parts.iter().enumerate();
        parts.fold(0, |missing, (index, facts)| missing | u8::from(!filled(facts)) << index)
    }
}

impl fmt::Display for KeyTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.parts.is_empty() {
            return f.write_str("global");
        }
        for (index, facts) in self.parts().enumerate() {
            let colon = if index > 0 { ":" } else { "" };
            write!(f, "{colon}{{{}}}", facts.join("|"))?;
        }
        Ok(())
    }
}

/// The template that a text without braces most likely means: `user`, `$user`, `<ip>`, `global `.
fn without_braces(text: &str) -> Option<String> {
    let name = text.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    match (name, KeyFactName::parse(name)) {
        ("global", _) => Some("global".into()),
        (_, Ok(fact)) => Some(format!("\"{{{}}}\"", fact.name())),
        (_, Err(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use crate::identify::Identify;
    use crate::identify::api_key::hash_api_key;

    fn key(template: &str, facts: &Facts<'_>) -> Option<KeyBuf> {
        let mut key = KeyBuf::new();
        let template = KeyTemplate::parse(template).unwrap();
        let seen = &NormalizedFacts::new(facts, &Identify::default()).with_host();
        template
            .write(&mut key, &KeyFacts { facts: seen, spelling: 0, ipv6_prefix: 64 })
            .then_some(key)
    }

    #[test]
    fn the_first_fact_that_is_present_counts() {
        let anonymous = Facts { ip: "192.0.2.1".parse().ok(), ..Facts::default() };
        let named = Facts { user: Some("42"), ..anonymous };
        let empty = Facts { user: Some(""), ..anonymous };
        let address = KeyBuf::new().with("ip", "192.0.2.1");
        assert_eq!(key("{user|ip}", &named), Some(KeyBuf::new().with("user", "42")));
        assert_eq!(key("{user|ip}", &anonymous), Some(address.clone()));
        assert_eq!(key("{user|ip}", &empty), Some(address));
        assert_eq!(key("{user}", &anonymous), None);
        assert_eq!(key("global", &Facts::default()), Some(KeyBuf::new().with("global", "")));
        assert_eq!(key("{header.x-a}", &named), None);
        let headers = vec![("X-A", "b")];
        let sent = Facts { headers: Some(&headers), ..named };
        assert_eq!(key("{header.X-A}", &sent), Some(KeyBuf::new().with("header.x-a", "b")));
        // The hash of an API key is hashed like any other text: knowing the hash does not make a
        // caller the owner of the key.
        let api_key = |api_key| key("{api_key|ip}", &Facts { api_key, ..anonymous });
        assert_eq!(api_key(Some("abc")), Some(KeyBuf::new().with("api_key", HASH)));
        assert_eq!(api_key(Some(HASH)), Some(KeyBuf::new().with("api_key", &hash_api_key(HASH))));
        assert_eq!(api_key(Some("")), key("{ip}", &anonymous));
        let path = Facts { path: Some("/a//b/?c"), ..named };
        let both = KeyBuf::new().with("user", "42").with("path", "/a/b");
        assert_eq!(key("{user}:{path}", &path), Some(both));
    }

    #[test]
    fn addresses_of_one_network_are_one_key() {
        let of = |ip: &str| key("{ip}", &Facts { ip: ip.parse().ok(), ..Facts::default() });
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }

    /// The hash of the API key `abc`.
    const HASH: &str = "sha256:ba7816bf8f01cfea414140de5dae2223";

    #[test]
    fn bad_templates_say_what_to_write() {
        for (text, want) in [
            ("{usr}", "there is no fact `usr`"),
            ("user", "names no fact"),
            ("{user", "without its `}`"),
            ("user}", "without its `{`"),
            ("{user}}", "without its `{`"),
            ("{}", "there is no fact ``"),
            ("{header.}", "not the name of a header"),
        ] {
            let problem = KeyTemplate::parse(text).unwrap_err();
            assert!(problem.message.contains(want), "{text}: {problem}");
        }
        assert_eq!(KeyTemplate::parse("{user|ip}{path}").unwrap().to_string(), "{user|ip}:{path}");
    }
}
