//! What the header fields of a request say that keys and rules are made of.

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

/// The one value of a field; `Err` if there are several different ones. The host of a target is one.
pub(crate) fn single_value<'a>(
    headers: &'a HeaderMap,
    uri: &'a Uri,
    name: &HeaderName,
) -> Result<Option<&'a [u8]>, ()> {
    let fields = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let mut values = fields.chain(host_of_target(name.as_str(), uri).map(str::as_bytes));
    let first = values.next();
    if values.all(|other| Some(other) == first) { Ok(first) } else { Err(()) }
}

/// The value of a field that a request without it has elsewhere: in HTTP/2 the host is part of the target.
pub(crate) fn host_of_target<'a>(name: &str, uri: &'a Uri) -> Option<&'a str> {
    let authority = uri.authority().filter(|_| name == "host")?.as_str();
    // Without a user, whom `Host` never has either.
    authority.rsplit('@').next()
}
