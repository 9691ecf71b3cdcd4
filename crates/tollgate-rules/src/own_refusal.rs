//! `OwnRefusal`: the response that a rule gives to the clients it refuses, instead of a problem document.

use std::sync::Arc;

use crate::Problem;

/// A refusal in the words of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnRefusal {
    /// The status, from 400 to 599.
    pub status: u16,
    /// The media type of the body, a valid value of a header field.
    pub content_type: Box<str>,
    /// The body. Bound: [`OwnRefusal::BODY_BYTES_MAX`].
    pub body: Arc<[u8]>,
}

impl OwnRefusal {
    /// The most bytes of the body.
    pub const BODY_BYTES_MAX: usize = 16 << 10;

    /// The status unless the rule has one.
    pub const STATUS: u16 = 429;

    /// The media type unless the rule has one.
    pub const CONTENT_TYPE: &str = "text/plain; charset=utf-8";

    /// Checks a body.
    pub(crate) fn check_body(text: &str) -> Result<Arc<[u8]>, Problem> {
        if text.len() > OwnRefusal::BODY_BYTES_MAX {
            return Err(Problem::new(format!("the body has {} bytes", text.len()))
                .hint("write at most 16 KiB"));
        }
        Ok(text.as_bytes().into())
    }

    /// Checks a media type.
    pub(crate) fn check_content_type(text: &str) -> Result<Box<str>, Problem> {
        let plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        let has_subtype =
            text.split_once('/').is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty());
        if !plain || !has_subtype || text.trim() != text {
            return Err(Problem::new(format!("{text:?} is not a content type"))
                .hint("write `text/plain` or `application/json`"));
        }
        Ok(text.into())
    }
}
