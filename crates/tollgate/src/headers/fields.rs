//! The header fields of a reply for programs that use the `http` crate: names that are made at
//! compile time, and values that are slices of one buffer. Needs the feature `http`.

use std::ops::Range;

use arrayvec::ArrayVec;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderName, HeaderValue};

use super::{FIELDS_MAX, RateLimitField};

/// Bytes that hold the text of most decisions.
const TEXT_BYTES: usize = 160;

/// Each field and the end of its value. A value has at most 16 names of 128 bytes and their
/// numbers: all of them together are far from 65,535 bytes.
type FieldMarks = ArrayVec<(RateLimitField, u16), FIELDS_MAX>;

/// Header fields while they are written.
///
/// ```
/// use tollgate::headers::{Dialect, FieldText, Policy, PolicyName, RateLimitReply};
/// use tollgate::{Limit, Limiter};
///
/// let limiter = Limiter::with_capacity(1_000);
/// let limit = Limit::per_second(10).name("api").build()?;
/// let name = PolicyName::of(&limit);
/// let decision = limiter.check(&limit, "user:42");
/// let policies = [Policy::alone(&name, &limit, &decision)];
///
/// let mut text = FieldText::default();
/// let reply = RateLimitReply::new(&decision, &policies);
/// reply.for_each_header(&[Dialect::Draft], |field, value| text.add(field, |out| value.write_to(out)));
/// let headers: http::HeaderMap = text.finish().iter().collect();
/// assert_eq!(headers["ratelimit"], "\"api-1s\";r=9;t=1");
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug, Default)]
pub struct FieldText {
    text: Vec<u8>,
    marks: FieldMarks,
}

impl FieldText {
    /// An empty text with room for this many bytes, for fields and for what follows them.
    pub fn with_capacity(bytes: usize) -> FieldText {
        FieldText { text: Vec::with_capacity(bytes), marks: FieldMarks::new() }
    }

    /// Adds a field whose value `write` appends.
    ///
    /// # Panics
    ///
    /// If there are more fields than a reply and its warning have.
    #[inline]
    pub fn add(&mut self, field: RateLimitField, write: impl FnOnce(&mut Vec<u8>)) {
        if self.text.is_empty() {
            self.text.reserve(TEXT_BYTES);
        }
        write(&mut self.text);
        self.marks.push((field, self.text.len() as u16));
    }

    /// Returns the fields.
    pub fn finish(self) -> RateLimitFields {
        RateLimitFields { text: self.text.into(), marks: self.marks }
    }

    /// Returns the fields and a body, which `write` appends to the same buffer.
    pub fn finish_with_body(
        mut self,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> (RateLimitFields, Bytes) {
        let end = self.text.len();
        write(&mut self.text);
        let fields = self.finish();
        let rest = fields.text.slice(end..);
        (fields, rest)
    }
}

/// The header fields of one reply.
#[derive(Debug)]
pub struct RateLimitFields {
    text: Bytes,
    marks: FieldMarks,
}

impl RateLimitFields {
    /// Number of fields.
    pub fn len(&self) -> usize {
        self.marks.len()
    }

    /// Returns true if there are no fields.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Names and values, in the order they were added.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        // All values are printable ASCII; if one were not, only that field would be missing.
        self.ranges().filter_map(|(field, range)| {
            let value = HeaderValue::from_maybe_shared(self.text.slice(range)).ok()?;
            Some((field.header_name(), value))
        })
    }

    /// The same as text, for servers that write HTTP themselves; names are in small letters.
    #[inline]
    pub fn texts(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        let fields =
            self.ranges().map(|(field, range)| (field.lowercase_name(), &self.text[range]));
        fields.filter(|(_, value)| value.iter().all(|byte| matches!(byte, b' '..=b'~')))
    }

    /// Each field and where its value is in the text.
    #[inline]
    fn ranges(&self) -> impl Iterator<Item = (RateLimitField, Range<usize>)> {
        let mut start = 0;
        self.marks.iter().map(move |(field, end)| {
            let range = start..usize::from(*end);
            start = range.end;
            (*field, range)
        })
    }
}

impl RateLimitField {
    /// The name as the `http` crate has it.
    #[inline]
    pub const fn header_name(self) -> HeaderName {
        macro_rules! named {
            ($field:ident) => {
                const { HeaderName::from_static(RateLimitField::$field.lowercase_name()) }
            };
        }
        match self {
            RateLimitField::XLimit => named!(XLimit),
            RateLimitField::XRemaining => named!(XRemaining),
            RateLimitField::XReset => named!(XReset),
            RateLimitField::XWarning => named!(XWarning),
            RateLimitField::Policy => named!(Policy),
            RateLimitField::RateLimit => named!(RateLimit),
            RateLimitField::Limit => named!(Limit),
            RateLimitField::Remaining => named!(Remaining),
            RateLimitField::Reset => named!(Reset),
            RateLimitField::RetryAfter => RETRY_AFTER,
            RateLimitField::CacheControl => CACHE_CONTROL,
        }
    }

    /// The name in small letters.
    #[inline]
    const fn lowercase_name(self) -> &'static str {
        match self {
            RateLimitField::XLimit => "x-ratelimit-limit",
            RateLimitField::XRemaining => "x-ratelimit-remaining",
            RateLimitField::XReset => "x-ratelimit-reset",
            RateLimitField::XWarning => "x-ratelimit-warning",
            RateLimitField::Policy => "ratelimit-policy",
            RateLimitField::RateLimit => "ratelimit",
            RateLimitField::Limit => "ratelimit-limit",
            RateLimitField::Remaining => "ratelimit-remaining",
            RateLimitField::Reset => "ratelimit-reset",
            RateLimitField::RetryAfter => "retry-after",
            RateLimitField::CacheControl => "cache-control",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_of_a_field_are_one() {
        for field in RateLimitField::ALL {
            assert_eq!(field.header_name().as_str(), field.name().to_ascii_lowercase());
            assert_eq!(field.header_name().as_str(), field.lowercase_name());
        }
    }

    #[test]
    fn fields_and_what_follows_them_share_a_buffer() {
        let mut text = FieldText::default();
        text.add(RateLimitField::XLimit, |out| out.extend_from_slice(b"10"));
        text.add(RateLimitField::XRemaining, |_| {});
        text.add(RateLimitField::Policy, |out| out.extend_from_slice(b"no\nvalue"));
        text.add(RateLimitField::RetryAfter, |out| out.push(b'7'));
        let (fields, rest) = text.finish_with_body(|out| out.extend_from_slice(b"\0body"));
        assert_eq!((&rest[..], fields.len(), fields.is_empty()), (&b"\0body"[..], 4, false));
        let shown = fields.iter().map(|(name, value)| (name.to_string(), value.len()));
        let expected = [("x-ratelimit-limit", 2), ("x-ratelimit-remaining", 0), ("retry-after", 1)];
        assert!(shown.eq(expected.map(|(name, bytes)| (name.to_owned(), bytes))));
        let texts = fields.texts().map(|(name, value)| (name, value.len()));
        assert!(texts.eq(expected));
        let (none, rest) = FieldText::default().finish_with_body(|_| {});
        assert!(none.is_empty() && none.iter().next().is_none() && rest.is_empty());
    }
}
