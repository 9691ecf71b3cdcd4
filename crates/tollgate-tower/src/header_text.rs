//! Values of header fields from which keys and facts are built.

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

/// The only value of a field; `Err` if it has several different ones. The host in the request target counts as
/// a value of `host`.
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

/// The value of `host` in the request target, where HTTP/2 has it; `None` for every other field.
pub(crate) fn host_of_target<'a>(name: &str, uri: &'a Uri) -> Option<&'a str> {
    let authority = uri.authority().filter(|_| name == "host")?.as_str();
    // Without user information, which `Host` never contains.
    authority.rsplit('@').next()
}
