//! Exact, keyed, bounded rate limiting.

pub mod algorithm;
pub mod decision;
mod hash;
pub mod limit;
pub mod time;

pub use algorithm::Algorithm;
pub use decision::{DecidedBy, Decision, Outcome, Receipt, Refusal};
pub use limit::{Align, Limit, LimitBuilder, LimitError, OnChange, Precision};
pub use time::{Micros, Wait};
