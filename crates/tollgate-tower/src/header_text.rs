//! Values of header fields from which keys and facts are built.

use std::borrow::Cow;

use http::header::{AUTHORIZATION, COOKIE};
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

/// The value of a field as a key has it: lines of `cookie` joined, because HTTP/2 may split it, and `authorization`
/// without its scheme, which servers accept in any spelling. `Err` if it has several different values.
pub(crate) fn key_value<'a>(
    headers: &'a HeaderMap,
    uri: &'a Uri,
    name: &HeaderName,
) -> Result<Option<Cow<'a, [u8]>>, ()> {
    let mut lines = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    if name == COOKIE
        && let (Some(first), Some(second)) = (lines.next(), lines.next())
    {
        let lines: Vec<&[u8]> = [first, second].into_iter().chain(lines).collect();
        return Ok(Some(Cow::Owned(lines.join(&b"; "[..]))));
    }
    let value = single_value(headers, uri, name)?;
    let bare = |value| if name == AUTHORIZATION { credentials(value) } else { value };
    Ok(value.map(|value| Cow::Borrowed(bare(value))))
}

/// The credentials behind a scheme such as `Bearer`.
fn credentials(value: &[u8]) -> &[u8] {
    let scheme = value.iter().position(|byte| matches!(byte, b' ' | b'\t'));
    scheme.map_or(value, |end| value[end..].trim_ascii_start())
}

/// The value of `host` in the request target, where HTTP/2 has it; `None` for every other field.
pub(crate) fn host_of_target<'a>(name: &str, uri: &'a Uri) -> Option<&'a str> {
    let authority = uri.authority().filter(|_| name == "host")?.as_str();
    // Without user information, which `Host` never contains.
    authority.rsplit('@').next()
}
