//! Why a shared store did not answer. Never a refusal: that is an answer.

use std::fmt;

/// Kinds of failure, each with a label in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// No answer within the deadline.
    Timeout,
    /// What came is not an answer.
    Protocol,
    /// Others kept changing the state meanwhile.
    Contended,
    /// Whatever else the server says.
    Other,
}

impl ErrorClass {
    /// The label in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            ErrorClass::Timeout => "timeout",
            ErrorClass::Protocol => "protocol",
            ErrorClass::Contended => "contended",
            ErrorClass::Other => "other",
        }
    }
}

/// Why a shared store did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    /// Which kind.
    pub class: ErrorClass,
    /// What the store or the system said, without anybody's key or password.
    pub detail: Box<str>,
}

impl StoreError {
    pub(crate) fn new(class: ErrorClass, detail: impl Into<Box<str>>) -> StoreError {
        StoreError { class, detail: detail.into() }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the shared store did not answer ({}): {}", self.class.name(), self.detail)
    }
}

impl std::error::Error for StoreError {}
