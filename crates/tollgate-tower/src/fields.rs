//! Header fields as text: written once when a request is decided, turned into values when its response is
//! there. All of them are slices of one buffer.

use arrayvec::ArrayVec;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderName, HeaderValue};
use tollgate::headers::{Dialect, Field, Reply};

/// Room for the text of most decisions.
const TEXT_BYTES: usize = 160;

/// The fields of one decision.
#[derive(Debug)]
pub(crate) struct Fields {
    text: Bytes,
    /// Each field and where its value ends. Bound: three dialects, a refusal's two, and the warning; their
    /// text has at most 16 names of 128 bytes in each, far from 65,535.
    marks: ArrayVec<(Kind, u16), 12>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Limit(Field),
    Warning,
}

impl Fields {
    pub(crate) fn new(reply: &Reply<'_>, dialects: &[Dialect], warnings: &str) -> Fields {
        let mut marks = ArrayVec::new();
        let mut text = Vec::new();
        reply.for_each_header(dialects, |field, value| {
            if text.is_empty() {
                text.reserve(TEXT_BYTES);
            }
            value.write_to(&mut text);
            marks.push((Kind::Limit(field), text.len() as u16));
        });
        if !warnings.is_empty() {
            text.extend_from_slice(warnings.as_bytes());
            marks.push((Kind::Warning, text.len() as u16));
        }
        Fields { text: text.into(), marks }
    }

    pub(crate) fn len(&self) -> usize {
        self.marks.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let mut start = 0;
        self.marks.iter().filter_map(move |(kind, end)| {
            let end = usize::from(*end);
            let value = self.text.slice(start..end);
            start = end;
            // Printable ASCII, all of it; were it not, the field would be missing and nothing else.
            HeaderValue::from_maybe_shared(value).ok().map(|value| (name_of(*kind), value))
        })
    }
}

fn name_of(kind: Kind) -> HeaderName {
    let Kind::Limit(field) = kind else {
        return const { HeaderName::from_static("x-ratelimit-warning") };
    };
    match field {
        Field::XLimit => const { HeaderName::from_static("x-ratelimit-limit") },
        Field::XRemaining => const { HeaderName::from_static("x-ratelimit-remaining") },
        Field::XReset => const { HeaderName::from_static("x-ratelimit-reset") },
        Field::Policy => const { HeaderName::from_static("ratelimit-policy") },
        Field::RateLimit => const { HeaderName::from_static("ratelimit") },
        Field::Limit => const { HeaderName::from_static("ratelimit-limit") },
        Field::Remaining => const { HeaderName::from_static("ratelimit-remaining") },
        Field::Reset => const { HeaderName::from_static("ratelimit-reset") },
        Field::RetryAfter => RETRY_AFTER,
        Field::CacheControl => CACHE_CONTROL,
    }
}
