//! `Problem`: what is wrong with something a person wrote, and what to write instead.
//!
//! Parsers of small things (patterns, templates, rates) return it without knowing where the text
//! stood; `compile` adds file, line and column.

use std::fmt;

use tollgate::LimitError;

/// A problem, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The problem, naming the value given.
    pub message: String,
    /// Advice on what to write instead, unless the message says it.
    pub hint: Option<String>,
}

impl Problem {
    /// A problem that explains itself.
    pub fn new(message: impl Into<String>) -> Problem {
        Problem { message: message.into(), hint: None }
    }

    /// Adds what to write instead.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, " ({hint})"))
    }
}

impl std::error::Error for Problem {}

impl From<LimitError> for Problem {
    fn from(error: LimitError) -> Problem {
        Problem::new(error.to_string())
    }
}
