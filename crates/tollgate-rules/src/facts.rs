//! `Facts`: what a rule may look at, borrowed from whoever asks.

use std::borrow::Cow;
use std::net::IpAddr;

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
}

/// Header fields of a request.
pub trait Headers: Sync {
    /// The value of the first field of this name, which is in small letters; `None` also for a
    /// value that is not text.
    fn header(&self, name: &str) -> Option<Cow<'_, str>>;
}

impl Headers for [(&str, &str)] {
    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        let found = self.iter().find(|(field, _)| field.eq_ignore_ascii_case(name));
        found.map(|(_, value)| Cow::Borrowed(*value))
    }
}

impl Headers for Vec<(String, String)> {
    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        let found = self.iter().find(|(field, _)| field.eq_ignore_ascii_case(name));
        found.map(|(_, value)| Cow::Borrowed(value.as_str()))
    }
}
