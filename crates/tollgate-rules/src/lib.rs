//! Rules: which limits apply to a request, and whose key they count.

pub mod facts;
pub mod problem;

pub use facts::{Facts, Headers};
pub use problem::Problem;
