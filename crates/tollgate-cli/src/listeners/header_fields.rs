//! The head of a request as endpoints see it, however it was read: hyper builds a map of header fields, the fast lane
//! leaves them where they arrived.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Version, request};

/// Header fields of a request.
pub(crate) trait HeaderFields: Sync {
    /// The values of all fields of this lowercase name, in order.
    fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]>;

    /// The names of all fields, in any case.
    fn names(&self) -> impl Iterator<Item = &str>;

    /// Lowercase names, among them all that appear more than once.
    fn repeated_names(&self) -> impl Iterator<Item = &str>;

    /// The only value of this lowercase name; `Err` if there are several.
    fn single_value<'a>(&'a self, name: &str) -> Result<Option<&'a [u8]>, RepeatedField> {
        let mut values = self.values(name);
        let first = values.next();
        match values.next() {
            None => Ok(first),
            Some(_) => Err(RepeatedField),
        }
    }
}

impl HeaderFields for HeaderMap {
    /// A request has a handful of fields: comparing each is faster than hashing the name.
    fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let named = self.iter().filter(move |(field, _)| field.as_str() == name);
        named.map(|(_, value)| HeaderValue::as_bytes(value))
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.keys().map(HeaderName::as_str)
    }

    fn repeated_names(&self) -> impl Iterator<Item = &str> {
        // Nearly all requests have each field once.
        let has_repeats = self.len() != self.keys_len();
        self.keys().map(HeaderName::as_str).filter(move |_| has_repeats)
    }
}

/// A field that appears more than once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RepeatedField;

/// Header fields where they arrived, each name once.
pub(crate) struct HeaderFieldSlice<'a>(pub(crate) &'a [httparse::Header<'a>]);

impl HeaderFields for HeaderFieldSlice<'_> {
    fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let named = self.0.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
        named.map(|field| field.value)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|field| field.name)
    }

    fn repeated_names(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }
}

/// The head of a request.
pub(crate) struct RequestHead<'a, F> {
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    /// Host in the first line, if it names one.
    pub(crate) authority: Option<&'a str>,
    pub(crate) version: Version,
    pub(crate) headers: &'a F,
}

impl<'a> From<&'a request::Parts> for RequestHead<'a, HeaderMap> {
    fn from(head: &'a request::Parts) -> RequestHead<'a, HeaderMap> {
        RequestHead {
            method: &head.method,
            path: head.uri.path(),
            authority: head.uri.authority().map(|authority| authority.as_str()),
            version: head.version,
            headers: &head.headers,
        }
    }
}
