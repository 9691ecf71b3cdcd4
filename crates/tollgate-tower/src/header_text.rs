//! Header values as text that keys and rules can be made of.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

/// As text. Bytes that are no text are escaped: odd must never mean absent, for then a caller could leave
/// its key.
pub(crate) fn spelt(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(
        |_| {
            let escaped = bytes.iter().map(|byte| match byte.is_ascii() {
                true => char::from(*byte).to_string(),
                false => format!("%{byte:02X}"),
            });
            Cow::Owned(escaped.collect())
        },
        Cow::Borrowed,
    )
}

/// The one value of a field; `Err` if there are several different ones.
pub(crate) fn only<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, ()> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.all(|other| Some(other) == first) { Ok(first) } else { Err(()) }
}

/// The value of a field that a request without it has elsewhere: in HTTP/2 the host is part of the target.
pub(crate) fn said_elsewhere<'a>(name: &str, uri: &'a Uri) -> Option<&'a str> {
    let authority = uri.authority().filter(|_| name == "host")?.as_str();
    // Without a user, whom `Host` never has either.
    authority.rsplit('@').next()
}
