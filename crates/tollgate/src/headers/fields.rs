//! The header fields of a reply for programs that speak `http`: names that are made at compile time,
//! and values that are slices of one buffer. Needs the feature `http`.

use arrayvec::ArrayVec;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderName, HeaderValue};

use super::{FIELDS_MAX, Field};

/// Room for the text of most decisions.
const TEXT_BYTES: usize = 160;

/// Each field and where its value ends. A value has at most 16 names of 128 bytes and their numbers: all
/// of them together are far from 65,535 bytes.
type Marks = ArrayVec<(Field, u16), FIELDS_MAX>;

/// Header fields while they are written.
///
/// ```
/// use tollgate::headers::{Dialect, FieldText, Policy, PolicyName, Reply};
/// use tollgate::{Limit, Limiter};
///
/// let limiter = Limiter::with_capacity(1_000);
/// let limit = Limit::per_second(10).name("api").build()?;
/// let name = PolicyName::of(&limit);
/// let decision = limiter.check(&limit, "user:42");
/// let policies = [Policy::alone(&name, &limit, &decision)];
///
/// let mut text = FieldText::default();
/// let reply = Reply::new(&decision, &policies);
/// reply.for_each_header(&[Dialect::Draft], |field, value| text.add(field, |out| value.write_to(out)));
/// let headers: http::HeaderMap = text.finish().iter().collect();
/// assert_eq!(headers["ratelimit"], "\"api-1s\";r=9;t=1");
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug, Default)]
pub struct FieldText {
    text: Vec<u8>,
    marks: Marks,
}

impl FieldText {
    /// With room for so many bytes, fields and what follows them.
    pub fn with_capacity(bytes: usize) -> FieldText {
        FieldText { text: Vec::with_capacity(bytes), marks: Marks::new() }
    }

    /// Adds a field whose value `write` appends.
    ///
    /// # Panics
    ///
    /// If there are more fields than a reply and its warning have.
    #[inline]
    pub fn add(&mut self, field: Field, write: impl FnOnce(&mut Vec<u8>)) {
        if self.text.is_empty() {
            self.text.reserve(TEXT_BYTES);
        }
        write(&mut self.text);
        self.marks.push((field, self.text.len() as u16));
    }

    /// That is all.
    pub fn finish(self) -> Fields {
        Fields { text: self.text.into(), marks: self.marks }
    }

    /// What `write` appends is no field, but stands in the same buffer: the body of a response.
    pub fn finish_before(mut self, write: impl FnOnce(&mut Vec<u8>)) -> (Fields, Bytes) {
        let end = self.text.len();
        write(&mut self.text);
        let fields = self.finish();
        let rest = fields.text.slice(end..);
        (fields, rest)
    }
}

/// The header fields of one reply.
#[derive(Debug)]
pub struct Fields {
    text: Bytes,
    marks: Marks,
}

impl Fields {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.marks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Names and values, in the order they were added.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let mut start = 0;
        self.marks.iter().filter_map(move |(field, end)| {
            let end = usize::from(*end);
            let value = self.text.slice(start..end);
            start = end;
            // Printable ASCII, all of it; were it not, the field would be missing and nothing else.
            HeaderValue::from_maybe_shared(value).ok().map(|value| (field.header_name(), value))
        })
    }
}

impl Field {
    /// As `http` has it.
    #[inline]
    pub const fn header_name(self) -> HeaderName {
        match self {
            Field::XLimit => const { HeaderName::from_static("x-ratelimit-limit") },
            Field::XRemaining => const { HeaderName::from_static("x-ratelimit-remaining") },
            Field::XReset => const { HeaderName::from_static("x-ratelimit-reset") },
            Field::XWarning => const { HeaderName::from_static("x-ratelimit-warning") },
            Field::Policy => const { HeaderName::from_static("ratelimit-policy") },
            Field::RateLimit => const { HeaderName::from_static("ratelimit") },
            Field::Limit => const { HeaderName::from_static("ratelimit-limit") },
            Field::Remaining => const { HeaderName::from_static("ratelimit-remaining") },
            Field::Reset => const { HeaderName::from_static("ratelimit-reset") },
            Field::RetryAfter => RETRY_AFTER,
            Field::CacheControl => CACHE_CONTROL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_of_a_field_are_one() {
        for field in Field::ALL {
            assert_eq!(field.header_name().as_str(), field.name().to_ascii_lowercase());
        }
    }

    #[test]
    fn fields_and_what_follows_them_share_a_buffer() {
        let mut text = FieldText::default();
        text.add(Field::XLimit, |out| out.extend_from_slice(b"10"));
        text.add(Field::XRemaining, |_| {});
        text.add(Field::Policy, |out| out.extend_from_slice(b"no\nvalue"));
        text.add(Field::RetryAfter, |out| out.push(b'7'));
        let (fields, rest) = text.finish_before(|out| out.extend_from_slice(b"\0body"));
        assert_eq!((&rest[..], fields.len(), fields.is_empty()), (&b"\0body"[..], 4, false));
        let shown = fields.iter().map(|(name, value)| (name.to_string(), value.len()));
        let expected = [("x-ratelimit-limit", 2), ("x-ratelimit-remaining", 0), ("retry-after", 1)];
        assert!(shown.eq(expected.map(|(name, bytes)| (name.to_owned(), bytes))));
        let (none, rest) = FieldText::default().finish_before(|_| {});
        assert!(none.is_empty() && none.iter().next().is_none() && rest.is_empty());
    }
}
