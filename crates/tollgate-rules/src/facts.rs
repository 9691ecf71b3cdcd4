//! `Facts`: what a rule may look at, borrowed from whoever asks.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use crate::descriptors::Entry;

/// What is known about one request. Everything is optional: a rule whose key needs a fact that is
/// missing does not apply.
#[derive(Clone, Copy, Default)]
pub struct Facts<'a> {
    /// The request method, in capitals.
    pub method: Option<&'a str>,
    /// The path as it was received, with or without a query; rules look at it normalised.
    pub path: Option<&'a str>,
    /// The client's address.
    pub ip: Option<IpAddr>,
    /// The authenticated user.
    pub user: Option<&'a str>,
    /// The caller's tier, if the caller's word for it is to be believed. Otherwise the rules look
    /// the user up in their table.
    pub tier: Option<&'a str>,
    /// The key of the calling program.
    pub api_key: Option<&'a str>,
    /// Header fields, asked for only by rules that need them.
    pub headers: Option<&'a dyn Headers>,
    /// Whose descriptor it is, if it is one.
    pub domain: Option<&'a str>,
    /// The entries of the descriptor.
    pub entries: &'a [Entry<'a>],
}

impl fmt::Debug for Facts<'_> {
    /// Shows which facts there are, not their values: those are people's names and secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = [
            ("method", self.method.is_some()),
            ("path", self.path.is_some()),
            ("ip", self.ip.is_some()),
            ("user", self.user.is_some()),
            ("tier", self.tier.is_some()),
            ("api_key", self.api_key.is_some()),
            ("headers", self.headers.is_some()),
            ("domain", self.domain.is_some()),
            ("entries", !self.entries.is_empty()),
        ];
        let present = facts.iter().filter(|(_, present)| *present).map(|(name, _)| name);
        f.debug_list().entries(present).finish()
    }
}

/// Header fields of a request.
pub trait Headers: Sync {
    /// The value of the first field of this name, which is in small letters. Bytes that are no text
    /// are escaped, as `%FF`: odd must never mean absent, for then no rule might apply.
    fn header(&self, name: &str) -> Option<Cow<'_, str>>;

    /// The values of all fields of this name as one list, in order. Bytes that are no text become
    /// some other character: they spoil their own entry and no other.
    fn joined(&self, name: &str) -> Option<Cow<'_, str>>;

    /// The value of the field of this name, if there is exactly one: whoever may add a second must
    /// not be able to choose which counts.
    fn only(&self, name: &str) -> Option<Cow<'_, str>> {
        let first = self.header(name)?;
        let alone = self.joined(name).is_some_and(|all| all.len() == first.len());
        alone.then_some(first)
    }
}

/// Fields as a list of names and values.
impl<N: AsRef<str> + Sync, V: AsRef<str> + Sync> Headers for Vec<(N, V)> {
    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        values(self, name).next().map(Cow::Borrowed)
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
