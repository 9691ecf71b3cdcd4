//! `Facts`: the input of rules, borrowed from the caller.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use crate::descriptors::{ACT, DescriptorEntry};
use crate::identify::network;
use crate::request_json::RequestJson;

/// The known facts of one request. Everything is optional: a rule whose key needs a missing fact
/// does not apply.
#[derive(Clone, Copy, Default)]
pub struct Facts<'a> {
    /// The request method, in capitals.
    pub method: Option<&'a str>,
    /// The path as it was received, with or without a query; rules look at it normalised.
    pub path: Option<&'a str>,
    /// The host that the request is for, as it was received; rules look at it in [one
    /// spelling](crate::normalize_host). `None`: the header field `host` counts. An empty one is no host, and keeps the
    /// header field from counting.
    pub host: Option<&'a str>,
    /// The client's address.
    pub ip: Option<IpAddr>,
    /// Length of the prefix, if the client is a network that is counted as one.
    pub ip_prefix: Option<u8>,
    /// The authenticated user.
    pub user: Option<&'a str>,
    /// The caller's tier, if the caller's statement is trusted. Otherwise the rules look the user
    /// up in their table.
    pub tier: Option<&'a str>,
    /// The key of the calling program.
    pub api_key: Option<&'a str>,
    /// Header fields, asked for only by rules that need them.
    pub headers: Option<&'a dyn Headers>,
    /// True if a browser sent the request on its own, before one of another site: a CORS preflight.
    pub is_preflight: bool,
    /// The length of the request's body.
    pub request_bytes: Option<u64>,
    /// Numbers in the request's JSON body, for rules that [need](crate::RuleSet::request_json_reader) them.
    pub request_json: Option<&'a RequestJson>,
    /// The domain, if the request is a descriptor.
    pub domain: Option<&'a str>,
    /// The entries of the descriptor.
    pub entries: &'a [DescriptorEntry<'a>],
}

impl<'a> Facts<'a> {
    /// The values of the entries of this name, in order. Instructions are not facts.
    pub fn entries_named(self, name: &str) -> impl Iterator<Item = &'a str> {
        let named = self.entries.iter().filter(move |entry| entry.name == name);
        named.filter(|entry| entry.name != ACT).map(|entry| entry.value)
    }

    /// Creates facts from the entries of a descriptor. Of two entries for one fact the first
    /// counts; of addresses the first that is one.
    pub fn of_descriptor(domain: &'a str, entries: &'a [DescriptorEntry<'a>]) -> Facts<'a> {
        let mut facts = Facts { domain: Some(domain), entries, ..Facts::default() };
        for DescriptorEntry { name, value } in entries {
            match *name {
                "remote_address" | "masked_remote_address" | "ip" => {
                    if facts.ip.is_none()
                        && let Some((ip, prefix)) = network(value)
                    {
                        (facts.ip, facts.ip_prefix) = (Some(ip), prefix);
                    }
                }
                "user" => facts.user = facts.user.or(Some(value)),
                "tier" => facts.tier = facts.tier.or(Some(value)),
                "api_key" => facts.api_key = facts.api_key.or(Some(value)),
                "host" => facts.host = facts.host.or(Some(value)),
                "path" => facts.path = facts.path.or(Some(value)),
                "method" => facts.method = facts.method.or(Some(value)),
                _ => {}
            }
        }
        facts
    }
}

impl fmt::Debug for Facts<'_> {
    /// Shows which facts there are, not their values: those are people's names and secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = [
            ("method", self.method.is_some()),
            ("path", self.path.is_some()),
            ("host", self.host.is_some()),
            ("ip", self.ip.is_some()),
            ("user", self.user.is_some()),
            ("tier", self.tier.is_some()),
            ("api_key", self.api_key.is_some()),
            ("headers", self.headers.is_some()),
            ("request_bytes", self.request_bytes.is_some()),
            ("request_json", self.request_json.is_some()),
            ("domain", self.domain.is_some()),
            ("entries", !self.entries.is_empty()),
        ];
        let present = facts.iter().filter(|(_, present)| *present).map(|(name, _)| name);
        f.debug_list().entries(present).finish()
    }
}

/// Header fields of a request.
pub trait Headers: Sync {
    /// Calls `each` with the values of all fields of this name, which is in small letters, in order. Bytes that are no
    /// text are escaped, as `%FF`: a malformed value must not count as absent, or no rule might apply.
    fn each_line<'h>(&'h self, name: &str, each: &mut dyn FnMut(Cow<'h, str>));

    /// The values of all fields of this name as one list, in order. Bytes that are no text become
    /// some other character: they only affect their own entry.
    fn joined(&self, name: &str) -> Option<Cow<'_, str>>;

    /// The value of the fields of this name: all lines count, as servers read them. Lines of `cookie` are joined by
    /// `; `, because HTTP/2 may split it; other lines by `, `, and lines that say the same count once.
    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut value: Option<Cow<'_, str>> = None;
        let is_cookie = name == "cookie";
        self.each_line(name, &mut |line| match &mut value {
            None => value = Some(line),
            Some(value) if is_cookie => *value.to_mut() += &format!("; {line}"),
            Some(value) if *value != line => *value.to_mut() += &format!(", {line}"),
            Some(_) => {}
        });
        value
    }

    /// The value of the first field of this name.
    fn first_line(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut first = None;
        self.each_line(name, &mut |line| {
            first.get_or_insert(line);
        });
        first
    }

    /// The value of the field of this name, if there is exactly one: a client that can add a second
    /// must not be able to choose which counts. Several that say the same may count as one. Bytes
    /// that are no text are escaped, as in [`each_line`](Headers::each_line).
    fn only(&self, name: &str) -> Option<Cow<'_, str>> {
        let (mut first, mut differ) = (None, false);
        self.each_line(name, &mut |line| match &first {
            None => first = Some(line),
            Some(first) => differ |= *first != line,
        });
        first.filter(|_| !differ)
    }
}

/// Fields as a list of names and values.
impl<N: AsRef<str> + Sync, V: AsRef<str> + Sync> Headers for Vec<(N, V)> {
    fn each_line<'h>(&'h self, name: &str, each: &mut dyn FnMut(Cow<'h, str>)) {
        values(self, name).for_each(|value| each(Cow::Borrowed(value)));
    }

    /// Nobody states a field twice by mistake.
    fn only(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut values = values(self, name);
        let first = values.next()?;
        values.next().is_none().then_some(Cow::Borrowed(first))
    }

    fn joined(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut values = values(self, name);
        let first = values.next()?;
        Some(values.fold(Cow::Borrowed(first), |list, next| Cow::Owned(format!("{list},{next}"))))
    }
}

fn values<'a, N: AsRef<str>, V: AsRef<str>>(
    fields: &'a [(N, V)],
    name: &str,
) -> impl Iterator<Item = &'a str> {
    let named = move |(field, _): &&(N, V)| field.as_ref().eq_ignore_ascii_case(name);
    fields.iter().filter(named).map(|(_, value)| value.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_facts() {
        let entry = |name, value| DescriptorEntry { name, value };
        let entries = [
            entry("remote_address", "not an address"),
            entry("masked_remote_address", "192.0.2.0/24"),
            entry("ip", "192.0.2.9"),
            entry("user", "anna"),
            entry("user", "bert"),
            entry("path", "/a"),
            entry("method", "POST"),
            entry("tier", "pro"),
            entry("api_key", "k"),
            entry(ACT, "force"),
            entry("generic_key", ""),
        ];
        let facts = Facts::of_descriptor("d", &entries);
        assert_eq!((facts.ip, facts.ip_prefix), ("192.0.2.0".parse().ok(), Some(24)));
        assert_eq!((facts.user, facts.tier, facts.api_key), (Some("anna"), Some("pro"), Some("k")));
        assert_eq!((facts.path, facts.method, facts.domain), (Some("/a"), Some("POST"), Some("d")));
        let named = |name| facts.entries_named(name).collect::<Vec<_>>();
        assert_eq!(named("user"), ["anna", "bert"]);
        assert_eq!(named("generic_key"), [""]);
        assert!(named(ACT).is_empty() && named("other").is_empty());
    }
}
