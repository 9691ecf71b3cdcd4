//! Shortening of texts that come from requests: an explanation is for reading.

use std::borrow::Cow;

/// The most characters of one value.
const CHARS_MAX: usize = 200;

/// The beginning of a long text.
pub(super) fn shorten(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(CHARS_MAX) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
    }
}
