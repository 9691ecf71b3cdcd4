//! Rules: which limits apply to a request, and whose key they count.

pub mod diagnostic;
pub mod facts;
pub mod problem;
pub mod source;
mod yaml;

pub use diagnostic::{Diagnostic, Diagnostics, Severity, Span};
pub use facts::{Facts, Headers};
pub use problem::Problem;
pub use source::Source;
