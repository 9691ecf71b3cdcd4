//! The error of building a limit.

use std::fmt;

/// The reason why numbers do not make a limit, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitError(String);

impl LimitError {
    pub(crate) fn new(message: impl Into<String>) -> LimitError {
        LimitError(message.into())
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LimitError {}
